use std::collections::HashSet;

use tract_onnx::pb::{GraphProto, NodeProto, TensorProto};

use super::super::graph::is_standard;

/// Moves the tensors of `Constant` nodes to the others, so that there is one place to look for weights.
pub(in crate::onnx) fn hoist_constants(graph: &mut GraphProto) {
    let outputs: HashSet<_> = graph.output.iter().map(|output| output.name.clone()).collect();
    let initializers = &mut graph.initializer;
    // A vector that grows would take more than what the nodes give back.
    initializers.reserve_exact(graph.node.iter().filter(|node| is_constant(node)).count());
    graph.node.retain_mut(|node| match take_tensor(node, &outputs) {
        Some(tensor) => {
            initializers.push(tensor);
            false
        }
        None => true,
    });
}

fn take_tensor(node: &mut NodeProto, outputs: &HashSet<String>) -> Option<TensorProto> {
    let [name] = node.output.as_slice() else { return None };
    // A graph's output has to be made by a node.
    if !is_constant(node) || name.is_empty() || outputs.contains(name) {
        return None;
    }
    let value = node.attribute.iter_mut().find(|attribute| attribute.name == "value")?;
    let tensor = value.t.take()?;
    Some(TensorProto { name: name.clone(), ..tensor })
}

fn is_constant(node: &NodeProto) -> bool {
    node.op_type == "Constant" && is_standard(&node.domain)
}
