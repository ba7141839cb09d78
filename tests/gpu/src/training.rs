//! Training steps of a network on one batch that is always the same.

use std::sync::Arc;

use anyhow::ensure;
use burn::nn::loss::{CrossEntropyLoss, CrossEntropyLossConfig};
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, ModuleOptimizer, SgdConfig};
use burn::tensor::{Device, Distribution, Int, Tensor, TensorData};
use burn_nccl::ddp::{DdpEvent, EventLog};
use burn_nccl::{
    ArrivedGradient, DdpConfig, DistributedDataParallel, Error, GradientHook, GradientSink, ProcessGroup,
    gradient_hook,
};

use crate::small_net::Network;

const LEARNING_RATE: f64 = 0.01;
pub(crate) const CLASSES: usize = 10;
/// The mark of [`Training::traced_step`].
pub(crate) const END_OF_BACKWARD: &str = "the backward pass has run";

/// Images and labels.
pub(crate) type Batch = (Tensor<4>, Tensor<1, Int>);

/// A network that is trained.
pub(crate) struct Training<N> {
    /// Absent during a step.
    model: Option<N>,
    optimizer: ModuleOptimizer,
    ddp: Option<DistributedDataParallel>,
    criterion: CrossEntropyLoss,
    batch: Batch,
}

impl<N: Network> Training<N> {
    /// Starts a training, by all ranks of a group where there is one.
    pub(crate) fn new(
        init: impl FnOnce(&Device) -> N,
        batch: Batch,
        ranks: Option<(&ProcessGroup, &DdpConfig)>,
    ) -> anyhow::Result<Self> {
        let device = batch.0.device().autodiff();
        let model = init(&device);
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
        let (images, labels) = self.batch.clone();
        self.step_on(images, labels)
    }

    fn step_on(&mut self, images: Tensor<4>, labels: Tensor<1, Int>) -> anyhow::Result<f32> {
        let model = self.model.take().expect("a step gives it back");
        let (loss, gradients) = match &mut self.ddp {
            Some(ddp) => {
                let loss = self.criterion.forward(ddp.hook(&model)?.logits(images), labels);
                let gradients = ddp.backward(&loss, &model)?;
                (loss, gradients)
            }
            None => {
                let loss = self.criterion.forward(model.logits(images), labels);
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

    /// Takes a step and tells what happened in it, with a mark where the backward pass of the first layer has run.
    pub(crate) fn traced_step(&mut self) -> anyhow::Result<Vec<DdpEvent>> {
        let (images, labels) = self.batch.clone();
        let log = self.ddp.as_ref().map(|ddp| ddp.events().clone()).unwrap_or_default();
        let probe = GradientHook::new(Arc::new(Probe(log.clone())), 0);
        // The gradient of the images exists only once the first layer's backward step has run. The product puts the probe one
        // deeper than a hook without a lift, so that the order between them is defined.
        let lift = Tensor::<1>::zeros([1], &images.device());
        let images = gradient_hook(images.require_grad() * 1.0, &lift, probe);
        log.start();
        self.step_on(images, labels)?;
        Ok(log.stop())
    }

    /// What carries it to other ranks.
    pub(crate) fn ddp(&self) -> Option<&DistributedDataParallel> {
        self.ddp.as_ref()
    }
}

/// Marks the end of the backward pass.
struct Probe(EventLog);

impl GradientSink for Probe {
    fn receive(&self, _slot: usize, _gradient: &ArrivedGradient<'_>) {
        self.0.mark(END_OF_BACKWARD);
    }

    fn fail(&self, _slot: usize, error: Error) {
        self.0.mark(error.to_string());
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
