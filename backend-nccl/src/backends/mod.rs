//! One file per backend that implements [`CollectiveBackend`](crate::ops::CollectiveBackend).

use std::any::Any;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, DispatchTensor, DispatchTensorKind, TensorMetadata};
use burn::tensor::{Shape, Tensor};

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

/// `tensor` with one dimension, as a tensor that users know; `None` for a backend that this build does not list.
///
/// A backend's own tensor does not say which variant of Burn's enum it belongs to. That of CubeCL also depends on a feature
/// of Burn, which only the types of this build can tell.
pub(crate) fn flat_tensor<B: Backend>(tensor: FloatTensor<B>) -> Option<Tensor<1>> {
    let elements = tensor.shape().num_elements();
    let tensor: Box<dyn Any> = Box::new(B::float_reshape(tensor, Shape::new([elements])));
    kind_of(tensor).map(|kind| Tensor::from_dispatch(DispatchTensor { kind, autodiff: Default::default() }))
}

#[cfg_attr(not(any(feature = "flex", feature = "ndarray", feature = "cuda")), allow(unused_mut))]
fn kind_of(mut tensor: Box<dyn Any>) -> Option<DispatchTensorKind> {
    macro_rules! try_as {
        ($backend:ident) => {
            tensor = match tensor.downcast::<FloatTensor<burn::backend::$backend>>() {
                Ok(tensor) => {
                    return Some(DispatchTensorKind::$backend(burn::backend::BackendTensor::Float(*tensor)));
                }
                Err(tensor) => tensor,
            };
        };
    }
    #[cfg(feature = "flex")]
    try_as!(Flex);
    #[cfg(feature = "ndarray")]
    try_as!(NdArray);
    #[cfg(feature = "cuda")]
    try_as!(Cube);
    drop(tensor);
    None
}
