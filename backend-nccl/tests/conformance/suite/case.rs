//! One call of one collective, with what it must give.

use burn_nccl::{DType, ProcessGroup, ReduceOp, Result, Work};

use super::values::{after, before};

/// A collective; the ranks in it count in the group of the call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    AllReduce(ReduceOp),
    ReduceScatter(ReduceOp),
    AllGather,
    Broadcast {
        root: usize,
    },
    Gather {
        root: usize,
    },
    Scatter {
        root: usize,
    },
    AllToAll,
    /// Each rank sends to the one `step` further on, and receives from the one `step` before.
    Ring {
        step: usize,
    },
    /// One rank sends, another receives, and the others have no part in it.
    Message {
        from: usize,
        to: usize,
    },
    AllGatherBytes,
    Barrier,
}

/// A collective of `count` elements a rank (or a part, where each rank sends or gets several).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Case {
    pub(crate) op: Op,
    pub(crate) dtype: DType,
    pub(crate) count: usize,
}

/// The end of a call: what this rank got, nothing where it gets nothing.
type Output = Result<Option<Vec<u8>>>;

/// A call under way.
#[must_use = "what the call gives is checked by `check`"]
pub(crate) struct Pending {
    case: Case,
    rank: usize,
    ranks: usize,
    end: Box<dyn FnOnce() -> Output>,
}

impl Pending {
    /// Waits for the end and asserts what it gave.
    pub(crate) fn check(self) {
        let Self { case, rank, ranks, end } = self;
        let found = end().unwrap_or_else(|error| panic!("{case:?} on rank {rank} of {ranks}: {error}"));
        let expected = case.expected(rank, ranks);
        assert_eq!(found.is_some(), expected.is_some(), "{case:?} on rank {rank} of {ranks}");
        // Megabytes of numbers would tell nobody anything.
        if found != expected {
            let pairs = found.iter().flatten().zip(expected.iter().flatten());
            let first = pairs.take_while(|(found, expected)| found == expected).count();
            panic!("{case:?} on rank {rank} of {ranks} is wrong from byte {first} on");
        }
    }
}

impl Case {
    /// Calls it and asserts what it gives.
    pub(crate) fn check(self, group: &ProcessGroup) {
        let (rank, ranks) = (group.rank(), group.world_size());
        let output = self.call(group);
        Pending { case: self, rank, ranks, end: Box::new(|| output) }.check();
    }

    /// As [`check`](Self::check) in two parts, the call and the wait for its end.
    pub(crate) fn start(self, group: &ProcessGroup) -> Pending {
        let (rank, ranks) = (group.rank(), group.world_size());
        Pending { case: self, rank, ranks, end: self.call_async(group) }
    }

    /// The reduction that the values are made for.
    fn reduction(self) -> ReduceOp {
        match self.op {
            Op::AllReduce(reduction) | Op::ReduceScatter(reduction) => reduction,
            _ => ReduceOp::Sum,
        }
    }

    /// How many elements `rank` of `ranks` sends.
    fn sent(self, rank: usize, ranks: usize) -> usize {
        match self.op {
            Op::ReduceScatter(_) | Op::AllToAll => self.count * ranks,
            Op::Scatter { root } if root == rank => self.count * ranks,
            Op::Scatter { .. } | Op::Barrier => 0,
            // Of another length on each rank.
            Op::AllGatherBytes => self.count * rank,
            _ => self.count,
        }
    }

    fn send(self, rank: usize, ranks: usize) -> Vec<u8> {
        before(self.dtype, self.reduction(), rank, 0..self.sent(rank, ranks))
    }

    fn expected(self, rank: usize, ranks: usize) -> Option<Vec<u8>> {
        let Self { dtype, count, .. } = self;
        let of =
            |rank: usize, part: usize| before(dtype, ReduceOp::Sum, rank, part * count..(part + 1) * count);
        let of_all = |part: usize| (0..ranks).flat_map(|rank| of(rank, part)).collect();
        match self.op {
            Op::AllReduce(reduction) => Some(after(dtype, reduction, ranks, 0..count)),
            Op::ReduceScatter(reduction) => {
                Some(after(dtype, reduction, ranks, rank * count..(rank + 1) * count))
            }
            Op::AllGather => Some(of_all(0)),
            Op::Broadcast { root } => Some(of(root, 0)),
            Op::Gather { root } => (root == rank).then(|| of_all(0)),
            Op::Scatter { root } => Some(of(root, rank)),
            Op::AllToAll => Some(of_all(rank)),
            Op::Ring { step } => Some(of((rank + ranks - step % ranks) % ranks, 0)),
            Op::Message { from, to } => (to == rank).then(|| of(from, 0)),
            Op::AllGatherBytes => Some((0..ranks).flat_map(|rank| self.send(rank, ranks)).collect()),
            Op::Barrier => None,
        }
    }

    fn call(self, group: &ProcessGroup) -> Output {
        let (rank, ranks, dtype) = (group.rank(), group.world_size(), self.dtype);
        let mut send = self.send(rank, ranks);
        let mut recv = self.room(rank, ranks);
        match self.op {
            Op::AllReduce(reduction) => group.all_reduce(&mut send, dtype, reduction)?,
            Op::Broadcast { root } => group.broadcast(&mut send, dtype, root)?,
            Op::ReduceScatter(reduction) => group.reduce_scatter(&send, &mut recv, dtype, reduction)?,
            Op::AllGather => group.all_gather(&send, &mut recv, dtype)?,
            Op::Gather { root } => {
                let recv = (root == rank).then_some(recv.as_mut_slice());
                group.gather(&send, recv, dtype, root)?;
            }
            Op::Scatter { root } => {
                let send = (root == rank).then_some(send.as_slice());
                group.scatter(send, &mut recv, dtype, root)?;
            }
            Op::AllToAll => group.all_to_all(&send, &mut recv, dtype)?,
            Op::Ring { step } => {
                let (to, from) = ((rank + step) % ranks, (rank + ranks - step % ranks) % ranks);
                group.send_recv(&send, to, &mut recv, from, dtype)?;
            }
            Op::Message { from, to } if rank == from => group.send(&send, dtype, to)?,
            Op::Message { from, to } if rank == to => group.recv(&mut recv, dtype, from)?,
            Op::Message { .. } => {}
            Op::AllGatherBytes => recv = group.all_gather_bytes(&send)?.concat(),
            Op::Barrier => group.barrier()?,
        }
        Ok(self.output(rank, send, recv))
    }

    /// As [`call`](Self::call) by the twin of the method that works in the background; what has none is called at once.
    fn call_async(self, group: &ProcessGroup) -> Box<dyn FnOnce() -> Output> {
        let (rank, ranks, dtype) = (group.rank(), group.world_size(), self.dtype);
        let (send, recv) = (self.send(rank, ranks), self.room(rank, ranks));
        match self.op {
            Op::AllReduce(reduction) => end(group.all_reduce_async(send, dtype, reduction), Some),
            Op::Broadcast { root } => end(group.broadcast_async(send, dtype, root), Some),
            Op::ReduceScatter(reduction) => {
                end(group.reduce_scatter_async(send, recv, dtype, reduction), second)
            }
            Op::AllGather => end(group.all_gather_async(send, recv, dtype), second),
            Op::Gather { root } => {
                let recv = (root == rank).then_some(recv);
                end(group.gather_async(send, recv, dtype, root), |(_, recv)| recv)
            }
            Op::Scatter { root } => {
                let send = (root == rank).then_some(send);
                end(group.scatter_async(send, recv, dtype, root), second)
            }
            Op::AllToAll => end(group.all_to_all_async(send, recv, dtype), second),
            Op::Ring { step } => {
                let (to, from) = ((rank + step) % ranks, (rank + ranks - step % ranks) % ranks);
                end(group.send_recv_async(send, to, recv, from, dtype), second)
            }
            Op::Message { from, to } if rank == from => end(group.send_async(send, dtype, to), |_| None),
            Op::Message { from, to } if rank == to => end(group.recv_async(recv, dtype, from), Some),
            Op::Barrier => end(group.barrier_async(), |()| None),
            Op::Message { .. } | Op::AllGatherBytes => {
                let output = self.call(group);
                Box::new(|| output)
            }
        }
    }

    /// Zeroed memory for what `rank` gets.
    fn room(self, rank: usize, ranks: usize) -> Vec<u8> {
        let count = match self.op {
            Op::AllGather | Op::AllToAll => self.count * ranks,
            Op::Gather { root } if root == rank => self.count * ranks,
            Op::ReduceScatter(_) | Op::Scatter { .. } | Op::Ring { .. } => self.count,
            Op::Message { to, .. } if to == rank => self.count,
            _ => 0,
        };
        vec![0; count * self.dtype.size_bytes()]
    }

    /// Which of its buffers `rank` gets.
    fn output(self, rank: usize, send: Vec<u8>, recv: Vec<u8>) -> Option<Vec<u8>> {
        match self.op {
            Op::AllReduce(_) | Op::Broadcast { .. } => Some(send),
            Op::Gather { root } if root != rank => None,
            Op::Message { to, .. } if to != rank => None,
            Op::Barrier => None,
            _ => Some(recv),
        }
    }
}

fn end<B: 'static>(
    work: Work<B>,
    output: impl FnOnce(B) -> Option<Vec<u8>> + 'static,
) -> Box<dyn FnOnce() -> Output> {
    Box::new(|| work.wait().map(output))
}

fn second<T>((_, recv): (T, Vec<u8>)) -> Option<Vec<u8>> {
    Some(recv)
}
