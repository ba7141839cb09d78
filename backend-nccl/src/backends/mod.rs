//! One file per backend that implements [`CollectiveBackend`](crate::ops::CollectiveBackend).

use crate::error::{Error, Result};

mod autodiff;
mod autodiff_batch_norm;
#[cfg(feature = "cuda")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
pub(crate) mod host;
#[cfg(feature = "ndarray")]
mod ndarray;

/// Finds out whether this build can run anything at all. Burn's own features alone would let a program compile whose first
/// collective panics in the routing.
///
/// # Errors
/// [`Error::NoBackend`].
pub(crate) fn check() -> Result<()> {
    let any = cfg!(any(feature = "flex", feature = "ndarray", feature = "cuda"));
    if any { Ok(()) } else { Err(Error::NoBackend) }
}
