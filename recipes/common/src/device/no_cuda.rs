//! In place of GPUs in a build without CUDA.

use burn_nccl::ProcessGroup;

use super::{DeviceChoice, DeviceTransport, Purpose, SelectedDevice};
use crate::error::{RecipeError, Result};

/// There is nothing to claim.
#[derive(Debug)]
pub(super) enum Claim {}

pub(super) fn gpu_count() -> usize {
    0
}

pub(super) fn idle_count() -> usize {
    0
}

pub(super) fn hidden_gpus() -> Option<String> {
    None
}

pub(super) fn select(choice: DeviceChoice, _purpose: Purpose) -> Result<SelectedDevice> {
    Err(RecipeError::usage(
        format!("cannot use {choice}"),
        "this program was built without CUDA",
        "rebuild with --no-default-features --features cuda, or use --device cpu",
    ))
}

pub(super) fn device_transport(_group: &ProcessGroup) -> Option<DeviceTransport> {
    None
}

pub(super) fn topology_warning(_pci_bus_ids: &[String]) -> Option<String> {
    None
}
