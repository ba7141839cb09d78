//! The flight records of a job that fails, as files.

use std::path::Path;

use burn_nccl::Failure;
use burn_nccl::group::{FlightRecord, State};
use burn_nccl_tests::faulty_job::{Manner, Moment, Outcome, RankFault};

use super::plan::{Afterwards, Fault, Plan};
use super::runner::play;

const FAULTY: usize = 1;
/// Of no run of the harness, which count from 0.
const SLOT: usize = 9999;

/// Plays a job of three ranks in which one fails before its sixth operation, with records in `folder`.
fn failed_job(folder: &Path, manner: Manner) -> Vec<FlightRecord> {
    let mut plan = Plan::new(0);
    let fault = RankFault { rank: FAULTY, manner, moment: Moment::Before(5) };
    plan.fault = Fault::Rank(fault, Afterwards::Kill);
    (plan.job.world_size, plan.job.operations, plan.job.fault) = (3, 10, Some(fault));
    plan.records = Some(folder.to_owned());
    let run = play(&plan, SLOT);
    let failed = |rank: usize| matches!(&run.ranks[rank].end, Some(end) if matches!(end.outcome, Outcome::Failed { .. }));
    assert!(failed(0) && failed(2), "{run}");
    let read = |rank: usize| {
        let path = folder.join(format!("flight-world-rank-{rank}.json"));
        let text = std::fs::read_to_string(&path)
            .unwrap_or_else(|error| panic!("{}: {error}\n{run}", path.display()));
        serde_json::from_str::<FlightRecord>(&text).unwrap()
    };
    [0, 2].map(read).into()
}

#[test]
fn a_stopped_rank_is_the_silent_one_in_the_records_of_the_others() {
    let folder = tempfile::tempdir().unwrap();
    for record in failed_job(folder.path(), Manner::Stop) {
        let failure = record.failure.as_ref().unwrap_or_else(|| panic!("no failure in {record:#?}"));
        assert!(
            matches!(&failure.cause, Failure::Deadline { missing, .. } if *missing == [FAULTY]),
            "{failure:?}"
        );
        let text = &failure.text;
        assert!(text.contains("rank 1 did not arrive within 2.0s"), "{text}");
        let last = record.operations.iter().rfind(|operation| operation.state == State::Failed).unwrap();
        assert!(last.called_at.contains("faulty_job/operation.rs:"), "{last:?}");
        assert!(last.run_seconds.unwrap() >= 1.0, "{last:?}");
        // The rank whose deadline came second is told by the first, perhaps before all have answered it.
        if let Some(status) = record.ranks.get(FAULTY) {
            assert_eq!(status.to_string(), "rank 1: no answer: stopped, or its host is unreachable");
        }
    }
}

#[test]
fn a_killed_rank_leaves_records_on_the_others_and_no_half_written_file() {
    let folder = tempfile::tempdir().unwrap();
    for record in failed_job(folder.path(), Manner::Kill) {
        let cause = record.failure.unwrap().cause;
        assert!(matches!(cause, Failure::PeerLost { rank: FAULTY, .. }), "{cause:?}");
        assert!(record.operations.iter().any(|operation| operation.state == State::Done));
    }
    let names: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}
