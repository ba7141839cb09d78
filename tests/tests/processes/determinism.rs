//! The same bits on every rank, in every run and for every bucket size.

use std::collections::BTreeSet;

use burn_nccl::DdpConfig;
use burn_nccl_models::NormConfig;
use burn_nccl_tests::Scenario;
use burn_nccl_tests::model::Net;
use burn_nccl_tests::report::Trained;
use burn_nccl_tests::resnet::ResNetTraining;
use burn_nccl_tests::training::Training;

use crate::harness::trained;

const STEPS: usize = 5;

fn fingerprints(ends: &[Trained]) -> BTreeSet<&str> {
    ends.iter().map(|end| end.sha256.as_str()).collect()
}

#[test]
fn all_ranks_all_runs_and_all_bucket_sizes_end_with_the_same_bits() {
    for ranks in 2..=4 {
        let with_buckets = |bucket_bytes| {
            let config =
                DdpConfig::new().with_bucket_bytes(bucket_bytes).with_first_bucket_bytes(bucket_bytes);
            trained(&Scenario::Train(Training { config, ..Training::new(Net::Plain, ranks, STEPS) }), ranks)
        };
        let ends: Vec<Trained> =
            [1 << 10, 1 << 10, 64 << 10, 25 << 20].into_iter().flat_map(with_buckets).collect();
        assert_eq!(fingerprints(&ends).len(), 1, "{ranks} ranks ended with different parameters: {ends:#?}");
    }
}

#[test]
fn reducing_after_the_backward_pass_instead_of_during_it_gives_the_same_bits() {
    let with_overlap = |overlap| {
        let config =
            DdpConfig::new().with_bucket_bytes(1 << 8).with_first_bucket_bytes(1).with_overlap(overlap);
        trained(&Scenario::Train(Training { config, ..Training::new(Net::Plain, 3, STEPS) }), 3)
    };
    let ends = [with_overlap(true), with_overlap(false)].concat();
    assert_eq!(fingerprints(&ends).len(), 1, "{ends:#?}");
}

#[test]
fn a_resnet_with_local_batch_norm_stays_equal_on_both_ranks() {
    let ends = trained(&Scenario::ResNet(ResNetTraining::new(NormConfig::Batch, 3)), 2);
    assert_eq!(fingerprints(&ends).len(), 1, "the ranks ended with different parameters");
    assert_ne!(ends[0].sha256, ends[0].start_sha256);
    assert!(ends[0].parameters.iter().all(|value| value.is_finite()));
}

#[test]
fn two_hundred_steps_on_forks_and_clones_end_with_equal_parameters() {
    let ends = trained(&Scenario::Stress(200), 2);
    assert_eq!(fingerprints(&ends).len(), 1, "the ranks ended with different parameters");
    assert!(ends[0].parameters.iter().all(|value| value.is_finite()));
}
