//! Equal models on all ranks: the check that they can be equal, and the broadcast that makes them so.

use std::any::Any;
use std::collections::HashMap;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{Bool, Int, Tensor, TensorData};
use serde::{Deserialize, Serialize};

use super::config::DdpConfig;
use super::parameters::ParameterInfo;
use super::storage::Candidate;
use crate::error::{Error, Result};
use crate::functions;
use crate::group::ProcessGroup;
use crate::site::{self, Purpose};
use crate::transport::DType;

/// How many differences an error lists before it only counts them.
const LISTED_DIFFERENCES: usize = 8;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Description {
    config: String,
    /// The name of the communication hook, with its options.
    hook: String,
    /// How many layers run collectives of their own.
    synchronized: usize,
    parameters: Vec<ParameterInfo>,
    /// Where the rank has its model. Ranks may differ in it.
    candidate: Candidate,
}

/// Checks that all ranks hold the same model and options, and returns where each has its model.
///
/// Every rank compares every other with rank 0, so all of them return the same error at once. Without this, ranks
/// with different models would reduce buckets of different lengths, or worse, of equal length with other contents.
pub(crate) fn check_same_model(
    parameters: &[ParameterInfo],
    synchronized: usize,
    config: &DdpConfig,
    hook: String,
    candidate: Candidate,
    group: &ProcessGroup,
) -> Result<Vec<Candidate>> {
    let (config, parameters) = (config.to_string(), parameters.to_vec());
    let own = Description { config, hook, synchronized, parameters, candidate };
    let unreadable = |error: serde_json::Error| Error::ModelDescription { cause: error.to_string() };
    let _site = site::on_behalf_of(Purpose::Of("the comparison of models"));
    let descriptions: Vec<Description> = group
        .all_gather_bytes(&serde_json::to_vec(&own).map_err(unreadable)?)?
        .iter()
        .map(|bytes| serde_json::from_slice(bytes).map_err(unreadable))
        .collect::<Result<_>>()?;
    for (rank, description) in descriptions.iter().enumerate() {
        let differences = differences(&descriptions[0], description, rank);
        if !differences.is_empty() {
            return Err(Error::ModelMismatch { rank, differences: summarise(&differences) });
        }
    }
    Ok(descriptions.iter().map(|description| description.candidate).collect())
}

fn differences(reference: &Description, other: &Description, rank: usize) -> Vec<String> {
    let mut found = Vec::new();
    if reference.config != other.config {
        found.push(format!("rank 0 has options {}, rank {rank} has {}", reference.config, other.config));
    }
    if reference.hook != other.hook {
        found.push(format!(
            "rank 0 has the communication hook `{}`, rank {rank} has `{}`",
            reference.hook, other.hook
        ));
    }
    if reference.synchronized != other.synchronized {
        found.push(format!(
            "rank 0 has {} synchronized batch norm layers, rank {rank} has {}",
            reference.synchronized, other.synchronized
        ));
    }
    let by_name = |list: &[ParameterInfo], name: &str| list.iter().position(|info| info.name == name);
    for info in &reference.parameters {
        match by_name(&other.parameters, &info.name) {
            None => found.push(format!("rank {rank} lacks {}", describe(info))),
            Some(at) if other.parameters[at] != *info => {
                found.push(format!(
                    "rank 0 has {}, rank {rank} has {}",
                    describe(info),
                    describe(&other.parameters[at])
                ));
            }
            Some(_) => {}
        }
    }
    for info in &other.parameters {
        if by_name(&reference.parameters, &info.name).is_none() {
            found.push(format!("rank {rank} has {} and rank 0 does not", describe(info)));
        }
    }
    let names = |list: &Description| list.parameters.iter().map(|info| info.name.clone()).collect::<Vec<_>>();
    if found.is_empty() && names(reference) != names(other) {
        found.push(format!("rank {rank} has the same parameters in another order"));
    }
    found
}

fn describe(info: &ParameterInfo) -> String {
    let frozen = if info.trainable { "" } else { ", not trainable" };
    format!("`{}` {:?} {}{frozen}", info.name, info.shape, info.dtype)
}

fn summarise(differences: &[String]) -> String {
    let listed = differences.iter().take(LISTED_DIFFERENCES).cloned().collect::<Vec<_>>().join("; ");
    match differences.len().saturating_sub(LISTED_DIFFERENCES) {
        0 => listed,
        more => format!("{listed}; and {more} more"),
    }
}

/// Which values a broadcast covers.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Covered {
    /// Parameters, frozen ones included, and running statistics.
    All,
    /// What training does not reach by gradients: running statistics and frozen parameters.
    Buffers,
}

/// Replaces the module's values by rank 0's, those of floats from device to device if `by_device`.
pub(crate) fn broadcast<M: Module>(
    module: M,
    covered: Covered,
    by_device: bool,
    group: &ProcessGroup,
) -> Result<M> {
    // Running statistics are kept one update behind; `valid` brings the shared state up to date.
    drop(module.valid());
    if group.world_size() == 1 {
        // Its values are there already, and need not be read from their device to find that out.
        return group.barrier().map(|()| module);
    }
    let mut mapper = Broadcast { group, covered, by_device, tied: HashMap::new(), outcome: Ok(()) };
    let module = module.map(&mut mapper);
    mapper.outcome.map(|()| module)
}

struct Broadcast<'a> {
    group: &'a ProcessGroup,
    covered: Covered,
    by_device: bool,
    /// The value of every parameter so far: tied weights stay one tensor, and travel once.
    tied: HashMap<ParamId, Box<dyn Any>>,
    outcome: Result<()>,
}

impl Broadcast<'_> {
    /// Rank 0's data, or `None` where there is nothing to replace: on rank 0 itself and after an error.
    fn receive(&mut self, data: TensorData) -> Option<TensorData> {
        if self.outcome.is_err() {
            return None;
        }
        let (mut bytes, shape, dtype) = data.into_parts();
        let _site = site::on_behalf_of(Purpose::Of("the values of rank 0"));
        self.outcome = self.group.broadcast(&mut bytes, DType::U8, 0);
        (self.outcome.is_ok() && self.group.rank() != 0).then(|| TensorData::from_bytes(bytes, shape, dtype))
    }

    /// As [`receive`](Self::receive), for a tensor of floats, which comes back as a leaf.
    fn receive_float<const D: usize>(&mut self, tensor: Tensor<D>) -> Option<Tensor<D>> {
        let (device, dtype) = (tensor.device(), tensor.dtype());
        if !self.by_device {
            let data = self.receive(tensor.into_data())?;
            return Some(Tensor::from_data(data, (&device, dtype)));
        }
        if self.outcome.is_err() {
            return None;
        }
        let _site = site::on_behalf_of(Purpose::Of("the values of rank 0"));
        // Not tracked, so that it is recorded in no graph.
        match functions::broadcast(tensor.set_require_grad(false), 0, self.group) {
            Ok(received) => (self.group.rank() != 0).then(|| received.set_require_grad(false)),
            Err(error) => {
                self.outcome = Err(error);
                None
            }
        }
    }
}

impl ModuleMapper for Broadcast<'_> {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        let tensor = param.base();
        let requires_grad = tensor.is_require_grad();
        if self.covered == Covered::Buffers && requires_grad {
            return param;
        }
        let known = self.tied.get(&param.id).and_then(|tensor| tensor.downcast_ref::<Tensor<D>>());
        if let Some(tensor) = known.cloned() {
            return param.map(|_| tensor);
        }
        let received = self.receive_float(tensor.clone());
        let tensor = received.map_or(tensor, |tensor| tensor.set_require_grad(requires_grad));
        self.tied.insert(param.id, Box::new(tensor.clone()));
        param.map(|_| tensor)
    }

    fn map_int<const D: usize>(&mut self, param: Param<Tensor<D, Int>>) -> Param<Tensor<D, Int>> {
        let tensor = param.base();
        let (device, dtype) = (tensor.device(), tensor.dtype());
        match self.receive(tensor.into_data()) {
            Some(data) => param.map(|_| Tensor::from_data(data, (&device, dtype))),
            None => param,
        }
    }

    fn map_bool<const D: usize>(&mut self, param: Param<Tensor<D, Bool>>) -> Param<Tensor<D, Bool>> {
        let tensor = param.base();
        let device = tensor.device();
        match self.receive(tensor.into_data()) {
            Some(data) => param.map(|_| Tensor::from_data(data, &device)),
            None => param,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn description(names: &[&str]) -> Description {
        let info = |name: &&str| ParameterInfo {
            name: name.to_string(),
            shape: vec![2, 3],
            dtype: "F32".into(),
            trainable: true,
        };
        Description {
            config: "{}".into(),
            hook: "all-reduce".into(),
            synchronized: 0,
            parameters: names.iter().map(info).collect(),
            candidate: Candidate::default(),
        }
    }

    #[test]
    fn equal_descriptions_do_not_differ() {
        assert!(differences(&description(&["a", "b"]), &description(&["a", "b"]), 1).is_empty());
    }

    #[test]
    fn a_missing_and_an_extra_layer_are_both_named() {
        let found = differences(&description(&["a", "b"]), &description(&["b", "c"]), 3);
        assert_eq!(found, ["rank 3 lacks `a` [2, 3] F32", "rank 3 has `c` [2, 3] F32 and rank 0 does not"]);
    }

    #[test]
    fn another_shape_shows_both_sides() {
        let mut other = description(&["a"]);
        other.parameters[0].shape = vec![2, 4];
        let found = differences(&description(&["a"]), &other, 1);
        assert_eq!(found, ["rank 0 has `a` [2, 3] F32, rank 1 has `a` [2, 4] F32"]);
    }

    #[test]
    fn another_communication_hook_shows_both_sides() {
        let mut other = description(&["a"]);
        other.hook = "top 5".into();
        let found = differences(&description(&["a"]), &other, 1);
        assert_eq!(found, ["rank 0 has the communication hook `all-reduce`, rank 1 has `top 5`"]);
    }

    #[test]
    fn another_order_is_a_difference() {
        let found = differences(&description(&["a", "b"]), &description(&["b", "a"]), 1);
        assert_eq!(found, ["rank 1 has the same parameters in another order"]);
    }

    #[cfg(feature = "flex")]
    #[test]
    fn values_that_go_from_device_to_device_arrive_as_leaves_that_train_or_not_as_before() {
        use burn::nn::{Linear, LinearConfig};
        use burn::tensor::Device;

        // A device whose kind of autodiff must survive, or the product below is of two kinds.
        let device = Device::flex().autodiff().gradient_checkpointing();
        let groups = crate::ProcessGroup::local(2, crate::GroupOptions::default()).unwrap();
        let values = |layer: &Linear| layer.weight.val().into_data().try_to_vec::<f32>().unwrap();
        let run = |group: ProcessGroup| {
            let layer = || LinearConfig::new(3, 2).with_bias(false).init(&device);
            let (own, frozen): (Linear, Linear) = (layer(), layer().no_grad());
            let before = values(&own);
            let own = broadcast(own, Covered::All, true, &group).unwrap();
            let frozen = broadcast(frozen, Covered::All, true, &group).unwrap();
            let gradients = own.forward(Tensor::<2>::ones([1, 3], &device)).sum().backward();
            let gradient = own.weight.grad(&gradients).expect("a leaf has a gradient");
            assert_eq!(gradient.into_data().try_to_vec::<f32>().unwrap(), [1.0; 6]);
            assert!(!frozen.weight.val().is_require_grad());
            (before, values(&own), values(&frozen))
        };
        let found: Vec<_> = std::thread::scope(|scope| {
            let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| run(group))).collect();
            ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        assert_ne!(found[0].0, found[1].0);
        assert_eq!(found[0].0, found[0].1);
        assert_eq!(found[0].1, found[1].1);
        assert_eq!(found[0].2, found[1].2);
    }
}
