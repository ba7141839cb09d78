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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Net;
    use crate::{EngineChoice, EngineKind, EngineOptions, load};

    #[test]
    fn a_renamed_network_computes_what_it_did_under_other_names() {
        let net = Net::residual(4, 5);
        let mut onnx = Onnx::from_bytes(&net.bytes()).unwrap();
        let logits = |onnx: &Onnx| {
            let signature = onnx.signature();
            let images = net.images(2, signature.height, signature.width);
            let mut engine =
                load(onnx, EngineChoice::Only(EngineKind::Tract), &EngineOptions::default()).unwrap();
            let mut logits = Vec::new();
            engine.run(2, &images, &mut logits).unwrap();
            logits
        };
        let before = logits(&onnx);
        onnx.rename("images", "classes").unwrap();
        let read = Onnx::from_bytes(&onnx.to_bytes()).unwrap();
        assert_eq!(
            (read.signature().input.as_str(), read.signature().output.as_str()),
            ("images", "classes")
        );
        assert_eq!(logits(&read), before);
    }

    #[test]
    fn a_name_that_another_value_has_is_refused() {
        let mut onnx = Onnx::from_bytes(&Net::residual(4, 5).bytes()).unwrap();
        let bytes = onnx.to_bytes();
        let taken = onnx.proto().graph.as_ref().unwrap().node[0].output[0].clone();
        assert!(onnx.rename(&taken, "logits").is_err());
        assert!(onnx.rename("images", &taken).is_err());
        assert!(onnx.rename("both", "both").is_err());
        assert_eq!(onnx.to_bytes(), bytes);
    }
}
