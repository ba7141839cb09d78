//! What a checkpoint costs a training: the pause of the call, and what the steps take longer while it is written.
//!
//! ```text
//! cargo bench -p burn-nccl-tests --bench checkpoints [-- ROUNDS]
//! ```
//!
//! ResNet-50, batch 8, 64x64, flex, SGD with momentum: 94 MB of parameters and as much of momentum. In each round a
//! checkpoint is saved after a step, and the steps behind it are compared with those before; the results are medians over
//! the rounds.

mod support;

use std::time::Instant;

use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Distribution, Int, Tensor};
use burn_nccl_models::{Depth, ResNet, ResNetConfig};
use burn_nccl_records::checkpoint::{CheckpointConfig, Checkpointer, TrainingState};
use support::{AnyError, median};

const BATCH: usize = 8;
const SIZE: usize = 64;
const WARM_UP_STEPS: usize = 3;
/// Steps before a checkpoint and behind it; writing it takes as long as a few.
const STEPS: usize = 6;
/// How often a training is assumed to save.
const EVERY: f64 = 50.0;

fn main() -> Result<(), AnyError> {
    let folder = std::env::temp_dir().join(format!("burn-nccl-bench-{}", std::process::id()));
    let config = CheckpointConfig { keep_last: 1, ..CheckpointConfig::default() };
    let mut checkpointer = Checkpointer::open(&folder, config, None)?;
    let mut training = Training::new();
    for _ in 0..WARM_UP_STEPS {
        training.step();
    }
    let (mut pauses, mut durations) = (Vec::new(), Vec::new());
    let (mut before, mut behind) = (Vec::new(), vec![Vec::new(); STEPS]);
    for round in 0..support::rounds() {
        before.extend((0..STEPS).map(|_| training.step()));
        let start = Instant::now();
        let state = TrainingState { step: round as u64, ..TrainingState::default() };
        checkpointer.save(training.model(), &training.optimizer, state)?;
        pauses.push(checkpointer.pause_seconds());
        for steps in &mut behind {
            steps.push(training.step());
        }
        checkpointer.wait()?;
        durations.push(start.elapsed().as_secs_f64());
    }
    checkpointer.finish()?;
    std::fs::remove_dir_all(&folder)?;

    let (step, pause) = (median(before), median(pauses));
    let behind: Vec<f64> = behind.into_iter().map(median).collect();
    let extra = pause + behind.iter().map(|behind| behind - step).sum::<f64>();
    let milliseconds = |seconds: &f64| format!("{:.1}", seconds * 1e3);
    println!(
        "step {} ms, pause of a save {:.2} ms, {:.2}% of a step",
        milliseconds(&step),
        pause * 1e3,
        pause / step * 100.0
    );
    println!("steps behind it {} ms", behind.iter().map(milliseconds).collect::<Vec<_>>().join(", "));
    println!(
        "extra {} ms a checkpoint, {:.2}% of the training at one every {EVERY} steps; {} ms with {STEPS} steps until the last is on disk",
        milliseconds(&extra),
        extra / (EVERY * step) * 100.0,
        milliseconds(&median(durations))
    );
    Ok(())
}

struct Training {
    /// None in the middle of a step.
    model: Option<ResNet>,
    optimizer: ModuleOptimizer,
    criterion: CrossEntropyLoss,
    images: Tensor<4>,
    labels: Tensor<1, Int>,
}

impl Training {
    fn new() -> Self {
        let device = Device::flex().autodiff();
        device.seed(7);
        Self {
            model: Some(ResNetConfig::new(Depth::ResNet50, 10).init(&device)),
            optimizer: SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init(),
            criterion: CrossEntropyLossConfig::new().init(&device),
            images: Tensor::random([BATCH, 3, SIZE, SIZE], Distribution::Default, &device),
            labels: Tensor::zeros([BATCH], &device),
        }
    }

    fn model(&self) -> &ResNet {
        self.model.as_ref().expect("between steps there is a model")
    }

    /// Takes a step and returns its seconds.
    fn step(&mut self) -> f64 {
        let start = Instant::now();
        let model = self.model.take().expect("between steps there is a model");
        let loss = self.criterion.forward(model.forward(self.images.clone()), self.labels.clone());
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        self.model = Some(self.optimizer.step(0.01, model, gradients));
        start.elapsed().as_secs_f64()
    }
}
