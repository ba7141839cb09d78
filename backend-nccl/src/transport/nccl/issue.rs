//! An operation as calls of NCCL and the driver on one stream.

use super::{
    codes,
    communicator::{Comm, Communicator},
    driver::Handle,
    operation::{DeviceOperation, Region},
    refused::Refused,
    stream::Stream,
};
use crate::transport::{DType, ReduceOp};

/// Where an operation goes.
pub(super) struct Lane<'a> {
    pub(super) comm: &'a Communicator,
    pub(super) stream: &'a Stream,
    pub(super) world_size: usize,
}

impl Lane<'_> {
    /// Enqueues an operation. When NCCL is done with that the communicator says so.
    ///
    /// # Safety
    ///
    /// The regions must be memory of this GPU until the stream has come to the operation's end.
    ///
    /// # Errors
    ///
    /// A refusal, after which a part may have been enqueued.
    pub(super) unsafe fn issue(&self, operation: &DeviceOperation, dtype: DType) -> Result<(), Refused> {
        match operation {
            DeviceOperation::AllReduce { send, recv, op } => self.all_reduce(*send, *recv, dtype, *op),
            DeviceOperation::Broadcast { send, recv, root } => self.broadcast(*send, *recv, dtype, *root),
            DeviceOperation::AllGather { send, recv } => self.all_gather(*send, *recv, dtype),
            DeviceOperation::ReduceScatter { send, recv, op } => {
                self.reduce_scatter(*send, *recv, dtype, *op)
            }
            DeviceOperation::AllToAll { send, recv } => {
                let part = |region: &Region, peer| Region {
                    address: region.address + (region.len_bytes / self.world_size * peer) as u64,
                    len_bytes: region.len_bytes / self.world_size,
                };
                let of_peer = |peer| Pair {
                    send: Some((part(send, peer), peer)),
                    receive: Some((part(recv, peer), peer)),
                };
                self.group((0..self.world_size).map(of_peer), dtype)
            }
            DeviceOperation::Exchange { send, receive } => {
                self.group([Pair { send: *send, receive: *receive }].into_iter(), dtype)
            }
            DeviceOperation::Bucket { parts, bucket, op } => {
                // SAFETY: the caller's promise.
                unsafe { self.fill(parts, *bucket) }?;
                self.all_reduce(*bucket, *bucket, dtype, *op)
            }
        }
    }

    /// Copies parts to their places, and zeroes what is between them: it is reduced with them, and may hold anything.
    ///
    /// # Safety
    ///
    /// As [`issue`](Self::issue).
    unsafe fn fill(&self, parts: &[(Region, usize)], bucket: Region) -> Result<(), Refused> {
        for (part, offset) in parts.iter().filter(|(part, _)| part.len_bytes > 0) {
            // SAFETY: the caller's promise.
            unsafe { self.stream.copy(bucket.address + *offset as u64, part.address, part.len_bytes) }?;
        }
        let taken = parts.iter().map(|(part, offset)| (*offset, part.len_bytes)).collect();
        for (offset, len) in gaps(taken, bucket.len_bytes) {
            // SAFETY: the caller's promise.
            unsafe { self.stream.fill(bucket.address + offset as u64, 0, len) }?;
        }
        Ok(())
    }

    fn all_reduce(&self, send: Region, recv: Region, dtype: DType, op: ReduceOp) -> Result<(), Refused> {
        let (count, code, op) = (count(recv, dtype), codes::dtype(dtype), codes::reduction(op));
        self.call(count, "ncclAllReduce", "reduce", |functions, comm, stream| {
            // SAFETY: the caller of `issue` keeps the regions.
            unsafe { (functions.all_reduce)(from(send), to(recv), count, code, op, comm.raw(), stream.0) }
        })
    }

    fn broadcast(&self, send: Region, recv: Region, dtype: DType, root: usize) -> Result<(), Refused> {
        let (count, code, root) = (count(recv, dtype), codes::dtype(dtype), number(root));
        self.call(count, "ncclBroadcast", "broadcast", |functions, comm, stream| {
            // SAFETY: the caller of `issue` keeps the regions.
            unsafe { (functions.broadcast)(from(send), to(recv), count, code, root, comm.raw(), stream.0) }
        })
    }

    fn all_gather(&self, send: Region, recv: Region, dtype: DType) -> Result<(), Refused> {
        let (count, code) = (count(send, dtype), codes::dtype(dtype));
        self.call(count, "ncclAllGather", "gather", |functions, comm, stream| {
            // SAFETY: the caller of `issue` keeps the regions.
            unsafe { (functions.all_gather)(from(send), to(recv), count, code, comm.raw(), stream.0) }
        })
    }

    fn reduce_scatter(&self, send: Region, recv: Region, dtype: DType, op: ReduceOp) -> Result<(), Refused> {
        let (count, code, op) = (count(recv, dtype), codes::dtype(dtype), codes::reduction(op));
        self.call(count, "ncclReduceScatter", "reduce and scatter", |functions, comm, stream| {
            // SAFETY: the caller of `issue` keeps the regions.
            unsafe { (functions.reduce_scatter)(from(send), to(recv), count, code, op, comm.raw(), stream.0) }
        })
    }

    /// One call on the stream; none where there is nothing to move, which all ranks agree on.
    fn call(
        &self,
        count: usize,
        name: &'static str,
        action: &'static str,
        function: impl FnOnce(&super::api::Functions, Comm, Handle) -> i32,
    ) -> Result<(), Refused> {
        if count == 0 {
            return Ok(());
        }
        let stream = self.stream.handle();
        self.comm.call(name, action, |functions, comm| function(functions, comm, stream))
    }

    /// Messages that move at the same time.
    fn group(&self, pairs: impl Iterator<Item = Pair>, dtype: DType) -> Result<(), Refused> {
        let pairs: Vec<Pair> = pairs.map(Pair::without_empty).collect();
        if pairs.iter().all(|pair| pair.send.is_none() && pair.receive.is_none()) {
            return Ok(());
        }
        // SAFETY: it takes no arguments.
        self.comm.call("ncclGroupStart", "begin its messages", |functions, _| unsafe {
            (functions.group_start)()
        })?;
        let outcome = pairs.iter().try_for_each(|pair| self.pair(pair, dtype));
        // Also after a refusal: what is called next must not be in this group.
        // SAFETY: it takes no arguments, and the group has been started on this thread.
        let end = self
            .comm
            .call("ncclGroupEnd", "start its messages", |functions, _| unsafe { (functions.group_end)() });
        outcome.and(end)
    }

    fn pair(&self, pair: &Pair, dtype: DType) -> Result<(), Refused> {
        let (code, stream) = (codes::dtype(dtype), self.stream.handle().0);
        if let Some((region, peer)) = pair.send {
            self.comm.call("ncclSend", "send", |functions, comm| {
                // SAFETY: the caller of `issue` keeps the region.
                unsafe {
                    (functions.send)(
                        from(region),
                        count(region, dtype),
                        code,
                        number(peer),
                        comm.raw(),
                        stream,
                    )
                }
            })?;
        }
        if let Some((region, peer)) = pair.receive {
            self.comm.call("ncclRecv", "receive", |functions, comm| {
                // SAFETY: the caller of `issue` keeps the region.
                unsafe {
                    (functions.recv)(to(region), count(region, dtype), code, number(peer), comm.raw(), stream)
                }
            })?;
        }
        Ok(())
    }
}

/// A message to a rank and one from a rank.
#[derive(Clone, Copy)]
struct Pair {
    send: Option<(Region, usize)>,
    receive: Option<(Region, usize)>,
}

impl Pair {
    /// Messages without contents are not sent: both sides know.
    fn without_empty(self) -> Self {
        let full = |(region, _): &(Region, usize)| region.len_bytes > 0;
        Self { send: self.send.filter(full), receive: self.receive.filter(full) }
    }
}

fn count(region: Region, dtype: DType) -> usize {
    region.len_bytes / dtype.size_bytes()
}

fn from(region: Region) -> *const std::ffi::c_void {
    region.address as *const _
}

fn to(region: Region) -> *mut std::ffi::c_void {
    region.address as *mut _
}

fn number(rank: usize) -> i32 {
    i32::try_from(rank).unwrap_or(i32::MAX)
}

/// What parts (offset and length) leave free of a bucket of `len` bytes, as offsets and lengths.
fn gaps(mut parts: Vec<(usize, usize)>, len: usize) -> Vec<(usize, usize)> {
    parts.sort_unstable();
    let mut gaps = Vec::new();
    let mut free = 0;
    for (offset, part) in parts.into_iter().chain([(len, 0)]) {
        if offset > free {
            gaps.push((free, offset - free));
        }
        free = free.max(offset + part);
    }
    gaps
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_between_the_parts_of_a_bucket_is_found() {
        assert_eq!(gaps(vec![], 8), [(0, 8)]);
        assert_eq!(gaps(vec![(0, 8)], 8), []);
        assert_eq!(gaps(vec![(512, 100), (0, 12)], 1024), [(12, 500), (612, 412)]);
        assert_eq!(gaps(vec![(4, 4), (8, 0), (8, 4)], 12), [(0, 4)]);
        assert_eq!(gaps(vec![], 0), []);
    }
}
