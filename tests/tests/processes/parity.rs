//! N ranks do what one process does on the joined batch.

use burn_nccl_datasets::Sampling;
use burn_nccl_tests::model::Net;
use burn_nccl_tests::training::{Backend, Precision, Training};
use burn_nccl_tests::{Report, Scenario};

use crate::harness::{assert_close, reports, run_alone, trained, trained_alone};

const STEPS: usize = 5;

/// Asserts that all ranks end with one set of parameters, that of the joined training.
pub(crate) fn assert_equals_joined(training: &Training) {
    let ranks = training.nets.len();
    let tolerance = match training.precision {
        Precision::Single => 1e-5,
        // Nothing on the way may be rounded to f32, which would differ by about 1e-7.
        Precision::Double => 1e-11,
    };
    let expected = trained_alone(&Scenario::Joined(training.clone()));
    assert_ne!(expected.sha256, expected.start_sha256, "the reference has not learnt anything");
    // A number loses its last bit on its way through JSON.
    let fits_f32 = |value: &f64| (f64::from(*value as f32) - value).abs() <= 1e-15 * value.abs();
    let is_single = expected.parameters.iter().all(fits_f32);
    assert_eq!(is_single, training.precision == Precision::Single, "the default float type is another");
    for found in trained(&Scenario::Train(training.clone()), ranks) {
        assert_eq!(
            found.start_sha256, expected.start_sha256,
            "a rank did not start from rank 0's parameters"
        );
        assert_close(&found.parameters, &expected.parameters, tolerance);
    }
}

fn training(net: Net, ranks: usize, precision: Precision) -> Training {
    Training { precision, ..Training::new(net, ranks, STEPS) }
}

#[test]
fn one_to_four_ranks_equal_one_process_on_the_joined_batch_in_f64() {
    for ranks in 1..=4 {
        assert_equals_joined(&training(Net::Plain, ranks, Precision::Double));
    }
}

#[test]
fn one_to_four_ranks_equal_one_process_on_the_joined_batch_in_f32() {
    for ranks in 1..=4 {
        assert_equals_joined(&training(Net::Plain, ranks, Precision::Single));
    }
}

#[test]
fn ranks_with_a_frozen_norm_equal_one_process_on_the_joined_batch() {
    for (ranks, precision) in [(2, Precision::Double), (3, Precision::Single), (4, Precision::Double)] {
        assert_equals_joined(&training(Net::FrozenNorm, ranks, precision));
    }
}

#[test]
fn two_ranks_on_ndarray_equal_one_process_on_the_joined_batch() {
    for precision in [Precision::Single, Precision::Double] {
        for net in [Net::Plain, Net::FrozenNorm] {
            assert_equals_joined(&Training { backend: Backend::NdArray, ..training(net, 2, precision) });
        }
    }
}

#[test]
fn the_reference_does_not_depend_on_the_backend() {
    let joined = |backend| {
        let training = Training { backend, ..training(Net::FrozenNorm, 3, Precision::Double) };
        trained_alone(&Scenario::Joined(training))
    };
    let (flex, ndarray) = (joined(Backend::Flex), joined(Backend::NdArray));
    assert_close(&flex.parameters, &ndarray.parameters, 1e-9);
}

#[test]
fn an_exact_evaluation_by_four_ranks_counts_what_one_counts() {
    let evaluate = |sampling| Scenario::Evaluate(10, sampling);
    let [Report::Evaluated { correct: expected, total: 10 }] =
        run_alone(&evaluate(Sampling::Exact)).reports()[..]
    else {
        panic!("one process did not evaluate 10 samples");
    };
    assert!((1..10).contains(&expected), "{expected} of 10 would not show a sample that counts twice");
    for report in reports(&evaluate(Sampling::Exact), 4) {
        let Report::Evaluated { correct, total } = report else {
            panic!("expected counts, found {report:?}")
        };
        assert_eq!((correct, total), (expected, 10));
    }
    // The padding of training counts two samples twice, which is why evaluation must not use it.
    for report in reports(&evaluate(Sampling::Pad), 4) {
        assert!(matches!(report, Report::Evaluated { total: 12, .. }), "{report:?}");
    }
}
