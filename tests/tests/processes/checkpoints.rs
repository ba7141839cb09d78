//! Checkpoints of processes that are killed, run out of disk or lose a rank.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use burn_nccl::Failure;
use burn_nccl_models::NormConfig;
use burn_nccl_tests::data::noise;
use burn_nccl_tests::report::ERROR_EXIT_CODE;
use burn_nccl_tests::resnet::ResNetTraining;
use burn_nccl_tests::resuming::{Resumed, Resuming};
use burn_nccl_tests::saving::{Saved, Saving, check};
use burn_nccl_tests::{Report, Scenario};
use nix::sys::signal::Signal;

use crate::harness::{End, kill_after, run, run_command, skip, test_rank};

const KILLS: usize = 1000;
/// As many at a time as may be without each waiting for the others' disk.
const JOBS: usize = 4;
/// Starting takes about a quarter of it, the rest is saving.
const LONGEST_LIFE_MICROSECONDS: f64 = 120_000.0;

fn saving(folder: &Path) -> Saving {
    Saving { folder: folder.into(), keep_last: 2, until: None, continues: false }
}

// C11
#[test]
fn whenever_a_training_is_killed_the_newest_checkpoint_is_complete_and_the_right_one() {
    let jobs: Vec<Killed> = std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..JOBS).map(|job| scope.spawn(move || kill_again_and_again(job))).collect();
        jobs.into_iter().map(|job| job.join().unwrap()).collect()
    });
    let total = jobs.iter().fold(Killed::default(), |sum, job| Killed {
        acknowledged: sum.acknowledged + job.acknowledged,
        while_writing: sum.while_writing + job.while_writing,
        steps: sum.steps + job.steps,
    });
    println!("{KILLS} kills: {total:?}");
    // Otherwise the test would show nothing.
    assert!(total.while_writing > KILLS / 20 && total.acknowledged > KILLS / 20, "{total:?}");
}

/// What the kills met.
#[derive(Debug, Default)]
struct Killed {
    /// Processes that had a checkpoint acknowledged.
    acknowledged: usize,
    /// Processes that were killed with a checkpoint half written.
    while_writing: usize,
    /// Checkpoints in all.
    steps: u64,
}

fn kill_again_and_again(job: usize) -> Killed {
    let folder = tempfile::tempdir().unwrap();
    let (mut newest, mut killed) = (None, Killed::default());
    for kill in 0..KILLS / JOBS {
        let life = (noise((kill * JOBS + job) as u64) + 1.0) / 2.0 * LONGEST_LIFE_MICROSECONDS;
        let command = test_rank(&Scenario::Save(saving(folder.path())));
        let end = kill_after(command, Duration::from_micros(life as u64));
        assert_eq!(end.status.signal(), Some(Signal::SIGKILL as i32), "it ended by itself: {end:#?}");
        let acknowledged = end.stdout.lines().filter_map(|line| line.parse().ok()).next_back();
        let found = check(folder.path());
        assert!(
            found >= newest && found >= acknowledged,
            "found {found:?}, had {newest:?}, told {acknowledged:?}"
        );
        killed.acknowledged += usize::from(acknowledged.is_some());
        killed.while_writing += usize::from(is_half_written(folder.path()));
        newest = found;
    }
    killed.steps = newest.unwrap_or(0);
    killed
}

fn is_half_written(folder: &Path) -> bool {
    let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    names.into_iter().any(|name| name.to_string_lossy().ends_with(".tmp"))
}

/// A disk of its own for `saving`, made with these options of `mount`; none where that is not permitted.
fn on_a_disk(test: &str, options: &str, saving: impl Fn(&Path) -> Saving) -> Option<Saved> {
    let mount = tempfile::tempdir().unwrap();
    let mounted = |script: &str| {
        let mut command = Command::new("unshare");
        let mount_it = format!("mount -t tmpfs -o {options} tmpfs \"$0\" && {script}");
        command.args(["--mount", "sh", "-c", &mount_it]).arg(mount.path());
        command
    };
    if !mounted("true").output().is_ok_and(|output| output.status.success()) {
        skip(test, "unshare and mount are not permitted");
        return None;
    }
    let rank = test_rank(&Scenario::Save(saving(mount.path())));
    let mut command = mounted("exec \"$@\"");
    command.arg(rank.get_program()).args(rank.get_args());
    let end = run_command(command);
    match end.reports().pop() {
        Some(Report::Saved(saved)) => Some(saved),
        other => panic!("expected the end of a saving, found {other:?}: {end:#?}"),
    }
}

#[test]
fn a_full_disk_ends_the_training_and_leaves_the_older_checkpoints() {
    let test = "a_full_disk_ends_the_training_and_leaves_the_older_checkpoints";
    let until_full = |folder: &Path| Saving { keep_last: 99, until: Some(99), ..saving(folder) };
    let Some(Saved { error, newest }) = on_a_disk(test, "size=256k", until_full) else { return };
    let error = error.expect("the disk is full");
    for part in
        ["was not saved", "No space left on device", "keep fewer checkpoints", "older checkpoints are intact"]
    {
        assert!(error.contains(part), "{error}");
    }
    assert!(newest.is_some_and(|newest| newest < 20), "{newest:?}");
}

#[test]
fn a_training_that_is_to_continue_outlives_a_full_disk() {
    let test = "a_training_that_is_to_continue_outlives_a_full_disk";
    let to_the_end =
        |folder: &Path| Saving { keep_last: 99, until: Some(30), continues: true, ..saving(folder) };
    let Some(Saved { error, newest }) = on_a_disk(test, "size=256k", to_the_end) else { return };
    assert_eq!(error, None);
    assert!(newest.is_some_and(|newest| newest < 20), "{newest:?}");
}

#[test]
fn a_folder_that_cannot_be_written_is_refused_at_once() {
    let test = "a_folder_that_cannot_be_written_is_refused_at_once";
    let Some(Saved { error, newest }) =
        on_a_disk(test, "ro", |folder| Saving { until: Some(9), ..saving(folder) })
    else {
        return;
    };
    let error = error.expect("the disk is read-only");
    assert!(error.contains("Read-only file system") && error.contains("may write to"), "{error}");
    assert_eq!(newest, None);
}

fn training(steps: usize) -> ResNetTraining {
    ResNetTraining::new(NormConfig::SyncBatch, steps)
}

fn resumed(resuming: Resuming) -> Vec<Resumed> {
    let ends = run(&Scenario::Resume(resuming), 2, None);
    let resumed = |end: &End| match end.report() {
        Report::Resumed(resumed) => resumed,
        other => panic!("expected the end of a training, found {other:?}"),
    };
    ends.iter().map(resumed).collect()
}

// C13, C14
#[test]
fn two_ranks_go_on_bit_for_bit_with_synchronized_norms_and_loss_scaling() {
    let (straight, halves) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let expected = resumed(Resuming::new(training(6), 2, straight.path().into()));
    let first = resumed(Resuming::new(training(3), 2, halves.path().into()));
    let second = resumed(Resuming::new(training(6), 2, halves.path().into()));
    for rank in 0..2 {
        assert_eq!((first[rank].from, second[rank].from, expected[rank].from), (0, 3, 0));
        assert_eq!(second[rank].trained.sha256, expected[rank].trained.sha256, "rank {rank}");
        assert_eq!(second[rank].scaling, expected[rank].scaling, "rank {rank}");
        // Doubled every second step, with one step of the next interval gone.
        assert_eq!(first[rank].scaling, (512.0, 1));
    }
}

// C10
#[test]
fn no_process_is_told_of_a_checkpoint_that_is_not_there() {
    let folder = tempfile::tempdir().unwrap();
    let slow = Resuming {
        slow_milliseconds: 2500,
        timeout_seconds: 2,
        ..Resuming::new(training(1), 2, folder.path().into())
    };
    assert!(resumed(slow).iter().all(|resumed| resumed.was_there));
}

// C10
#[test]
fn a_checkpoint_that_one_process_does_not_see_is_an_error_in_all() {
    let (here, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    resumed(Resuming::new(training(1), 2, here.path().into()));
    let folders = vec![here.path().to_path_buf(), elsewhere.path().to_path_buf()];
    let ends = run(
        &Scenario::Resume(Resuming { folders, ..Resuming::new(training(2), 2, here.path().into()) }),
        2,
        None,
    );
    for end in ends {
        let Report::Refused(error) = end.report() else { panic!("{end:#?}") };
        assert!(error.contains("ranks [1] do not see it so"), "{error}");
    }
}

#[test]
fn a_rank_that_dies_during_a_save_is_named_and_the_checkpoint_is_finished() {
    let folder = tempfile::tempdir().unwrap();
    let killed = Resuming {
        slow_milliseconds: 500,
        killed: Some(1),
        ..Resuming::new(training(1), 2, folder.path().into())
    };
    let ends = run(&Scenario::Resume(killed), 2, None);
    assert_eq!(ends[1].status.signal(), Some(Signal::SIGKILL as i32), "{ends:#?}");
    assert_eq!(ends[0].status.code(), Some(ERROR_EXIT_CODE), "{ends:#?}");
    let error = ends[0].failed();
    assert!(matches!(error.failure, Some(Failure::PeerLost { rank: 1, .. })), "{error:?}");
    assert!(folder.path().join("step-1/manifest.json").exists());
}
