//! The other end: a process that takes orders, and the one that starts several of them.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use burn_nccl::launch::{LaunchConfig, Outcome, RankOutput, run};
use burn_nccl::transport::TransportKind;
use burn_nccl::{DType, Environment, GroupOptions, ProcessGroup, ReduceOp};
use nix::sys::resource::{UsageWho, getrusage};

use super::{AnyError, Measured, Order, Variant};

/// The first argument of a process that starts ranks; their number and the parent's address follow.
pub(super) const LAUNCH: &str = "measure-launch";
/// The first argument of a rank; the parent's address follows.
const RANK: &str = "measure-rank";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// Plays the part that the arguments ask for; `None` where they ask for none of them.
pub(crate) fn play(arguments: &[String]) -> Option<Result<ExitCode, AnyError>> {
    match arguments {
        [part, ranks, address, ..] if part == LAUNCH => Some(launch(ranks, address)),
        [part, address, ..] if part == RANK => Some(obey(address).map(|()| ExitCode::SUCCESS)),
        _ => None,
    }
}

/// The arguments of a rank under another launcher.
pub(crate) fn rank_arguments(address: &str) -> [&str; 2] {
    [RANK, address]
}

fn launch(ranks: &str, address: &str) -> Result<ExitCode, AnyError> {
    let mut config = LaunchConfig::this_program(ranks.parse()?)?;
    config.args = [RANK, address].map(Into::into).into();
    config.threads_per_rank = Some(1);
    config.grace = Duration::from_secs(2);
    (config.rank_zero_output, config.other_output) = (RankOutput::Inherit, RankOutput::Inherit);
    match run(&config)? {
        Outcome::Success => Ok(ExitCode::SUCCESS),
        other => Err(other.to_string().into()),
    }
}

/// Takes orders until the parent closes the connection.
fn obey(address: &str) -> Result<(), AnyError> {
    let environment = Environment::read()?.ok_or("this is started by its parent")?;
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    writeln!(stream, "{}", environment.rank)?;
    let mut rank = Rank { environment, groups: BTreeMap::new() };
    for line in BufReader::new(stream.try_clone()?).lines() {
        let measured = rank.measure(line?.parse()?)?;
        writeln!(stream, "{measured}")?;
    }
    Ok(())
}

struct Rank {
    environment: Environment,
    /// Made at their first use, which is the same order on all ranks.
    groups: BTreeMap<&'static str, ProcessGroup>,
}

impl Rank {
    fn measure(&mut self, order: Order) -> Result<Measured, AnyError> {
        match order {
            Order::Triad { bytes, samples } => triad(bytes, samples),
            Order::AllReduce { variant, bytes, samples, calls } => {
                let group = self.group(variant)?;
                match variant {
                    Variant::SharedResident => {
                        all_reduce(group, group.buffer(bytes).as_mut(), samples, calls)
                    }
                    _ => all_reduce(group, &mut vec![0; bytes], samples, calls),
                }
            }
        }
    }

    fn group(&mut self, variant: Variant) -> Result<&ProcessGroup, AnyError> {
        let (key, kind) = match variant {
            Variant::SharedResident | Variant::SharedCopies => ("shm", TransportKind::SharedMemory),
            Variant::Tcp => ("tcp", TransportKind::Tcp),
            Variant::Mpi => ("mpi", TransportKind::Mpi),
            Variant::Gloo => return Err("gloo is measured in its own program".into()),
        };
        if !self.groups.contains_key(key) {
            // What a program gets that is not being debugged.
            let options = GroupOptions::default()
                .with_transport(kind)
                .with_check(false)
                .with_connect_timeout(CONNECT_TIMEOUT);
            self.groups.insert(key, ProcessGroup::connect(&self.environment, options)?);
        }
        Ok(&self.groups[key])
    }
}

fn all_reduce(
    group: &ProcessGroup,
    buffer: &mut [u8],
    samples: usize,
    calls: usize,
) -> Result<Measured, AnyError> {
    let own = (group.rank() as f32 + 1.0).to_ne_bytes();
    let fill = |buffer: &mut [u8]| {
        buffer.chunks_exact_mut(4).for_each(|element| element.copy_from_slice(&own));
    };
    fill(buffer);
    group.all_reduce(buffer, DType::F32, ReduceOp::Sum)?;
    let sum = (group.world_size() * (group.world_size() + 1) / 2) as f32;
    if buffer.chunks_exact(4).any(|element| element != sum.to_ne_bytes()) {
        return Err("the all-reduce that is measured gives a wrong sum".into());
    }
    let (mut seconds, mut cpu_seconds) = (Vec::with_capacity(samples), 0.0);
    for _ in 0..samples {
        // A training has just written what it reduces: then it lies in the caches of its own core and in no other's.
        fill(buffer);
        group.barrier()?;
        let (start, cpu) = (Instant::now(), cpu_now()?);
        for _ in 0..calls {
            group.all_reduce(buffer, DType::F32, ReduceOp::Sum)?;
        }
        seconds.push(start.elapsed().as_secs_f64() / calls as f64);
        cpu_seconds += cpu_now()? - cpu;
    }
    Ok(Measured { seconds, cpu_seconds: cpu_seconds / (samples * calls) as f64 })
}

fn triad(bytes: usize, samples: usize) -> Result<Measured, AnyError> {
    let count = bytes / size_of::<f64>();
    let (mut a, b, c) = (vec![0.0f64; count], vec![1.0f64; count], vec![2.0f64; count]);
    let mut seconds = Vec::with_capacity(samples);
    for _ in 0..samples {
        let start = Instant::now();
        let factor = std::hint::black_box(3.0);
        a.iter_mut().zip(&b).zip(&c).for_each(|((a, b), c)| *a = b + factor * c);
        std::hint::black_box(&mut a);
        seconds.push(start.elapsed().as_secs_f64());
    }
    // It never waits.
    Ok(Measured { cpu_seconds: seconds.iter().sum::<f64>() / samples as f64, seconds })
}

/// Seconds that all threads of this process have spent on a core.
fn cpu_now() -> Result<f64, AnyError> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 * 1e-6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}
