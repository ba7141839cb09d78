//! The command line that all recipes share.

use std::path::PathBuf;

use burn_nccl::amp::Precision;
use burn_nccl::launch::NprocPerNode;
use burn_nccl_datasets::DataSource;
use burn_nccl_models::{Depth, NormConfig, Stem};
use clap::builder::{NonEmptyStringValueParser, OsStringValueParser, TypedValueParser};
use clap::{Args, ValueEnum};

use crate::device::DeviceChoice;
use crate::resume::ResumeChoice;
use crate::wire::Wire;

/// What every training recipe can be asked. With no option at all it trains on the bundled digits.
#[derive(Args, Clone, Debug)]
pub struct TrainOptions {
    /// Images: digits (bundled), cifar10:PATH, cifar100:PATH or folder:PATH (one folder per class)
    #[arg(long, value_name = "DATA", default_value_t)]
    pub data: DataSource,

    /// resnet18, resnet34, resnet50, resnet101 or resnet152
    #[arg(long, value_name = "MODEL", default_value_t = Depth::ResNet50)]
    pub model: Depth,

    /// Height and width of the images in pixels [default: 8 for digits, 32 for CIFAR, 224 for folders]
    #[arg(long, value_name = "N", value_parser = pixels)]
    pub image_size: Option<usize>,

    /// First layers: cifar (for images of up to about 64 pixels) or imagenet [default: by image size]
    #[arg(long, value_name = "STEM")]
    pub stem: Option<Stem>,

    /// Passes over the training images
    #[arg(long, value_name = "N", value_parser = at_least_one, default_value_t = 24)]
    pub epochs: usize,

    /// End after this many steps, even within an epoch
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub max_steps: Option<usize>,

    /// Images per step and rank
    #[arg(long, value_name = "N", value_parser = at_least_one, default_value_t = 32)]
    pub batch_size: usize,

    /// Batches per optimizer step, whose gradients are averaged: the global batch is this many times larger
    #[arg(long, value_name = "N", value_parser = at_least_one, default_value_t = 1)]
    pub accumulate: usize,

    /// Try --batch-size first and go down to what fits into memory; the global batch stays, by more --accumulate
    #[arg(long)]
    pub find_batch_size: bool,

    /// Trains two steps with this batch and ends: how --find-batch-size tries a size
    #[arg(long, hide = true, value_name = "N", value_parser = at_least_one)]
    pub probe_batch_size: Option<usize>,

    /// Learning rate for a global batch of 256 images; scaled linearly with the real one
    #[arg(long, value_name = "X", value_parser = positive, default_value_t = 0.1)]
    pub lr: f64,

    /// L2 penalty on the weights of convolutions and the classifier
    #[arg(long, value_name = "X", value_parser = not_negative, default_value_t = 5e-4)]
    pub weight_decay: f64,

    /// Share of each label that is spread over all classes
    #[arg(long, value_name = "X", value_parser = fraction, default_value_t = 0.1)]
    pub label_smoothing: f64,

    /// Epochs over which the learning rate rises; may be a fraction
    #[arg(long, value_name = "X", value_parser = not_negative, default_value_t = 2.0)]
    pub warmup_epochs: f64,

    /// auto, cpu, cuda (one GPU per rank), cuda:N, or cuda:free: the GPUs with the most free memory. auto takes the first
    /// GPU, or an idle one where others compute on the first; the CPU where there is none
    #[arg(long, value_name = "DEVICE", default_value_t)]
    pub device: DeviceChoice,

    /// Seed of the initial weights, the order of the images and their augmentation
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,

    /// Threads per rank that load images ahead; 0 loads them between the steps
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub workers: usize,

    /// File of weights to begin with: .pth, .safetensors, .bpk or a checkpoint, with PyTorch's names or Burn's. A
    /// classifier for another number of classes is left out
    #[arg(long, value_name = "FILE")]
    pub weights: Option<PathBuf>,

    /// Go on from a checkpoint, with the options of its run unless others are given: auto (the newest of --out, or of
    /// the recipe's runs; a new run where there is none), the folder of a run or of a checkpoint, or none
    #[arg(long, value_name = "DIR|auto", default_value_t, value_parser = OsStringValueParser::new().map(ResumeChoice::from))]
    pub resume: ResumeChoice,

    /// How checkpoints are kept.
    #[command(flatten)]
    pub checkpoints: CheckpointOptions,

    /// Folder for the results; it must not hold another run [default: runs/RECIPE-TIME]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,

    /// JSON file with any of these options as keys; the command line wins. A run's config.json is one
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// How the run is shown: bar, plain (lines), tui (dashboard) or none; auto: bar on a terminal, else plain
    #[arg(long, value_name = "HOW", value_enum, default_value_t, hide_possible_values = true)]
    pub progress: ProgressChoice,
}

/// When a run writes checkpoints, and which it keeps.
#[derive(Args, Clone, Debug)]
pub struct CheckpointOptions {
    /// Epochs from one checkpoint to the next; the last epoch always has one. 0: none
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub checkpoint_epochs: usize,

    /// Steps from one checkpoint to the next, within an epoch too [default: none]
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    pub checkpoint_steps: Option<usize>,

    /// Newest checkpoints to keep
    #[arg(long, value_name = "N", value_parser = at_least_one, default_value_t = 2)]
    pub keep_last: usize,

    /// Checkpoints with the best test accuracy to keep besides
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub keep_best: usize,

    /// What a checkpoint that cannot be written does: stop (the run ends with an error) or continue (a warning)
    #[arg(long, value_name = "WHAT", value_enum, default_value_t, hide_possible_values = true)]
    pub on_checkpoint_failure: CheckpointFailure,
}

/// What a checkpoint that cannot be written does to the run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum CheckpointFailure {
    /// It ends it.
    #[default]
    Stop,
    /// It is a warning.
    Continue,
}

impl CheckpointFailure {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Continue => "continue",
        }
    }
}

/// What a recipe with several ranks can be asked besides.
#[derive(Args, Clone, Debug)]
pub struct DistributedOptions {
    /// Ranks that the recipe starts on this machine; auto: one per GPU, or two on the CPU. Without effect under
    /// burnrun, torchrun, mpirun or srun, which start the ranks themselves
    #[arg(long, value_name = "N|auto", default_value = "auto", hide_default_value = true)]
    pub nproc_per_node: NprocPerNode,

    /// Batch normalisation over the images of each rank (batch) or of all ranks (sync-batch)
    #[arg(long, value_name = "NORM", value_enum, default_value_t, hide_possible_values = true)]
    pub norm: Norm,

    /// Nodes, on each of which the recipe is started with the same options but --node-rank; they need an --out that all of
    /// them see. Without effect under other launchers, like the next four
    #[arg(long, value_name = "N", value_parser = at_least_one, default_value_t = 1)]
    pub nnodes: usize,

    /// Number of this node, from 0
    #[arg(long, value_name = "R")]
    pub node_rank: Option<usize>,

    /// How often all ranks are started again after a failure; they go on from the newest checkpoint
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub max_restarts: usize,

    /// Address of node 0, where rank 0 is
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1", value_parser = NonEmptyStringValueParser::new())]
    pub master_addr: String,

    /// Port at which the nodes meet, or the ranks of one node [default: 29500 with several nodes, else a free one]
    #[arg(long, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub master_port: Option<u16>,

    /// Size of a gradient bucket in MiB [default: 4 on the CPU, 25 on GPUs]
    #[arg(long, value_name = "X", value_parser = positive)]
    pub bucket_mb: Option<f64>,

    /// How gradients travel: f32, f16, bf16 or `powersgd[:RANK[:START]]`, which sends approximations of a RANK (1) after START
    /// steps (100)
    #[arg(long, value_name = "HOW", default_value_t)]
    pub wire: Wire,

    /// Seconds after which a rank that does not answer is an error
    #[arg(long, value_name = "N", value_parser = seconds, default_value_t = 300.0)]
    pub timeout_seconds: f64,

    /// Reduce gradients after the backward pass instead of during it, for comparison
    #[arg(long)]
    pub no_overlap: bool,
}

/// What a recipe with mixed precision can be asked besides.
#[derive(Args, Clone, Debug)]
pub struct MixedPrecisionOptions {
    /// Element type of convolutions and matrix products: bf16, f16 (with loss scaling) or f32
    #[arg(long, value_name = "TYPE", default_value_t = Precision::BF16)]
    pub precision: Precision,

    /// Layers that stay in f32 all the same, by path, such as fc or layer4.*; several with commas
    #[arg(long, value_name = "PATHS", value_parser = NonEmptyStringValueParser::new())]
    pub full_precision: Option<String>,

    /// First loss scale with f16
    #[arg(long, value_name = "X", value_parser = scale, default_value_t = 65536.0)]
    pub init_scale: f32,

    /// Steps without overflow after which the loss scale doubles, with f16
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), default_value_t = 2000)]
    pub growth_interval: u32,

    /// Largest global norm of the gradient; larger ones are scaled down to it [default: no limit]
    #[arg(long, value_name = "X", value_parser = positive)]
    pub clip_grad_norm: Option<f64>,
}

/// Over which images batch normalisation takes its statistics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Norm {
    /// Those of the rank's own batch.
    #[default]
    Batch,
    /// Those of all ranks' batches.
    SyncBatch,
}

impl Norm {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Batch => "batch",
            Self::SyncBatch => "sync-batch",
        }
    }

    /// The model's name for it.
    pub fn config(self) -> NormConfig {
        match self {
            Self::Batch => NormConfig::Batch,
            Self::SyncBatch => NormConfig::SyncBatch,
        }
    }
}

/// How a run is shown on rank 0's terminal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ProgressChoice {
    /// `bar` on a terminal, `plain` elsewhere.
    #[default]
    Auto,
    /// A progress bar.
    Bar,
    /// A line now and then.
    Plain,
    /// Burn's dashboard.
    Tui,
    /// Nothing.
    None,
}

fn at_least_one(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if number > 0 => Ok(number),
        _ => Err(format!("`{text}` is no number to count with: give a whole number of at least 1")),
    }
}

/// An edge of an image; a larger one is a slip of the finger that would ask for more memory than there is.
fn pixels(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if (1..=4096).contains(&number) => Ok(number),
        _ => Err(format!("`{text}` is out of range: give a whole number from 1 to 4096")),
    }
}

fn positive(text: &str) -> Result<f64, String> {
    number(text, |number| number > 0.0, "a number above 0")
}

/// A loss scale: below 1 it would be under its floor.
fn scale(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(scale) if scale.is_finite() && scale >= 1.0 => Ok(scale),
        _ => Err(format!("`{text}` is out of range: give a number of at least 1")),
    }
}

/// A time limit; far larger ones do not fit into a [`Duration`](std::time::Duration).
fn seconds(text: &str) -> Result<f64, String> {
    number(text, |number| number > 0.0 && number <= 1e9, "a number above 0, at most 1e9")
}

fn not_negative(text: &str) -> Result<f64, String> {
    number(text, |number| number >= 0.0, "a number of at least 0")
}

fn fraction(text: &str) -> Result<f64, String> {
    number(text, |number| (0.0..1.0).contains(&number), "a number from 0 to below 1")
}

fn number(text: &str, accepts: impl Fn(f64) -> bool, expected: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(number) if number.is_finite() && accepts(number) => Ok(number),
        _ => Err(format!("`{text}` is out of range: give {expected}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_rates_are_checked_where_they_are_read() {
        assert_eq!(at_least_one("3"), Ok(3));
        assert!(at_least_one("0").is_err() && at_least_one("-1").is_err() && at_least_one("x").is_err());
        assert_eq!(positive("0.1"), Ok(0.1));
        assert!(positive("0").is_err() && positive("nan").is_err() && positive("inf").is_err());
        assert_eq!(not_negative("0"), Ok(0.0));
        assert!(fraction("1").is_err());
        assert_eq!(seconds("1e9"), Ok(1e9));
        assert!(seconds("0").is_err() && seconds("1e20").is_err());
    }
}
