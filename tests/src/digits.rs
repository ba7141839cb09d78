//! What a communication hook does to convergence: a small classifier of the bundled digits, trained by two ranks of
//! this process.

use std::time::Duration;

use burn::data::dataset::Dataset;
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::activation::relu;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_nccl::ddp::{Communication, DdpConfig, DistributedDataParallel};
use burn_nccl::{DType, Error, GroupOptions, ProcessGroup, ReduceOp};
use burn_nccl_datasets::{DistributedSampler, MemoryDataset, Sampling, Split, load_digits};

use crate::fingerprint::sha256;
use crate::model::fill;
use crate::training::{criterion, optimizer};

/// Ranks that train.
pub const RANKS: usize = 2;
const BATCH: usize = 16;
const PIXELS: usize = 64;
const HIDDEN: usize = 96;
const CLASSES: usize = 10;
const RATE: f64 = 0.05;
const TIMEOUT: Duration = Duration::from_secs(120);

/// A training of a classifier of three layers.
#[derive(Clone, Debug)]
pub struct Digits {
    /// How gradients are averaged.
    pub communication: Communication,
    /// Passes over the 1,498 training images.
    pub epochs: usize,
    /// What the weights and the order of the images are drawn from.
    pub seed: u64,
}

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Learned {
    /// Mean loss of the last epoch over both ranks.
    pub loss: f64,
    /// Correct answers on the 299 test images, in percent.
    pub accuracy: f64,
    /// The weights.
    pub sha256: String,
}

/// Three linear layers.
#[derive(Module, Debug)]
struct Classifier {
    first: Linear,
    second: Linear,
    last: Linear,
}

impl Classifier {
    fn new(seed: u64, device: &Device) -> Self {
        let layer = |inputs, outputs| LinearConfig::new(inputs, outputs).init(device);
        let first = layer(PIXELS, HIDDEN);
        fill(Self { first, second: layer(HIDDEN, HIDDEN), last: layer(HIDDEN, CLASSES) }, seed)
    }

    fn forward(&self, images: Tensor<2>) -> Tensor<2> {
        let hidden = relu(self.first.forward(images));
        self.last.forward(relu(self.second.forward(hidden)))
    }
}

impl Digits {
    /// Trains, and returns what each rank has.
    ///
    /// # Errors
    /// What the group or data-parallel training returns.
    ///
    /// # Panics
    /// If a rank does.
    pub fn train(&self) -> Result<Vec<Learned>, Error> {
        let groups = ProcessGroup::local(RANKS, GroupOptions::default().with_timeout(TIMEOUT))?;
        std::thread::scope(|scope| {
            let ranks: Vec<_> =
                groups.into_iter().map(|group| scope.spawn(move || self.train_rank(&group))).collect();
            ranks.into_iter().map(|rank| rank.join().expect("the rank does not panic")).collect()
        })
    }

    fn train_rank(&self, group: &ProcessGroup) -> Result<Learned, Error> {
        let device = Device::flex().autodiff();
        let images = load_digits(Split::Train);
        let sampler = DistributedSampler::new(images.len(), group.rank(), group.world_size(), Sampling::Pad)
            .expect("the rank is one of the group")
            .with_shuffle(self.seed);
        let config = DdpConfig::new().with_bucket_bytes(1 << 14).with_first_bucket_bytes(1 << 12);
        let config = config.with_communication(self.communication.clone());
        let (mut ddp, mut model) =
            DistributedDataParallel::new(Classifier::new(self.seed, &device), group, &config)?;
        let (criterion, mut optimizer) = (criterion(&device), optimizer());
        let mut losses = Vec::new();
        for epoch in 0..self.epochs {
            losses.clear();
            let order = sampler.indices(epoch);
            for indices in order.chunks_exact(BATCH) {
                let (inputs, labels) = batch(&images, indices, &device);
                let loss = criterion.forward(ddp.hook(&model)?.forward(inputs), labels);
                let gradients = ddp.backward(&loss, &model)?;
                model = optimizer.step(RATE, model, gradients);
                losses.extend(loss.into_data().iter::<f64>());
            }
        }
        let mut loss = losses.iter().sum::<f64>() / losses.len().max(1) as f64;
        group.all_reduce(bytemuck::bytes_of_mut(&mut loss), DType::F64, ReduceOp::Mean)?;
        Ok(Learned { loss, accuracy: accuracy(&model.valid(), &device.inner()), sha256: sha256(&model) })
    }
}

fn accuracy(model: &Classifier, device: &Device) -> f64 {
    let images = load_digits(Split::Test);
    let all: Vec<usize> = (0..images.len()).collect();
    let (inputs, labels) = batch(&images, &all, device);
    let answers = model.forward(inputs).argmax(1).into_data();
    let labels = labels.into_data();
    let correct = answers.iter::<i64>().zip(labels.iter::<i64>()).filter(|(answer, label)| answer == label);
    100.0 * correct.count() as f64 / images.len() as f64
}

fn batch(images: &MemoryDataset, indices: &[usize], device: &Device) -> (Tensor<2>, Tensor<1, Int>) {
    let mut pixels = Vec::with_capacity(indices.len() * PIXELS);
    let mut labels = Vec::with_capacity(indices.len());
    for &index in indices {
        let image = images.get(index).expect("the bundled images are in memory");
        pixels.extend(image.pixels.iter().map(|&pixel| f32::from(pixel) / 255.0));
        labels.push(image.label as i64);
    }
    let labels = TensorData::new(labels, [indices.len()]);
    let pixels = TensorData::new(pixels, [indices.len(), PIXELS]);
    (Tensor::from_data(pixels, device), Tensor::from_data(labels, device))
}
