//! The state of a collective under way: its buffers, and how far each direction of each connection is.

use crate::transport::{
    Collective,
    frame::HEADER_BYTES,
    plan::{Piece, Plan, Schedule},
};

/// The caller's buffers.
pub(super) enum Buffers<'a> {
    InPlace(&'a mut [u8]),
    Apart { source: &'a [u8], target: &'a mut [u8] },
}

impl<'a> Buffers<'a> {
    /// The buffers of a collective for the member at `own` of `members`, with what stays on this rank copied.
    pub(super) fn new(collective: Collective<'a>, own: usize, members: usize) -> Self {
        match collective {
            Collective::AllReduce { buffer, .. } | Collective::Broadcast { buffer, .. } => {
                Self::InPlace(buffer)
            }
            Collective::AllGather { send, recv, .. } => {
                recv[own * send.len()..][..send.len()].copy_from_slice(send);
                Self::Apart { source: send, target: recv }
            }
            Collective::ReduceScatter { send, recv, .. } => Self::Apart { source: send, target: recv },
            Collective::Gather { send, recv, .. } => {
                let target = recv.unwrap_or_default();
                if let Some(part) = target.get_mut(own * send.len()..(own + 1) * send.len()) {
                    part.copy_from_slice(send);
                }
                Self::Apart { source: send, target }
            }
            Collective::Scatter { send, recv, .. } => {
                let source = send.unwrap_or_default();
                if let Some(part) = source.get(own * recv.len()..(own + 1) * recv.len()) {
                    recv.copy_from_slice(part);
                }
                Self::Apart { source, target: recv }
            }
            Collective::AllToAll { send, recv, .. } => {
                let part = send.len() / members;
                let own = own * part..(own + 1) * part;
                recv[own.clone()].copy_from_slice(&send[own]);
                Self::Apart { source: send, target: recv }
            }
            Collective::Exchange { send, receive, .. } => Self::Apart {
                source: send.map_or(&[], |message| message.buffer),
                target: receive.map_or(&mut [], |message| message.buffer),
            },
            Collective::Barrier => Self::InPlace(&mut []),
        }
    }

    pub(super) fn source(&self) -> &[u8] {
        match self {
            Self::InPlace(buffer) => buffer,
            Self::Apart { source, .. } => source,
        }
    }

    pub(super) fn target(&self) -> &[u8] {
        match self {
            Self::InPlace(buffer) => buffer,
            Self::Apart { target, .. } => target,
        }
    }

    pub(super) fn target_mut(&mut self) -> &mut [u8] {
        match self {
            Self::InPlace(buffer) => buffer,
            Self::Apart { target, .. } => target,
        }
    }
}

/// One direction of one connection: its pieces and how far the current one is.
pub(super) struct Cursor {
    schedule: Schedule,
    pub(super) piece: Option<Piece>,
    pub(super) done: usize,
    /// Bytes of all pieces that have moved.
    moved: usize,
    /// Bytes of the header that have moved.
    pub(super) header: usize,
    /// Whether the socket may have room or bytes: cleared when it ran out, set again by `poll`.
    pub(super) open: bool,
}

impl Cursor {
    /// `announced`: whether a header comes first; a direction without one has no pieces either.
    fn new(mut schedule: Schedule, announced: bool) -> Self {
        let piece = schedule.next();
        let header = if announced { 0 } else { HEADER_BYTES };
        Self { schedule, piece, done: 0, moved: 0, header, open: true }
    }

    /// Counts bytes of the current piece; returns the piece when that completes it.
    pub(super) fn advance(&mut self, count: usize) -> Option<Piece> {
        self.done += count;
        self.moved += count;
        if self.done < self.piece.as_ref()?.range.len() {
            return None;
        }
        self.done = 0;
        std::mem::replace(&mut self.piece, self.schedule.next())
    }

    pub(super) fn finished(&self) -> bool {
        self.header == HEADER_BYTES && self.piece.is_none()
    }
}

/// Both directions of the connection to one peer.
pub(super) struct Lane {
    /// The peer's place in the call.
    pub(super) place: usize,
    /// The index of its connection.
    pub(super) link: usize,
    pub(super) sending: Cursor,
    pub(super) receiving: Cursor,
    pub(super) header: [u8; HEADER_BYTES],
}

impl Lane {
    pub(super) fn new(plan: &Plan, own: usize, place: usize, link: usize) -> Self {
        Self {
            place,
            link,
            sending: Cursor::new(plan.schedule(own, place), plan.announces(own, place)),
            receiving: Cursor::new(plan.schedule(place, own), plan.announces(place, own)),
            header: [0; HEADER_BYTES],
        }
    }

    pub(super) fn finished(&self) -> bool {
        self.sending.finished() && self.receiving.finished()
    }

    /// Bytes that have moved in both directions.
    pub(super) fn moved(&self) -> usize {
        self.sending.moved + self.receiving.moved
    }
}
