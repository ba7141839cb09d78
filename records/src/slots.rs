//! The parameters of a model, as places for a file's tensors.

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Bool, DType, Int, Tensor};

use crate::names::{Names, declared_in, torch_name};

/// What kind of tensor a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Float,
    /// Burn can quantize weights, but not load others into them.
    Quantized,
    Int,
    Bool,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Float => "floating-point",
            Self::Quantized => "quantized",
            Self::Int => "integer",
            Self::Bool => "boolean",
        }
    }

    /// Whether values of type `dtype` may become this kind; PyTorch before 1.2 kept masks as `U8`.
    pub(crate) fn accepts(self, dtype: DType) -> bool {
        match self {
            Self::Float => dtype.is_float() && !matches!(dtype, DType::QFloat(_)),
            Self::Quantized => false,
            Self::Int => dtype.is_int() || dtype.is_uint(),
            Self::Bool => dtype.is_bool() || dtype == DType::U8,
        }
    }
}

/// A parameter or running statistic of a model, without its value.
#[derive(Clone, Debug)]
pub(crate) struct Slot {
    /// Its path as Burn records it.
    pub(crate) path: String,
    /// The same without the names of enum variants.
    plain: String,
    /// Its name in a PyTorch `state_dict`.
    torch: String,
    /// The types of the modules around it, as path filters see them.
    containers: String,
    pub(crate) kind: Kind,
    /// What it is loaded as unless asked otherwise.
    pub(crate) dtype: DType,
    /// Its shape in a Burn file.
    shape: Vec<usize>,
    /// Whether PyTorch has its two dimensions the other way round.
    transposed: bool,
}

impl Slot {
    /// The names that it may have in a file, the likelier first.
    pub(crate) fn keys(&self, style: Names) -> [&str; 2] {
        match style {
            // The Burn name second: checkpoints converted from TensorFlow call a norm's weight `gamma` in PyTorch too.
            Names::Torch => [&self.torch, &self.plain],
            _ => [&self.path, &self.plain],
        }
    }

    /// Its shape in a file.
    pub(crate) fn shape(&self, style: Names) -> Vec<usize> {
        let mut shape = self.shape.clone();
        if self.is_transposed(style) {
            shape.reverse();
        }
        shape
    }

    /// Whether a file has its two dimensions the other way round.
    pub(crate) fn is_transposed(&self, style: Names) -> bool {
        self.transposed && style == Names::Torch
    }

    /// The path that prefixes are compared with.
    pub(crate) fn plain(&self) -> &str {
        &self.plain
    }

    /// Whether a filter selects it, by its path with or without the names of variants.
    pub(crate) fn matches(&self, filter: &burn::store::PathFilter) -> bool {
        [&self.path, &self.plain]
            .iter()
            .any(|path| filter.matches_with_container_path_str(path, &self.containers))
    }

    /// A slot for tests of what needs no model.
    #[cfg(test)]
    pub(crate) fn new_for_test(path: &str, container: &str, shape: &[usize], transposed: bool) -> Self {
        let (parent, name) = path.rsplit_once('.').unwrap_or(("", path));
        Self {
            path: path.into(),
            plain: path.into(),
            torch: join(&[parent, torch_name(container, name)]),
            containers: container.into(),
            kind: Kind::Float,
            dtype: DType::F32,
            shape: shape.into(),
            transposed,
        }
    }
}

/// The slots of a model, in the order of its parameters.
#[derive(Default)]
pub(crate) struct Slots {
    pub(crate) slots: Vec<Slot>,
    /// Whether some parameter has no value yet. Reading it would draw random numbers only to throw them away.
    pub(crate) lazy: bool,
    /// Names and types of the modules around the present one.
    stack: Vec<(String, String)>,
}

impl Slots {
    pub(crate) fn of<M: Module>(module: &M) -> Self {
        let mut slots = Self::default();
        module.visit(&mut slots);
        slots
    }

    fn push(&mut self, shape: Vec<usize>, kind: Kind, dtype: DType, transposed: bool) {
        let names = |all: bool| {
            let kept = self.stack.iter().filter(|(_, container)| all || !container.starts_with("Enum:"));
            kept.map(|(name, _)| name.as_str()).collect::<Vec<_>>()
        };
        let plain = names(false);
        let mut torch = plain.clone();
        if let Some(last) = torch.last_mut() {
            *last = torch_name(self.declared_in(), last);
        }
        let containers: Vec<_> = self.stack.iter().map(|(_, container)| container.as_str()).collect();
        let slot = Slot {
            path: names(true).join("."),
            plain: plain.join("."),
            torch: torch.join("."),
            containers: containers.join("."),
            kind,
            dtype,
            shape,
            transposed,
        };
        self.slots.push(slot);
    }

    /// The type of a value, or of the one that will be.
    fn dtype(&mut self, present: Option<DType>, default: impl FnOnce() -> DType) -> DType {
        self.lazy |= present.is_none();
        present.unwrap_or_else(default)
    }

    fn declared_in(&self) -> &str {
        declared_in(self.stack.iter().map(|(_, container)| container.as_str()))
    }
}

impl ModuleVisitor for Slots {
    fn enter_module(&mut self, name: &str, container_type: &str) {
        self.stack.push((name.into(), container_type.into()));
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.stack.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let mut shape = param.lazy_shape().to_vec();
        let linear_weight = D == 2
            && self.declared_in() == "Struct:Linear"
            && self.stack.last().is_some_and(|(name, _)| name == "weight");
        let column_major = linear_weight && transposes_on_load(param);
        // Once it has a value, a column-major weight shows the shape it computes with and no more the one it is saved with.
        if column_major && param.is_initialized() {
            shape.reverse();
        }
        let present = param.is_initialized().then(|| param.dtype());
        let dtype = self.dtype(present, || param.lazy_device().settings().float_dtype.into());
        let kind = if matches!(dtype, DType::QFloat(_)) { Kind::Quantized } else { Kind::Float };
        self.push(shape, kind, dtype, linear_weight && !column_major);
    }

    fn visit_int<const D: usize>(&mut self, param: &Param<Tensor<D, Int>>) {
        let present = param.is_initialized().then(|| param.dtype());
        let dtype = self.dtype(present, || param.lazy_device().settings().int_dtype.into());
        self.push(param.lazy_shape().to_vec(), Kind::Int, dtype, false);
    }

    fn visit_bool<const D: usize>(&mut self, param: &Param<Tensor<D, Bool>>) {
        let present = param.is_initialized().then(|| param.dtype());
        let dtype = self.dtype(present, || param.lazy_device().settings().bool_dtype.into());
        self.push(param.lazy_shape().to_vec(), Kind::Bool, dtype, false);
    }
}

/// Whether a `Linear` keeps its weight column-major: it then turns what it loads, which is laid out as PyTorch's.
///
/// Nothing tells so but the turning itself, and for a square weight not even the shape.
fn transposes_on_load<const D: usize>(param: &Param<Tensor<D>>) -> bool {
    let probe = Tensor::<D>::zeros([1, 2], &param.lazy_device());
    param.clone().transform_for_load(probe, param.id).lazy_shape().to_vec() == [2, 1]
}

#[cfg(test)]
fn join(parts: &[&str]) -> String {
    parts.iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(".")
}
