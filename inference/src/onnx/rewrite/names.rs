use std::collections::HashSet;

use tract_onnx::pb::GraphProto;

/// The names of a graph, to make new ones that are not among them.
pub(super) struct Names(HashSet<String>);

impl Names {
    pub(super) fn of(graph: &GraphProto) -> Self {
        let values = graph.node.iter().flat_map(|node| node.input.iter().chain(&node.output));
        let tensors = graph.initializer.iter().map(|tensor| &tensor.name);
        let given = graph.input.iter().chain(&graph.output).map(|value| &value.name);
        let nodes = graph.node.iter().map(|node| &node.name);
        Self(values.chain(tensors).chain(given).chain(nodes).cloned().collect())
    }

    /// The name itself, or with the first free number behind it.
    pub(super) fn unique(&mut self, name: String) -> String {
        let mut unique = name.clone();
        let mut number = 1_usize;
        while !self.0.insert(unique.clone()) {
            number += 1;
            unique = format!("{name}.{number}");
        }
        unique
    }
}
