//! The built-in hooks as an option.

use super::{AllReduce, CommunicationHook, HalfPrecision, HalfType, PowerSgd, PowerSgdConfig};

/// How gradients are averaged over ranks.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum Communication {
    /// By an all-reduce in the gradients' own type.
    AllReduce,
    /// In IEEE half precision; sums are formed in f32, between GPUs by NCCL, which rounds partial sums. PyTorch:
    /// `fp16_compress_hook`.
    F16,
    /// In bfloat16; sums as with `F16`. PyTorch: `bf16_compress_hook`.
    BF16,
    /// By low-rank approximation, on the host. PyTorch: `powerSGD_hook`.
    PowerSgd(PowerSgdConfig),
}

impl Communication {
    pub(crate) fn hook(&self) -> Box<dyn CommunicationHook> {
        match self {
            Self::AllReduce => Box::new(AllReduce),
            Self::F16 => Box::new(HalfPrecision(HalfType::F16)),
            Self::BF16 => Box::new(HalfPrecision(HalfType::BF16)),
            Self::PowerSgd(config) => Box::new(PowerSgd::new(config.clone())),
        }
    }
}
