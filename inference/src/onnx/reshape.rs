use std::collections::HashMap;

use tract_onnx::pb::{GraphProto, NodeProto, TensorProto};

use super::Onnx;
use super::tensor::elements;

/// Of `TensorProto.DataType`.
const I64: i32 = 7;

impl Onnx {
    /// Gives each constant that the graph only reshapes its new shape instead, and says how many: exporters write such a
    /// node before they add the bias of a classifier.
    pub fn fold_reshapes(&mut self) -> usize {
        let Some(graph) = &mut self.proto.graph else { return 0 };
        let mut folded = 0;
        while let Some((node, constant, dims)) = find(graph) {
            let node = graph.node.remove(node);
            let constant = &mut graph.initializer[constant];
            constant.dims = dims;
            let name = constant.name.clone();
            let inputs = graph.node.iter_mut().flat_map(|node| &mut node.input);
            inputs.filter(|input| **input == node.output[0]).for_each(|input| input.clone_from(&name));
            graph.value_info.retain(|value| value.name != node.output[0]);
            folded += 1;
            let shape = &node.input[1];
            if uses(graph, shape) == 0 {
                graph.initializer.retain(|tensor| tensor.name != *shape);
            }
        }
        folded
    }
}

/// A reshape of a constant that nothing else reads, that constant, and its new dimensions.
fn find(graph: &GraphProto) -> Option<(usize, usize, Vec<i64>)> {
    let constants: HashMap<&str, usize> =
        graph.initializer.iter().enumerate().map(|(place, tensor)| (tensor.name.as_str(), place)).collect();
    graph.node.iter().enumerate().find_map(|(place, node)| {
        let (data, shape) = operands(node)?;
        let (data, shape) = (*constants.get(data)?, *constants.get(shape)?);
        let constant = &graph.initializer[data];
        let dims = i64_values(&graph.initializer[shape])?;
        // A -1 or 0 is left to the engine.
        let fits = dims.iter().all(|dim| *dim > 0) && elements(&dims) == elements(&constant.dims);
        let is_private = uses(graph, &constant.name) == 1;
        let is_output = graph.output.iter().any(|output| output.name == node.output[0]);
        (fits && is_private && !is_output).then_some((place, data, dims))
    })
}

fn operands(node: &NodeProto) -> Option<(&str, &str)> {
    let is_reshape = node.op_type == "Reshape" && matches!(node.domain.as_str(), "" | "ai.onnx");
    match (node.input.as_slice(), node.output.as_slice()) {
        ([data, shape], [_]) if is_reshape => Some((data, shape)),
        _ => None,
    }
}

/// How often a value is read.
fn uses(graph: &GraphProto, name: &str) -> usize {
    let by_nodes = graph.node.iter().flat_map(|node| &node.input).filter(|input| *input == name).count();
    by_nodes + graph.output.iter().filter(|output| output.name == name).count()
}

fn i64_values(tensor: &TensorProto) -> Option<Vec<i64>> {
    if tensor.data_type != I64 {
        return None;
    }
    if tensor.raw_data.is_empty() {
        return Some(tensor.int64_data.clone());
    }
    Some(tensor.raw_data.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())
}
