//! Ranks that do not do the same: other numbers of batches, other parameters, other models.

use burn_nccl::DdpConfig;
use burn_nccl::ddp::{UnevenInputs, UnusedParameters};
use burn_nccl_tests::Scenario;
use burn_nccl_tests::model::Net;
use burn_nccl_tests::report::{ERROR_EXIT_CODE, Failed};
use burn_nccl_tests::training::{Precision, Training};

use crate::harness::run;
use crate::parity::assert_equals_joined;

fn three_and_five_batches(mode: UnevenInputs) -> Training {
    Training {
        precision: Precision::Double,
        batches: vec![3, 5],
        config: DdpConfig::new().with_uneven_inputs(mode),
        ..Training::new(Net::Plain, 2, 0)
    }
}

/// A net whose branch rank 0 alone uses, in the first three of five steps.
fn one_sided_branch(mode: UnusedParameters) -> Training {
    Training {
        precision: Precision::Double,
        branch_ranks: vec![0],
        branch_steps: 3,
        config: DdpConfig::new().with_unused_parameters(mode),
        ..Training::new(Net::Branched, 2, 5)
    }
}

/// The errors of a job in which every rank must return one.
fn errors(training: Training) -> Vec<Failed> {
    let ranks = training.nets.len();
    let ends = run(&Scenario::Train(training), ranks, None);
    assert!(ends.iter().all(|end| end.status.code() == Some(ERROR_EXIT_CODE)), "{ends:#?}");
    ends.iter().map(|end| end.failed()).collect()
}

#[test]
fn joined_ranks_with_three_and_five_batches_average_over_those_that_have_data() {
    assert_equals_joined(&three_and_five_batches(UnevenInputs::JoinActive));
}

#[test]
fn joined_ranks_with_three_and_five_batches_can_average_over_all() {
    assert_equals_joined(&three_and_five_batches(UnevenInputs::JoinWorld));
}

#[test]
fn three_and_five_batches_are_an_error_on_both_ranks_in_strict_mode() {
    for error in errors(three_and_five_batches(UnevenInputs::Strict)) {
        assert!(error.text.starts_with("ranks [0] of 2 have no batch left"), "{error:?}");
    }
}

#[test]
fn a_branch_that_one_rank_leaves_out_is_named_on_all_ranks_in_the_same_step() {
    // The first step is the last as well, so no rank can learn of it a step later.
    let training = Training { batches: vec![1, 1], ..one_sided_branch(UnusedParameters::Refuse) };
    for error in errors(training) {
        assert!(error.text.contains("rank 1: branch.weight, branch.bias"), "{error:?}");
        assert!(!error.text.contains("rank 0:"), "rank 0 used all it has: {error:?}");
    }
}

#[test]
fn an_allowed_branch_is_averaged_where_one_rank_uses_it_and_left_alone_where_none_does() {
    assert_equals_joined(&one_sided_branch(UnusedParameters::Allow));
}

#[test]
fn one_extra_layer_on_one_rank_is_shown_on_all_ranks() {
    let training =
        Training { nets: vec![Net::Plain, Net::Plain, Net::Branched], ..Training::new(Net::Plain, 3, 1) };
    for error in errors(training) {
        assert!(error.text.starts_with("rank 2 does not hold the model of rank 0"), "{error:?}");
        assert!(
            error.text.contains("rank 2 has `branch.weight` [64, 3] F32 and rank 0 does not"),
            "{error:?}"
        );
    }
}
