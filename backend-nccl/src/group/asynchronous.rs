//! The operations of a group that run on its communication thread: each takes its place in the order now, owns its
//! buffers until it is done, and gives them back.

use std::{
    sync::PoisonError,
    time::{Duration, Instant},
};

use super::{
    ProcessGroup, Work, check,
    core::{AbortOnPanic, Core},
    inside::GroupId,
    order::{Operation, Ticket},
    work,
    worker::Worker,
};
use crate::{
    Result,
    site::CallSite,
    transport::{Collective, DType, OpKind, Patience, ReduceOp, Signature, planned},
};

/// Nobody waits on the core that the communication thread would keep busy.
const PATIENCE: Patience = Patience::Background;

impl ProcessGroup {
    /// As [`all_reduce`](Self::all_reduce), on the communication thread.
    ///
    /// # Errors
    ///
    /// All from [`Work::wait`].
    #[track_caller]
    pub fn all_reduce_async<B>(&self, mut buffer: B, dtype: DType, op: ReduceOp) -> Work<B>
    where
        B: AsMut<[u8]> + Send + 'static,
    {
        let bytes = buffer.as_mut().len();
        let checked =
            check::reduction(op, dtype).and_then(|()| check::whole(OpKind::AllReduce, bytes, dtype));
        let planned = planned(OpKind::AllReduce, dtype, Some(op), 0, bytes);
        self.start(checked, Some(planned), Operation::Collectives(1), move |core, ticket| {
            let collective = Collective::AllReduce { buffer: buffer.as_mut(), dtype, op };
            core.execute(ticket, collective, PATIENCE).map(|()| buffer)
        })
    }

    /// As [`broadcast`](Self::broadcast), on the communication thread.
    ///
    /// # Errors
    ///
    /// All from [`Work::wait`].
    #[track_caller]
    pub fn broadcast_async<B>(&self, mut buffer: B, dtype: DType, root: usize) -> Work<B>
    where
        B: AsMut<[u8]> + Send + 'static,
    {
        let bytes = buffer.as_mut().len();
        let checked = check::whole(OpKind::Broadcast, bytes, dtype)
            .and_then(|()| self.inner.core.check_root(OpKind::Broadcast, root));
        let planned = planned(OpKind::Broadcast, dtype, None, root, bytes);
        self.start(checked, Some(planned), Operation::Collectives(1), move |core, ticket| {
            let collective = Collective::Broadcast { buffer: buffer.as_mut(), dtype, root };
            core.execute(ticket, collective, PATIENCE).map(|()| buffer)
        })
    }

    /// As [`all_gather`](Self::all_gather), on the communication thread.
    ///
    /// # Errors
    ///
    /// All from [`Work::wait`].
    #[track_caller]
    pub fn all_gather_async<S, R>(&self, send: S, mut recv: R, dtype: DType) -> Work<(S, R)>
    where
        S: AsRef<[u8]> + Send + 'static,
        R: AsMut<[u8]> + Send + 'static,
    {
        let (sent, received) = (send.as_ref().len(), recv.as_mut().len());
        let checked = check::whole(OpKind::AllGather, sent, dtype)
            .and_then(|()| self.inner.core.check_parts(OpKind::AllGather, "recv", received, sent));
        let planned = planned(OpKind::AllGather, dtype, None, 0, sent);
        self.start(checked, Some(planned), Operation::Collectives(1), move |core, ticket| {
            let collective = Collective::AllGather { send: send.as_ref(), recv: recv.as_mut(), dtype };
            core.execute(ticket, collective, PATIENCE).map(|()| (send, recv))
        })
    }

    /// As [`reduce_scatter`](Self::reduce_scatter), on the communication thread.
    ///
    /// # Errors
    ///
    /// All from [`Work::wait`].
    #[track_caller]
    pub fn reduce_scatter_async<S, R>(&self, send: S, mut recv: R, dtype: DType, op: ReduceOp) -> Work<(S, R)>
    where
        S: AsRef<[u8]> + Send + 'static,
        R: AsMut<[u8]> + Send + 'static,
    {
        let (sent, received) = (send.as_ref().len(), recv.as_mut().len());
        let checked = check::reduction(op, dtype)
            .and_then(|()| check::whole(OpKind::ReduceScatter, received, dtype))
            .and_then(|()| self.inner.core.check_parts(OpKind::ReduceScatter, "send", sent, received));
        let planned = planned(OpKind::ReduceScatter, dtype, Some(op), 0, received);
        self.start(checked, Some(planned), Operation::Collectives(1), move |core, ticket| {
            let collective =
                Collective::ReduceScatter { send: send.as_ref(), recv: recv.as_mut(), dtype, op };
            core.execute(ticket, collective, PATIENCE).map(|()| (send, recv))
        })
    }

    /// As [`all_to_all`](Self::all_to_all), on the communication thread.
    ///
    /// # Errors
    ///
    /// All from [`Work::wait`].
    #[track_caller]
    pub fn all_to_all_async<S, R>(&self, send: S, mut recv: R, dtype: DType) -> Work<(S, R)>
    where
        S: AsRef<[u8]> + Send + 'static,
        R: AsMut<[u8]> + Send + 'static,
    {
        let (sent, received) = (send.as_ref().len(), recv.as_mut().len());
        let checked = self.inner.core.check_divides(OpKind::AllToAll, sent, received, dtype);
        let planned = planned(OpKind::AllToAll, dtype, None, 0, sent);
        self.start(checked, Some(planned), Operation::Collectives(1), move |core, ticket| {
            let collective = Collective::AllToAll { send: send.as_ref(), recv: recv.as_mut(), dtype };
            core.execute(ticket, collective, PATIENCE).map(|()| (send, recv))
        })
    }

    /// As [`gather`](Self::gather), on the communication thread.
    ///
    /// # Errors
    ///
    /// All from [`Work::wait`].
    #[track_caller]
    pub fn gather_async<S, R>(
        &self,
        send: S,
        mut recv: Option<R>,
        dtype: DType,
        root: usize,
    ) -> Work<(S, Option<R>)>
    where
        S: AsRef<[u8]> + Send + 'static,
        R: AsMut<[u8]> + Send + 'static,
    {
        let (core, sent) = (&self.inner.core, send.as_ref().len());
        let received = recv.as_mut().map(|recv| recv.as_mut().len());
        let checked = check::whole(OpKind::Gather, sent, dtype)
            .and_then(|()| core.check_root(OpKind::Gather, root))
            .and_then(|()| core.check_root_parts(OpKind::Gather, "recv", received, sent, root));
        let planned = planned(OpKind::Gather, dtype, None, root, sent);
        self.start(checked, Some(planned), Operation::Collectives(1), move |core, ticket| {
            let target = recv.as_mut().map(AsMut::as_mut);
            let collective = Collective::Gather { send: send.as_ref(), recv: target, dtype, root };
            core.execute(ticket, collective, PATIENCE).map(|()| (send, recv))
        })
    }

    /// As [`scatter`](Self::scatter), on the communication thread.
    ///
    /// # Errors
    ///
    /// All from [`Work::wait`].
    #[track_caller]
    pub fn scatter_async<S, R>(
        &self,
        send: Option<S>,
        mut recv: R,
        dtype: DType,
        root: usize,
    ) -> Work<(Option<S>, R)>
    where
        S: AsRef<[u8]> + Send + 'static,
        R: AsMut<[u8]> + Send + 'static,
    {
        let (core, received) = (&self.inner.core, recv.as_mut().len());
        let sent = send.as_ref().map(|send| send.as_ref().len());
        let checked = check::whole(OpKind::Scatter, received, dtype)
            .and_then(|()| core.check_root(OpKind::Scatter, root))
            .and_then(|()| core.check_root_parts(OpKind::Scatter, "send", sent, received, root));
        let planned = planned(OpKind::Scatter, dtype, None, root, received);
        self.start(checked, Some(planned), Operation::Collectives(1), move |core, ticket| {
            let source = send.as_ref().map(AsRef::as_ref);
            let collective = Collective::Scatter { send: source, recv: recv.as_mut(), dtype, root };
            core.execute(ticket, collective, PATIENCE).map(|()| (send, recv))
        })
    }

    /// As [`send`](Self::send), on the communication thread.
    ///
    /// # Errors
    ///
    /// All from [`Work::wait`].
    #[track_caller]
    pub fn send_async<B>(&self, buffer: B, dtype: DType, to: usize) -> Work<B>
    where
        B: AsRef<[u8]> + Send + 'static,
    {
        let checked = check::whole(OpKind::Message, buffer.as_ref().len(), dtype)
            .and_then(|()| self.inner.core.check_peer("send", to));
        let planned = planned(OpKind::Message, dtype, None, to, buffer.as_ref().len());
        self.start(
            checked,
            Some(planned),
            Operation::Messages { to: Some(to), from: None },
            move |core, ticket| {
                let collective = ticket.exchange(Some((buffer.as_ref(), to)), None, dtype);
                core.execute(ticket, collective, PATIENCE).map(|()| buffer)
            },
        )
    }

    /// As [`recv`](Self::recv), on the communication thread.
    ///
    /// # Errors
    ///
    /// All from [`Work::wait`].
    #[track_caller]
    pub fn recv_async<B>(&self, mut buffer: B, dtype: DType, from: usize) -> Work<B>
    where
        B: AsMut<[u8]> + Send + 'static,
    {
        let bytes = buffer.as_mut().len();
        let checked = check::whole(OpKind::Message, bytes, dtype)
            .and_then(|()| self.inner.core.check_peer("recv", from));
        let planned = planned(OpKind::Message, dtype, None, from, bytes);
        self.start(
            checked,
            Some(planned),
            Operation::Messages { to: None, from: Some(from) },
            move |core, ticket| {
                let collective = ticket.exchange(None, Some((buffer.as_mut(), from)), dtype);
                core.execute(ticket, collective, PATIENCE).map(|()| buffer)
            },
        )
    }

    /// As [`send_recv`](Self::send_recv), on the communication thread.
    ///
    /// # Errors
    ///
    /// All from [`Work::wait`].
    #[track_caller]
    pub fn send_recv_async<S, R>(
        &self,
        send: S,
        to: usize,
        mut recv: R,
        from: usize,
        dtype: DType,
    ) -> Work<(S, R)>
    where
        S: AsRef<[u8]> + Send + 'static,
        R: AsMut<[u8]> + Send + 'static,
    {
        let core = &self.inner.core;
        let (sent, received) = (send.as_ref().len(), recv.as_mut().len());
        let checked = check::whole(OpKind::Message, sent, dtype)
            .and_then(|()| check::whole(OpKind::Message, received, dtype))
            .and_then(|()| core.check_peer("send_recv", to))
            .and_then(|()| core.check_peer("send_recv", from));
        let planned = planned(OpKind::Message, dtype, None, to, sent + received);
        self.start(
            checked,
            Some(planned),
            Operation::Messages { to: Some(to), from: Some(from) },
            move |core, ticket| {
                let collective =
                    ticket.exchange(Some((send.as_ref(), to)), Some((recv.as_mut(), from)), dtype);
                core.execute(ticket, collective, PATIENCE).map(|()| (send, recv))
            },
        )
    }

    /// As [`barrier`](Self::barrier), on the communication thread.
    ///
    /// # Errors
    ///
    /// All from [`Work::wait`].
    #[track_caller]
    pub fn barrier_async(&self) -> Work<()> {
        let planned = planned(OpKind::Barrier, DType::U8, None, 0, 0);
        self.start(Ok(()), Some(planned), Operation::Collectives(1), |core, ticket| {
            core.execute(ticket, Collective::Barrier, PATIENCE)
        })
    }

    /// Queues `run` for the communication thread, unless the call is refused or the thread cannot be had.
    #[track_caller]
    pub(super) fn start<T: Send + 'static>(
        &self,
        checked: Result<()>,
        planned: Option<Signature>,
        operation: Operation,
        run: impl FnOnce(&Core, Ticket) -> Result<T> + Send + 'static,
    ) -> Work<T> {
        let id = GroupId::of(&self.inner.core);
        let (work, completion) = work::pair(id);
        let checked = checked.and_then(|()| id.must_be_outside("an asynchronous call"));
        let mut worker = self.inner.worker.lock().unwrap_or_else(PoisonError::into_inner);
        let worker = match checked.and_then(|()| Worker::start_once(&mut worker, &self.inner.core)) {
            Ok(worker) => worker,
            Err(error) => {
                completion.complete(Err(error), Duration::ZERO);
                return work;
            }
        };
        let (core, site) = (&self.inner.core, CallSite::here());
        core.order.take(operation, |ticket| {
            if let Some(planned) = planned {
                core.note(ticket, operation, planned, site);
            }
            worker.submit(Box::new(move |core, busy| {
                // Dropped from the last to the first, also where the buffers' own methods panic: whoever is woken by the
                // completion finds the thread idle.
                let (completion, busy) = (completion, busy);
                let _turn = core.order.wait(ticket);
                let _abort = AbortOnPanic(core);
                let start = Instant::now();
                let inside = id.enter();
                let result = run(core, ticket);
                drop(inside);
                let duration = start.elapsed();
                drop(busy);
                completion.complete(result, duration);
            }));
        });
        work
    }
}
