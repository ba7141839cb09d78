//! The structure of a graph.

use std::collections::HashSet;

use tract_onnx::pb::{AttributeProto, GraphProto, ModelProto, NodeProto};

use super::{COPY, EXPORT, format, tensor};
use crate::{Error, Result};

/// A ResNet-152 has about 500 nodes, and a large transformer about 5,000.
const MAX_NODES: usize = 20_000;
/// `ir_version` since which tensors are as they are now.
const MIN_FORMAT: i64 = 3;
/// Before opset 7 the axes of operations were broadcast otherwise, and normalisations had no fixed mode. After the last
/// one operations may mean something else.
const OPSETS: std::ops::RangeInclusive<i64> = 7..=25;

/// Checks everything but the signature.
pub(super) fn check(model: &ModelProto) -> Result<&GraphProto> {
    let Some(graph) = &model.graph else {
        return Err(format("it has no graph: it is truncated, or no network", COPY));
    };
    if model.ir_version < MIN_FORMAT {
        let reason = format!("its format is of version {}, older than {MIN_FORMAT}", model.ir_version);
        return Err(format(reason, EXPORT));
    }
    opset(model)?;
    if graph.node.len() > MAX_NODES {
        let reason = format!("it has {} nodes, more than the {MAX_NODES} that are allowed", graph.node.len());
        return Err(format(reason, "export a classifier of images"));
    }
    initializers(graph)?;
    for (place, node) in graph.node.iter().enumerate() {
        check_node(node, place)?;
    }
    names(graph)?;
    Ok(graph)
}

/// The version of the operations.
pub(super) fn opset(model: &ModelProto) -> Result<i64> {
    let mut versions =
        model.opset_import.iter().filter(|set| is_standard(&set.domain)).map(|set| set.version);
    let (Some(version), None) = (versions.next(), versions.next()) else {
        return Err(format(
            "it does not say the version of its operations once: it is truncated or damaged",
            COPY,
        ));
    };
    if !OPSETS.contains(&version) {
        let reason = format!("it is of opset {version}, and not of {} to {}", OPSETS.start(), OPSETS.end());
        return Err(format(reason, "export it with opset 18, or use onnx.version_converter"));
    }
    Ok(version)
}

/// Whether a domain is that of ONNX itself.
pub(super) fn is_standard(domain: &str) -> bool {
    matches!(domain, "" | "ai.onnx")
}

/// How errors name a node.
pub(crate) fn label(node: &NodeProto, place: usize) -> String {
    match node.name.as_str() {
        "" => format!("{} of node {place}", node.op_type),
        name => format!("node `{name}`"),
    }
}

fn initializers(graph: &GraphProto) -> Result<()> {
    let mut seen = HashSet::with_capacity(graph.initializer.len());
    for tensor in &graph.initializer {
        if tensor.name.is_empty() || !seen.insert(tensor.name.as_str()) {
            return Err(format(
                format!("the tensor `{}` is there twice or has no name", tensor.name),
                EXPORT,
            ));
        }
        tensor::check(tensor, &format!("tensor `{}`", tensor.name))?;
    }
    Ok(())
}

fn check_node(node: &NodeProto, place: usize) -> Result<()> {
    if node.op_type.is_empty() {
        return Err(format(format!("{} has no operation", label(node, place)), COPY));
    }
    let mut seen = HashSet::new();
    for attribute in &node.attribute {
        let name = &attribute.name;
        if name.is_empty() || !seen.insert(name) {
            let reason = format!("an attribute of {} is there twice or has no name", label(node, place));
            return Err(format(reason, EXPORT));
        }
        if !attribute.ref_attr_name.is_empty() {
            let reason = format!("attribute `{name}` of {} belongs to a function", label(node, place));
            return Err(format(reason, EXPORT));
        }
        for tensor in attribute.t.iter().chain(&attribute.tensors) {
            tensor::check(tensor, &format!("tensor `{name}` of {}", label(node, place)))?;
        }
    }
    check_mode(node, place)
}

/// A normalisation in training mode would take its statistics from the batch that is classified.
fn check_mode(node: &NodeProto, place: usize) -> Result<()> {
    if node.op_type != "BatchNormalization" || !is_standard(&node.domain) {
        return Ok(());
    }
    let training = attribute(node, "training_mode").is_some_and(|mode| mode.i != 0);
    if training || node.output.iter().skip(1).any(|name| !name.is_empty()) {
        let reason = format!("{} is a batch normalisation in training mode", label(node, place));
        return Err(format(reason, "export the model in evaluation mode (`model.eval()` in PyTorch)"));
    }
    Ok(())
}

/// The attribute of a name.
pub(crate) fn attribute<'a>(node: &'a NodeProto, name: &str) -> Option<&'a AttributeProto> {
    node.attribute.iter().find(|attribute| attribute.name == name)
}

/// Checks that each name is made once and before it is used, so that there are no cycles.
fn names(graph: &GraphProto) -> Result<()> {
    let inputs = graph.input.iter().map(|input| input.name.as_str());
    let mut known: HashSet<_> =
        inputs.chain(graph.initializer.iter().map(|tensor| tensor.name.as_str())).collect();
    let given = known.clone();
    for (place, node) in graph.node.iter().enumerate() {
        if let Some(name) = node.input.iter().find(|name| !name.is_empty() && !known.contains(name.as_str()))
        {
            return Err(unknown(graph, place, name));
        }
        for name in node.output.iter().filter(|name| !name.is_empty()) {
            if !known.insert(name) {
                return Err(format(
                    format!("{} makes `{name}`, which is there already", label(node, place)),
                    EXPORT,
                ));
            }
        }
    }
    let made = |name: &str| known.contains(name) && !given.contains(name);
    match graph.output.iter().find(|output| !made(&output.name)) {
        Some(output) => Err(format(format!("no node makes the output `{}`", output.name), EXPORT)),
        None => Ok(()),
    }
}

fn unknown(graph: &GraphProto, place: usize, name: &String) -> Error {
    let user = label(&graph.node[place], place);
    let later = graph.node[place..].iter().any(|node| node.output.contains(name));
    let reason = match later {
        true => {
            format!("{user} uses `{name}` before it is made: there is a cycle, or the nodes are out of order")
        }
        false => format!("{user} uses `{name}`, which nothing makes"),
    };
    format(reason, EXPORT)
}
