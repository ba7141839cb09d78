//! The flight record: what a rank's operations looked like when its group failed, as JSON.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{failure::Failure, transport::Signature};

/// The version of the JSON; it grows when a field changes its meaning or goes.
pub const FLIGHT_RECORD_VERSION: u32 = 1;

/// The last thousand operations of a group on one rank, and how the ranks stood when it failed.
///
/// Written as `flight-<group>-rank-<rank>.json` to the folder that `BURN_NCCL_FLIGHT_RECORD` names, once, when the group
/// fails; [`ProcessGroup::flight_record`](super::ProcessGroup::flight_record) gives it at any time. To find a rank that
/// went astray, compare the files of all ranks: the first `sequence` whose `signature` differs, or the rank whose last
/// `done` is the lowest. All times are seconds since 1970 on the clock of the rank; durations are in seconds.
///
/// Source: PyTorch's flight recorder and `torchfrtrace`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlightRecord {
    /// [`FLIGHT_RECORD_VERSION`].
    pub version: u32,
    /// The name of the group: `world`, or what a split made of it.
    pub group: String,
    /// The rank in the group that writes.
    pub rank: usize,
    /// The number of ranks of the group.
    pub world_size: usize,
    /// What carried the operations: `tcp`, `shm`, ...
    pub transport: String,
    /// The name of the machine.
    pub host: String,
    /// The number of the process.
    pub process_id: u32,
    /// When it was written.
    pub written_at: f64,
    /// What ended the group, if it has ended.
    pub failure: Option<RecordedFailure>,
    /// How all ranks stood, in rank order; empty unless they were asked, which a missed deadline does.
    pub ranks: Vec<RankStatus>,
    /// How many operations there were; those before the last thousand are not kept.
    pub total_operations: u64,
    /// The operations that are kept, oldest first.
    pub operations: Vec<Operation>,
}

/// What ended a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedFailure {
    /// As the program's error says it.
    pub text: String,
    /// The same as data.
    pub cause: Failure,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// Sequence number, kind, element type, reduction, root and bytes: what must be equal on all ranks.
    #[serde(flatten)]
    pub signature: Signature,
    /// The rank that a message goes to.
    pub to: Option<usize>,
    /// The rank that a message comes from.
    pub from: Option<usize>,
    /// How far it came.
    pub state: State,
    /// `file:line:column` of the program that called it.
    pub called_at: String,
    /// What it was for, where the program did not ask for it by itself: `bucket 3 of 7`.
    pub purpose: Option<String>,
    /// When it took its place in the order.
    pub enqueued_at: f64,
    /// When it had its turn.
    pub started_at: Option<f64>,
    /// When it ended.
    pub ended_at: Option<f64>,
    /// How long it waited for its turn, until now if it still does.
    pub queued_seconds: f64,
    /// How long it ran, until now if it still does.
    pub run_seconds: Option<f64>,
}

/// How far an operation came.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It waits for its turn.
    Queued,
    /// It runs.
    Running,
    /// It ended well.
    Done,
    /// It ended in an error.
    Failed,
}

/// How one rank stood when the ranks were asked.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RankStatus {
    /// The rank in the group.
    pub rank: usize,
    /// What it said; `None` if it did not answer within a second: it is stopped, or its host cannot be reached.
    pub answer: Option<Answer>,
}

/// What a rank says about itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// The last operation that ended well.
    pub finished: Option<Operation>,
    /// How long ago that was, in seconds.
    pub finished_seconds_ago: Option<f64>,
    /// The operation that it is in, the oldest of several.
    pub pending: Option<Operation>,
    /// The newest, where it is in several, as on a GPU.
    #[serde(default)]
    pub newest: Option<Operation>,
    /// How many operations wait behind it.
    pub queued: u64,
}

impl FlightRecord {
    /// The name of its file.
    pub fn file_name(&self) -> String {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
        let group: String = self.group.chars().map(|c| if is_plain(c) { c } else { '_' }).collect();
        format!("flight-{group}-rank-{}.json", self.rank)
    }

    /// As JSON, indented.
    pub fn to_json(&self) -> String {
        // Numbers, strings and lists only: there is nothing that JSON could refuse.
        serde_json::to_string_pretty(self).unwrap_or_default()
    }
}

impl Operation {
    /// Where it was called and for what.
    pub(crate) fn site(&self) -> String {
        match &self.purpose {
            Some(purpose) => format!("{} for {purpose}", self.called_at),
            None => self.called_at.clone(),
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} called at {}", self.signature, self.site())
    }
}

impl fmt::Display for RankStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}: ", self.rank)?;
        match &self.answer {
            Some(answer) => answer.fmt(f),
            None => f.write_str("no answer: stopped, or its host is unreachable"),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.pending {
            Some(pending) => {
                let seconds = pending.run_seconds.unwrap_or_default();
                write!(f, "in {pending} for {seconds:.1} s")?;
                if let Some(newest) = &self.newest {
                    write!(f, " and others up to {newest}")?;
                }
            }
            None => f.write_str("no collective pending")?,
        }
        if self.queued > 0 {
            write!(f, ", {} queued", self.queued)?;
        }
        match (&self.finished, self.finished_seconds_ago) {
            (Some(finished), Some(ago)) => write!(f, "; last finished {finished}, {ago:.1} s ago"),
            _ => f.write_str("; none finished yet"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{DType, OpKind, ReduceOp};

    fn operation(sequence: u64, purpose: Option<&str>) -> Operation {
        let op = Some(ReduceOp::Sum);
        Operation {
            signature: Signature {
                sequence,
                kind: OpKind::AllReduce,
                dtype: DType::F32,
                op,
                root: 0,
                bytes: 400,
            },
            to: None,
            from: None,
            state: State::Done,
            called_at: "src/train.rs:41:20".into(),
            purpose: purpose.map(Into::into),
            enqueued_at: 1.0,
            started_at: Some(1.0),
            ended_at: Some(2.0),
            queued_seconds: 0.0,
            run_seconds: Some(1.0),
        }
    }

    #[test]
    fn a_line_for_each_rank_says_what_it_is_in_or_that_it_is_silent() {
        let silent = RankStatus { rank: 2, answer: None };
        assert_eq!(silent.to_string(), "rank 2: no answer: stopped, or its host is unreachable");
        let mut answer = Answer {
            finished: Some(operation(41, None)),
            finished_seconds_ago: Some(12.04),
            pending: None,
            newest: None,
            queued: 0,
        };
        assert_eq!(
            answer.to_string(),
            "no collective pending; last finished all_reduce #41 (sum of 400 bytes of f32) called at \
             src/train.rs:41:20, 12.0 s ago"
        );
        answer.pending = Some(operation(42, Some("bucket 3 of 7")));
        answer.queued = 4;
        assert!(
            answer.to_string().starts_with(
                "in all_reduce #42 (sum of 400 bytes of f32) called at src/train.rs:41:20 for bucket 3 of 7 for 1.0 s, 4 queued; last"
            ),
            "{answer}"
        );
        answer.newest = Some(operation(44, None));
        let text = answer.to_string();
        assert!(
            text.contains("1.0 s and others up to all_reduce #44") && text.contains(", 4 queued"),
            "{text}"
        );
    }

    #[test]
    fn the_json_has_the_documented_names_and_reads_back() {
        let record = FlightRecord {
            version: FLIGHT_RECORD_VERSION,
            group: "world/0".into(),
            rank: 1,
            world_size: 2,
            transport: "tcp".into(),
            host: "host".into(),
            process_id: 7,
            written_at: 3.0,
            failure: Some(RecordedFailure { text: "text".into(), cause: Failure::PeerLeft { rank: 0 } }),
            ranks: vec![RankStatus { rank: 0, answer: None }],
            total_operations: 1,
            operations: vec![operation(1, None)],
        };
        assert_eq!(record.file_name(), "flight-world_0-rank-1.json");
        let json: serde_json::Value = serde_json::from_str(&record.to_json()).unwrap();
        let operation = &json["operations"][0];
        for (name, value) in [("kind", "AllReduce"), ("state", "done"), ("called_at", "src/train.rs:41:20")] {
            assert_eq!(operation[name], value);
        }
        assert_eq!((&operation["sequence"], &operation["bytes"]), (&1.into(), &400.into()));
        assert_eq!(serde_json::from_str::<FlightRecord>(&record.to_json()).unwrap(), record);
    }
}
