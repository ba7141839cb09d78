//! The state machine of dynamic loss scaling: numbers in, decisions out, no tensors.

use std::collections::BTreeMap;

use burn::config::Config;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The constants of dynamic loss scaling; the defaults are PyTorch's.
///
/// Source: `torch.amp.GradScaler`; P. Micikevicius et al., "Mixed Precision Training", ICLR 2018.
#[derive(Config, Debug, PartialEq)]
pub struct GradScalerConfig {
    /// The scale at the start.
    #[config(default = 65536.0)]
    pub init_scale: f32,
    /// What the scale is multiplied by after `growth_interval` steps in a row without overflow; above 1.
    #[config(default = 2.0)]
    pub growth_factor: f64,
    /// What the scale is multiplied by after an overflow; between 0 and 1.
    #[config(default = 0.5)]
    pub backoff_factor: f64,
    /// Steps in a row without overflow after which the scale grows; at least 1.
    #[config(default = 2000)]
    pub growth_interval: u32,
    /// Whether losses are scaled at all. A disabled scaler hands everything on as it is.
    #[config(default = true)]
    pub enabled: bool,
    /// The least scale that an overflow may lead to; below it training ends with [`Error::LossScaleFloor`].
    /// 0 leaves the scale without a floor, as PyTorch does.
    #[config(default = 1.0)]
    pub min_scale: f32,
}

impl GradScalerConfig {
    /// Refuses numbers with which the scale could not move, or only the wrong way.
    pub(crate) fn check(&self) -> Result<()> {
        let refuse = |setting, found: f64, expected| {
            Err(Error::InvalidLossScaling { setting, found: found.to_string(), expected })
        };
        if !(self.growth_factor > 1.0 && self.growth_factor.is_finite()) {
            return refuse("growth_factor", self.growth_factor, "a finite number above 1");
        }
        if !(self.backoff_factor > 0.0 && self.backoff_factor < 1.0) {
            return refuse("backoff_factor", self.backoff_factor, "a number between 0 and 1");
        }
        if self.growth_interval == 0 {
            return refuse("growth_interval", 0.0, "at least 1 step");
        }
        if !(self.min_scale >= 0.0 && self.min_scale.is_finite()) {
            return refuse("min_scale", f64::from(self.min_scale), "0 or a finite number above it");
        }
        self.check_scale("init_scale", self.init_scale)
    }

    fn check_scale(&self, setting: &'static str, scale: f32) -> Result<()> {
        if scale > 0.0 && scale.is_finite() && scale >= self.min_scale {
            return Ok(());
        }
        let expected = "a finite number above 0 and not below min_scale";
        Err(Error::InvalidLossScaling { setting, found: scale.to_string(), expected })
    }
}

/// The state of an enabled scaler, under the names that `torch.amp.GradScaler.state_dict()` gives it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScaleState {
    /// The current scale.
    pub scale: f32,
    /// As in the configuration.
    pub growth_factor: f64,
    /// As in the configuration.
    pub backoff_factor: f64,
    /// As in the configuration.
    pub growth_interval: u32,
    /// Steps in a row without overflow.
    #[serde(rename = "_growth_tracker")]
    pub growth_tracker: u32,
}

/// What a checkpoint keeps of a [`GradScaler`](super::GradScaler): nothing of a disabled one, which serialises as an
/// empty map. A map with some of the keys is no state, and reading it names the key that is missing or wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "PartialState")]
pub struct GradScalerState {
    /// The numbers, of an enabled scaler.
    #[serde(flatten)]
    pub scaling: Option<ScaleState>,
}

/// [`GradScalerState`] as it may have been written: serde's `flatten` would take any fault for an empty map.
#[derive(Deserialize)]
struct PartialState {
    scale: Option<f32>,
    growth_factor: Option<f64>,
    backoff_factor: Option<f64>,
    growth_interval: Option<u32>,
    #[serde(rename = "_growth_tracker")]
    growth_tracker: Option<u32>,
}

impl TryFrom<PartialState> for GradScalerState {
    type Error = String;

    fn try_from(state: PartialState) -> std::result::Result<Self, String> {
        let PartialState { scale, growth_factor, backoff_factor, growth_interval, growth_tracker } = state;
        let present = [
            ("scale", scale.is_some()),
            ("growth_factor", growth_factor.is_some()),
            ("backoff_factor", backoff_factor.is_some()),
            ("growth_interval", growth_interval.is_some()),
            ("_growth_tracker", growth_tracker.is_some()),
        ];
        if present.iter().all(|(_, is_present)| !is_present) {
            return Ok(Self { scaling: None });
        }
        let missing = present.iter().find(|(_, is_present)| !is_present).map_or("", |(key, _)| key);
        let scaling = (|| {
            Some(ScaleState {
                scale: scale?,
                growth_factor: growth_factor?,
                backoff_factor: backoff_factor?,
                growth_interval: growth_interval?,
                growth_tracker: growth_tracker?,
            })
        })();
        let scaling = scaling.ok_or_else(|| format!("the state of the gradient scaler lacks `{missing}`"))?;
        Ok(Self { scaling: Some(scaling) })
    }
}

/// What an update did to the scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScaleChange {
    /// It stayed: no overflow, and not yet `growth_interval` steps in a row without one.
    Kept,
    /// It grew.
    Grown,
    /// It would have grown beyond what f32 holds, and stayed.
    AtLimit,
    /// It shrank after an overflow.
    Reduced,
}

/// How far an optimizer has come since the last update. One that is not listed is ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Progress {
    stepped: bool,
    overflowed: bool,
}

/// The scale, when it changes, and in which order the calls may come.
#[derive(Clone, Debug)]
pub(crate) struct Scaler {
    config: GradScalerConfig,
    scale: f32,
    growth_tracker: u32,
    optimizers: BTreeMap<usize, Progress>,
}

impl Scaler {
    /// # Errors
    /// [`Error::InvalidLossScaling`].
    pub(crate) fn new(config: GradScalerConfig) -> Result<Self> {
        config.check()?;
        Ok(Self { scale: config.init_scale, config, growth_tracker: 0, optimizers: BTreeMap::new() })
    }

    pub(crate) fn is_enabled(&self) -> bool {
        self.config.enabled
    }

    /// The factor for losses: the scale, or 1 when disabled.
    pub(crate) fn factor(&self) -> f32 {
        if self.config.enabled { self.scale } else { 1.0 }
    }

    /// The factor for gradients, rounded once.
    pub(crate) fn inverse(&self) -> f32 {
        (1.0 / f64::from(self.factor())) as f32
    }

    pub(crate) fn growth_tracker(&self) -> u32 {
        self.growth_tracker
    }

    pub(crate) fn is_unscaled(&self, optimizer: usize) -> bool {
        self.optimizers.contains_key(&optimizer)
    }

    /// Whether `optimizer`'s gradients may be unscaled now.
    pub(crate) fn check_unscale(&self, optimizer: usize) -> Result<()> {
        match self.optimizers.get(&optimizer) {
            None => Ok(()),
            Some(Progress { stepped: false, .. }) => Err(Error::UnscaledTwice { optimizer }),
            Some(Progress { stepped: true, .. }) => Err(Error::UnscaledAfterStep { optimizer }),
        }
    }

    /// Notes that `optimizer`'s gradients are unscaled, and whether any of them overflowed.
    pub(crate) fn record_unscaled(&mut self, optimizer: usize, overflowed: bool) {
        self.optimizers.insert(optimizer, Progress { stepped: false, overflowed });
    }

    /// Whether `optimizer` may step now.
    pub(crate) fn check_step(&self, optimizer: usize) -> Result<()> {
        match self.optimizers.get(&optimizer) {
            Some(Progress { stepped: true, .. }) => Err(Error::SteppedTwice { optimizer }),
            _ => Ok(()),
        }
    }

    /// Notes the step of an optimizer whose gradients are unscaled; returns whether it is to be skipped.
    pub(crate) fn record_step(&mut self, optimizer: usize) -> bool {
        match self.optimizers.get_mut(&optimizer) {
            Some(progress) => {
                progress.stepped = true;
                progress.overflowed
            }
            None => unreachable!("a step comes after unscaling"),
        }
    }

    /// Ends an iteration: moves the scale and makes every optimizer ready.
    ///
    /// # Errors
    /// [`Error::NothingUnscaled`]; [`Error::LossScaleFloor`], which leaves everything as it is.
    pub(crate) fn update(&mut self) -> Result<ScaleChange> {
        if self.optimizers.is_empty() {
            return Err(Error::NothingUnscaled);
        }
        let change = if self.optimizers.values().any(|optimizer| optimizer.overflowed) {
            self.back_off()?
        } else {
            self.advance()
        };
        self.optimizers.clear();
        Ok(change)
    }

    fn back_off(&mut self) -> Result<ScaleChange> {
        let reduced = self.times(self.config.backoff_factor);
        let min_scale = self.config.min_scale;
        if reduced < min_scale {
            return Err(Error::LossScaleFloor { scale: self.scale, min_scale });
        }
        self.scale = reduced;
        self.growth_tracker = 0;
        Ok(ScaleChange::Reduced)
    }

    fn advance(&mut self) -> ScaleChange {
        let steps = self.growth_tracker.saturating_add(1);
        // Equality: a tracker loaded from a state with a longer interval passes it by and never grows, as in PyTorch.
        if steps != self.config.growth_interval {
            self.growth_tracker = steps;
            return ScaleChange::Kept;
        }
        self.growth_tracker = 0;
        let grown = self.times(self.config.growth_factor);
        if !grown.is_finite() {
            return ScaleChange::AtLimit;
        }
        self.scale = grown;
        ScaleChange::Grown
    }

    /// The scale is an f32 and the factors are f64; the product is rounded once.
    fn times(&self, factor: f64) -> f32 {
        (f64::from(self.scale) * factor) as f32
    }

    pub(crate) fn state(&self) -> GradScalerState {
        let config = &self.config;
        GradScalerState {
            scaling: config.enabled.then_some(ScaleState {
                scale: self.scale,
                growth_factor: config.growth_factor,
                backoff_factor: config.backoff_factor,
                growth_interval: config.growth_interval,
                growth_tracker: self.growth_tracker,
            }),
        }
    }

    /// Continues from `state`, at the start of an iteration. A disabled scaler ignores it.
    ///
    /// # Errors
    /// [`Error::EmptyScalerState`], [`Error::InvalidLossScaling`]; nothing has changed then.
    pub(crate) fn load_state(&mut self, state: &GradScalerState) -> Result<()> {
        if !self.config.enabled {
            return Ok(());
        }
        let state = state.scaling.ok_or(Error::EmptyScalerState)?;
        let config = GradScalerConfig {
            growth_factor: state.growth_factor,
            backoff_factor: state.backoff_factor,
            growth_interval: state.growth_interval,
            ..self.config.clone()
        };
        config.check()?;
        config.check_scale("scale", state.scale)?;
        let (scale, growth_tracker) = (state.scale, state.growth_tracker);
        *self = Self { config, scale, growth_tracker, optimizers: BTreeMap::new() };
        Ok(())
    }
}
