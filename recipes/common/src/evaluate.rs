//! Accuracy on the test images, exact over any number of ranks.

use burn::nn::loss::CrossEntropyLossConfig;
use burn::tensor::{Device, Int, Tensor};
use burn_nccl_datasets::Loader;
use burn_nccl_models::ResNet;

use crate::error::{RecipeError, Result};
use crate::metrics::Evaluation;
use crate::parallel::Parallel;
use crate::stop;

/// Classifies the test images of all ranks with `model`, which must be in inference mode and equal on all ranks.
///
/// Each image counts once, whatever the number of ranks: counts are summed as integers, losses in f64. None where a signal
/// has asked one of the ranks to stop.
///
/// # Errors
/// Where an image cannot be read, a rank is lost, or the device fails.
pub fn evaluate(
    model: &ResNet,
    loader: &Loader,
    device: &Device,
    parallel: &Parallel,
) -> Result<Option<Evaluation>> {
    let criterion = CrossEntropyLossConfig::new().init(device);
    let mut batches = Vec::new();
    for batch in loader.epoch(0) {
        if stop::is_requested() {
            break;
        }
        let batch = batch.map_err(|error| RecipeError::data("cannot load a test image", error))?;
        let logits = model.forward(batch.images);
        let loss = criterion.forward(logits.clone(), batch.labels.clone());
        // Read after the loop, so that a GPU does not wait for us between batches.
        batches.push((batch.indices.len(), loss, correct(logits, batch.labels)));
    }
    let (mut counts, mut loss_sum) = ([0, 0, i64::from(stop::is_requested())], [0.0f64]);
    for (examples, loss, correct) in batches {
        counts[0] += examples as i64;
        counts[1] += scalar::<i64>(correct.try_into_data())?;
        loss_sum[0] += scalar::<f64>(loss.try_into_data())? * examples as f64;
    }
    parallel.sum_i64(&mut counts)?;
    parallel.sum_f64(&mut loss_sum)?;
    let [examples, correct, stopped] = counts.map(|count| count as u64);
    let evaluation = Evaluation { examples, correct, loss: loss_sum[0] / examples.max(1) as f64 };
    Ok((stopped == 0).then_some(evaluation))
}

/// The number of rows of `logits` whose largest value is at their label.
fn correct(logits: Tensor<2>, labels: Tensor<1, Int>) -> Tensor<1, Int> {
    logits.argmax(1).squeeze_dim::<1>(1).equal(labels).int().sum()
}

/// The one value that was read from a device.
pub(crate) fn scalar<E: burn::tensor::Element>(
    data: Result<burn::tensor::TensorData, impl std::fmt::Display>,
) -> Result<E> {
    let data = data.map_err(|error| RecipeError::from_text("the device failed", &error.to_string()))?;
    let value = data.iter::<E>().next();
    value.ok_or_else(|| {
        RecipeError::failure("the device failed", "a tensor of one value came back empty", "report it")
    })
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use super::*;

    #[test]
    fn rows_count_where_the_largest_logit_is_at_the_label() {
        let device = Device::flex();
        let logits = Tensor::from_floats([[1.0, 2.0, 0.0], [3.0, 2.0, 1.0], [0.0, 0.0, 5.0]], &device);
        let labels = Tensor::from_ints([1, 1, 2], &device);
        assert_eq!(scalar::<i64>(correct(logits, labels).try_into_data()).unwrap(), 2);
    }
}
