//! What ranks with CUDA tensors see of one that dies, stays away or goes another way.

use stubs::{Config, Stubs};

use crate::ranks::Job;

const ORDERINGS: [&str; 2] = ["context-events", "host-fence"];

fn job(ranks: usize, stubs: &Stubs, name: &str) -> Job {
    Job::new(&format!("failures::inside::{name}"), &vec![stubs; ranks])
}

#[test]
fn a_rank_that_is_killed_is_named_by_the_others_long_before_the_deadline() {
    // NCCL between processes of one host does not notice a death, over sockets it does.
    for (loss, ordering) in
        [(stubs::PeerLoss::Hang, 0), (stubs::PeerLoss::Hang, 1), (stubs::PeerLoss::RemoteError, 0)]
    {
        let mut config = Config::default();
        config.nccl.peer_loss = loss;
        let stubs = Stubs::install(&config).unwrap();
        let ends = job(3, &stubs, "killed").with("BURN_NCCL_STREAM_ORDERING", ORDERINGS[ordering]).run();
        assert!(ends[1].was_killed(), "{:?}", ends[1]);
        for survivor in [0, 2] {
            ends[survivor].must_have_passed(survivor);
        }
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_when_the_deadline_passes() {
    let stubs = Stubs::install(&Config::default()).unwrap();
    for checks in ["true", "false"] {
        job(2, &stubs, "absent").with("BURN_NCCL_TEST_CHECKS", checks).pass();
    }
}

#[test]
fn collectives_that_differ_are_an_error_that_names_both_ranks_before_data_moves() {
    let stubs = Stubs::install(&Config::default()).unwrap();
    job(2, &stubs, "different").pass();
}

/// Started by the tests above as ranks.
mod inside {
    use std::time::{Duration, Instant};

    use burn::tensor::{Tensor, TensorData};
    use burn_nccl::{Error, Failure, GroupOptions, ReduceOp, functions};
    use nix::sys::signal::{Signal, raise};

    use crate::ranks::{DEADLINE, Rank};

    /// Until a death must be known. A quarter of the deadline.
    const SOON: Duration = Duration::from_secs(5);
    /// The limit of a collective that a rank stays away from.
    const LIMIT: Duration = Duration::from_secs(2);

    fn sum(rank: &Rank, len: usize) -> Result<Vec<f32>, Error> {
        let ones = TensorData::new(vec![1.0f32; len], [len]);
        let tensor = Tensor::<1>::from_data(ones, &rank.device);
        let sum = functions::all_reduce(tensor, ReduceOp::Sum, &rank.group)?;
        Ok(sum.into_data().try_to_vec().unwrap())
    }

    /// The first error of a few collectives. What is no error has the right values: that of ones is the number of ranks.
    fn first_error(rank: &Rank) -> Error {
        let all = rank.group.world_size() as f32;
        let next = || sum(rank, 1000).map(|sum| assert_eq!(sum, [all; 1000])).err();
        (0..4).find_map(|_| next()).expect("the group has failed")
    }

    #[test]
    #[ignore = "started as a rank by a test above"]
    fn killed() {
        // As in release builds, where only NCCL itself and the connection to the rank can tell.
        let options =
            GroupOptions::default().with_timeout(DEADLINE).with_connect_timeout(DEADLINE).with_check(false);
        let rank = Rank::join_with(options, |rank| rank);
        for _ in 0..5 {
            assert_eq!(sum(&rank, 1000).unwrap(), [3.0; 1000]);
        }
        if rank.number() == 1 {
            raise(Signal::SIGKILL).unwrap();
        }
        let start = Instant::now();
        let error = first_error(&rank);
        assert!(matches!(error.failure(), Some(Failure::PeerLost { rank: 1, .. })), "{error}");
        assert!(start.elapsed() < SOON, "{:?}, the deadline is {DEADLINE:?}", start.elapsed());
        assert!(error.to_string().contains("rank 1 is gone"), "{error}");
        rank.leave();
    }

    #[test]
    #[ignore = "started as a rank by a test above"]
    fn absent() {
        let checks = std::env::var("BURN_NCCL_TEST_CHECKS").as_deref() == Ok("true");
        let options =
            GroupOptions::default().with_timeout(LIMIT).with_connect_timeout(DEADLINE).with_check(checks);
        let rank = Rank::join_with(options, |rank| rank);
        assert_eq!(sum(&rank, 10).unwrap(), [2.0; 10]);
        if rank.number() == 1 {
            std::thread::sleep(2 * LIMIT);
        }
        let start = Instant::now();
        let error = first_error(&rank);
        let Some(Failure::Deadline { missing, .. }) = error.failure() else { panic!("{error}") };
        assert_eq!(*missing, [1], "{error}");
        assert!(start.elapsed() < 2 * LIMIT + SOON, "{:?}", start.elapsed());
        rank.leave();
    }

    #[test]
    #[ignore = "started as a rank by a test above"]
    fn different() {
        let rank = Rank::join();
        assert_eq!(sum(&rank, 10).unwrap(), [2.0; 10]);
        let error = sum(&rank, if rank.number() == 1 { 999 } else { 1000 }).unwrap_err();
        let Some(Failure::Mismatch { .. }) = error.failure() else { panic!("{error}") };
        let text = error.to_string();
        for part in ["rank 0", "rank 1", "4000 bytes", "3996 bytes", "failures.rs"] {
            assert!(text.contains(part), "{part} in {text}");
        }
        rank.leave();
    }
}
