use std::collections::HashMap;
use std::path::Path;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::store::PathFilter;
use burn::tensor::kind::Basic;
use burn::tensor::{Bool, DType, Device, Int, Tensor, TensorData};
use rayon::prelude::*;

use crate::cast::cast;
use crate::names::Hint;
use crate::plan::{Assignment, Plan, plan};
use crate::slots::Slots;
use crate::{Error, LoadReport, Names, OpenOptions, Result, Source, StoredTensor};

/// How weights are loaded. The default is strict: every parameter finds its tensor, and every tensor its parameter.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct LoadOptions {
    /// How the file is opened.
    pub open: OpenOptions,
    /// Whose names the file has. Without it: as the file or its format says, or, where neither does, those by which more
    /// parameters find a tensor of their shape.
    pub names: Option<Names>,
    /// Loads what fits and leaves the rest of the model as it is, instead of refusing a file that lacks a parameter, has
    /// tensors left over, or one of another shape or kind. A file of which nothing fits is refused still.
    pub lenient: bool,
    /// Loads only the parameters whose path in the model it matches: a backbone without its head, say. Tensors whose
    /// name it does not match may then be left over.
    pub only: Option<PathFilter>,
    /// The floating-point type that parameters take.
    pub dtype: LoadDType,
}

/// Which type a floating-point parameter takes when it is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum LoadDType {
    /// The parameter's, or for one that has no value yet the default of its device.
    #[default]
    Module,
    /// The file's, for integers as well.
    File,
    /// This one, whatever file and model have.
    To(DType),
}

impl LoadOptions {
    /// Opens the file with `open`.
    pub fn with_open(self, open: OpenOptions) -> Self {
        Self { open, ..self }
    }

    /// Takes the file to have `names`.
    pub fn with_names(self, names: Names) -> Self {
        Self { names: Some(names), ..self }
    }

    /// Loads what fits.
    pub fn with_lenient(self, lenient: bool) -> Self {
        Self { lenient, ..self }
    }

    /// Loads only the parameters that `filter` matches.
    pub fn with_only(self, filter: PathFilter) -> Self {
        Self { only: Some(filter), ..self }
    }

    /// Loads floating-point parameters as `dtype`.
    pub fn with_dtype(self, dtype: LoadDType) -> Self {
        Self { dtype, ..self }
    }
}

/// Loads the weights at `path`, of any [`Format`](crate::Format), into a model like `module`, and reports what was loaded.
///
/// Each parameter is loaded on its own device, straight from host memory; no other device is touched. Parameters without
/// a value yet stay so until they are given the file's: no initial weights are drawn. The parameters of a burnpack file
/// get the identities they were saved with, by which the state of an optimizer finds them.
///
/// Everything is checked, and then read, before anything changes. As everywhere in Burn, running statistics (those of
/// batch norm) are shared by the clones of a module: those of `module` itself become the loaded ones too. What a forward
/// pass has left to be added to them is added before, not after.
///
/// # Errors
///
/// Those of [`Source::open`] and [`StoredTensor::data`](crate::StoredTensor::data); [`Error::Mismatch`], with the whole
/// report; [`Error::NotFloat`].
pub fn load<M: Module>(module: &M, path: impl AsRef<Path>, options: &LoadOptions) -> Result<(M, LoadReport)> {
    load_source(module, &Source::open(path, &options.open)?, options)
}

/// Loads weights from an opened file; [`load`] says how.
///
/// # Errors
///
/// As [`load`], but for opening.
pub fn load_source<M: Module>(module: &M, source: &Source, options: &LoadOptions) -> Result<(M, LoadReport)> {
    if let LoadDType::To(dtype) = options.dtype
        && !matches!(dtype, DType::F64 | DType::F32 | DType::Flex32 | DType::F16 | DType::BF16)
    {
        return Err(Error::NotFloat { dtype });
    }
    let Slots { slots, lazy, .. } = Slots::of(module);
    let hint = options.names.map_or_else(|| Hint::new(source.format(), source.metadata()), Hint::Sure);
    let Plan { assignments, report } =
        plan(&slots, source.tensors(), hint, options.only.as_ref(), options.dtype);
    let refused = !options.lenient && !report.is_complete();
    if refused || (assignments.is_empty() && !slots.is_empty()) {
        return Err(Error::Mismatch { path: source.path().into(), report: Box::new(report) });
    }
    let values = assignments
        .into_par_iter()
        .map(|assignment| {
            let value = Value::read(&source.tensors()[assignment.tensor], &assignment)?;
            Ok((slots[assignment.slot].path.clone(), value))
        })
        .collect::<Result<HashMap<_, _>>>()?;
    if !lazy {
        // `valid` adds to the running statistics what is left from the last forward pass; later, it would overwrite the
        // loaded ones with that. A module that has not run has nothing left, and must not be made to draw its weights.
        drop(module.valid());
    }
    Ok((module.clone().map(&mut Loader { path: Vec::new(), values }), report))
}

/// A tensor in host memory, as a parameter takes it.
struct Value {
    data: TensorData,
    transpose: bool,
    id: Option<ParamId>,
}

impl Value {
    fn read(tensor: &StoredTensor, assignment: &Assignment) -> Result<Self> {
        let data = cast(tensor.data()?, assignment.dtype).map_err(|error| tensor.corrupt(error))?;
        Ok(Self { data, transpose: assignment.transpose, id: tensor.param_id().map(ParamId::from) })
    }

    /// The tensor on `device`. Turning it there is a view, where on the host it would be a pass over all values.
    fn place<const D: usize, K: Basic>(self, device: &Device) -> Tensor<D, K> {
        let dtype = self.data.dtype();
        let tensor =
            device.memory_persistent_allocations(self.data, |data| Tensor::from_data(data, (device, dtype)));
        if self.transpose { tensor.transpose() } else { tensor }
    }
}

/// Gives each parameter its value. Nothing in it can fail.
struct Loader {
    path: Vec<String>,
    values: HashMap<String, Value>,
}

impl Loader {
    fn value(&mut self) -> Option<Value> {
        self.values.remove(&self.path.join("."))
    }
}

macro_rules! map_kind {
    ($method:ident, $kind:ty) => {
        fn $method<const D: usize>(&mut self, param: Param<Tensor<D, $kind>>) -> Param<Tensor<D, $kind>> {
            let Some(value) = self.value() else { return param };
            let id = value.id.unwrap_or(param.id);
            let tensor = value.place(&param.lazy_device());
            param.transform_for_load(tensor, id)
        }
    };
}

impl ModuleMapper for Loader {
    fn enter_module(&mut self, name: &str, _container_type: &str) {
        self.path.push(name.into());
    }

    fn exit_module(&mut self, _name: &str, _container_type: &str) {
        self.path.pop();
    }

    map_kind!(map_float, burn::tensor::Float);
    map_kind!(map_int, Int);
    map_kind!(map_bool, Bool);
}
