//! What must be true of every run, whatever the fault.

use burn_nccl::Failure;
use burn_nccl_tests::faulty_job::{Manner, Moment, Outcome};

use super::plan::{Connection, Fault, Plan, WireKind};
use super::runner::{RankEnd, Run};

/// What an error may take beyond the limit of its call: the answers of the others on how they stand, and a busy machine.
const BEYOND_MS: u64 = 4000;

/// How a fault showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Shown {
    /// It did not happen: the job ended before its place came.
    NotReached,
    /// It happened and all results were right.
    Harmless,
    /// A rank that was not connected yet returned an error that names another one: of a run only if a further rank names
    /// the fault.
    Unnamed,
    /// The ranks returned errors that name it.
    Named,
    /// A wrong result, where nothing was asked to find it.
    Unchecked,
}

/// How the fault showed, or what is wrong with the run.
pub(super) fn judge(plan: &Plan, run: &Run) -> Result<Shown, String> {
    if run.port_is_open {
        return Err("the port of the rendezvous is still open".into());
    }
    let mut shown = Shown::Harmless;
    for (rank, end) in run.ranks.iter().enumerate() {
        let found = judge_rank(plan, rank, end).map_err(|wrong| format!("rank {rank}: {wrong}"))?;
        shown = shown.max(found);
    }
    match shown {
        Shown::Unnamed => return Err("no rank names the fault".into()),
        Shown::Named | Shown::Unchecked => return Ok(shown),
        Shown::Harmless | Shown::NotReached => {}
    }
    Ok(if happened(plan, run) { Shown::Harmless } else { Shown::NotReached })
}

/// Whether a rank has missed a deadline.
pub(super) fn is_late(run: &Run) -> bool {
    let outcomes = run.ranks.iter().filter_map(|rank| Some(&rank.end.as_ref()?.outcome));
    let mut failures = outcomes.filter_map(|outcome| match outcome {
        Outcome::Failed { failure, .. } => failure.as_ref(),
        _ => None,
    });
    failures.any(|failure| matches!(failure, Failure::Deadline { .. }))
}

fn happened(plan: &Plan, run: &Run) -> bool {
    match plan.fault {
        Fault::None => true,
        Fault::Wire(_) => run.fired,
        Fault::Rank(..) if plan.fault.is_harmless() => true,
        Fault::Rank(fault, _) => !matches!(fault.moment, Moment::AfterStart(_) | Moment::During(..)),
    }
}

fn judge_rank(plan: &Plan, rank: usize, end: &RankEnd) -> Result<Shown, String> {
    if end.hung {
        return Err("it hangs".into());
    }
    let Some(told) = &end.end else {
        return if may_be_silent(plan, rank, end) {
            Ok(Shown::Harmless)
        } else {
            Err(format!("it said nothing and ended with {}", end.status))
        };
    };
    if told.after != told.before {
        return Err(format!("it held {:?} before and holds {:?} after", told.before, told.after));
    }
    match &told.outcome {
        Outcome::Right => Ok(Shown::Harmless),
        Outcome::Wrong(_) if may_be_wrong(plan) => Ok(Shown::Unchecked),
        Outcome::Wrong(wrong) => Err(format!("a wrong result without an error, {wrong}")),
        Outcome::Failed { text, .. } if plan.fault.is_harmless() => {
            Err(format!("an error for a fault that every deadline allows: {text}"))
        }
        Outcome::Failed { text, failure, milliseconds } => {
            let limit = if failure.is_some() { plan.job.timeout_ms } else { plan.job.connect_timeout_ms };
            // A late rank waits in the harness's own delay first.
            if *milliseconds > limit.max(plan.job.connect_timeout_ms) + BEYOND_MS {
                return Err(format!("its error came after {milliseconds} ms: {text}"));
            }
            let is_named = names(plan, rank, text, failure.as_ref());
            // Before the ranks are connected, one knows only whom it waits for, and that may be a rank which itself waits
            // for the faulty one.
            if !is_named && failure.is_none() && plan.job.world_size > 2 {
                return Ok(Shown::Unnamed);
            }
            if !is_named {
                return Err(format!("the error does not name the fault: {text}"));
            }
            Ok(Shown::Named)
        }
    }
}

/// The faulty rank itself may die of its fault, and only so.
fn may_be_silent(plan: &Plan, rank: usize, end: &RankEnd) -> bool {
    let Fault::Rank(fault, _) = plan.fault else { return false };
    rank == fault.rank
        && match fault.manner {
            Manner::Kill | Manner::Stop => end.was_killed(),
            Manner::Exit => end.status.code() == Some(burn_nccl_tests::fault::FAULT_EXIT_CODE),
            Manner::Panic => end.status.code() == Some(101),
            Manner::Delay(_) => false,
        }
}

/// Without checksums nobody can tell a changed payload from the right one.
fn may_be_wrong(plan: &Plan) -> bool {
    let Fault::Wire(fault) = plan.fault else { return false };
    let changes = !matches!(fault.kind, WireKind::Cut | WireKind::Stall(_));
    !plan.job.checksums && changes && fault.connection == Connection::Data
}

/// Whether an error of `rank` names a suspect. The faulty rank itself may name those that gave it up, and its own fault
/// is known to it.
fn names(plan: &Plan, rank: usize, text: &str, failure: Option<&Failure>) -> bool {
    let suspects = plan.fault.suspects();
    if let (Fault::Rank(fault, _), true) = (plan.fault, suspects.contains(&rank)) {
        return matches!(fault.manner, Manner::Stop | Manner::Delay(_) | Manner::Kill | Manner::Exit);
    }
    let cause = failure.map_or(text.to_owned(), ToString::to_string);
    suspects.iter().any(|suspect| mentions(&cause, *suspect))
}

/// Whether a text speaks of `rank 2`, or has it in a list such as `ranks 1, 2`.
fn mentions(text: &str, rank: usize) -> bool {
    let is_listed = |list: &str| {
        let end = list.find(|c: char| !c.is_ascii_digit() && c != ',' && c != ' ').unwrap_or(list.len());
        list[..end].split(',').any(|number| number.trim().parse() == Ok(rank))
    };
    ["rank ", "ranks "]
        .iter()
        .any(|word| text.match_indices(word).any(|(at, _)| is_listed(&text[at + word.len()..])))
}

#[test]
fn a_rank_is_mentioned_by_its_number_or_in_a_list() {
    for text in ["rank 2 is gone", "ranks 1, 2 did not arrive", "refused by rank 2: no", "ranks 2, 3 of 4"] {
        assert!(mentions(text, 2), "{text}");
    }
    for text in ["rank 12 is gone", "ranks 1, 3 of 2", "2 ranks"] {
        assert!(!mentions(text, 2), "{text}");
    }
}
