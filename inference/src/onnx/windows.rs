//! The windows of convolutions and poolings.

use std::collections::HashMap;

use tract_onnx::pb::NodeProto;

use super::graph::{attribute, is_standard, label};
use super::{EXPORT, format};
use crate::Result;

/// More than the images that are allowed have rows.
const MAX: i64 = 1 << 26;

/// Checks that the attributes of a window have the same number of axes, those of the weights, and possible values.
/// Engines index one by the axes of another.
pub(super) fn check(node: &NodeProto, place: usize, shapes: &HashMap<&str, &[i64]>) -> Result<()> {
    let is_conv = matches!(node.op_type.as_str(), "Conv" | "ConvTranspose");
    if !is_standard(&node.domain) || !(is_conv || node.op_type.ends_with("Pool")) {
        return Ok(());
    }
    let refuse = |what: &str| Err(format(format!("{} has {what}", label(node, place)), EXPORT));
    let list = |name| attribute(node, name).map(|attribute| attribute.ints.as_slice());
    let weight = node.input.get(1).filter(|_| is_conv).and_then(|name| shapes.get(name.as_str()));
    let kernel = match weight {
        Some([_, _, kernel @ ..]) => Some(kernel),
        Some(_) => return refuse("weights of fewer than two axes"),
        None => list("kernel_shape"),
    };
    if list("kernel_shape").is_some_and(|said| Some(said) != kernel) {
        return refuse("a kernel of another size than its weights");
    }
    for (name, least, each) in [
        ("kernel_shape", 1, 1),
        ("strides", 1, 1),
        ("dilations", 1, 1),
        ("pads", 0, 2),
        ("output_padding", 0, 1),
    ] {
        let Some(values) = list(name) else { continue };
        if values.iter().any(|value| !(least..=MAX).contains(value)) {
            return refuse(&format!("{name} that are impossible"));
        }
        if kernel.is_some_and(|kernel| values.len() != each * kernel.len()) {
            return refuse(&format!("{name} of another number of axes than its kernel"));
        }
    }
    if attribute(node, "group").is_some_and(|group| !(1..=MAX).contains(&group.i)) {
        return refuse("an impossible number of groups");
    }
    Ok(())
}
