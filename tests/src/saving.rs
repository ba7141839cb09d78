//! Checkpoints whose every value follows from their step, saved by a process that may be killed at any moment.

use std::io::Write;
use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::{BatchNorm, BatchNormConfig, Linear, LinearConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::store::burn_pack::Reader;
use burn::tensor::{Device, Tensor, TensorData};
use burn_nccl_records::checkpoint::{
    Checkpoint, CheckpointConfig, Checkpointer, OnFailure, TrainingState, find,
};
use burn_nccl_records::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::data::noise;

/// Large enough that a small disk is full after a few checkpoints, and that a kill often meets a write.
const WIDTH: usize = 64;
/// Every so many steps the checkpoint is saved a second time, so that one is replaced.
const REPLACED_EVERY: u64 = 3;

/// Saves checkpoints without a training between them.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Saving {
    /// Where.
    pub folder: PathBuf,
    /// How many of them stay.
    pub keep_last: usize,
    /// The last step; without one it goes on until it is killed.
    pub until: Option<u64>,
    /// Whether it goes on when a checkpoint cannot be saved.
    pub continues: bool,
}

/// How a [`Saving`] ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// The error that it was told.
    pub error: Option<String>,
    /// The step of the newest complete checkpoint, whose values were found to be those of its step.
    pub newest: Option<u64>,
}

#[derive(Module, Debug)]
struct Net {
    linear: Linear,
    norm: BatchNorm,
}

impl Net {
    fn new(device: &Device) -> Self {
        Self {
            linear: LinearConfig::new(WIDTH, WIDTH).with_bias(false).init(device),
            norm: BatchNormConfig::new(WIDTH).init(device),
        }
    }
}

impl Saving {
    /// Saves, and prints each step once its checkpoint is acknowledged.
    pub fn run(&self) -> Saved {
        let error = self.save().err().map(|error| error.to_string());
        Saved { error, newest: check(&self.folder) }
    }

    fn save(&self) -> Result<()> {
        let device = Device::flex().autodiff();
        let first = check(&self.folder).map_or(0, |step| step + 1);
        let on_failure = if self.continues { OnFailure::Continue } else { OnFailure::Stop };
        let config =
            CheckpointConfig { keep_last: self.keep_last, on_failure, ..CheckpointConfig::default() };
        let mut checkpointer = Checkpointer::open(&self.folder, config, None)?;
        let mut net = Net::new(&device);
        let mut optimizer = optimizer();
        for step in first..=self.until.unwrap_or(u64::MAX) {
            net = at(net, &mut optimizer, step, &device);
            let saves = if step % REPLACED_EVERY == 0 { 2 } else { 1 };
            for _ in 0..saves {
                checkpointer.save(&net, &optimizer, TrainingState { step, ..TrainingState::default() })?;
                checkpointer.wait()?;
                // After each: the one that is replaced next is acknowledged, too.
                println!("{step}");
                std::io::stdout().flush().expect("the parent reads");
            }
        }
        checkpointer.finish()
    }
}

/// Gradient descent whose momentum is the last gradient.
fn optimizer() -> ModuleOptimizer {
    let momentum = MomentumConfig::new().with_momentum(0.0).with_dampening(0.0);
    SgdConfig::new().with_momentum(Some(momentum)).init()
}

/// The value of a checkpoint's weights: a number that f32 holds exactly.
fn value(step: u64, index: usize) -> f32 {
    noise(step * (WIDTH * WIDTH) as u64 + index as u64) as f32
}

fn values(step: u64) -> Vec<f32> {
    (0..WIDTH * WIDTH).map(|index| value(step, index)).collect()
}

/// `net` and `optimizer` with the values of `step`: weights of -`values`, a momentum of `values`, and running means of
/// the step's first values.
fn at(mut net: Net, optimizer: &mut ModuleOptimizer, step: u64, device: &Device) -> Net {
    let values = values(step);
    let data = TensorData::new(values.clone(), [WIDTH, WIDTH]);
    net.linear.weight = net.linear.weight.map(|weight| weight.mul_scalar(0.0).detach().require_grad());
    let wanted = Tensor::<2>::from_data(data, device);
    let loss = (net.linear.weight.val() * wanted).sum();
    let gradients = GradientsParams::from_grads(loss.backward(), &net);
    let net = optimizer.step(1.0, net, gradients);
    net.norm.running_mean.update(Tensor::from_floats(&values[..WIDTH], device));
    net
}

/// The step of the newest complete checkpoint in `folder`.
///
/// # Panics
/// If its values are not those of its step, or it cannot be loaded.
pub fn check(folder: &Path) -> Option<u64> {
    let newest = find(folder).expect("the folder is readable").newest?;
    let checkpoint = Checkpoint::open(newest).expect("what was found is complete");
    let step = checkpoint.state().step;
    let net = checkpoint.load_model(&Net::new(&Device::flex().autodiff())).expect("the model loads");
    checkpoint.load_optimizer(optimizer(), &net).expect("the optimizer loads");
    let expected = values(step);
    let mut found = Found(Vec::new());
    net.valid().visit(&mut found);
    let [weights, _gamma, _beta, mean, _variance] = &found.0[..] else { panic!("five tensors: {found:?}") };
    let negative: Vec<f32> = expected.iter().map(|value| 0.0 - value).collect();
    assert!(weights == &negative, "the weights are not those of step {step}");
    assert!(mean == &expected[..WIDTH], "the running mean is not that of step {step}");
    assert!(momentum(&checkpoint) == expected, "the momentum is not that of step {step}");
    Some(step)
}

fn momentum(checkpoint: &Checkpoint) -> Vec<f32> {
    let reader = Reader::from_file(checkpoint.path().join("optimizer.bpk")).expect("a burnpack file");
    let tensors = reader.into_tensors().expect("a sound file");
    let [velocity] = &tensors[..] else { panic!("one tensor") };
    bytemuck::pod_collect_to_vec(&velocity.to_bytes().expect("in the file"))
}

#[derive(Debug)]
struct Found(Vec<Vec<f32>>);

impl ModuleVisitor for Found {
    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        self.0.push(param.val().into_data().iter().collect());
    }
}

/// What the ranks of a group return where the error is not the group's.
pub fn refusal(error: Error) -> std::result::Result<String, burn_nccl::Error> {
    match error {
        Error::Group(error) => Err(error),
        error => Ok(error.to_string()),
    }
}
