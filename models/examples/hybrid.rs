//! A model whose embedding stays in host memory while its encoder runs on another device, for tables that the
//! accelerator's memory does not hold.
//!
//! ```sh
//! cargo run --release -p burn-nccl-models --example hybrid --features flex,ndarray
//! ```
//!
//! Here the two devices are two CPU backends, so that it runs anywhere; on a machine with an NVIDIA GPU the encoder's
//! would be `Device::cuda(0)`.

// burn-ndarray is deprecated as a whole since Burn 0.22 and stays supported here.
#![allow(deprecated)]

use std::error::Error;
use std::path::Path;

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::transformer::{TransformerEncoder, TransformerEncoderConfig, TransformerEncoderInput};
use burn::nn::{Embedding, EmbeddingConfig, Linear, LinearConfig};
use burn::optim::SgdConfig;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_nccl::{DdpConfig, DistributedDataParallel, ProcessGroup};
use burn_nccl_records::{LoadOptions, SaveOptions, load, save};

const WORDS: usize = 64;
const WIDTH: usize = 16;
const CLASSES: usize = 4;
const BATCH: usize = 16;
const LENGTH: usize = 6;

/// Says which class a sentence belongs to.
#[derive(Module, Debug)]
struct Classifier {
    embedding: Embedding,
    encoder: TransformerEncoder,
    output: Linear,
}

impl Classifier {
    /// Each part is made on its own device, and everything that follows leaves it there: optimizer state and gradients
    /// go where a parameter is, and so do loaded weights.
    fn new(host: &Device, accelerator: &Device) -> Self {
        Self {
            embedding: EmbeddingConfig::new(WORDS, WIDTH).init(host),
            encoder: TransformerEncoderConfig::new(WIDTH, 2 * WIDTH, 2, 1)
                .with_dropout(0.0)
                .init(accelerator),
            output: LinearConfig::new(WIDTH, CLASSES).init(accelerator),
        }
    }

    /// Logits `[batch, classes]` of sentences `[batch, length]` on the embedding's device.
    ///
    /// The transfer stands behind the lookup, where `batch x length` rows cross; before it, it would be the whole table.
    /// It is differentiable: the backward pass brings the gradient of those rows back. A GPU runs ahead of the host, which
    /// waits for it only where a value is read.
    fn forward(&self, sentences: Tensor<2, Int>) -> Tensor<2> {
        let vectors = self.embedding.forward(sentences);
        let vectors = vectors.to_device(&self.output.weight.device());
        let encoded = self.encoder.forward(TransformerEncoderInput::new(vectors));
        self.output.forward(encoded.mean_dim(1).squeeze_dim::<2>(1))
    }
}

/// Sentences on `host`, each of words of one class, and the classes on `accelerator`.
fn batch(step: usize, host: &Device, accelerator: &Device) -> (Tensor<2, Int>, Tensor<1, Int>) {
    let class = |sentence: usize| (sentence * 7 + step) % CLASSES;
    let word = |index: usize| {
        let drawn = (step * BATCH * LENGTH + index).wrapping_mul(2_654_435_761) >> 7;
        drawn % (WORDS / CLASSES) * CLASSES + class(index / LENGTH)
    };
    let words: Vec<i64> = (0..BATCH * LENGTH).map(|index| word(index) as i64).collect();
    let classes: Vec<i64> = (0..BATCH).map(|sentence| class(sentence) as i64).collect();
    (
        Tensor::from_data(TensorData::new(words, [BATCH, LENGTH]), host),
        Tensor::from_data(TensorData::new(classes, [BATCH]), accelerator),
    )
}

/// Trains for `steps` steps, alone or as one of the ranks that `burnrun` has started; returns the first and last loss.
fn train(
    model: Classifier,
    steps: usize,
    host: &Device,
    accelerator: &Device,
) -> Result<(Classifier, [f32; 2]), Box<dyn Error>> {
    let group = ProcessGroup::from_environment()?;
    let (mut ddp, mut model) = DistributedDataParallel::new(model, &group, &DdpConfig::new())?;
    let criterion = CrossEntropyLossConfig::new().init(accelerator);
    let (mut optimizer, mut losses) = (SgdConfig::new().init(), Vec::new());
    for step in 0..steps {
        let number = step * group.world_size() + group.rank();
        let (sentences, classes) = batch(number, host, accelerator);
        let loss = criterion.forward(ddp.hook(&model)?.forward(sentences), classes);
        losses.push(loss.clone().into_scalar::<f32>());
        let gradients = ddp.backward(&loss, &model)?;
        model = optimizer.step(0.1, model, gradients);
    }
    Ok((model, [losses[0], losses[steps - 1]]))
}

/// Saves `model`, and loads it into a new one with the same placement.
fn save_and_load(
    model: &Classifier,
    file: &Path,
    host: &Device,
    accelerator: &Device,
) -> Result<Classifier, Box<dyn Error>> {
    save(model, file, &SaveOptions::default().with_overwrite(true))?;
    let (loaded, _) = load(&Classifier::new(host, accelerator), file, &LoadOptions::default())?;
    Ok(loaded)
}

fn main() -> Result<(), Box<dyn Error>> {
    let [host, accelerator] = [Device::flex().autodiff(), Device::ndarray().autodiff()];
    let (model, [first, last]) = train(Classifier::new(&host, &accelerator), 100, &host, &accelerator)?;
    println!("loss {first:.3} -> {last:.3}");
    let file = std::env::temp_dir().join(format!("hybrid-{}.bpk", std::process::id()));
    let loaded = save_and_load(&model, &file, &host, &accelerator);
    std::fs::remove_file(file)?;
    let loaded = loaded?;
    let in_place = loaded.embedding.devices() == [host] && loaded.encoder.devices() == [accelerator];
    println!("saved and loaded, each part on its own device: {in_place}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_trains_saves_and_loads_with_every_part_on_its_own_device() {
        let [host, accelerator] = [Device::flex().autodiff(), Device::ndarray().autodiff()];
        let (model, [first, last]) =
            train(Classifier::new(&host, &accelerator), 60, &host, &accelerator).unwrap();
        assert!(last < 0.8 * first, "{first} -> {last}");

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("model.bpk");
        let loaded = save_and_load(&model, &file, &host, &accelerator).unwrap();
        assert_eq!(loaded.embedding.weight.device(), host);
        assert!(
            loaded.encoder.devices() == [accelerator.clone()]
                && loaded.output.devices() == [accelerator.clone()]
        );
        let sentences = || batch(0, &host, &accelerator).0;
        let logits = |model: &Classifier| model.forward(sentences()).into_data();
        logits(&loaded).assert_eq(&logits(&model), true);
    }

    #[test]
    fn the_embedding_has_the_gradient_that_it_has_when_all_is_on_one_device() {
        let [host, accelerator] = [Device::flex().autodiff(), Device::ndarray().autodiff()];
        let split = Classifier::new(&host, &accelerator);
        let gradient = |model: &Classifier, device: &Device| {
            let (sentences, classes) = batch(0, &host, device);
            let loss = CrossEntropyLossConfig::new().init(device).forward(model.forward(sentences), classes);
            model.embedding.weight.grad(&loss.backward()).unwrap().into_data()
        };
        let whole = split.clone().fork(&host);
        // Gradients are around 1e-3, and the two backends add in another order.
        let tolerance = burn::tensor::Tolerance::<f32>::rel_abs(1e-4, 1e-5);
        gradient(&split, &accelerator).assert_approx_eq(&gradient(&whole, &host), tolerance);
    }
}
