//! Times the all-reduce of f32 sums for sizes from 1 KB to 102 MB and prints one JSON line for each on rank 0.
//!
//! Run it under any launcher: `burnrun --nproc-per-node 2 -- target/release/examples/all_reduce`.
//! `REPEAT` sets the number of timed rounds (default 11); the median is printed.

use std::time::Instant;

use burn_nccl::{DType, ProcessGroup, ReduceOp, Result};

fn main() -> Result<()> {
    let group = ProcessGroup::from_environment()?;
    let rounds: usize = std::env::var("REPEAT").ok().and_then(|value| value.parse().ok()).unwrap_or(11);
    for count in [256, 16_384, 262_144, 6_553_600, 25_600_000] {
        let mut values = vec![1f32; count];
        let buffer: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        for _ in 0..3 {
            group.all_reduce(buffer, DType::F32, ReduceOp::Sum)?;
        }
        let mut seconds = Vec::with_capacity(rounds);
        for _ in 0..rounds {
            group.barrier()?;
            let start = Instant::now();
            group.all_reduce(buffer, DType::F32, ReduceOp::Sum)?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        seconds.sort_by(f64::total_cmp);
        let median = seconds[rounds / 2];
        if group.rank() == 0 {
            let line = serde_json::json!({
                "transport": group.transport_name(),
                "world": group.world_size(),
                "bytes": count * 4,
                "seconds": median,
                "algorithm_gb_per_s": (count * 4) as f64 / median / 1e9,
            });
            println!("{line}");
        }
    }
    Ok(())
}
