use super::{
    environment::Job,
    error::LaunchError,
    error_folder::ErrorFolder,
    guard::Guard,
    link::Link,
    outcome::RankEnd,
    output::Output,
    protocol::{News, NodeEnd},
    report::{read_report, seconds_since_epoch},
    signals::{Requests, Signals},
    spawn::RankProcess,
    watch::Watch,
};
use nix::sys::signal::Signal;

/// How an attempt ended on this node.
pub(super) struct Done {
    pub(super) end: NodeEnd,
    /// How the coordinator was lost, if it was.
    pub(super) lost: Option<String>,
}

/// Starts this node's ranks and returns when all have ended.
pub(super) fn run_ranks(
    job: &Job,
    host: &str,
    signals: &Signals,
    link: &mut Link,
    requests: &mut Requests,
) -> Result<Done, LaunchError> {
    let config = job.config;
    let error_folder = ErrorFolder::create(&job.attempt.run_id, config.node_rank)?;
    let mut ranks = Ranks { guard: Guard::start(config.nproc_per_node)?, processes: Vec::new() };
    let mut streams = Vec::new();
    for local_rank in 0..config.nproc_per_node {
        let (process, output) = RankProcess::start(job, local_rank, error_folder.path(), &ranks.guard)?;
        ranks.processes.push(process);
        streams.extend(output);
    }
    let output = Output::start(streams, config.nproc_per_node)?;
    link.send(News::Started { pids: ranks.processes.iter().map(RankProcess::pid).collect() });
    let lost = Watch::new(&mut ranks.processes, config, requests).until_all_ended(signals, link)?;
    let ended: Vec<_> = ranks.processes.iter().filter_map(|process| end_of(process, job, host)).collect();
    // Kills what the ranks have left behind, so that nobody holds their pipes open.
    drop(ranks);
    let tails = output.finish(config.grace);
    let mut ends: Vec<_> =
        ended.into_iter().zip(tails).map(|(end, stderr)| RankEnd { stderr, ..end }).collect();
    RankEnd::shorten_all(&mut ends);
    Ok(Done { end: NodeEnd { ends, sent_at: seconds_since_epoch() }, lost })
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
fn end_of(process: &RankProcess, job: &Job, host: &str) -> Option<RankEnd> {
    process.ended.map(|ended| RankEnd {
        rank: job.attempt.first_rank + process.local_rank,
        local_rank: process.local_rank,
        node: job.config.node_rank,
        host: host.to_owned(),
        pid: process.pid(),
        ending: ended.ending,
        seen_at: ended.at,
        was_signalled: process.was_signalled,
        report: read_report(&process.error_file),
        stderr: Vec::new(),
        log: process.log.clone(),
    })
}
