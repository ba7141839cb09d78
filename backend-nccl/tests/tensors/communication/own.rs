//! Hooks of a user's own, those that fail included.

use std::time::{Duration, Instant};

use burn::tensor::Device;
use burn_nccl::ddp::communication::{
    AllReduce, BucketLayout, Communication, CommunicationHook, GradientBucket, HookError,
};
use burn_nccl::ddp::{DdpConfig, DistributedDataParallel};
use burn_nccl::group::Reserved;
use burn_nccl::{DType, Error, Failure, ProcessGroup, ReduceOp};

use super::{Given, one_parameter_buckets, step_with};
use crate::on_ranks;

/// Sends the largest values of each rank and nothing else: the mean of what was sent.
#[derive(Debug)]
struct TopK(usize);

impl CommunicationHook for TopK {
    fn name(&self) -> String {
        format!("top {}", self.0)
    }

    fn average(
        &mut self,
        bucket: &mut GradientBucket<'_>,
        collectives: &mut Reserved<'_>,
    ) -> Result<(), HookError> {
        assert_eq!(bucket.dtype(), DType::F32);
        let values: &mut [f32] = bytemuck::cast_slice_mut(bucket.bytes_mut());
        let mut order: Vec<u32> = (0..values.len() as u32).collect();
        order.sort_by(|a, b| values[*b as usize].abs().total_cmp(&values[*a as usize].abs()));
        let sent: Vec<u32> =
            order[..self.0].iter().flat_map(|&at| [at, values[at as usize].to_bits()]).collect();
        let mut all = vec![0u32; sent.len() * collectives.world_size()];
        let received: &mut [u8] = bytemuck::cast_slice_mut(&mut all);
        collectives.all_gather(bytemuck::cast_slice(&sent), received, DType::U8)?;
        values.fill(0.0);
        for pair in all.chunks_exact(2) {
            values[pair[0] as usize] += f32::from_bits(pair[1]) / collectives.world_size() as f32;
        }
        Ok(())
    }
}

/// What a hook does wrong, in which bucket; on rank 1 only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Error(usize),
    Panic(usize),
    AtTheEnd,
    OneTooMany,
}

#[derive(Debug)]
struct Failing {
    wrong: Wrong,
    rank: usize,
}

impl CommunicationHook for Failing {
    fn name(&self) -> String {
        "failing".into()
    }

    fn average(
        &mut self,
        bucket: &mut GradientBucket<'_>,
        collectives: &mut Reserved<'_>,
    ) -> Result<(), HookError> {
        let index = bucket.index();
        match self.wrong {
            Wrong::Error(at) if (index, self.rank) == (at, 1) => return Err("the disk is full".into()),
            Wrong::Panic(at) if (index, self.rank) == (at, 1) => panic!("expected by the test"),
            Wrong::OneTooMany => AllReduce.average(bucket, collectives)?,
            _ => {}
        }
        AllReduce.average(bucket, collectives)
    }

    fn finish(&mut self, _buckets: &mut [GradientBucket<'_>]) -> Result<(), HookError> {
        match self.wrong {
            Wrong::AtTheEnd if self.rank == 1 => Err("the disk is full".into()),
            _ => Ok(()),
        }
    }
}

#[test]
fn a_hook_of_the_users_own_replaces_the_all_reduce() {
    let ranks = [
        vec![5.0, 1.0, -7.0, 0.5, 0.0, 2.0, 1.0, 2.0, 3.0],
        vec![-6.0, 1.0, 4.0, 0.5, 0.0, 3.0, 3.0, 1.0, 2.0],
    ];
    let found = on_ranks(2, |group| step_with(&group, &ranks[group.rank()], TopK(2)).unwrap());
    // Of the matrix rank 0 sends -7 and 5, rank 1 -6 and 4; of the vector 3 and 2 each.
    let expected = vec![-0.5, 0.0, -1.5, 0.0, 0.0, 0.0, 1.5, 1.0, 2.5];
    assert_eq!(found, [expected.clone(), expected]);
}

#[test]
fn a_hook_sees_the_buckets_with_their_parameters_in_the_order_of_launch() {
    /// Keeps what it is told and refuses.
    #[derive(Debug)]
    struct Curious;
    impl CommunicationHook for Curious {
        fn name(&self) -> String {
            "curious".into()
        }
        fn prepare(&mut self, buckets: &[BucketLayout], world_size: usize) -> Result<(), HookError> {
            Err(format!("{world_size} ranks, {buckets:?}").into())
        }
        fn average(&mut self, _: &mut GradientBucket<'_>, _: &mut Reserved<'_>) -> Result<(), HookError> {
            Ok(())
        }
    }
    for error in on_ranks(2, |group| step_with(&group, &[0.0; 9], Curious).unwrap_err()) {
        let Error::CommunicationHookRefused { hook, reason } = &error else { panic!("{error}") };
        assert_eq!(hook, "curious");
        let parameter = |name: &str, shape: &str, end: usize| {
            format!("[BucketParameter {{ name: \"{name}\", shape: {shape}, range: 0..{end} }}]")
        };
        let bucket = |index: usize, last: bool, parameters: String| {
            format!(
                "BucketLayout {{ index: {index}, is_last: {last}, dtype: F32, len_bytes: 64, parameters: {parameters} }}"
            )
        };
        let bias = bucket(0, false, parameter("bias", "[3]", 12));
        let weight = bucket(1, true, parameter("weight", "[2, 3]", 24));
        assert_eq!(*reason, format!("2 ranks, [{bias}, {weight}]"));
    }
}

#[test]
fn a_hook_that_fails_on_one_rank_is_an_error_on_all_at_once() {
    for wrong in [Wrong::Error(0), Wrong::Error(1), Wrong::Panic(0), Wrong::Panic(1), Wrong::AtTheEnd] {
        let start = Instant::now();
        let errors = on_ranks(3, |group| {
            let hook = Failing { wrong, rank: group.rank() };
            let first = step_with(&group, &[1.0; 9], hook);
            // The end of a step comes after its last collective, so that the others hear of it in the next one.
            let later = group.barrier();
            first.and(later.map(|()| Vec::<f32>::new())).expect_err("an error on every rank")
        });
        let place = match wrong {
            Wrong::Error(bucket) | Wrong::Panic(bucket) => format!("bucket {bucket}"),
            Wrong::AtTheEnd | Wrong::OneTooMany => "the end of a step".into(),
        };
        let Error::CommunicationHook { hook, place: found, rank: 1, cause } = &errors[1] else {
            panic!("{wrong:?}: {}", errors[1]);
        };
        assert_eq!((hook.as_str(), found), ("failing", &place));
        let text = if matches!(wrong, Wrong::Panic(_)) { "it panicked" } else { "the disk is full" };
        assert!(cause.to_string().contains(text), "{cause}");
        for other in [&errors[0], &errors[2]] {
            assert!(
                matches!(other.failure(), Some(Failure::Aborted { rank: 1, reason }) if reason.contains("`failing` failed")),
                "{other}"
            );
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{wrong:?}: an error came only with the deadline");
    }
}

#[test]
fn a_hook_that_runs_more_collectives_than_it_said_is_stopped_on_all_ranks() {
    for error in on_ranks(2, |group| {
        step_with(&group, &[1.0; 9], Failing { wrong: Wrong::OneTooMany, rank: group.rank() }).unwrap_err()
    }) {
        match error {
            Error::CommunicationHook { cause, .. } => {
                assert!(cause.to_string().contains("a job of 1 reserved places"), "{cause}");
            }
            // The other rank may have said so first.
            other => assert!(matches!(other.failure(), Some(Failure::Aborted { .. })), "{other}"),
        }
    }
}

/// Calls the group that it runs on.
#[derive(Debug)]
struct Circular(ProcessGroup);

impl CommunicationHook for Circular {
    fn name(&self) -> String {
        "circular".into()
    }

    fn average(&mut self, bucket: &mut GradientBucket<'_>, _: &mut Reserved<'_>) -> Result<(), HookError> {
        Ok(self.0.all_reduce(bucket.bytes_mut(), DType::F32, ReduceOp::Mean)?)
    }
}

#[test]
fn a_hook_that_calls_the_group_it_runs_on_is_told_what_to_use_instead() {
    let start = Instant::now();
    let errors = on_ranks(2, |group| step_with(&group, &[1.0; 9], Circular(group.clone())).unwrap_err());
    let is_told = |error: &Error| match error {
        Error::CommunicationHook { cause, .. } => cause.to_string().contains("methods of the `Reserved`"),
        // The other rank may have said so first.
        other => matches!(other.failure(), Some(Failure::Aborted { .. })),
    };
    assert!(errors.iter().all(is_told), "{errors:?}");
    assert!(errors.iter().any(|error| matches!(error, Error::CommunicationHook { .. })), "{errors:?}");
    assert!(start.elapsed() < Duration::from_secs(30), "{:?}", start.elapsed());
}

#[test]
fn a_hook_that_cannot_be_meant_is_refused_before_anything_is_sent() {
    /// Sends nothing.
    #[derive(Debug)]
    struct Silent;
    impl CommunicationHook for Silent {
        fn name(&self) -> String {
            "silent".into()
        }
        fn collectives(&self) -> u64 {
            0
        }
        fn average(&mut self, _: &mut GradientBucket<'_>, _: &mut Reserved<'_>) -> Result<(), HookError> {
            Ok(())
        }
    }
    on_ranks(2, |group| {
        let error = step_with(&group, &[0.0; 9], Silent).unwrap_err();
        assert!(error.to_string().contains("it has no collective"), "{error}");
        let model = Given::new(2, &Device::flex().autodiff());
        let config = DdpConfig::new().with_communication(Communication::F16);
        let hook = Box::new(TopK(1));
        let built = DistributedDataParallel::with_communication_hook(model, &group, &config, hook);
        let error = built.err().expect("two hooks");
        assert!(matches!(&error, Error::CommunicationHookRefused { hook, .. } if hook == "top 1"), "{error}");
        assert!(error.to_string().contains("F16 already"), "{error}");
    });
}

#[test]
fn ranks_with_other_options_of_a_hook_are_told_both_on_every_rank() {
    for error in on_ranks(2, |group| step_with(&group, &[0.0; 9], TopK(1 + group.rank())).unwrap_err()) {
        assert!(matches!(&error, Error::ModelMismatch { rank: 1, .. }), "{error}");
        assert!(error.to_string().contains("hook `top 1`, rank 1 has `top 2`"), "{error}");
    }
}

#[test]
fn a_hook_without_a_state_has_none_to_save_and_refuses_one() {
    on_ranks(2, |group| {
        let model = Given::new(2, &Device::flex().autodiff());
        let config = one_parameter_buckets();
        let (mut ddp, _) = DistributedDataParallel::new(model, &group, &config).unwrap();
        assert!(ddp.hook_state().is_none());
        let state = burn_nccl::ddp::communication::HookState { shared: vec![1], own: vec![2] };
        let error = ddp.load_hook_state(&state).unwrap_err();
        assert!(error.to_string().contains("it keeps no state"), "{error}");
    });
}
