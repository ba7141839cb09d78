//! One collective over MPI: the pieces of the plan as messages, several under way at once.
//!
//! What is folded and in which order is the plan's, as over TCP, so the results have the same bits. A message is at most one
//! chunk; both ends compute the same pieces in the same order, and MPI keeps the messages between two ranks in order,
//! so one tag does for all.

use super::{
    Mpi,
    checked::{Fault, Turn},
    lane::{Due, Lane},
    pause::Pause,
    transfers::{Completed, Pool, Purpose, SMALL_BYTES, Transfers},
};
use crate::{
    failure::Failure,
    transport::{
        Call, Collective, Signature,
        control::{Control, Watch},
        data::Data,
        frame::HEADER_BYTES,
        members::Members,
    },
};

/// Messages under way to or from one peer: enough that one is in MPI's hands while another is copied or folded.
const WINDOW: usize = 4;
/// Payload that travels with the header.
const INLINE_BYTES: usize = SMALL_BYTES - HEADER_BYTES;

/// What the group hands to every collective.
#[derive(Clone, Copy)]
pub(super) struct Setting<'a> {
    pub(super) mpi: &'a Mpi,
    pub(super) control: &'a Control,
    pub(super) among: &'a Members,
    pub(super) call: Call,
}

pub(super) struct Exchange<'a> {
    setting: Setting<'a>,
    pool: &'a mut Pool,
    /// What this rank must hear from the others.
    expected: Signature,
    header: [u8; HEADER_BYTES],
    data: Data<'a>,
    lanes: Vec<Lane>,
    transfers: Transfers,
    /// Whether all members run this together, so that its sequence number means the same to them.
    is_common: bool,
    /// Headers that have not arrived.
    headers_due: usize,
    /// Peers whose version of the next chunk to fold has arrived.
    arrived: usize,
    watch: Watch<'a>,
    pause: Pause,
}

impl<'a> Exchange<'a> {
    pub(super) fn new(setting: Setting<'a>, pool: &'a mut Pool, collective: Collective<'a>) -> Self {
        let Setting { mpi, control, among, call } = setting;
        let is_common = collective.is_common();
        let (announced, expected) = call.signatures(&collective, among);
        let data = Data::new(collective, among);
        let lanes: Vec<Lane> = (0..among.len())
            .filter(|place| *place != among.own() && data.plan.involves(*place))
            .map(|place| Lane::new(&data.plan, among.own(), place, mpi.peer(among.rank(place))))
            .collect();
        Self {
            setting,
            pool,
            expected,
            header: announced.encode(mpi.group_tag),
            data,
            headers_due: lanes.iter().filter(|lane| !lane.heard).count(),
            lanes,
            transfers: Transfers::new(mpi.library.comm, mpi.tag),
            is_common,
            arrived: 0,
            watch: Watch::new(control, is_common.then_some(call.sequence)),
            pause: Pause::new(call.patience),
        }
    }

    /// Runs the collective to its end.
    pub(super) fn run(mut self) -> Result<(), Failure> {
        self.ask_for_headers()?;
        let mut completed = Vec::new();
        loop {
            let moved = self.advance()?;
            self.transfers.test(&turn(&self.setting)?, &mut completed).map_err(|f| self.failed(f))?;
            if !moved && completed.is_empty() {
                if self.lanes.iter_mut().all(Lane::finished) {
                    return Ok(());
                }
                self.wait()?;
                continue;
            }
            self.pause.reset();
            for transfer in completed.drain(..) {
                self.complete(transfer)?;
            }
        }
    }

    /// Nothing but a header, with short payload or without, can be the first message of a peer.
    fn ask_for_headers(&mut self) -> Result<(), Failure> {
        let turn = turn(&self.setting)?;
        for (index, lane) in self.lanes.iter().enumerate().filter(|(_, lane)| !lane.heard) {
            let (peer, slab) = ((index, lane.world_rank), self.pool.take(SMALL_BYTES));
            let asked = self.transfers.receive(&turn, peer, slab, (Purpose::First, SMALL_BYTES));
            asked.map_err(|fault| self.failed(fault))?;
        }
        Ok(())
    }

    /// Sends and asks for what may be now; whether that is anything.
    fn advance(&mut self) -> Result<bool, Failure> {
        let mut moved = false;
        for lane in 0..self.lanes.len() {
            while self.send(lane)? {
                moved = true;
            }
            while self.ask(lane)? {
                moved = true;
            }
        }
        Ok(moved)
    }

    /// Sends one message to this peer if one may be sent.
    fn send(&mut self, index: usize) -> Result<bool, Failure> {
        let lane = &mut self.lanes[index];
        let withheld = self.setting.call.check && self.is_common && self.headers_due > 0;
        let (header, most): (&[u8], _) =
            if lane.introduced { (&[], usize::MAX) } else { (&self.header, INLINE_BYTES) };
        let piece = lane.outgoing.peek().filter(|_| !withheld && lane.sending < WINDOW);
        let payload = piece.and_then(|piece| self.data.payload(piece, lane.place));
        let payload = payload.filter(|payload| payload.len() <= most).unwrap_or_default();
        if header.is_empty() && payload.is_empty() {
            return Ok(false);
        }
        let slab = self.pool.take(header.len() + payload.len());
        let peer = (index, lane.world_rank);
        let sent = self.transfers.send(&turn(&self.setting)?, peer, slab, [header, payload]);
        lane.introduced = true;
        lane.sending += 1;
        if !payload.is_empty() {
            lane.moved += payload.len();
            lane.outgoing.next();
        }
        sent.map_err(|fault| self.failed(fault)).map(|()| true)
    }

    /// Asks for one piece of this peer if one may be asked for: not before its header has shown that it will send that.
    fn ask(&mut self, index: usize) -> Result<bool, Failure> {
        let lane = &mut self.lanes[index];
        if !lane.heard || lane.due.len() >= WINDOW {
            return Ok(false);
        }
        let Some(piece) = lane.incoming.next() else { return Ok(false) };
        let purpose = Purpose::Piece(lane.first_due + lane.due.len());
        let len = piece.range.len();
        lane.due.push_back(Due { piece, arrived: None });
        let (peer, slab) = ((index, lane.world_rank), self.pool.take(len));
        let asked = self.transfers.receive(&turn(&self.setting)?, peer, slab, (purpose, len));
        asked.map_err(|fault| self.failed(fault)).map(|()| true)
    }

    /// Accounts for a transfer that is complete.
    fn complete(&mut self, transfer: Completed) -> Result<(), Failure> {
        let Completed { lane: index, purpose, slab, count } = transfer;
        let lane = &mut self.lanes[index];
        match purpose {
            Purpose::Send => {
                lane.sending -= 1;
                self.pool.give(slab);
                return Ok(());
            }
            Purpose::First => {
                self.compare(index, &slab.bytes()[..count])?;
                let lane = &mut self.lanes[index];
                if count == HEADER_BYTES {
                    self.pool.give(slab);
                    return Ok(());
                }
                let piece = lane.incoming.next().filter(|piece| piece.range.len() == count - HEADER_BYTES);
                let Some(piece) = piece else { return Err(self.wrong_length(index, count - HEADER_BYTES)) };
                lane.due.push_back(Due { piece, arrived: Some((slab, HEADER_BYTES)) });
            }
            Purpose::Piece(number) => {
                let due = lane.due.get_mut(number - lane.first_due);
                let Some(due) = due.filter(|due| due.piece.range.len() == count) else {
                    return Err(self.wrong_length(index, count));
                };
                due.arrived = Some((slab, 0));
            }
        }
        self.lanes[index].moved += count;
        self.take(index);
        Ok(())
    }

    /// Uses the pieces of this peer that have arrived, in order, up to one that waits for other peers.
    fn take(&mut self, index: usize) {
        let lane = &mut self.lanes[index];
        while let Some((piece, bytes)) = lane.front() {
            if self.data.is_folded(piece) {
                if lane.counted || piece.range.start != self.data.ready {
                    return;
                }
                lane.counted = true;
                self.arrived += 1;
                return self.fold();
            }
            self.data.place(piece, lane.place, bytes);
            lane.pop().into_iter().for_each(|slab| self.pool.give(slab));
        }
    }

    /// Folds a chunk when its last version is there.
    fn fold(&mut self) {
        if self.arrived < self.lanes.len() {
            return;
        }
        let versions: Vec<&[u8]> = self.lanes.iter().filter_map(|lane| Some(lane.front()?.1)).collect();
        self.data.fold(&versions);
        self.arrived = 0;
        for lane in &mut self.lanes {
            lane.pop().into_iter().for_each(|slab| self.pool.give(slab));
        }
        // Each may hold the next chunk already. The last one of them may complete it, so this ends at the window.
        (0..self.lanes.len()).for_each(|lane| self.take(lane));
    }

    /// Compares what a peer has called with what this rank has.
    fn compare(&mut self, index: usize, message: &[u8]) -> Result<(), Failure> {
        let peer = self.lanes[index].rank;
        let header = message.first_chunk().ok_or_else(|| format!("a message of {} bytes", message.len()));
        let theirs = header
            .and_then(|header| Signature::decode(header, self.setting.mpi.group_tag))
            .map_err(|detail| Failure::Protocol { rank: peer, detail })?;
        self.lanes[index].heard = true;
        self.setting.mpi.saw(peer, theirs);
        self.headers_due -= 1;
        if theirs == self.expected {
            return Ok(());
        }
        let rank = self.setting.control.rank();
        Err(Failure::mismatch(rank, self.expected, peer, theirs))
    }

    /// Waits a little, unless there is nothing to wait for.
    fn wait(&mut self) -> Result<(), Failure> {
        self.look()?;
        if self.setting.call.deadline.expired() {
            return Err(self.late());
        }
        self.pause.wait();
        Ok(())
    }

    /// Looks at what has become of the group. Called when no more data was there.
    fn look(&mut self) -> Result<(), Failure> {
        let (among, lanes) = (self.setting.among, &mut self.lanes);
        let awaits_all = self.is_common && self.headers_due > 0;
        self.watch.look(|| {
            if awaits_all {
                return among.others();
            }
            let lanes = lanes.iter_mut();
            lanes.filter_map(|lane| (!lane.finished()).then_some(lane.rank)).collect()
        })
    }

    /// Names the ranks that never came to this collective, or else those that are furthest behind in it: the others wait
    /// for them, and what waits for a stopped rank has not finished either.
    fn late(&mut self) -> Failure {
        let mut late: Vec<usize> =
            self.lanes.iter().filter(|lane| !lane.heard).map(|lane| lane.rank).collect();
        if late.is_empty() {
            let mut open: Vec<&mut Lane> = self.lanes.iter_mut().collect();
            open.retain_mut(|lane| !lane.finished());
            let least = open.iter().map(|lane| lane.moved).min();
            late = open.iter().filter(|lane| Some(lane.moved) == least).map(|lane| lane.rank).collect();
        }
        let last = late.iter().map(|rank| self.setting.mpi.last_seen(*rank)).collect();
        Failure::Deadline { missing: late, last, limit: self.setting.call.deadline.limit() }
    }

    fn wrong_length(&self, lane: usize, found: usize) -> Failure {
        let detail = format!("a message of {found} bytes where another length was due");
        Failure::Protocol { rank: self.lanes[lane].rank, detail }
    }

    fn failed(&self, fault: Fault) -> Failure {
        failed(&self.setting, fault)
    }
}

fn turn(setting: &Setting<'_>) -> Result<Turn, Failure> {
    Turn::wait("move its data").map_err(|fault| failed(setting, fault))
}

fn failed(setting: &Setting<'_>, fault: Fault) -> Failure {
    let Fault { action, class, text } = fault;
    Failure::Mpi { rank: setting.control.rank(), action, class, text }
}
