use super::{
    config::LaunchConfig,
    cores::core_count,
    environment::{Job, new_run_id},
    error::LaunchError,
    guard::Guard,
    outcome::{Outcome, RankEnd},
    output::Output,
    port::MasterPort,
    report::read_report,
    signals::Signals,
    spawn::RankProcess,
    watch::watch,
};
use nix::sys::signal::Signal;
use std::{
    fs::{self, DirBuilder},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
};

/// Starts the ranks of `config` on this machine and returns when all have ended; see the [module](super).
///
/// For that time the process's handlers of `SIGTERM`, `SIGINT`, `SIGHUP`, `SIGQUIT` and `SIGCHLD` are replaced, and no
/// other part of the program may wait for any child. The outcome is not printed: it is the caller's last line.
///
/// # Errors
/// [`LaunchError`] where the job cannot be started or watched; ranks that had started are killed before it returns.
pub fn run(config: &LaunchConfig) -> Result<Outcome, LaunchError> {
    config.validate()?;
    let signals = Signals::install()?;
    let port = MasterPort::reserve(&config.master_addr, config.master_port)?;
    let job = Job { config, port: port.number, run_id: new_run_id(), cores: core_count() };
    let error_folder = ErrorFolder::create(&job.run_id)?;
    run_ranks(&job, &error_folder.path, &signals)
}

fn run_ranks(job: &Job, error_folder: &Path, signals: &Signals) -> Result<Outcome, LaunchError> {
    let config = job.config;
    let mut ranks = Ranks { guard: Guard::start(config.nproc_per_node)?, processes: Vec::new() };
    let mut streams = Vec::new();
    for rank in 0..config.nproc_per_node {
        let (process, output) = RankProcess::start(job, rank, error_folder, &ranks.guard)?;
        ranks.processes.push(process);
        streams.extend(output);
    }
    let output = Output::start(streams, config.nproc_per_node)?;
    let interrupted = watch(&mut ranks.processes, signals, config.grace)?;
    let ended: Vec<_> = ranks.processes.iter().filter_map(end_of).collect();
    // Kills what the ranks have left behind, so that nobody holds their pipes open.
    drop(ranks);
    let tails = output.finish(config.grace);
    let ends = ended.into_iter().zip(tails).map(|(end, stderr)| RankEnd { stderr, ..end }).collect();
    let mut outcome = Outcome::judge(ends, interrupted);
    if let Outcome::Failed(failure) = &mut outcome
        && config.output_of(failure.first.rank).is_captured()
    {
        failure.log =
            config.log_dir.as_ref().map(|folder| folder.join(format!("rank-{}.log", failure.first.rank)));
    }
    Ok(outcome)
}

/// The ranks that have been started, and their guard. Its fields are dropped in this order, so that the guard is gone
/// before the first rank is reaped.
struct Ranks {
    guard: Guard,
    processes: Vec<RankProcess>,
}

impl Drop for Ranks {
    /// Kills what is left of the ranks, all at once.
    fn drop(&mut self) {
        self.processes.iter_mut().for_each(|process| process.signal(Signal::SIGKILL));
    }
}

/// What is known of a rank that has ended but for its last lines, which come when its pipes are empty.
fn end_of(process: &RankProcess) -> Option<RankEnd> {
    process.ended.map(|ended| RankEnd {
        rank: process.rank,
        pid: process.pid(),
        ending: ended.ending,
        seen_at: ended.at,
        was_signalled: process.was_signalled,
        report: read_report(&process.error_file),
        stderr: Vec::new(),
    })
}

/// A private folder for the ranks' error reports, removed with this value.
struct ErrorFolder {
    path: PathBuf,
}

impl ErrorFolder {
    fn create(run_id: &str) -> Result<Self, LaunchError> {
        let path = std::env::temp_dir().join(format!("burn-nccl-{run_id}"));
        match DirBuilder::new().mode(0o700).create(&path) {
            Ok(()) => Ok(Self { path }),
            Err(source) => Err(LaunchError::File { path, source }),
        }
    }
}

impl Drop for ErrorFolder {
    fn drop(&mut self) {
        // What cannot be removed is left to the system's own cleaning of its temporary folder.
        let _ = fs::remove_dir_all(&self.path);
    }
}
