//! All-reduce (sum, f32) between two ranks on every transport of one machine.
//!
//! ```text
//! cargo bench -p burn-nccl [-- ROUNDS]
//! ```
//!
//! `recipe-bench all-reduce` measures the same beside torch.distributed, and writes JSON.

mod engine;

use std::process::ExitCode;

use engine::{AnyError, Measured, Order, Side, Variant, median, play};

const RANKS: usize = 2;
const ROUNDS: usize = 5;
const SIZES: [usize; 5] = [1_000, 64_000, 1_000_000, 26_000_000, 102_000_000];
const VARIANTS: [Variant; 3] = [Variant::SharedResident, Variant::SharedCopies, Variant::Tcp];

fn main() -> Result<ExitCode, AnyError> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(end) = play(&arguments) {
        return end;
    }
    // Cargo puts `--bench` among them.
    let rounds = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(ROUNDS);
    let mut side = Side::own("burn-nccl", RANKS)?;
    let mut seconds = vec![Vec::new(); SIZES.len() * VARIANTS.len()];
    for _ in 0..rounds {
        for (cell, (bytes, variant)) in cells().enumerate() {
            seconds[cell].push(Measured::slowest(&side.measure(Order::all_reduce(variant, bytes))?));
        }
    }
    println!("{:>9}  {:<13} {:>10}  {:>9}", "KB", "transport", "ms", "GB/s");
    for (cell, (bytes, variant)) in cells().enumerate() {
        let seconds = median(seconds[cell].iter().copied());
        // Of two ranks, the bandwidth of the bus is that of the algorithm: 2 (n - 1) / n is 1.
        let (size, bandwidth) = (bytes as f64 / 1e3, bytes as f64 / seconds / 1e9);
        println!("{size:>9}  {:<13} {:>10.4}  {bandwidth:>9.2}", variant.name(), seconds * 1e3);
    }
    Ok(ExitCode::SUCCESS)
}

fn cells() -> impl Iterator<Item = (usize, Variant)> {
    SIZES.into_iter().flat_map(|bytes| VARIANTS.map(|variant| (bytes, variant)))
}
