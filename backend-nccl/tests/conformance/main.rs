//! The conformance suite on every transport, with one thread for each rank.
//!
//! The same suite runs in processes of their own in the tests of the workspace, and under `mpirun` there.

mod arguments;
mod suite;

use std::time::Duration;

use burn_nccl::transport::TransportKind;
use burn_nccl::{DType, GroupOptions, ProcessGroup, ReduceOp};
use suite::Part;

fn options() -> GroupOptions {
    GroupOptions::default()
        .with_timeout(Duration::from_secs(60))
        .with_connect_timeout(Duration::from_secs(30))
}

/// Runs `body` on every rank of a group, and returns the results in rank order.
fn on_ranks<T: Send>(
    kind: TransportKind,
    world_size: usize,
    body: impl Fn(ProcessGroup) -> T + Sync,
) -> Vec<T> {
    let groups = ProcessGroup::local(world_size, options().with_transport(kind)).unwrap();
    std::thread::scope(|scope| {
        let body = &body;
        let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || body(group))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn play(kind: TransportKind, world_sizes: &[usize], part: Part) {
    for &world_size in world_sizes {
        on_ranks(kind, world_size, |group| {
            let name = if world_size == 1 { "single" } else { kind.name() };
            assert_eq!(group.transport_name(), name);
            part.play(&group);
        });
    }
}

/// A test for each part of the suite.
macro_rules! conformance {
    ($transport:ident, $kind:expr, $worlds:expr) => {
        mod $transport {
            use super::*;

            #[test]
            fn every_operation_gives_every_rank_its_values_for_every_type_reduction_and_size() {
                play($kind, &$worlds, Part::Everything);
            }

            #[test]
            fn every_operation_moves_64_megabytes() {
                play($kind, &[3], Part::Large);
            }

            #[test]
            fn operations_in_the_background_give_the_same_values() {
                play($kind, &$worlds, Part::Asynchronous);
            }

            #[test]
            fn results_have_the_bits_of_reductions_in_rank_order_rounded_once() {
                play($kind, &$worlds, Part::Rounding);
            }

            #[test]
            fn calls_return_when_they_may_and_in_their_order() {
                play($kind, &$worlds, Part::Timing);
            }

            #[test]
            fn ten_thousand_mixed_operations_in_a_row_keep_their_values() {
                play($kind, &$worlds, Part::Mixed);
            }

            #[test]
            fn groups_of_groups_are_who_they_should_be_and_do_not_disturb_each_other() {
                play($kind, &$worlds, Part::Groups);
            }

            #[test]
            fn ten_overlapping_groups_work_at_once() {
                play($kind, &$worlds, Part::ManyGroups);
            }
        }
    };
}

conformance!(tcp, TransportKind::Tcp, [1, 2, 3, 4]);
conformance!(shm, TransportKind::SharedMemory, [1, 2, 3, 4, 8]);

#[test]
fn halves_between_hosts_are_rounded_once() {
    for hosts in [&[0, 0, 1, 1][..], &[0, 0, 0, 1], &[0, 1, 2, 2], &[0, 1, 1, 0]] {
        let mut options = options();
        options.pretended_hosts = Some(hosts.to_vec());
        let groups = ProcessGroup::local(hosts.len(), options).unwrap();
        std::thread::scope(|scope| {
            for group in groups {
                scope.spawn(move || {
                    assert_eq!(group.transport_name(), "layered");
                    Part::Halves.play(&group);
                });
            }
        });
    }
}

#[test]
fn four_jobs_at_once_choose_their_own_ports() {
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                on_ranks(TransportKind::Auto, 3, |group| {
                    let mut sum = [1i32; 5];
                    group.all_reduce(bytemuck::cast_slice_mut(&mut sum), DType::I32, ReduceOp::Sum).unwrap();
                    assert_eq!(sum, [3; 5]);
                })
            });
        }
    });
}
