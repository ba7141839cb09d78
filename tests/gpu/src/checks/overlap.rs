//! What data parallelism costs a step, and what its overlap hides.

use std::time::Instant;

use anyhow::{Context, ensure};
use burn_nccl::ddp::DdpEvent;
use burn_nccl::{DdpConfig, ProcessGroup, StreamOrdering};
use burn_nccl_models::{ResNet, ResNetConfig};
use serde_json::json;

use crate::Options;
use crate::outcome::Ending;
use crate::training::{CLASSES, END_OF_BACKWARD, Training, median, random_batch};

/// Steps before the measurement, in which kernels are compiled and chosen.
const WARM_UP: usize = 5;

/// What a variant showed.
struct Measured {
    step_seconds: f64,
    exposed_seconds: f64,
    events: Vec<DdpEvent>,
}

pub(crate) fn run(options: &Options) -> anyhow::Result<Ending> {
    let group = options.device.group(StreamOrdering::Auto)?;
    let alone = measure(None, options)?;
    let after = measure(Some((&group, &DdpConfig::new().with_overlap(false))), options)?;
    let during = measure(Some((&group, &DdpConfig::new())), options)?;
    let (launches_after, launches_during) = (early_launches(&after.events)?, early_launches(&during.events)?);
    ensure!(
        launches_after == 0,
        "without overlap {launches_after} buckets were launched in the backward pass"
    );
    ensure!(launches_during > 0, "no bucket was launched in the backward pass");
    Ok(Ending::Passed(json!({
        "model": options.model.name(),
        "batch_size": options.batch_size,
        "step_seconds_without_ddp": alone.step_seconds,
        "step_seconds_without_overlap": after.step_seconds,
        "step_seconds": during.step_seconds,
        "exposed_seconds_without_overlap": after.exposed_seconds,
        "exposed_seconds": during.exposed_seconds,
        "buckets_launched_in_backward": launches_during,
    })))
}

fn measure(ranks: Option<(&ProcessGroup, &DdpConfig)>, options: &Options) -> anyhow::Result<Measured> {
    let batch = random_batch(options.batch_size, options.image_size, &options.device.device(0));
    let config = ResNetConfig::new(options.model, CLASSES);
    let mut training: Training<ResNet> = Training::new(|device| config.init(device), batch, ranks)?;
    let (mut seconds, mut exposed) = (Vec::new(), Vec::new());
    for step in 0..WARM_UP.min(options.steps) + options.steps {
        let start = Instant::now();
        training.step()?;
        if step >= WARM_UP.min(options.steps) {
            seconds.push(start.elapsed().as_secs_f64());
            exposed.extend(training.ddp().map(|ddp| ddp.last_exposed_seconds()));
        }
    }
    let events = training.traced_step()?;
    Ok(Measured { step_seconds: median(seconds), exposed_seconds: median(exposed), events })
}

/// How many buckets were launched before the backward pass of the first layer had run.
fn early_launches(events: &[DdpEvent]) -> anyhow::Result<usize> {
    let end = events.iter().position(|event| *event == DdpEvent::Mark(END_OF_BACKWARD.into()));
    let end = end.with_context(|| format!("the backward pass has no end: {events:?}"))?;
    Ok(events[..end].iter().filter(|event| matches!(event, DdpEvent::BucketLaunched(_))).count())
}
