//! Sends and receives under way, each with the bytes that MPI has in its hands.
//!
//! MPI reads and writes the memory of a request until it is complete, and a request whose peer has stopped may never be:
//! neither a send nor a receive that has begun can be taken back. So the memory of every request is a slab of our own, never
//! the caller's buffer. The slabs of requests that are not complete when a collective fails are leaked, on purpose: they
//! are the only safe end. That costs at most the window of each peer, once, since the group has ended.

use std::ffi::c_int;

use mpi::ffi::{MPI_Request, MPI_Status};

use super::checked::{self, Comm, Fault, Turn, empty_status};
use crate::transport::plan::CHUNK_BYTES;

/// Bytes of a small slab: a header with the whole payload of a short message.
pub(super) const SMALL_BYTES: usize = 17 * 1024;
/// How often requests that were cancelled are tested before their memory is given up.
const LAST_TESTS: usize = 64;

/// Memory for one message.
#[derive(Debug)]
pub(super) struct Slab {
    bytes: Vec<u8>,
}

/// Slabs that are not in use, kept between collectives.
#[derive(Debug, Default)]
pub(super) struct Pool {
    small: Vec<Slab>,
    large: Vec<Slab>,
}

impl Slab {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Pool {
    /// A slab for `len` bytes, which are at most [`CHUNK_BYTES`].
    pub(super) fn take(&mut self, len: usize) -> Slab {
        let (free, size) =
            if len <= SMALL_BYTES { (&mut self.small, SMALL_BYTES) } else { (&mut self.large, CHUNK_BYTES) };
        free.pop().unwrap_or_else(|| Slab { bytes: vec![0; size] })
    }

    pub(super) fn give(&mut self, slab: Slab) {
        if slab.bytes.len() == SMALL_BYTES { self.small.push(slab) } else { self.large.push(slab) }
    }
}

/// What a transfer is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Purpose {
    Send,
    /// The first message of the peer: its header, and payload that is short.
    First,
    /// The message of this number, counted from 0 without the first.
    Piece(usize),
}

/// A transfer that is complete.
#[derive(Debug)]
pub(super) struct Completed {
    pub(super) lane: usize,
    pub(super) purpose: Purpose,
    pub(super) slab: Slab,
    /// Bytes that were received.
    pub(super) count: usize,
}

#[derive(Debug)]
struct Transfer {
    lane: usize,
    purpose: Purpose,
    slab: Slab,
    /// What was sent or will be received, at most.
    len: usize,
}

/// All transfers of one collective. Nothing is under way any more once it is dropped, or else its memory is given up.
#[derive(Debug)]
pub(super) struct Transfers {
    comm: Comm,
    tag: c_int,
    requests: Vec<MPI_Request>,
    transfers: Vec<Transfer>,
    indices: Vec<c_int>,
    statuses: Vec<MPI_Status>,
}

// SAFETY: requests are handles of MPI, which takes them from any thread that has the turn.
unsafe impl Send for Transfers {}

impl Transfers {
    pub(super) fn new(comm: Comm, tag: c_int) -> Self {
        Self {
            comm,
            tag,
            requests: Vec::new(),
            transfers: Vec::new(),
            indices: Vec::new(),
            statuses: Vec::new(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.requests.is_empty()
    }

    /// Sends the first bytes of a slab, which `parts` fill one after the other.
    pub(super) fn send(
        &mut self,
        turn: &Turn,
        (lane, to): (usize, c_int),
        mut slab: Slab,
        parts: [&[u8]; 2],
    ) -> Result<(), Fault> {
        let (middle, len) = (parts[0].len(), parts[0].len() + parts[1].len());
        slab.bytes[..middle].copy_from_slice(parts[0]);
        slab.bytes[middle..len].copy_from_slice(parts[1]);
        // SAFETY: the slab is kept below until the request is complete, and given up if it never is.
        let request = unsafe { self.comm.send(turn, &slab.bytes[..len], to, self.tag) }?;
        self.keep(request, Transfer { lane, purpose: Purpose::Send, slab, len });
        Ok(())
    }

    /// Receives at most `len` bytes in a slab.
    pub(super) fn receive(
        &mut self,
        turn: &Turn,
        (lane, from): (usize, c_int),
        mut slab: Slab,
        (purpose, len): (Purpose, usize),
    ) -> Result<(), Fault> {
        // SAFETY: as for a send, and nobody looks at the slab before that.
        let request = unsafe { self.comm.receive(turn, &mut slab.bytes[..len], from, self.tag) }?;
        self.keep(request, Transfer { lane, purpose, slab, len });
        Ok(())
    }

    fn keep(&mut self, request: MPI_Request, transfer: Transfer) {
        self.requests.push(request);
        self.transfers.push(transfer);
    }

    /// Lets MPI make progress and moves what is complete to `completed`.
    pub(super) fn test(&mut self, turn: &Turn, completed: &mut Vec<Completed>) -> Result<(), Fault> {
        self.indices.resize(self.requests.len(), 0);
        self.statuses.resize(self.requests.len(), empty_status());
        let count = checked::test_some(turn, &mut self.requests, &mut self.indices, &mut self.statuses)?;
        let mut places: Vec<(usize, usize)> = Vec::with_capacity(count);
        for (index, status) in self.indices[..count].iter().zip(&self.statuses) {
            let place = usize::try_from(*index).ok().filter(|place| *place < self.transfers.len());
            let place =
                place.ok_or_else(|| Fault::ours("move its data", "it names a request that is none"))?;
            let transfer = &self.transfers[place];
            let count = if transfer.purpose == Purpose::Send {
                transfer.len
            } else {
                checked::received(turn, status)?
            };
            places.push((place, count));
        }
        // From the back, so that places that are to come stay what they are.
        places.sort_unstable_by(|a, b| b.cmp(a));
        for (place, count) in places {
            self.requests.swap_remove(place);
            let Transfer { lane, purpose, slab, len } = self.transfers.swap_remove(place);
            completed.push(Completed { lane, purpose, slab, count: count.min(len) });
        }
        Ok(())
    }

    /// Takes back what can be: receives that have not begun, and what completes at once.
    fn take_back(&mut self) -> Result<(), Fault> {
        let turn = Turn::wait("end its transfers")?;
        for (request, transfer) in self.requests.iter_mut().zip(&self.transfers) {
            // A test that failed may have ended a request and left no trace of it but this.
            if transfer.purpose != Purpose::Send
                && *request != checked::null_request()
                && let Err(fault) = checked::cancel(&turn, request)
            {
                // The others can be taken back all the same.
                log::debug!("MPI {fault}");
            }
        }
        let mut completed = Vec::new();
        for _ in 0..LAST_TESTS {
            if self.is_empty() {
                break;
            }
            self.test(&turn, &mut completed)?;
        }
        Ok(())
    }
}

impl Drop for Transfers {
    fn drop(&mut self) {
        if self.is_empty() {
            return;
        }
        if let Err(fault) = self.take_back() {
            log::debug!("MPI {fault}");
        }
        if !self.is_empty() {
            log::debug!(
                "{} messages of a failed group are left to MPI with their memory",
                self.requests.len()
            );
        }
        self.transfers.drain(..).for_each(std::mem::forget);
    }
}
