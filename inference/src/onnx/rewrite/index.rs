use std::collections::HashMap;

use tract_onnx::pb::{GraphProto, TensorProto};

use super::super::graph::is_standard;

/// Who makes and who uses the values of a graph.
pub(super) struct Index<'a> {
    graph: &'a GraphProto,
    /// The place of a tensor, or of the one that an `Identity` makes a second name for.
    constants: HashMap<&'a str, usize>,
    makers: HashMap<&'a str, usize>,
    uses: HashMap<&'a str, usize>,
}

impl<'a> Index<'a> {
    pub(super) fn of(graph: &'a GraphProto) -> Self {
        let named = |(place, tensor): (usize, &'a TensorProto)| (tensor.name.as_str(), place);
        let mut constants: HashMap<_, _> = graph.initializer.iter().enumerate().map(named).collect();
        let mut makers = HashMap::new();
        let mut uses = HashMap::new();
        for (place, node) in graph.node.iter().enumerate() {
            for name in &node.input {
                *uses.entry(name.as_str()).or_default() += 1;
            }
            for name in &node.output {
                makers.insert(name.as_str(), place);
            }
            // Exporters write equal statistics once, and a second name for each further use.
            if let ("Identity", true, [from], [to]) = (
                node.op_type.as_str(),
                is_standard(&node.domain),
                node.input.as_slice(),
                node.output.as_slice(),
            ) && let Some(place) = constants.get(from.as_str()).copied()
            {
                constants.insert(to.as_str(), place);
            }
        }
        for output in &graph.output {
            *uses.entry(output.name.as_str()).or_default() += 1;
        }
        Self { graph, constants, makers, uses }
    }

    /// A tensor by its name or by a second name.
    pub(super) fn constant(&self, name: &str) -> Option<&'a TensorProto> {
        self.constants.get(name).map(|place| &self.graph.initializer[*place])
    }

    /// The place of a tensor by its own name.
    pub(super) fn initializer(&self, name: &str) -> Option<usize> {
        self.constants.get(name).copied().filter(|place| self.graph.initializer[*place].name == name)
    }

    /// The same, where one node alone uses it, once.
    pub(super) fn private_initializer(&self, name: &str) -> Option<usize> {
        self.initializer(name).filter(|_| self.uses(name) == 1)
    }

    /// The place of the node that makes a value.
    pub(super) fn maker(&self, name: &str) -> Option<usize> {
        self.makers.get(name).copied()
    }

    /// How often a value is used, by nodes and as the output.
    pub(super) fn uses(&self, name: &str) -> usize {
        self.uses.get(name).copied().unwrap_or(0)
    }
}
