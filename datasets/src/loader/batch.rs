//! One batch: made on any thread, then moved to the device.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor, TensorData};

use crate::{DataError, ImageDataset, Pipeline, SampleKey, Scratch};

/// Images and labels on a device.
#[derive(Clone, Debug)]
pub struct Batch {
    /// The transformed images, `[batch, channels, height, width]`.
    pub images: Tensor<4>,
    /// The class of each image, `[batch]`.
    pub labels: Tensor<1, Int>,
    /// The index of each image in the dataset.
    pub indices: Vec<usize>,
}

/// A batch in ordinary memory.
///
/// Workers stop here: a tensor made on a thread of its own would take a stream and memory pool of its
/// own on a GPU.
#[derive(Debug)]
pub(super) struct HostBatch {
    images: Vec<f32>,
    shape: [usize; 3],
    labels: Vec<i64>,
    indices: Vec<usize>,
}

impl HostBatch {
    /// Moves the values to the device; on a CPU the image buffer becomes the tensor's.
    pub(super) fn into_batch(self, device: &Device) -> Batch {
        let count = self.labels.len();
        let [channels, height, width] = self.shape;
        Batch {
            images: Tensor::from_data(TensorData::new(self.images, [count, channels, height, width]), device),
            labels: Tensor::from_data(TensorData::new(self.labels, [count]), device),
            indices: self.indices,
        }
    }
}

/// Everything that the content of an epoch's batches depends on.
pub(super) struct Epoch {
    pub(super) dataset: Arc<dyn ImageDataset>,
    pub(super) transforms: Pipeline,
    pub(super) seed: u64,
    pub(super) number: usize,
    /// This rank's images in order.
    pub(super) indices: Vec<usize>,
    pub(super) batch_size: usize,
}

impl Epoch {
    /// Loads a batch; a panic in the dataset's code becomes an error.
    ///
    /// `None` when `stopped` says so between two images.
    pub(super) fn load(
        &self,
        batch: usize,
        scratch: &mut Scratch,
        stopped: impl Fn() -> bool,
    ) -> Option<Result<HostBatch, DataError>> {
        // The scratch memory is overwritten by the next image, whatever state a panic left it in.
        catch_unwind(AssertUnwindSafe(|| self.collect(batch, scratch, stopped).transpose())).unwrap_or_else(
            |panic| Some(Err(DataError::WorkerPanic { batch, message: panic_message(panic.as_ref()) })),
        )
    }

    fn collect(
        &self,
        batch: usize,
        scratch: &mut Scratch,
        stopped: impl Fn() -> bool,
    ) -> Result<Option<HostBatch>, DataError> {
        let start = batch * self.batch_size;
        let indices = &self.indices[start..(start + self.batch_size).min(self.indices.len())];
        let (mut images, mut labels, mut shape) = (Vec::new(), Vec::with_capacity(indices.len()), None);
        for &index in indices {
            if stopped() {
                return Ok(None);
            }
            let image = self.dataset.get(index)?;
            let key = SampleKey { seed: self.seed, epoch: self.number, index };
            let found = self.transforms.apply(&image, key, scratch, &mut images)?;
            if *shape.get_or_insert(found) != found {
                let expected = shape.unwrap_or(found);
                return Err(DataError::MixedShapes { index, expected, found });
            }
            if labels.is_empty() {
                images.reserve_exact(images.len() * (indices.len() - 1));
            }
            labels.push(image.label as i64);
        }
        let shape = shape.unwrap_or_default();
        Ok(Some(HostBatch { images, shape, labels, indices: indices.to_vec() }))
    }
}

/// The text of a panic, where it has one.
fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| text.to_string());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".into())
}
