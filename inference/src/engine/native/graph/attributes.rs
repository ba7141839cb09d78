//! The attributes of a node.

use tract_onnx::pb::attribute_proto::AttributeType;
use tract_onnx::pb::{AttributeProto, NodeProto, TensorProto};

use super::Window;

/// The attributes of a node, all of them known.
pub(super) struct Attributes<'a>(&'a [AttributeProto]);

impl<'a> Attributes<'a> {
    /// Those of a node that may have `known` ones.
    pub(super) fn of(node: &'a NodeProto, known: &[&str]) -> Result<Self, String> {
        match node.attribute.iter().find(|attribute| !known.contains(&attribute.name.as_str())) {
            Some(unknown) => Err(format!("its attribute `{}` is not supported", unknown.name)),
            None => Ok(Self(&node.attribute)),
        }
    }

    /// An attribute, which must be of this type. Old files do not tell the type.
    fn get(&self, name: &str, kind: AttributeType) -> Result<Option<&'a AttributeProto>, String> {
        let found = self.0.iter().find(|attribute| attribute.name == name);
        match found {
            Some(found) if found.r#type != kind as i32 && found.r#type != 0 => {
                Err(format!("its attribute `{name}` is not of type {}", kind.as_str_name()))
            }
            found => Ok(found),
        }
    }

    /// Whether there is one.
    pub(super) fn has(&self, name: &str) -> bool {
        self.0.iter().any(|attribute| attribute.name == name)
    }

    pub(super) fn int(&self, name: &str, default: i64) -> Result<i64, String> {
        Ok(self.get(name, AttributeType::Int)?.map_or(default, |attribute| attribute.i))
    }

    /// An attribute that is 0 or 1.
    pub(super) fn flag(&self, name: &str, default: bool) -> Result<bool, String> {
        Ok(self.int(name, default.into())? != 0)
    }

    pub(super) fn float(&self, name: &str, default: f32) -> Result<f32, String> {
        Ok(self.get(name, AttributeType::Float)?.map_or(default, |attribute| attribute.f))
    }

    pub(super) fn ints(&self, name: &str) -> Result<Option<&'a [i64]>, String> {
        Ok(self.get(name, AttributeType::Ints)?.map(|attribute| attribute.ints.as_slice()))
    }

    pub(super) fn tensor(&self, name: &str) -> Result<Option<&'a TensorProto>, String> {
        Ok(self.get(name, AttributeType::Tensor)?.and_then(|attribute| attribute.t.as_ref()))
    }

    /// Refuses an attribute that has another value than this one.
    pub(super) fn only(&self, name: &str, value: i64) -> Result<(), String> {
        match self.int(name, value)? {
            found if found == value => Ok(()),
            found => Err(format!("its attribute `{name}` is {found}, only {value} is supported")),
        }
    }

    /// `N` sizes, or ones all `default`.
    fn sizes<const N: usize>(&self, name: &str, default: usize) -> Result<[usize; N], String> {
        let Some(found) = self.ints(name)? else {
            return Ok([default; N]);
        };
        let sizes: Option<Vec<_>> = found.iter().map(|&size| usize::try_from(size).ok()).collect();
        let sizes = sizes.and_then(|sizes| <[usize; N]>::try_from(sizes).ok());
        sizes.ok_or_else(|| format!("its attribute `{name}` is {found:?}, not {N} sizes"))
    }

    /// The window of a convolution or pool over an image of `size` pixels.
    pub(super) fn window(&self, kernel: Option<[usize; 2]>, size: [usize; 2]) -> Result<Window, String> {
        let told = self.ints("kernel_shape")?.is_some();
        let kernel = match (kernel, told) {
            (kernel, true) => {
                let told = self.sizes("kernel_shape", 1)?;
                if kernel.is_some_and(|kernel| kernel != told) {
                    return Err(format!(
                        "its attribute `kernel_shape` is {told:?}, its weights are of {kernel:?}"
                    ));
                }
                told
            }
            (Some(kernel), false) => kernel,
            (None, false) => return Err("it has no attribute `kernel_shape`".to_owned()),
        };
        let [top, left, bottom, right] = self.sizes("pads", 0)?;
        let mut window = Window {
            kernel,
            stride: self.sizes("strides", 1)?,
            dilation: self.sizes("dilations", 1)?,
            before: [top, left],
            after: [bottom, right],
        };
        window.check()?;
        self.auto_pad(&mut window, size)?;
        window.check().map(|()| window)
    }

    /// Sets the padding where it is told by a rule.
    fn auto_pad(&self, window: &mut Window, size: [usize; 2]) -> Result<(), String> {
        let rule =
            self.get("auto_pad", AttributeType::String)?.map_or(&b"NOTSET"[..], |rule| rule.s.as_slice());
        match rule {
            b"NOTSET" => {}
            b"VALID" => (window.before, window.after) = ([0; 2], [0; 2]),
            b"SAME_UPPER" | b"SAME_LOWER" => {
                for (axis, size) in size.into_iter().enumerate() {
                    window.pad_same(axis, size, rule == b"SAME_LOWER");
                }
            }
            other => return Err(format!("its attribute `auto_pad` is `{}`", String::from_utf8_lossy(other))),
        }
        Ok(())
    }
}
