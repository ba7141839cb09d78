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
        phase = advance(phase, ranks, grace);
        let all_ended = ranks.iter().all(|rank| rank.ended.is_some());
        // One last look, for a signal that has ended all ranks before it is read here.
        let limit = if all_ended { Duration::ZERO } else { time_left(phase) };
        for signal in signals.wait(limit).map_err(LaunchError::system("wait for signals"))? {
            if is_cause(signal, phase, ranks) {
                interrupted = Some(signal.signal);
            }
            phase = stop(phase, ranks, signal, grace);
        }
        if all_ended {
            return Ok(interrupted);
        }
    }
}

/// Whether a signal to the launcher is what ends the job. After a failure the failure stays the cause, and the signal
/// only makes the ranks end sooner; but a terminal or a batch system may send the same signal to ranks as well, and
/// those may be gone before the launcher hears of it.
fn is_cause(received: Received, phase: Phase, ranks: &[RankProcess]) -> bool {
    let exit_code = Ending::Signal(received.signal as i32).exit_code();
    let by_same_signal =
        |rank: &RankProcess| rank.ended.is_some_and(|ended| ended.ending.exit_code() == exit_code);
    match phase {
        Phase::Running => true,
        Phase::Settling(_) => ranks.iter().filter(|rank| rank.has_failed()).all(by_same_signal),
        Phase::Stopping { .. } | Phase::Killed(_) => false,
    }
}

/// Does what time and the ranks' endings ask for.
fn advance(phase: Phase, ranks: &mut [RankProcess], grace: Duration) -> Phase {
    let now = Instant::now();
    match phase {
        Phase::Running if ranks.iter().any(RankProcess::has_failed) => Phase::Settling(now + SETTLE),
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
