use std::collections::HashSet;

use tract_onnx::pb::GraphProto;

/// Removes what the output does not need, and the descriptions of values that are no more.
pub(super) fn remove_dead(graph: &mut GraphProto) {
    let mut needed: HashSet<String> = graph.output.iter().map(|output| output.name.clone()).collect();
    let mut alive = vec![false; graph.node.len()];
    for (node, alive) in graph.node.iter().zip(&mut alive).rev() {
        if node.output.iter().any(|name| needed.contains(name)) {
            *alive = true;
            needed.extend(node.input.iter().cloned());
        }
    }
    let mut alive = alive.into_iter();
    graph.node.retain(|_| alive.next().unwrap_or(true));
    graph.initializer.retain(|tensor| needed.contains(&tensor.name));
    let made: HashSet<&str> = graph.node.iter().flat_map(|node| &node.output).map(String::as_str).collect();
    let inputs: HashSet<&str> = graph.input.iter().map(|input| input.name.as_str()).collect();
    let exists = |name: &str| made.contains(name) || inputs.contains(name);
    graph.value_info.retain(|value| exists(&value.name));
    graph.quantization_annotation.retain(|annotation| exists(annotation.tensor_name()));
}
