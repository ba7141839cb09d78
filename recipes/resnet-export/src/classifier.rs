//! A network with all that stands around it: from pictures to classes.

use burn_nccl_inference::{Engine, EngineChoice, EngineOptions, load};
use serde::Serialize;

use crate::package::Package;

/// What a network says of an image, of one class.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Prediction {
    /// Number of the class.
    pub(crate) class: usize,
    /// Its name.
    pub(crate) label: String,
    /// Softmax of the logits, 0 to 1.
    pub(crate) probability: f32,
}

/// An engine with the labels of its classes; the preparation of images is [`Preprocess`](crate::package::Preprocess)'s and needs no engine.
pub(crate) struct Classifier {
    engine: Box<dyn Engine>,
    labels: Vec<String>,
    logits: Vec<f32>,
}

impl Classifier {
    /// Makes the network of a package ready.
    ///
    /// # Errors
    ///
    /// As [`load`].
    pub(crate) fn new(
        package: &Package,
        choice: EngineChoice,
        options: &EngineOptions,
    ) -> burn_nccl_inference::Result<Self> {
        let engine = load(&package.onnx, choice, options)?;
        Ok(Self { engine, labels: package.labels.clone(), logits: Vec::new() })
    }

    /// One of this engine, for tests of what stands around it.
    #[cfg(test)]
    pub(crate) fn of(engine: Box<dyn Engine>, labels: Vec<String>) -> Self {
        Self { engine, labels, logits: Vec::new() }
    }

    /// The engine's name and version.
    pub(crate) fn engine(&self) -> String {
        self.engine.name()
    }

    /// The `top` most probable classes of each of `batch` prepared images, the most probable first.
    ///
    /// # Errors
    ///
    /// As [`Engine::run`].
    pub(crate) fn classify(
        &mut self,
        batch: usize,
        images: &[f32],
        top: usize,
    ) -> burn_nccl_inference::Result<Vec<Vec<Prediction>>> {
        self.engine.run(batch, images, &mut self.logits)?;
        let rows = self.logits.chunks_exact(self.labels.len());
        Ok(rows.map(|logits| predictions(logits, &self.labels, top)).collect())
    }
}

/// The most probable classes by softmax; of equals the lower class first.
fn predictions(logits: &[f32], labels: &[String], top: usize) -> Vec<Prediction> {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exponentials: Vec<f64> = logits.iter().map(|logit| f64::from(logit - largest).exp()).collect();
    let sum: f64 = exponentials.iter().sum();
    let mut classes: Vec<usize> = (0..logits.len()).collect();
    classes.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
    let prediction = |class: usize| Prediction {
        class,
        label: labels[class].clone(),
        probability: (exponentials[class] / sum) as f32,
    };
    classes.into_iter().take(top).map(prediction).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_probable_classes_come_first_with_their_softmax() {
        let labels: Vec<String> = ["a", "b", "c", "d"].map(String::from).into();
        // exp(1), exp(3), exp(2), exp(3) over their sum.
        let found = predictions(&[1.0, 3.0, 2.0, 3.0], &labels, 3);
        let sum = 1f64.exp() + 2.0 * 3f64.exp() + 2f64.exp();
        let expected = [(1, "b", 3f64.exp() / sum), (3, "d", 3f64.exp() / sum), (2, "c", 2f64.exp() / sum)];
        assert_eq!(found.len(), 3);
        for (found, (class, label, probability)) in found.iter().zip(expected) {
            assert_eq!((found.class, found.label.as_str()), (class, label));
            assert!((f64::from(found.probability) - probability).abs() < 1e-7, "{found:?}");
        }
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let labels: Vec<String> = ["a", "b"].map(String::from).into();
        let found = predictions(&[1000.0, 999.0], &labels, 9);
        assert!((f64::from(found[0].probability) - 1.0 / (1.0 + (-1f64).exp())).abs() < 1e-6);
    }
}
