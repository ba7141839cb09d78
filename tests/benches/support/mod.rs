//! What the benches share: starting copies of themselves as ranks, and reading rank 0's result.
// Each bench is a program of its own and uses its part of this.
#![allow(dead_code)]

use burn_nccl::launch::{LaunchConfig, Outcome, RankOutput, run};

pub(crate) type AnyError = Box<dyn std::error::Error>;

const RESULT_FILE: &str = "BURN_NCCL_BENCH_RESULT";

/// Runs this program as `ranks` ranks with one compute thread each, and returns what rank 0 reported.
pub(crate) fn run_ranks(ranks: usize) -> Result<String, AnyError> {
    run_ranks_with(ranks, &[])
}

/// As [`run_ranks`], with these variables in the environment of each.
pub(crate) fn run_ranks_with(ranks: usize, variables: &[(&str, &str)]) -> Result<String, AnyError> {
    let file = std::env::temp_dir().join(format!("burn-nccl-bench-{}", std::process::id()));
    let mut config = LaunchConfig::this_program(ranks)?;
    config.threads_per_rank = Some(1);
    config.env.push((RESULT_FILE.into(), file.clone().into()));
    config.env.extend(variables.iter().map(|(name, value)| (name.into(), value.into())));
    config.rank_zero_output = RankOutput::Inherit;
    match run(&config)? {
        Outcome::Success => {}
        other => return Err(other.to_string().into()),
    }
    let result = std::fs::read_to_string(&file)?;
    std::fs::remove_file(&file)?;
    Ok(result)
}

/// Hands rank 0's result to the parent.
pub(crate) fn report(result: &str) -> Result<(), AnyError> {
    let file = std::env::var_os(RESULT_FILE).ok_or("run this through its parent")?;
    Ok(std::fs::write(file, result)?)
}

/// The number of rounds on the command line, 5 without one.
pub(crate) fn rounds() -> usize {
    std::env::args().skip(1).find_map(|argument| argument.parse().ok()).unwrap_or(5)
}

pub(crate) fn median(values: impl IntoIterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Seconds that the threads of this process have spent on a core, in user and kernel mode.
pub(crate) fn cpu_seconds() -> f64 {
    // The first number is in nanoseconds, where `stat` counts in hundredths of a second.
    let spent = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("schedstat")).ok();
    let first = |text: String| text.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0.0 };
    tasks.flatten().filter_map(spent).filter_map(first).sum::<f64>() / 1e9
}
