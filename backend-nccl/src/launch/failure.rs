use super::outcome::{Ending, RankEnd};
use nix::sys::signal::Signal;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The exit code of a rank that was started with wrong options. Starting it again would not make them right.
const USAGE_EXIT_CODE: i32 = 2;

/// A job that failed by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// The rank that failed first.
    pub first: RankEnd,
    /// The other ranks that did not end with exit code 0, in the order of their failures.
    pub consequences: Vec<RankEnd>,
    /// What ended each attempt before the last one, one line each.
    pub earlier: Vec<String>,
    /// Why the ranks were not started once more although a restart was left, where that is so.
    pub not_restarted: Option<String>,
    /// The number of nodes of the job.
    pub nnodes: usize,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (restart, line) in self.earlier.iter().enumerate() {
            writeln!(f, "note: before restart {}, {line}", restart + 1)?;
        }
        for end in &self.consequences {
            let by = if end.was_signalled { ", ended by the launcher" } else { "" };
            write!(f, "note: {} ended as a consequence: {}{by}", self.name(end), end.ending)?;
            match &end.report {
                Some(report) => writeln!(f, ": {}", report.message.trim_end())?,
                None => writeln!(f)?,
            }
        }
        let first = &self.first;
        writeln!(f, "error: {}", self.line())?;
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
        if let Some(why) = &self.not_restarted {
            writeln!(f, "note: the ranks were not started again: {why}")?;
        }
        writeln!(f, "help: {}", self.help())
    }
}

impl Failure {
    /// Which rank failed first and how, in one line.
    pub(super) fn line(&self) -> String {
        format!("{} failed first: {}", self.name(&self.first), self.first.ending)
    }

    /// What the first rank says of its failure, in the rest of a line that says how it ended.
    pub(super) fn cause(&self) -> String {
        let said = match &self.first.report {
            Some(report) => report.message.lines().next(),
            None => self.first.stderr.last().map(String::as_str),
        };
        said.map(|said| format!(": {}", said.trim_end())).unwrap_or_default()
    }

    /// Why starting the ranks once more would be of no use, where that is so.
    pub(super) fn hopeless(&self) -> Option<String> {
        (self.first.ending == Ending::Code(USAGE_EXIT_CODE))
            .then(|| "exit code 2 says that the options are wrong".to_owned())
    }

    fn name(&self, end: &RankEnd) -> String {
        let process = match end.pid {
            0 => "pid not known".to_owned(),
            pid => format!("pid {pid}"),
        };
        let place =
            if self.nnodes > 1 { format!(" on node {} ({})", end.node, end.host) } else { String::new() };
        format!("rank {} ({process}){place}", end.rank)
    }

    fn help(&self) -> String {
        let first = &self.first;
        let sigkill = first.ending == Ending::Signal(Signal::SIGKILL as i32);
        match &first.log {
            _ if first.ending == Ending::NodeLost => format!(
                "see whether host {} is up and its launcher runs; with --max-restarts the job waits for it",
                first.host
            ),
            _ if sigkill => "the system kills a process like this when memory runs out (see dmesg); \
                use a smaller batch or fewer ranks"
                .to_owned(),
            Some(log) if self.nnodes > 1 => {
                format!("its full output is in {} on {}", log.display(), first.host)
            }
            Some(log) => format!("its full output is in {}", log.display()),
            None => "its full output is above; to get it alone, give the launcher a log folder".to_owned(),
        }
    }
}
