//! Several collectives at one place of the order.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{
    ProcessGroup, Work, check,
    core::Core,
    order::{Operation, Ticket},
};
use crate::{
    Error, Result,
    site::CallSite,
    transport::{Collective, DType, OpKind, Patience, ReduceOp},
};

/// Places in the order of a group's collectives, taken by [`ProcessGroup::reserve_async`] for collectives of which one
/// depends on the result of another.
///
/// No other collective of the group runs in between, so that a second one has the same place on every rank though it is
/// called only when the first has ended. Every rank must run the same number of them; places that none of them uses
/// are passed over.
#[derive(Debug)]
pub struct Reserved<'a> {
    core: &'a Core,
    ticket: Ticket,
    used: u64,
    places: u64,
    /// Where they were reserved.
    site: CallSite,
}

impl Reserved<'_> {
    /// This process's number in the group.
    pub fn rank(&self) -> usize {
        self.core.rank
    }

    /// How many ranks the group has.
    pub fn world_size(&self) -> usize {
        self.core.world_size
    }

    /// As [`ProcessGroup::all_reduce`].
    ///
    /// # Errors
    ///
    /// As there, and [`Error::ReservedPlaces`] when all places have been used; so do the others.
    pub fn all_reduce(&mut self, buffer: &mut [u8], dtype: DType, op: ReduceOp) -> Result<()> {
        check::reduction(op, dtype)?;
        check::whole(OpKind::AllReduce, buffer.len(), dtype)?;
        self.run(Collective::AllReduce { buffer, dtype, op })
    }

    /// As [`ProcessGroup::all_gather`].
    ///
    /// # Errors
    ///
    /// As [`all_reduce`](Self::all_reduce).
    pub fn all_gather(&mut self, send: &[u8], recv: &mut [u8], dtype: DType) -> Result<()> {
        check::whole(OpKind::AllGather, send.len(), dtype)?;
        self.core.check_parts(OpKind::AllGather, "recv", recv.len(), send.len())?;
        self.run(Collective::AllGather { send, recv, dtype })
    }

    /// As [`ProcessGroup::reduce_scatter`].
    ///
    /// # Errors
    ///
    /// As [`all_reduce`](Self::all_reduce).
    pub fn reduce_scatter(&mut self, send: &[u8], recv: &mut [u8], dtype: DType, op: ReduceOp) -> Result<()> {
        check::reduction(op, dtype)?;
        check::whole(OpKind::ReduceScatter, recv.len(), dtype)?;
        self.core.check_parts(OpKind::ReduceScatter, "send", send.len(), recv.len())?;
        self.run(Collective::ReduceScatter { send, recv, dtype, op })
    }

    /// As [`ProcessGroup::broadcast`].
    ///
    /// # Errors
    ///
    /// As [`all_reduce`](Self::all_reduce).
    pub fn broadcast(&mut self, buffer: &mut [u8], dtype: DType, root: usize) -> Result<()> {
        check::whole(OpKind::Broadcast, buffer.len(), dtype)?;
        self.core.check_root(OpKind::Broadcast, root)?;
        self.run(Collective::Broadcast { buffer, dtype, root })
    }

    fn run(&mut self, collective: Collective<'_>) -> Result<()> {
        if self.used == self.places {
            return Err(Error::ReservedPlaces { places: self.places });
        }
        let ticket = self.ticket.place(self.used);
        self.used += 1;
        let signature = collective.signature(ticket.sequence);
        self.core.note(ticket, Operation::Collectives(1), signature, self.site);
        self.core.execute(ticket, collective, Patience::Background)
    }
}

impl ProcessGroup {
    /// Runs `job` on the communication thread, at `places` successive places in the order of collectives that are taken
    /// now. Between its collectives the job computes, and nothing else of the group runs meanwhile: a call of the group
    /// itself within the job is [`Error::InsideJob`].
    ///
    /// An error or a panic of the job ends the group: the other ranks wait for what it leaves out.
    ///
    /// # Errors
    ///
    /// All from [`Work::wait`]: [`Error::NoPlaces`] without running the job where `places` is 0, what `job` returns, and
    /// [`Error::CommunicationThread`] where it panicked.
    #[track_caller]
    pub fn reserve_async<T: Send + 'static>(
        &self,
        places: u64,
        job: impl FnOnce(&mut Reserved<'_>) -> Result<T> + Send + 'static,
    ) -> Work<T> {
        let site = CallSite::here();
        // Without a place of its own the job would share the turn of the next operation.
        let checked = if places == 0 { Err(Error::NoPlaces) } else { Ok(()) };
        self.start(checked, None, Operation::Collectives(places), move |core, ticket| {
            run(Reserved { core, ticket, used: 0, places, site }, job)
        })
    }
}

/// Runs a job and ends the group where it fails for a reason of its own.
fn run<T>(mut reserved: Reserved<'_>, job: impl FnOnce(&mut Reserved<'_>) -> Result<T>) -> Result<T> {
    let result = catch_unwind(AssertUnwindSafe(|| job(&mut reserved))).unwrap_or_else(|_| {
        let reason = "a job on it panicked, read the log for the message".into();
        Err(Error::CommunicationThread { reason })
    });
    if let Err(error) = &result
        && error.failure().is_none()
    {
        reserved.core.abort(&error.to_string());
    }
    result
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_without_a_place_is_refused_and_the_group_goes_on() {
        let group = ProcessGroup::single();
        let refused = group.reserve_async(0, |_| Ok(())).wait();
        assert!(matches!(refused, Err(Error::NoPlaces)), "{refused:?}");
        group.barrier().unwrap();
        group.reserve_async(1, |_| Ok(())).wait().unwrap();
        group.barrier().unwrap();
    }

    #[test]
    fn a_job_that_calls_its_own_group_or_waits_for_work_behind_it_is_told_so() {
        type Call = fn(&ProcessGroup) -> Result<()>;
        let calls: [Call; 4] = [
            |group| group.barrier(),
            |group| group.barrier_async().wait(),
            |group| group.all_gather_bytes(&[1]).map(|_| ()),
            |group| group.split(Some(0), 0).map(|_| ()),
        ];
        for (index, call) in calls.into_iter().enumerate() {
            // Splitting a group of one needs no other rank.
            let expected = index < 3;
            let group = ProcessGroup::single();
            let inner = group.clone();
            let result = group.reserve_async(1, move |_| call(&inner)).wait();
            assert_eq!(matches!(result, Err(Error::InsideJob { .. })), expected, "{index}: {result:?}");
        }
        let group = ProcessGroup::single();
        let (give, take) = std::sync::mpsc::channel::<Work<()>>();
        let waits = group.reserve_async(1, move |_| take.recv().expect("the test sends it").wait());
        give.send(group.barrier_async()).unwrap();
        assert!(matches!(waits.wait(), Err(Error::InsideJob { call: "Work::wait" })));
    }

    #[test]
    fn a_job_may_use_another_group_and_work_that_is_done() {
        let (group, other) = (ProcessGroup::single(), ProcessGroup::single());
        let done = group.barrier_async();
        group.barrier().unwrap();
        let job = move |_: &mut Reserved<'_>| other.barrier().and(done.wait());
        group.reserve_async(1, job).wait().unwrap();
        group.barrier().unwrap();
    }

    #[test]
    fn whoever_has_waited_for_the_last_work_leaves_on_his_own_thread() {
        for _ in 0..200 {
            let group = ProcessGroup::single();
            let core = std::sync::Arc::downgrade(&group.inner.core);
            group.barrier_async().wait().unwrap();
            drop(group);
            assert_eq!(core.strong_count(), 0, "the communication thread still holds the group");
        }
    }
}
