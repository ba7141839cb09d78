//! Gradient hooks: see a tensor's gradient at the moment when the backward pass has it.

use std::fmt;
use std::sync::Arc;

use burn::backend::Dispatch;
use burn::tensor::Tensor;

use crate::dtype::wire_dtype;
use crate::error::{Error, Result};
use crate::ops::CollectiveBackend;
use crate::transport::DType;

/// A gradient that has arrived in the backward pass, wherever and in whatever layout it lies.
pub struct ArrivedGradient<'a> {
    pub(crate) dtype: DType,
    pub(crate) len_bytes: usize,
    pub(crate) form: &'a dyn GradientForm,
}

/// What a backend can make of a gradient, each when it is asked for: a gradient on a GPU is read only then.
pub(crate) trait GradientForm {
    /// Writes the elements in row-major order.
    fn write(&self, target: &mut [u8]) -> Result<()>;

    /// The elements in row-major order as a tensor of one dimension, where they are; a backend's own tensors may have no
    /// such form.
    fn tensor(&self) -> Option<Tensor<1>>;
}

impl ArrivedGradient<'_> {
    /// The type of its elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Its size in bytes.
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Writes its elements to `target`, in row-major order and the machine's byte order. `target` holds
    /// [`len_bytes`](Self::len_bytes), aligned for the element type. A gradient on a GPU is waited for and copied to the
    /// host by this.
    ///
    /// # Errors
    /// [`Error::TensorRead`] where it cannot be read.
    pub fn write_to(&self, target: &mut [u8]) -> Result<()> {
        self.form.write(target)
    }

    /// Its elements in row-major order as a tensor of one dimension without autodiff, on the gradient's device. Nothing is
    /// waited for or copied to the host.
    pub fn tensor(&self) -> Option<Tensor<1>> {
        self.form.tensor()
    }
}

/// Receives gradients during the backward pass, on the thread that runs it.
///
/// An implementation must not panic: a panic here would unwind through the autodiff graph. Keep the error and
/// return it after the backward pass.
pub trait GradientSink: Send + Sync {
    /// Takes the gradient of `slot`.
    fn receive(&self, slot: usize, gradient: &ArrivedGradient<'_>);

    /// Takes the news that the gradient of `slot` could not be read.
    fn fail(&self, slot: usize, error: Error);
}

/// A [`GradientSink`] and the slot under which it knows one tensor.
#[derive(Clone)]
pub struct GradientHook {
    sink: Arc<dyn GradientSink>,
    slot: usize,
    ends: bool,
}

impl GradientHook {
    /// A hook that delivers to `sink` as `slot`.
    pub fn new(sink: Arc<dyn GradientSink>, slot: usize) -> Self {
        Self { sink, slot, ends: false }
    }

    /// As [`new`](Self::new), but the gradient goes no further: the sink is its only owner. This frees a leaf's
    /// gradient as soon as it has been delivered instead of at the end of the backward pass.
    pub fn ending(sink: Arc<dyn GradientSink>, slot: usize) -> Self {
        Self { sink, slot, ends: true }
    }

    pub(crate) fn ends(&self) -> bool {
        self.ends
    }

    /// Delivers a gradient of `elements` elements of Burn's `dtype`.
    pub(crate) fn deliver(&self, dtype: burn::tensor::DType, elements: usize, form: &dyn GradientForm) {
        match wire_dtype(dtype) {
            Ok(dtype) => {
                let len_bytes = elements * dtype.size_bytes();
                self.sink.receive(self.slot, &ArrivedGradient { dtype, len_bytes, form });
            }
            Err(error) => self.sink.fail(self.slot, error),
        }
    }
}

impl fmt::Debug for GradientHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GradientHook(slot {})", self.slot)
    }
}

/// Returns `tensor` with a hook on its gradient, as `torch.Tensor.register_hook` does.
///
/// `lift` delays the hook: it fires as soon as every backward step that lies deeper in the graph than `lift`
/// has run, and not before the gradient of `tensor` is complete. Pass any tensor made by
/// [`Tensor::zeros`] for a hook on an activation; a hook on a leaf without a deeper `lift` fires only after the
/// whole backward pass, because Burn runs its tape strictly by depth.
///
/// The returned tensor serves one backward pass. On a device without autodiff this returns `tensor` as it is.
pub fn gradient_hook<const D: usize>(tensor: Tensor<D>, lift: &Tensor<1>, hook: GradientHook) -> Tensor<D> {
    let hooked = <Dispatch as CollectiveBackend>::gradient_hook(
        tensor.into_dispatch(),
        lift.clone().into_dispatch(),
        hook,
    );
    Tensor::from_dispatch(hooked)
}
