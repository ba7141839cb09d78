//! A training by all ranks that is saved and resumed.

use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use burn::optim::{LearningRate, ModuleOptimizer, Optimizer, RecordState, StateSink, StateSource};
use burn::tensor::{Device, Tensor};
use burn_nccl::amp::{GradScaler, GradScalerConfig};
use burn_nccl::{DistributedDataParallel, ProcessGroup};
use burn_nccl_models::ResNet;
use burn_nccl_records::Result;
use burn_nccl_records::checkpoint::{Checkpoint, CheckpointConfig, Checkpointer, TrainingState, find_agreed};
use serde::{Deserialize, Serialize};

use crate::fault::{Manner, commit};
use crate::fingerprint::sha256;
use crate::report::Trained;
use crate::resnet::ResNetTraining;
use crate::training::{Backend, LEARNING_RATE, criterion, device, group};

/// A ResNet-18 with loss scaling, which starts from the newest checkpoint of a folder and saves one at its end.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Resuming {
    /// The net and the step at which it ends.
    pub training: ResNetTraining,
    /// Each rank's folder.
    pub folders: Vec<PathBuf>,
    /// What writing a checkpoint takes longer on rank 0.
    pub slow_milliseconds: u64,
    /// A rank that is killed while the checkpoint is written.
    pub killed: Option<usize>,
    /// The limit of one collective, in seconds.
    pub timeout_seconds: u64,
}

/// The end of a [`Resuming`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Resumed {
    /// The step that it started from.
    pub from: u64,
    /// Parameters and running statistics.
    pub trained: Trained,
    /// The loss scale and the steps since it last changed.
    pub scaling: (f32, u32),
    /// Whether the checkpoint was there when the rank was told that it is.
    pub was_there: bool,
}

impl Resuming {
    /// On `ranks` ranks, without anything wrong.
    pub fn new(training: ResNetTraining, ranks: usize, folder: PathBuf) -> Self {
        Self {
            training,
            folders: vec![folder; ranks],
            slow_milliseconds: 0,
            killed: None,
            timeout_seconds: 60,
        }
    }

    /// Trains as one of the ranks that the environment tells of.
    ///
    /// # Errors
    /// What checkpoints and the group return.
    pub fn by_ranks(&self) -> Result<Resumed> {
        let group = group(self.timeout_seconds)?;
        let folder = &self.folders[group.rank()];
        let device = device(Backend::Flex, self.training.precision);
        SLOW_MILLISECONDS.store(self.slow_milliseconds, Ordering::Relaxed);
        let mut optimizer = ModuleOptimizer::from(Slow);
        let mut scaler = scaler(&group)?;
        let mut model = self.training.model(group.rank() as u64, &device);
        let mut from = 0;
        if let Some(newest) = find_agreed(folder, Some(&group))?.newest {
            let checkpoint = Checkpoint::open(newest)?;
            model = checkpoint.load_model(&model)?;
            optimizer = checkpoint.load_optimizer(optimizer, &model)?;
            scaler.load_state(&checkpoint.state().scaler.expect("it was saved"))?;
            from = checkpoint.state().step;
        }
        let model = self.train(model, &mut optimizer, &mut scaler, from, &group, &device)?;

        let mut checkpointer = Checkpointer::open(folder, CheckpointConfig::default(), Some(&group))?;
        let step = self.training.steps as u64;
        let state = TrainingState { step, scaler: Some(scaler.state()), ..TrainingState::default() };
        checkpointer.save(&model, &optimizer, state)?;
        if self.killed == Some(group.rank()) {
            commit(Manner::Kill);
        }
        checkpointer.finish()?;
        let was_there = folder.join(format!("step-{step}/manifest.json")).exists();
        let scaling = scaler.state().scaling.map_or((0.0, 0), |state| (state.scale, state.growth_tracker));
        Ok(Resumed { from, trained: Trained::new(&model, sha256(&model)), scaling, was_there })
    }

    fn train(
        &self,
        model: ResNet,
        optimizer: &mut ModuleOptimizer,
        scaler: &mut GradScaler,
        from: u64,
        group: &ProcessGroup,
        device: &Device,
    ) -> Result<ResNet> {
        let (mut ddp, mut model) = DistributedDataParallel::new(model, group, &ResNetTraining::ddp())?;
        let criterion = criterion(device);
        for step in from as usize..self.training.steps {
            let (images, labels) = ResNetTraining::batch(step, group.rank(), device);
            let loss = criterion.forward(ddp.hook(&model)?.forward(images), labels);
            let gradients = ddp.backward(&scaler.scale(loss), &model)?;
            model = scaler.step(optimizer, LEARNING_RATE, model, gradients)?;
            scaler.update()?;
        }
        Ok(ddp.sync_buffers(model)?)
    }
}

/// Grows every second step, so that a training of a few steps shows a lost tracker.
fn scaler(group: &ProcessGroup) -> Result<GradScaler> {
    let config = GradScalerConfig::new().with_init_scale(256.0).with_growth_interval(2);
    Ok(config.init()?.with_group(group))
}

static SLOW_MILLISECONDS: AtomicU64 = AtomicU64::new(0);

/// Gradient descent with momentum, the first of whose states takes its time to be written.
#[derive(Clone)]
struct Slow;

#[derive(Clone)]
struct SlowState<const D: usize>(Tensor<D>);

impl<const D: usize> RecordState for SlowState<D> {
    fn state_flatten(&self, prefix: &str, out: &mut StateSink) {
        std::thread::sleep(Duration::from_millis(SLOW_MILLISECONDS.swap(0, Ordering::Relaxed)));
        out.push_tensor(prefix, "velocity", self.0.clone().into_data());
    }

    fn state_unflatten(prefix: &str, src: &mut StateSource, device: &Device) -> Option<Self> {
        Some(Self(Tensor::from_data(src.take_tensor(prefix, "velocity")?, device)))
    }
}

impl Optimizer for Slow {
    type State<const D: usize> = SlowState<D>;

    fn step<const D: usize>(
        &self,
        lr: LearningRate,
        tensor: Tensor<D>,
        grad: Tensor<D>,
        state: Option<Self::State<D>>,
    ) -> (Tensor<D>, Option<Self::State<D>>) {
        let velocity = match state {
            Some(SlowState(velocity)) => velocity.mul_scalar(0.9).add(grad),
            None => grad,
        };
        (tensor - velocity.clone().mul_scalar(lr), Some(SlowState(velocity)))
    }

    fn to_device<const D: usize>(state: Self::State<D>, device: &Device) -> Self::State<D> {
        SlowState(state.0.to_device(device))
    }
}
