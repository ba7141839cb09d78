//! Messages: one rank writes or shows, one reads, and nobody else knows.

use std::ptr;

use super::{
    Reader, Shm, State,
    flow::tag,
    layout::{Counter, MESSAGES, ROUND_BYTES, ROUNDS},
    post::{Found, Location, Post},
    wait::Wait,
};
use crate::{
    failure::Failure,
    transport::{Call, DType, Incoming, Outgoing, Signature, control::Control, members::Members},
};

/// Sends and receives one message each, if there is one, at the same time.
#[allow(clippy::too_many_arguments)]
pub(super) fn run(
    shm: &Shm,
    state: &mut State,
    control: &Control,
    among: &Members,
    call: Call,
    dtype: DType,
    send: Option<Outgoing<'_>>,
    receive: Option<Incoming<'_>>,
) -> Result<(), Failure> {
    let last: Vec<Option<Signature>> = state.peers.iter().map(|peer| peer.last).collect();
    let wait = Wait { shm, control, call, sequence: None, needed: &[], last: &last };
    let (members, tag) = (shm.indices(among), tag(among));
    let mut sending = match &send {
        Some(message) => {
            let signature = message.signature(dtype, among.own());
            Some(Sending::start(shm, state, &wait, members[message.to], message.buffer, signature, tag)?)
        }
        None => None,
    };
    let mut receiving = receive.map(|message| {
        let signature = message.signature(dtype);
        Receiving::start(state, members[message.from], message.buffer, signature, tag)
    });
    loop {
        let mut moved = false;
        if let Some(sending) = &mut sending {
            moved |= sending.go_on(shm);
        }
        if let Some(receiving) = &mut receiving {
            moved |= receiving.go_on(shm)?;
        }
        let (sent, received) = (
            sending.as_ref().is_none_or(|sending| sending.is_over(shm)),
            receiving.as_ref().is_none_or(|receiving| receiving.left == 0 && receiving.post.is_some()),
        );
        if sent && received {
            break;
        }
        if !moved {
            wait.until(|_| {
                let blocked = sending.as_ref().filter(|sending| !sent && !sending.can_go_on(shm));
                let starved = match &receiving {
                    Some(receiving) if !received && !receiving.can_go_on(shm)? => Some(receiving.from),
                    _ => None,
                };
                let waits_for = usize::from(!sent) + usize::from(!received);
                let behind: Vec<usize> =
                    blocked.map(|sending| sending.to).into_iter().chain(starved).collect();
                Ok((behind.len() == waits_for).then(|| behind.into()))
            })?;
        }
    }
    if let Some(sending) = sending {
        sending.finish(state);
    }
    if let Some(receiving) = receiving {
        receiving.finish(state);
    }
    Ok(())
}

/// The side that shows its bytes.
struct Sending<'a> {
    to: usize,
    /// The place among the messages to that rank, from 1.
    number: u64,
    buffer: &'a [u8],
    location: Location,
    base: u64,
    rounds: u64,
    staged: u64,
}

impl<'a> Sending<'a> {
    fn start(
        shm: &Shm,
        state: &mut State,
        wait: &Wait<'_>,
        to: usize,
        buffer: &'a [u8],
        signature: Signature,
        tag: u32,
    ) -> Result<Self, Failure> {
        let number = state.peers[to].sent + 1;
        // The line for the announcement must be free.
        wait.for_all(&[to], |to| {
            Ok(number <= MESSAGES || shm.told(to, Counter::MessagesFinished) >= number - MESSAGES)
        })?;
        let location = shm.locate(state, wait, buffer, false)?;
        if let Location::Inline { slot } = location {
            state.slots[slot].push(Reader { member: to, counter: Counter::MessagesFinished, count: number });
        }
        let peer = &mut state.peers[to];
        peer.sent = number;
        let post = Post { signature, location, base: 0 };
        post.write(&shm.segments[shm.own], shm.layout.message(to, number), number, tag);
        shm.notify(&[to]);
        let rounds = if location == Location::Staged { buffer.len().div_ceil(ROUND_BYTES) as u64 } else { 0 };
        Ok(Self { to, number, buffer, location, base: peer.sent_rounds, rounds, staged: 0 })
    }

    fn can_go_on(&self, shm: &Shm) -> bool {
        let taken = || shm.told(self.to, Counter::MessageRoundsTaken).saturating_sub(self.base);
        if self.staged < self.rounds {
            self.staged < ROUNDS || taken() > self.staged - ROUNDS
        } else {
            self.is_over(shm)
        }
    }

    /// Stages a round, if there is one and room for it.
    fn go_on(&mut self, shm: &Shm) -> bool {
        if self.staged == self.rounds || !self.can_go_on(shm) {
            return false;
        }
        let start = self.staged as usize * ROUND_BYTES;
        let bytes = &self.buffer[start..self.buffer.len().min(start + ROUND_BYTES)];
        let target = shm.segments[shm.own].at(shm.layout.staging(self.staged, 0, 1), bytes.len());
        // SAFETY: the round is in this rank's segment, and its reader is done with what was there.
        unsafe { target.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.staged += 1;
        shm.tell(self.to, Counter::MessageRoundsStaged, self.base + self.staged);
        shm.notify(&[self.to]);
        true
    }

    /// Whether the caller may have its buffer back.
    fn is_over(&self, shm: &Shm) -> bool {
        match self.location {
            Location::Nowhere | Location::Inline { .. } => true,
            Location::Resident { .. } | Location::Staged => {
                shm.told(self.to, Counter::MessagesFinished) >= self.number
            }
        }
    }

    fn finish(self, state: &mut State) {
        state.peers[self.to].sent_rounds += self.rounds;
    }
}

/// The side that reads.
struct Receiving<'a> {
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
    fn start(state: &State, from: usize, buffer: &'a mut [u8], signature: Signature, tag: u32) -> Self {
        let peer = &state.peers[from];
        let (number, base, left) = (peer.received + 1, peer.received_rounds, buffer.len());
        Self { from, number, signature, tag, buffer, post: None, base, rounds: 0, left }
    }

    fn find(&self, shm: &Shm) -> Result<Option<Found>, Failure> {
        let offset = shm.layout.message(shm.own, self.number);
        Found::at(&shm.segments[self.from], offset, self.number).map_err(|detail| self.wrong(shm, detail))
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
    fn go_on(&mut self, shm: &Shm) -> Result<bool, Failure> {
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

    fn finish(self, state: &mut State) {
        let peer = &mut state.peers[self.from];
        peer.received = self.number;
        peer.received_rounds += self.rounds;
        peer.last = Some(self.signature);
    }
}
