//! Data-parallel efficiency: images/s of two ranks over twice the images/s of one, one compute thread each.
//!
//! ```text
//! cargo bench -p burn-nccl-tests --bench ddp_efficiency [-- ROUNDS]
//! ```
//!
//! ResNet-50, batch 8 a rank, 64x64, flex, SGD with momentum, buckets of 4 MiB. One rank alone and two ranks run in turn, so that both
//! see the same machine; the result is the median of the rounds' ratios.
//!
//! Between them, two ranks run that never speak to each other in a step. What they lose against one alone is the machine's
//! (the cores share caches and memory), and no transport can give it back: their efficiency is the ceiling.

mod support;

use std::time::Instant;

use burn::nn::loss::CrossEntropyLossConfig;
use burn::optim::momentum::MomentumConfig;
use burn::optim::{GradientsParams, SgdConfig};
use burn::tensor::{Device, Distribution, Int, Tensor};
use burn_nccl::{DdpConfig, DistributedDataParallel, Environment, ProcessGroup};
use burn_nccl_models::{Depth, ResNetConfig};
use support::{AnyError, cpu_seconds, median};

const BATCH: usize = 8;
const SIZE: usize = 64;
/// What the recipes use on a CPU: a gradient is still in the cache when it is sent.
const BUCKET_BYTES: usize = 4 << 20;
const WARM_UP_STEPS: usize = 3;
const STEPS: usize = 9;
/// Set for ranks that run side by side without communication.
const APART: &str = "BURN_NCCL_BENCH_APART";

fn main() -> Result<(), AnyError> {
    if let Some(environment) = Environment::read()? {
        return rank(&environment);
    }
    let (mut ratios, mut ceilings) = (Vec::new(), Vec::new());
    for round in 1..=support::rounds() {
        let (alone, apart, two) = (measure(1, &[])?, measure(2, &[(APART, "1")])?, measure(2, &[])?);
        ratios.push(alone.wall / two.wall);
        ceilings.push(alone.wall / apart.wall);
        println!(
            "round {round}: step {:.1} ms alone, {:.1} ms beside another, {:.1} ms with two ranks, {:.1} ms of it waiting \
             for gradients; on a core {:.1}, {:.1} and {:.1} ms; efficiency {:.1}% of {:.1}%",
            alone.wall * 1e3,
            apart.wall * 1e3,
            two.wall * 1e3,
            two.exposed * 1e3,
            alone.cpu * 1e3,
            apart.cpu * 1e3,
            two.cpu * 1e3,
            100.0 * alone.wall / two.wall,
            100.0 * alone.wall / apart.wall
        );
    }
    let (efficiency, ceiling) = (median(ratios), median(ceilings));
    println!(
        "median efficiency {:.1}%; two ranks without communication {:.1}%; of that {:.1}%",
        100.0 * efficiency,
        100.0 * ceiling,
        100.0 * efficiency / ceiling
    );
    Ok(())
}

/// Seconds of a step on rank 0.
struct Step {
    wall: f64,
    /// Time on a core, all threads together: what a step costs where other programs disturb `wall`.
    cpu: f64,
    /// Waiting for gradients after the backward pass.
    exposed: f64,
}

/// Median seconds of a step with `ranks` ranks.
fn measure(ranks: usize, variables: &[(&str, &str)]) -> Result<Step, AnyError> {
    let text = support::run_ranks_with(ranks, variables)?;
    let mut values = text.split_whitespace().map(str::parse::<f64>);
    match (values.next(), values.next(), values.next()) {
        (Some(wall), Some(cpu), Some(exposed)) => Ok(Step { wall: wall?, cpu: cpu?, exposed: exposed? }),
        _ => Err("a rank wrote no result".into()),
    }
}

fn rank(environment: &Environment) -> Result<(), AnyError> {
    let group = ProcessGroup::connect(environment, Default::default())?;
    let device = Device::flex().autodiff();
    device.seed(7);
    let mut model = ResNetConfig::new(Depth::ResNet50, 10).init(&device);
    let config = DdpConfig::new().with_bucket_bytes(BUCKET_BYTES);
    // Alone, a step is what a program without this crate would do.
    let mut ddp = if group.world_size() > 1 && std::env::var_os(APART).is_none() {
        let (ddp, replica) = DistributedDataParallel::new(model, &group, &config)?;
        model = replica;
        Some(ddp)
    } else {
        None
    };
    let mut optimizer = SgdConfig::new().with_momentum(Some(MomentumConfig::new())).init();
    let images = Tensor::<4>::random([BATCH, 3, SIZE, SIZE], Distribution::Default, &device);
    let labels = Tensor::<1, Int>::arange(0..BATCH as i64, &device);
    let criterion = CrossEntropyLossConfig::new().init(&device);
    let (mut seconds, mut busy, mut exposed) = (Vec::new(), Vec::new(), Vec::new());
    for step in 0..WARM_UP_STEPS + STEPS {
        group.barrier()?;
        let (start, cpu) = (Instant::now(), cpu_seconds());
        let gradients = match &mut ddp {
            Some(ddp) => {
                let output = ddp.hook(&model)?.forward(images.clone());
                ddp.backward(&criterion.forward(output, labels.clone()), &model)?
            }
            None => {
                let loss = criterion.forward(model.forward(images.clone()), labels.clone());
                GradientsParams::from_grads(loss.backward(), &model)
            }
        };
        model = optimizer.step(0.01, model, gradients);
        if step >= WARM_UP_STEPS {
            seconds.push(start.elapsed().as_secs_f64());
            busy.push(cpu_seconds() - cpu);
            exposed.push(ddp.as_ref().map_or(0.0, DistributedDataParallel::last_exposed_seconds));
        }
    }
    if group.rank() == 0 {
        let result = format!("{} {} {}", median(seconds), median(busy), median(exposed));
        support::report(&result)?;
    }
    Ok(())
}
