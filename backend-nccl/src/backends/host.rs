//! The host path: a collective on any backend by way of host memory.
//!
//! Each function is one read, one call of the group and one write. An error goes to the [`Call`]; the tensor that
//! then comes back has the right shape and the local values, so that nothing after it fails for another reason.

use std::ops::Range;

use burn::backend::tensor::FloatTensor;
use burn::backend::{Backend, TensorMetadata};
use burn::tensor::{Shape, Slice, Tensor, TensorData, try_read_sync};

use crate::dtype::wire_dtype;
use crate::error::{Error, Result};
use crate::hook::{GradientForm, GradientHook};
use crate::ops::{AsyncCall, Call, FlatBucket};
use crate::transport::{DType, ReduceOp};

pub(crate) fn all_reduce<B: Backend>(tensor: FloatTensor<B>, op: ReduceOp, call: &Call) -> FloatTensor<B> {
    in_place::<B>(tensor, call, |bytes, dtype| call.group.all_reduce(bytes, dtype, op))
}

pub(crate) fn broadcast<B: Backend>(tensor: FloatTensor<B>, root: usize, call: &Call) -> FloatTensor<B> {
    in_place::<B>(tensor, call, |bytes, dtype| call.group.broadcast(bytes, dtype, root))
}

pub(crate) fn all_gather<B: Backend>(tensor: FloatTensor<B>, call: &Call) -> FloatTensor<B> {
    let mut shape = tensor.shape();
    shape[0] *= call.group.world_size();
    resized::<B>(tensor, shape, call, |send, receive, dtype| call.group.all_gather(send, receive, dtype))
}

pub(crate) fn reduce_scatter<B: Backend>(
    tensor: FloatTensor<B>,
    op: ReduceOp,
    call: &Call,
) -> FloatTensor<B> {
    let mut shape = tensor.shape();
    shape[0] /= call.group.world_size();
    resized::<B>(tensor, shape, call, |send, receive, dtype| {
        call.group.reduce_scatter(send, receive, dtype, op)
    })
}

pub(crate) fn all_to_all<B: Backend>(tensor: FloatTensor<B>, call: &Call) -> FloatTensor<B> {
    let shape = tensor.shape();
    resized::<B>(tensor, shape, call, |send, receive, dtype| call.group.all_to_all(send, receive, dtype))
}

pub(crate) fn deliver_gradient<B: Backend>(gradient: FloatTensor<B>, hook: &GradientHook) -> FloatTensor<B> {
    let (dtype, elements) = (gradient.dtype(), gradient.shape().num_elements());
    hook.deliver(dtype, elements, &Unread::<B>(gradient.clone()));
    gradient
}

/// A gradient that has not been read.
struct Unread<B: Backend>(FloatTensor<B>);

impl<B: Backend> GradientForm for Unread<B> {
    fn write(&self, target: &mut [u8]) -> Result<()> {
        let data = read::<B>(self.0.clone())?;
        target.copy_from_slice(data.as_bytes());
        Ok(())
    }

    fn tensor(&self) -> Option<Tensor<1>> {
        super::flat_tensor::<B>(self.0.clone())
    }
}

/// Averages gradients in one flat tensor, with nothing left to wait for.
pub(crate) fn reduce_bucket<B: Backend>(
    parts: Vec<FloatTensor<B>>,
    bucket: &FlatBucket,
    op: ReduceOp,
    call: &AsyncCall,
) -> FloatTensor<B> {
    // There is a part, or nothing would have chosen the backend.
    let (device, dtype) = (parts[0].device(), parts[0].dtype());
    let shape = Shape::new([bucket.len]);
    let mut bytes = TensorData::full_dtype(shape.clone(), 0, dtype).into_bytes();
    let outcome = pack::<B>(parts, bucket, &mut bytes, dtype.size()).and_then(|()| {
        let _site = call.enter();
        call.group().all_reduce(&mut bytes, wire_dtype(dtype)?, op)
    });
    if let Err(error) = outcome {
        call.fail(error);
    }
    B::float_from_data(TensorData::from_bytes(bytes, shape, dtype), &device)
}

fn pack<B: Backend>(
    parts: Vec<FloatTensor<B>>,
    bucket: &FlatBucket,
    bytes: &mut [u8],
    element_bytes: usize,
) -> Result<()> {
    for (part, range) in parts.into_iter().zip(&bucket.ranges) {
        let data = read::<B>(part)?;
        bytes[range.start * element_bytes..range.end * element_bytes].copy_from_slice(data.as_bytes());
    }
    Ok(())
}

/// The parts of a flat tensor, as slices.
pub(crate) fn bucket_parts<B: Backend>(flat: &FloatTensor<B>, bucket: &FlatBucket) -> Vec<FloatTensor<B>> {
    bucket.ranges.iter().map(|range| slice::<B>(flat, range.clone())).collect()
}

/// A part of a flat tensor.
pub(crate) fn slice<B: Backend>(flat: &FloatTensor<B>, range: Range<usize>) -> FloatTensor<B> {
    B::float_slice(flat.clone(), &[Slice::from(range)])
}

/// Reads a tensor to host memory.
pub(crate) fn read<B: Backend>(tensor: FloatTensor<B>) -> Result<TensorData> {
    try_read_sync(B::float_into_data(tensor))
        .ok_or_else(|| Error::TensorRead { cause: "the backend cannot be read without waiting".into() })?
        .map_err(|error| Error::TensorRead { cause: error.to_string() })
}

fn in_place<B: Backend>(
    tensor: FloatTensor<B>,
    call: &Call,
    run: impl FnOnce(&mut [u8], DType) -> Result<()>,
) -> FloatTensor<B> {
    let device = tensor.device();
    let outcome = read::<B>(tensor.clone()).and_then(|data| {
        let (mut bytes, shape, dtype) = data.into_parts();
        let _site = call.enter();
        run(&mut bytes, wire_dtype(dtype)?)?;
        Ok(B::float_from_data(TensorData::from_bytes(bytes, shape, dtype), &device))
    });
    outcome.unwrap_or_else(|error| {
        call.fail(error);
        tensor
    })
}

fn resized<B: Backend>(
    tensor: FloatTensor<B>,
    shape: Shape,
    call: &Call,
    run: impl FnOnce(&[u8], &mut [u8], DType) -> Result<()>,
) -> FloatTensor<B> {
    let (device, burn_dtype) = (tensor.device(), tensor.dtype());
    let outcome = read::<B>(tensor).and_then(|data| {
        let mut received = TensorData::full_dtype(shape.clone(), 0, burn_dtype).into_bytes();
        let _site = call.enter();
        run(data.as_bytes(), &mut received, wire_dtype(data.dtype())?)?;
        Ok(TensorData::from_bytes(received, shape.clone(), burn_dtype))
    });
    let data = outcome.unwrap_or_else(|error| {
        call.fail(error);
        TensorData::full_dtype(shape, 0, burn_dtype)
    });
    B::float_from_data(data, &device)
}
