use super::report::ErrorReport;
use nix::sys::signal::Signal;
use std::{cmp::Ordering, fmt, path::PathBuf};

/// Added to a signal's number to make an exit code, as shells do.
const SIGNAL_EXIT_BASE: i32 = 128;

/// How a rank's process ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ending {
    /// It ended with this exit code.
    Code(i32),
    /// This signal ended it.
    Signal(i32),
    /// It outlived `SIGKILL`, which happens in a system call that hangs.
    Unkillable,
    /// Another part of the launcher's program has taken its exit code.
    Lost,
}

impl Ending {
    /// The exit code that stands for it, 128 plus the number for a signal.
    pub fn exit_code(self) -> i32 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => SIGNAL_EXIT_BASE + signal,
            Self::Unkillable | Self::Lost => 1,
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
        }
    }
}

/// The end of one rank.
#[derive(Debug, Clone)]
pub struct RankEnd {
    /// The rank.
    pub rank: usize,
    /// Its process.
    pub pid: u32,
    /// How it ended.
    pub ending: Ending,
    /// When the launcher saw it, in seconds since 1970-01-01 UTC.
    pub seen_at: f64,
    /// Whether the launcher had sent it a signal before.
    pub was_signalled: bool,
    /// What the rank itself says about its failure.
    pub report: Option<ErrorReport>,
    /// Its last lines on stderr, where the launcher has read them.
    pub stderr: Vec<String>,
}

impl RankEnd {
    fn failed(&self) -> bool {
        self.ending != Ending::Code(0)
    }

    /// Whether the rank ended because of another rank, by its own words or because the launcher ended it.
    fn is_consequence(&self) -> bool {
        self.report.as_ref().map_or(self.was_signalled, |report| report.consequence)
    }

    /// Whether a signal ended the rank before it could say anything, as the out-of-memory killer does. The others
    /// may have reported the loss before the launcher saw it.
    fn is_silent_death(&self) -> bool {
        matches!(self.ending, Ending::Signal(_)) && self.report.is_none() && !self.was_signalled
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

/// A job that failed by itself.
#[derive(Debug, Clone)]
pub struct Failure {
    /// The rank that failed first.
    pub first: RankEnd,
    /// The other ranks that did not end with exit code 0, in the order of their failures.
    pub consequences: Vec<RankEnd>,
    /// The first rank's log file, if it has one.
    pub log: Option<PathBuf>,
}

/// How a job ended. Its text is what the user should read last: nothing for a success.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// All ranks ended with exit code 0.
    Success,
    /// A rank failed.
    Failed(Box<Failure>),
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
    pub(super) fn judge(ends: Vec<RankEnd>, interrupted: Option<Signal>) -> Self {
        if let Some(signal) = interrupted {
            let was_killed = |end: &&RankEnd| end.ending == Ending::Signal(Signal::SIGKILL as i32);
            let killed = ends.iter().filter(was_killed).map(|end| end.rank).collect();
            return Self::Interrupted { signal: signal as i32, killed };
        }
        let mut failures: Vec<_> = ends.into_iter().filter(RankEnd::failed).collect();
        failures.sort_by(RankEnd::by_cause);
        let mut failures = failures.into_iter();
        match failures.next() {
            None => Self::Success,
            Some(first) => {
                Self::Failed(Box::new(Failure { first, consequences: failures.collect(), log: None }))
            }
        }
    }

    /// What the launcher's process should end with: 0, the exit code of the rank that failed first, or 128 plus the
    /// number of a signal.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::Success => 0,
            Self::Failed(failure) => failure.first.ending.exit_code(),
            Self::Interrupted { signal, .. } => SIGNAL_EXIT_BASE + signal,
        }
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Success => Ok(()),
            Self::Failed(failure) => write!(f, "{failure}"),
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

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for end in &self.consequences {
            let by = if end.was_signalled { ", ended by the launcher" } else { "" };
            write!(
                f,
                "note: rank {} (pid {}) ended as a consequence: {}{by}",
                end.rank, end.pid, end.ending
            )?;
            match &end.report {
                Some(report) => writeln!(f, ": {}", report.message.trim_end())?,
                None => writeln!(f)?,
            }
        }
        let first = &self.first;
        writeln!(f, "error: rank {} (pid {}) failed first: {}", first.rank, first.pid, first.ending)?;
        match (&first.report, first.stderr.as_slice()) {
            (Some(report), _) => writeln!(f, "cause: {}", report.message.trim_end())?,
            (None, []) => writeln!(
                f,
                "cause: not known, the rank left no error report and nothing on stderr that the launcher reads"
            )?,
            (None, lines) => {
                writeln!(f, "cause: its last lines on stderr are")?;
                lines.iter().try_for_each(|line| writeln!(f, "  {line}"))?;
            }
        }
        writeln!(f, "help: {}", self.help())
    }
}

impl Failure {
    fn help(&self) -> String {
        let sigkill = self.first.ending == Ending::Signal(Signal::SIGKILL as i32);
        match &self.log {
            _ if sigkill => "the system kills a process like this when memory runs out (see dmesg); \
                use a smaller batch or fewer ranks"
                .to_owned(),
            Some(log) => format!("its full output is in {}", log.display()),
            None => "its full output is above; to get it alone, give the launcher a log folder".to_owned(),
        }
    }
}

/// A signal's name, or its number where it has none.
fn signal_name(signal: i32) -> String {
    Signal::try_from(signal).map_or_else(|_| format!("signal {signal}"), |signal| signal.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn end(rank: usize, ending: Ending, seen_at: f64) -> RankEnd {
        let (report, stderr) = (None, Vec::new());
        RankEnd { rank, pid: 100 + rank as u32, ending, seen_at, was_signalled: false, report, stderr }
    }

    fn reported(mut end: RankEnd, timestamp: f64, consequence: bool) -> RankEnd {
        let message = format!("message of rank {}", end.rank);
        end.report = Some(ErrorReport { message, timestamp, consequence });
        end
    }

    fn first_of(ends: Vec<RankEnd>) -> usize {
        match Outcome::judge(ends, None) {
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
        let judged = |ending| Outcome::judge(vec![end(0, ending, 0.0)], None).exit_code();
        assert_eq!(judged(Ending::Code(0)), 0);
        assert_eq!(judged(Ending::Code(7)), 7);
        assert_eq!(judged(Ending::Signal(9)), 137);
        assert_eq!(Outcome::judge(vec![end(0, Ending::Code(0), 0.0)], Some(Signal::SIGINT)).exit_code(), 130);
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
        assert_eq!(Outcome::judge(vec![other, first], None).to_string(), expected);
    }

    #[test]
    fn an_interrupted_job_names_the_ranks_that_had_to_be_killed() {
        let ends = vec![
            end(0, Ending::Signal(15), 1.0),
            end(1, Ending::Signal(9), 2.0),
            end(3, Ending::Signal(9), 2.0),
        ];
        let text = Outcome::judge(ends, Some(Signal::SIGTERM)).to_string();
        assert_eq!(text, "error: the job was ended by SIGTERM; killed after the grace: rank 1, 3\n");
    }
}
