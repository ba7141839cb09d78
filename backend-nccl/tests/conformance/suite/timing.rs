//! When calls may return.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use burn_nccl::{DType, ProcessGroup, ReduceOp};

pub(super) fn check(group: &ProcessGroup) {
    nobody_leaves_a_barrier_before_all_have_come(group);
    asynchronous_calls_keep_their_place(group);
}

/// Nanoseconds by the host's clock, which all ranks of a host share.
fn now() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is behind 1970");
    since.as_nanos() as u64
}

fn nobody_leaves_a_barrier_before_all_have_come(group: &ProcessGroup) {
    let (rank, ranks) = (group.rank(), group.world_size());
    for round in 0..30 {
        // Each rank is the last once in a while.
        if round % ranks == rank {
            std::thread::sleep(Duration::from_micros(300));
        }
        let came = now();
        group.barrier().unwrap();
        let left = now();
        let mut times = vec![0; ranks * 16];
        let own = [came.to_ne_bytes(), left.to_ne_bytes()].concat();
        group.all_gather(&own, &mut times, DType::U8).unwrap();
        let times: Vec<[u64; 2]> = bytemuck::pod_collect_to_vec(&times);
        let last = times.iter().map(|[came, _]| *came).max();
        assert!(times.iter().all(|[_, left]| Some(*left) >= last), "round {round}: {times:?}");
    }
}

fn asynchronous_calls_keep_their_place(group: &ProcessGroup) {
    let n = group.world_size() as i64;
    let mut works = Vec::new();
    for round in 0..20i64 {
        let buffer = (round + group.rank() as i64).to_ne_bytes().to_vec();
        works.push(group.all_reduce_async(buffer, DType::I64, ReduceOp::Sum));
        if round % 5 == 0 {
            let mut now = [round; 1];
            group.all_reduce(bytemuck::cast_slice_mut(&mut now), DType::I64, ReduceOp::Sum).unwrap();
            assert_eq!(now, [round * n]);
            assert!(works.iter().all(|work| work.is_done()), "a later collective has ended");
        }
    }
    for (round, work) in works.into_iter().enumerate() {
        let sum = i64::from_ne_bytes(work.wait().unwrap().try_into().unwrap());
        assert_eq!(sum, round as i64 * n + n * (n - 1) / 2);
    }
}
