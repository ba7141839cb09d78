//! Data-parallel steps of a model whose parts are on different devices.

use burn::module::{Module, Param, ParamId};
use burn::nn::{Embedding, EmbeddingConfig, Linear};
use burn::optim::GradientsParams;
use burn::tensor::activation::tanh;
use burn::tensor::{Device, Int, Tensor, TensorData};
use burn_nccl::ddp::{DdpConfig, DdpEvent, DistributedDataParallel};
use burn_nccl::{Error, ProcessGroup};

use crate::model::{optimizer, parameters};
use crate::{assert_close, on_ranks};

const WORDS: usize = 11;
const WIDTH: usize = 4;
const LENGTH: usize = 3;
const STEPS: usize = 4;
const PER_RANK: usize = 2;

/// An embedding on one device, the rest on another.
#[derive(Module, Debug)]
struct Split {
    embedding: Embedding,
    hidden: Linear,
    output: Linear,
}

impl Split {
    fn new(embedding: &Device, rest: &Device) -> Self {
        let linear = |outputs, phase| Linear { bias: None, weight: parameter([WIDTH, outputs], phase, rest) };
        Self {
            embedding: Embedding { weight: parameter([WORDS, WIDTH], 0.1, embedding) },
            hidden: linear(WIDTH, 0.2),
            output: linear(2, 0.3),
        }
    }

    fn loss(&self, words: Tensor<2, Int>) -> Tensor<1> {
        let words = words.to_device(&self.embedding.weight.device());
        let vectors = self.embedding.forward(words).to_device(&self.output.weight.device());
        self.output.forward(tanh(self.hidden.forward(vectors))).powi_scalar(2).mean()
    }
}

fn parameter(shape: [usize; 2], phase: f32, device: &Device) -> Param<Tensor<2>> {
    let values: Vec<f32> =
        (0..shape[0] * shape[1]).map(|index| (index as f32 * 0.7 + phase).sin() * 0.5).collect();
    let tensor = Tensor::from_data(TensorData::new(values, shape), device).require_grad();
    Param::initialized(ParamId::new(), tensor)
}

/// Sentences `start..end` of an endless book.
fn sentences(start: usize, end: usize) -> Tensor<2, Int> {
    let words: Vec<i64> = (start * LENGTH..end * LENGTH).map(|index| (index * 7 % WORDS) as i64).collect();
    Tensor::from_data(TensorData::new(words, [end - start, LENGTH]), &Device::flex())
}

/// The autodiff devices of two backends.
fn two() -> [Device; 2] {
    [Device::flex().autodiff(), Device::ndarray().autodiff()]
}

fn train(group: &ProcessGroup, model: Split) -> (Vec<f32>, Vec<Device>) {
    let config = DdpConfig::new().with_first_bucket_bytes(64).with_bucket_bytes(1 << 20);
    let (mut ddp, mut model) = DistributedDataParallel::new(model, group, &config).unwrap();
    let mut optimizer = optimizer();
    for step in 0..STEPS {
        let start = (step * group.world_size() + group.rank()) * PER_RANK;
        let loss = ddp.hook(&model).unwrap().loss(sentences(start, start + PER_RANK));
        let gradients = ddp.backward(&loss, &model).unwrap();
        model = optimizer.step(0.1, model, gradients);
    }
    (parameters(&model), model.devices())
}

/// What one process computes on one device with the sentences of all ranks.
fn alone(world_size: usize) -> Vec<f32> {
    let [device, _] = two();
    let (mut model, mut optimizer) = (Split::new(&device, &device), optimizer());
    let per_step = world_size * PER_RANK;
    for step in 0..STEPS {
        let loss = model.loss(sentences(step * per_step, (step + 1) * per_step));
        let gradients = GradientsParams::from_grads(loss.backward(), &model);
        model = optimizer.step(0.1, model, gradients);
    }
    parameters(&model)
}

#[test]
fn any_number_of_ranks_equals_one_process_and_every_part_stays_where_it_was() {
    let [embedding, rest] = two();
    for world_size in 1..=3 {
        let expected = alone(world_size);
        for (found, devices) in on_ranks(world_size, |group| train(&group, Split::new(&embedding, &rest))) {
            assert_close(&found, &expected, 1e-5);
            assert_eq!(devices, [embedding.clone(), rest.clone()]);
        }
    }
}

#[test]
fn ranks_may_place_their_parts_differently() {
    let [flex, ndarray] = two();
    let placements = [[&flex, &ndarray], [&ndarray, &flex], [&flex, &flex]];
    let expected = alone(placements.len());
    let found = on_ranks(placements.len(), |group| {
        let [embedding, rest] = placements[group.rank()];
        train(&group, Split::new(embedding, rest))
    });
    for (found, _) in found {
        assert_close(&found, &expected, 1e-5);
    }
}

/// The lift works across the transfer: the last layer's gradients leave before the embedding has any.
#[test]
fn the_bucket_of_one_device_is_launched_before_the_backward_pass_reaches_the_other() {
    let [embedding, rest] = two();
    let config = DdpConfig::new().with_first_bucket_bytes(1).with_bucket_bytes(1);
    let model = Split::new(&embedding, &rest);
    let (mut ddp, model) = DistributedDataParallel::new(model, &ProcessGroup::single(), &config).unwrap();
    let loss = ddp.hook(&model).unwrap().loss(sentences(0, 2));
    ddp.events().start();
    ddp.backward(&loss, &model).unwrap();
    let events = ddp.events().stop();
    let position = |event| events.iter().position(|other| *other == event).unwrap();
    // The embedding is the first parameter, in the last bucket.
    assert!(position(DdpEvent::BucketLaunched(1)) < position(DdpEvent::GradientReady(0)), "{events:?}");
}

#[test]
fn a_model_that_was_moved_after_it_was_wrapped_is_refused() {
    let [flex, ndarray] = two();
    let model = Split::new(&flex, &flex);
    let (ddp, model) =
        DistributedDataParallel::new(model, &ProcessGroup::single(), &DdpConfig::new()).unwrap();
    let error = ddp.hook(&model.fork(&ndarray)).unwrap_err();
    assert!(matches!(error, Error::ModelChanged { .. }), "{error}");
}

#[test]
fn a_frozen_part_may_be_on_a_device_without_autodiff() {
    let [flex, _] = two();
    let model = Split::new(&flex, &flex);
    let model = Split { embedding: EmbeddingConfig::new(WORDS, WIDTH).init(&Device::ndarray()), ..model };
    let (mut ddp, model) =
        DistributedDataParallel::new(model, &ProcessGroup::single(), &DdpConfig::new()).unwrap();
    let loss = ddp.hook(&model).unwrap().loss(sentences(0, 2));
    assert_eq!(ddp.backward(&loss, &model).unwrap().len(), 2);
}
