//! burn-train's learner on two ranks.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use burn_nccl::amp::{GradScalerConfig, Precision};
use burn_nccl::ddp::UnevenInputs;
use burn_nccl_tests::fault::FAULT_EXIT_CODE;
use burn_nccl_tests::learning::Learning;
use burn_nccl_tests::loader::{Event, Incident, LOADING_ERROR};
use burn_nccl_tests::report::Learned;
use burn_nccl_tests::{Report, Scenario};

use crate::harness::{self, assert_close, learned};

const RANKS: usize = 2;
const BATCHES: usize = 6;
const RATE: f64 = 0.2;

/// Two epochs of two ranks which share a folder.
fn learning(folder: &Path) -> Learning {
    Learning {
        directories: vec![folder.to_owned(); RANKS],
        batches: vec![BATCHES; RANKS],
        joined: false,
        epochs: 2,
        resume: None,
        rate: RATE,
        accumulation: None,
        precision: Precision::F32,
        uneven_inputs: UnevenInputs::Even,
        early_stopping: false,
        synchronized_norm: false,
        two_devices: false,
        scaling: Vec::new(),
        incident: None,
        validation_incident: None,
    }
}

/// Runs it on two ranks, which must end with the same bits.
fn run(learning: Learning) -> Vec<Learned> {
    let ends = learned(&Scenario::Learn(learning), RANKS);
    assert_eq!(ends[0].sha256, ends[1].sha256, "the ranks ended with different parameters: {ends:#?}");
    ends
}

/// Runs it on two ranks, and `alone` in one process on the joined batches, with the same result.
fn assert_equals_joined(learning: Learning, alone: Learning) {
    let expected = learned(&Scenario::Learn(Learning { joined: true, ..alone }), 1).remove(0);
    assert_eq!(expected.error, None);
    for (rank, found) in run(learning.clone()).into_iter().enumerate() {
        assert_eq!(found.error, None);
        assert_eq!((found.epochs, found.batches), (expected.epochs, 2 * learning.batches[rank]));
        assert_close(&found.parameters, &expected.parameters, 1e-5);
    }
}

/// Something that happens on rank 1 in the third batch of the second of four epochs.
fn incident(event: Event, folder: &Path) -> Learning {
    let incident = Some(Incident { rank: 1, epoch: 1, batch: 2, event });
    Learning { epochs: 4, incident, ..learning(folder) }
}

/// Batches loaded until the incident, the one in which it happens included.
const BATCHES_UNTIL_INCIDENT: usize = BATCHES + 3;

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
    let alone = learning(&folder.path().join("alone"));
    assert_equals_joined(learning(&folder.path().join("ranks")), alone);
}

/// The learner keeps its own model: its layers must be in the group, not those of a copy.
#[test]
fn two_ranks_with_a_synchronized_norm_learn_what_one_process_learns_on_the_joined_batches() {
    let folder = tempfile::tempdir().unwrap();
    let learning = |name| Learning { synchronized_norm: true, ..learning(&folder.path().join(name)) };
    assert_equals_joined(learning("ranks"), learning("alone"));
}

/// Burn's own strategy gathers the model on one device; that of the ranks leaves each part where it is.
#[test]
fn two_ranks_with_a_model_on_two_devices_learn_what_one_process_learns_on_one() {
    let folder = tempfile::tempdir().unwrap();
    let learning = |name| Learning { two_devices: true, ..learning(&folder.path().join(name)) };
    assert_equals_joined(learning("ranks"), learning("alone"));
    assert!(run(learning("again")).iter().all(|end| end.devices == 2));
}

#[test]
fn two_ranks_learn_in_half_precision_what_they_learn_in_f32() {
    let folder = tempfile::tempdir().unwrap();
    let of = |precision: Precision| {
        let learning = learning(&folder.path().join(precision.name()));
        let scaling = match precision {
            Precision::F16 => vec![GradScalerConfig::new(); RANKS],
            _ => Vec::new(),
        };
        let ends = run(Learning { precision, scaling, accumulation: Some(2), ..learning });
        assert_eq!(ends[0].error, None);
        ends[0].parameters.clone()
    };
    let exact = of(Precision::F32);
    for (precision, tolerance) in [(Precision::BF16, 2e-2), (Precision::F16, 3e-3)] {
        let found = of(precision);
        assert_ne!(found, exact, "{precision} must round something");
        assert_close(&found, &exact, tolerance);
    }
}

#[test]
fn accumulated_micro_batches_are_averaged_where_burns_own_strategy_adds_them_up() {
    let folder = tempfile::tempdir().unwrap();
    let ranks = Learning { accumulation: Some(3), ..learning(&folder.path().join("ranks")) };
    let alone =
        Learning { accumulation: Some(3), rate: RATE / 3.0, ..learning(&folder.path().join("alone")) };
    assert_equals_joined(ranks, alone);
}

#[test]
fn a_rank_with_fewer_batches_joins_in_where_that_is_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let uneven = |name| Learning {
        batches: vec![3, 5],
        uneven_inputs: UnevenInputs::JoinActive,
        ..learning(&folder.path().join(name))
    };
    assert_equals_joined(uneven("ranks"), uneven("alone"));
}

#[test]
fn a_rank_with_fewer_batches_is_named_on_both_ranks_by_default() {
    let folder = tempfile::tempdir().unwrap();
    for end in run(Learning { batches: vec![3, 5], ..learning(folder.path()) }) {
        let error = end.error.expect("an error");
        assert!(error.contains("ranks [0] of 2 have no batch left"), "{error}");
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
    for end in run(incident(Event::Interruption, folder.path())) {
        // The batch in which it happens has been loaded and is not trained on.
        assert_eq!((end.epochs, end.batches), (2, BATCHES_UNTIL_INCIDENT));
        assert!(end.interrupted);
        assert_eq!(end.error, None);
    }
}

#[test]
fn a_batch_that_rank_1_cannot_load_ends_both_ranks_in_the_same_step() {
    let folder = tempfile::tempdir().unwrap();
    let ends = run(incident(Event::LoadingError, folder.path()));
    for end in &ends {
        assert_eq!((end.epochs, end.batches), (2, BATCHES_UNTIL_INCIDENT));
    }
    assert!(ends[0].interrupted && ends[0].error.is_none(), "{:?}", ends[0]);
    assert!(ends[1].error.as_ref().is_some_and(|error| error.contains(LOADING_ERROR)), "{:?}", ends[1]);
}

#[test]
fn a_validation_that_breaks_off_on_rank_0_leaves_no_checkpoint_of_its_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let incident = Incident { rank: 0, epoch: 1, batch: 1, event: Event::LoadingError };
    let learning = Learning { epochs: 4, validation_incident: Some(incident), ..learning(folder.path()) };
    let ends = run(learning);
    assert!(ends[0].error.as_ref().is_some_and(|error| error.contains(LOADING_ERROR)), "{:?}", ends[0]);
    assert!(ends[1].interrupted, "{:?}", ends[1]);
    let names: Vec<String> = files(folder.path())
        .iter()
        .filter(|path| path.components().any(|part| part.as_os_str() == "checkpoint"))
        .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
        .collect();
    assert!(names.iter().any(|name| name.contains("-1")), "{names:?}");
    assert!(!names.iter().any(|name| name.contains("-2")), "{names:?}");
}

#[test]
fn a_rank_that_exits_is_named_in_the_learners_result() {
    let folder = tempfile::tempdir().unwrap();
    let ends = harness::run(&Scenario::Learn(incident(Event::Exit, folder.path())), RANKS, None);
    assert_eq!(ends[1].status.code(), Some(FAULT_EXIT_CODE));
    let [Report::Learned(Learned { error: Some(error), .. })] = &ends[0].reports()[..] else {
        panic!("expected an error in the result: {ends:#?}");
    };
    assert!(error.contains("rank 1 is gone"), "{error}");
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

#[test]
fn scaled_losses_give_the_bits_of_unscaled_ones() {
    let folder = tempfile::tempdir().unwrap();
    let plain = run(learning(&folder.path().join("plain")));
    // 65536 and 2^17, to which it grows after ten of the twelve steps, move exponents alone.
    let scaling = vec![GradScalerConfig::new().with_growth_interval(10); RANKS];
    let scaled = run(Learning { scaling, ..learning(&folder.path().join("scaled")) });
    assert_eq!(scaled[0].sha256, plain[0].sha256);
    assert_eq!(scaled[0].scaling, Some((131072.0, 0)));
}

#[test]
fn an_overflow_on_rank_1_makes_both_ranks_skip_the_step_and_halve_the_scale() {
    let folder = tempfile::tempdir().unwrap();
    let scaling = vec![GradScalerConfig::new(); RANKS];
    let ends = run(Learning { scaling, ..incident(Event::Overflow, folder.path()) });
    for end in &ends {
        assert_eq!((end.epochs, end.batches, &end.error), (4, 4 * BATCHES, &None));
        assert_eq!(end.scaling, Some((32768.0, 1)));
        assert!(end.parameters.iter().all(|value| value.is_finite()), "{end:?}");
    }
}

#[test]
fn an_overflow_at_the_floor_of_the_scale_ends_training_on_both_ranks_with_the_cause() {
    let folder = tempfile::tempdir().unwrap();
    let scaling = vec![GradScalerConfig::new().with_init_scale(1.0); RANKS];
    for end in run(Learning { scaling, ..incident(Event::Overflow, folder.path()) }) {
        assert_eq!(end.batches, BATCHES_UNTIL_INCIDENT);
        let error = end.error.expect("training stops");
        assert!(error.contains("overflow even with a loss scale of 1"), "{error}");
    }
}

#[test]
fn a_rank_that_starts_with_another_scale_is_named_on_both_ranks_in_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let scaling = vec![GradScalerConfig::new(), GradScalerConfig::new().with_init_scale(1024.0)];
    for end in run(Learning { scaling, ..learning(folder.path()) }) {
        assert_eq!(end.batches, 1);
        let error = end.error.expect("training stops");
        assert!(error.contains("rank 0 has 65536") && error.contains("rank 1 has 1024"), "{error}");
    }
}
