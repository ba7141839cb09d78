//! Ranks of several hosts, as far as one process can play them: each rank is told on which host to believe that it is.

use std::time::{Duration, Instant};

use burn_nccl::{DType, Failure, GroupOptions, ProcessGroup, ReduceOp};
use burn_nccl_tests::transfers::{Transferred, transfer, uneven};

const TIMEOUT: Duration = Duration::from_secs(60);

/// The hosts of the ranks: even, uneven, a host of one rank, ranks dealt in turn, and crossed.
const HOSTS: [&[u32]; 6] =
    [&[0, 0, 1, 1], &[0, 0, 0, 1], &[0, 1, 2, 2], &[0, 1, 0, 1], &[0, 1, 1, 0], &[0, 0, 1]];

/// Runs `body` on ranks that believe to be on these hosts.
fn on_hosts<T: Send>(hosts: &[u32], timeout: Duration, body: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    let mut options = GroupOptions::default().with_timeout(timeout).with_connect_timeout(TIMEOUT);
    options.pretended_hosts = Some(hosts.to_vec());
    let groups = ProcessGroup::local(hosts.len(), options).unwrap();
    std::thread::scope(|scope| {
        let body = &body;
        let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || body(group))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

#[test]
fn every_collective_between_hosts_is_right_and_has_one_result_on_all_ranks() {
    for hosts in HOSTS {
        let found: Vec<Transferred> = on_hosts(hosts, TIMEOUT, |group| transfer(&group).unwrap());
        assert_eq!(found[0].transport, "layered", "{hosts:?}");
        assert!(found.iter().all(|other| *other == found[0]), "{hosts:?}: {found:?}");
    }
}

#[test]
fn ranks_that_share_no_host_are_joined_by_tcp_alone_and_ranks_of_one_host_by_memory() {
    for (hosts, expected) in [([0, 1, 2], "tcp"), ([0, 0, 0], "shm")] {
        let names = on_hosts(&hosts, TIMEOUT, |group| group.transport_name());
        assert!(names.iter().all(|name| *name == expected), "{names:?}");
    }
}

/// Adds within each host in rank order, then over hosts in order, each time in f32.
fn sum_by_host(hosts: &[u32], index: usize) -> f32 {
    let of_host = |host: u32| {
        let ranks = (0..hosts.len()).filter(|rank| hosts[*rank] == host);
        ranks.map(|rank| uneven(rank, index) as f32).reduce(|sum, value| sum + value).unwrap()
    };
    let mut order = hosts.to_vec();
    order.dedup();
    order.sort_unstable();
    order.dedup();
    order.into_iter().map(of_host).reduce(|sum, value| sum + value).unwrap()
}

#[test]
fn sums_are_those_of_the_hosts_and_a_mean_is_divided_once() {
    for hosts in HOSTS {
        for count in [7, 5_003, 100_001] {
            let found = on_hosts(hosts, TIMEOUT, |group| {
                [ReduceOp::Sum, ReduceOp::Mean].map(|op| {
                    let values = (0..count).map(|index| uneven(group.rank(), index) as f32);
                    let mut buffer: Vec<u8> = values.flat_map(f32::to_ne_bytes).collect();
                    group.all_reduce(&mut buffer, DType::F32, op).unwrap();
                    buffer
                })
            });
            let sums = (0..count).map(|index| sum_by_host(hosts, index));
            let means = sums.clone().map(|sum| sum / hosts.len() as f32);
            let expected: [Vec<u8>; 2] =
                [sums.flat_map(f32::to_ne_bytes).collect(), means.flat_map(f32::to_ne_bytes).collect()];
            assert!(found.iter().all(|found| *found == expected), "{hosts:?}, {count} elements");
        }
    }
}

#[test]
fn a_mean_on_one_host_and_a_sum_on_the_other_are_told_apart() {
    let errors = on_hosts(&[0, 0, 1, 1], TIMEOUT, |group| {
        let op = if group.rank() < 2 { ReduceOp::Mean } else { ReduceOp::Sum };
        group.all_reduce(&mut [0; 400], DType::F32, op).unwrap_err()
    });
    for error in errors {
        assert!(matches!(error.failure(), Some(Failure::Mismatch { .. })), "{error}");
        let text = error.to_string();
        assert!(text.contains("mean of 400 bytes") && text.contains("sum of 400 bytes"), "{text}");
    }
}

#[test]
fn the_rank_that_does_not_come_is_named_and_none_that_waits_for_it() {
    const LIMIT: Duration = Duration::from_secs(2);
    for missing in 0..4 {
        let start = Instant::now();
        let errors = on_hosts(&[0, 0, 1, 1], LIMIT, |group| {
            if group.rank() == missing {
                // It stays, as a stopped process does, until the others have given up.
                while start.elapsed() < 2 * LIMIT {
                    std::thread::sleep(Duration::from_millis(20));
                }
                return None;
            }
            group.all_reduce(&mut vec![0; 100_000], DType::F32, ReduceOp::Sum).err()
        });
        for error in errors.into_iter().flatten() {
            let Some(Failure::Deadline { missing: named, .. }) = error.failure() else { panic!("{error}") };
            assert_eq!(named, &[missing], "{error}");
        }
    }
}
