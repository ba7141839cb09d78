//! The side of a message that shows its bytes.

use super::{
    Reader, Shm, State,
    layout::{Counter, INLINE_BYTES, INLINE_SLOTS, MESSAGES, ROUND_BYTES, ROUNDS},
    post::{Location, Post},
};
use crate::transport::Signature;

/// One message on its way to another rank.
pub(super) struct Sending<'a> {
    to: usize,
    signature: Signature,
    tag: u32,
    /// The place among the messages to that rank, from 1.
    number: u64,
    buffer: &'a [u8],
    /// Where it has been announced to be; `None` before.
    location: Option<Location>,
    base: u64,
    rounds: u64,
    staged: u64,
}

impl<'a> Sending<'a> {
    pub(super) fn new(state: &State, to: usize, buffer: &'a [u8], signature: Signature, tag: u32) -> Self {
        let (number, base) = (state.peers[to].sent + 1, state.peers[to].sent_rounds);
        Self { to, signature, tag, number, buffer, location: None, base, rounds: 0, staged: 0 }
    }

    /// Announces the message or stages a round of it, if it can; whether it did.
    pub(super) fn go_on(&mut self, shm: &Shm, state: &mut State) -> bool {
        if self.waits_for(shm, state).is_some() || self.is_over(shm) {
            return false;
        }
        if self.location.is_none() {
            self.announce(shm, state);
        } else {
            self.stage(shm);
        }
        true
    }

    /// The members that this side waits for; `None` if it can go on.
    pub(super) fn waits_for(&self, shm: &Shm, state: &State) -> Option<Vec<usize>> {
        let told = |counter| shm.told(self.to, counter);
        let can_go_on = if self.location.is_none() {
            if self.fits_a_slot() && free_slot(shm, state).is_none() {
                return Some(state.letters.iter().flatten().map(|reader| reader.member).collect());
            }
            // The line for the announcement must be free.
            self.number <= MESSAGES || told(Counter::MessagesFinished) >= self.number - MESSAGES
        } else if self.staged < self.rounds {
            let taken = told(Counter::MessageRoundsTaken).saturating_sub(self.base);
            self.staged < ROUNDS || taken > self.staged - ROUNDS
        } else {
            self.is_over(shm)
        };
        (!can_go_on).then(|| vec![self.to])
    }

    /// Whether the caller may have its buffer back.
    pub(super) fn is_over(&self, shm: &Shm) -> bool {
        match self.location {
            None => false,
            Some(Location::Nowhere | Location::Inline { .. }) => true,
            Some(Location::Resident { .. } | Location::Staged) => {
                shm.told(self.to, Counter::MessagesFinished) >= self.number
            }
        }
    }

    pub(super) fn finish(self, state: &mut State) {
        state.peers[self.to].sent_rounds += self.rounds;
    }

    fn fits_a_slot(&self) -> bool {
        !self.buffer.is_empty() && self.buffer.len() <= INLINE_BYTES
    }

    fn announce(&mut self, shm: &Shm, state: &mut State) {
        let slot = if self.fits_a_slot() { free_slot(shm, state) } else { None };
        let location = match slot {
            Some(letter) => {
                let (counter, count) = (Counter::MessagesFinished, self.number);
                state.letters[letter] = Some(Reader { member: self.to, counter, count });
                let slot = INLINE_SLOTS + letter;
                shm.fill(slot, self.buffer);
                Location::Inline { slot }
            }
            None => shm.place(self.buffer),
        };
        if location == Location::Staged {
            self.rounds = self.buffer.len().div_ceil(ROUND_BYTES) as u64;
        }
        self.location = Some(location);
        state.peers[self.to].sent = self.number;
        let post = Post { signature: self.signature, location, base: 0 };
        post.write(&shm.segments[shm.own], shm.layout.message(self.to, self.number), self.number, self.tag);
        shm.notify(&[self.to]);
    }

    fn stage(&mut self, shm: &Shm) {
        let start = self.staged as usize * ROUND_BYTES;
        let bytes = &self.buffer[start..self.buffer.len().min(start + ROUND_BYTES)];
        let target = shm.segments[shm.own].at(shm.layout.staging(self.staged, 0, 1), bytes.len());
        // SAFETY: the round is in this rank's segment, and its reader is done with what was there.
        unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.staged += 1;
        shm.tell(self.to, Counter::MessageRoundsStaged, self.base + self.staged);
        shm.notify(&[self.to]);
    }
}

/// A slot for a message whose reader is done with it.
fn free_slot(shm: &Shm, state: &State) -> Option<usize> {
    state.letters.iter().position(|reader| {
        reader.is_none_or(|Reader { member, counter, count }| shm.told(member, counter) >= count)
    })
}
