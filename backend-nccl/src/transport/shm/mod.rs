//! The engine for ranks of one host: each rank owns a segment of memory that all others map.
//!
//! # What lies in a segment
//!
//! Lines on which its owner announces what it calls, words that say how far it is, slots for small buffers, a staging
//! area for large ones, and an arena for buffers that never need to be copied ([`Buffer`]). The segment is a file
//! without a name: nothing is left when the last rank that has it open is gone, however it went.
//!
//! # How a collective runs
//!
//! Every rank announces its signature and where its source is, to each rank that takes part; nobody touches a buffer
//! before it has seen that all announced the same. Then each rank *reads* what it needs, where it is: in the slot, in
//! the peer's buffer itself, or in the staging area that the peer fills round by round. An all-reduce of large buffers
//! gives each rank a share to fold, and the result is written to every buffer that is in a segment; the others take it
//! from there.
//!
//! # Which store makes what visible
//!
//! - The number of an announcement is stored with release order behind the announcement and the inline bytes; who loads
//!   it with acquire order may read both.
//! - `staged`, `folded` and their like for messages are stored with release order behind the bytes they speak of.
//! - `taken` and `finished` are stored with release order behind the last *read* (or write to a peer's buffer); who
//!   loads them with acquire order may write there again, or give the buffer back to its user.
//! - Sleep: the sleeper stores its flag, fences, and looks; the waker stores what it has to say, fences, and looks at
//!   the flag. Of two sequentially consistent fences one comes second, and its thread sees the other's store.
//!
//! Counts only grow, through all collectives: no word is ever reset, so none is read too early.
//!
//! # What is trusted
//!
//! A peer runs this same code as the same user. Its announcements are checked all the same: numbers that would lead
//! outside of its segment are a [`Failure::Protocol`].

mod arena;
mod connect;
mod flow;
mod layout;
mod mapping;
mod message;
mod post;
mod receiving;
mod rounds;
mod sending;
mod shape;
mod wait;

#[cfg(test)]
mod tests;

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering, fence},
};

pub(crate) use connect::connect;

use self::{
    arena::Arena,
    layout::{ASLEEP, Counter, INLINE_SLOTS, Layout, MESSAGE_SLOTS},
    mapping::Mapping,
    post::Location,
    wait::Wait,
};
use super::{Buffer, Call, Collective, Signature, control::Control, engine::Engine, members::Members};
use crate::failure::Failure;

/// The segments of all ranks of one host, as one of them sees them.
#[derive(Debug)]
pub(crate) struct Shm {
    /// The ranks that have a segment here, ascending, and this one's index among them.
    members: Vec<usize>,
    own: usize,
    layout: Layout,
    /// By member.
    segments: Vec<Arc<Mapping>>,
    arena: Arc<Arena>,
    /// Whether there are more ranks than cores.
    crowded: bool,
    ended: AtomicBool,
    state: Mutex<State>,
}

/// What lasts from one call to the next.
#[derive(Debug)]
struct State {
    /// By member.
    peers: Vec<Peer>,
    /// The standing of the peers at which none was an obstacle; 0 before the first look.
    changes: u64,
    /// The rounds done so far.
    rounds: u64,
    /// Who may still read each inline slot.
    slots: [Vec<Reader>; INLINE_SLOTS],
    next_slot: usize,
    /// Who may still read each slot for messages.
    letters: [Option<Reader>; MESSAGE_SLOTS],
}

/// Counts that both sides of a pair keep alike.
#[derive(Clone, Debug, Default)]
struct Peer {
    /// Collectives announced to it.
    posted: u64,
    sent: u64,
    received: u64,
    sent_rounds: u64,
    received_rounds: u64,
    last: Option<Signature>,
}

/// Who reads an inline slot: done when the member's counter is at `count`.
#[derive(Clone, Copy, Debug)]
struct Reader {
    member: usize,
    counter: Counter,
    count: u64,
}

impl Shm {
    /// A number that a member tells this rank.
    fn told(&self, member: usize, counter: Counter) -> u64 {
        self.segments[member].word(self.layout.counter(self.own, counter)).load(Ordering::Acquire)
    }

    /// Tells a member a number. What was read and written before is done.
    fn tell(&self, member: usize, counter: Counter, value: u64) {
        self.segments[self.own].word(self.layout.counter(member, counter)).store(value, Ordering::Release);
    }

    /// Wakes those of `members` that sleep, after this rank has told them something.
    fn notify(&self, members: &[usize]) {
        fence(Ordering::SeqCst);
        members.iter().for_each(|member| wake(&self.segments[*member]));
    }

    /// The members in places `among`, by place.
    fn indices(&self, among: &Members) -> Vec<usize> {
        let find = |rank: &usize| self.members.binary_search(rank);
        among
            .ranks()
            .iter()
            .map(|rank| find(rank).expect("every rank of a call has a segment here"))
            .collect()
    }

    /// Where the source of this rank in a collective is, or how it gets to where others can read it.
    fn locate(
        &self,
        state: &mut State,
        wait: &Wait<'_>,
        source: &[u8],
        must_copy: bool,
    ) -> Result<Location, Failure> {
        if source.is_empty() || !(must_copy || source.len() <= layout::INLINE_BYTES) {
            return Ok(self.place(source));
        }
        let slot = state.next_slot;
        state.next_slot = (slot + 1) % INLINE_SLOTS;
        for Reader { member, counter, count } in state.slots[slot].drain(..) {
            wait.for_all(&[member], |member| Ok(self.told(member, counter) >= count))?;
        }
        self.fill(slot, source);
        Ok(Location::Inline { slot })
    }

    /// Where a source is that is too long for a slot, or empty.
    fn place(&self, source: &[u8]) -> Location {
        if source.is_empty() {
            return Location::Nowhere;
        }
        let resident = self.segments[self.own].offset_of(source.as_ptr(), source.len());
        resident.map_or(Location::Staged, |offset| Location::Resident { offset })
    }

    /// Copies a source to a slot whose last readers are done.
    fn fill(&self, slot: usize, source: &[u8]) {
        let target = self.segments[self.own].at(self.layout.inline(slot), source.len());
        // SAFETY: the slot is in this rank's segment, and nobody reads it.
        unsafe { target.copy_from_nonoverlapping(source.as_ptr(), source.len()) };
    }

    /// Why nothing more may run, if so.
    fn ended(&self) -> Option<Failure> {
        let rank = self.members[self.own];
        let reason = "its transport was shut down".to_owned();
        self.ended.load(Ordering::Acquire).then_some(Failure::Aborted { rank, reason })
    }
}

impl Engine for Shm {
    fn name(&self) -> &'static str {
        "shm"
    }

    fn run(
        &self,
        control: &Control,
        among: &Members,
        call: Call,
        collective: Collective<'_>,
    ) -> Result<(), Failure> {
        // It guards plain numbers; a call that panicked has ended the group.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(failure) = control.failure().or_else(|| self.ended()) {
            return Err(failure);
        }
        match collective {
            Collective::Exchange { send, receive, dtype } => {
                message::run(self, &mut state, control, among, call, dtype, send, receive)
            }
            collective => flow::run(self, &mut state, control, among, call, collective),
        }
    }

    fn allocate(&self, len_bytes: usize) -> Option<Buffer> {
        let block = self.arena.allocate(len_bytes)?;
        Some(Buffer::new(Box::new(block), len_bytes))
    }

    fn shutdown(&self) {
        self.ended.store(true, Ordering::Release);
        self.arena.close();
        // Before the look at who sleeps, as in `notify`.
        fence(Ordering::SeqCst);
        wake(&self.segments[self.own]);
    }
}

/// Wakes the owner of a segment if it sleeps. What it shall see is stored, and a fence is behind that.
fn wake(segment: &Mapping) {
    let asleep = segment.futex(ASLEEP);
    if asleep.load(Ordering::SeqCst) != 0 && asleep.swap(0, Ordering::SeqCst) != 0 {
        mapping::wake(asleep);
    }
}
