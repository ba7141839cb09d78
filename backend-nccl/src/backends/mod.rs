//! One file per backend that implements [`CollectiveBackend`](crate::ops::CollectiveBackend).

mod autodiff;
#[cfg(feature = "cuda")]
mod cube;
#[cfg(feature = "flex")]
mod flex;
pub(crate) mod host;
#[cfg(feature = "ndarray")]
mod ndarray;
