//! What a communication hook costs the processor: the time in it for the gradients of a ResNet-50, in a group of one
//! rank, where sending costs nothing.
//!
//! ```text
//! cargo bench --workspace --bench communication
//! ```

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burn::tensor::{Device, Distribution, Tensor};
use burn_nccl::ddp::communication::{
    AllReduce, GradientBucket, HalfPrecision, HalfType, HookError, PowerSgd, PowerSgdConfig,
};
use burn_nccl::ddp::{CommunicationHook, DdpConfig, DistributedDataParallel};
use burn_nccl::group::Reserved;
use burn_nccl::{Error, ProcessGroup};
use burn_nccl_models::{Depth, ResNetConfig};

const ROUNDS: usize = 9;
const CLASSES: usize = 1000;
const BUCKET_BYTES: usize = 4 << 20;

/// A hook with a clock.
#[derive(Debug)]
struct Timed<H> {
    hook: H,
    spent: Arc<Mutex<Duration>>,
}

impl<H> Timed<H> {
    fn time<T>(&mut self, run: impl FnOnce(&mut H) -> T) -> T {
        let start = Instant::now();
        let output = run(&mut self.hook);
        *self.spent.lock().expect("nobody panicked") += start.elapsed();
        output
    }
}

impl<H: CommunicationHook> CommunicationHook for Timed<H> {
    fn name(&self) -> String {
        self.hook.name()
    }

    fn prepare(
        &mut self,
        buckets: &[burn_nccl::ddp::communication::BucketLayout],
        world_size: usize,
    ) -> Result<(), HookError> {
        self.hook.prepare(buckets, world_size)
    }

    fn collectives(&self) -> u64 {
        self.hook.collectives()
    }

    fn average(
        &mut self,
        bucket: &mut GradientBucket<'_>,
        collectives: &mut Reserved<'_>,
    ) -> Result<(), HookError> {
        self.time(|hook| hook.average(bucket, collectives))
    }

    fn finish(&mut self, buckets: &mut [GradientBucket<'_>]) -> Result<(), HookError> {
        self.time(|hook| hook.finish(buckets))
    }
}

/// The median milliseconds of a step in `hook`, the first one left out.
fn milliseconds(hook: impl CommunicationHook + 'static) -> Result<f64, Error> {
    let device = Device::flex().autodiff();
    let spent = Arc::new(Mutex::new(Duration::ZERO));
    let hook = Box::new(Timed { hook, spent: spent.clone() });
    let model = ResNetConfig::new(Depth::ResNet50, CLASSES).init(&device);
    let config = DdpConfig::new().with_bucket_bytes(BUCKET_BYTES);
    let (mut ddp, model) =
        DistributedDataParallel::with_communication_hook(model, &ProcessGroup::single(), &config, hook)?;
    let mut times = Vec::new();
    for _ in 0..=ROUNDS {
        let images = Tensor::random([2, 3, 32, 32], Distribution::Default, &device);
        let loss = ddp.hook(&model)?.forward(images).powi_scalar(2).mean();
        *spent.lock().expect("nobody panicked") = Duration::ZERO;
        drop(ddp.backward(&loss, &model)?);
        times.push(spent.lock().expect("nobody panicked").as_secs_f64() * 1e3);
    }
    times.remove(0);
    times.sort_by(f64::total_cmp);
    Ok(times[ROUNDS / 2])
}

fn main() -> Result<(), Error> {
    println!("| hook | ms a step, one core |");
    println!("|---|---|");
    println!("| all-reduce in f32 | {:.1} |", milliseconds(AllReduce)?);
    println!("| f16 | {:.1} |", milliseconds(HalfPrecision(HalfType::F16))?);
    println!("| bf16 | {:.1} |", milliseconds(HalfPrecision(HalfType::BF16))?);
    for rank in [1, 2, 4] {
        let config = PowerSgdConfig::new().with_rank(rank).with_start_step(0);
        println!("| PowerSGD, rank {rank} | {:.1} |", milliseconds(PowerSgd::new(config))?);
    }
    Ok(())
}
