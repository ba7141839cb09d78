//! Two ranks against one process on the joined batch, with synchronized batch norm.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Tensor, TensorData};
use burn_nccl::amp::{ClipGradNormConfig, ClipRanks};
use burn_nccl::launch::{LaunchConfig, RankOutput, run as launch};
use burn_nccl::{DdpConfig, DistributedDataParallel, StreamOrdering};
use serde_json::json;

use super::{Check, Role};
use crate::Options;
use crate::device::Kind;
use crate::outcome::Ending;
use crate::parameters::{collect, fill, noise, relative_difference};
use crate::ranks::{Process, arguments, device_index, two_ranks};
use crate::small_net::{Network, SmallNet};
use crate::training::{Batch, CLASSES};

/// Images of one rank.
const IMAGES: [usize; 4] = [8, 3, 16, 16];
const RANKS: usize = 2;
/// So small that there are many buckets, some of them between the collectives of norm layers.
const BUCKET_BYTES: usize = 16 << 10;
/// A part of the check's own limit.
const LIMIT: Duration = Duration::from_secs(90);
/// Steps after which all ranks must hold the same parameters.
const CLIPPED_STEPS: usize = 4;
/// So small that every step is clipped: the gradients are those of a random start.
const MAX_NORM: f64 = 0.01;
const LEARNING_RATE: f64 = 0.1;
/// How far the update of ranks may be from the joined one, relative: the rounding of TF32 on a GPU, of f32 on the CPU.
const TOLERANCE: [(Kind, f64); 2] = [(Kind::Cuda, 0.03), (Kind::Cpu, 1e-3)];
/// How far rank 0's own update must be from it at least, for the comparison to mean anything.
const CONTRAST: f64 = 0.2;

pub(crate) fn run(options: &Options) -> anyhow::Result<Ending> {
    let variables = match two_ranks(options)? {
        Ok(variables) => variables,
        Err(why) => return Ending::skipped(why),
    };
    let folder = tempfile::tempdir()?;
    let report = |role: Role| folder.path().join(role.name());
    for role in [Role::Joined, Role::Alone] {
        let mut process = Process::start(&arguments(options, Check::Parity, role, &report(role)), &[])?;
        ensure!(process.wait(LIMIT)?.success(), "the process {} failed", role.name());
    }
    by_ranks(options, &variables, folder.path(), &report(Role::Rank))?;
    let read = |role: Role| read(&report(role));
    let (ranks, joined, alone) = (read(Role::Rank)?, read(Role::Joined)?, read(Role::Alone)?);
    let (difference, contrast) = (relative_difference(&ranks, &joined), relative_difference(&alone, &joined));
    let tolerance = TOLERANCE.iter().find(|(kind, _)| *kind == options.device).map_or(0.0, |(_, most)| *most);
    let figures = json!({
        "parameters": joined.len(),
        "relative_difference": difference,
        "tolerance": tolerance,
        "relative_difference_of_rank_0_alone": contrast,
        // Which the ranks have compared before they ended without an error.
        "steps_clipped_alike": CLIPPED_STEPS,
        "shared_gpu": !variables.is_empty(),
    });
    ensure!(contrast > CONTRAST, "one rank alone gives the same update, so nothing was compared: {figures}");
    ensure!(difference < tolerance, "two ranks take another step than one process: {figures}");
    Ok(Ending::Passed(figures))
}

/// Lets two ranks take the step, started by the launcher.
fn by_ranks(
    options: &Options,
    variables: &[(String, String)],
    folder: &Path,
    report: &Path,
) -> anyhow::Result<()> {
    let mut config = LaunchConfig::this_program(RANKS)?;
    let arguments = arguments(options, Check::Parity, Role::Rank, report);
    config.args = arguments.into_iter().map(Into::into).collect();
    config.env = variables.iter().map(|(name, value)| (name.into(), value.into())).collect();
    (config.rank_zero_output, config.other_output) = (RankOutput::LogOnly, RankOutput::LogOnly);
    config.log_dir = Some(folder.join("logs"));
    config.grace = Duration::from_secs(5);
    let outcome = launch(&config)?;
    ensure!(outcome.exit_code() == 0, "{outcome}");
    Ok(())
}

/// Takes one step and writes the update of all parameters. Ranks then go on, see [`clipped_steps`].
pub(crate) fn play(role: Role, options: &Options) -> anyhow::Result<()> {
    let report = options.report.as_deref().context("a role has a report")?;
    if role == Role::Rank {
        let group = options.device.group(StreamOrdering::Auto)?;
        let device = options.device.device(device_index(options, group.local_rank())).autodiff();
        let config = DdpConfig::new().with_bucket_bytes(BUCKET_BYTES);
        let (mut ddp, model) = DistributedDataParallel::new(fill(SmallNet::new(&device)), &group, &config)?;
        let batch = batch(&[group.rank()], &device);
        let loss = loss(&ddp.hook(&model)?, batch.clone());
        let gradients = ddp.backward(&loss, &model)?;
        let update = update(model.clone(), gradients);
        clipped_steps(model, &mut ddp, &batch)?;
        return if group.rank() == 0 { write(report, &update) } else { Ok(()) };
    }
    let device = options.device.device(0).autodiff();
    let ranks: &[usize] = if role == Role::Joined { &[0, 1] } else { &[0] };
    let model = fill(SmallNet::new(&device));
    let gradients = GradientsParams::from_grads(loss(&model, batch(ranks, &device)).backward(), &model);
    write(report, &update(model, gradients))
}

/// Trains with clipping by the global norm, and sees that the parameters of all ranks are the same to the bit, by their
/// hashes.
fn clipped_steps(
    mut model: SmallNet,
    ddp: &mut DistributedDataParallel,
    batch: &Batch,
) -> anyhow::Result<()> {
    let group = ddp.group().clone();
    let (clip, mut optimizer) = (ClipGradNormConfig::new(MAX_NORM), SgdConfig::new().init());
    for step in 0..CLIPPED_STEPS {
        let loss = loss(&ddp.hook(&model)?, batch.clone());
        let gradients = ddp.backward(&loss, &model)?;
        let (gradients, norm) = clip.clip(&model, gradients, ClipRanks::Replicas(&group))?;
        ensure!(norm > MAX_NORM, "step {step} is not clipped: the norm is {norm}");
        model = optimizer.step(LEARNING_RATE, model, gradients);
    }
    let own = hash(&collect(&model)).to_be_bytes();
    let all = group.all_gather_bytes(&own)?;
    ensure!(
        all.iter().all(|hash| hash[..] == own),
        "after {CLIPPED_STEPS} clipped steps the ranks hold other parameters: their hashes are {all:02x?}"
    );
    Ok(())
}

/// Of the bits of all values.
fn hash(values: &[f32]) -> u64 {
    let mut hasher = DefaultHasher::new();
    values.iter().for_each(|value| value.to_bits().hash(&mut hasher));
    hasher.finish()
}

fn loss(model: &SmallNet, (images, labels): Batch) -> Tensor<1> {
    let criterion = CrossEntropyLossConfig::new().init(&images.device());
    criterion.forward(model.logits(images), labels)
}

/// The images of these ranks, one after the other.
fn batch(ranks: &[usize], device: &Device) -> Batch {
    let (count, rows) = (IMAGES.iter().product::<usize>(), IMAGES[0]);
    let numbers = |rank: usize| (0..count).map(move |i| noise((rank * count + i) as u64) as f32);
    let images: Vec<f32> = ranks.iter().flat_map(|rank| numbers(*rank)).collect();
    let label = |rank: usize, row: usize| ((3 * rank + row) % CLASSES) as i64;
    let labels: Vec<i64> = ranks.iter().flat_map(|rank| (0..rows).map(|row| label(*rank, row))).collect();
    let (rows, [_, channels, height, width]) = (labels.len(), IMAGES);
    let images = Tensor::from_data(TensorData::new(images, [rows, channels, height, width]), device);
    (images, Tensor::from_data(TensorData::new(labels, [rows]), device))
}

/// What a step of plain gradient descent adds to the parameters.
fn update(model: SmallNet, gradients: GradientsParams) -> Vec<f32> {
    let before = collect(&model);
    let after = collect(&SgdConfig::new().init().step(1.0, model, gradients));
    after.iter().zip(&before).map(|(after, before)| after - before).collect()
}

fn write(path: &Path, values: &[f32]) -> anyhow::Result<()> {
    let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    fs::write(path, bytes).with_context(|| format!("writing {}", path.display()))
}

fn read(path: &Path) -> anyhow::Result<Vec<f32>> {
    let bytes = fs::read(path).with_context(|| format!("reading {}", path.display()))?;
    Ok(bytes.chunks_exact(4).map(|four| f32::from_le_bytes([four[0], four[1], four[2], four[3]])).collect())
}
