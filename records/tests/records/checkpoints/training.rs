//! A small training whose every value is a function of its seed and its step.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::conv::{Conv2d, Conv2dConfig};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{
    AdamConfig, GradientsParams, LearningRate, ModuleOptimizer, Optimizer, RecordState, SgdConfig, StateSink,
    StateSource,
};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Distribution, Tensor};
use burn_nccl::{SyncBatchNorm, SyncBatchNormConfig};
use burn_nccl_records::checkpoint::{CheckpointConfig, Checkpointer, TrainingState, step_seed};

pub(super) const LEARNING_RATE: f64 = 0.1;

/// With both kinds of batch norm, and a linear layer.
#[derive(Module, Debug)]
pub(super) struct Net {
    conv: Conv2d,
    norm: BatchNorm,
    head: Linear,
    last: SyncBatchNorm,
}

impl Net {
    pub(super) fn new(seed: u64, device: &Device) -> Self {
        device.seed(seed);
        let net = Self {
            conv: Conv2dConfig::new([2, 3], [3, 3]).init(device),
            norm: BatchNormConfig::new(3).init(device),
            head: LinearConfig::new(12, 4).init(device),
            last: SyncBatchNormConfig::new(4).init(device),
        };
        // Parameters are drawn when they are first used: here, and not between another test's draws.
        drop(values(&net));
        net
    }

    fn forward(&self, images: Tensor<4>) -> Tensor<2> {
        let hidden = relu(self.norm.forward(self.conv.forward(images)));
        self.last.forward(self.head.forward(hidden.flatten(1, 3)))
    }
}

pub(super) fn device() -> Device {
    Device::flex().autodiff()
}

/// Burn draws from one generator for a device, which the tests of this process share.
fn alone<T>(draw: impl FnOnce() -> T) -> T {
    static GENERATOR: Mutex<()> = Mutex::new(());
    let _guard = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    draw()
}

pub(super) fn net(seed: u64) -> Net {
    alone(|| Net::new(seed, &device()))
}

/// The loss on the data of `step`.
pub(super) fn loss(net: &Net, step: u64) -> Tensor<1> {
    let images = alone(|| {
        device().seed(step_seed(5, step, 0));
        Tensor::<4>::random([4, 2, 4, 4], Distribution::Default, &device())
    });
    net.forward(images).powi_scalar(3).mean() + net.head.weight.val().powi_scalar(2).mean()
}

/// One step with the data of `step`.
pub(super) fn step(net: Net, optimizer: &mut ModuleOptimizer, step: u64) -> Net {
    let loss = loss(&net, step);
    let gradients = GradientsParams::from_grads(loss.backward(), &net);
    optimizer.step(LEARNING_RATE, net, gradients)
}

/// Steps `steps` of a training.
pub(super) fn train(mut net: Net, optimizer: &mut ModuleOptimizer, steps: std::ops::Range<u64>) -> Net {
    for index in steps {
        net = step(net, optimizer, index);
    }
    net
}

/// All values of a model, its running statistics included, by their bits.
pub(super) fn values<M: Module>(model: &M) -> Vec<u32> {
    let mut collect = Collect(Vec::new());
    model.valid().visit(&mut collect);
    collect.0
}

struct Collect(Vec<u32>);

impl ModuleVisitor for Collect {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.extend(param.val().into_data().iter::<f32>().map(f32::to_bits));
    }
}

pub(super) fn sgd() -> ModuleOptimizer {
    SgdConfig::new().with_momentum(Some(MomentumConfig::new().with_nesterov(true))).init()
}

pub(super) fn adam() -> ModuleOptimizer {
    AdamConfig::new().with_amsgrad(true).init()
}

pub(super) fn state(step: u64) -> TrainingState {
    TrainingState { step, ..TrainingState::default() }
}

pub(super) fn open(folder: &Path, config: CheckpointConfig) -> Checkpointer {
    Checkpointer::open(folder, config, None).unwrap()
}

/// The checkpoint of `step`.
pub(super) fn at(folder: &Path, step: u64) -> PathBuf {
    folder.join(format!("step-{step}"))
}

/// A folder with small complete checkpoints of these steps and metrics.
pub(super) fn saved(steps: &[(u64, Option<f64>)], config: CheckpointConfig) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (mut optimizer, mut checkpointer) = (sgd(), open(folder.path(), config));
    let net = train(net(1), &mut optimizer, 0..1);
    for (step, metric) in steps {
        let state = TrainingState { metric: *metric, ..state(*step) };
        checkpointer.save(&net, &optimizer, state).unwrap();
    }
    checkpointer.finish().unwrap();
    folder
}

/// The names in a folder, without the lock.
pub(super) fn names(folder: &Path) -> Vec<String> {
    let names = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<String> = names.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| name != ".lock");
    names.sort();
    names
}

/// What the writer thread does when it takes the state of a [`Hooked`] optimizer apart.
pub(super) type Hook = Arc<dyn Fn() + Send + Sync>;

/// Gradient descent with momentum whose state calls a hook when it is written: a slow disk, or one that fails.
#[derive(Clone)]
pub(super) struct Hooked(pub(super) Hook);

#[derive(Clone)]
pub(super) struct HookedState<const D: usize> {
    velocity: Tensor<D>,
    hook: Option<Hook>,
}

impl<const D: usize> RecordState for HookedState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        if let Some(hook) = &self.hook {
            hook();
        }
        out.push_tensor(prefix, "velocity", self.velocity.clone().into_data());
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        let velocity = Tensor::from_data(src.take_tensor(prefix, "velocity")?, device);
        Some(Self { velocity, hook: None })
    }
}

impl Optimizer for Hooked {
    type State<const D: usize> = HookedState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let velocity = match state {
            Some(state) => state.velocity.mul_scalar(0.9).add(grad),
            None => grad,
        };
        let delta = velocity.clone().mul_scalar(lr);
        (tensor - delta, Some(HookedState { velocity, hook: Some(self.0.clone()) }))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        HookedState { velocity: state.velocity.to_device(device), ..state }
    }
}

/// What [`Hooked`] computes, without the hook.
pub(super) fn plain() -> ModuleOptimizer {
    Hooked(Arc::new(|| {})).into()
}
