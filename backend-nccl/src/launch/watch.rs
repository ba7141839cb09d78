use super::{
    error::LaunchError,
    outcome::Ending,
    report::seconds_since_epoch,
    signals::{Received, Signals},
    spawn::{Ended, RankProcess},
};
use nix::sys::signal::Signal;
use std::time::{Duration, Instant};

/// Time that the ranks have to notice the loss of a peer and to end by themselves before they are told to.
const SETTLE: Duration = Duration::from_millis(500);

/// Time in which a process ends after `SIGKILL` unless the system holds it.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// A second signal before this has passed is the same one, sent to a process and to its group as `timeout` does.
const SECOND_SIGNAL: Duration = Duration::from_secs(1);

/// Looks at the ranks at least this often, should the program have put its own handler in place of ours.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What the launcher is doing to its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing; they run.
    Running,
    /// A rank has failed; the others are told to end at this time.
    Settling(Instant),
    /// They have been told to end.
    Stopping { since: Instant, kill_at: Instant },
    /// They have been killed; at this time the launcher stops waiting for those that remain.
    Killed(Instant),
}

/// Watches `ranks` until all have ended and returns the signal which ended the job, if one did.
pub(super) fn watch(
    ranks: &mut [RankProcess],
    signals: &Signals,
    grace: Duration,
) -> Result<Option<Signal>, LaunchError> {
    let mut phase = Phase::Running;
    let mut interrupted = None;
    loop {
        ranks.iter_mut().for_each(RankProcess::observe);
        if ranks.iter().all(|rank| rank.ended.is_some()) {
            return Ok(interrupted);
        }
        phase = advance(phase, ranks, grace);
        let received = signals.wait(time_left(phase)).map_err(LaunchError::system("wait for signals"))?;
        for signal in received {
            // After a failure the failure stays the cause, and the signal only makes the ranks end sooner.
            if phase == Phase::Running {
                interrupted = Some(signal.signal);
            }
            phase = stop(phase, ranks, signal, grace);
        }
    }
}

/// Does what time and the ranks' endings ask for.
fn advance(phase: Phase, ranks: &mut [RankProcess], grace: Duration) -> Phase {
    let now = Instant::now();
    match phase {
        Phase::Running => {
            let failed = |rank: &RankProcess| rank.ended.is_some_and(|ended| ended.ending != Ending::Code(0));
            if ranks.iter().any(failed) { Phase::Settling(now + SETTLE) } else { phase }
        }
        Phase::Settling(until) if now >= until => {
            ranks.iter_mut().for_each(|rank| rank.signal(Signal::SIGTERM));
            Phase::Stopping { since: now, kill_at: now + grace }
        }
        Phase::Stopping { kill_at, .. } if now >= kill_at => kill_all(ranks),
        Phase::Killed(until) if now >= until => {
            let given_up = Ended { ending: Ending::Unkillable, at: seconds_since_epoch() };
            ranks.iter_mut().for_each(|rank| rank.ended = rank.ended.or(Some(given_up)));
            phase
        }
        _ => phase,
    }
}

/// Passes on a signal that the launcher got.
fn stop(phase: Phase, ranks: &mut [RankProcess], received: Received, grace: Duration) -> Phase {
    let now = Instant::now();
    match phase {
        Phase::Running | Phase::Settling(_) => {
            // A rank in the launcher's group has the terminal's signal already; a second one might mean more to it.
            let lacks_it = |rank: &&mut RankProcess| !(received.from_terminal && rank.shares_terminal());
            ranks.iter_mut().filter(lacks_it).for_each(|rank| rank.signal(received.signal));
            Phase::Stopping { since: now, kill_at: now + grace }
        }
        Phase::Stopping { since, .. } if now >= since + SECOND_SIGNAL => kill_all(ranks),
        Phase::Stopping { .. } | Phase::Killed(_) => phase,
    }
}

fn kill_all(ranks: &mut [RankProcess]) -> Phase {
    ranks.iter_mut().for_each(|rank| rank.signal(Signal::SIGKILL));
    Phase::Killed(Instant::now() + KILL_LIMIT)
}

/// How long there is nothing to do unless a signal comes or a rank ends.
fn time_left(phase: Phase) -> Duration {
    match phase {
        Phase::Running => LOOK_INTERVAL,
        Phase::Settling(at) | Phase::Stopping { kill_at: at, .. } | Phase::Killed(at) => {
            at.saturating_duration_since(Instant::now()).min(LOOK_INTERVAL)
        }
    }
}
