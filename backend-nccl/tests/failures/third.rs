//! A failure of a rank that nobody waits for.

use std::{
    sync::Barrier,
    time::{Duration, Instant},
};

use burn_nccl::{DType, Error, Failure, GroupOptions, ProcessGroup, ReduceOp, TransportKind};

use super::{failure, local, on_ranks, options};

/// How long the rank that is waited for computes.
const LATE: Duration = Duration::from_secs(3);

const TRANSPORTS: [TransportKind; 2] = [TransportKind::Tcp, TransportKind::SharedMemory];

fn is_abort_of(error: &Error, rank: usize) -> bool {
    matches!(failure(error), Failure::Aborted { rank: found, reason } if *found == rank && reason == "enough")
}

/// Runs `call` on rank 0, and 3, while rank 1 computes and rank 2, which is in `theirs`, ends the group.
fn errors_while_rank_1_is_late(
    options: GroupOptions,
    world_size: usize,
    theirs: impl Fn(&ProcessGroup) + Sync,
    call: impl Fn(&ProcessGroup) -> Vec<Error> + Sync,
) {
    let end = Barrier::new(world_size);
    on_ranks(local(world_size, options), |group| {
        group.barrier().unwrap();
        let transport = group.transport_name();
        match group.rank() {
            1 => std::thread::sleep(LATE),
            2 => std::thread::scope(|scope| {
                scope.spawn(|| theirs(&group));
                std::thread::sleep(Duration::from_millis(200));
                group.abort("enough");
            }),
            _ => {
                let start = Instant::now();
                for error in call(&group) {
                    assert!(is_abort_of(&error, 2), "{transport}: {error}");
                }
                assert!(start.elapsed() < LATE / 2, "{transport}: {:?}", start.elapsed());
            }
        }
        end.wait();
    });
}

fn all_reduce(group: &ProcessGroup) -> Result<(), Error> {
    group.all_reduce(&mut vec![0; 1 << 20], DType::F32, ReduceOp::Sum)
}

#[test]
fn an_abort_of_a_rank_that_came_ends_a_collective_that_waits_for_another() {
    for transport in TRANSPORTS {
        let theirs = |group: &ProcessGroup| assert!(all_reduce(group).is_err());
        errors_while_rank_1_is_late(options().with_transport(transport), 3, theirs, |group| {
            vec![all_reduce(group).unwrap_err()]
        });
    }
}

#[test]
fn an_abort_on_another_host_ends_a_step_of_a_collective_within_this_one() {
    let mut options = options().with_transport(TransportKind::Auto);
    options.pretended_hosts = Some(vec![0, 0, 1, 1]);
    // Rank 0 waits for rank 1 of its own host before it needs anything of the other.
    let theirs = |group: &ProcessGroup| {
        assert_eq!(group.transport_name(), "layered");
        assert!(all_reduce(group).is_err());
    };
    errors_while_rank_1_is_late(options, 4, theirs, |group| vec![all_reduce(group).unwrap_err()]);
}

#[test]
fn an_abort_of_a_third_rank_ends_a_message_and_every_later_call() {
    for transport in TRANSPORTS {
        errors_while_rank_1_is_late(
            options().with_transport(transport),
            3,
            |_| {},
            |group| {
                let small = [0; 64];
                vec![
                    group.recv(&mut vec![0; 1 << 20], DType::F32, 1).unwrap_err(),
                    group.send(&small, DType::U8, 1).unwrap_err(),
                    all_reduce(group).unwrap_err(),
                ]
            },
        );
    }
}

#[test]
fn a_message_is_refused_once_any_rank_has_ended_the_group() {
    for transport in TRANSPORTS {
        let end = Barrier::new(3);
        on_ranks(local(3, options().with_transport(transport)), |group| {
            group.barrier().unwrap();
            if group.rank() == 2 {
                group.abort("enough");
            } else {
                // The news is on its way.
                std::thread::sleep(Duration::from_millis(500));
            }
            if group.rank() == 0 {
                // It would be kept without its receiver.
                let error = group.send(&[0; 64], DType::U8, 1).unwrap_err();
                assert!(is_abort_of(&error, 2), "{transport}: {error}");
            }
            end.wait();
        });
    }
}

#[test]
fn a_rank_of_another_host_that_has_left_ends_a_step_of_a_collective_within_this_one() {
    let mut options = options().with_transport(TransportKind::Auto);
    options.pretended_hosts = Some(vec![0, 0, 1, 1]);
    let end = Barrier::new(4);
    on_ranks(local(4, options), |group| {
        group.barrier().unwrap();
        let rank = group.rank();
        let mut group = Some(group);
        match rank {
            // Rank 0 waits for rank 1 of its own host before it needs anything of rank 2, which will never come.
            0 => {
                let start = Instant::now();
                let error = all_reduce(group.as_ref().unwrap()).unwrap_err();
                assert_eq!(*failure(&error), Failure::PeerLeft { rank: 2 });
                assert!(start.elapsed() < LATE / 2, "{:?}", start.elapsed());
            }
            1 => std::thread::sleep(LATE),
            2 => drop(group.take()),
            // It calls nothing, for its own failure would be heard of instead.
            _ => {}
        }
        end.wait();
    });
}
