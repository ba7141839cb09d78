//! Ranks as threads of this process, each with its own control connections and its own view of all segments.

use std::{
    net::{TcpListener, TcpStream},
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use half::{bf16, f16};

use super::{
    layout::{Counter, INLINE_BYTES, Layout, MESSAGE_SLOTS, Progress, ROUND_BYTES, part_bytes},
    wait::SLEEP,
    *,
};
use crate::{
    deadline::Deadline,
    group::DEFAULT_HOST_TIMEOUT,
    transport::{DType, Incoming, OpKind, Outgoing, Patience, ReduceOp},
};

const LIMIT: Duration = Duration::from_secs(60);

/// One rank.
pub(super) struct Rank {
    control: Control,
    shm: Shm,
    all: Members,
    sequence: u64,
    patience: Patience,
    limit: Duration,
}

/// `world_size` ranks, connected.
pub(super) fn group(world_size: usize) -> Vec<Rank> {
    let mut connections: Vec<Vec<(usize, TcpStream)>> = (0..world_size).map(|_| Vec::new()).collect();
    for low in 0..world_size {
        for high in low + 1..world_size {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            connections[low].push((high, listener.accept().unwrap().0));
            connections[high].push((low, client));
        }
    }
    let ranks: Vec<usize> = (0..world_size).collect();
    std::thread::scope(|scope| {
        let threads: Vec<_> = connections
            .into_iter()
            .enumerate()
            .map(|(rank, mut connections)| {
                let ranks = &ranks;
                scope.spawn(move || {
                    connections.sort_by_key(|(peer, _)| *peer);
                    let control =
                        Control::start(rank, world_size, connections, DEFAULT_HOST_TIMEOUT).unwrap();
                    let shm = connect(&control, ranks, Deadline::after(LIMIT)).unwrap().unwrap();
                    let all = Members::all(rank, world_size);
                    Rank { control, shm, all, sequence: 0, patience: Patience::Waiting, limit: LIMIT }
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Runs `body` on every rank at the same time.
pub(super) fn on_each<T: Send>(ranks: Vec<Rank>, body: impl Fn(&mut Rank) -> T + Sync) -> Vec<T> {
    let body = &body;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            ranks.into_iter().map(|mut rank| scope.spawn(move || body(&mut rank))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

impl Rank {
    fn rank(&self) -> usize {
        self.control.rank()
    }

    fn try_among(&mut self, among: &Members, collective: Collective<'_>) -> Result<(), Failure> {
        self.sequence += 1;
        let deadline = Deadline::after(self.limit);
        let call = Call {
            sequence: self.sequence,
            deadline,
            check: true,
            checksums: false,
            patience: self.patience,
            part_of: None,
        };
        let result = self.shm.run(&self.control, among, call, collective);
        match result {
            Ok(()) => {
                self.control.complete(self.sequence);
                Ok(())
            }
            Err(failure) => Err(self.control.fail(failure)),
        }
    }

    fn run(&mut self, collective: Collective<'_>) {
        let all = self.all.clone();
        self.try_among(&all, collective).unwrap();
    }

    /// `bytes` in the segment or on the heap.
    fn buffer(&self, bytes: &[u8], in_segment: bool) -> Buffer {
        let mut buffer = match in_segment {
            true => self.shm.allocate(bytes.len()).unwrap(),
            false => Buffer::on_heap(bytes.len()),
        };
        buffer.copy_from_slice(bytes);
        buffer
    }
}

/// Small whole numbers that differ by rank and place, as elements of a type.
fn values(dtype: DType, count: usize, of: impl Fn(usize) -> usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(count * dtype.size_bytes());
    for index in 0..count {
        let value = of(index);
        match dtype {
            DType::F32 => bytes.extend((value as f32).to_ne_bytes()),
            DType::F64 => bytes.extend((value as f64).to_ne_bytes()),
            DType::F16 => bytes.extend(f16::from_f32(value as f32).to_ne_bytes()),
            DType::BF16 => bytes.extend(bf16::from_f32(value as f32).to_ne_bytes()),
            DType::I32 => bytes.extend((value as i32).to_ne_bytes()),
            DType::I64 => bytes.extend((value as i64).to_ne_bytes()),
            DType::U8 => bytes.push(value as u8),
        }
    }
    bytes
}

/// What a rank puts at an index; at most 28, so that eight of them are exact in every type.
fn value(rank: usize, index: usize) -> usize {
    (rank + index % 7) % 11 + index % 3 + rank
}

fn sum(ranks: &[usize], index: usize) -> usize {
    ranks.iter().map(|rank| value(*rank, index)).sum()
}

/// Counts that lie on and beside every border of the protocol, for elements of `size` bytes.
fn counts(world_size: usize, size: usize) -> Vec<usize> {
    let borders = [
        INLINE_BYTES,
        INLINE_BYTES / world_size,
        part_bytes(world_size),
        part_bytes(world_size) * world_size,
        ROUND_BYTES,
        ROUND_BYTES * 5,
    ];
    let mut counts = vec![0, 1, 7];
    counts.extend(borders.iter().flat_map(|bytes| [bytes / size - 1, bytes / size, bytes / size + 1]));
    counts.sort_unstable();
    counts.dedup();
    counts
}

/// One collective of each kind on `count` elements, with some buffers in segments, checked against what the ranks of
/// `among` give.
fn every_collective(rank: &mut Rank, among: &Members, dtype: DType, count: usize, in_segment: bool) {
    let (ranks, own, places) = (among.ranks().to_vec(), among.own(), among.len());
    let me = ranks[own];
    let root = count % places;
    let part = |index: usize, r: usize| value(ranks[r], index + 3 * own);
    let own_values = values(dtype, count, |index| value(me, index));
    let parted = values(dtype, count * places, |index| {
        let (to, index) = (index / count.max(1), index % count.max(1));
        value(me, index + 3 * to)
    });
    let empty = |count: usize| vec![0u8; count * dtype.size_bytes()];
    let gathered = values(dtype, count * places, |index| value(ranks[index / count], index % count));

    let mut buffer = rank.buffer(&own_values, in_segment);
    let op = ReduceOp::Sum;
    rank.try_among(among, Collective::AllReduce { buffer: &mut buffer, dtype, op }).unwrap();
    assert_eq!(*buffer, *values(dtype, count, |index| sum(&ranks, index)), "all-reduce {dtype} {count}");

    let send = rank.buffer(&parted, in_segment);
    let mut recv = rank.buffer(&empty(count), !in_segment);
    rank.try_among(among, Collective::ReduceScatter { send: &send, recv: &mut recv, dtype, op }).unwrap();
    let sums = values(dtype, count, |index| sum(&ranks, index + 3 * own));
    let expected = values(dtype, count, |index| (0..places).map(|r| part(index, r)).sum());
    assert_eq!(expected, sums);
    assert_eq!(*recv, *expected, "reduce-scatter {dtype} {count}");

    let mut recv = rank.buffer(&empty(count * places), in_segment);
    rank.try_among(among, Collective::AllToAll { send: &send, recv: &mut recv, dtype }).unwrap();
    let expected =
        values(dtype, count * places, |index| value(ranks[index / count], index % count + 3 * own));
    assert_eq!(*recv, *expected, "all-to-all {dtype} {count}");

    let send = rank.buffer(&own_values, in_segment);
    let mut recv = rank.buffer(&empty(count * places), !in_segment);
    rank.try_among(among, Collective::AllGather { send: &send, recv: &mut recv, dtype }).unwrap();
    assert_eq!(*recv, *gathered, "all-gather {dtype} {count}");

    recv.fill(0);
    let target = (own == root).then_some(&mut recv[..]);
    rank.try_among(among, Collective::Gather { send: &send, recv: target, dtype, root }).unwrap();
    assert!(own != root || *recv == *gathered, "gather {dtype} {count}");

    let given = values(dtype, count * places, |index| value(ranks[root], index));
    let source = rank.buffer(&given, in_segment);
    let mut recv = rank.buffer(&empty(count), in_segment);
    let send = (own == root).then_some(&source[..]);
    rank.try_among(among, Collective::Scatter { send, recv: &mut recv, dtype, root }).unwrap();
    let bytes = count * dtype.size_bytes();
    assert_eq!(*recv, given[own * bytes..(own + 1) * bytes], "scatter {dtype} {count}");

    let mut buffer = rank.buffer(&own_values, in_segment);
    rank.try_among(among, Collective::Broadcast { buffer: &mut buffer, dtype, root }).unwrap();
    assert_eq!(
        *buffer,
        *values(dtype, count, |index| value(ranks[root], index)),
        "broadcast {dtype} {count}"
    );

    rank.try_among(among, Collective::Barrier).unwrap();
}

#[test]
fn every_collective_gives_what_the_ranks_imply_at_every_border_and_wherever_buffers_are() {
    for world_size in [1, 2, 3, 4, 8] {
        on_each(group(world_size), |rank| {
            let all = rank.all.clone();
            for (case, count) in counts(world_size, 4).into_iter().enumerate() {
                // All on the heap, all in segments, and mixed in two ways.
                let in_segment = match case % 4 {
                    0 => false,
                    1 => true,
                    2 => rank.rank().is_multiple_of(2),
                    _ => rank.rank() % 3 == 1,
                };
                every_collective(rank, &all, DType::F32, count, in_segment);
            }
        });
    }
}

#[test]
fn every_type_and_reduction_gives_the_same_bits_as_a_fold_in_rank_order() {
    on_each(group(3), |rank| {
        for dtype in DType::ALL {
            for op in ReduceOp::ALL.into_iter().filter(|op| op.supports(dtype)) {
                for count in [5, INLINE_BYTES, 3 * ROUND_BYTES / dtype.size_bytes() + 1] {
                    let version = |rank| values(dtype, count, |index| value(rank, index));
                    let mut expected = version(0);
                    let (second, third) = (version(1), version(2));
                    crate::transport::reduce::fold(dtype, op, &mut expected, 0, &[&second, &third]);
                    for in_segment in [false, true] {
                        let mut buffer = rank.buffer(&version(rank.rank()), in_segment);
                        rank.run(Collective::AllReduce { buffer: &mut buffer, dtype, op });
                        assert!(*buffer == *expected, "{op} of {dtype}");
                    }
                }
            }
            let all = rank.all.clone();
            every_collective(rank, &all, dtype, 1000, true);
            every_collective(rank, &all, dtype, 200_001, false);
        }
    });
}

/// A generator of the same numbers on every rank.
struct Lottery(u64);

impl Lottery {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % limit
    }
}

#[test]
fn thousands_of_mixed_collectives_among_changing_ranks_stay_right() {
    for (world_size, repeats) in [(2, 1000), (3, 300), (4, 200), (8, 60)] {
        on_each(group(world_size), |rank| {
            let mut lottery = Lottery(world_size as u64);
            for _ in 0..repeats {
                let chosen: Vec<usize> = (0..world_size).filter(|_| lottery.below(4) > 0).collect();
                let size = [10, 3000, 20_000, 100_000][lottery.below(4)];
                let (count, in_segment) = (lottery.below(size), lottery.below(2) + lottery.below(3));
                let dtype = DType::ALL[lottery.below(DType::ALL.len())];
                rank.patience = [Patience::Waiting, Patience::Background][lottery.below(2)];
                let in_segment = in_segment == 0 || in_segment == 1 + rank.rank() % 3;
                // The order of collectives counts those of others too.
                rank.sequence += 100;
                if let Some(among) = Members::new(chosen, rank.rank()) {
                    let sequence = rank.sequence;
                    every_collective(rank, &among, dtype, count, in_segment);
                    rank.sequence = sequence;
                }
            }
        });
    }
}

#[test]
fn nobody_sleeps_through_a_collective_of_one_staged_round() {
    const REPEATS: u32 = 20;
    for world_size in [2, 3] {
        let times = on_each(group(world_size), |rank| {
            rank.patience = Patience::Background;
            let mut buffer = vec![0; 64 * 1024];
            rank.run(Collective::Barrier);
            let start = Instant::now();
            for _ in 0..REPEATS {
                rank.run(Collective::AllReduce { buffer: &mut buffer, dtype: DType::U8, op: ReduceOp::Sum });
            }
            start.elapsed()
        });
        // If each waited for a sleep to run out, it would be the whole of this.
        assert!(times.iter().all(|time| *time < SLEEP * REPEATS / 2), "{times:?}");
    }
}

#[test]
fn messages_go_round_a_ring_and_between_pairs_at_every_size() {
    for world_size in [2, 3, 5] {
        on_each(group(world_size), |rank| {
            let (own, all) = (rank.rank(), rank.all.clone());
            let (next, previous) = ((own + 1) % world_size, (own + world_size - 1) % world_size);
            let mut number = 0;
            for count in [0, 1, INLINE_BYTES, INLINE_BYTES + 1, ROUND_BYTES * 6 + 5] {
                for in_segment in [false, true, own == 0] {
                    number += 1;
                    let send = rank.buffer(&values(DType::U8, count, |index| value(own, index)), in_segment);
                    let mut recv = rank.buffer(&vec![0; count], own == 1);
                    let exchange = Collective::Exchange {
                        send: Some(Outgoing { buffer: &send, to: next, number }),
                        receive: Some(Incoming { buffer: &mut recv, from: previous, number }),
                        dtype: DType::U8,
                    };
                    rank.try_among(&all, exchange).unwrap();
                    assert_eq!(*recv, *values(DType::U8, count, |index| value(previous, index)));
                }
            }
            // One way only, many small ones at once: the sender does not wait for the receiver.
            for extra in 1..=20 {
                let number = number + extra;
                let mut buffer = values(DType::U8, 100, |index| index + extra as usize);
                if own == 0 {
                    let send = Some(Outgoing { buffer: &buffer, to: 1, number });
                    rank.try_among(&all, Collective::Exchange { send, receive: None, dtype: DType::U8 })
                        .unwrap();
                } else if own == 1 {
                    let expected = std::mem::replace(&mut buffer, vec![0; 100]);
                    let receive = Some(Incoming { buffer: &mut buffer, from: 0, number });
                    rank.try_among(&all, Collective::Exchange { send: None, receive, dtype: DType::U8 })
                        .unwrap();
                    assert_eq!(buffer, expected);
                }
            }
            rank.sequence = 1000;
            rank.run(Collective::Barrier);
        });
    }
}

#[test]
fn different_calls_are_refused_on_both_sides_before_a_buffer_is_written() {
    let failures = on_each(group(2), |rank| {
        let count = 100_000 + rank.rank();
        let mut buffer = vec![1u8; count];
        let all = rank.all.clone();
        let call = Collective::AllReduce { buffer: &mut buffer, dtype: DType::U8, op: ReduceOp::Sum };
        let failure = rank.try_among(&all, call).unwrap_err();
        assert!(buffer.iter().all(|byte| *byte == 1));
        failure
    });
    for failure in failures {
        let Failure::Mismatch { call, peer_call, .. } = failure else { panic!("{failure}") };
        assert_eq!(call.kind, OpKind::AllReduce);
        assert_eq!(call.bytes + peer_call.bytes, 200_001);
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_with_what_it_called_last() {
    let failures = on_each(group(3), |rank| {
        rank.limit = Duration::from_millis(300);
        rank.run(Collective::Barrier);
        if rank.rank() == 1 {
            std::thread::sleep(Duration::from_millis(900));
            return None;
        }
        let start = Instant::now();
        let mut buffer = vec![0; 1 << 20];
        let all = rank.all.clone();
        let call = Collective::AllReduce { buffer: &mut buffer, dtype: DType::U8, op: ReduceOp::Sum };
        let failure = rank.try_among(&all, call).unwrap_err();
        assert!(start.elapsed() < Duration::from_millis(800), "{:?}", start.elapsed());
        Some(failure)
    });
    for failure in failures.into_iter().flatten() {
        let Failure::Deadline { missing, last, .. } = failure else { panic!("{failure}") };
        assert_eq!(missing, [1]);
        assert_eq!(last[0].unwrap().kind, OpKind::Barrier);
    }
}

#[test]
fn a_rank_that_is_lost_in_the_middle_ends_the_waits_of_all_at_once() {
    let failures = on_each(group(4), |rank| {
        let mut buffer = vec![0; 1 << 20];
        rank.run(Collective::AllReduce { buffer: &mut buffer, dtype: DType::U8, op: ReduceOp::Sum });
        if rank.rank() == 2 {
            std::thread::sleep(Duration::from_millis(100));
            // Its connections end when the rank is dropped, without a goodbye.
            return None;
        }
        rank.patience = [Patience::Waiting, Patience::Background][rank.rank() % 2];
        let start = Instant::now();
        let all = rank.all.clone();
        let call = Collective::AllReduce { buffer: &mut buffer, dtype: DType::U8, op: ReduceOp::Sum };
        let failure = rank.try_among(&all, call).unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
        // The segments of the others stay until all are gone.
        Some(failure)
    });
    let failures: Vec<Failure> = failures.into_iter().flatten().collect();
    assert_eq!(failures.len(), 3);
    for failure in failures {
        assert!(matches!(failure, Failure::PeerLost { rank: 2, .. }), "{failure}");
    }
}

#[test]
fn a_shutdown_ends_a_wait_on_another_thread() {
    let mut ranks = group(2);
    ranks.pop();
    let rank = &ranks[0];
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            let call = Call {
                sequence: 1,
                deadline: Deadline::after(LIMIT),
                check: true,
                checksums: false,
                patience: Patience::Background,
                part_of: None,
            };
            rank.shm.run(&rank.control, &rank.all, call, Collective::Barrier)
        });
        std::thread::sleep(Duration::from_millis(50));
        rank.shm.shutdown();
        assert!(waits.join().unwrap().is_err());
    });
}

#[test]
fn garbage_in_a_peers_lines_is_a_protocol_failure() {
    let layout = Layout::new(2);
    // A number from the future, a header that is none, and a source outside of the segment.
    let spoil: [&(dyn Fn(&Mapping) + Sync); 3] = [
        &|segment| segment.word(layout.post(0, 1) + 56).store(77, Ordering::Release),
        &|segment| segment.word(layout.post(0, 1) + 56).store(1, Ordering::Release),
        &|segment| {
            let signature =
                Collective::AllReduce { buffer: &mut vec![0; 1 << 20], dtype: DType::U8, op: ReduceOp::Sum }
                    .signature(1);
            let location = Location::Resident { offset: segment.span() - 4096 };
            let tag = flow::tag(&Members::all(0, 2));
            post::Post { signature, location, base: 0 }.write(segment, layout.post(0, 1), 1, tag);
        },
    ];
    for spoil in spoil {
        let failures = on_each(group(2), |rank| {
            if rank.rank() == 1 {
                spoil(&rank.shm.segments[1]);
                rank.shm.notify(&[0]);
                // Stays until the other has looked.
                while rank.control.failure().is_none() && rank.control.obstacle(0, u64::MAX).is_none() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                return None;
            }
            let mut buffer = vec![0; 1 << 20];
            let all = rank.all.clone();
            let call = Collective::AllReduce { buffer: &mut buffer, dtype: DType::U8, op: ReduceOp::Sum };
            Some(rank.try_among(&all, call).unwrap_err())
        });
        let failure = failures[0].as_ref().unwrap();
        assert!(matches!(failure, Failure::Protocol { rank: 1, .. }), "{failure}");
    }
}

#[test]
fn numbers_of_progress_that_make_no_sense_end_in_an_error_and_not_in_a_crash() {
    let layout = Layout::new(2);
    // A peer that claims to have staged all there ever will be, and one whose rounds begin behind all numbers.
    for (staged, base) in [(u64::MAX, 0), (u64::MAX, u64::MAX), (0, u64::MAX)] {
        let failures = on_each(group(2), |rank| {
            rank.limit = Duration::from_millis(300);
            let mut buffer = vec![0; 1 << 20];
            let call = Collective::AllReduce { buffer: &mut buffer, dtype: DType::U8, op: ReduceOp::Sum };
            if rank.rank() == 1 {
                let own = &rank.shm.segments[1];
                own.word(Layout::progress(Progress::Staged)).store(staged, Ordering::Release);
                own.word(layout.counter(0, Counter::Finished)).store(u64::MAX, Ordering::Release);
                let signature = call.signature(1);
                let post = post::Post { signature, location: Location::Staged, base };
                post.write(own, layout.post(0, 1), 1, flow::tag(&rank.all));
                rank.shm.notify(&[0]);
                while rank.control.obstacle(0, u64::MAX).is_none() {
                    std::thread::sleep(Duration::from_millis(1));
                }
                return None;
            }
            let all = rank.all.clone();
            Some(rank.try_among(&all, call).unwrap_err())
        });
        // Nothing of the peer is folded, so its share never comes.
        let Some(Failure::Deadline { missing, .. }) = &failures[0] else { panic!("{failures:?}") };
        assert_eq!(*missing, [1]);
    }
}

#[test]
fn a_rank_that_announced_and_died_is_named_at_once_while_another_is_late() {
    const LATE: Duration = Duration::from_secs(2);
    let layout = Layout::new(3);
    for count in [100, 1 << 20] {
        let failures = on_each(group(3), |rank| {
            let mut buffer = vec![0; count];
            let call = Collective::AllReduce { buffer: &mut buffer, dtype: DType::U8, op: ReduceOp::Sum };
            match rank.rank() {
                0 => {}
                1 => std::thread::sleep(LATE),
                _ => {
                    let location = if count == 100 { Location::Inline { slot: 0 } } else { Location::Staged };
                    let post = post::Post { signature: call.signature(1), location, base: 0 };
                    for peer in 0..2 {
                        post.write(&rank.shm.segments[2], layout.post(peer, 1), 1, flow::tag(&rank.all));
                    }
                    rank.shm.notify(&[0, 1]);
                    std::thread::sleep(Duration::from_millis(100));
                    return None;
                }
            }
            let (start, all) = (Instant::now(), rank.all.clone());
            let failure = rank.try_among(&all, call).unwrap_err();
            assert!(start.elapsed() < LATE / 2, "{:?}", start.elapsed());
            Some(failure)
        });
        for failure in failures.into_iter().flatten() {
            assert!(matches!(failure, Failure::PeerLost { rank: 2, .. }), "{failure}");
        }
    }
}

#[test]
fn small_messages_do_not_wait_for_their_receivers_and_what_is_received_makes_room() {
    let number_of = |index: usize| index as u64 + 1;
    on_each(group(2), |rank| {
        rank.limit = Duration::from_secs(10);
        let (all, peer) = (rank.all.clone(), 1 - rank.rank());
        let text = |rank: usize, index: usize| values(DType::U8, INLINE_BYTES, |at| value(rank, at + index));
        let mut exchange = |send: Option<usize>, receive: Option<usize>| {
            let sent = send.map(|index| text(1 - peer, index)).unwrap_or_default();
            let mut received = vec![0; INLINE_BYTES];
            let outgoing = Outgoing { buffer: &sent, to: peer, number: number_of(send.unwrap_or(0)) };
            let number = number_of(receive.unwrap_or(0));
            let incoming = Incoming { buffer: &mut received, from: peer, number };
            let exchange = Collective::Exchange {
                send: send.map(|_| outgoing),
                receive: receive.map(|_| incoming),
                dtype: DType::U8,
            };
            rank.try_among(&all, exchange).unwrap();
            if let Some(index) = receive {
                assert!(received == text(peer, index), "message {index}");
            }
        };
        // As many as there is room for, then those that find none before another is received, in three turns.
        (0..MESSAGE_SLOTS).for_each(|index| exchange(Some(index), None));
        (0..2 * MESSAGE_SLOTS).for_each(|index| exchange(Some(MESSAGE_SLOTS + index), Some(index)));
        (0..MESSAGE_SLOTS).for_each(|index| exchange(None, Some(2 * MESSAGE_SLOTS + index)));
    });
}

#[test]
fn buffers_outlive_the_engine_and_stay_mapped() {
    let ranks = group(2);
    let mut buffer = ranks[1].shm.allocate(100_000).unwrap();
    drop(ranks);
    buffer.fill(5);
    assert!(buffer.iter().all(|byte| *byte == 5));
}
