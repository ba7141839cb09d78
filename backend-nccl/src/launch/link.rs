use super::{
    coordinator::{Command, Coordinator},
    members::Newcomer,
    protocol::{News, Order},
    report::seconds_since_epoch,
    wire::{Sender, Wire},
};
use std::{
    collections::VecDeque,
    os::fd::{AsFd, BorrowedFd},
    sync::mpsc::{Sender as Stop, channel},
    thread,
    time::{Duration, Instant},
};

/// Signs of life within the time after which there must have been one.
const HEARTBEATS: u32 = 5;

/// What comes from the coordinator.
#[derive(Debug)]
pub(super) enum Incoming {
    Order(Order),
    /// It has gone, and how that was seen.
    Lost(String),
}

/// A launcher's connection with the coordinator of its job.
pub(super) enum Link {
    /// The only node asks itself.
    Alone(Box<Alone>),
    /// Node 0 serves the coordinator.
    Connected(Box<Connected>),
}

/// The coordinator of a job of one node, and its orders.
pub(super) struct Alone {
    coordinator: Coordinator,
    orders: VecDeque<Order>,
}

impl Link {
    /// A job of one node.
    pub(super) fn alone(mut coordinator: Coordinator, own: Newcomer) -> Self {
        let commands = coordinator.join(0, 1, own).unwrap_or_default();
        let mut alone = Alone { coordinator, orders: VecDeque::new() };
        alone.take(commands);
        Self::Alone(Box::new(alone))
    }

    /// Tells the coordinator. That it is gone shows when its orders are read.
    pub(super) fn send(&mut self, news: News) {
        match self {
            Self::Alone(alone) => {
                let commands = alone.coordinator.hear(0, news, seconds_since_epoch(), Instant::now());
                alone.take(commands);
            }
            Self::Connected(connected) => {
                // The reader sees that the connection is broken, and why.
                let _ = connected.peer.wire.send(&news);
            }
        }
    }

    /// The next that has come, without waiting. That the coordinator is lost is said again each time.
    pub(super) fn next(&mut self) -> Option<Incoming> {
        match self {
            Self::Alone(alone) => alone.orders.pop_front().map(Incoming::Order),
            Self::Connected(connected) => connected.next(),
        }
    }

    /// Becomes readable when something comes.
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Alone(_) => None,
            Self::Connected(connected) => Some(connected.peer.wire.as_fd()),
        }
    }

    /// The error of this host that ended the job, where the coordinator is here.
    pub(super) fn take_error(&mut self) -> Option<super::error::LaunchError> {
        match self {
            Self::Alone(alone) => alone.coordinator.take_error(),
            Self::Connected(_) => None,
        }
    }
}

impl Alone {
    fn take(&mut self, commands: Vec<Command>) {
        self.orders.extend(commands.into_iter().map(|(_, order)| order));
    }
}

/// A connection with another launcher, and when something last came on it.
pub(super) struct Peer {
    pub(super) wire: Wire,
    heard_at: Instant,
}

impl Peer {
    pub(super) fn new(wire: Wire) -> Self {
        Self { wire, heard_at: Instant::now() }
    }

    /// Takes in what has come.
    pub(super) fn fill(&mut self) {
        if self.wire.fill() {
            self.heard_at = Instant::now();
        }
    }

    /// How the other side was lost, if it was: by the end of the connection, or by silence of this length.
    pub(super) fn lost(&self, silence: Duration) -> Option<String> {
        let silent = self.heard_at.elapsed();
        match self.wire.closed() {
            Some(why) => Some(why.to_owned()),
            None => (silent > silence).then(|| no_sign_of_life(silent)),
        }
    }
}

/// A connection with the launcher of node 0.
pub(super) struct Connected {
    peer: Peer,
    /// Silence after which the coordinator is lost.
    silence: Duration,
    _heart: Heart,
}

impl Connected {
    pub(super) fn new(wire: Wire, silence: Duration) -> std::io::Result<Self> {
        let heart = Heart::start(wire.sender(), heartbeat_interval(silence))?;
        Ok(Self { peer: Peer::new(wire), silence, _heart: heart })
    }

    fn next(&mut self) -> Option<Incoming> {
        // What came while this process was stopped is read before the time is looked at.
        self.peer.fill();
        while let Some(order) = self.peer.wire.take::<Order>() {
            if order != Order::Heartbeat {
                return Some(Incoming::Order(order));
            }
        }
        self.peer.lost(self.silence).map(Incoming::Lost)
    }
}

fn no_sign_of_life(silent: Duration) -> String {
    format!("no sign of life for {:.1} s", silent.as_secs_f64())
}

/// Sends signs of life on a thread of its own, because the launcher may have to wait for whoever reads its output.
pub(super) struct Heart {
    _stop: Stop<()>,
}

impl Heart {
    fn start(sender: Sender, interval: Duration) -> std::io::Result<Self> {
        let (stop, stopped) = channel();
        thread::Builder::new().name("launch-heart".to_owned()).spawn(move || {
            // Ends when the other end is dropped, or nobody listens.
            while stopped.recv_timeout(interval) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
                if sender.send(&News::Heartbeat).is_err() {
                    break;
                }
            }
        })?;
        Ok(Self { _stop: stop })
    }
}

/// The time between two signs of life where silence of this length means the end.
pub(super) fn heartbeat_interval(silence: Duration) -> Duration {
    silence / HEARTBEATS
}
