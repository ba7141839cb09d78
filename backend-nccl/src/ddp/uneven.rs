//! Uneven inputs: ranks tell each other whether they still have data.

use super::config::UnevenInputs;
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::site::{self, Purpose};
use crate::transport::DType;

/// Tells the other ranks whether this one has a batch for the coming step, and returns how many ranks have.
///
/// # Errors
/// In strict mode [`Error::UnevenInputs`], on every rank, where some ranks have a batch and some do not.
pub(crate) fn exchange(group: &ProcessGroup, mode: UnevenInputs, has_batch: bool) -> Result<usize> {
    if mode == UnevenInputs::Even {
        return Ok(group.world_size());
    }
    let mut present = vec![0; group.world_size()];
    let _site = site::on_behalf_of(Purpose::Of("the agreement on which ranks have a batch"));
    group.all_gather(&[u8::from(has_batch)], &mut present, DType::U8)?;
    let exhausted: Vec<usize> =
        present.iter().enumerate().filter(|(_, has)| **has == 0).map(|(rank, _)| rank).collect();
    let active = group.world_size() - exhausted.len();
    if mode == UnevenInputs::Strict && active > 0 && !exhausted.is_empty() {
        return Err(Error::UnevenInputs { exhausted, world_size: group.world_size() });
    }
    Ok(active)
}
