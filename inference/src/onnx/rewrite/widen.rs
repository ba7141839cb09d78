//! Narrow weights back to f32, for engines that would take a node for them as work to do at each run.

use std::borrow::Cow;
use std::collections::HashSet;

use tract_onnx::pb::{GraphProto, ModelProto, NodeProto, TensorProto};

use super::super::graph::{attribute, is_standard};
use super::super::tensor::F32;
use super::super::values::{byte_values, f16_values, f32_tensor, f32_values};
use super::index::Index;

/// The same network with f32 tensors in place of each `Cast` and `DequantizeLinear` of a narrow one.
///
/// A tensor that more than one node uses stays narrow: a foreign file could have one that thousands widen.
pub(in crate::onnx) fn widened(model: &ModelProto) -> Cow<'_, ModelProto> {
    let Some(graph) = &model.graph else { return Cow::Borrowed(model) };
    let wide = wide_tensors(graph);
    if wide.iter().all(Option::is_none) {
        return Cow::Borrowed(model);
    }
    let replaced = || graph.node.iter().zip(&wide).filter(|(_, wide)| wide.is_some()).map(|(node, _)| node);
    let narrow: HashSet<&str> = replaced().map(|node| node.input[0].as_str()).collect();
    let stays = graph.initializer.iter().filter(|tensor| !narrow.contains(tensor.name.as_str())).cloned();
    let kept = graph.node.iter().zip(&wide).filter(|(_, wide)| wide.is_none());
    let node = kept.map(|(node, _)| node.clone()).collect();
    let graph = GraphProto {
        node,
        initializer: stays.chain(wide.into_iter().flatten()).collect(),
        name: graph.name.clone(),
        input: graph.input.clone(),
        output: graph.output.clone(),
        value_info: graph.value_info.clone(),
        ..Default::default()
    };
    Cow::Owned(ModelProto {
        ir_version: model.ir_version,
        opset_import: model.opset_import.clone(),
        graph: Some(graph),
        ..Default::default()
    })
}

/// For each node the f32 tensor that can take its place, if any.
fn wide_tensors(graph: &GraphProto) -> Vec<Option<TensorProto>> {
    let index = Index::of(graph);
    graph.node.iter().map(|node| wide_tensor(graph, &index, node)).collect()
}

fn wide_tensor(graph: &GraphProto, index: &Index<'_>, node: &NodeProto) -> Option<TensorProto> {
    let [name] = node.output.as_slice() else { return None };
    if !is_standard(&node.domain) {
        return None;
    }
    let source = || Some(&graph.initializer[index.private_initializer(node.input.first()?)?]);
    let (source, values) = match node.op_type.as_str() {
        "Cast" if attribute(node, "to")?.i == i64::from(F32) => {
            let source = source()?;
            (source, f16_values(source)?.collect())
        }
        "DequantizeLinear" => {
            let source = source()?;
            (source, dequantize(node, source, index)?)
        }
        _ => return None,
    };
    Some(f32_tensor(name.clone(), source.dims.clone(), values.into_iter()))
}

/// `(q - zero point) scale`, of each channel of an axis or of all.
fn dequantize(node: &NodeProto, source: &TensorProto, index: &Index<'_>) -> Option<Vec<f32>> {
    if attribute(node, "block_size").is_some_and(|size| size.i != 0) {
        return None;
    }
    let scales = f32_values(index.constant(node.input.get(1)?)?)?;
    let zeros: Vec<i32> = match node.input.get(2).filter(|name| !name.is_empty()) {
        Some(name) => byte_values(index.constant(name)?)?.collect(),
        None => vec![0],
    };
    let (channels, inner) = if scales.len() == 1 {
        (1, 1)
    } else {
        let axis = attribute(node, "axis").map_or(1, |axis| axis.i);
        let rank = source.dims.len();
        let axis = if axis < 0 { axis.checked_add(rank as i64)? } else { axis };
        let axis = usize::try_from(axis).ok().filter(|axis| *axis < rank)?;
        let inner = source.dims[axis + 1..].iter().product::<i64>();
        (usize::try_from(source.dims[axis]).ok()?, usize::try_from(inner).ok()?)
    };
    if scales.len() != channels || ![1, channels].contains(&zeros.len()) {
        return None;
    }
    let widen = |(place, value): (usize, i32)| {
        let channel = place / inner.max(1) % channels;
        let zero = zeros[if zeros.len() == 1 { 0 } else { channel }];
        value.saturating_sub(zero) as f32 * scales[channel]
    };
    Some(byte_values(source)?.enumerate().map(widen).collect())
}
