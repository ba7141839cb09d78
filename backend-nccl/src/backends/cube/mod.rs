//! CubeCL backends. Tensors on CUDA devices move by NCCL where the group has it, without a trip through host memory; those
//! of the other runtimes go by the host.

mod bucket;
mod collectives;
mod fusion;
mod memory;

use burn::backend::tensor::FloatTensor;
use burn_cubecl::{CubeBackend, CubeDevice, tensor::CubeTensor};

use super::host;
use crate::error::Result;
use crate::group::DeviceRoute;
use crate::ops::{AsyncCall, BucketParts, Call, CollectiveBackend, FlatBucket, Placement, Route};
use crate::transport::ReduceOp;

impl CollectiveBackend for CubeBackend {
    fn group_all_reduce(tensor: FloatTensor<Self>, op: ReduceOp, call: Call) -> FloatTensor<Self> {
        match route(&tensor, &call) {
            Ok(DeviceRoute::Alone) => tensor,
            Ok(DeviceRoute::Host) => host::all_reduce::<Self>(tensor, op, &call),
            Ok(DeviceRoute::Nccl(nccl)) => collectives::all_reduce(&nccl, tensor, op, &call),
            Err(error) => failed(tensor, error, &call),
        }
    }

    fn group_broadcast(tensor: FloatTensor<Self>, root: usize, call: Call) -> FloatTensor<Self> {
        match route(&tensor, &call) {
            // The host path knows which roots there are.
            Ok(DeviceRoute::Alone) if root == 0 => tensor,
            Ok(DeviceRoute::Nccl(nccl)) if root < call.group.world_size() => {
                collectives::broadcast(&nccl, tensor, root, &call)
            }
            Ok(_) => host::broadcast::<Self>(tensor, root, &call),
            Err(error) => failed(tensor, error, &call),
        }
    }

    fn group_all_gather(tensor: FloatTensor<Self>, call: Call) -> FloatTensor<Self> {
        match route(&tensor, &call) {
            Ok(DeviceRoute::Alone) => tensor,
            Ok(DeviceRoute::Host) => host::all_gather::<Self>(tensor, &call),
            Ok(DeviceRoute::Nccl(nccl)) => collectives::all_gather(&nccl, tensor, &call),
            Err(error) => failed(tensor, error, &call),
        }
    }

    fn group_reduce_scatter(tensor: FloatTensor<Self>, op: ReduceOp, call: Call) -> FloatTensor<Self> {
        match route(&tensor, &call) {
            Ok(DeviceRoute::Alone) => tensor,
            Ok(DeviceRoute::Host) => host::reduce_scatter::<Self>(tensor, op, &call),
            Ok(DeviceRoute::Nccl(nccl)) => collectives::reduce_scatter(&nccl, tensor, op, &call),
            Err(error) => failed(tensor, error, &call),
        }
    }

    fn group_all_to_all(tensor: FloatTensor<Self>, call: Call) -> FloatTensor<Self> {
        match route(&tensor, &call) {
            Ok(DeviceRoute::Alone) => tensor,
            Ok(DeviceRoute::Host) => host::all_to_all::<Self>(tensor, &call),
            Ok(DeviceRoute::Nccl(nccl)) => collectives::all_to_all(&nccl, tensor, &call),
            Err(error) => failed(tensor, error, &call),
        }
    }

    fn group_placement(tensor: FloatTensor<Self>, call: Call) -> Placement {
        let Some(ordinal) = cuda_ordinal(&tensor.device) else { return Placement::Host };
        match call.group.device_transport() {
            Ok(transport) => Placement::Cuda { ordinal, transport },
            Err(error) => {
                call.fail(error);
                Placement::Host
            }
        }
    }

    fn group_route(tensor: FloatTensor<Self>, call: Call) -> Route {
        match route(&tensor, &call) {
            Ok(DeviceRoute::Alone) => Route::Alone,
            Ok(DeviceRoute::Host) => Route::Host,
            Ok(DeviceRoute::Nccl(_)) => Route::Device,
            Err(error) => {
                call.fail(error);
                Route::Host
            }
        }
    }

    fn group_bucket_start(
        parts: BucketParts<Self>,
        bucket: FlatBucket,
        op: ReduceOp,
        call: AsyncCall,
    ) -> FloatTensor<Self> {
        match route(&parts.0[0], call.call()) {
            Ok(DeviceRoute::Nccl(nccl)) => bucket::start(&nccl, parts.0, &bucket, op, &call),
            Ok(DeviceRoute::Host | DeviceRoute::Alone) => {
                host::reduce_bucket::<Self>(parts.0, &bucket, op, &call)
            }
            Err(error) => {
                call.fail(error);
                let (device, dtype) = (&parts.0[0].device, parts.0[0].dtype);
                memory::empty(&parts.0[0].client, device, [bucket.len].into(), dtype)
            }
        }
    }

    fn bucket_parts(flat: FloatTensor<Self>, bucket: FlatBucket) -> Vec<FloatTensor<Self>> {
        bucket::parts(&flat, &bucket)
    }
}

/// The CUDA ordinal of a device, which is also that of its context.
fn cuda_ordinal(device: &CubeDevice) -> Option<usize> {
    matches!(device, CubeDevice::Cuda(_)).then(|| device.to_id().index_id as usize)
}

/// What carries `tensor`.
fn route(tensor: &CubeTensor, call: &Call) -> Result<DeviceRoute> {
    match cuda_ordinal(&tensor.device) {
        Some(ordinal) => call.group.device_route(ordinal),
        None => Ok(DeviceRoute::Host),
    }
}

fn failed(tensor: CubeTensor, error: crate::Error, call: &Call) -> CubeTensor {
    call.fail(error);
    tensor
}
