//! Which checkpoints stay, and what a failure leaves.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use burn::optim::ModuleOptimizer;
use burn_nccl_records::Error;
use burn_nccl_records::checkpoint::{
    Best, Checkpoint, CheckpointConfig, CheckpointFailure, Checkpointer, OnFailure, find,
};

use super::training::{Hooked, at, names, net, open, plain, saved, sgd, state, train};

fn config(keep_last: usize, keep_best: usize, best: Best) -> CheckpointConfig {
    CheckpointConfig { keep_last, keep_best, best, ..CheckpointConfig::default() }
}

// C15
#[test]
fn the_best_and_the_newest_are_kept() {
    let metrics = [(1, Some(3.0)), (2, Some(1.0)), (3, Some(2.0))];
    for (best, expected) in [(Best::Lowest, ["step-2", "step-3"]), (Best::Highest, ["step-1", "step-3"])] {
        let folder = saved(&metrics, config(1, 1, best));
        assert_eq!(names(folder.path()), expected);
    }
}

#[test]
fn what_an_earlier_run_left_counts() {
    let folder = saved(&[(1, Some(0.9)), (2, Some(0.1)), (3, Some(0.2))], config(3, 0, Best::Highest));
    let mut checkpointer = open(folder.path(), config(1, 1, Best::Highest));
    checkpointer.save(&net(1), &sgd(), state(4)).unwrap();
    checkpointer.finish().unwrap();
    assert_eq!(names(folder.path()), ["step-1", "step-4"]);
}

#[test]
fn broken_and_foreign_folders_are_never_deleted() {
    let folder = saved(&[(1, None), (2, None)], config(9, 0, Best::Highest));
    fs::remove_file(at(folder.path(), 1).join("model.bpk")).unwrap();
    for name in ["step-0", "step-03", "mine", "step-2.old"] {
        fs::create_dir(folder.path().join(name)).unwrap();
    }
    let mut checkpointer = open(folder.path(), config(1, 0, Best::Highest));
    checkpointer.save(&net(1), &sgd(), state(4)).unwrap();
    checkpointer.finish().unwrap();
    assert_eq!(names(folder.path()), ["mine", "step-0", "step-03", "step-1", "step-2.old", "step-4"]);
}

#[test]
fn a_checkpoint_of_the_same_step_is_replaced() {
    let folder = saved(&[(5, None), (5, Some(0.5))], CheckpointConfig::default());
    assert_eq!(names(folder.path()), ["step-5"]);
    assert_eq!(Checkpoint::open(folder.path()).unwrap().state().metric, Some(0.5));
}

#[test]
fn what_stands_in_the_way_and_is_no_checkpoint_is_set_aside() {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(at(folder.path(), 5)).unwrap();
    fs::write(at(folder.path(), 5).join("mine"), "kept").unwrap();
    let mut checkpointer = open(folder.path(), CheckpointConfig::default());
    checkpointer.save(&net(1), &sgd(), state(5)).unwrap();
    checkpointer.finish().unwrap();
    let names = names(folder.path());
    let [_, aside] = &names[..] else { panic!("{names:?}") };
    assert!(aside.starts_with("step-5.broken-"), "{names:?}");
    assert_eq!(fs::read_to_string(folder.path().join(aside).join("mine")).unwrap(), "kept");
    assert_eq!(Checkpoint::open(folder.path()).unwrap().path(), at(folder.path(), 5));
}

#[test]
fn a_link_in_the_place_of_a_checkpoint_is_not_followed() {
    let (folder, other) = (tempfile::tempdir().unwrap(), saved(&[(5, None)], CheckpointConfig::default()));
    std::os::unix::fs::symlink(at(other.path(), 5), at(folder.path(), 5)).unwrap();
    assert_eq!(find(folder.path()).unwrap().newest, None);
    let mut checkpointer = open(folder.path(), config(1, 0, Best::Highest));
    for step in [5, 6] {
        checkpointer.save(&net(1), &sgd(), state(step)).unwrap();
    }
    checkpointer.finish().unwrap();
    assert_eq!(
        find(other.path()).unwrap().newest,
        Some(at(other.path(), 5)),
        "the other's checkpoint is intact"
    );
}

#[test]
fn a_later_checkpoint_is_neither_overtaken_nor_deleted() {
    let folder = saved(&[(10, None)], CheckpointConfig::default());
    let mut checkpointer = open(
        folder.path(),
        CheckpointConfig { on_failure: OnFailure::Continue, ..config(1, 0, Best::Highest) },
    );
    let error = checkpointer.save(&net(1), &sgd(), state(5)).unwrap_err();
    let later = CheckpointFailure::LaterCheckpoint { step: 10 };
    assert!(matches!(&error, Error::CheckpointFolder { failure, .. } if *failure == later), "{error}");
    assert_eq!(names(folder.path()), ["step-10"]);
    // A broken one is no reason: a resume would not take it.
    fs::write(at(folder.path(), 10).join("model.bpk"), "").unwrap();
    checkpointer.save(&net(1), &sgd(), state(5)).unwrap();
    checkpointer.finish().unwrap();
    assert_eq!(find(folder.path()).unwrap().newest, Some(at(folder.path(), 5)));
}

#[test]
fn two_trainings_do_not_share_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let first = open(folder.path(), CheckpointConfig::default());
    let error = Checkpointer::open(folder.path(), CheckpointConfig::default(), None).unwrap_err();
    assert!(matches!(&error, Error::CheckpointFolder { failure: CheckpointFailure::InUse, .. }), "{error}");
    assert!(error.to_string().contains("another training that is still running saves there"), "{error}");
    first.finish().unwrap();
    open(folder.path(), CheckpointConfig::default());
}

/// A checkpointer whose writer fails for as long as `fails` says so, with one complete checkpoint.
fn failing(
    folder: &std::path::Path,
    on_failure: OnFailure,
) -> (Arc<AtomicBool>, ModuleOptimizer, super::training::Net, Checkpointer) {
    let fails = Arc::new(AtomicBool::new(false));
    let hook = fails.clone();
    let mut optimizer: ModuleOptimizer =
        Hooked(Arc::new(move || assert!(!hook.load(Ordering::Relaxed), "the device is gone"))).into();
    let model = train(net(1), &mut optimizer, 0..1);
    let mut checkpointer = open(folder, CheckpointConfig { on_failure, ..CheckpointConfig::default() });
    checkpointer.save(&model, &optimizer, state(1)).unwrap();
    checkpointer.wait().unwrap();
    fails.store(true, Ordering::Relaxed);
    (fails, optimizer, model, checkpointer)
}

#[test]
fn a_failure_is_the_next_calls_error_and_leaves_the_old_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let (fails, optimizer, model, mut checkpointer) = failing(folder.path(), OnFailure::Stop);
    checkpointer.save(&model, &optimizer, state(2)).unwrap();
    let error = checkpointer.save(&model, &optimizer, state(3)).unwrap_err();
    let Error::CheckpointNotSaved { step: 2, failure: CheckpointFailure::Panicked { message }, .. } = &error
    else {
        panic!("{error}")
    };
    assert_eq!(message, "the device is gone");
    assert_eq!(names(folder.path()), ["step-1"], "neither half a checkpoint nor one that was not to begin");
    // Nothing is left in the way of the next.
    fails.store(false, Ordering::Relaxed);
    checkpointer.save(&model, &optimizer, state(4)).unwrap();
    checkpointer.finish().unwrap();
    assert_eq!(names(folder.path()), ["step-1", "step-4"]);
}

#[test]
fn a_training_that_is_to_continue_does() {
    let folder = tempfile::tempdir().unwrap();
    let (fails, optimizer, model, mut checkpointer) = failing(folder.path(), OnFailure::Continue);
    checkpointer.save(&model, &optimizer, state(2)).unwrap();
    checkpointer.save(&model, &optimizer, state(3)).unwrap();
    checkpointer.wait().unwrap();
    assert_eq!(names(folder.path()), ["step-1"]);
    fails.store(false, Ordering::Relaxed);
    checkpointer.save(&model, &optimizer, state(4)).unwrap();
    checkpointer.finish().unwrap();
    assert_eq!(names(folder.path()), ["step-1", "step-4"]);
}

#[test]
fn a_writer_that_hangs_is_an_error_and_not_a_hang() {
    let folder = tempfile::tempdir().unwrap();
    let (release, gate) = std::sync::mpsc::channel::<()>();
    let gate = std::sync::Mutex::new(gate);
    let mut optimizer: ModuleOptimizer = Hooked(Arc::new(move || {
        let _ = gate.lock().unwrap().recv();
    }))
    .into();
    let model = train(net(1), &mut optimizer, 0..1);
    let config = CheckpointConfig {
        on_failure: OnFailure::Continue,
        write_timeout: std::time::Duration::from_millis(50),
        ..CheckpointConfig::default()
    };
    let mut checkpointer = open(folder.path(), config);
    checkpointer.save(&model, &optimizer, state(1)).unwrap();
    for _ in 0..2 {
        let error = checkpointer.wait().unwrap_err();
        let Error::CheckpointNotSaved { step: 1, failure: CheckpointFailure::TimedOut { .. }, .. } = &error
        else {
            panic!("{error}")
        };
    }
    drop(release);
    // It may come late all the same.
    while checkpointer.wait().is_err() {}
    assert_eq!(names(folder.path()), ["step-1"]);
}

#[test]
fn a_folder_that_vanishes_is_an_error() {
    let parent = tempfile::tempdir().unwrap();
    let folder = parent.path().join("checkpoints");
    let mut checkpointer = open(&folder, CheckpointConfig::default());
    fs::remove_dir_all(&folder).unwrap();
    fs::write(&folder, "a file").unwrap();
    checkpointer.save(&net(1), &plain(), state(1)).unwrap();
    let error = checkpointer.finish().unwrap_err();
    assert!(
        matches!(&error, Error::CheckpointNotSaved { failure: CheckpointFailure::File { .. }, .. }),
        "{error}"
    );
}
