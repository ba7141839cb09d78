//! Checking the settings of transforms, once, before any image is loaded.

use super::transform::Transform;
use crate::DataError;

impl Transform {
    /// Checks the settings.
    ///
    /// # Errors
    ///
    /// [`DataError::InvalidTransform`] names the setting and the allowed range.
    pub fn validate(&self) -> Result<(), DataError> {
        match *self {
            Self::ResizeShorter { size } => self.check(size > 0, "size", size, "at least 1"),
            Self::Resize { height, width }
            | Self::CenterCrop { height, width }
            | Self::RandomCrop { height, width, .. } => self.check_size(height, width),
            Self::RandomResizedCrop { height, width, min_area, max_area } => {
                self.check_size(height, width)?;
                let ok = 0.0 < min_area && min_area <= max_area && max_area <= 1.0;
                let area = format!("{min_area} to {max_area}");
                self.check(ok, "area", area, "0 < min_area <= max_area <= 1")
            }
            Self::RandomHorizontalFlip { probability } => {
                self.check((0.0..=1.0).contains(&probability), "probability", probability, "0 to 1")
            }
            Self::RandomAffine { max_degrees, max_translate, min_scale, max_scale } => {
                self.check((0.0..=360.0).contains(&max_degrees), "max_degrees", max_degrees, "0 to 360")?;
                self.check((0.0..=1.0).contains(&max_translate), "max_translate", max_translate, "0 to 1")?;
                let ok = 0.0 < min_scale && min_scale <= max_scale && max_scale.is_finite();
                let scale = format!("{min_scale} to {max_scale}");
                self.check(ok, "scale", scale, "0 < min_scale <= max_scale")
            }
            Self::ToRgb => Ok(()),
            Self::Normalize(ref normalization) => normalization.validate(),
        }
    }

    fn check_size(&self, height: usize, width: usize) -> Result<(), DataError> {
        self.check(height > 0 && width > 0, "size", format!("{height}x{width}"), "at least 1x1")
    }

    fn check(
        &self,
        ok: bool,
        name: &'static str,
        value: impl ToString,
        expected: &'static str,
    ) -> Result<(), DataError> {
        if ok {
            return Ok(());
        }
        Err(DataError::InvalidTransform { transform: self.name(), name, value: value.to_string(), expected })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_out_of_range_are_named_with_their_limits() {
        let error = |transform: Transform| transform.validate().unwrap_err().to_string();
        assert_eq!(
            error(Transform::RandomHorizontalFlip { probability: 1.5 }),
            "transform random_horizontal_flip: probability is 1.5, expected 0 to 1"
        );
        assert_eq!(
            error(Transform::Resize { height: 0, width: 3 }),
            "transform resize: size is 0x3, expected at least 1x1"
        );
        let affine = |max_degrees, max_translate, min_scale, max_scale| Transform::RandomAffine {
            max_degrees,
            max_translate,
            min_scale,
            max_scale,
        };
        assert!(affine(10.0, 0.1, 0.9, 1.1).validate().is_ok());
        for bad in [affine(-1.0, 0.1, 1.0, 1.0), affine(0.0, 2.0, 1.0, 1.0), affine(0.0, 0.0, 0.0, 1.0)] {
            assert!(bad.validate().is_err(), "{bad:?}");
        }
        assert!(affine(0.0, 0.0, 1.0, f32::NAN).validate().is_err());
        let part =
            |min_area, max_area| Transform::RandomResizedCrop { height: 1, width: 1, min_area, max_area };
        assert!(part(0.0, 1.0).validate().is_err() && part(0.5, 0.4).validate().is_err());
        assert!(Transform::ResizeShorter { size: 0 }.validate().is_err());
    }
}
