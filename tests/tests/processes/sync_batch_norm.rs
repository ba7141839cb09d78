//! ResNet-18 with batch norm over all ranks.

use burn_nccl::Failure;
use burn_nccl_models::NormConfig;
use burn_nccl_tests::Scenario;
use burn_nccl_tests::report::Trained;
use burn_nccl_tests::resnet::ResNetTraining;
use burn_nccl_tests::training::Precision;

use crate::harness::{assert_close, run, trained, trained_alone};

const RANKS: usize = 2;

/// Parameters and running statistics; the gradients' buckets are reduced while the norm layers run their own
/// collectives.
fn assert_step_equals_joined(precision: Precision, tolerance: f64) -> Trained {
    let training = ResNetTraining { precision, ..ResNetTraining::new(NormConfig::SyncBatch, 1) };
    let expected = trained_alone(&Scenario::JoinedResNet(training.clone(), RANKS));
    assert_ne!(expected.sha256, expected.start_sha256, "the reference has not learnt anything");
    let found = trained(&Scenario::ResNet(training), RANKS);
    assert_eq!(found[0].sha256, found[1].sha256);
    assert_eq!(found[0].start_sha256, expected.start_sha256);
    assert_close(&found[0].parameters, &expected.parameters, tolerance);
    expected
}

#[test]
fn a_step_of_a_resnet_on_two_ranks_equals_one_process_on_the_joined_batch() {
    let expected = assert_step_equals_joined(Precision::Single, 1e-4);
    // The comparison can fail: statistics of each rank's own batch are others.
    let local = trained(&Scenario::ResNet(ResNetTraining::new(NormConfig::Batch, 1)), RANKS);
    let difference = |(a, b): (&f64, &f64)| (a - b).abs();
    let largest = local[0].parameters.iter().zip(&expected.parameters).map(difference).fold(0.0, f64::max);
    assert!(largest > 0.01, "{largest}");
}

/// What is left in f32 is rounding.
#[test]
fn in_f64_the_step_equals_one_process_to_ten_digits() {
    assert_step_equals_joined(Precision::Double, 1e-10);
}

#[test]
fn a_rank_that_leaves_the_collective_of_a_layer_out_fails_the_job_on_all_ranks() {
    let training = ResNetTraining { skipping_rank: Some(1), ..ResNetTraining::new(NormConfig::SyncBatch, 1) };
    for end in run(&Scenario::ResNet(training), RANKS, None) {
        let failed = end.failed();
        assert!(matches!(failed.failure, Some(Failure::Mismatch { .. })), "{failed:?}");
    }
}
