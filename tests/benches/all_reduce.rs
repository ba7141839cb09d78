//! All-reduce (sum, f32) between two ranks, beside torch.distributed with gloo where `torchrun` is on the PATH.
//!
//! ```text
//! cargo bench -p burn-nccl-tests --bench all_reduce [-- ROUNDS]
//! ```
//!
//! Both sides run in turn, so that they see the same machine; the last line of each size is the median of the rounds'
//! ratios.

mod support;

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Instant;

use burn_nccl::{DType, Environment, ProcessGroup, ReduceOp};
use support::{AnyError, median};

const COUNTS: [usize; 5] = [256, 16_384, 262_144, 6_553_600, 25_600_000];
const REPEATS: usize = 11;
const GLOO: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/all_reduce_gloo.py");

/// Median seconds by bytes.
type Times = BTreeMap<usize, f64>;

fn main() -> Result<(), AnyError> {
    if let Some(environment) = Environment::read()? {
        return rank(&environment);
    }
    let rounds = support::rounds();
    let mut pairs: BTreeMap<usize, Vec<(f64, Option<f64>)>> = BTreeMap::new();
    for _ in 0..rounds {
        let (own, gloo) = (own()?, gloo()?);
        for (bytes, seconds) in own {
            let peer = gloo.as_ref().and_then(|gloo| gloo.get(&bytes).copied());
            pairs.entry(bytes).or_default().push((seconds, peer));
        }
    }
    for (bytes, pairs) in pairs {
        let own = median(pairs.iter().map(|pair| pair.0));
        print!("{:>9.3} MB  burn-nccl {:>8.3} ms", bytes as f64 / 1e6, own * 1e3);
        if pairs.iter().all(|pair| pair.1.is_some()) {
            let gloo = median(pairs.iter().filter_map(|pair| pair.1));
            let ratio = median(pairs.iter().filter_map(|pair| pair.1.map(|peer| peer / pair.0)));
            print!("  gloo {:>8.3} ms  gloo / burn-nccl {ratio:.2}", gloo * 1e3);
        }
        println!();
    }
    Ok(())
}

fn own() -> Result<Times, AnyError> {
    parse(&support::run_ranks(2)?)
}

fn gloo() -> Result<Option<Times>, AnyError> {
    let output = match Command::new("torchrun").args(["--standalone", "--nproc-per-node", "2", GLOO]).output()
    {
        Ok(output) => output,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            println!("skipped: gloo, because torchrun is not on the PATH");
            return Ok(None);
        }
        Err(error) => return Err(error.into()),
    };
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    parse(&String::from_utf8_lossy(&output.stdout)).map(Some)
}

fn parse(text: &str) -> Result<Times, AnyError> {
    text.lines()
        .map(|line| {
            let (bytes, seconds) = line.split_once(' ').ok_or_else(|| format!("not a result: {line}"))?;
            Ok((bytes.parse()?, seconds.trim().parse()?))
        })
        .collect()
}

fn rank(environment: &Environment) -> Result<(), AnyError> {
    let group = ProcessGroup::connect(environment, Default::default())?;
    let mut lines = String::new();
    for count in COUNTS {
        let mut values = vec![1f32; count];
        let buffer: &mut [u8] = bytemuck::cast_slice_mut(&mut values);
        for _ in 0..3 {
            group.all_reduce(buffer, DType::F32, ReduceOp::Sum)?;
        }
        let mut seconds = Vec::with_capacity(REPEATS);
        for _ in 0..REPEATS {
            group.barrier()?;
            let start = Instant::now();
            group.all_reduce(buffer, DType::F32, ReduceOp::Sum)?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        lines += &format!("{} {}\n", count * 4, median(seconds));
    }
    if group.rank() == 0 {
        support::report(&lines)?;
    }
    Ok(())
}
