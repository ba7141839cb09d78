use super::{
    config::LaunchConfig,
    error::LaunchError,
    link::{Incoming, Link},
    outcome::Ending,
    protocol::{News, Order, Stop},
    report::seconds_since_epoch,
    signals::{Received, Request, Requests, Signals},
    spawn::{Ended, RankProcess},
};
use nix::sys::signal::Signal;
use std::{
    io::{self, Write},
    time::{Duration, Instant},
};

/// Time that the ranks have to notice the loss of a peer and to end by themselves before they are told to.
const SETTLE: Duration = Duration::from_millis(500);

/// Time in which a process ends after `SIGKILL` unless the system holds it.
const KILL_LIMIT: Duration = Duration::from_secs(10);

/// Looks at the ranks at least this often, should the program have put its own handler in place of ours, and at the
/// coordinator's signs of life.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// After this long of waiting for ranks that were told to end, the user is told of the wait.
const QUIET_TIME: Duration = Duration::from_secs(3);

/// What the launcher is doing to its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Nothing; they run.
    Running,
    /// A rank has failed, or left to go on later; the others are told to end at this time.
    Settling(Instant),
    /// They have been told to end.
    Stopping { kill_at: Instant },
    /// They have been killed; at this time the launcher stops waiting for those that remain.
    Killed(Instant),
}

/// The ranks of a node from their start to their end.
pub(super) struct Watch<'a> {
    ranks: &'a mut [RankProcess],
    config: &'a LaunchConfig,
    phase: Phase,
    requests: &'a mut Requests,
    /// When to tell the user of the wait for ranks that were told to end.
    say_at: Option<Instant>,
    /// What the coordinator knows of how the first ranks ended.
    told: Option<News>,
    /// How the connection with the coordinator was lost, if it was.
    lost: Option<String>,
}

impl<'a> Watch<'a> {
    pub(super) fn new(
        ranks: &'a mut [RankProcess],
        config: &'a LaunchConfig,
        requests: &'a mut Requests,
    ) -> Self {
        Self { ranks, config, phase: Phase::Running, requests, say_at: None, told: None, lost: None }
    }

    /// Watches the ranks until all have ended: tells the coordinator what happens to them, and does to them what it says.
    /// Returns how the coordinator was lost, if it was.
    pub(super) fn until_all_ended(
        mut self,
        signals: &Signals,
        link: &mut Link,
    ) -> Result<Option<String>, LaunchError> {
        loop {
            self.ranks.iter_mut().for_each(RankProcess::observe);
            self.advance(link);
            while self.lost.is_none()
                && let Some(incoming) = link.next()
            {
                self.on_order(incoming);
            }
            let all_ended = self.ranks.iter().all(|rank| rank.ended.is_some());
            // One last look, for a signal that has ended all ranks before it is read here.
            let limit = if all_ended { Duration::ZERO } else { self.time_left() };
            // A connection that is lost would end each wait at once.
            let orders = link.fd().filter(|_| self.lost.is_none());
            let received = signals.wait(limit, orders).map_err(LaunchError::system("wait for signals"))?;
            for signal in received {
                self.on_signal(signal, link);
            }
            if all_ended {
                return Ok(self.lost);
            }
        }
    }

    /// Does what time and the ranks' endings ask for.
    fn advance(&mut self, link: &mut Link) {
        self.notice(link);
        let now = Instant::now();
        match self.phase {
            Phase::Settling(until) if now >= until => {
                self.ranks.iter_mut().for_each(|rank| rank.signal(Signal::SIGTERM));
                self.stopping(self.config.grace_after_failure.unwrap_or(self.config.grace));
            }
            Phase::Stopping { kill_at } if now >= kill_at => self.kill_all(),
            Phase::Stopping { kill_at } if self.say_at.is_some_and(|at| now >= at) => {
                self.say_at = None;
                self.say_who_is_left(kill_at - now);
            }
            Phase::Killed(until) if now >= until => {
                let given_up = Ended { ending: Ending::Unkillable, at: seconds_since_epoch() };
                self.ranks.iter_mut().for_each(|rank| rank.ended = rank.ended.or(Some(given_up)));
            }
            _ => {}
        }
    }

    /// Sees whether a rank has ended in a way that ends the others.
    fn notice(&mut self, link: &mut Link) {
        if !matches!(self.phase, Phase::Running | Phase::Settling(_)) {
            return;
        }
        let (news, settle) = if self.ranks.iter().any(RankProcess::has_failed) {
            (News::Failed, SETTLE)
        } else if self.ranks.iter().any(RankProcess::has_left) {
            // The others are about to do the same, which takes as long as a checkpoint does.
            (News::Leaving, self.config.grace)
        } else {
            return;
        };
        if self.told.as_ref() != Some(&news) {
            self.settle(settle);
            link.send(news.clone());
            self.told = Some(news);
        }
    }

    /// Does what a signal to this launcher asks for.
    fn on_signal(&mut self, received: Received, link: &mut Link) {
        if !received.is_ending() {
            self.ranks.iter_mut().for_each(|rank| rank.pass_on(received.signal));
            return;
        }
        match self.requests.note(Instant::now()) {
            Request::End => {
                // Also where the ranks end already: it is the last attempt then, whatever restarts are left.
                let (signal, is_cause) = (received.signal as i32, self.is_cause(received));
                link.send(News::Signalled { signal, is_cause });
                self.stop(received);
            }
            Request::Same => {}
            Request::Kill => {
                link.send(News::Kill);
                self.kill_all();
            }
        }
    }

    /// Does what the coordinator says.
    fn on_order(&mut self, incoming: Incoming) {
        match incoming {
            Incoming::Order(Order::Stop(Stop::Signal(signal))) => {
                let signal = Signal::try_from(signal).unwrap_or(Signal::SIGTERM);
                self.stop(Received { signal, from_terminal: false });
            }
            Incoming::Order(Order::Stop(Stop::Kill)) => self.kill_all(),
            Incoming::Order(Order::Note(note)) => show(&note),
            Incoming::Order(Order::Stop(Stop::Failure) | Order::Finish(_)) => self.settle(SETTLE),
            Incoming::Order(Order::Stop(Stop::Leaving)) => self.settle(self.config.grace),
            Incoming::Order(Order::Heartbeat | Order::Start(_)) => {}
            Incoming::Lost(why) => {
                self.lost = Some(why);
                self.settle(SETTLE);
            }
        }
    }

    /// Lets the ranks notice for this long that others are gone.
    fn settle(&mut self, time: Duration) {
        let until = Instant::now() + time;
        match self.phase {
            Phase::Running => self.phase = Phase::Settling(until),
            Phase::Settling(at) => self.phase = Phase::Settling(at.min(until)),
            Phase::Stopping { .. } | Phase::Killed(_) => {}
        }
    }

    /// Whether a signal to the launcher is what ends the job. After a failure the failure stays the cause, and the signal
    /// only makes the ranks end sooner; but a terminal or a batch system may send the same signal to ranks as well, and
    /// those may be gone before the launcher hears of it.
    fn is_cause(&self, received: Received) -> bool {
        let exit_code = Ending::Signal(received.signal as i32).exit_code();
        let by_same_signal =
            |rank: &RankProcess| rank.ended.is_some_and(|ended| ended.ending.exit_code() == exit_code);
        match self.phase {
            Phase::Running => true,
            Phase::Settling(_) => self.ranks.iter().filter(|rank| rank.has_failed()).all(by_same_signal),
            Phase::Stopping { .. } | Phase::Killed(_) => false,
        }
    }

    /// Passes on a signal that the launcher, or that of another node, got, unless the ranks end already.
    fn stop(&mut self, received: Received) {
        match self.phase {
            Phase::Running | Phase::Settling(_) => {
                // A rank in the launcher's group has the terminal's signal already; a second one might mean more to it.
                let lacks_it = |rank: &&mut RankProcess| !(received.from_terminal && rank.shares_terminal());
                self.ranks.iter_mut().filter(lacks_it).for_each(|rank| rank.signal(received.signal));
                self.stopping(self.config.grace);
            }
            Phase::Stopping { .. } | Phase::Killed(_) => {}
        }
    }

    /// The ranks have been told to end, and have this long.
    fn stopping(&mut self, grace: Duration) {
        let now = Instant::now();
        self.phase = Phase::Stopping { kill_at: now + grace };
        self.say_at = Some(now + QUIET_TIME);
    }

    /// Tells the user why nothing seems to happen.
    fn say_who_is_left(&self, left: Duration) {
        let running = self.ranks.iter().filter(|rank| rank.ended.is_none()).count();
        let ranks = if running == 1 {
            "1 rank of this node has"
        } else {
            &format!("{running} ranks of this node have")
        };
        let seconds = left.as_secs_f64();
        show(&format!(
            "note: {ranks} been asked to end and not ended yet; killed in {seconds:.0} s at the latest"
        ));
    }

    fn kill_all(&mut self) {
        if !matches!(self.phase, Phase::Killed(_)) {
            self.ranks.iter_mut().for_each(|rank| rank.signal(Signal::SIGKILL));
            self.phase = Phase::Killed(Instant::now() + KILL_LIMIT);
        }
    }

    /// How long there is nothing to do unless a signal comes or a rank ends.
    fn time_left(&self) -> Duration {
        match self.phase {
            Phase::Running => LOOK_INTERVAL,
            Phase::Settling(at) | Phase::Stopping { kill_at: at } | Phase::Killed(at) => {
                at.saturating_duration_since(Instant::now()).min(LOOK_INTERVAL)
            }
        }
    }
}

/// Says something to the user on a line of its own.
pub(super) fn show(note: &str) {
    // Nobody may be reading any more.
    let _ = io::stderr().write_all(format!("{note}\n").as_bytes());
}
