//! What the CUDA driver or NCCL has refused, before it is known whom to tell.

use crate::{device_error::DeviceError, failure::Failure};

/// A call that did not do what was asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// By the CUDA driver.
    Cuda {
        /// Its function.
        call: &'static str,
        /// What for, as in "could not".
        action: &'static str,
        code: i32,
        name: String,
    },
    /// By NCCL.
    Nccl { call: &'static str, action: &'static str, code: i32, text: String },
    /// No memory on the GPU.
    Memory { bytes: usize, purpose: &'static str },
    /// The communicator has been aborted meanwhile; the cause is kept where it was found.
    Ended,
}

impl Refused {
    /// What it is before there is a communicator.
    pub(super) fn device_error(self, ordinal: usize) -> DeviceError {
        match self {
            Self::Cuda { call, code, name, .. } => DeviceError::Driver { action: call.into(), code, name },
            Self::Nccl { call, code, text, .. } => DeviceError::Nccl { action: call.into(), code, text },
            Self::Memory { bytes, purpose } => {
                DeviceError::OutOfMemory { ordinal, bytes, purpose: purpose.into() }
            }
            Self::Ended => DeviceError::Nccl {
                action: "ncclCommInitRankConfig".into(),
                code: 0,
                text: "the communicator has been aborted".into(),
            },
        }
    }

    /// What ends the group of `rank` by it; `None` where it has ended already.
    pub(super) fn failure(self, rank: usize) -> Option<Failure> {
        Some(match self {
            Self::Cuda { call, action, code, name } => {
                Failure::Cuda { rank, action: format!("{action} ({call})"), code, name }
            }
            Self::Nccl { call, action, code, text } => {
                Failure::Nccl { rank, action: format!("{action} ({call})"), code, text }
            }
            Self::Memory { bytes, purpose } => Failure::Cuda {
                rank,
                action: format!("get {bytes} bytes for {purpose}"),
                code: super::driver::OUT_OF_MEMORY,
                name: "CUDA_ERROR_OUT_OF_MEMORY".into(),
            },
            Self::Ended => return None,
        })
    }
}
