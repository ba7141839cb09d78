//! What callers can do wrong with NCCL, and that it is found.

use std::sync::atomic::{AtomicBool, Ordering};

use stubs::Config;

use crate::libraries::{Configuration, Doubles, NON_BLOCKING, UniqueId, ranks, until};

const F32: i32 = 7;
const SUM: i32 = 0;

/// The one fault there is, which must have this text in it.
fn only_fault(doubles: &Doubles, text: &str) {
    let faults = doubles.faults();
    assert_eq!(faults.len(), 1, "{faults:?}");
    assert!(faults[0].contains(text), "{faults:?}");
}

/// The code of an all-reduce with one thing wrong, in a group of one.
fn all_reduce(change: impl Fn(&Doubles, &mut (u64, u64, usize, i32, i32)) + Sync) -> (Doubles, i32) {
    let doubles = Doubles::new(&Config::default());
    let codes = ranks(&doubles, 1, |_, communicator| {
        let (stream, memory) = (doubles.stream(1), doubles.with(&[0; 64]));
        let mut arguments = (memory, memory, 16, F32, SUM);
        change(&doubles, &mut arguments);
        doubles.all_reduce(arguments, communicator, stream)
    });
    (doubles, codes[0])
}

#[test]
fn wrong_arguments_of_a_collective_are_refused() {
    type Change = fn(&Doubles, &mut (u64, u64, usize, i32, i32));
    let cases: [(&str, Change); 8] = [
        ("12 is the code of no type", |_, arguments| arguments.3 = 12),
        ("-1 is the code of no type", |_, arguments| arguments.3 = -1),
        ("5 is the code of no reduction", |_, arguments| arguments.4 = 5),
        ("not within an allocation", |_, arguments| arguments.2 = 17),
        ("not within an allocation", |_, arguments| arguments.0 = 4096),
        ("are too many", |_, arguments| arguments.2 = usize::MAX / 2),
        ("not aligned to 4 bytes", |_, arguments| (arguments.0, arguments.2) = (arguments.0 + 2, 4)),
        ("overlap and are not in place", |_, arguments| (arguments.0, arguments.2) = (arguments.0 + 4, 8)),
    ];
    for (text, change) in cases {
        let (doubles, code) = all_reduce(change);
        assert_eq!(code, 4, "{text}");
        only_fault(&doubles, text);
    }
}

#[test]
fn freed_memory_is_refused() {
    let (doubles, code) = all_reduce(|doubles, arguments| assert_eq!(doubles.free(arguments.0), 0));
    assert_eq!(code, 4);
    only_fault(&doubles, "which is freed");
}

#[test]
fn wrong_configurations_and_ids_are_refused() {
    let doubles = Doubles::new(&Config::default());
    doubles.use_gpu(0);
    let id = doubles.unique_id();
    let wrong = [
        Configuration { size: 47, ..NON_BLOCKING },
        Configuration { magic: 0, ..NON_BLOCKING },
        Configuration { version: 217, ..NON_BLOCKING },
        Configuration { blocking: 2, ..NON_BLOCKING },
        Configuration { numbers: [i32::MIN, 0, i32::MIN], ..NON_BLOCKING },
        Configuration { split_share: 2, ..NON_BLOCKING },
    ];
    for configuration in wrong {
        assert_eq!(doubles.join_with(1, id, 0, &configuration).1, 4);
    }
    let mut cut = id;
    cut.0[100..].fill(0);
    for (ranks, id, rank) in [(1, cut, 0), (1, UniqueId([0; 128]), 0), (2, id, 2), (0, id, 0)] {
        assert_eq!(doubles.join(ranks, id, rank).1, 4);
    }
    assert_eq!(doubles.faults().len(), 10);
}

#[test]
fn a_communicator_belongs_to_one_thread_until_it_is_aborted() {
    let doubles = Doubles::new(&Config::default());
    ranks(&doubles, 1, |_, communicator| {
        let other = || (doubles.finalize(communicator), doubles.poll(communicator));
        let codes = std::thread::scope(|scope| scope.spawn(other).join().unwrap());
        assert_eq!(codes, (5, 0));
    });
    only_fault(&doubles, "another thread");
}

#[test]
fn a_communicator_is_not_used_after_its_end() {
    let doubles = Doubles::new(&Config::default());
    doubles.use_gpu(0);
    let (communicator, _) = doubles.join(1, doubles.unique_id(), 0);
    assert_eq!(doubles.finalize(communicator), 0);
    assert_eq!(doubles.finalize(communicator), 5);
    assert_eq!(doubles.destroy(communicator), 0);
    assert_eq!(doubles.destroy(communicator), 4);
    assert_eq!(doubles.abort(communicator), 4);
    assert_eq!(doubles.faults().len(), 3);
}

#[test]
fn a_group_must_be_opened_before_it_is_closed() {
    let doubles = Doubles::new(&Config::default());
    assert_eq!((doubles.group_start(), doubles.group_start()), (0, 0));
    assert_eq!([doubles.group_end(), doubles.group_end(), doubles.group_end()], [0, 0, 5]);
    only_fault(&doubles, "without ncclGroupStart");
}

#[test]
fn ranks_that_call_different_things_are_found_and_hang_until_they_are_aborted() {
    let doubles = Doubles::new(&Config::default());
    let (id, found) = (doubles.unique_id(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let (doubles, found) = (&doubles, &found);
            scope.spawn(move || {
                doubles.use_gpu(rank);
                let (communicator, _) = doubles.join(2, id, rank);
                let (stream, memory, done) = (doubles.stream(1), doubles.with(&[0; 64]), doubles.event());
                let count = 8 + rank as usize;
                assert_eq!(doubles.all_reduce((memory, memory, count, F32, SUM), communicator, stream), 0);
                assert_eq!(doubles.record(done, stream), 0);
                until(|| found.load(Ordering::Acquire));
                assert_eq!((doubles.query(done), doubles.abort(communicator)), (600, 0));
                assert_eq!(doubles.synchronize(stream), 0);
            });
        }
        let mut faults = Vec::new();
        until(|| {
            faults.extend(doubles.faults());
            faults.len() >= 2
        });
        found.store(true, Ordering::Release);
        assert!(faults.iter().all(|fault| fault.starts_with("collective 0 differs: ")), "{faults:?}");
    });
}

#[test]
fn memory_that_somebody_writes_while_an_operation_runs_is_found() {
    for (writes_input, text) in
        [(true, "its input was written"), (false, "its output was written by somebody else")]
    {
        let (doubles, written) = (Doubles::new(&Config::default()), AtomicBool::new(false));
        ranks(&doubles, 2, |rank, communicator| {
            let (stream, other) = (doubles.stream(1), doubles.stream(1));
            let (from, to) = (doubles.with(&[0; 64]), doubles.with(&[0; 64]));
            let start = || assert_eq!(doubles.all_reduce((from, to, 16, F32, SUM), communicator, stream), 0);
            if rank == 0 {
                start();
                // The operation runs, and cannot end without the other rank.
                until(|| doubles.bytes(to, 64) == [0xa7; 64]);
                // Nothing orders this stream after the other.
                let target = if writes_input { from } else { to };
                assert_eq!(doubles.upload(target, [1_u8; 64].as_ptr(), 64, other), 0);
                assert_eq!(doubles.synchronize(other), 0);
                written.store(true, Ordering::Release);
            } else {
                until(|| written.load(Ordering::Acquire));
                start();
            }
            assert_eq!(doubles.synchronize(stream), 0);
        });
        only_fault(&doubles, text);
    }
}

#[test]
fn memory_that_is_freed_while_an_operation_runs_is_found() {
    let (doubles, freed) = (Doubles::new(&Config::default()), AtomicBool::new(false));
    ranks(&doubles, 2, |rank, communicator| {
        let (stream, from, to) = (doubles.stream(1), doubles.with(&[0; 64]), doubles.with(&[0; 64]));
        let start = || assert_eq!(doubles.all_reduce((from, to, 16, F32, SUM), communicator, stream), 0);
        if rank == 0 {
            start();
            until(|| doubles.bytes(to, 64) == [0xa7; 64]);
            assert_eq!(doubles.free(from), 0);
            freed.store(true, Ordering::Release);
        } else {
            until(|| freed.load(Ordering::Acquire));
            start();
        }
        assert_eq!(doubles.synchronize(stream), 0);
    });
    only_fault(&doubles, "which is freed, while it ran");
}

#[test]
fn two_ranks_on_one_gpu_are_refused_in_the_words_of_nccl() {
    let doubles = Doubles::new(&Config::default());
    let id = doubles.unique_id();
    std::thread::scope(|scope| {
        for rank in 0..2 {
            let doubles = &doubles;
            scope.spawn(move || {
                doubles.use_gpu(0);
                assert_eq!(doubles.join(2, id, rank).1, 5);
            });
        }
    });
}
