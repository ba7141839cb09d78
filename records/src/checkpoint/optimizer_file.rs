//! `optimizer.bpk`, checked against the model and the optimizer before Burn is given it.
//!
//! Burn's [`load_record`](ModuleOptimizer::load_record) trusts what it gets: it panics where a tensor names no parameter,
//! takes a tensor of any shape, leaves out a state that another kind of optimizer wrote, and converts a state that is not
//! of the device's default type. So everything that it would do wrong in silence is refused here.

use std::collections::BTreeMap;
use std::path::Path;

use burn::optim::{ModuleOptimizer, OptimizerRecord};
use burn::store::burn_pack::{Bytes, DType, Error as PackError, Reader, Scalar, Tensor, Writer};
use burn::tensor::AllocationProperty;

use super::snapshot::{Parameter, Parameters};
use crate::OpenOptions;
use crate::source::Contents;

/// The rank of a parameter, as [`ModuleOptimizer::to_record`] keeps it beside the state.
const RANK: &str = "__rank";
/// How many tensors a list holds, as `#[derive(RecordState)]` keeps it.
const LENGTH: &str = ".len";
/// A counter beyond this has overflowed an optimizer's arithmetic, which takes it to `i32`.
const MAX_COUNT: u64 = i32::MAX as u64;

/// The state in `file` in `optimizer`; what is wrong with it otherwise.
///
/// Burn puts the tensors on the default device, and each on that of its parameter in the next step. Nothing in its
/// interface moves them before.
pub(super) fn load(
    file: &Path,
    optimizer: ModuleOptimizer,
    parameters: &Parameters,
) -> Result<ModuleOptimizer, String> {
    check(file, &optimizer, parameters)?;
    let record = OptimizerRecord::from_bytes(map(file)?).map_err(|error| error.to_string())?;
    Ok(optimizer.load_record(record))
}

/// The bytes of `file`, mapped. Burn's own way to read a file opens it again for each tensor, when that is first used:
/// after the checkpoint may have been deleted.
fn map(file: &Path) -> Result<Bytes, String> {
    let contents = Contents::open(file, false, &OpenOptions::default()).map_err(|error| error.to_string())?;
    Ok(Bytes::from_shared(contents.bytes, AllocationProperty::File))
}

/// What would be lost or wrong if the state in `file` were loaded into `optimizer` for a model with `parameters`.
pub(super) fn check(file: &Path, optimizer: &ModuleOptimizer, parameters: &Parameters) -> Result<(), String> {
    let found = Reader::from_bytes(map(file)?).and_then(Record::read).map_err(|error| error.to_string())?;
    found.tensors.iter().try_for_each(|tensor| check_tensor(tensor, parameters))?;
    found.scalars.iter().try_for_each(|(name, value)| check_scalar(name, *value, &found, parameters))?;
    found.paths.iter().try_for_each(|(id, path)| check_path(id, path, parameters))?;
    found.check_by(optimizer)
}

/// An optimizer's record without the values of its tensors.
struct Record {
    tensors: Vec<Entry>,
    scalars: BTreeMap<String, Scalar>,
    paths: BTreeMap<String, String>,
}

struct Entry {
    name: String,
    id: Option<u64>,
    dtype: DType,
    shape: Vec<usize>,
}

impl Record {
    fn read(reader: Reader) -> Result<Self, PackError> {
        let (scalars, paths) = (reader.scalars().clone(), reader.metadata().clone());
        let entry = |tensor: Tensor| Entry {
            name: tensor.name,
            id: tensor.param_id,
            dtype: tensor.dtype,
            shape: tensor.shape.to_vec(),
        };
        Ok(Self { tensors: reader.into_tensors()?.into_iter().map(entry).collect(), scalars, paths })
    }

    /// Has the optimizer read and write a state with these names and values of one element each: what it does not write
    /// again as it was, it would not restore either.
    fn check_by(&self, optimizer: &ModuleOptimizer) -> Result<(), String> {
        let small = |entry: &Entry| {
            let bytes = Bytes::from_bytes_vec(vec![0; entry.dtype.size()]);
            Tensor::new(entry.name.clone(), entry.dtype, vec![1; entry.shape.len()], entry.id, bytes)
        };
        let mut writer = Writer::new(self.tensors.iter().map(small).collect());
        for (name, value) in &self.scalars {
            writer = writer.with_scalar(name, *value);
        }
        for (id, path) in &self.paths {
            writer = writer.with_metadata(id, path);
        }
        let failed = |error: &dyn std::fmt::Display| error.to_string();
        let record = writer.into_bytes().map_err(|error| failed(&error))?;
        let record = OptimizerRecord::from_bytes(record).map_err(|error| failed(&error))?;
        let again = optimizer.clone().load_record(record).into_bytes().map_err(|error| failed(&error))?;
        let again = Reader::from_bytes(again).and_then(Self::read).map_err(|error| failed(&error))?;
        self.check_same(&again)
    }

    fn check_same(&self, again: &Self) -> Result<(), String> {
        let other = "it is of another kind of optimizer, or of one with other settings";
        let restored: BTreeMap<&str, DType> =
            again.tensors.iter().map(|entry| (entry.name.as_str(), entry.dtype)).collect();
        for entry in &self.tensors {
            match restored.get(entry.name.as_str()) {
                None => return Err(format!("{other}, which has no `{}`", entry.name)),
                Some(dtype) if *dtype != entry.dtype => {
                    return Err(format!(
                        "`{}` is {} and Burn would restore it as {}; keep the parameters in the device's default type",
                        entry.name,
                        entry.dtype.name(),
                        dtype.name()
                    ));
                }
                Some(_) => {}
            }
        }
        let bits = |value: &Scalar| match value {
            Scalar::Float(value) => Scalar::UInt(value.to_bits()),
            value => *value,
        };
        for (name, value) in &self.scalars {
            if again.scalars.get(name).map(bits) != Some(bits(value)) {
                return Err(format!("{other}, which has no such `{name}`"));
            }
        }
        Ok(())
    }
}

/// The parameter whose id `name` begins with.
fn owner<'a>(name: &str, parameters: &'a Parameters) -> Result<(u64, &'a Parameter), String> {
    let id = name.split('.').next().and_then(|id| id.parse().ok());
    let found = id.and_then(|id| Some((id, parameters.get(id)?)));
    found.ok_or_else(|| format!("`{name}` belongs to no parameter of the model"))
}

fn check_tensor(entry: &Entry, parameters: &Parameters) -> Result<(), String> {
    let (id, parameter) = owner(&entry.name, parameters)?;
    if entry.id != Some(id) {
        return Err(format!("`{}` carries another parameter's id", entry.name));
    }
    if !matches!(entry.dtype, DType::F64 | DType::F32 | DType::F16 | DType::BF16) {
        return Err(format!("`{}` is {}, which is no type of a state", entry.name, entry.dtype.name()));
    }
    // A factored second moment is reduced to 1 along a dimension, and nothing else is smaller than the parameter.
    let fits = |(found, expected): (&usize, &usize)| found == expected || *found == 1;
    let expected = parameter.shape.as_slice();
    if entry.shape.len() == expected.len() && entry.shape.iter().zip(expected).all(fits) {
        return Ok(());
    }
    Err(format!(
        "`{}` has the shape {:?} and its parameter `{}` has {expected:?}",
        entry.name, entry.shape, parameter.path
    ))
}

fn check_scalar(name: &str, value: Scalar, found: &Record, parameters: &Parameters) -> Result<(), String> {
    let (_, parameter) = owner(name, parameters)?;
    let count = match value {
        Scalar::UInt(count) => count,
        // A negative one is larger than all.
        Scalar::Int(count) => count as u64,
        Scalar::Float(_) | Scalar::Bool(_) => return Ok(()),
    };
    let limit = if name.ends_with(LENGTH) { found.tensors.len() as u64 } else { MAX_COUNT };
    if count > limit {
        return Err(format!("`{name}` is {count}, and {limit} is the most"));
    }
    let rank = parameter.shape.len();
    if name.split_once('.').is_some_and(|(_, field)| field == RANK) && count != rank as u64 {
        return Err(format!(
            "`{name}` is {count} and its parameter `{}` has {rank} dimensions",
            parameter.path
        ));
    }
    Ok(())
}

fn check_path(id: &str, path: &str, parameters: &Parameters) -> Result<(), String> {
    let (_, parameter) = owner(id, parameters)?;
    if parameter.path == path {
        return Ok(());
    }
    Err(format!("it has `{path}` where the model has `{}`", parameter.path))
}
