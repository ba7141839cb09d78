use std::collections::HashSet;

use tract_onnx::pb::{GraphProto, NodeProto};

use super::super::graph::{attribute, is_standard};
use super::index::Index;

/// The weights of a convolution or of a matrix product.
pub(super) enum Weight {
    /// A tensor at a place, and the axis of its output channels.
    Initializer { place: usize, axis: usize },
    /// What the node at a place makes of a tensor of fewer bits.
    Narrow { maker: usize },
}

/// The weights of a graph, each once, in the order of their first use.
pub(super) fn weights(graph: &GraphProto) -> Vec<Weight> {
    let index = Index::of(graph);
    let mut seen = HashSet::new();
    let mut weights = Vec::new();
    for node in &graph.node {
        let Some((name, channel_axis)) = weight_input(node) else { continue };
        if !seen.insert(name) {
            continue;
        }
        if let Some(place) = index.initializer(name) {
            let rank = graph.initializer[place].dims.len();
            if let Some(axis) = channel_axis.of(rank) {
                weights.push(Weight::Initializer { place, axis });
            }
        } else if let Some(maker) = index.maker(name).filter(|place| widens(&graph.node[*place], &index)) {
            weights.push(Weight::Narrow { maker });
        }
    }
    weights
}

/// Where the output channels of a weight are.
enum ChannelAxis {
    First,
    Second,
    Last,
}

impl ChannelAxis {
    fn of(&self, rank: usize) -> Option<usize> {
        match self {
            _ if rank < 2 => None,
            Self::First => Some(0),
            Self::Second => Some(1),
            Self::Last => Some(rank - 1),
        }
    }
}

fn weight_input(node: &NodeProto) -> Option<(&str, ChannelAxis)> {
    if !is_standard(&node.domain) {
        return None;
    }
    let axis = match node.op_type.as_str() {
        "Conv" => ChannelAxis::First,
        "Gemm" if attribute(node, "transB").is_some_and(|transposed| transposed.i != 0) => ChannelAxis::First,
        "Gemm" => ChannelAxis::Second,
        "MatMul" => ChannelAxis::Last,
        _ => return None,
    };
    node.input.get(1).map(|name| (name.as_str(), axis))
}

/// Whether a node makes f32 of a tensor.
fn widens(node: &NodeProto, index: &Index<'_>) -> bool {
    matches!(node.op_type.as_str(), "Cast" | "DequantizeLinear")
        && node.input.first().is_some_and(|name| index.constant(name).is_some())
}
