//! Failures that NCCL's double is told.

use std::time::{Duration, Instant};

use stubs::{AsyncError, Config, Injection, Operation, PeerLoss};

use crate::libraries::{Doubles, NON_BLOCKING, ranks, until};

const F32: i32 = 7;

#[test]
fn every_code_comes_from_the_call_that_was_named_known_or_not() {
    for code in [1, 2, 3, 4, 5, 6, 7, 8, 9, 99] {
        let mut config = Config::default();
        config.nccl.injections =
            vec![Injection::new("ncclAllReduce", 2, code), Injection::new("ncclGetVersion", 1, code)];
        let doubles = Doubles::new(&config);
        assert_eq!((doubles.version(), doubles.version()), (Err(code), Ok(22703)));
        ranks(&doubles, 1, |_, communicator| {
            let (stream, memory) = (doubles.stream(1), doubles.with(&[0; 4]));
            let call = || doubles.all_reduce((memory, memory, 1, F32, 0), communicator, stream);
            assert_eq!([call(), call(), call()], [0, code, 0]);
        });
        assert_eq!(doubles.faults(), [""; 0]);
    }
}

#[test]
fn an_old_version_is_told() {
    let mut config = Config::default();
    config.nccl.version = 2804;
    assert_eq!(Doubles::new(&config).version(), Ok(2804));
}

#[test]
fn ranks_with_other_versions_are_refused() {
    let mut config = Config::default();
    let first = Doubles::new(&config);
    config.nccl.version = 22809;
    let second = Doubles::new(&config);
    let id = first.unique_id();
    std::thread::scope(|scope| {
        for (rank, doubles) in [&first, &second].into_iter().enumerate() {
            scope.spawn(move || {
                doubles.use_gpu(rank as i32);
                assert_eq!(doubles.join(2, id, rank as i32), (0, 5));
            });
        }
    });
}

#[test]
fn what_is_in_progress_starts_after_the_polls_that_say_so() {
    let mut config = Config::default();
    config.nccl.in_progress_polls = 3;
    let doubles = Doubles::new(&config);
    doubles.use_gpu(0);
    let (communicator, code) = doubles.join_with(1, doubles.unique_id(), 0, &NON_BLOCKING);
    assert_eq!((code, doubles.settle(communicator)), (7, 0));
    let (stream, event, memory) = (doubles.stream(1), doubles.event(), doubles.with(&1_f32.to_le_bytes()));
    let out = doubles.with(&[0; 4]);
    assert_eq!(doubles.all_reduce((memory, out, 1, F32, 0), communicator, stream), 7);
    // Who records now records too early: the stream does not have the operation yet.
    assert_eq!((doubles.record(event, stream), doubles.synchronize(stream), doubles.query(event)), (0, 0, 0));
    assert_eq!(doubles.bytes(out, 4), [0; 4]);
    assert_eq!([(); 4].map(|()| doubles.poll(communicator)), [7, 7, 7, 0]);
    assert_eq!(doubles.synchronize(stream), 0);
    assert_eq!(doubles.bytes(out, 4), 1_f32.to_le_bytes());
    assert_eq!(
        (doubles.finalize(communicator), doubles.settle(communicator), doubles.destroy(communicator)),
        (7, 0, 0)
    );
    assert_eq!(doubles.faults(), [""; 0]);
}

#[test]
fn an_error_of_a_poll_comes_after_as_many_operations_as_was_said() {
    let mut config = Config::default();
    config.nccl.async_errors = vec![AsyncError { rank: 0, after: 2, code: 6 }];
    let doubles = Doubles::new(&config);
    ranks(&doubles, 1, |_, communicator| {
        let (stream, memory) = (doubles.stream(1), doubles.with(&[0; 4]));
        let polled = [(); 3].map(|()| {
            let called = doubles.all_reduce((memory, memory, 1, F32, 0), communicator, stream);
            assert_eq!(doubles.synchronize(stream), 0);
            (called, doubles.poll(communicator))
        });
        assert_eq!(polled, [(0, 0), (0, 6), (6, 6)]);
    });
}

#[test]
fn an_operation_that_hangs_ends_with_the_abort_from_another_thread() {
    let mut config = Config::default();
    config.nccl.hangs = vec![Operation { rank: 0, operation: 2 }];
    let doubles = Doubles::new(&config);
    doubles.use_gpu(0);
    let (communicator, _) = doubles.join(1, doubles.unique_id(), 0);
    let (stream, memory, events) =
        (doubles.stream(1), doubles.with(&[0; 4]), [doubles.event(), doubles.event()]);
    for event in events {
        assert_eq!(doubles.all_reduce((memory, memory, 1, F32, 0), communicator, stream), 0);
        assert_eq!(doubles.record(event, stream), 0);
    }
    until(|| doubles.query(events[0]) == 0);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(doubles.query(events[1]), 600);
    std::thread::scope(|scope| scope.spawn(|| assert_eq!(doubles.abort(communicator), 0)).join().unwrap());
    assert_eq!(doubles.synchronize(stream), 0);
    assert_eq!(doubles.faults(), [""; 0]);
}

#[test]
fn a_communicator_that_is_never_made_is_in_progress_until_it_is_aborted() {
    let mut config = Config::default();
    config.nccl.init_hangs = vec![0];
    let doubles = Doubles::new(&config);
    doubles.use_gpu(0);
    let (communicator, code) = doubles.join_with(1, doubles.unique_id(), 0, &NON_BLOCKING);
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!((code, doubles.poll(communicator), doubles.abort(communicator)), (7, 7, 0));
}

#[test]
fn the_loss_of_a_rank_is_told_where_that_is_wanted() {
    for (peer_loss, expected) in [(PeerLoss::Hang, 0), (PeerLoss::RemoteError, 6)] {
        let mut config = Config::default();
        config.nccl.peer_loss = peer_loss;
        let doubles = Doubles::new(&config);
        let id = doubles.unique_id();
        std::thread::scope(|scope| {
            for rank in 0..2 {
                let doubles = &doubles;
                scope.spawn(move || {
                    doubles.use_gpu(rank);
                    let (communicator, _) = doubles.join(2, id, rank);
                    let (stream, memory, event) = (doubles.stream(1), doubles.with(&[0; 4]), doubles.event());
                    if rank == 0 {
                        assert_eq!(doubles.all_reduce((memory, memory, 1, F32, 0), communicator, stream), 0);
                        assert_eq!(doubles.record(event, stream), 0);
                        let start = Instant::now();
                        until(|| {
                            doubles.poll(communicator) != 0
                                || (expected == 0 && start.elapsed().as_millis() > 200)
                        });
                        assert_eq!((doubles.poll(communicator), doubles.query(event)), (expected, 600));
                    }
                    assert_eq!(doubles.abort(communicator), 0);
                    assert_eq!(doubles.synchronize(stream), 0);
                });
            }
        });
    }
}

#[test]
fn what_the_doubles_are_told_can_change() {
    let doubles = Doubles::new(&Config::default());
    let mut config = Config::default();
    config.nccl.injections = vec![Injection::new("ncclGetVersion", 1, 99)];
    assert_eq!(doubles.version(), Ok(22703));
    doubles.stubs.configure(&config).unwrap();
    assert_eq!((doubles.version(), doubles.version()), (Err(99), Ok(22703)));
}
