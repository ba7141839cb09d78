//! Variables of NCCL that change what may be asked of it.

use std::str::FromStr;

use crate::{device_error::DeviceError, rendezvous::requested};

/// What the environment tells NCCL.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Variables {
    /// Whether ranks may share a GPU.
    pub(super) may_share: bool,
    /// Whether all calls are to wait for their end.
    pub(super) blocks: bool,
    /// The variable by which a thread of NCCL copies on the GPU while a collective runs there.
    pub(super) copies: Option<&'static str>,
}

impl Variables {
    pub(crate) fn from_environment() -> Self {
        let number = |name| requested::<Number>(name).map_or(0, |number| number.0);
        let copies = ["NCCL_P2P_USE_CUDA_MEMCPY", "NCCL_SHM_USE_CUDA_MEMCPY"];
        Self {
            may_share: number("NCCL_MULTI_RANK_GPU_ENABLE") == 1,
            blocks: number("NCCL_COMM_BLOCKING") == 1,
            copies: copies.into_iter().find(|name| number(name) != 0),
        }
    }

    /// Refuses what cannot be worked with.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Variable`].
    pub(super) fn check(&self) -> Result<(), DeviceError> {
        if !self.blocks {
            return Ok(());
        }
        Err(DeviceError::Variable {
            name: "NCCL_COMM_BLOCKING".into(),
            value: "1".into(),
            reason: "makes every call of NCCL wait for the other ranks, whatever has become of them".into(),
            remedy: "unset it".into(),
        })
    }

    /// Why context events would stop NCCL, if they would: they hold up all that comes to the context later, what NCCL itself
    /// copies there in the midst of a collective too.
    pub(super) fn against_context_events(&self) -> Option<String> {
        let name = self.copies?;
        Some(format!(
            "{name} lets NCCL copy by the driver while a collective runs, which context events would hold up for ever"
        ))
    }
}

/// A number as NCCL reads it; 0 for what is none.
#[derive(Default)]
struct Number(i64);

impl FromStr for Number {
    type Err = String;

    fn from_str(value: &str) -> Result<Self, String> {
        Ok(Self(value.parse().unwrap_or(0)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_nccl_reads_them() {
        for (value, number) in [("1", 1), ("0", 0), ("-2", -2), ("yes", 0)] {
            assert_eq!(value.parse::<Number>().unwrap().0, number, "{value}");
        }
    }

    /// In a process of its own, whose environment is set by the test below.
    #[test]
    #[ignore = "started by a test below"]
    fn with_variables() {
        let variables = Variables::from_environment();
        let expected = Variables { may_share: true, blocks: true, copies: Some("NCCL_SHM_USE_CUDA_MEMCPY") };
        assert_eq!(variables, expected);
    }

    #[test]
    fn the_variables_are_those_of_nccl() {
        let outcome = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "transport::nccl::variables::tests::with_variables"])
            .envs([("NCCL_COMM_BLOCKING", "1"), ("NCCL_MULTI_RANK_GPU_ENABLE", "1")])
            .envs([("NCCL_P2P_USE_CUDA_MEMCPY", "0"), ("NCCL_SHM_USE_CUDA_MEMCPY", "1")])
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&outcome.stdout).into_owned();
        assert!(outcome.status.success() && text.contains("1 passed"), "{text}");
    }
}
