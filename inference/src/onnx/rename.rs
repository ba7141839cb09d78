use tract_onnx::pb::GraphProto;

use super::{EXPORT, Onnx, format};
use crate::{Error, Result};

impl Onnx {
    /// Gives the input and the output these names. Exporters number them, and they are what a caller of the file writes.
    ///
    /// # Errors
    ///
    /// [`Error::Format`] where another value has one of the names; nothing has changed then.
    pub fn rename(&mut self, input: &str, output: &str) -> Result<()> {
        let old = [self.signature.input.clone(), self.signature.output.clone()];
        let new = [input.to_owned(), output.to_owned()];
        let Some(graph) = &mut self.proto.graph else { return Err(taken(input)) };
        if input == output {
            return Err(taken(input));
        }
        for (old, new) in old.iter().zip(&new) {
            if !has_name(graph, old) || old != new && has_name(graph, new) {
                return Err(taken(new));
            }
        }
        for (old, new) in old.iter().zip(&new) {
            for name in names(graph).filter(|name| *name == old) {
                name.clone_from(new);
            }
        }
        [self.signature.input, self.signature.output] = new;
        Ok(())
    }
}

fn taken(name: &str) -> Error {
    format(format!("`{name}` is the name of another of its values"), EXPORT)
}

fn has_name(graph: &mut GraphProto, wanted: &str) -> bool {
    names(graph).any(|name| name == wanted)
}

/// Every place in which the name of a value stands.
fn names(graph: &mut GraphProto) -> impl Iterator<Item = &mut String> {
    let of_nodes = graph.node.iter_mut().flat_map(|node| node.input.iter_mut().chain(&mut node.output));
    let of_values = graph.input.iter_mut().chain(&mut graph.output).chain(&mut graph.value_info);
    of_nodes
        .chain(of_values.map(|value| &mut value.name))
        .chain(graph.initializer.iter_mut().map(|t| &mut t.name))
}
