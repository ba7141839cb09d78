//! What a run does, once every default is known.

use std::path::PathBuf;

use burn_nccl::DdpConfig;
use burn_nccl::amp::Precision;
use burn_nccl::launch::NprocPerNode;
use burn_nccl_datasets::DataSource;
use burn_nccl_models::{Depth, ResNetConfig, Stem};
use serde::{Serialize, Serializer};

use crate::device::{DeviceChoice, SelectedDevice};
use crate::options::{CheckpointFailure, DistributedOptions, MixedPrecisionOptions, Norm, TrainOptions};
use crate::wire::Wire;

/// Up to this size the CIFAR stem is the default, because the ImageNet stem leaves 1/32 of it in the last stage.
const LARGEST_CIFAR_STEM: usize = 64;

/// The settings of a run, written as `config.json`. Its keys are options, so that `--config config.json` repeats it.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct RunConfig {
    /// Where the images come from.
    #[serde(serialize_with = "as_text")]
    pub data: DataSource,
    /// Which network of the family.
    #[serde(serialize_with = "as_text")]
    pub model: Depth,
    /// Height and width of the images in pixels.
    pub image_size: usize,
    /// The first layers.
    #[serde(serialize_with = "as_text")]
    pub stem: Stem,
    /// Passes over the training images.
    pub epochs: usize,
    /// Steps after which the run ends, even within an epoch.
    pub max_steps: Option<usize>,
    /// Images per step and rank.
    pub batch_size: usize,
    /// Batches per optimizer step.
    pub accumulate: usize,
    /// Learning rate for a global batch of 256 images.
    pub lr: f64,
    /// L2 penalty on the weights of convolutions and the classifier.
    pub weight_decay: f64,
    /// Share of each label that is spread over all classes.
    pub label_smoothing: f64,
    /// Epochs over which the learning rate rises.
    pub warmup_epochs: f64,
    /// The device as it was asked for.
    #[serde(serialize_with = "as_text")]
    pub device: DeviceChoice,
    /// Seed of everything random.
    pub seed: u64,
    /// Threads per rank that load images ahead.
    pub workers: usize,
    /// The weights that training begins with.
    pub weights: Option<PathBuf>,
    /// When checkpoints are written, and which are kept.
    #[serde(flatten)]
    pub checkpoints: CheckpointPlan,
    /// The settings of data-parallel training, where there are ranks.
    #[serde(flatten)]
    pub distributed: Option<DistributedConfig>,
    /// The settings of mixed precision, where the recipe has it.
    #[serde(flatten)]
    pub mixed_precision: Option<MixedPrecisionConfig>,
}

/// The part of [`RunConfig`] about checkpoints.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct CheckpointPlan {
    /// Epochs from one checkpoint to the next.
    pub checkpoint_epochs: usize,
    /// Steps from one checkpoint to the next.
    pub checkpoint_steps: Option<usize>,
    /// Newest checkpoints to keep.
    pub keep_last: usize,
    /// Best checkpoints to keep.
    pub keep_best: usize,
    /// What a checkpoint that cannot be written does to the run.
    #[serde(serialize_with = "failure_name")]
    pub on_checkpoint_failure: CheckpointFailure,
}

/// The part of [`RunConfig`] that only a recipe with ranks has.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct DistributedConfig {
    /// Ranks on this machine, once they are known.
    pub nproc_per_node: Option<usize>,
    /// Over which images batch normalisation takes its statistics.
    #[serde(serialize_with = "norm_name")]
    pub norm: Norm,
    /// Size of a gradient bucket in MiB.
    pub bucket_mb: Option<f64>,
    /// How gradients travel.
    #[serde(serialize_with = "as_text")]
    pub wire: Wire,
    /// Seconds after which a rank that does not answer is an error.
    pub timeout_seconds: f64,
    /// Whether gradients are reduced after the backward pass.
    pub no_overlap: bool,
}

/// The part of [`RunConfig`] that only a recipe with mixed precision has.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct MixedPrecisionConfig {
    /// Element type of convolutions and matrix products.
    #[serde(serialize_with = "as_text")]
    pub precision: Precision,
    /// Paths of layers that stay in f32, separated by commas.
    pub full_precision: Option<String>,
    /// First loss scale with f16.
    pub init_scale: f32,
    /// Steps without overflow after which the loss scale doubles.
    pub growth_interval: u32,
    /// Largest global norm of the gradient.
    pub clip_grad_norm: Option<f64>,
}

/// All options of a job, as far as the recipe has them.
#[derive(Clone, Copy, Debug)]
pub struct JobOptions<'a> {
    /// What every recipe has.
    pub train: &'a TrainOptions,
    /// What a recipe with ranks has.
    pub distributed: Option<&'a DistributedOptions>,
    /// What a recipe with mixed precision has.
    pub mixed_precision: Option<&'a MixedPrecisionOptions>,
}

impl RunConfig {
    /// The keys of `config.json` that a resumed run takes from its checkpoint. A checkpoint may come from anywhere, so it
    /// must not set where things are written or who is listened to.
    pub(crate) const KEYS: [&str; 32] = [
        "data",
        "model",
        "image-size",
        "stem",
        "epochs",
        "max-steps",
        "batch-size",
        "accumulate",
        "lr",
        "weight-decay",
        "label-smoothing",
        "warmup-epochs",
        "device",
        "seed",
        "workers",
        "weights",
        "checkpoint-epochs",
        "checkpoint-steps",
        "keep-last",
        "keep-best",
        "on-checkpoint-failure",
        "nproc-per-node",
        "norm",
        "bucket-mb",
        "wire",
        "timeout-seconds",
        "no-overlap",
        "precision",
        "full-precision",
        "init-scale",
        "growth-interval",
        "clip-grad-norm",
    ];

    /// Fills in the defaults that depend on other options.
    pub fn new(job: JobOptions<'_>) -> Self {
        let options = job.train;
        let image_size = options.image_size.unwrap_or_else(|| native_size(&options.data));
        let stem = options.stem.unwrap_or(match image_size {
            ..=LARGEST_CIFAR_STEM => Stem::Cifar,
            _ => Stem::ImageNet,
        });
        Self {
            data: options.data.clone(),
            model: options.model,
            image_size,
            stem,
            epochs: options.epochs,
            max_steps: options.max_steps,
            batch_size: options.batch_size,
            accumulate: options.accumulate,
            lr: options.lr,
            weight_decay: options.weight_decay,
            label_smoothing: options.label_smoothing,
            warmup_epochs: options.warmup_epochs,
            device: options.device,
            seed: options.seed,
            workers: options.workers,
            weights: options.weights.clone(),
            checkpoints: CheckpointPlan {
                checkpoint_epochs: options.checkpoints.checkpoint_epochs,
                checkpoint_steps: options.checkpoints.checkpoint_steps,
                keep_last: options.checkpoints.keep_last,
                keep_best: options.checkpoints.keep_best,
                on_checkpoint_failure: options.checkpoints.on_checkpoint_failure,
            },
            distributed: job.distributed.map(|options| DistributedConfig {
                nproc_per_node: match options.nproc_per_node {
                    NprocPerNode::Auto => None,
                    NprocPerNode::Count(count) => Some(count.get()),
                },
                norm: options.norm,
                bucket_mb: options.bucket_mb,
                wire: options.wire,
                timeout_seconds: options.timeout_seconds,
                no_overlap: options.no_overlap,
            }),
            mixed_precision: job.mixed_precision.map(|options| MixedPrecisionConfig {
                precision: options.precision,
                full_precision: options.full_precision.clone(),
                init_scale: options.init_scale,
                growth_interval: options.growth_interval,
                clip_grad_norm: options.clip_grad_norm,
            }),
        }
    }

    /// Takes a batch that divides the present one, and accumulates as many more.
    pub fn shrink_batch(&mut self, batch_size: usize) {
        self.accumulate *= self.batch_size / batch_size;
        self.batch_size = batch_size;
    }

    /// Images of all ranks in one optimizer step.
    pub fn global_batch_size(&self, world_size: usize) -> usize {
        self.batch_size * self.accumulate * world_size
    }

    /// Over which images batch normalisation takes its statistics.
    pub fn norm(&self) -> Norm {
        self.distributed.as_ref().map_or(Norm::Batch, |distributed| distributed.norm)
    }

    /// The network for data with this many classes.
    pub fn model(&self, num_classes: usize) -> ResNetConfig {
        ResNetConfig::new(self.model, num_classes)
            .with_stem(self.stem)
            .with_norm(self.norm().config())
            .with_zero_init_residual(true)
    }
}

/// The bucket, wire and overlap settings in the library's terms.
///
/// On a CPU buckets are small by default, so that a gradient is still in the cache when it is sent; a GPU's network
/// wants large ones.
pub fn ddp_config(options: &DistributedOptions, device: &SelectedDevice) -> DdpConfig {
    let bucket_mb = options.bucket_mb.unwrap_or(if device.backend == "cuda" { 25.0 } else { 4.0 });
    DdpConfig::new()
        .with_bucket_bytes((bucket_mb * f64::from(1 << 20)) as usize)
        .with_communication(options.wire.communication())
        .with_overlap(!options.no_overlap)
}

/// The size that a source's images are trained at unless another is asked for.
fn native_size(data: &DataSource) -> usize {
    match data {
        DataSource::Digits => 8,
        DataSource::Cifar(..) => 32,
        DataSource::Folder(_) => 224,
    }
}

fn norm_name<S: Serializer>(norm: &Norm, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(norm.name())
}

fn failure_name<S: Serializer>(failure: &CheckpointFailure, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(failure.name())
}

fn as_text<S: Serializer>(value: &impl ToString, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&value.to_string())
}

#[cfg(test)]
pub(crate) mod tests {
    use burn::tensor::Device;

    use std::ffi::OsString;

    use clap::Parser;

    use super::*;
    use crate::command_line::parse;

    #[derive(Parser, Debug)]
    struct Options {
        #[command(flatten)]
        train: TrainOptions,
        #[command(flatten)]
        distributed: DistributedOptions,
        #[command(flatten)]
        mixed_precision: MixedPrecisionOptions,
    }

    pub(crate) fn config(args: &[&str]) -> RunConfig {
        let args = std::iter::once("recipe").chain(args.iter().copied()).map(OsString::from);
        let options = parse::<Options>(args).unwrap();
        RunConfig::new(JobOptions {
            train: &options.train,
            distributed: Some(&options.distributed),
            mixed_precision: Some(&options.mixed_precision),
        })
    }

    #[test]
    fn size_and_stem_follow_the_data_unless_they_are_given() {
        let size_and_stem = |args: &[&str]| {
            let config = config(args);
            (config.image_size, config.stem.name())
        };
        assert_eq!(size_and_stem(&[]), (8, "cifar"));
        assert_eq!(size_and_stem(&["--data", "cifar10:x"]), (32, "cifar"));
        assert_eq!(size_and_stem(&["--data", "folder:x"]), (224, "imagenet"));
        assert_eq!(size_and_stem(&["--data", "folder:x", "--image-size", "64"]), (64, "cifar"));
        assert_eq!(size_and_stem(&["--stem", "imagenet"]), (8, "imagenet"));
    }

    #[test]
    fn the_saved_configuration_repeats_the_run() {
        let given = [
            "--data=cifar100:/a b",
            "--device=cuda:free",
            "--max-steps=5",
            "--wire=powersgd:2",
            "--no-overlap",
            "--lr=0.3",
            "--accumulate=3",
            "--norm=sync-batch",
            "--precision=f16",
            "--full-precision=fc,layer4.*",
            "--init-scale=1024",
            "--clip-grad-norm=0.5",
            "--weights=a b.pth",
            "--checkpoint-steps=7",
            "--on-checkpoint-failure=continue",
        ];
        let first = serde_json::to_string(&config(&given)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("config.json");
        std::fs::write(&file, &first).unwrap();
        let again = config(&["--config", file.to_str().unwrap()]);
        assert_eq!(serde_json::to_string(&again).unwrap(), first);
        assert!(first.contains(r#""data":"cifar100:/a b""#), "{first}");
        assert!(first.contains(r#""wire":"powersgd:2:100""#), "{first}");
        assert!(first.contains(r#""device":"cuda:free""#), "{first}");
    }

    #[test]
    fn the_keys_of_a_checkpoint_are_those_that_are_written() {
        let written = serde_json::to_value(config(&[])).unwrap();
        let mut written: Vec<&String> = written.as_object().unwrap().keys().collect();
        let mut keys = RunConfig::KEYS;
        written.sort();
        keys.sort();
        assert_eq!(written, keys);
    }

    #[test]
    fn buckets_are_small_on_a_cpu_and_pytorchs_on_a_gpu_unless_their_size_is_given() {
        let bytes = |backend: &'static str, given: &[&str]| {
            let args = std::iter::once("recipe").chain(given.iter().copied()).map(OsString::from);
            let device =
                SelectedDevice { device: Device::default(), backend, name: String::new(), gpu: None };
            ddp_config(&parse::<Options>(args).unwrap().distributed, &device).bucket_bytes
        };
        assert_eq!(bytes("flex", &[]), 4 << 20);
        assert_eq!(bytes("cuda", &[]), 26_214_400);
        assert_eq!(bytes("flex", &["--bucket-mb", "0.5"]), 1 << 19);
    }
}
