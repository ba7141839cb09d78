//! The side of a message that reads.

use std::ptr;

use super::{
    Shm, State,
    layout::{Counter, ROUND_BYTES},
    post::{Found, Location, Post},
};
use crate::{failure::Failure, transport::Signature};

/// One message that is to come from another rank.
pub(super) struct Receiving<'a> {
    from: usize,
    number: u64,
    signature: Signature,
    tag: u32,
    buffer: &'a mut [u8],
    /// The sender's announcement, once it is there.
    post: Option<Post>,
    base: u64,
    rounds: u64,
    /// Bytes that have not come.
    left: usize,
}

impl<'a> Receiving<'a> {
    pub(super) fn new(
        state: &State,
        from: usize,
        buffer: &'a mut [u8],
        signature: Signature,
        tag: u32,
    ) -> Self {
        let peer = &state.peers[from];
        let (number, base, left) = (peer.received + 1, peer.received_rounds, buffer.len());
        Self { from, number, signature, tag, buffer, post: None, base, rounds: 0, left }
    }

    fn find(&self, shm: &Shm) -> Result<Option<Found>, Failure> {
        let offset = shm.layout.message(shm.own, self.number);
        Found::at(&shm.segments[self.from], offset, self.number).map_err(|detail| self.wrong(shm, detail))
    }

    /// The members that this side waits for; `None` if it can go on.
    pub(super) fn waits_for(&self, shm: &Shm) -> Result<Option<Vec<usize>>, Failure> {
        Ok((!self.can_go_on(shm)?).then(|| vec![self.from]))
    }

    pub(super) fn is_over(&self) -> bool {
        self.left == 0 && self.post.is_some()
    }

    fn can_go_on(&self, shm: &Shm) -> Result<bool, Failure> {
        Ok(match self.post {
            None => self.find(shm)?.is_some(),
            Some(post) if post.location == Location::Staged => self.staged(shm) > self.rounds,
            Some(_) => true,
        })
    }

    fn staged(&self, shm: &Shm) -> u64 {
        shm.told(self.from, Counter::MessageRoundsStaged).saturating_sub(self.base)
    }

    /// Takes the announcement, or what there is of the bytes.
    pub(super) fn go_on(&mut self, shm: &Shm) -> Result<bool, Failure> {
        let Some(post) = self.post else {
            let Some(found) = self.find(shm)? else { return Ok(false) };
            self.post = Some(self.accept(shm, &found)?);
            self.tell_if_over(shm);
            return Ok(true);
        };
        if self.left == 0 || !self.can_go_on(shm)? {
            return Ok(false);
        }
        let done = self.buffer.len() - self.left;
        let segment = &shm.segments[self.from];
        let (offset, len) = match shm.layout.fixed(post.location, done) {
            Some(offset) => (offset, self.left),
            None => (shm.layout.staging(self.rounds, 0, 1), self.left.min(ROUND_BYTES)),
        };
        // SAFETY: the sender has said that the bytes are there, and waits for this rank before it changes them.
        unsafe { ptr::copy_nonoverlapping(segment.at(offset, len), self.buffer[done..].as_mut_ptr(), len) };
        self.left -= len;
        if post.location == Location::Staged {
            self.rounds += 1;
            shm.tell(self.from, Counter::MessageRoundsTaken, self.base + self.rounds);
            shm.notify(&[self.from]);
        }
        self.tell_if_over(shm);
        Ok(true)
    }

    /// Lets the sender go as soon as its bytes are here, whatever this rank still has to send: in a ring of ranks each
    /// waits for its receiver.
    fn tell_if_over(&self, shm: &Shm) {
        if self.left == 0 {
            shm.tell(self.from, Counter::MessagesFinished, self.number);
            shm.notify(&[self.from]);
        }
    }

    fn accept(&self, shm: &Shm, found: &Found) -> Result<Post, Failure> {
        let theirs = found.signature(self.tag).map_err(|detail| self.wrong(shm, detail))?;
        if theirs != self.signature {
            let (rank, peer) = (shm.members[shm.own], shm.members[self.from]);
            return Err(Failure::mismatch(rank, self.signature, peer, theirs));
        }
        let segment = &shm.segments[self.from];
        found.accept(theirs, self.buffer.len(), segment).map_err(|detail| self.wrong(shm, detail))
    }

    fn wrong(&self, shm: &Shm, detail: String) -> Failure {
        Failure::Protocol { rank: shm.members[self.from], detail }
    }

    pub(super) fn finish(self, state: &mut State) {
        let peer = &mut state.peers[self.from];
        peer.received = self.number;
        peer.received_rounds += self.rounds;
        peer.last = Some(self.signature);
    }
}
