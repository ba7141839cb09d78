use super::{
    failure::Failure,
    report::{ErrorReport, MAX_TEXT_BYTES, shorten},
};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use std::{cmp::Ordering, fmt, path::PathBuf};

/// The exit code of a rank that was asked to stop, has saved what it needs to go on, and can be started again:
/// `EX_TEMPFAIL` of `sysexits.h`.
pub const STOPPED_EXIT_CODE: i32 = 75;

/// What the ranks of one message may have said together. Characters that JSON writes as six are the worst case; twice this
/// much, in messages and in lines, is then still below what a message may hold.
const MAX_TEXTS_BYTES: usize = 1 << 20;

/// Added to a signal's number to make an exit code, as shells do.
const SIGNAL_EXIT_BASE: i32 = 128;

/// How a rank's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Ending {
    /// It ended with this exit code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// It outlived `SIGKILL`, which happens in a system call that hangs.
    Unkillable,
    /// Another part of the launcher's program has taken its exit code.
    Lost,
    /// Its node's launcher, or the whole node, has disappeared.
    NodeLost,
}

impl Ending {
    /// Whether a rank that ended so has not done what it was to do, nor left to go on later.
    pub(super) fn is_failure(self) -> bool {
        !matches!(self, Self::Code(0 | STOPPED_EXIT_CODE))
    }

    /// The exit code that stands for it, 128 plus the number for a signal.
    pub fn exit_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => SIGNAL_EXIT_BASE + signal,
            Self::Unkillable | Self::Lost | Self::NodeLost => 1,
        }
    }
}

impl fmt::Display for Ending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Code(code) => write!(f, "exit code {code}"),
            Self::Signal(signal) => write!(f, "{}", signal_name(*signal)),
            Self::Unkillable => write!(f, "still there after SIGKILL"),
            Self::Lost => write!(f, "exit code unknown"),
            Self::NodeLost => write!(f, "lost with its node"),
        }
    }
}

/// The end of one rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RankEnd {
    /// The rank.
    pub rank: usize,
    /// Its number on its node.
    pub local_rank: usize,
    /// Its node.
    pub node: usize,
    /// The name of its node's host.
    pub host: String,
    /// Its process; 0 where its node was lost before it told.
    pub pid: u32,
    /// How it ended.
    pub ending: Ending,
    /// When the launcher saw it, in seconds since 1970-01-01 UTC by the clock of node 0.
    pub seen_at: f64,
    /// Whether the launcher had sent it a signal before.
    pub was_signalled: bool,
    /// What the rank itself says about its failure.
    pub report: Option<ErrorReport>,
    /// Its last lines on stderr, where the launcher has read them.
    pub stderr: Vec<String>,
    /// Its log file on its host, if it has one.
    pub log: Option<PathBuf>,
}

impl RankEnd {
    pub(super) fn failed(&self) -> bool {
        self.ending != Ending::Code(0)
    }

    /// Whether the rank ended because of another rank, by its own words or because the launcher ended it.
    fn is_consequence(&self) -> bool {
        self.report.as_ref().map_or(self.was_signalled, |report| report.consequence)
    }

    /// Whether a signal ended the rank before it could say anything, as the out-of-memory killer does. The others
    /// may have reported the loss before the launcher saw it.
    fn is_silent_death(&self) -> bool {
        let is_lost = self.ending == Ending::NodeLost;
        is_lost || matches!(self.ending, Ending::Signal(_)) && self.report.is_none() && !self.was_signalled
    }

    /// Cuts what the rank has said to `most` bytes, of its lines the first.
    fn shorten(&mut self, most: usize) {
        if let Some(report) = &mut self.report {
            shorten(&mut report.message, most);
        }
        let mut left = most;
        let fits = |line: &&mut String| {
            let fits = line.len() <= left;
            left = left.saturating_sub(line.len());
            fits
        };
        let kept = self.stderr.iter_mut().rev().take_while(fits).count();
        self.stderr.drain(..self.stderr.len() - kept);
    }

    /// Cuts what all these ranks have said together, so that it fits in a message whatever their number.
    pub(super) fn shorten_all(ends: &mut [Self]) {
        let share = (MAX_TEXTS_BYTES / ends.len().max(1)).min(MAX_TEXT_BYTES);
        ends.iter_mut().for_each(|end| end.shorten(share));
    }

    fn failed_at(&self) -> f64 {
        self.report.as_ref().map_or(self.seen_at, |report| report.timestamp)
    }

    /// Orders failures, the first cause first.
    fn by_cause(&self, other: &Self) -> Ordering {
        let key = |end: &Self| (end.is_consequence(), !end.is_silent_death());
        key(self).cmp(&key(other)).then(self.failed_at().total_cmp(&other.failed_at()))
    }
}

/// How a job ended. Its text is what the user should read last: nothing for a success.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// All ranks ended with exit code 0.
    Success,
    /// A rank failed.
    Failed(Box<Failure>),
    /// All ranks ended with [`STOPPED_EXIT_CODE`], or the first to end did and the others ended because of it: they were
    /// asked to stop and can go on later.
    Stopped {
        /// The number of the signal that the launcher passed on, where it was the launcher that asked.
        signal: Option<i32>,
    },
    /// The launcher got a signal and ended the ranks.
    Interrupted {
        /// The signal's number.
        signal: i32,
        /// The ranks that had to be killed when the grace was over.
        killed: Vec<usize>,
    },
}

impl Outcome {
    /// Judges how all ranks have ended, after the launcher was told `interrupted` or not.
    pub(super) fn judge(ends: Vec<RankEnd>, interrupted: Option<i32>, nnodes: usize) -> Self {
        let was_stopped = |end: &RankEnd| end.ending == Ending::Code(STOPPED_EXIT_CODE);
        if !ends.is_empty() && ends.iter().all(was_stopped) {
            return Self::Stopped { signal: interrupted };
        }
        if let Some(signal) = interrupted {
            let was_killed = |end: &&RankEnd| end.ending == Ending::Signal(Signal::SIGKILL as i32);
            let killed = ends.iter().filter(was_killed).map(|end| end.rank).collect();
            return Self::Interrupted { signal, killed };
        }
        let mut failures: Vec<_> = ends.into_iter().filter(RankEnd::failed).collect();
        failures.sort_by(RankEnd::by_cause);
        let mut failures = failures.into_iter();
        match failures.next() {
            None => Self::Success,
            // What came after it came of it.
            Some(first) if was_stopped(&first) => Self::Stopped { signal: None },
            Some(first) => {
                let mut consequences: Vec<_> = failures.collect();
                RankEnd::shorten_all(&mut consequences);
                let (earlier, not_restarted) = (Vec::new(), None);
                Self::Failed(Box::new(Failure { first, consequences, earlier, not_restarted, nnodes }))
            }
        }
    }

    /// What the launcher's process should end with: 0, the exit code of the rank that failed first, 128 plus the
    /// number of a signal, or [`STOPPED_EXIT_CODE`].
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Success => 0,
            Self::Failed(failure) => failure.first.ending.exit_code(),
            Self::Stopped { .. } => STOPPED_EXIT_CODE,
            Self::Interrupted { signal, .. } => SIGNAL_EXIT_BASE + signal,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => Ok(()),
            Self::Failed(failure) => write!(f, "{failure}"),
            Self::Stopped { signal } => {
                let by = signal.map(|signal| format!(" by {}", signal_name(signal))).unwrap_or_default();
                writeln!(
                    f,
                    "note: the job was stopped{by} and can be resumed: its ranks left with exit code 75"
                )
            }
            Self::Interrupted { signal, killed } => {
                write!(f, "error: the job was ended by {}", signal_name(*signal))?;
                for (index, rank) in killed.iter().enumerate() {
                    write!(f, "{} {rank}", if index == 0 { "; killed after the grace: rank" } else { "," })?;
                }
                writeln!(f)
            }
        }
    }
}

/// A signal's name, or its number where it has none.
pub(super) fn signal_name(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |signal| signal.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::super::protocol::MAX_MESSAGE_BYTES;
    use super::*;

    fn end(rank: usize, ending: Ending, seen_at: f64) -> RankEnd {
        RankEnd {
            rank,
            local_rank: rank,
            node: 0,
            host: "here".to_owned(),
            pid: 100 + rank as u32,
            ending,
            seen_at,
            was_signalled: false,
            report: None,
            stderr: Vec::new(),
            log: None,
        }
    }

    fn reported(mut end: RankEnd, timestamp: f64, consequence: bool) -> RankEnd {
        let message = format!("message of rank {}", end.rank);
        end.report = Some(ErrorReport { message, timestamp, consequence });
        end
    }

    fn first_of(ends: Vec<RankEnd>) -> usize {
        match Outcome::judge(ends, None, 1) {
            Outcome::Failed(failure) => failure.first.rank,
            other => panic!("not a failure: {other:?}"),
        }
    }

    const FAILED: Ending = Ending::Code(1);

    #[test]
    fn the_first_seen_failure_is_the_cause_when_no_rank_says_more() {
        assert_eq!(first_of(vec![end(0, FAILED, 2.0), end(1, FAILED, 1.0), end(2, Ending::Code(0), 0.5)]), 1);
    }

    #[test]
    fn the_smallest_reported_time_is_the_cause() {
        let slow = reported(end(0, FAILED, 9.0), 1.0, false);
        let fast = reported(end(1, FAILED, 3.0), 2.0, false);
        assert_eq!(first_of(vec![fast.clone(), slow.clone()]), 0);
        let ended_by_launcher = RankEnd { was_signalled: true, ..slow };
        assert_eq!(first_of(vec![fast, ended_by_launcher]), 0);
    }

    #[test]
    fn a_rank_that_died_in_silence_comes_before_those_that_report_its_loss() {
        let killed = end(2, Ending::Signal(9), 5.0);
        assert_eq!(first_of(vec![reported(end(0, FAILED, 5.1), 4.9, false), killed]), 2);
        let exited = end(2, Ending::Code(7), 5.0);
        assert_eq!(first_of(vec![reported(end(0, FAILED, 5.1), 4.9, true), exited]), 2);
    }

    #[test]
    fn a_rank_that_the_launcher_ended_is_a_consequence() {
        let ended = RankEnd { was_signalled: true, ..end(0, Ending::Signal(15), 1.0) };
        assert_eq!(first_of(vec![ended, end(1, Ending::Code(3), 2.0)]), 1);
    }

    #[test]
    fn exit_codes_are_those_of_shells() {
        let judged = |ending| Outcome::judge(vec![end(0, ending, 0.0)], None, 1).exit_code();
        assert_eq!(judged(Ending::Code(0)), 0);
        assert_eq!(judged(Ending::Code(7)), 7);
        assert_eq!(judged(Ending::Signal(9)), 137);
        let interrupted = Outcome::judge(vec![end(0, Ending::Code(0), 0.0)], Some(2), 1);
        assert_eq!(interrupted.exit_code(), 130);
    }

    #[test]
    fn the_text_of_a_failure_ends_with_its_first_cause() {
        let mut first = end(2, Ending::Code(7), 1.0);
        first.stderr = vec!["loss is NaN".to_owned()];
        let other = RankEnd { was_signalled: true, ..end(0, Ending::Signal(15), 2.0) };
        let expected = "note: rank 0 (pid 100) ended as a consequence: SIGTERM, ended by the launcher\n\
            error: rank 2 (pid 102) failed first: exit code 7\n\
            cause: its last lines on stderr are\n  loss is NaN\n\
            help: its full output is above; to get it alone, give the launcher a log folder\n";
        assert_eq!(Outcome::judge(vec![other, first], None, 1).to_string(), expected);
    }

    #[test]
    fn an_interrupted_job_names_the_ranks_that_had_to_be_killed() {
        let ends = vec![
            end(0, Ending::Signal(15), 1.0),
            end(1, Ending::Signal(9), 2.0),
            end(3, Ending::Signal(9), 2.0),
        ];
        let text = Outcome::judge(ends, Some(15), 1).to_string();
        assert_eq!(text, "error: the job was ended by SIGTERM; killed after the grace: rank 1, 3\n");
    }

    #[test]
    fn ranks_that_all_left_to_go_on_later_are_no_failure() {
        let stopped = || vec![end(0, Ending::Code(75), 1.0), end(1, Ending::Code(75), 2.0)];
        for (signal, by) in [(None, ""), (Some(15), " by SIGTERM")] {
            let outcome = Outcome::judge(stopped(), signal, 1);
            assert_eq!((&outcome, outcome.exit_code()), (&Outcome::Stopped { signal }, 75));
            assert!(
                outcome.to_string().starts_with(&format!("note: the job was stopped{by} and can be resumed"))
            );
        }
        let mut mixed = stopped();
        mixed[1].ending = Ending::Signal(9);
        assert_eq!(Outcome::judge(mixed.clone(), None, 1).exit_code(), 137);
        mixed[1].ending = FAILED;
        assert_eq!(Outcome::judge(mixed.clone(), None, 1), Outcome::Stopped { signal: None });
        mixed[1] = RankEnd { was_signalled: true, ..end(1, Ending::Signal(9), 40.0) };
        assert_eq!(Outcome::judge(mixed.clone(), None, 1), Outcome::Stopped { signal: None });
        // It was asked to stop because of the other.
        let (failed, left) =
            (end(0, FAILED, 2.0), RankEnd { was_signalled: true, ..end(1, Ending::Code(75), 1.0) });
        assert_eq!(Outcome::judge(vec![failed, left], None, 1).exit_code(), 1);
        let killed = Outcome::Interrupted { signal: 15, killed: vec![1] };
        assert_eq!(Outcome::judge(mixed, Some(15), 1), killed);
    }

    #[test]
    fn a_lost_node_comes_before_those_that_report_its_loss_and_is_named() {
        let mut lost = reported(end(2, Ending::NodeLost, 15.0), 15.0, false);
        (lost.node, lost.host, lost.pid) = (1, "there".to_owned(), 0);
        let ends = vec![reported(end(0, FAILED, 5.1), 4.9, false), lost];
        let outcome = Outcome::judge(ends, None, 2);
        let expected = "note: rank 0 (pid 100) on node 0 (here) ended as a consequence: exit code 1: message of rank 0\n\
            error: rank 2 (pid not known) on node 1 (there) failed first: lost with its node\n\
            cause: message of rank 2\n\
            help: see whether host there is up and its launcher runs; with --max-restarts the job waits for it\n";
        assert_eq!((outcome.to_string().as_str(), outcome.exit_code()), (expected, 1));
    }

    #[test]
    fn earlier_attempts_are_one_line_each() {
        let Outcome::Failed(mut failure) = Outcome::judge(vec![end(1, FAILED, 1.0)], None, 1) else {
            panic!("a failure")
        };
        failure.earlier = vec![failure.line()];
        failure.not_restarted = Some("node 1 did not come back".to_owned());
        let text = failure.to_string();
        assert!(
            text.starts_with("note: before restart 1, rank 1 (pid 101) failed first: exit code 1\n"),
            "{text}"
        );
        assert!(
            text.contains("\nnote: the ranks were not started again: node 1 did not come back\nhelp: "),
            "{text}"
        );
    }

    #[test]
    fn what_ten_thousand_ranks_say_fits_in_a_message_and_the_cause_stays_whole() {
        let talk = |rank: usize| {
            let mut end = reported(end(rank, FAILED, rank as f64), rank as f64, false);
            end.report.as_mut().expect("a report").message = "\u{1}".repeat(60_000);
            end.stderr = vec!["\u{1}".repeat(1000); 5];
            end
        };
        let outcome = Outcome::judge((0..10_000).map(talk).collect(), None, 1);
        let bytes = serde_json::to_vec(&outcome).expect("plain data").len();
        assert!(bytes < MAX_MESSAGE_BYTES, "{bytes}");
        let Outcome::Failed(failure) = outcome else { panic!("a failure") };
        assert_eq!((failure.first.stderr.len(), failure.consequences.len()), (5, 9999));
        assert_eq!(failure.first.report.map(|report| report.message.len()), Some(60_000));
    }

    #[test]
    fn an_outcome_is_the_same_after_its_journey() {
        let outcome = Outcome::judge(vec![reported(end(1, FAILED, 1.0), 0.5, false)], None, 2);
        let text = serde_json::to_string(&outcome).expect("plain data");
        assert!(text.starts_with(r#"{"outcome":"failed","first":{"rank":1,"#), "{text}");
        assert_eq!(serde_json::from_str::<Outcome>(&text).expect("an outcome"), outcome);
    }
}
