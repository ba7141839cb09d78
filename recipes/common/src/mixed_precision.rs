//! Half precision in the training loop: casts, loss scale, clipping.

use burn::optim::{GradientsParams, ModuleOptimizer};
use burn::tensor::Tensor;
use burn_nccl::ProcessGroup;
use burn_nccl::amp::{
    Autocast, AutocastConfig, ClipGradNormConfig, ClipRanks, GradScaler, GradScalerConfig, GradScalerState,
    LossScale, Precision,
};
use burn_nccl_models::ResNet;

use crate::config::MixedPrecisionConfig;
use crate::device::SelectedDevice;
use crate::error::{RecipeError, Result};

/// How a run computes: in f32 throughout, or with convolutions and the classifier in a half type.
pub(crate) struct MixedPrecision {
    autocast: Autocast,
    /// Only with f16: gradients in bf16 have the range of f32.
    scaler: Option<GradScaler>,
    clip: Option<ClipGradNormConfig>,
    /// The ranks that train one model.
    group: Option<ProcessGroup>,
    /// Steps that an earlier part of the run skipped.
    skipped_before: u64,
}

/// What an optimizer step did.
pub(crate) struct Outcome {
    pub(crate) loss_scale: Option<f64>,
    pub(crate) skipped: Option<bool>,
    pub(crate) grad_norm: Option<f64>,
}

impl MixedPrecision {
    /// Prepares what `config` asks for; without one, f32.
    ///
    /// # Errors
    /// Where the device cannot compute in the type, or a path names no layer of `model`.
    pub(crate) fn new(
        config: Option<&MixedPrecisionConfig>,
        model: &ResNet,
        device: &SelectedDevice,
        group: Option<&ProcessGroup>,
    ) -> Result<Self> {
        let precision = config.map_or(Precision::F32, |config| config.precision);
        let paths = config.and_then(|config| config.full_precision.as_deref());
        let paths = paths.into_iter().flat_map(|paths| paths.split(',')).map(|path| path.trim().to_owned());
        let paths = paths.filter(|path| !path.is_empty());
        let refused = |error: burn_nccl::Error| {
            RecipeError::from_text(format!("cannot train in {precision}"), &error.to_string())
        };
        let autocast = AutocastConfig::new(precision).with_full_precision_paths(paths.collect()).init();
        autocast.check(model, &device.device).map_err(refused)?;
        let scaler = match config {
            Some(config) if precision == Precision::F16 => {
                let scaler = GradScalerConfig::new()
                    .with_init_scale(config.init_scale)
                    .with_growth_interval(config.growth_interval)
                    .init()
                    .map_err(refused)?;
                Some(group.into_iter().fold(scaler, GradScaler::with_group))
            }
            _ => None,
        };
        let clip = config.and_then(|config| config.clip_grad_norm).map(ClipGradNormConfig::new);
        Ok(Self { autocast, scaler, clip, group: group.cloned(), skipped_before: 0 })
    }

    pub(crate) fn precision(&self) -> Precision {
        self.autocast.precision()
    }

    /// The copy of `model` to run a forward pass on.
    pub(crate) fn cast(&self, model: ResNet) -> Result<ResNet> {
        self.autocast.module(&model).map_err(|error| RecipeError::group("cannot cast the model", error))
    }

    /// The loss to differentiate.
    pub(crate) fn scale(&self, loss: Tensor<1>) -> Tensor<1> {
        match &self.scaler {
            Some(scaler) => scaler.scale(loss),
            None => loss,
        }
    }

    /// Where the factor of the losses can be read, where they are scaled.
    pub(crate) fn shared_loss_scale(&self) -> Option<LossScale> {
        self.scaler.as_ref().map(GradScaler::loss_scale)
    }

    /// The factor of the next loss, where losses are scaled.
    pub(crate) fn loss_scale(&self) -> Option<f64> {
        self.scaler.as_ref().map(|scaler| f64::from(scaler.loss_scale().factor()))
    }

    /// Steps without effect so far, where losses are scaled.
    pub(crate) fn skipped_steps(&self) -> Option<u64> {
        self.scaler.as_ref().map(|scaler| self.skipped_before + scaler.skipped_steps())
    }

    /// What a checkpoint keeps of the loss scale.
    pub(crate) fn state(&self) -> Option<GradScalerState> {
        self.scaler.as_ref().map(GradScaler::state)
    }

    /// Goes on with the loss scale of a checkpoint, after `skipped` steps without effect. A checkpoint of a run without
    /// a loss scale leaves the first one.
    ///
    /// # Errors
    /// Where the state is no scaler's.
    pub(crate) fn resume(&mut self, state: Option<&GradScalerState>, skipped: u64) -> Result<()> {
        self.skipped_before = skipped;
        let (Some(scaler), Some(mut state)) = (&mut self.scaler, state.cloned()) else { return Ok(()) };
        // When the scale grows is an option, and options count more than what a checkpoint says.
        if let (Some(saved), Some(own)) = (&mut state.scaling, scaler.state().scaling) {
            saved.growth_interval = own.growth_interval;
        }
        scaler.load_state(&state).map_err(|error| RecipeError::group("cannot resume the loss scale", error))
    }

    /// Unscales and clips the gradients and takes the optimizer step, unless a gradient of any rank overflowed.
    ///
    /// # Errors
    /// Where the loss scale is at its floor, differs between ranks, or a rank is lost.
    pub(crate) fn step(
        &mut self,
        optimizer: &mut ModuleOptimizer,
        lr: f64,
        model: ResNet,
        gradients: GradientsParams,
    ) -> Result<(ResNet, Outcome)> {
        let loss_scale = self.loss_scale();
        let skipped_before = self.skipped_steps();
        let stopped = |error| RecipeError::group("cannot take the optimizer step", error);
        let gradients = match &mut self.scaler {
            Some(scaler) => scaler.unscale(&model, gradients).map_err(stopped)?,
            None => gradients,
        };
        let ranks = self.group.as_ref().map_or(ClipRanks::Alone, ClipRanks::Replicas);
        let (gradients, grad_norm) = match &self.clip {
            Some(clip) => {
                let (gradients, norm) = clip.clip(&model, gradients, ranks).map_err(stopped)?;
                (gradients, Some(norm))
            }
            None => (gradients, None),
        };
        let model = match &mut self.scaler {
            Some(scaler) => {
                let model = scaler.step(optimizer, lr, model, gradients).map_err(stopped)?;
                scaler.update().map_err(stopped)?;
                model
            }
            None => optimizer.step(lr, model, gradients),
        };
        let skipped = self.skipped_steps().zip(skipped_before).map(|(after, before)| after > before);
        Ok((model, Outcome { loss_scale, skipped, grad_norm }))
    }
}
