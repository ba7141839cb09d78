//! Mean and spread per channel.

use serde::{Deserialize, Serialize};

use super::frame::Frame;
use crate::DataError;

/// Statistics of the pixel values, black 0 and white 1, per channel; `y = (x - mean) / std`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Normalization {
    /// Mean of each channel.
    pub mean: Vec<f32>,
    /// Standard deviation of each channel, above 0.
    pub std: Vec<f32>,
}

impl Normalization {
    /// The ImageNet statistics that torchvision's pretrained models were trained with.
    pub fn imagenet() -> Self {
        Self { mean: vec![0.485, 0.456, 0.406], std: vec![0.229, 0.224, 0.225] }
    }

    /// The statistics of the CIFAR-10 training images.
    pub fn cifar10() -> Self {
        Self { mean: vec![0.4914, 0.4822, 0.4465], std: vec![0.2470, 0.2435, 0.2616] }
    }

    /// The statistics of the CIFAR-100 training images.
    pub fn cifar100() -> Self {
        Self { mean: vec![0.5071, 0.4865, 0.4409], std: vec![0.2673, 0.2564, 0.2762] }
    }

    /// The statistics of the bundled digits' training images, replicated to three channels.
    pub fn digits() -> Self {
        Self { mean: vec![0.3055; 3], std: vec![0.3760; 3] }
    }

    pub(super) fn validate(&self) -> Result<(), DataError> {
        let invalid = |name, value, expected| DataError::InvalidTransform {
            transform: "normalize",
            name,
            value,
            expected,
        };
        if self.mean.is_empty() || self.mean.len() != self.std.len() {
            let value = format!("of {} and {} values", self.mean.len(), self.std.len());
            return Err(invalid("mean and std", value, "one value per channel in both"));
        }
        if let Some(mean) = self.mean.iter().find(|mean| !mean.is_finite()) {
            return Err(invalid("mean", mean.to_string(), "finite values"));
        }
        if let Some(std) = self.std.iter().find(|std| !(std.is_finite() && **std > 0.0)) {
            return Err(invalid("std", std.to_string(), "finite values above 0"));
        }
        Ok(())
    }

    pub(super) fn apply(&self, frame: &mut Frame) -> Result<(), DataError> {
        if frame.channels != self.mean.len() {
            return Err(frame.misfit("normalize", "as many channels as mean and std have values"));
        }
        for (plane, (mean, std)) in frame.planes_mut().zip(self.mean.iter().zip(&self.std)) {
            let scale = 1.0 / std;
            plane.iter_mut().for_each(|value| *value = (*value - mean) * scale);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_channel_uses_its_own_mean_and_std() {
        let mut frame = Frame { data: vec![0.5, 1.0, 0.5, 1.0], channels: 2, height: 1, width: 2 };
        let norm = Normalization { mean: vec![0.5, 0.25], std: vec![0.5, 0.25] };
        norm.apply(&mut frame).unwrap();
        assert_eq!(frame.data, [0.0, 1.0, 1.0, 3.0]);
        assert!(Normalization::imagenet().apply(&mut frame).is_err());
    }

    #[test]
    fn lists_of_different_length_and_zero_spread_are_refused() {
        let uneven = Normalization { mean: vec![0.0], std: vec![1.0, 1.0] }.validate().unwrap_err();
        assert!(uneven.to_string().contains("1 and 2 values"), "{uneven}");
        assert!(Normalization { mean: vec![0.0], std: vec![0.0] }.validate().is_err());
        assert!(Normalization { mean: vec![f32::NAN], std: vec![1.0] }.validate().is_err());
    }
}
