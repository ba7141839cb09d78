//! A training loop by all ranks, and the same training by one process on the joined batches.

use std::time::Duration;

use burn::module::Module;
use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, FloatDType, Tensor};
use burn_nccl::ddp::UnevenInputs;
use burn_nccl::{DdpConfig, DistributedDataParallel, Environment, Error, GroupOptions, ProcessGroup};
use serde::{Deserialize, Serialize};

use crate::data::batch;
use crate::fault::Fault;
use crate::fingerprint::sha256;
use crate::model::{Net, SmallNet};
use crate::report::Trained;

/// The learning rate of every training here.
pub const LEARNING_RATE: f64 = 0.05;
/// Longer than a step takes on a busy machine, shorter than the patience of a test.
const TIMEOUT_SECONDS: u64 = 60;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// The backend of a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Backend {
    /// burn-flex.
    Flex,
    /// burn-ndarray.
    NdArray,
}

/// The default float type of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Precision {
    /// f32.
    Single,
    /// f64.
    Double,
}

/// A training of a [`SmallNet`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Training {
    /// The backend.
    pub backend: Backend,
    /// The type of parameters and data.
    pub precision: Precision,
    /// Each rank's net.
    pub nets: Vec<Net>,
    /// Each rank's number of batches.
    pub batches: Vec<usize>,
    /// How many parts the batch of one rank in one step has.
    pub batch_parts: usize,
    /// The ranks that use the branch of [`Net::Branched`].
    pub branch_ranks: Vec<usize>,
    /// The steps in which they use it: those below.
    pub branch_steps: usize,
    /// Options of data-parallel training.
    pub config: DdpConfig,
    /// The limit of one collective, in seconds.
    pub timeout_seconds: u64,
    /// What goes wrong.
    pub fault: Option<Fault>,
}

impl Training {
    /// `ranks` ranks, `steps` steps, f32 on Flex, nothing uneven and nothing wrong.
    pub fn new(net: Net, ranks: usize, steps: usize) -> Self {
        Self {
            backend: Backend::Flex,
            precision: Precision::Single,
            nets: vec![net; ranks],
            batches: vec![steps; ranks],
            batch_parts: 1,
            branch_ranks: (0..ranks).collect(),
            branch_steps: usize::MAX,
            config: DdpConfig::new(),
            timeout_seconds: TIMEOUT_SECONDS,
            fault: None,
        }
    }

    /// Trains as one of the ranks that the environment tells of.
    ///
    /// # Errors
    /// What the group or data-parallel training returns.
    pub fn by_ranks(&self) -> Result<Trained, Error> {
        self.in_group(&group(self.timeout_seconds)?)
    }

    /// Trains as one of the ranks of `group`.
    ///
    /// # Errors
    /// What the group or data-parallel training returns.
    pub fn in_group(&self, group: &ProcessGroup) -> Result<Trained, Error> {
        let device = device(self.backend, self.precision);
        let rank = group.rank();
        // Each rank starts from other values: that all train rank 0's is part of the contract.
        let model = SmallNet::new(self.nets[rank], rank as u64, &device);
        let (mut ddp, mut model) = DistributedDataParallel::new(model, group, &self.config)?;
        let start = sha256(&model);
        let (criterion, mut optimizer) = (criterion(&device), optimizer());
        for step in 0..self.batches[rank] {
            let loss = self.loss(step, &ddp.hook(&model)?, rank, &criterion, &device);
            if let Some(fault) = &self.fault {
                fault.in_collective(step, group)?;
            }
            let gradients = ddp.backward(&loss, &model)?;
            model = optimizer.step(LEARNING_RATE, model, gradients);
        }
        while let Some(gradients) = ddp.shadow(&model)? {
            model = optimizer.step(LEARNING_RATE, model, gradients);
        }
        Ok(Trained::new(&model, start))
    }

    /// Trains as one process on what all ranks together would see.
    pub fn joined(&self) -> Trained {
        let device = device(self.backend, self.precision);
        let mut model = SmallNet::new(self.nets[0], 0, &device);
        let start = sha256(&model);
        let (criterion, mut optimizer) = (criterion(&device), optimizer());
        for step in 0..self.batches.iter().copied().max().unwrap_or(0) {
            let loss = self.joined_loss(step, &model, &criterion, &device);
            let gradients = GradientsParams::from_grads(loss.backward(), &model);
            model = optimizer.step(LEARNING_RATE, model, gradients);
        }
        Trained::new(&model, start)
    }

    fn loss(
        &self,
        step: usize,
        model: &SmallNet,
        rank: usize,
        criterion: &CrossEntropyLoss,
        device: &Device,
    ) -> Tensor<1> {
        let parts = rank * self.batch_parts..(rank + 1) * self.batch_parts;
        let (images, labels): (Vec<_>, Vec<_>) = parts.map(|part| batch(step, part, device)).unzip();
        let mut logits = model.forward(Tensor::cat(images, 0), self.uses_branch(step, rank));
        if let Some(fault) = &self.fault {
            fault.in_forward(step, rank);
            logits = fault.in_backward(step, rank, logits);
        }
        criterion.forward(logits, Tensor::cat(labels, 0))
    }

    /// The loss whose gradient the ranks' average must be.
    fn joined_loss(
        &self,
        step: usize,
        model: &SmallNet,
        criterion: &CrossEntropyLoss,
        device: &Device,
    ) -> Tensor<1> {
        let ranks: Vec<usize> = (0..self.batches.len()).filter(|&rank| step < self.batches[rank]).collect();
        let all_use = |used: bool| ranks.iter().all(|&rank| self.uses_branch(step, rank) == used);
        let everyone_has_data = ranks.len() == self.batches.len();
        if everyone_has_data && (all_use(true) || all_use(false)) {
            let (images, labels) = ranks.iter().map(|&rank| batch(step, rank, device)).unzip();
            let logits = model.forward(Tensor::cat(images, 0), all_use(true));
            return criterion.forward(logits, Tensor::cat(labels, 0));
        }
        let divisor = match self.config.uneven_inputs {
            UnevenInputs::JoinActive => ranks.len(),
            _ => self.batches.len(),
        };
        let losses = ranks.into_iter().map(|rank| self.loss(step, model, rank, criterion, device));
        losses.reduce(|sum, loss| sum + loss).expect("a rank has data") / divisor as f64
    }

    fn uses_branch(&self, step: usize, rank: usize) -> bool {
        step < self.branch_steps && self.branch_ranks.contains(&rank)
    }
}

/// A training device with `precision` as its default float type.
// burn-ndarray is deprecated as a whole since Burn 0.22 and stays supported here.
#[allow(deprecated)]
pub fn device(backend: Backend, precision: Precision) -> Device {
    let mut device = match backend {
        Backend::Flex => Device::flex(),
        Backend::NdArray => Device::ndarray(),
    };
    if precision == Precision::Double {
        device.configure(FloatDType::F64).expect("nothing has used the device before");
    }
    device.autodiff()
}

/// The group that the environment describes, in which a collective may take this long.
///
/// # Errors
/// As [`ProcessGroup::connect`].
pub fn group(timeout_seconds: u64) -> Result<ProcessGroup, Error> {
    let options = GroupOptions::default()
        .with_timeout(Duration::from_secs(timeout_seconds))
        .with_connect_timeout(CONNECT_TIMEOUT);
    match Environment::read()? {
        Some(environment) => ProcessGroup::connect(&environment, options),
        None => Ok(ProcessGroup::single()),
    }
}

/// Stochastic gradient descent with momentum 0.9, the state of which shows a step too many or too few.
pub fn optimizer() -> ModuleOptimizer {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init()
}

/// Mean cross-entropy of logits.
pub fn criterion(device: &Device) -> CrossEntropyLoss {
    CrossEntropyLossConfig::new().init(device)
}

/// Takes one data-parallel step.
///
/// # Errors
/// What data-parallel training returns.
pub fn take_step<M: Module>(
    model: M,
    ddp: &mut DistributedDataParallel,
    optimizer: &mut ModuleOptimizer,
    loss: impl FnOnce(&M) -> Tensor<1>,
) -> Result<M, Error> {
    let loss = loss(&ddp.hook(&model)?);
    let gradients = ddp.backward(&loss, &model)?;
    Ok(optimizer.step(LEARNING_RATE, model, gradients))
}
