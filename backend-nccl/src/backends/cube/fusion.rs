//! Fusion, which keeps operations in a queue before they reach the device.
//!
//! A collective cannot wait there: operations that share no tensor have no order in the queue, and what is in it runs when
//! something reads, so ranks would run their collectives in different orders, or one would not run its own while the others
//! wait. So the operands are drained, in program order, the collective runs on the tensors below, and its result enters the
//! queue as a tensor that is there already.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use burn::backend::{
    Backend, Device, TensorMetadata,
    ir::{InitOperationIr, OperationIr, OperationOutput},
    tensor::FloatTensor,
};
use burn::tensor::{DType, FloatDType, Shape};
use burn_fusion::{Client, Fusion, FusionBackend, NoOp, custom::StreamId};

use crate::device_error::DeviceError;
use crate::ops::{AsyncCall, BucketParts, Call, CollectiveBackend, FlatBucket, Placement, Route};
use crate::transport::ReduceOp;

impl<B> CollectiveBackend for Fusion<B>
where
    B: FusionBackend + CollectiveBackend,
{
    fn group_all_reduce(tensor: FloatTensor<Self>, op: ReduceOp, call: Call) -> FloatTensor<Self> {
        through::<B>(tensor, 1, 1, &call, |tensor| B::group_all_reduce(tensor, op, call.clone()))
    }

    fn group_broadcast(tensor: FloatTensor<Self>, root: usize, call: Call) -> FloatTensor<Self> {
        through::<B>(tensor, 1, 1, &call, |tensor| B::group_broadcast(tensor, root, call.clone()))
    }

    fn group_all_gather(tensor: FloatTensor<Self>, call: Call) -> FloatTensor<Self> {
        let ranks = call.group.world_size();
        through::<B>(tensor, ranks, 1, &call, |tensor| B::group_all_gather(tensor, call.clone()))
    }

    fn group_reduce_scatter(tensor: FloatTensor<Self>, op: ReduceOp, call: Call) -> FloatTensor<Self> {
        let ranks = call.group.world_size();
        through::<B>(tensor, 1, ranks, &call, |tensor| B::group_reduce_scatter(tensor, op, call.clone()))
    }

    fn group_all_to_all(tensor: FloatTensor<Self>, call: Call) -> FloatTensor<Self> {
        through::<B>(tensor, 1, 1, &call, |tensor| B::group_all_to_all(tensor, call.clone()))
    }

    fn group_placement(tensor: FloatTensor<Self>, call: Call) -> Placement {
        B::group_placement(probe::<B>(tensor.client.device()), call)
    }

    fn group_route(tensor: FloatTensor<Self>, call: Call) -> Route {
        B::group_route(probe::<B>(tensor.client.device()), call)
    }

    fn group_bucket_start(
        parts: BucketParts<Self>,
        bucket: FlatBucket,
        op: ReduceOp,
        call: AsyncCall,
    ) -> FloatTensor<Self> {
        let (client, dtype) = (parts.0[0].client.clone(), parts.0[0].dtype);
        let device = client.device().clone();
        let shape = Shape::new([bucket.len]);
        match parts.0.into_iter().map(resolved::<B>).collect::<Result<Vec<_>, _>>() {
            Ok(parts) => adopted::<B>(B::group_bucket_start(BucketParts(parts), bucket, op, call), &client),
            Err(error) => {
                call.fail(call.call().device_error(error));
                zeros::<Self>(shape, &device, dtype)
            }
        }
    }

    fn bucket_parts(flat: FloatTensor<Self>, bucket: FlatBucket) -> Vec<FloatTensor<Self>> {
        let client = flat.client.clone();
        match resolved::<B>(flat.clone()) {
            Ok(tensor) => {
                let parts = B::bucket_parts(tensor, bucket).into_iter();
                parts.map(|part| adopted::<B>(part, &client)).collect()
            }
            // Whoever reads them meets the error.
            Err(_) => crate::backends::host::bucket_parts::<Self>(&flat, &bucket),
        }
    }
}

/// Runs a collective on the tensor below; dimension 0 grows by the factor `ranks` or shrinks by `shares`.
fn through<B: FusionBackend + CollectiveBackend>(
    tensor: FloatTensor<Fusion<B>>,
    ranks: usize,
    shares: usize,
    call: &Call,
    run: impl FnOnce(FloatTensor<B>) -> FloatTensor<B>,
) -> FloatTensor<Fusion<B>> {
    let (client, dtype, mut shape) = (tensor.client.clone(), tensor.dtype, tensor.shape());
    match resolved::<B>(tensor) {
        Ok(tensor) => adopted::<B>(run(tensor), &client),
        Err(error) => {
            call.fail_alone(call.device_error(error));
            shape[0] = shape[0] * ranks / shares;
            zeros::<Fusion<B>>(shape, client.device(), dtype)
        }
    }
}

/// The tensor below, once all that this thread has queued has been handed to the device.
///
/// # Errors
/// Where what computes it has failed, which burn-fusion tells by a panic.
fn resolved<B: FusionBackend>(tensor: FloatTensor<Fusion<B>>) -> Result<FloatTensor<B>, DeviceError> {
    let (client, bytes) = (tensor.client.clone(), tensor.shape().num_elements() * tensor.dtype.size());
    let ordinal = client.device().to_id().index_id as usize;
    catch_unwind(AssertUnwindSafe(|| client.resolve_tensor_float::<B>(tensor)))
        .map_err(|payload| refusal(&*payload, ordinal, bytes))
}

/// What a panic says of the memory of a tensor.
fn refusal(payload: &(dyn Any + Send), ordinal: usize, bytes: usize) -> DeviceError {
    let text = payload.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| payload.downcast_ref::<&str>().copied());
    let text = text.unwrap_or("read the log for the message");
    // The variants of CubeCL's errors, which have come here as text.
    if ["OutOfMemory", "BufferTooBig"].iter().any(|variant| text.contains(variant)) {
        let purpose = "a tensor of a collective, or what computes it".into();
        return DeviceError::OutOfMemory { ordinal, bytes, purpose };
    }
    let first_line = text.lines().next().unwrap_or(text);
    DeviceError::Memory { reason: format!("what computes it failed: {first_line}") }
}

/// A tensor of the queue that is there already, as those are that Burn makes of data.
fn adopted<B: FusionBackend>(
    tensor: FloatTensor<B>,
    client: &Client<B::FusionRuntime>,
) -> FloatTensor<Fusion<B>> {
    let (shape, dtype) = (tensor.shape(), tensor.dtype());
    let handle = B::float_tensor_handle(tensor);
    let operation = InitOperationIr::create(shape, dtype, || client.register_tensor_handle(handle));
    client.register(StreamId::current(), OperationIr::Init(operation), NoOp::<B>::new()).output()
}

/// Some tensor of the device: to ask about that must not drain the queue.
fn probe<B: Backend>(device: &B::Device) -> FloatTensor<B> {
    B::float_empty(Shape::new([1]), device, FloatDType::F32)
}

fn zeros<B: Backend>(shape: Shape, device: &B::Device, dtype: DType) -> FloatTensor<B> {
    B::float_zeros(shape, device, dtype.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_panic_says_is_the_reason_and_memory_that_is_not_there_is_told_as_such() {
        let refused = |payload: Box<dyn Any + Send>| refusal(&*payload, 3, 4096);
        let text = refused(Box::new("a kernel failed\nBacktrace: ..".to_owned())).to_string();
        assert!(text.contains("what computes it failed: a kernel failed") && !text.contains(".."), "{text}");
        let text = refused(Box::new("no handle")).to_string();
        assert!(text.contains("no handle"), "{text}");
        let text = refused(Box::new(7)).to_string();
        assert!(text.contains("read the log"), "{text}");
        let text = "called `Result::unwrap()` on an `Err` value: Io(OutOfMemory { size: 64 })".to_owned();
        let refused = refused(Box::new(text));
        assert!(matches!(refused, DeviceError::OutOfMemory { ordinal: 3, bytes: 4096, .. }), "{refused}");
    }
}
