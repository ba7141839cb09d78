//! Training steps of a residual network on one batch that is always the same.

use anyhow::ensure;
use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use burn_nccl::{DdpConfig, DistributedDataParallel, ProcessGroup};
use burn_nccl_models::{ResNet, ResNetConfig};

const LEARNING_RATE: f64 = 0.01;
pub(crate) const CLASSES: usize = 10;

/// Images and labels.
pub(crate) type Batch = (Tensor<4>, Tensor<1, Int>);

/// A network that is trained.
pub(crate) struct Training {
    /// Absent during a step.
    model: Option<ResNet>,
    optimizer: ModuleOptimizer,
    ddp: Option<DistributedDataParallel>,
    criterion: CrossEntropyLoss,
    batch: Batch,
}

impl Training {
    /// Starts a training, by all ranks of a group where there is one.
    pub(crate) fn new(
        config: &ResNetConfig,
        batch: Batch,
        ranks: Option<(&ProcessGroup, &DdpConfig)>,
    ) -> anyhow::Result<Self> {
        let device = batch.0.device().autodiff();
        let model = config.init(&device);
        let (ddp, model) = match ranks {
            Some((group, config)) => {
                let (ddp, model) = DistributedDataParallel::new(model, group, config)?;
                (Some(ddp), model)
            }
            None => (None, model),
        };
        let optimizer = SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init();
        let batch = (Tensor::from_inner(batch.0), batch.1);
        let criterion = CrossEntropyLossConfig::new().init(&device);
        Ok(Self { model: Some(model), optimizer, ddp, criterion, batch })
    }

    /// Takes a step and waits for its end. Returns the loss.
    pub(crate) fn step(&mut self) -> anyhow::Result<f32> {
        let model = self.model.take().expect("a step gives it back");
        let (images, labels) = self.batch.clone();
        let (loss, gradients) = match &mut self.ddp {
            Some(ddp) => {
                let loss = self.criterion.forward(ddp.hook(&model)?.forward(images), labels);
                let gradients = ddp.backward(&loss, &model)?;
                (loss, gradients)
            }
            None => {
                let loss = self.criterion.forward(model.forward(images), labels);
                let gradients = GradientsParams::from_grads(loss.backward(), &model);
                (loss, gradients)
            }
        };
        let device = loss.device();
        self.model = Some(self.optimizer.step(LEARNING_RATE, model, gradients));
        // The loss is there long before the step has ended.
        device.sync().map_err(|error| anyhow::anyhow!("the step failed on the device: {error:?}"))?;
        let loss: f32 = loss.into_scalar();
        ensure!(loss.is_finite(), "the loss is {loss}");
        Ok(loss)
    }

    /// What carries it to other ranks.
    pub(crate) fn ddp(&self) -> Option<&DistributedDataParallel> {
        self.ddp.as_ref()
    }
}

/// A batch of noise, `rows` square images.
pub(crate) fn random_batch(rows: usize, size: usize, device: &Device) -> Batch {
    let images = Tensor::random([rows, 3, size, size], Distribution::Default, device);
    let labels = (0..rows).map(|row| (row % CLASSES) as i64).collect::<Vec<_>>();
    (images, Tensor::from_data(TensorData::new(labels, [rows]), device))
}

/// The middle one of some numbers.
pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
