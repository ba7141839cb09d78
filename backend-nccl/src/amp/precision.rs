//! The element types that a model computes in.

use std::fmt;
use std::str::FromStr;

use burn::tensor::FloatDType;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// What convolutions and matrix products compute in. Parameters, optimizer state and gradients are f32 in all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// 32 bits: no casts at all.
    #[default]
    F32,
    /// bfloat16: the range of f32 with 8 significant bits; needs no loss scale.
    BF16,
    /// IEEE half: 11 significant bits up to 65504; gradients below 6e-8 vanish without a loss scale.
    F16,
}

impl Precision {
    /// Every precision.
    pub const ALL: [Self; 3] = [Self::F32, Self::BF16, Self::F16];

    /// The name on the command line: `f32`, `bf16` or `f16`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::BF16 => "bf16",
            Self::F16 => "f16",
        }
    }

    /// The half type, `None` for f32.
    pub const fn half(self) -> Option<FloatDType> {
        match self {
            Self::F32 => None,
            Self::BF16 => Some(FloatDType::BF16),
            Self::F16 => Some(FloatDType::F16),
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Precision {
    type Err = Error;

    /// # Errors
    /// [`Error::UnknownPrecision`].
    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|precision| precision.name() == name)
            .ok_or_else(|| Error::UnknownPrecision { name: name.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_precision_is_read_back_from_its_name() {
        for precision in Precision::ALL {
            assert_eq!(precision.to_string().parse::<Precision>().unwrap(), precision);
            assert_eq!(serde_json::to_string(&precision).unwrap(), format!("\"{precision}\""));
        }
        let error = "half".parse::<Precision>().unwrap_err();
        assert_eq!(error.to_string(), "unknown precision `half`: use f32, bf16 or f16");
    }
}
