//! burn-train's learner on two ranks.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use burn_nccl_tests::Scenario;
use burn_nccl_tests::learning::{BATCHES, Learning};
use burn_nccl_tests::report::Learned;

use crate::harness::{assert_close, learned};

const RANKS: usize = 2;

/// Two epochs of two ranks which share a folder.
fn learning(folder: &Path) -> Learning {
    Learning {
        directories: vec![folder.to_owned(); RANKS],
        joined: false,
        epochs: 2,
        resume: None,
        early_stopping: false,
        interruption: None,
    }
}

/// Runs it on two ranks, which must end with the same bits.
fn run(learning: Learning) -> Vec<Learned> {
    let ends = learned(&Scenario::Learn(learning), RANKS);
    assert_eq!(ends[0].sha256, ends[1].sha256, "the ranks ended with different parameters: {ends:#?}");
    ends
}

fn files(folder: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let Ok(entries) = fs::read_dir(folder) else { return found };
    for path in entries.map(|entry| entry.unwrap().path()) {
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path);
        }
    }
    found
}

#[test]
fn two_ranks_learn_what_burns_own_strategy_learns_on_the_joined_batches() {
    let folder = tempfile::tempdir().unwrap();
    let found = run(learning(&folder.path().join("ranks")));
    let alone = Learning { joined: true, ..learning(&folder.path().join("alone")) };
    let expected = learned(&Scenario::Learn(alone), 1).remove(0);
    assert_eq!(expected.error, None);
    for found in found {
        assert_eq!(found.error, None);
        assert_eq!((found.epochs, found.batches), (expected.epochs, expected.batches));
        assert_close(&found.parameters, &expected.parameters, 1e-5);
    }
}

#[test]
fn rank_0_alone_writes_metrics_logs_and_checkpoints() {
    let folder = tempfile::tempdir().unwrap();
    let directories: Vec<PathBuf> = (0..RANKS).map(|rank| folder.path().join(rank.to_string())).collect();
    run(Learning { directories: directories.clone(), ..learning(folder.path()) });
    let written = files(&directories[0]);
    for name in
        ["experiment.log", "checkpoint/model-2.bpk", "checkpoint/optim-2.bpk", "checkpoint/scheduler-2.bpk"]
    {
        assert!(written.contains(&directories[0].join(name)), "{name} is missing: {written:#?}");
    }
    let has_metric = |split: &str, metric: &str| {
        written.iter().any(|path| {
            let path = path.strip_prefix(&directories[0]).unwrap();
            path.starts_with(split) && path.ends_with(metric)
        })
    };
    for split in ["train", "valid"] {
        for metric in ["Loss.log", "Accuracy.log"] {
            assert!(has_metric(split, metric), "{split} {metric} is missing: {written:#?}");
        }
    }
    assert_eq!(files(&directories[1]), BTreeSet::new());
}

#[test]
fn early_stopping_ends_both_ranks_after_the_same_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let ends = run(Learning { epochs: 6, early_stopping: true, ..learning(folder.path()) });
    for end in ends {
        assert_eq!((end.epochs, end.batches, end.error), (3, 3 * BATCHES, None));
    }
}

#[test]
fn an_interruption_on_rank_1_ends_both_ranks_in_the_same_step() {
    let folder = tempfile::tempdir().unwrap();
    let (epoch, batch) = (1, 2);
    let ends = run(Learning { epochs: 4, interruption: Some((1, epoch, batch)), ..learning(folder.path()) });
    for end in ends {
        // The batch in which it happens has been loaded and is not trained on.
        assert_eq!((end.epochs, end.batches), (epoch + 1, epoch * BATCHES + batch + 1));
        assert!(end.interrupted);
        assert_eq!(end.error, None);
    }
}

#[test]
fn a_resumed_training_ends_with_the_bits_of_one_that_was_not_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let whole = run(Learning { epochs: 4, ..learning(&folder.path().join("whole")) });
    let parts = learning(&folder.path().join("parts"));
    let first = run(parts.clone());
    let second = run(Learning { epochs: 4, resume: Some(2), ..parts });
    assert_ne!(first[0].sha256, second[0].sha256);
    assert_eq!((second[0].epochs, second[0].batches), (2, 2 * BATCHES));
    assert_eq!(second[0].sha256, whole[0].sha256);
}
