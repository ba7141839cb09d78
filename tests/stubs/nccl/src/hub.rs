//! The hub of a communicator: a thread of the process that made its id. It collects what the ranks bring, and gives each
//! its result once all have come.

use std::{
    collections::{HashMap, VecDeque},
    os::unix::net::{UnixListener, UnixStream},
    sync::{
        Arc,
        mpsc::{Receiver, Sender, channel},
    },
};

use stubs::PeerLoss;

use crate::{
    datatype::{DataType, Reduction},
    library::library,
    reduce::reduce,
    wire::{self, Kind, Message, Shape},
};

/// What a rank brought to an operation.
struct Part {
    item: usize,
    shape: Shape,
    bytes: Vec<u8>,
}

/// The state between the ranks.
struct Hub {
    sockets: Vec<Arc<UnixStream>>,
    /// The collectives that some ranks have come to, by their number.
    open: HashMap<u64, Vec<Option<Part>>>,
    /// How many collectives each rank has come to.
    come: Vec<u64>,
    /// The sends and receives between two ranks that wait for each other.
    pairs: HashMap<(usize, usize), [VecDeque<Part>; 2]>,
}

/// Serves one communicator until its ranks have left.
pub(crate) fn serve(listener: &UnixListener) {
    let Some(sockets) = gather(listener) else { return };
    let (sender, receiver) = channel();
    for (rank, socket) in sockets.iter().enumerate() {
        let (socket, sender) = (socket.clone(), sender.clone());
        std::thread::spawn(move || listen(rank, &socket, &sender));
    }
    drop(sender);
    let come = vec![0; sockets.len()];
    Hub { sockets, open: HashMap::new(), come, pairs: HashMap::new() }.run(&receiver);
}

/// Waits for all ranks, and answers whether they fit.
fn gather(listener: &UnixListener) -> Option<Vec<Arc<UnixStream>>> {
    let mut hellos: Vec<(usize, usize, i32, String)> = Vec::new();
    let mut sockets = Vec::new();
    while hellos.first().is_none_or(|first| hellos.len() < first.1) {
        let (socket, _) = listener.accept().ok()?;
        if let Ok((Message::Hello { rank, ranks, version, gpu }, _)) = wire::read(&socket) {
            hellos.push((rank, ranks, version, gpu));
            sockets.push((rank, Arc::new(socket)));
        }
    }
    let refusal = misfit(&hellos);
    for (_, socket) in &sockets {
        let answer = match &refusal {
            None => Message::Ready,
            Some(text) => Message::Refused { text: text.clone() },
        };
        // A rank that has gone already is noticed where it is read.
        let _ = wire::write(socket, &answer, &[]);
    }
    sockets.sort_by_key(|(rank, _)| *rank);
    refusal.is_none().then(|| sockets.into_iter().map(|(_, socket)| socket).collect())
}

/// Why some ranks cannot be a communicator, in NCCL's words where it has some.
fn misfit(hellos: &[(usize, usize, i32, String)]) -> Option<String> {
    let shared_gpu = library().double.config().nccl.shared_gpu;
    for (index, (rank, ranks, version, gpu)) in hellos.iter().enumerate() {
        let (_, first_ranks, first_version, _) = &hellos[0];
        if ranks != first_ranks {
            return Some(format!(
                "one rank says that there are {first_ranks} ranks, and rank {rank} that there are {ranks}"
            ));
        }
        if version != first_version {
            return Some(format!(
                "Mismatched NCCL version detected : rank {rank} version {version}, other {first_version}"
            ));
        }
        for (other, _, _, other_gpu) in &hellos[..index] {
            if other == rank {
                return Some(format!("two ranks are rank {rank}"));
            }
            if other_gpu == gpu && !shared_gpu {
                return Some(format!(
                    "Duplicate GPU detected : rank {rank} and rank {other} both on CUDA device {gpu}"
                ));
            }
        }
    }
    None
}

/// What a rank says, until it leaves: with a `Bye`, or with the end of its socket.
fn listen(rank: usize, socket: &UnixStream, sender: &Sender<(usize, Message, Vec<u8>)>) {
    loop {
        let (message, bytes) = wire::read(socket).unwrap_or((Message::Lost { rank }, Vec::new()));
        let last = !matches!(message, Message::Start { .. });
        if sender.send((rank, message, bytes)).is_err() || last {
            return;
        }
    }
}

impl Hub {
    fn run(mut self, messages: &Receiver<(usize, Message, Vec<u8>)>) {
        while let Ok((rank, message, bytes)) = messages.recv() {
            match message {
                Message::Start { item, shape } => {
                    let part = Part { item, shape, bytes };
                    match part.shape.kind {
                        Kind::Send | Kind::Receive => self.pair(rank, part),
                        _ => self.collect(rank, part),
                    }
                }
                Message::Lost { .. } if library().double.config().nccl.peer_loss == PeerLoss::RemoteError => {
                    let others = (0..self.sockets.len()).filter(|&other| other != rank);
                    others.for_each(|other| self.tell(other, &Message::Lost { rank }, &[]));
                }
                _ => {}
            }
        }
    }

    /// Whoever has gone is told nothing.
    fn tell(&self, rank: usize, message: &Message, bytes: &[u8]) {
        let _ = wire::write(&self.sockets[rank], message, bytes);
    }

    fn differ(&self, ranks: impl Iterator<Item = usize>, text: &str) {
        ranks.for_each(|rank| self.tell(rank, &Message::Differ { text: text.to_owned() }, &[]));
    }

    fn collect(&mut self, rank: usize, part: Part) {
        let (ranks, number) = (self.sockets.len(), self.come[rank]);
        self.come[rank] += 1;
        let parts = self.open.entry(number).or_insert_with(|| (0..ranks).map(|_| None).collect());
        parts[rank] = Some(part);
        if parts.iter().any(Option::is_none) {
            return;
        }
        let parts: Vec<Part> = self.open.remove(&number).into_iter().flatten().flatten().collect();
        if let Some(other) = parts.iter().position(|part| part.shape != parts[0].shape) {
            let text = format!(
                "collective {number} differs: {:?} on rank 0, {:?} on rank {other}",
                parts[0].shape, parts[other].shape
            );
            return self.differ(0..ranks, &text);
        }
        let items: Vec<usize> = parts.iter().map(|part| part.item).collect();
        let shape = parts[0].shape.clone();
        let results = results(&shape, parts.into_iter().map(|part| part.bytes).collect());
        for (rank, (item, result)) in items.into_iter().zip(results).enumerate() {
            self.tell(rank, &Message::Done { item }, &result);
        }
    }

    /// Joins a send with the receive of the other rank, in the order in which each rank has them.
    fn pair(&mut self, rank: usize, part: Part) {
        let receives = part.shape.kind == Kind::Receive;
        let (from, to) = if receives { (part.shape.peer, rank) } else { (rank, part.shape.peer) };
        let queues = self.pairs.entry((from, to)).or_default();
        queues[usize::from(receives)].push_back(part);
        let [sends, receives] = queues;
        if sends.is_empty() || receives.is_empty() {
            return;
        }
        let (Some(send), Some(receive)) = (sends.pop_front(), receives.pop_front()) else { return };
        if (send.shape.dtype, send.shape.count) != (receive.shape.dtype, receive.shape.count) {
            let text =
                format!("rank {from} sends {:?}, and rank {to} receives {:?}", send.shape, receive.shape);
            return self.differ([from, to].into_iter(), &text);
        }
        self.tell(from, &Message::Done { item: send.item }, &[]);
        self.tell(to, &Message::Done { item: receive.item }, &send.bytes);
    }
}

/// What each rank gets of a collective.
fn results(shape: &Shape, mut parts: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    let ranks = parts.len();
    let reduced = |parts: &[Vec<u8>]| match (DataType::of(shape.dtype), Reduction::of(shape.op)) {
        (Some(dtype), Some(op)) => reduce(parts, dtype, op),
        _ => Vec::new(),
    };
    match shape.kind {
        Kind::AllReduce => vec![reduced(&parts); ranks],
        Kind::Reduce => {
            let mut results = vec![Vec::new(); ranks];
            results[shape.peer] = reduced(&parts);
            results
        }
        Kind::Broadcast => vec![std::mem::take(&mut parts[shape.peer]); ranks],
        Kind::AllGather => vec![parts.concat(); ranks],
        Kind::ReduceScatter => {
            let all = reduced(&parts);
            all.chunks(all.len() / ranks).map(<[u8]>::to_vec).collect()
        }
        Kind::Send | Kind::Receive => vec![Vec::new(); ranks],
    }
}
