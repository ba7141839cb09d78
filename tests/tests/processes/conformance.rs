//! The conformance suite between real processes: what threads of one process share, these do not.

use burn_nccl_tests::conformance::Part;
use burn_nccl_tests::{Report, Scenario};

use crate::harness::{End, run_command, test_rank};

/// Plays all parts on `ranks` ranks under `launcher`, over `transport`.
fn conform(transport: &str, ranks: usize) {
    let job = Scenario::Launch(ranks, Box::new(Scenario::Conform(Part::ALL.into())));
    let mut command = test_rank(&job);
    command.env("BURN_NCCL_TRANSPORT", transport);
    assert_conformed(&run_command(command), transport, ranks);
}

/// Asserts that all ranks have played the suite to its end.
pub(crate) fn assert_conformed(end: &End, transport: &str, ranks: usize) {
    assert!(end.status.success(), "{end:#?}");
    // A launcher may put a prefix before each line.
    let lines = end.stdout.lines().filter_map(|line| serde_json::from_str(&line[line.find('{')?..]).ok());
    let conformed = lines.filter(|report| match report {
        Report::Conformed { world_size, transport: found } => *world_size == ranks && found == transport,
        other => panic!("expected the end of the suite, found {other:?}"),
    });
    assert_eq!(conformed.count(), ranks, "{end:#?}");
}

#[test]
fn three_processes_conform_over_tcp() {
    conform("tcp", 3);
}

#[test]
fn three_processes_conform_in_shared_memory() {
    conform("shm", 3);
}
