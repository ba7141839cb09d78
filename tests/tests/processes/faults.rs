//! A rank that fails, and what the others and the launcher make of it.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use burn_nccl::Failure;
use burn_nccl_tests::Scenario;
use burn_nccl_tests::fault::{FAULT_EXIT_CODE, FAULT_MESSAGE, Fault, Manner, Place};
use burn_nccl_tests::model::Net;
use burn_nccl_tests::report::ERROR_EXIT_CODE;
use burn_nccl_tests::training::Training;
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::harness::{End, run, run_alone, run_command, skip, test_rank};

const RANKS: usize = 3;
const FAULTY: usize = 1;
/// A lost connection is seen at once; this is far below the 60 s that a collective may take, and leaves room for a busy
/// machine.
const PROMPT: Duration = Duration::from_secs(5);
/// The limit of a collective where it is what ends the wait, and what it may take beyond.
const SHORT_TIMEOUT_SECONDS: u64 = 2;
const BEYOND_SECONDS: f64 = 2.0;

/// Five steps with a fault in the third.
fn training(rank: usize, place: Place, manner: Manner) -> Training {
    let fault = Some(Fault { rank, step: 2, place, manner });
    Training { fault, ..Training::new(Net::Plain, RANKS, 5) }
}

fn survivors(ends: &[End], faulty: usize) -> impl Iterator<Item = &End> {
    ends.iter().enumerate().filter(move |(rank, _)| *rank != faulty).map(|(_, end)| end)
}

/// Asserts that the others name `faulty` at once, however it fails.
fn assert_named(faulty: usize, place: Place) {
    for manner in [Manner::Panic, Manner::Exit, Manner::Kill] {
        let ends = run(&Scenario::Train(training(faulty, place, manner)), RANKS, None);
        assert_ended_as_asked(&ends[faulty], place, manner);
        for end in survivors(&ends, faulty) {
            assert_eq!(end.status.code(), Some(ERROR_EXIT_CODE), "{place:?}, {manner:?}: {ends:#?}");
            let error = end.failed();
            let names_the_rank = match error.failure {
                Some(Failure::Aborted { rank, .. }) => rank == faulty && manner == Manner::Panic,
                Some(Failure::PeerLost { rank, .. }) => rank == faulty,
                _ => false,
            };
            assert!(names_the_rank, "{place:?}, {manner:?}: {error:?}");
            assert!(error.text.contains(&format!("rank {faulty} ")), "{error:?}");
            let late = end.at.saturating_duration_since(ends[faulty].at);
            assert!(late < PROMPT, "{place:?}, {manner:?}: a survivor ended {late:?} after the fault");
        }
    }
}

fn assert_ended_as_asked(end: &End, place: Place, manner: Manner) {
    match (manner, place) {
        // The communication thread panics, and the call that waits for it returns an error.
        (Manner::Panic, Place::Collective) => {
            assert_eq!(end.status.code(), Some(ERROR_EXIT_CODE), "{end:#?}")
        }
        (Manner::Panic, _) => assert_eq!(end.status.code(), Some(101), "{end:#?}"),
        (Manner::Exit, _) => assert_eq!(end.status.code(), Some(FAULT_EXIT_CODE), "{end:#?}"),
        (Manner::Kill, _) => assert_eq!(end.status.signal(), Some(Signal::SIGKILL as i32), "{end:#?}"),
        (Manner::Stop, _) => unreachable!("a stopped rank has not ended"),
    }
}

#[test]
fn a_rank_that_fails_in_its_forward_pass_is_named_by_all_others() {
    assert_named(FAULTY, Place::Forward);
}

#[test]
fn a_rank_that_fails_in_its_backward_pass_is_named_by_all_others() {
    assert_named(FAULTY, Place::Backward);
}

#[test]
fn a_rank_that_fails_in_a_collective_is_named_by_all_others() {
    assert_named(FAULTY, Place::Collective);
}

#[test]
fn rank_0_is_named_like_any_other() {
    assert_named(0, Place::Backward);
}

#[test]
fn a_rank_that_is_stopped_is_named_by_all_others_at_the_deadline() {
    let stopped = Training {
        timeout_seconds: SHORT_TIMEOUT_SECONDS,
        ..training(FAULTY, Place::Backward, Manner::Stop)
    };
    let ends = run(&Scenario::Train(stopped), RANKS, Some(FAULTY));
    for end in survivors(&ends, FAULTY) {
        assert_eq!(end.status.code(), Some(ERROR_EXIT_CODE), "{ends:#?}");
        let error = end.failed();
        let Some(Failure::Deadline { missing, .. }) = &error.failure else { panic!("{error:?}") };
        assert_eq!(missing, &[FAULTY], "{error:?}");
        assert!(error.text.starts_with("all_reduce #"), "the collective is not named: {error:?}");
        assert!(error.text.contains("rank 1 did not arrive within 2.0s"), "{error:?}");
        assert!(error.seconds < SHORT_TIMEOUT_SECONDS as f64 + BEYOND_SECONDS, "{error:?}");
    }
}

/// Asserts that a launcher of a training with this fault ends with `code`, shows `words` as the first cause on its last
/// lines, and leaves no process behind.
fn assert_launcher_told(launcher: &End, code: i32, words: &str) {
    let lines: Vec<&str> = launcher.stderr.lines().filter(|line| !line.starts_with("[rank ")).collect();
    assert_eq!(launcher.status.code(), Some(code), "{lines:#?}");
    let first = lines.iter().rposition(|line| line.starts_with("error: rank 1 (pid "));
    let last = &lines[first.unwrap_or_else(|| panic!("rank 1 is not the first cause: {lines:#?}"))..];
    assert!(last.iter().any(|line| line.contains(words)), "{words:?} is missing: {lines:#?}");
    assert!(last[last.len() - 1].starts_with("help: "), "{lines:#?}");
    assert_eq!(lines.iter().filter(|line| line.starts_with("note: rank ")).count(), RANKS - 1, "{lines:#?}");
    assert_no_process_left(&lines);
}

#[test]
fn a_launched_rank_that_fails_is_the_first_cause_on_the_last_lines() {
    let cases = [
        (Place::Forward, Manner::Panic, 101, FAULT_MESSAGE),
        (Place::Backward, Manner::Panic, 101, FAULT_MESSAGE),
        (Place::Collective, Manner::Panic, ERROR_EXIT_CODE, FAULT_MESSAGE),
        (Place::Backward, Manner::Exit, FAULT_EXIT_CODE, ""),
        (Place::Forward, Manner::Kill, 137, "SIGKILL"),
        (Place::Collective, Manner::Kill, 137, "SIGKILL"),
    ];
    for (place, manner, code, words) in cases {
        let job = Scenario::Train(training(FAULTY, place, manner));
        assert_launcher_told(&run_alone(&Scenario::Launch(RANKS, Box::new(job))), code, words);
    }
}

#[test]
fn burnrun_tells_of_a_failed_training_as_the_library_does() {
    const TEST: &str = "burnrun_tells_of_a_failed_training_as_the_library_does";
    let rank = test_rank(&Scenario::Train(training(FAULTY, Place::Backward, Manner::Panic)));
    let burnrun = Path::new(rank.get_program()).with_file_name("burnrun");
    if !burnrun.exists() {
        return skip(TEST, "burnrun is not built; test the whole workspace");
    }
    let mut command = Command::new(burnrun);
    command
        .args(["--nproc-per-node", &RANKS.to_string(), "--"])
        .arg(rank.get_program())
        .args(rank.get_args());
    assert_launcher_told(&run_command(command), 101, FAULT_MESSAGE);
}

/// Asserts that the ranks whose process numbers the launcher names are gone.
fn assert_no_process_left(lines: &[&str]) {
    let pids: Vec<i32> =
        lines.iter().filter_map(|line| line.split_once("(pid ")?.1.split_once(')')?.0.parse().ok()).collect();
    assert_eq!(pids.len(), RANKS, "{lines:#?}");
    for pid in pids {
        assert_eq!(kill(Pid::from_raw(pid), None), Err(Errno::ESRCH), "process {pid} is left");
    }
}
