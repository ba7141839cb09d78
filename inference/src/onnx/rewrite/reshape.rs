//! Reshapes of constants.

use std::collections::HashMap;

use tract_onnx::pb::tensor_proto::DataType;
use tract_onnx::pb::{GraphProto, NodeProto, TensorProto};

use super::super::graph::is_standard;
use super::super::tensor::{MAX_RANK, elements};
use super::dead::remove_dead;
use super::index::Index;

/// The reshapes of a graph that constants can take in.
#[derive(Default)]
struct Reshapes {
    /// Whether each node is one.
    folded: Vec<bool>,
    /// What each of them makes, and the place of the constant that it is.
    renamed: HashMap<String, usize>,
    /// The last shape of each constant.
    dims: HashMap<usize, Vec<i64>>,
}

/// Folds those that can be, removes what is no longer used, and says how many were folded.
pub(in crate::onnx) fn fold_reshapes(graph: &mut GraphProto) -> usize {
    let Reshapes { folded, renamed, dims } = Reshapes::of(graph);
    if renamed.is_empty() {
        return 0;
    }
    for (place, dims) in dims {
        graph.initializer[place].dims = dims;
    }
    let mut folded = folded.into_iter();
    graph.node.retain(|_| !folded.next().unwrap_or(false));
    for input in graph.node.iter_mut().flat_map(|node| &mut node.input) {
        if let Some(place) = renamed.get(input) {
            input.clone_from(&graph.initializer[*place].name);
        }
    }
    remove_dead(graph);
    renamed.len()
}

impl Reshapes {
    /// Nodes are in the order in which they run, so that a reshape of a reshape is found after it.
    fn of(graph: &GraphProto) -> Self {
        let index = Index::of(graph);
        let mut reshapes = Self::default();
        for node in &graph.node {
            let found = reshapes.find(graph, &index, node);
            reshapes.folded.push(found.is_some());
            if let Some((constant, dims)) = found {
                reshapes.renamed.insert(node.output[0].clone(), constant);
                reshapes.dims.insert(constant, dims);
            }
        }
        reshapes
    }

    /// The place of the constant that a node reshapes, which nothing else reads, and its new shape.
    fn find(&self, graph: &GraphProto, index: &Index<'_>, node: &NodeProto) -> Option<(usize, Vec<i64>)> {
        let (data, shape) = operands(node)?;
        let place = self.renamed.get(data).copied().or_else(|| index.initializer(data))?;
        let dims = i64_values(index.constant(shape)?)?;
        // A -1 or 0 is left to the engine.
        let fits = dims.len() <= MAX_RANK
            && dims.iter().all(|dim| *dim > 0)
            && elements(&dims) == elements(&graph.initializer[place].dims);
        let is_output = graph.output.iter().any(|output| output.name == node.output[0]);
        (fits && index.uses(data) == 1 && !is_output).then_some((place, dims))
    }
}

fn operands(node: &NodeProto) -> Option<(&str, &str)> {
    let is_reshape = node.op_type == "Reshape" && is_standard(&node.domain);
    match (node.input.as_slice(), node.output.as_slice()) {
        ([data, shape], [_]) if is_reshape => Some((data, shape)),
        _ => None,
    }
}

fn i64_values(tensor: &TensorProto) -> Option<Vec<i64>> {
    if tensor.data_type != DataType::Int64 as i32 {
        return None;
    }
    if tensor.raw_data.is_empty() {
        return Some(tensor.int64_data.clone());
    }
    Some(tensor.raw_data.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Onnx;
    use crate::testing::tensor;

    fn graph(dims: &[i64], readers: usize) -> Onnx {
        let shape = TensorProto {
            name: "shape".to_owned(),
            data_type: DataType::Int64 as i32,
            dims: vec![dims.len() as i64],
            int64_data: dims.to_vec(),
            ..TensorProto::default()
        };
        let node = |operation: &str, inputs: [&str; 2], output: &str| NodeProto {
            op_type: operation.to_owned(),
            input: inputs.map(str::to_owned).into(),
            output: vec![output.to_owned()],
            ..NodeProto::default()
        };
        let mut onnx = Onnx::from_bytes(&crate::testing::Net::residual(4, 5).bytes()).unwrap();
        let graph = onnx.proto.graph.as_mut().unwrap();
        graph.initializer.extend([tensor("bias", &[6], &[0.5; 6]), shape]);
        graph.node.push(node("Reshape", ["bias", "shape"], "row"));
        graph.node.extend((0..readers).map(|_| node("Add", ["row", "bias"], "sum")));
        graph.node.push(node("Add", ["row", "row"], "sum"));
        // What the output does not need would be removed.
        let output = graph.output[0].name.clone();
        graph.node.push(node("Add", [&output, "sum"], "all"));
        graph.output[0].name = "all".to_owned();
        onnx
    }

    #[test]
    fn a_constant_that_is_only_reshaped_is_stored_in_the_new_shape() {
        let mut onnx = graph(&[1, 6], 0);
        assert_eq!(onnx.fold_reshapes(), 1);
        let graph = onnx.proto.graph.as_ref().unwrap();
        let bias = graph.initializer.iter().find(|tensor| tensor.name == "bias").unwrap();
        assert_eq!(bias.dims, [1, 6]);
        let sum = graph.node.iter().find(|node| node.output == ["sum"]).unwrap();
        assert_eq!(sum.input, ["bias", "bias"]);
        assert!(graph.initializer.iter().all(|tensor| tensor.name != "shape"));
        assert!(graph.node.iter().all(|node| node.output != ["row"]));
    }

    #[test]
    fn one_that_is_read_elsewhere_or_whose_shape_does_not_fit_stays() {
        for (dims, readers) in [(&[1, 6][..], 1), (&[1, 7], 0), (&[1, -1], 0), (&[0, 6], 0)] {
            let mut onnx = graph(dims, readers);
            let before = onnx.proto.clone();
            assert_eq!(onnx.fold_reshapes(), 0, "{dims:?}");
            assert!(onnx.proto == before, "{dims:?}");
        }
    }

    #[test]
    fn thousands_that_follow_each_other_are_folded_at_once() {
        let mut onnx = graph(&[1, 6], 0);
        let graph = onnx.proto.graph.as_mut().unwrap();
        let first = graph.node.iter().position(|node| node.op_type == "Reshape").unwrap();
        let mut more = Vec::new();
        for place in 0..5000 {
            let from = if place == 0 { "bias".to_owned() } else { format!("row{place}") };
            let to = format!("row{}", place + 1);
            more.push(NodeProto {
                input: vec![from, "shape".to_owned()],
                output: vec![to],
                ..graph.node[first].clone()
            });
        }
        graph.node[first].input[0] = "row5000".to_owned();
        graph.node.splice(first..first, more);
        let start = std::time::Instant::now();
        assert_eq!(onnx.fold_reshapes(), 5001);
        // One pass takes milliseconds, and one for each of them minutes.
        assert!(start.elapsed().as_secs() < 10, "{:?}", start.elapsed());
        let graph = onnx.proto.graph.as_ref().unwrap();
        let sum = graph.node.iter().find(|node| node.output == ["sum"]).unwrap();
        assert_eq!(sum.input, ["bias", "bias"]);
    }
}
