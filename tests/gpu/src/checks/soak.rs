//! Memory over many steps.

use std::fs;
use std::time::Instant;

use anyhow::{Context, ensure};
use burn::tensor::Device;
use burn_nccl::devices::GpuReport;
use burn_nccl::{DdpConfig, StreamOrdering};
use serde_json::json;

use crate::Options;
use crate::outcome::Ending;
use crate::small_net::SmallNet;
use crate::training::{Training, random_batch};

const ROWS: usize = 16;
const IMAGE_SIZE: usize = 32;
const BUCKET_BYTES: usize = 16 << 10;
/// A page for the kernel, as `/proc` counts.
const PAGE_BYTES: u64 = 4096;
/// What host memory may grow by: allocators keep some of what threads have freed.
const HOST_SLACK_BYTES: u64 = 32 << 20;
/// What a GPU's memory as a whole may grow by: it has other users, if small ones.
const GPU_SLACK_BYTES: u64 = 64 << 20;

/// Memory after a step, in bytes.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// What CubeCL has reserved on the GPU; 0 on the CPU.
    reserved: u64,
    /// What tensors use of it.
    in_use: u64,
    /// What this process has in host memory.
    host: u64,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<Ending> {
    let (device, group) = (options.device.device(0), options.device.group(StreamOrdering::Auto)?);
    // Several buckets, with the collectives of the norm layers between them.
    let config = DdpConfig::new().with_bucket_bytes(BUCKET_BYTES);
    let batch = random_batch(ROWS, IMAGE_SIZE, &device);
    let mut training = Training::new(SmallNet::new, batch, Some((&group, &config)))?;
    let (mut held, start) = (Vec::with_capacity(options.soak_steps), Instant::now());
    let (part, mut gpu_used) = ((options.soak_steps / 10).max(1), Vec::new());
    for step in 1..=options.soak_steps {
        training.step()?;
        held.push(Held::now(&device)?);
        if step == part || step == options.soak_steps {
            gpu_used.extend(gpu_memory());
        }
    }
    ensure!(held.len() >= 2 * part, "a soak has two steps at least");
    let (first, last) = (Held::most(&held[..part]), Held::most(&held[held.len() - part..]));
    let figures = json!({
        "steps": options.soak_steps,
        "seconds": start.elapsed().as_secs_f64(),
        "device_reserved_bytes": [first.reserved, last.reserved],
        "device_in_use_bytes": [first.in_use, last.in_use],
        "gpu_used_bytes": gpu_used,
        "host_bytes": [first.host, last.host],
    });
    ensure!(last.reserved <= first.reserved, "memory reserved on the device grows: {figures}");
    ensure!(last.in_use <= first.in_use, "memory in use on the device grows: {figures}");
    if let [first, last] = gpu_used[..] {
        ensure!(last <= first + GPU_SLACK_BYTES, "memory of the GPU as a whole grows: {figures}");
    }
    ensure!(last.host <= first.host + HOST_SLACK_BYTES, "host memory grows: {figures}");
    Ok(Ending::Passed(figures))
}

/// What is used of the first GPU's memory, by NCCL too, as NVML says; `None` without NVML.
fn gpu_memory() -> Option<u64> {
    let report = GpuReport::read();
    let gpu = report.gpus.into_iter().find(|gpu| gpu.ordinal == Some(0))?;
    gpu.memory.map(|memory| memory.used_bytes)
}

impl Held {
    fn now(device: &Device) -> anyhow::Result<Self> {
        let usage = device.memory_pool_usage();
        let (reserved, in_use) = usage.map_or((0, 0), |usage| (usage.bytes_reserved, usage.bytes_in_use));
        let statm = fs::read_to_string("/proc/self/statm").context("reading the size of this process")?;
        let pages: u64 = statm.split(' ').nth(1).context("the second number")?.parse()?;
        Ok(Self { reserved, in_use, host: pages * PAGE_BYTES })
    }

    /// The most of each.
    fn most(held: &[Self]) -> Self {
        held.iter().fold(Self::default(), |most, held| Self {
            reserved: most.reserved.max(held.reserved),
            in_use: most.in_use.max(held.in_use),
            host: most.host.max(held.host),
        })
    }
}
