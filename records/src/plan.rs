//! Which tensor of a file goes into which parameter: decided before anything is read.

use std::collections::HashMap;

use burn::store::PathFilter;
use burn::tensor::DType;

use crate::names::{Hint, is_batch_count, wrapper_prefix};
use crate::slots::{Kind, Slot};
use crate::{LoadDType, LoadReport, Misshapen, Missing, Mistyped, Names, StoredTensor};

/// One tensor and its place.
#[derive(Debug, PartialEq)]
pub(crate) struct Assignment {
    pub(crate) slot: usize,
    pub(crate) tensor: usize,
    /// The type it takes there.
    pub(crate) dtype: DType,
    /// Whether it has to be turned.
    pub(crate) transpose: bool,
}

/// Everything that is to be loaded, and what does not fit.
pub(crate) struct Plan {
    pub(crate) assignments: Vec<Assignment>,
    pub(crate) report: LoadReport,
}

/// Brings together the parameters of a model and the tensors of a file.
pub(crate) fn plan(
    slots: &[Slot],
    tensors: &[StoredTensor],
    hint: Hint,
    only: Option<&PathFilter>,
    dtype: LoadDType,
) -> Plan {
    let keys: Vec<&str> = tensors.iter().map(StoredTensor::name).collect();
    let prefix = wrapper_prefix(&keys, &slots.iter().map(Slot::plain).collect::<Vec<_>>());
    let names: Vec<&str> = keys.into_iter().map(|key| &key[prefix.len()..]).collect();
    let by_name: HashMap<&str, usize> =
        names.iter().enumerate().map(|(index, &name)| (name, index)).collect();
    let style = choose_style(slots, tensors, &by_name, hint);

    let mut report = LoadReport { names: style, ..LoadReport::default() };
    let mut assignments = Vec::with_capacity(slots.len());
    let mut used = vec![false; tensors.len()];
    for (slot_index, slot) in slots.iter().enumerate() {
        let found = find(slot, &by_name, style);
        if let Some(index) = found {
            used[index] = true;
        }
        if only.is_some_and(|filter| !slot.matches(filter)) {
            report.skipped.push(slot.path.clone());
            continue;
        }
        if let Some(tensor) = found.filter(|&index| fits(slot, &tensors[index], style, &mut report)) {
            let (dtype, transpose) = (target(slot, tensors[tensor].dtype, dtype), slot.is_transposed(style));
            assignments.push(Assignment { slot: slot_index, tensor, dtype, transpose });
            report.loaded.push(slot.path.clone());
        } else if found.is_none() {
            let (name, key) = (slot.path.clone(), slot.keys(style)[0].into());
            report.missing.push(Missing { name, key, shape: slot.shape(style) });
        }
    }
    let wanted = |name: &str| {
        !(style == Names::Torch && is_batch_count(name)) && only.is_none_or(|only| only.matches(name))
    };
    report.unexpected = unused(&names, &used).filter(|name| wanted(name)).map(String::from).collect();
    report.prefix = Some(prefix).filter(|prefix| !prefix.is_empty());
    Plan { assignments, report }
}

fn unused<'a>(names: &'a [&str], used: &'a [bool]) -> impl Iterator<Item = &'a str> {
    names.iter().zip(used).filter(|(_, used)| !**used).map(|(name, _)| *name)
}

fn find(slot: &Slot, by_name: &HashMap<&str, usize>, style: Names) -> Option<usize> {
    slot.keys(style).iter().find_map(|key| by_name.get(key)).copied()
}

/// Whether a tensor can be loaded into the parameter of its name; if not, the report says why.
fn fits(slot: &Slot, tensor: &StoredTensor, style: Names, report: &mut LoadReport) -> bool {
    let (name, key, expected) = (slot.path.clone(), tensor.name.clone(), slot.shape(style));
    if expected != tensor.shape {
        report.misshapen.push(Misshapen { name, key, expected, found: tensor.shape.clone() });
    } else if !slot.kind.accepts(tensor.dtype) {
        report.mistyped.push(Mistyped { name, key, expected: slot.kind.name(), found: tensor.dtype });
    } else {
        return true;
    }
    false
}

/// The type to load with. Booleans are stored as the device stores them.
fn target(slot: &Slot, file: DType, dtype: LoadDType) -> DType {
    match (slot.kind, dtype) {
        (Kind::Float, LoadDType::To(dtype)) => dtype,
        (Kind::Float | Kind::Int, LoadDType::File) => file,
        _ => slot.dtype,
    }
}

/// Whose names a file has, by what is known of it and by how many parameters find a tensor of their shape.
fn choose_style(
    slots: &[Slot],
    tensors: &[StoredTensor],
    by_name: &HashMap<&str, usize>,
    hint: Hint,
) -> Names {
    let likely = match hint {
        Hint::Sure(style) => return style,
        Hint::Likely(style) => style,
    };
    let other = if likely == Names::Torch { Names::Burn } else { Names::Torch };
    let matching = |style| {
        let fits = |slot: &&Slot| {
            find(slot, by_name, style).is_some_and(|index| tensors[index].shape == slot.shape(style))
        };
        slots.iter().filter(fits).count()
    };
    if matching(other) > matching(likely) { other } else { likely }
}

#[cfg(test)]
mod tests {
    use burn::tensor::Bytes;

    use super::*;
    use crate::source::Payload;

    fn tensor(name: &str, shape: &[usize]) -> StoredTensor {
        StoredTensor {
            name: name.into(),
            dtype: DType::F32,
            shape: shape.into(),
            byte_len: 0,
            param_id: None,
            payload: Payload::Shared(Bytes::from_bytes_vec(Vec::new())),
            origin: Default::default(),
        }
    }

    /// A norm of 4 features and a layer from 4 to 3.
    fn slots() -> Vec<Slot> {
        vec![
            Slot::new_for_test("bn.gamma", "Struct:BatchNorm", &[4], false),
            Slot::new_for_test("fc.weight", "Struct:Linear", &[4, 3], true),
        ]
    }

    fn make(tensors: &[StoredTensor], hint: Hint) -> Plan {
        plan(&slots(), tensors, hint, None, LoadDType::Module)
    }

    #[test]
    fn unlabelled_names_are_told_by_what_fits() {
        let torch = [tensor("bn.weight", &[4]), tensor("fc.weight", &[3, 4])];
        let burn = [tensor("bn.gamma", &[4]), tensor("fc.weight", &[4, 3])];
        for likely in [Names::Torch, Names::Burn] {
            let plan = make(&torch, Hint::Likely(likely));
            assert!(plan.report.is_complete() && plan.report.names == Names::Torch, "{}", plan.report);
            assert!(plan.assignments[1].transpose);
            let plan = make(&burn, Hint::Likely(likely));
            assert!(plan.report.is_complete() && plan.report.names == Names::Burn, "{}", plan.report);
            assert!(!plan.assignments[1].transpose);
        }
        let plan = make(&burn, Hint::Sure(Names::Torch));
        assert_eq!(plan.report.misshapen.len(), 1, "{}", plan.report);
    }

    #[test]
    fn counts_of_batches_are_expected_in_pytorch_names_only() {
        let mut tensors = vec![
            tensor("bn.weight", &[4]),
            tensor("bn.num_batches_tracked", &[]),
            tensor("fc.weight", &[3, 4]),
        ];
        assert!(make(&tensors, Hint::Sure(Names::Torch)).report.is_complete());
        tensors[0].name = "bn.gamma".into();
        tensors[2].shape.reverse();
        assert_eq!(make(&tensors, Hint::Sure(Names::Burn)).report.unexpected, ["bn.num_batches_tracked"]);
    }

    #[test]
    fn integers_do_not_become_weights() {
        let mut tensors = [tensor("bn.weight", &[4]), tensor("fc.weight", &[3, 4])];
        tensors[0].dtype = DType::I64;
        let report = make(&tensors, Hint::Sure(Names::Torch)).report;
        assert_eq!((report.mistyped.len(), report.loaded.len()), (1, 1), "{report}");
    }

    #[test]
    fn nothing_loads_into_quantized_weights() {
        let mut slots = slots();
        slots[1].kind = Kind::Quantized;
        let tensors = [tensor("bn.weight", &[4]), tensor("fc.weight", &[3, 4])];
        let report = plan(&slots, &tensors, Hint::Sure(Names::Torch), None, LoadDType::Module).report;
        assert!(report.to_string().contains("fc.weight: the model needs quantized values, the file has F32"));
    }

    // C7
    #[test]
    fn names_without_a_prefix_keep_their_places() {
        let names = ["conv.weight", "bn.weight", "a", "fc.weight"];
        let tensors = names.map(|name| tensor(name, &[1]));
        let report = make(&tensors, Hint::Sure(Names::Torch)).report;
        assert_eq!((report.prefix, report.unexpected), (None, vec!["conv.weight".to_string(), "a".into()]));
    }
}
