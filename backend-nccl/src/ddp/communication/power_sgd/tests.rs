use std::time::Duration;

use burn::tensor::Bytes;
use serde::Deserialize;

use super::{PowerSgd, PowerSgdConfig};
use crate::ddp::arithmetic::{narrow, widen};
use crate::ddp::communication::{
    BucketLayout, BucketParameter, CommunicationHook, Communicator, HookState, Terms,
};
use crate::transport::{DType, ReduceOp};
use crate::{Error, GroupOptions, ProcessGroup};

const SHAPES: [&[usize]; 4] = [&[6, 4, 3], &[5], &[9, 8], &[3, 2]];
const MEAN: Terms = Terms { op: ReduceOp::Mean, loss_scale: 1.0 };

/// As `uniform` in reference/make.py.
fn uniform(seed: u64, count: usize) -> impl Iterator<Item = f32> {
    (1..=count as u64).map(move |index| {
        let hashed = (index.wrapping_mul(2_654_435_761).wrapping_add(seed * 40_503)) % (1 << 32);
        (hashed >> 23) as f32 / 256.0 - 1.0
    })
}

/// As `gradient` in reference/make.py, of all tensors.
fn gradients(rank: usize, step: usize) -> Vec<f32> {
    let of_tensor = |(tensor, shape): (usize, &&[usize])| {
        let count = shape.iter().product();
        let noise = uniform((1000 + 100 * rank + 10 * step + tensor) as u64, count);
        let shared = uniform(100 + tensor as u64, count).map(|value| value * (1.0 + step as f32 / 4.0));
        shared.zip(noise).map(|(shared, noise)| shared + noise).collect::<Vec<_>>()
    };
    SHAPES.iter().enumerate().flat_map(of_tensor).collect()
}

fn mean(ranks: usize, of_rank: impl Fn(usize) -> Vec<f32>) -> Vec<f32> {
    let mut sum = of_rank(0);
    for rank in 1..ranks {
        sum.iter_mut().zip(of_rank(rank)).for_each(|(sum, value)| *sum += value);
    }
    sum.iter().map(|value| value / ranks as f32).collect()
}

fn layout(dtype: DType) -> BucketLayout {
    let mut start = 0;
    let parameters = SHAPES.iter().enumerate().map(|(tensor, shape)| {
        let range = start..start + shape.iter().product::<usize>() * dtype.size_bytes();
        start = range.end.next_multiple_of(64);
        BucketParameter { name: format!("tensor {tensor}"), shape: shape.to_vec(), range }
    });
    let parameters = parameters.collect();
    BucketLayout { index: 0, is_last: true, dtype, len_bytes: start, parameters }
}

fn prepared(config: &PowerSgdConfig) -> PowerSgd {
    let mut hook = PowerSgd::new(config.clone());
    hook.prepare(&[layout(DType::F32)], 2).unwrap();
    hook
}

/// A hook on one rank with one bucket.
struct Rank {
    group: ProcessGroup,
    layout: BucketLayout,
    communicator: Communicator,
    used: Vec<bool>,
}

impl Rank {
    fn new(group: ProcessGroup, config: &PowerSgdConfig, dtype: DType) -> Self {
        let layout = layout(dtype);
        let hook = Box::new(PowerSgd::new(config.clone()));
        let communicator = Communicator::new(hook, vec![layout.clone()], &group).unwrap();
        Self { group, layout, communicator, used: vec![true; SHAPES.len()] }
    }

    /// Averages what all ranks give.
    fn step(&self, gradients: &[f32], terms: Terms) -> Vec<f32> {
        let dtype = self.layout.dtype;
        let mut bytes = Bytes::from_elems(vec![0u64; self.layout.len_bytes / 8]);
        let mut start = 0;
        for parameter in &self.layout.parameters {
            let count: usize = parameter.shape.iter().product();
            narrow(&gradients[start..start + count], &mut bytes[parameter.range.clone()], dtype);
            start += count;
        }
        let bytes = self.communicator.start(&self.group, 0, bytes, terms).wait().unwrap();
        let mut buckets = [bytes];
        self.communicator.finish(&self.group, &mut buckets, &[self.used.clone()], terms).unwrap();
        let mut averages = vec![0.0; gradients.len()];
        let mut start = 0;
        for parameter in &self.layout.parameters {
            let count: usize = parameter.shape.iter().product();
            widen(&buckets[0][parameter.range.clone()], dtype, &mut averages[start..start + count]);
            start += count;
        }
        averages
    }

    fn state(&self) -> HookState {
        self.communicator.state().unwrap()
    }

    /// This rank's errors, in the order of the compressed tensors.
    fn errors(&self, config: &PowerSgdConfig) -> Vec<f32> {
        let mut hook = prepared(config);
        hook.load_state(&self.state()).unwrap();
        hook.buckets.remove(0).errors
    }
}

fn on_ranks<T: Send>(ranks: usize, body: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    let options = GroupOptions::default().with_timeout(Duration::from_secs(60));
    let groups = ProcessGroup::local(ranks, options).unwrap();
    std::thread::scope(|scope| {
        let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(|| body(group))).collect();
        ranks.into_iter().map(|rank| rank.join().expect("the rank does not panic")).collect()
    })
}

fn assert_close(found: &[f32], expected: &[f32], tolerance: f32, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let limit = tolerance * expected.abs().max(1.0);
        assert!((found - expected).abs() <= limit, "{what}, element {index}: {found}, expected {expected}");
    }
}

/// From the first step, everything compressed that gets smaller by it.
fn config(rank: usize) -> PowerSgdConfig {
    PowerSgdConfig::new().with_rank(rank).with_start_step(0).with_min_compression_rate(1.0)
}

/// Full rank for every matrix.
fn full() -> PowerSgdConfig {
    config(20).with_min_compression_rate(1e-3)
}

#[derive(Deserialize)]
struct Reference {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    rank: usize,
    start_step: usize,
    min_compression_rate: f64,
    error_feedback: bool,
    outputs: Vec<Vec<f32>>,
    mean_error: Vec<f32>,
}

/// A state whose directions are those of the reference.
fn first_directions(config: &PowerSgdConfig) -> HookState {
    let mut hook = prepared(config);
    let bucket = &mut hook.buckets[0];
    bucket.directions = vec![0.0; bucket.plan.q];
    for matrix in &bucket.plan.matrices {
        let values = uniform(50 + matrix.parameter as u64, matrix.q.len());
        for (at, value) in values.enumerate() {
            let (j, k) = (at / matrix.rank, at % matrix.rank);
            bucket.directions[matrix.q.start + k * matrix.columns + j] = value;
        }
    }
    hook.state().unwrap()
}

#[test]
fn averages_and_errors_are_those_of_torchs_hook() {
    let reference: Reference = serde_json::from_str(include_str!("reference/power_sgd.json")).unwrap();
    assert_eq!(reference.cases.len(), 5);
    for case in reference.cases {
        let config = PowerSgdConfig::new()
            .with_rank(case.rank)
            .with_start_step(case.start_step)
            .with_min_compression_rate(case.min_compression_rate)
            .with_error_feedback(case.error_feedback);
        let found = on_ranks(2, |group| {
            let rank = Rank::new(group, &config, DType::F32);
            rank.communicator.load_state(&rank.group, &first_directions(&config)).unwrap();
            let number = rank.group.rank();
            let outputs: Vec<_> =
                (0..case.outputs.len()).map(|step| rank.step(&gradients(number, step), MEAN)).collect();
            (outputs, rank.errors(&config))
        });
        assert_eq!(found[0].0, found[1].0, "{}: the ranks' bits differ", case.name);
        for (step, (found, expected)) in found[0].0.iter().zip(&case.outputs).enumerate() {
            assert_close(found, expected, 2e-5, &format!("{}, step {step}", case.name));
        }
        let errors = mean(2, |rank| found[rank].1.clone());
        // The reference has errors of what is averaged whole too, whose mean is zero.
        let plan = &prepared(&config).buckets[0].plan;
        let starts = [0, 72, 77, 149];
        let expected = plan.matrices.iter().filter(|_| case.error_feedback).flat_map(|matrix| {
            case.mean_error[starts[matrix.parameter]..][..matrix.error.len()].iter().copied()
        });
        assert_close(&errors, &expected.collect::<Vec<_>>(), 2e-5, &format!("{}, error", case.name));
    }
}

#[test]
fn a_rank_as_large_as_the_matrix_gives_the_mean_in_every_float_type() {
    for (dtype, tolerance) in
        [(DType::F32, 1e-5), (DType::F64, 1e-5), (DType::F16, 2e-3), (DType::BF16, 1e-2)]
    {
        for ranks in [1, 2, 3] {
            let found = on_ranks(ranks, |group| {
                let rank = Rank::new(group, &full(), dtype);
                (0..3).map(|step| rank.step(&gradients(rank.group.rank(), step), MEAN)).collect::<Vec<_>>()
            });
            assert!(found.iter().all(|other| *other == found[0]));
            for (step, found) in found[0].iter().enumerate() {
                let expected = mean(ranks, |rank| gradients(rank, step));
                assert_close(found, &expected, tolerance, &format!("{dtype}, {ranks} ranks, step {step}"));
            }
        }
    }
}

#[test]
fn what_was_applied_and_what_is_left_add_up_to_the_gradients() {
    const STEPS: usize = 60;
    let found = on_ranks(2, |group| {
        let rank = Rank::new(group, &config(1), DType::F32);
        let mut applied = vec![0.0; gradients(0, 0).len()];
        for step in 0..STEPS {
            let output = rank.step(&gradients(rank.group.rank(), step % 4), MEAN);
            applied.iter_mut().zip(output).for_each(|(sum, value)| *sum += value);
        }
        (applied, rank.errors(&config(1)))
    });
    let plan = &prepared(&config(1)).buckets[0].plan;
    let starts = [0, 72, 77, 149];
    let left = mean(2, |rank| found[rank].1.clone());
    let mut truth = vec![0.0; found[0].0.len()];
    for step in 0..STEPS {
        let mean = mean(2, |rank| gradients(rank, step % 4));
        truth.iter_mut().zip(mean).for_each(|(sum, value)| *sum += value);
    }
    let norm = |values: &[f32]| values.iter().map(|value| value * value).sum::<f32>().sqrt();
    for matrix in &plan.matrices {
        let at = starts[matrix.parameter]..starts[matrix.parameter] + matrix.error.len();
        let (applied, truth) = (&found[0].0[at.clone()], &truth[at]);
        let left = &left[matrix.error.clone()];
        let sum: Vec<f32> = applied.iter().zip(left).map(|(applied, left)| applied + left).collect();
        assert_close(&sum, truth, 1e-4, "the sum");
        // One step leaves most of a matrix out. Over many, what is out does not grow.
        let difference: Vec<f32> =
            applied.iter().zip(truth).map(|(applied, truth)| applied - truth).collect();
        assert!(norm(&difference) < 0.15 * norm(truth), "{} of {}", norm(&difference), norm(truth));
    }
}

#[test]
fn without_error_feedback_a_rank_of_one_never_gets_the_rest_through() {
    let config = config(1).with_error_feedback(false);
    let applied = on_ranks(1, |group| {
        let rank = Rank::new(group, &config, DType::F32);
        (0..60).fold(vec![0.0; gradients(0, 0).len()], |sum, _| {
            let output = rank.step(&gradients(0, 0), MEAN);
            sum.iter().zip(output).map(|(sum, value)| sum + value).collect()
        })
    });
    let truth: Vec<f32> = gradients(0, 0).iter().map(|value| value * 60.0).collect();
    let missing: f32 = applied[0][..72].iter().zip(&truth[..72]).map(|(a, t)| (a - t).abs()).sum();
    assert!(missing > 0.3 * truth[..72].iter().map(|value| value.abs()).sum::<f32>());
}

#[test]
fn an_infinity_or_nan_reaches_all_ranks_and_leaves_what_is_kept_as_it_was() {
    for bad in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX] {
        // In a matrix, in the vector that is averaged whole, in the other matrix.
        for place in [7, 73, 148] {
            let run = |with_bad: bool| {
                on_ranks(2, |group| {
                    let rank = Rank::new(group, &config(2), DType::F32);
                    let number = rank.group.rank();
                    rank.step(&gradients(number, 0), MEAN);
                    let before = rank.errors(&config(2));
                    if with_bad {
                        let mut spoilt = gradients(number, 3);
                        spoilt[place] = if number == 1 { bad } else { spoilt[place] };
                        let output = rank.step(&spoilt, MEAN);
                        let finite = output[place].is_finite();
                        assert!(!finite || (bad == f32::MAX && place == 73), "{bad} at {place}");
                        if !finite {
                            assert_eq!(rank.errors(&config(2)), before);
                        }
                    }
                    rank.step(&gradients(number, 1), MEAN)
                })
            };
            // The largest float is no overflow where it is averaged whole, and that step counts.
            if !(bad == f32::MAX && place == 73) {
                assert_eq!(run(true), run(false), "{bad} at {place}");
            }
        }
    }
}

#[test]
fn the_error_is_in_the_units_of_the_unscaled_loss() {
    let run = |scales: [f32; 4]| {
        on_ranks(2, |group| {
            let rank = Rank::new(group, &config(1), DType::F32);
            let steps = scales.iter().enumerate().map(|(step, &scale)| {
                let scaled =
                    gradients(rank.group.rank(), step).iter().map(|value| value * scale).collect::<Vec<_>>();
                let output = rank.step(&scaled, Terms { op: ReduceOp::Mean, loss_scale: scale });
                output.iter().map(|value| value / scale).collect::<Vec<_>>()
            });
            steps.collect::<Vec<_>>()
        })
    };
    assert_eq!(run([65536.0, 65536.0, 32768.0, 131072.0]), run([1.0; 4]));
}

#[test]
fn a_rank_without_data_takes_part_with_its_error() {
    // Each rank has divided by the one rank that has data, and rank 1 has zeros.
    let sum = Terms { op: ReduceOp::Sum, loss_scale: 1.0 };
    let found = on_ranks(2, |group| {
        let rank = Rank::new(group, &config(1), DType::F32);
        let number = rank.group.rank();
        let first = rank.step(&gradients(number, 0), MEAN);
        let own = if number == 0 { gradients(0, 1) } else { vec![0.0; first.len()] };
        let second = rank.step(&own, sum);
        (first, second, rank.errors(&config(1)))
    });
    assert_eq!(found[0].1, found[1].1);
    let left = mean(2, |rank| found[rank].2.clone());
    let truth = mean(2, |rank| gradients(rank, 0)).into_iter().zip(gradients(0, 1)).map(|(a, b)| a + b);
    let applied: Vec<f32> = found[0].0.iter().zip(&found[0].1).map(|(a, b)| a + b).collect();
    let truth: Vec<f32> = truth.collect();
    // Tensor 0 is the first matrix, the vector after it is averaged whole.
    let sum: Vec<f32> = applied[..72].iter().zip(&left).map(|(applied, left)| applied + left).collect();
    assert_close(&sum, &truth[..72], 1e-5, "the matrix");
    assert_close(&applied[72..77], &truth[72..77], 1e-6, "the vector");
}

#[test]
fn a_parameter_that_no_rank_used_keeps_its_error() {
    let found = on_ranks(2, |group| {
        let mut rank = Rank::new(group, &config(1), DType::F32);
        let number = rank.group.rank();
        rank.step(&gradients(number, 0), MEAN);
        let before = rank.errors(&config(1));
        rank.used[0] = false;
        let mut without = gradients(number, 1);
        without[..72].fill(0.0);
        rank.step(&without, MEAN);
        (before, rank.errors(&config(1)))
    });
    for (before, after) in found {
        assert_eq!(before[..72], after[..72]);
        assert_ne!(before[72..], after[72..]);
    }
}

#[test]
fn zero_gradients_give_zeros_and_do_not_end_the_approximation() {
    let found = on_ranks(1, |group| {
        let rank = Rank::new(group, &full(), DType::F32);
        let zeros = rank.step(&vec![0.0; gradients(0, 0).len()], MEAN);
        assert!(zeros.iter().all(|value| *value == 0.0));
        rank.step(&gradients(0, 1), MEAN)
    });
    assert_close(&found[0], &gradients(0, 1), 1e-5, "after zeros");
}

#[test]
fn training_goes_on_from_a_saved_state_to_the_same_bits() {
    for start in [0, 3] {
        let config = config(2).with_start_step(start);
        let on = |rank: &Rank, steps: std::ops::Range<usize>| {
            steps.map(|step| rank.step(&gradients(rank.group.rank(), step), MEAN)).collect::<Vec<_>>()
        };
        let (through, states): (Vec<_>, Vec<_>) = on_ranks(2, |group| {
            let rank = Rank::new(group, &config, DType::F32);
            on(&rank, 0..2);
            let state = rank.state();
            (on(&rank, 2..6), state)
        })
        .into_iter()
        .unzip();
        assert_eq!(states[0].shared, states[1].shared);
        let resumed = on_ranks(2, |group| {
            let rank = Rank::new(group, &config, DType::F32);
            rank.communicator.load_state(&rank.group, &states[rank.group.rank()]).unwrap();
            on(&rank, 2..6)
        });
        assert_eq!(resumed, through);
    }
}

#[test]
fn a_state_that_does_not_fit_on_one_rank_is_refused_on_all_and_changes_nothing() {
    let after_a_step = |config: &PowerSgdConfig| {
        on_ranks(1, |group| {
            let rank = Rank::new(group, config, DType::F32);
            rank.step(&gradients(0, 0), MEAN);
            rank.state()
        })
        .remove(0)
    };
    let good = after_a_step(&config(2));
    let of_another_rank = after_a_step(&config(1));
    let cut = HookState { own: good.own[..good.own.len() - 1].to_vec(), ..good.clone() };
    let mut long = good.clone();
    long.shared.push(0);
    let empty = HookState { shared: Vec::new(), own: Vec::new() };
    let mut infinite = good.clone();
    let end = infinite.own.len();
    infinite.own[end - 4..].copy_from_slice(&f32::INFINITY.to_le_bytes());
    let mixed = HookState { own: prepared(&config(2)).state().unwrap().own, ..good.clone() };
    for (bad, text) in [
        (of_another_rank, "rank 1"),
        (cut, "cut off"),
        (long, "more values"),
        (empty, "too short"),
        (infinite, "not finite"),
        (mixed, "different steps"),
    ] {
        let errors = on_ranks(2, |group| {
            let rank = Rank::new(group, &config(2), DType::F32);
            let before = rank.state();
            let own = if rank.group.rank() == 1 { &bad } else { &good };
            let error = rank.communicator.load_state(&rank.group, own).unwrap_err();
            assert_eq!(rank.state(), before);
            error
        });
        let reason = |error: &Error| match error {
            Error::CommunicationHookState { reason, .. } => reason.clone(),
            other => panic!("{other}"),
        };
        assert!(reason(&errors[0]).contains("rank 1 cannot load its own"), "{}", errors[0]);
        assert!(reason(&errors[1]).contains(text), "{}", errors[1]);
    }
    let errors = on_ranks(2, |group| {
        let rank = Rank::new(group, &config(2), DType::F32);
        let own = if rank.group.rank() == 1 { prepared(&config(2)).state().unwrap() } else { good.clone() };
        rank.communicator.load_state(&rank.group, &own).unwrap_err().to_string()
    });
    assert!(errors.iter().all(|error| error.contains("rank 1 has another than rank 0")), "{errors:?}");
}

#[test]
fn options_that_cannot_be_meant_are_refused_by_name() {
    let refused = |config: PowerSgdConfig| {
        let group = ProcessGroup::single();
        let hook = Box::new(PowerSgd::new(config));
        match Communicator::new(hook, vec![layout(DType::F32)], &group) {
            Err(Error::CommunicationHookRefused { reason, .. }) => reason,
            other => panic!("{other:?}"),
        }
    };
    assert!(refused(config(0)).contains("rank is 0"));
    assert!(refused(config(1).with_min_compression_rate(f64::NAN)).contains("min_compression_rate is NaN"));
    assert!(refused(config(1).with_min_compression_rate(0.0)).contains("min_compression_rate is 0"));
    assert!(
        refused(config(1).with_orthogonalization_epsilon(-1.0)).contains("orthogonalization_epsilon is -1")
    );
}
