//! The operations of a group that return when they are done.

use super::{ProcessGroup, check, inside::GroupId, order::Operation};
use crate::{
    Error, Result,
    site::CallSite,
    transport::{Collective, DType, OpKind, Patience, ReduceOp, planned},
};

/// The most that [`ProcessGroup::all_gather_bytes`] may collect, in bytes.
const MAX_GATHERED_BYTES: u64 = 4 << 30;

impl ProcessGroup {
    /// Reduces `buffer` over all ranks in place; the result has the same bits on every rank, and for every way
    /// to cut a buffer into several calls.
    ///
    /// # Errors
    ///
    /// [`Error::BufferLength`] and [`Error::UnsupportedReduction`] before anything is sent;
    /// [`Error::Collective`] when the group has failed, with the cause.
    #[track_caller]
    pub fn all_reduce(&self, buffer: &mut [u8], dtype: DType, op: ReduceOp) -> Result<()> {
        check::reduction(op, dtype)?;
        check::whole(OpKind::AllReduce, buffer.len(), dtype)?;
        self.common(Collective::AllReduce { buffer, dtype, op })
    }

    /// Copies the `buffer` of rank `root` to all ranks.
    ///
    /// # Errors
    ///
    /// [`Error::BufferLength`] and [`Error::Root`] before anything is sent; [`Error::Collective`] as above.
    #[track_caller]
    pub fn broadcast(&self, buffer: &mut [u8], dtype: DType, root: usize) -> Result<()> {
        check::whole(OpKind::Broadcast, buffer.len(), dtype)?;
        self.inner.core.check_root(OpKind::Broadcast, root)?;
        self.common(Collective::Broadcast { buffer, dtype, root })
    }

    /// Collects every rank's `send` in `recv`, in rank order: `recv` is `world_size` times as long.
    ///
    /// # Errors
    ///
    /// [`Error::BufferLength`] before anything is sent; [`Error::Collective`] as above.
    #[track_caller]
    pub fn all_gather(&self, send: &[u8], recv: &mut [u8], dtype: DType) -> Result<()> {
        check::whole(OpKind::AllGather, send.len(), dtype)?;
        self.inner.core.check_parts(OpKind::AllGather, "recv", recv.len(), send.len())?;
        self.common(Collective::AllGather { send, recv, dtype })
    }

    /// Reduces `send` over all ranks and keeps part `rank` of `world_size` equal parts in `recv`.
    ///
    /// # Errors
    ///
    /// [`Error::BufferLength`] and [`Error::UnsupportedReduction`] before anything is sent;
    /// [`Error::Collective`] as above.
    #[track_caller]
    pub fn reduce_scatter(&self, send: &[u8], recv: &mut [u8], dtype: DType, op: ReduceOp) -> Result<()> {
        check::reduction(op, dtype)?;
        check::whole(OpKind::ReduceScatter, recv.len(), dtype)?;
        self.inner.core.check_parts(OpKind::ReduceScatter, "send", send.len(), recv.len())?;
        self.common(Collective::ReduceScatter { send, recv, dtype, op })
    }

    /// Waits until every rank has come here.
    ///
    /// # Errors
    ///
    /// [`Error::Collective`] as above.
    #[track_caller]
    pub fn barrier(&self) -> Result<()> {
        self.common(Collective::Barrier)
    }

    /// Collects a value of each rank, of any length, in rank order. Two collectives: lengths, then values padded to
    /// the longest.
    ///
    /// # Errors
    ///
    /// [`Error::GatherTooLarge`] on all ranks if they pad to more than 4 GiB; [`Error::Collective`] as above.
    #[track_caller]
    pub fn all_gather_bytes(&self, value: &[u8]) -> Result<Vec<Vec<u8>>> {
        let core = &self.inner.core;
        GroupId::of(core).must_be_outside("all_gather_bytes")?;
        let (operation, site, patience) = (Operation::Collectives(2), CallSite::here(), Patience::Waiting);
        let dtype = DType::U8;
        let gather = |bytes| planned(OpKind::AllGather, dtype, None, 0, bytes);
        let ticket = core.order.take(operation, |ticket| {
            core.note(ticket, operation, gather(8), site);
            ticket
        });
        let _turn = core.order.wait(ticket);

        let mut lengths = vec![0; 8 * core.world_size];
        let send = &(value.len() as u64).to_ne_bytes();
        core.execute(ticket, Collective::AllGather { send, recv: &mut lengths, dtype }, patience)?;
        let lengths: Vec<u64> =
            lengths.chunks_exact(8).map(|b| u64::from_ne_bytes(b.try_into().expect("eight bytes"))).collect();
        let longest = lengths.iter().copied().max().unwrap_or(0);
        let bytes = longest.saturating_mul(core.world_size as u64);
        if bytes > MAX_GATHERED_BYTES {
            return Err(Error::GatherTooLarge { bytes, limit: MAX_GATHERED_BYTES });
        }

        core.note(ticket.place(1), operation, gather(longest as usize), site);
        let mut padded = value.to_vec();
        padded.resize(longest as usize, 0);
        let mut values = vec![0; bytes as usize];
        core.execute(
            ticket.place(1),
            Collective::AllGather { send: &padded, recv: &mut values, dtype },
            patience,
        )?;
        let parts = lengths.iter().enumerate().map(|(rank, length)| {
            let start = rank * longest as usize;
            values[start..start + *length as usize].to_vec()
        });
        Ok(parts.collect())
    }

    /// Collects every rank's `send` in the `recv` of rank `root`, in rank order: `recv` is `world_size` times as long,
    /// and the other ranks give `None`. (MPI: `MPI_Gather`; PyTorch: `gather`.)
    ///
    /// # Errors
    ///
    /// [`Error::BufferLength`], [`Error::Root`] and [`Error::RootBuffer`] before anything is sent;
    /// [`Error::Collective`] as above.
    #[track_caller]
    pub fn gather(&self, send: &[u8], recv: Option<&mut [u8]>, dtype: DType, root: usize) -> Result<()> {
        check::whole(OpKind::Gather, send.len(), dtype)?;
        let (core, found) = (&self.inner.core, recv.as_ref().map(|recv| recv.len()));
        core.check_root(OpKind::Gather, root)?;
        core.check_root_parts(OpKind::Gather, "recv", found, send.len(), root)?;
        self.common(Collective::Gather { send, recv, dtype, root })
    }

    /// Gives each rank its part of the `send` of rank `root`, in rank order: `send` is `world_size` times as long as
    /// `recv`, and the other ranks give `None`. (MPI: `MPI_Scatter`; PyTorch: `scatter`.)
    ///
    /// # Errors
    ///
    /// As [`gather`](Self::gather).
    #[track_caller]
    pub fn scatter(&self, send: Option<&[u8]>, recv: &mut [u8], dtype: DType, root: usize) -> Result<()> {
        check::whole(OpKind::Scatter, recv.len(), dtype)?;
        let (core, found) = (&self.inner.core, send.map(<[u8]>::len));
        core.check_root(OpKind::Scatter, root)?;
        core.check_root_parts(OpKind::Scatter, "send", found, recv.len(), root)?;
        self.common(Collective::Scatter { send, recv, dtype, root })
    }

    /// Gives part `i` of `send` to rank `i` and collects in `recv` what the ranks give this one, in rank order. Both
    /// have `world_size` equal parts, of the same length on all ranks. (MPI: `MPI_Alltoall`; PyTorch:
    /// `all_to_all_single`.)
    ///
    /// # Errors
    ///
    /// [`Error::BufferLength`] before anything is sent; [`Error::Collective`] as above.
    #[track_caller]
    pub fn all_to_all(&self, send: &[u8], recv: &mut [u8], dtype: DType) -> Result<()> {
        self.inner.core.check_divides(OpKind::AllToAll, send.len(), recv.len(), dtype)?;
        self.common(Collective::AllToAll { send, recv, dtype })
    }

    /// Sends `buffer` to rank `to`, which calls [`recv`](Self::recv) with a buffer of the same length and type. Between
    /// two ranks the first message sent is the first received, and a message keeps its place among their other calls.
    ///
    /// A small message is kept until its receiver takes it: over shared memory up to 32 KiB each and 64 of a rank at once,
    /// over TCP what the system's buffers hold, over MPI what the library keeps. Any other waits for its receiver, so two
    /// ranks that send to each other use [`send_recv`](Self::send_recv).
    /// (MPI: `MPI_Send`; PyTorch: `send`.)
    ///
    /// # Errors
    ///
    /// [`Error::BufferLength`], [`Error::Root`] and [`Error::MessageToSelf`] before anything is sent;
    /// [`Error::Collective`] when the group has failed, or when the receiver expects another length or type.
    #[track_caller]
    pub fn send(&self, buffer: &[u8], dtype: DType, to: usize) -> Result<()> {
        check::whole(OpKind::Message, buffer.len(), dtype)?;
        self.inner.core.check_peer("send", to)?;
        self.messages(Some((buffer, to)), None, dtype)
    }

    /// Receives into `buffer` what rank `from` [`send`](Self::send)s to this one.
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    #[track_caller]
    pub fn recv(&self, buffer: &mut [u8], dtype: DType, from: usize) -> Result<()> {
        check::whole(OpKind::Message, buffer.len(), dtype)?;
        self.inner.core.check_peer("recv", from)?;
        self.messages(None, Some((buffer, from)), dtype)
    }

    /// Sends to rank `to` and receives from rank `from` at the same time; they may be one rank or two, and each side may
    /// be met by another `send_recv` or by a plain [`send`](Self::send) or [`recv`](Self::recv). (MPI: `MPI_Sendrecv`.)
    ///
    /// # Errors
    ///
    /// As [`send`](Self::send).
    #[track_caller]
    pub fn send_recv(
        &self,
        send: &[u8],
        to: usize,
        recv: &mut [u8],
        from: usize,
        dtype: DType,
    ) -> Result<()> {
        check::whole(OpKind::Message, send.len(), dtype)?;
        check::whole(OpKind::Message, recv.len(), dtype)?;
        self.inner.core.check_peer("send_recv", to)?;
        self.inner.core.check_peer("send_recv", from)?;
        self.messages(Some((send, to)), Some((recv, from)), dtype)
    }

    #[track_caller]
    fn common(&self, collective: Collective<'_>) -> Result<()> {
        self.inner.core.run(Operation::Collectives(1), |_| collective)
    }

    #[track_caller]
    fn messages(
        &self,
        send: Option<(&[u8], usize)>,
        receive: Option<(&mut [u8], usize)>,
        dtype: DType,
    ) -> Result<()> {
        let (to, from) = (send.map(|(_, to)| to), receive.as_ref().map(|(_, from)| *from));
        self.inner.core.run(Operation::Messages { to, from }, |ticket| ticket.exchange(send, receive, dtype))
    }
}
