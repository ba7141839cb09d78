//! Batch normalisation: forward and backward of our fused layer against burn-nn's, on flex.
//!
//! ```text
//! cargo bench -p burn-nccl-tests --bench batch_norm [-- ROUNDS]
//! ```
//!
//! The shapes are those of a ResNet-50 on 8 images of 64x64 and on 32 digits of 8x8. Both layers run in turn in every round;
//! the result is the median of the rounds' ratios. Each thread count has its own process.

mod support;

use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

use burn::nn::BatchNormConfig;
use burn::tensor::{Device, Distribution, Tensor};
use burn_nccl::SyncBatchNormConfig;
use support::{AnyError, median};

/// `[batch, channels, height, width]`
const SHAPES: [[usize; 4]; 7] = [
    [8, 64, 32, 32],
    [8, 64, 16, 16],
    [8, 256, 16, 16],
    [8, 512, 8, 8],
    [8, 1024, 4, 4],
    [8, 2048, 2, 2],
    [32, 64, 8, 8],
];

/// How the memory lies: as a 3x3 convolution leaves it, or with the channels outermost, as a matrix product does.
const MEMORIES: [&str; 2] = ["contiguous", "channels outermost"];

/// What rayon, which flex computes with, reads.
const THREADS: &str = "RAYON_NUM_THREADS";

/// What keeps glibc from giving memory back to the system after each pass: a training step, too, finds its memory where the
/// last step left it. With glibc's defaults both sides spend most of their time in page faults.
const KEEP_MEMORY: [&str; 2] = ["MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"];

/// Long enough for the clock, short enough that both sides of a round see the same machine.
const SECONDS_OF_A_SIDE: f64 = 0.01;

fn main() -> Result<(), AnyError> {
    if std::env::var_os(THREADS).is_some() {
        measure();
        return Ok(());
    }
    println!("| threads | shape | memory | burn-nn | fused | burn-nn / fused |\n|---|---|---|---|---|---|");
    for threads in ["1", "2"] {
        let status = Command::new(std::env::current_exe()?)
            .args(std::env::args_os().skip(1))
            .env(THREADS, threads)
            .envs(KEEP_MEMORY.map(|name| (name, "4000000000")))
            .status()?;
        if !status.success() {
            return Err(format!("measuring with {threads} threads ended with {status}").into());
        }
    }
    Ok(())
}

fn measure() {
    let device = Device::flex().autodiff();
    let threads = std::env::var(THREADS).unwrap_or_default();
    for shape in SHAPES {
        let theirs = BatchNormConfig::new(shape[1]).init(&device);
        let ours = SyncBatchNormConfig::new(shape[1]).with_synchronized(false).init(&device);
        for memory in MEMORIES {
            let input = input(shape, memory, &device);
            let theirs = |input| theirs.forward(input);
            let ours = |input| ours.forward(input);
            let rounds: Vec<[f64; 2]> =
                (0..support::rounds()).map(|_| [seconds(&theirs, &input), seconds(&ours, &input)]).collect();
            println!(
                "| {threads} | {shape:?} | {memory} | {:.3} ms | {:.3} ms | {:.1} |",
                1e3 * median(rounds.iter().map(|round| round[0])),
                1e3 * median(rounds.iter().map(|round| round[1])),
                median(rounds.iter().map(|[theirs, ours]| theirs / ours)),
            );
        }
    }
}

fn input([batch, channels, height, width]: [usize; 4], memory: &str, device: &Device) -> Tensor<4> {
    let random = |shape| Tensor::<4>::random(shape, Distribution::Default, device);
    match memory {
        "contiguous" => random([batch, channels, height, width]),
        _ => random([channels, batch, height, width]).swap_dims(0, 1),
    }
}

/// Seconds of one forward and backward pass: the mean over as many as fill [`SECONDS_OF_A_SIDE`].
fn seconds(layer: &impl Fn(Tensor<4>) -> Tensor<4>, input: &Tensor<4>) -> f64 {
    let pass = || {
        let input = input.clone().require_grad();
        let gradients = layer(input.clone()).backward();
        black_box(input.grad(&gradients));
    };
    pass();
    let start = Instant::now();
    let mut passes = 0;
    while start.elapsed().as_secs_f64() < SECONDS_OF_A_SIDE {
        pass();
        passes += 1;
    }
    start.elapsed().as_secs_f64() / f64::from(passes)
}
