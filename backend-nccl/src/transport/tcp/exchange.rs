//! One collective over the mesh: a single-threaded `poll(2)` loop, full duplex on every connection.
//!
//! Bytes go from the caller's buffer to the kernel and from the kernel to their place; the only copy besides is the
//! scratch chunk of each peer that is about to be folded.

use std::{
    io::{self, ErrorKind, IoSlice, Read, Write},
    net::TcpStream,
    os::fd::AsFd,
    time::Duration,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::{Peer, Tcp, header, lane::Lane};
use crate::{
    deadline::Deadline,
    failure::Failure,
    transport::{
        Call, Collective, Signature,
        control::{Control, Watch},
        data::Data,
        members::Members,
        plan::{CHUNK_BYTES, Phase},
    },
};

/// How long the reason may trail the end of a data connection: they are different connections, so order is not given.
const REASON_GRACE: Duration = Duration::from_millis(250);

/// Who takes part, and over what.
#[derive(Clone, Copy)]
pub(super) struct Parties<'a> {
    pub(super) tcp: &'a Tcp,
    pub(super) control: &'a Control,
    pub(super) among: &'a Members,
}

/// Runs one collective to its end.
pub(super) fn run<'a>(
    parties: Parties<'a>,
    peers: &'a mut [Peer],
    call: Call,
    collective: Collective<'a>,
) -> Result<(), Failure> {
    Exchange::new(parties, peers, call, collective).run()
}

struct Exchange<'a> {
    parties: Parties<'a>,
    peers: &'a mut [Peer],
    call: Call,
    /// What this rank must hear from the others.
    expected: Signature,
    header: [u8; header::BYTES],
    data: Data<'a>,
    lanes: Vec<Lane>,
    /// Whether all members run this together, so that its sequence number means the same to them.
    is_common: bool,
    /// Headers that have not arrived.
    headers_due: usize,
    /// Peers whose version of the chunk at `data.ready` has arrived.
    arrived: usize,
    watch: Watch<'a>,
}

impl<'a> Exchange<'a> {
    fn new(parties: Parties<'a>, peers: &'a mut [Peer], call: Call, collective: Collective<'a>) -> Self {
        let Parties { tcp, among, .. } = parties;
        let place = among.own();
        let is_common = collective.is_common();
        let (announced, expected) = call.signatures(&collective, among);
        let data = Data::new(collective, among);
        let plan = &data.plan;
        let lanes: Vec<Lane> = (0..among.len())
            .filter(|peer| *peer != place && plan.involves(*peer))
            .map(|peer| Lane::new(plan, place, peer, tcp.link(among.rank(peer)), call.checksums))
            .collect();
        if data.reduction.is_some() {
            let bytes = plan.own(place).len().min(CHUNK_BYTES);
            lanes.iter().for_each(|lane| grow(&mut peers[lane.link].scratch, bytes));
        }
        let headers_due = lanes.iter().filter(|lane| lane.receiving.header < header::BYTES).count();
        Self {
            parties,
            peers,
            call,
            expected,
            header: header::encode(&announced, tcp.tag, call.checksums),
            data,
            lanes,
            is_common,
            headers_due,
            arrived: 0,
            watch: Watch::new(parties.control, is_common.then_some(call.sequence)),
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
        if self.call.check && self.is_common && self.headers_due > 0 {
            return &[];
        }
        if let Some(trailer) = cursor.trailer() {
            return trailer;
        }
        let start = piece.range.start + cursor.done;
        let (own, peer) = (self.parties.among.own(), self.lanes[lane].place);
        match piece.phase {
            Phase::Scatter => {
                let base = self.data.plan.scatter(own, peer).start;
                &self.data.buffers.source()[base + start..base + piece.range.end]
            }
            Phase::Gather => {
                let base = self.data.plan.gather(own, peer).start;
                let end = piece.range.end.min(self.data.ready).max(start);
                &self.data.buffers.target()[base + start..base + end]
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
        let mut socket = self.socket(lane);
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
        let sent = count.saturating_sub(header);
        if self.call.checksums {
            self.sum_sent(lane, sent);
        }
        let cursor = &mut self.lanes[lane].sending;
        cursor.open = count == offered;
        cursor.header += count.min(header);
        if cursor.advance(sent) {
            cursor.next();
        }
        Ok(true)
    }

    /// Takes bytes that have been sent into the checksum of their piece.
    fn sum_sent(&mut self, lane: usize, sent: usize) {
        let sum = self.lanes[lane].sending.sum();
        let sum = sum.map(|sum| crc32c::crc32c_append(sum, &self.payload(lane)[..sent]));
        self.lanes[lane].sending.set_sum(sum);
    }

    /// Receives what the socket holds for the current piece in one call; whether anything moved.
    fn receive(&mut self, lane: usize) -> Result<bool, Failure> {
        if !self.lanes[lane].receiving.open {
            return Ok(false);
        }
        let mut socket = self.socket(lane);
        let reads_header = self.lanes[lane].receiving.header < header::BYTES;
        let sum = self.lanes[lane].receiving.sum().filter(|_| !reads_header);
        let space = if reads_header {
            let lane = &mut self.lanes[lane];
            Some(&mut lane.header[lane.receiving.header..])
        } else {
            self.space(lane)
        };
        let Some(space) = space else { return Ok(false) };
        let wanted = space.len();
        let result = socket.read(space);
        if let (Ok(count), Some(sum)) = (&result, sum) {
            let sum = crc32c::crc32c_append(sum, &space[..*count]);
            self.lanes[lane].receiving.set_sum(Some(sum));
        }
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
            self.landed(lane, count)?;
        }
        Ok(true)
    }

    /// Where the current piece of this peer goes, or `None` while it must wait for the fold.
    fn space(&mut self, lane: usize) -> Option<&mut [u8]> {
        if self.lanes[lane].receiving.trailer().is_some() {
            return self.lanes[lane].receiving.trailer_mut();
        }
        let cursor = &self.lanes[lane].receiving;
        let piece = cursor.piece.as_ref()?;
        let (own, peer) = (self.parties.among.own(), self.lanes[lane].place);
        let (start, end) = (piece.range.start + cursor.done, piece.range.end);
        match piece.phase {
            _ if self.data.is_folded(piece) => (piece.range.start == self.data.ready).then(|| {
                let link = self.lanes[lane].link;
                &mut self.peers[link].scratch[cursor.done..piece.range.len()]
            }),
            Phase::Scatter => {
                let base = self.data.plan.landing(peer, own).start;
                Some(&mut self.data.buffers.target_mut()[base + start..base + end])
            }
            Phase::Gather => {
                let base = self.data.plan.gather(peer, own).start;
                Some(&mut self.data.buffers.target_mut()[base + start..base + end])
            }
        }
    }

    /// Accounts for payload that has arrived, and folds a chunk when its last version is there. Where pieces carry
    /// checksums nothing counts, and nothing is sent on, before the one of its piece has come.
    fn landed(&mut self, lane: usize, count: usize) -> Result<(), Failure> {
        let cursor = &mut self.lanes[lane].receiving;
        let completes = cursor.advance(count);
        if !cursor.is_sound() {
            let detail = "the checksum of a part of the payload differs, its bytes were changed on the way";
            return Err(Failure::Protocol { rank: self.rank(lane), detail: detail.to_owned() });
        }
        let phase = cursor.piece.as_ref().map(|piece| piece.phase);
        let completed = if completes { cursor.next() } else { None };
        if phase != Some(Phase::Scatter) {
            return Ok(());
        }
        if self.data.reduction.is_none() {
            self.data.ready += match (&completed, self.call.checksums) {
                (_, false) => count,
                (Some(piece), true) => piece.range.len(),
                (None, true) => 0,
            };
        } else if let Some(piece) = completed {
            self.arrived += 1;
            if self.arrived == self.lanes.len() {
                self.fold(piece.range.len());
            }
        }
        Ok(())
    }

    /// Folds a chunk of this length, of which all versions have arrived.
    fn fold(&mut self, len: usize) {
        let versions = self.lanes.iter().map(|lane| &self.peers[lane.link].scratch[..len]);
        self.data.fold(&versions.collect::<Vec<_>>());
        self.arrived = 0;
    }

    /// Compares a header that is complete with what this rank expects.
    fn compare(&mut self, lane: usize) -> Result<(), Failure> {
        let peer = self.rank(lane);
        let theirs = header::decode(&self.lanes[lane].header, self.parties.tcp.tag, self.call.checksums)
            .map_err(|detail| Failure::Protocol { rank: peer, detail })?;
        self.peers[self.lanes[lane].link].last = Some(theirs);
        self.headers_due -= 1;
        if theirs == self.expected {
            return Ok(());
        }
        let rank = self.parties.control.rank();
        Err(Failure::mismatch(rank, self.expected, peer, theirs))
    }

    /// The group's rank of the peer of a lane.
    fn rank(&self, lane: usize) -> usize {
        self.parties.tcp.links[self.lanes[lane].link].rank
    }

    fn socket(&self, lane: usize) -> &'a TcpStream {
        let tcp: &'a Tcp = self.parties.tcp;
        &tcp.links[self.lanes[lane].link].data
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

    /// Why the data connection of a lane has ended.
    fn ended(&mut self, lane: usize, detail: &str) -> Failure {
        let (control, rank) = (self.parties.control, self.rank(lane));
        let grace = Deadline::after(REASON_GRACE);
        loop {
            // A local abort ends the connections as well, and it knows the reason.
            if let Some(failure) = control.failure().or_else(|| control.obstacle(rank, u64::MAX)) {
                return failure;
            }
            if grace.expired() {
                return Failure::PeerLost { rank, detail: detail.to_owned() };
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Sleeps until a socket is ready or the standing of a peer changes.
    fn wait(&mut self) -> Result<(), Failure> {
        self.look()?;
        if self.call.deadline.expired() {
            return Err(self.late());
        }
        let bell = &self.parties.tcp.bell;
        let mut fds = vec![PollFd::new(bell.as_fd(), PollFlags::POLLIN)];
        let mut owners = Vec::with_capacity(self.lanes.len());
        for lane in 0..self.lanes.len() {
            let events = self.interest(lane);
            if !events.is_empty() {
                fds.push(PollFd::new(self.socket(lane).as_fd(), events));
                owners.push(lane);
            }
        }
        let milliseconds = self.call.deadline.poll_milliseconds().min(self.watch.poll_milliseconds());
        match poll(&mut fds, PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX)) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(error) => {
                let (rank, action) = (self.parties.control.rank(), "wait for its sockets".to_owned());
                return Err(Failure::System { rank, action, detail: error.to_string() });
            }
        }
        let events: Vec<PollFlags> =
            fds.iter().map(|fd| fd.revents().unwrap_or(PollFlags::empty())).collect();
        if !events[0].is_empty() {
            let _ = bell.read();
        }
        for (events, lane) in events[1..].iter().zip(owners) {
            let ended = events.intersects(PollFlags::POLLHUP | PollFlags::POLLERR | PollFlags::POLLNVAL);
            self.lanes[lane].receiving.open |= ended || events.contains(PollFlags::POLLIN);
            self.lanes[lane].sending.open |= ended || events.contains(PollFlags::POLLOUT);
        }
        Ok(())
    }

    /// Looks at what has become of the group. Called when no more data was there.
    fn look(&mut self) -> Result<(), Failure> {
        let Parties { among, tcp, .. } = self.parties;
        let (lanes, awaits_all) = (&self.lanes, self.is_common && self.headers_due > 0);
        self.watch.look(|| {
            if awaits_all {
                return among.others();
            }
            lanes.iter().filter(|lane| !lane.finished()).map(|lane| tcp.links[lane.link].rank).collect()
        })
    }

    /// The events that would let this lane go on.
    fn interest(&mut self, lane: usize) -> PollFlags {
        let mut events = PollFlags::empty();
        if self.lanes[lane].receiving.header < header::BYTES || self.space(lane).is_some() {
            events |= PollFlags::POLLIN;
        }
        if self.lanes[lane].sending.header < header::BYTES || !self.payload(lane).is_empty() {
            events |= PollFlags::POLLOUT;
        }
        events
    }

    /// Names the ranks that never came to this collective, or else those that are furthest behind in it: the others wait
    /// for them, and what waits for a stopped rank has not finished either.
    fn late(&self) -> Failure {
        let lanes = || self.lanes.iter().enumerate();
        let mut late: Vec<usize> = lanes()
            .filter(|(_, lane)| lane.receiving.header < header::BYTES)
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
            missing: late.iter().map(|lane| self.rank(*lane)).collect(),
            last: late.iter().map(|lane| self.peers[self.lanes[*lane].link].last).collect(),
            limit: self.call.deadline.limit(),
        }
    }
}

fn grow(scratch: &mut Vec<u8>, bytes: usize) {
    if scratch.len() < bytes {
        scratch.resize(bytes, 0);
    }
}
