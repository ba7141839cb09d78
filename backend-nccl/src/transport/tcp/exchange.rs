//! One collective over the mesh: a single-threaded `poll(2)` loop, full duplex on every connection.
//!
//! Bytes go from the caller's buffer to the kernel and from the kernel to their place; the only copy besides is the
//! scratch chunk of each peer that is about to be folded.

use std::{
    io::{self, ErrorKind, IoSlice, Read, Write},
    os::fd::AsFd,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{
    Link, Peer, Standing, Tcp,
    lane::{Buffers, Lane},
};
use crate::{
    failure::Failure,
    transport::{
        Call, Collective, DType, ReduceOp, Signature,
        frame::HEADER_BYTES,
        plan::{CHUNK_BYTES, Phase, Plan},
        reduce::fold,
    },
};

/// Runs one collective to its end.
pub(super) fn run(
    tcp: &Tcp,
    peers: &mut [Peer],
    call: Call,
    collective: Collective<'_>,
) -> Result<(), Failure> {
    for (peer, link) in peers.iter().zip(&tcp.links) {
        if let Some(failure) = peer.failure(link, "its connection had ended before the call") {
            return Err(failure);
        }
    }
    Exchange::new(tcp, peers, call, collective).run()
}

struct Exchange<'a> {
    tcp: &'a Tcp,
    peers: &'a mut [Peer],
    call: Call,
    signature: Signature,
    header: [u8; HEADER_BYTES],
    plan: Plan,
    reduction: Option<(DType, ReduceOp)>,
    buffers: Buffers<'a>,
    lanes: Vec<Lane>,
    /// Headers that have not arrived.
    headers_due: usize,
    /// Bytes of this rank's own part that are final and may be sent on.
    ready: usize,
    /// Peers whose version of the chunk at `ready` has arrived.
    arrived: usize,
}

impl<'a> Exchange<'a> {
    fn new(tcp: &'a Tcp, peers: &'a mut [Peer], call: Call, collective: Collective<'a>) -> Self {
        let signature = collective.signature(call.sequence);
        let plan = Plan::new(&collective, tcp.world_size);
        let own = plan.own(tcp.rank);
        let reduction = signature.op.map(|op| (signature.dtype, op));
        let mut ready = 0;
        let buffers = match collective {
            Collective::AllReduce { buffer, .. } | Collective::Broadcast { buffer, .. } => {
                Buffers::InPlace(buffer)
            }
            Collective::AllGather { send, recv, .. } => {
                recv[own.clone()].copy_from_slice(send);
                ready = own.len();
                Buffers::Apart { source: send, target: recv }
            }
            Collective::ReduceScatter { send, recv, .. } => Buffers::Apart { source: send, target: recv },
            Collective::Barrier => Buffers::InPlace(&mut []),
        };
        if reduction.is_some() {
            let bytes = own.len().min(CHUNK_BYTES);
            peers.iter_mut().for_each(|peer| grow(&mut peer.scratch, bytes));
        }
        let lanes: Vec<Lane> = tcp.links.iter().map(|link| Lane::new(&plan, tcp.rank, link.rank)).collect();
        let header = signature.encode(tcp.tag);
        let headers_due = lanes.len();
        Self {
            tcp,
            peers,
            call,
            signature,
            header,
            plan,
            reduction,
            buffers,
            lanes,
            headers_due,
            ready,
            arrived: 0,
        }
    }

    fn run(mut self) -> Result<(), Failure> {
        loop {
            let mut moved = false;
            for lane in 0..self.lanes.len() {
                moved |= self.send(lane)?;
                moved |= self.receive(lane)?;
            }
            if self.lanes.iter().all(Lane::finished) {
                return Ok(());
            }
            if !moved {
                self.wait()?;
            }
        }
    }

    /// The bytes of the current piece that may be sent now.
    fn payload(&self, lane: usize) -> &[u8] {
        let cursor = &self.lanes[lane].sending;
        let Some(piece) = &cursor.piece else { return &[] };
        if self.call.check && self.headers_due > 0 {
            return &[];
        }
        let start = piece.range.start + cursor.done;
        let (rank, peer) = (self.tcp.rank, self.tcp.links[lane].rank);
        match piece.phase {
            Phase::Scatter => {
                let base = self.plan.scatter(rank, peer).start;
                &self.buffers.source()[base + start..base + piece.range.end]
            }
            Phase::Gather => {
                let base = self.plan.gather(rank, peer).start;
                let end = piece.range.end.min(self.ready).max(start);
                &self.buffers.target()[base + start..base + end]
            }
        }
    }

    /// Sends what the socket takes in one call; whether anything moved.
    fn send(&mut self, lane: usize) -> Result<bool, Failure> {
        let cursor = &self.lanes[lane].sending;
        if !cursor.open || cursor.finished() {
            return Ok(false);
        }
        let header = &self.header[cursor.header..];
        let payload = self.payload(lane);
        let offered = header.len() + payload.len();
        if offered == 0 {
            return Ok(false);
        }
        let mut socket = &self.tcp.links[lane].data;
        let result = if header.is_empty() {
            socket.write(payload)
        } else {
            socket.write_vectored(&[IoSlice::new(header), IoSlice::new(payload)])
        };
        let header = header.len();
        let Some(count) = self.moved(lane, result)? else {
            self.lanes[lane].sending.open = false;
            return Ok(false);
        };
        let cursor = &mut self.lanes[lane].sending;
        cursor.open = count == offered;
        cursor.header += count.min(header);
        cursor.advance(count.saturating_sub(header));
        Ok(true)
    }

    /// Receives what the socket holds for the current piece in one call; whether anything moved.
    fn receive(&mut self, lane: usize) -> Result<bool, Failure> {
        if !self.lanes[lane].receiving.open {
            return Ok(false);
        }
        let mut socket = &self.tcp.links[lane].data;
        let reads_header = self.lanes[lane].receiving.header < HEADER_BYTES;
        let space = if reads_header {
            let lane = &mut self.lanes[lane];
            Some(&mut lane.header[lane.receiving.header..])
        } else {
            self.space(lane)
        };
        let Some(space) = space else { return Ok(false) };
        let wanted = space.len();
        let result = socket.read(space);
        if matches!(result, Ok(0)) {
            return Err(self.ended(lane, "its connection ended"));
        }
        let Some(count) = self.moved(lane, result)? else {
            self.lanes[lane].receiving.open = false;
            return Ok(false);
        };
        self.lanes[lane].receiving.open = count == wanted;
        if reads_header {
            self.lanes[lane].receiving.header += count;
            if count == wanted {
                self.compare(lane)?;
            }
        } else {
            self.landed(lane, count);
        }
        Ok(true)
    }

    /// Where the current piece of this peer goes, or `None` while it must wait for the fold.
    fn space(&mut self, lane: usize) -> Option<&mut [u8]> {
        let cursor = &self.lanes[lane].receiving;
        let piece = cursor.piece.as_ref()?;
        let (rank, peer) = (self.tcp.rank, self.tcp.links[lane].rank);
        let (start, end) = (piece.range.start + cursor.done, piece.range.end);
        match piece.phase {
            Phase::Scatter if self.reduction.is_some() => (piece.range.start == self.ready)
                .then(|| &mut self.peers[lane].scratch[cursor.done..piece.range.len()]),
            Phase::Scatter => {
                let base = self.plan.own(rank).start;
                Some(&mut self.buffers.target_mut()[base + start..base + end])
            }
            Phase::Gather => {
                let base = self.plan.gather(peer, rank).start;
                Some(&mut self.buffers.target_mut()[base + start..base + end])
            }
        }
    }

    /// Accounts for payload that has arrived, and folds a chunk when its last version is there.
    fn landed(&mut self, lane: usize, count: usize) {
        let cursor = &mut self.lanes[lane].receiving;
        let phase = cursor.piece.as_ref().map(|piece| piece.phase);
        let completed = cursor.advance(count);
        if phase != Some(Phase::Scatter) {
            return;
        }
        let Some((dtype, op)) = self.reduction else {
            self.ready += count;
            return;
        };
        let Some(piece) = completed else { return };
        self.arrived += 1;
        if self.arrived < self.lanes.len() {
            return;
        }
        let rank = self.tcp.rank;
        let own = self.plan.own(rank).start;
        let target = own + piece.range.start..own + piece.range.end;
        if let Buffers::Apart { source, target: buffer } = &mut self.buffers {
            let base = self.plan.scatter(rank, rank).start;
            let source = &source[base + piece.range.start..base + piece.range.end];
            buffer[target.clone()].copy_from_slice(source);
        }
        let others: Vec<&[u8]> = self.peers.iter().map(|peer| &peer.scratch[..piece.range.len()]).collect();
        fold(dtype, op, &mut self.buffers.target_mut()[target], rank, &others);
        self.arrived = 0;
        self.ready = piece.range.end;
    }

    /// Compares a header that is complete with this rank's own.
    fn compare(&mut self, lane: usize) -> Result<(), Failure> {
        let peer = self.tcp.links[lane].rank;
        let theirs = Signature::decode(&self.lanes[lane].header, self.tcp.tag)
            .map_err(|detail| Failure::Protocol { rank: peer, detail })?;
        self.peers[lane].last = Some(theirs);
        self.headers_due -= 1;
        if theirs == self.signature {
            return Ok(());
        }
        Err(Failure::Mismatch { rank: self.tcp.rank, call: self.signature, peer, peer_call: theirs })
    }

    /// The bytes that moved, `None` if the socket is not open for more, or why the peer is gone.
    fn moved(&mut self, lane: usize, result: io::Result<usize>) -> Result<Option<usize>, Failure> {
        match result {
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(Some(0)),
            Err(error) => Err(self.ended(lane, &error.to_string())),
        }
    }

    fn ended(&mut self, lane: usize, detail: &str) -> Failure {
        // A local abort ends the connections as well, and it knows the reason.
        self.tcp.failure().unwrap_or_else(|| self.peers[lane].reason_of_end(&self.tcp.links[lane], detail))
    }

    /// Sleeps until a socket is ready, and reads the control connections that are.
    fn wait(&mut self) -> Result<(), Failure> {
        if self.call.deadline.expired() {
            return Err(self.late());
        }
        let links: &'a [Link] = &self.tcp.links;
        let mut fds = Vec::with_capacity(2 * links.len());
        let mut owners = Vec::with_capacity(2 * links.len());
        for (lane, link) in links.iter().enumerate() {
            if self.peers[lane].standing == Standing::Here {
                fds.push(PollFd::new(link.control.as_fd(), PollFlags::POLLIN));
                owners.push((lane, true));
            }
            let events = self.interest(lane);
            if !events.is_empty() {
                fds.push(PollFd::new(link.data.as_fd(), events));
                owners.push((lane, false));
            }
        }
        let timeout =
            PollTimeout::try_from(self.call.deadline.poll_milliseconds()).unwrap_or(PollTimeout::MAX);
        match poll(&mut fds, timeout) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => {
                let (rank, action) = (self.tcp.rank, "wait for its sockets".to_owned());
                return Err(Failure::System { rank, action, detail: error.to_string() });
            }
        }
        for (fd, (lane, is_control)) in fds.iter().zip(owners) {
            let events = fd.revents().unwrap_or(PollFlags::empty());
            if is_control && !events.is_empty() {
                self.peers[lane].read_control(&links[lane]);
                if let Some(failure) = self.peers[lane].failure_before(self.call.sequence) {
                    return Err(failure);
                }
            } else {
                let ended = events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL);
                self.lanes[lane].receiving.open |= ended || events.contains(PollFlags::POLLIN);
                self.lanes[lane].sending.open |= ended || events.contains(PollFlags::POLLOUT);
            }
        }
        Ok(())
    }

    /// The events that would let this lane go on.
    fn interest(&mut self, lane: usize) -> PollFlags {
        let mut events = PollFlags::empty();
        if self.lanes[lane].receiving.header < HEADER_BYTES || self.space(lane).is_some() {
            events |= PollFlags::POLLIN;
        }
        if self.lanes[lane].sending.header < HEADER_BYTES || !self.payload(lane).is_empty() {
            events |= PollFlags::POLLOUT;
        }
        events
    }

    /// Names the ranks that never came to this collective, or else those that are furthest behind in it: the others wait
    /// for them, and what waits for a stopped rank has not finished either.
    fn late(&self) -> Failure {
        let lanes = || self.lanes.iter().enumerate();
        let mut late: Vec<usize> = lanes()
            .filter(|(_, lane)| lane.receiving.header < HEADER_BYTES)
            .map(|(index, _)| index)
            .collect();
        if late.is_empty() {
            let unfinished = || lanes().filter(|(_, lane)| !lane.finished());
            let least = unfinished().map(|(_, lane)| lane.moved()).min();
            late = unfinished()
                .filter(|(_, lane)| Some(lane.moved()) == least)
                .map(|(index, _)| index)
                .collect();
        }
        Failure::Deadline {
            missing: late.iter().map(|lane| self.tcp.links[*lane].rank).collect(),
            last: late.iter().map(|lane| self.peers[*lane].last).collect(),
            limit: self.call.deadline.limit(),
        }
    }
}

fn grow(scratch: &mut Vec<u8>, bytes: usize) {
    if scratch.len() < bytes {
        scratch.resize(bytes, 0);
    }
}
