//! Jobs under the real mpirun, in a build with MPI. Nothing but mpirun tells the ranks of each other.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use burn_nccl::{Failure, TransportKind};
use burn_nccl_tests::fault::{Fault, Manner, Place};
use burn_nccl_tests::model::Net;
use burn_nccl_tests::report::{Failed, Trained};
use burn_nccl_tests::training::Training;
use burn_nccl_tests::transfers::Transferred;
use burn_nccl_tests::{Report, Scenario};

use crate::harness::{End, on_this_machine, reports, run, run_command, skip, test_rank, trained};

/// What a job may take to end after a rank has died, mpirun's own grace of a second or two included.
const PROMPT: Duration = Duration::from_secs(20);
const SHORT_TIMEOUT_SECONDS: u64 = 2;

/// The mpirun that can start ranks with MPI; says why `test` is skipped without one.
pub(crate) fn mpirun(test: &str) -> Option<PathBuf> {
    const COMMAND: &str = "cargo test --workspace --features burn-nccl-tests/mpi --test processes mpi";
    if !cfg!(feature = "mpi") {
        skip(test, &format!("built without MPI; {COMMAND}"));
        return None;
    }
    let mut folders = std::env::split_paths(&std::env::var_os("PATH")?).collect::<Vec<_>>().into_iter();
    let found = folders.find_map(|folder| Some(folder.join("mpirun")).filter(|file| file.is_file()));
    if found.is_none() {
        skip(test, &format!("no mpirun on PATH; install Open MPI, then {COMMAND}"));
    }
    found
}

/// A job of `ranks` ranks over the transport of this name.
fn job(mpirun: PathBuf, ranks: usize, transport: &str, scenario: &Scenario) -> Command {
    job_with(mpirun, &[], ranks, transport, scenario)
}

/// As [`job`], with options of mpirun.
fn job_with(
    mpirun: PathBuf,
    options: &[&OsStr],
    ranks: usize,
    transport: &str,
    scenario: &Scenario,
) -> Command {
    let rank = test_rank(scenario);
    let mut command = Command::new(mpirun);
    command.args(options);
    command.args(["-n", &ranks.to_string(), "--oversubscribe"]);
    command.arg(rank.get_program()).args(rank.get_args());
    command.env("RAYON_NUM_THREADS", "1").env("BURN_NCCL_TRANSPORT", transport);
    // Containers run as root, which Open MPI refuses unless told twice.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    command
}

pub(crate) fn succeed(end: &End, ranks: usize) -> Vec<Report> {
    let reports = end.reports();
    assert!(end.status.success() && reports.len() == ranks, "{end:#?}");
    assert!(!end.stderr.contains("finalize"), "mpirun misses MPI_Finalize: {end:#?}");
    reports
}

/// The errors of the ranks that could tell theirs before mpirun ended them.
fn failures(end: &End) -> Vec<Failed> {
    let failed = |report| match report {
        Report::Failed(failed) => Some(failed),
        _ => None,
    };
    end.reports().into_iter().filter_map(failed).collect()
}

pub(crate) fn transferred(report: Report) -> Transferred {
    match report {
        Report::Transferred(transferred) => transferred,
        other => panic!("expected the end of the transfers, found {other:?}"),
    }
}

fn trained_by(report: Report) -> Trained {
    match report {
        Report::Trained(trained) => trained,
        other => panic!("expected the end of a training, found {other:?}"),
    }
}

#[test]
fn every_collective_over_mpi_is_right_and_has_the_bits_of_tcp() {
    for ranks in [2, 4] {
        let Some(mpirun) = mpirun("every_collective_over_mpi_is_right_and_has_the_bits_of_tcp") else {
            return;
        };
        let end = run_command(job(mpirun, ranks, "auto", &Scenario::Transfer(TransportKind::Mpi)));
        let found: Vec<Transferred> = succeed(&end, ranks).into_iter().map(transferred).collect();
        let expected = reports(&Scenario::Transfer(TransportKind::Tcp), ranks).into_iter().map(transferred);
        for expected in expected {
            let over_mpi = Transferred { transport: "mpi".into(), ..expected };
            assert!(found.iter().all(|found| *found == over_mpi), "{found:?}, {over_mpi:?}");
        }
    }
}

#[test]
fn ranks_that_mpirun_starts_on_one_host_need_nothing_else_and_jobs_do_not_meet() {
    const TEST: &str = "ranks_that_mpirun_starts_on_one_host_need_nothing_else_and_jobs_do_not_meet";
    let Some(mpirun) = mpirun(TEST) else { return };
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let mpirun = mpirun.clone();
            scope.spawn(|| {
                for report in succeed(&run_command(job(mpirun, 4, "auto", &Scenario::Reduce)), 4) {
                    assert!(matches!(report, Report::Reduced { world_size: 4, sum: 10, .. }), "{report:?}");
                }
            });
        }
    });
}

#[test]
fn a_training_over_mpi_has_the_bits_of_one_over_tcp() {
    let Some(mpirun) = mpirun("a_training_over_mpi_has_the_bits_of_one_over_tcp") else { return };
    let training = Scenario::Train(Training::new(Net::Plain, 4, 5));
    let expected = trained(&training, 4).remove(0);
    assert_ne!(expected.sha256, expected.start_sha256, "nothing was learnt");
    // mpirun mixes the lines of ranks that are longer than a few kilobytes, so each gets a file.
    let folder = tempfile::tempdir().unwrap();
    let options = [OsStr::new("--output-filename"), folder.path().as_os_str()];
    let end = run_command(job_with(mpirun, &options, 4, "mpi", &training));
    assert!(end.status.success(), "{end:#?}");
    for rank in 0..4 {
        let file = folder.path().join(format!("1/rank.{rank}/stdout"));
        let report = serde_json::from_str(std::fs::read_to_string(file).unwrap().trim()).unwrap();
        assert_eq!(trained_by(report).sha256, expected.sha256);
    }
}

#[test]
fn ranks_that_call_different_collectives_over_mpi_are_told_both() {
    let Some(mpirun) = mpirun("ranks_that_call_different_collectives_over_mpi_are_told_both") else { return };
    let end = run_command(job(mpirun, 3, "mpi", &Scenario::Differ(1)));
    let failures = failures(&end);
    assert!(!end.status.success() && !failures.is_empty(), "{end:#?}");
    for failed in failures {
        assert!(matches!(failed.failure, Some(Failure::Mismatch { .. })), "{failed:?}");
        assert!(failed.text.contains("barrier #1") && failed.text.contains("all_reduce #1"), "{failed:?}");
    }
}

fn training(manner: Manner) -> Scenario {
    let fault = Some(Fault { rank: 1, step: 2, place: Place::Backward, manner });
    let timeout_seconds = SHORT_TIMEOUT_SECONDS;
    Scenario::Train(Training { fault, timeout_seconds, ..Training::new(Net::Plain, 3, 5) })
}

#[test]
fn a_rank_that_is_killed_under_mpirun_ends_the_job_and_is_named() {
    let Some(mpirun) = mpirun("a_rank_that_is_killed_under_mpirun_ends_the_job_and_is_named") else { return };
    let start = Instant::now();
    let end = run_command(job(mpirun, 3, "mpi", &training(Manner::Kill)));
    assert!(!end.status.success() && start.elapsed() < PROMPT, "{:?}: {end:#?}", start.elapsed());
    // mpirun ends the others at once, so that they may have no time to tell; it tells then.
    let by_mpirun = end.stderr.contains("process rank 1") && end.stderr.contains("signal 9");
    let failures = failures(&end);
    assert!(by_mpirun || !failures.is_empty(), "nobody names the rank: {end:#?}");
    for failed in failures {
        assert!(matches!(failed.failure, Some(Failure::PeerLost { rank: 1, .. })), "{failed:?}");
    }
}

#[test]
fn a_rank_that_is_stopped_under_mpirun_is_named_at_the_deadline() {
    let Some(mpirun) = mpirun("a_rank_that_is_stopped_under_mpirun_is_named_at_the_deadline") else { return };
    let start = Instant::now();
    let end = run_command(job(mpirun, 3, "mpi", &training(Manner::Stop)));
    assert!(!end.status.success() && start.elapsed() < PROMPT, "{:?}: {end:#?}", start.elapsed());
    let failures = failures(&end);
    assert!(!failures.is_empty(), "{end:#?}");
    for failed in failures {
        let Some(Failure::Deadline { missing, .. }) = &failed.failure else { panic!("{failed:?}") };
        assert_eq!(missing, &[1], "{failed:?}");
        let beyond = on_this_machine(Duration::from_secs(2)).as_secs_f64();
        assert!(failed.seconds < SHORT_TIMEOUT_SECONDS as f64 + beyond, "{failed:?}");
    }
}

#[test]
fn ranks_that_no_launcher_of_mpi_has_started_are_told_so_when_they_ask_for_it() {
    for end in run(&Scenario::Transfer(TransportKind::Mpi), 2, None) {
        let text = end.failed().text;
        assert!(text.contains("the transport mpi cannot carry this group: "), "{text}");
        let reason =
            if cfg!(feature = "mpi") { "start all ranks with the one mpirun" } else { "without the feature" };
        assert!(text.contains(reason), "{text}");
    }
}
