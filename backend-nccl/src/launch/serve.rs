use super::{
    admission::refuse,
    coordinator::{Command, Coordinator},
    error::LaunchError,
    link::{Peer, heartbeat_interval},
    members::Newcomer,
    protocol::{Answer, Hello, MAX_MESSAGE_BYTES, News, Order},
    report::seconds_since_epoch,
    strangers::{DEAF, Strangers},
    wire::{Wire, printable},
};
use crate::{
    Error,
    rendezvous::{self, Secret},
};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::Socket;
use std::{
    io::{self, ErrorKind},
    net::{IpAddr, ToSocketAddrs},
    os::fd::AsFd,
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// Time that nodes have to read the end of the job.
const FAREWELL: Duration = Duration::from_secs(5);

/// The longest pause between two looks at the clocks.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// Listens where the other nodes look for node 0: at this address if it is one of this host's, else at all of them,
/// since a cluster may know the host by an address that it does not have itself, or by a name that leads to loopback on
/// the host alone.
pub(super) fn listen(address: &str, port: u16) -> Result<Socket, LaunchError> {
    let refused = |error| LaunchError::Port { port, source: reason(error) };
    let resolved = (address, port).to_socket_addrs().ok().and_then(|mut found| found.next());
    let is_literal = address == "localhost" || address.parse::<IpAddr>().is_ok();
    let own = resolved.filter(|resolved| is_literal || !resolved.ip().is_loopback());
    let listener = match own.map(|own| rendezvous::listen(own.ip(), port)) {
        Some(Err(Error::Listen { source, .. })) if source.kind() != ErrorKind::PermissionDenied => None,
        listener => listener,
    };
    let listener = listener.unwrap_or_else(|| rendezvous::listen_everywhere(port));
    listener.map(Socket::from).map_err(refused)
}

/// The system's reason.
fn reason(error: Error) -> io::Error {
    match error {
        Error::PortInUse { .. } => ErrorKind::AddrInUse.into(),
        Error::Listen { source, .. } => io::Error::new(source.kind(), source),
        error => io::Error::other(error),
    }
}

/// Serves the coordinator to the nodes of a job, on a thread of node 0's launcher.
pub(super) struct Server {
    coordinator: Coordinator,
    listener: Socket,
    secret: Option<Secret>,
    silence: Duration,
    nodes: Vec<Option<Peer>>,
    strangers: Strangers,
    beaten_at: Instant,
}

impl Server {
    /// Starts to serve; `own` is the connection of this host's launcher, which is admitted. The thread returns the error of
    /// this host that ended the job, where one did.
    pub(super) fn start(
        mut coordinator: Coordinator,
        (nnodes, silence): (usize, Duration),
        listener: Socket,
        secret: Option<Secret>,
        own: (Wire, Newcomer),
    ) -> Result<JoinHandle<Option<LaunchError>>, LaunchError> {
        let now = Instant::now();
        let commands = coordinator.join(0, nnodes, own.1).unwrap_or_default();
        let mut nodes: Vec<_> = (0..nnodes).map(|_| None).collect();
        nodes[0] = Some(Peer::new(own.0));
        let strangers = Strangers::default();
        let mut server = Self { coordinator, listener, secret, silence, nodes, strangers, beaten_at: now };
        thread::Builder::new()
            .name("launch-coordinator".to_owned())
            .spawn(move || {
                server.act(commands);
                server.serve();
                server.part();
                server.coordinator.take_error()
            })
            .map_err(LaunchError::system("start the coordinator"))
    }

    fn serve(&mut self) {
        // Without its own launcher nobody on this host waits for the job, nor could ranks start here again.
        while !self.coordinator.is_finished() && self.nodes[0].is_some() {
            self.wait(self.next_look());
            // Who has gone first, so that a node which comes back finds its place free.
            for node in 0..self.nodes.len() {
                self.read(node);
            }
            self.strangers.accept(&self.listener, self.silence, Instant::now());
            for (wire, hello) in self.strangers.advance(self.secret.as_ref(), Instant::now()) {
                self.admit(wire, hello);
            }
            let commands = self.coordinator.tick(Instant::now());
            self.act(commands);
            self.beat();
        }
    }

    /// When something is to be done at the latest.
    fn next_look(&self) -> Duration {
        let tick = self.coordinator.next_tick();
        let left = tick.map(|at| at.saturating_duration_since(Instant::now()));
        left.unwrap_or(LOOK_INTERVAL).min(LOOK_INTERVAL).min(heartbeat_interval(self.silence))
    }

    fn wait(&self, limit: Duration) {
        let nodes = self.nodes.iter().flatten().map(|node| node.wire.as_fd());
        let strangers = self.strangers.fds();
        let listener = self.strangers.is_open().then(|| self.listener.as_fd());
        let fds = listener.into_iter().chain(nodes).chain(strangers);
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::POLLIN)).collect();
        let limit = if self.strangers.is_open() { limit } else { limit.min(DEAF) };
        let limit = limit + Duration::from_millis(1);
        // An error is an interruption; the reads that follow do not wait.
        let _ = poll(&mut fds, PollTimeout::try_from(limit).unwrap_or(PollTimeout::MAX));
    }

    fn read(&mut self, number: usize) {
        let Some(node) = &mut self.nodes[number] else { return };
        node.fill();
        let mut news = Vec::new();
        while let Some(heard) = node.wire.take::<News>() {
            news.push(heard);
        }
        let lost = node.lost(self.silence);
        let at = seconds_since_epoch();
        for heard in news {
            let commands = self.coordinator.hear(number, heard, at, Instant::now());
            self.act(commands);
        }
        if let Some(why) = lost {
            self.nodes[number] = None;
            let commands = self.coordinator.lose(number, &why, at, Instant::now());
            self.act(commands);
        }
    }

    fn admit(&mut self, mut wire: Wire, hello: Hello) {
        let newcomer = Newcomer { host: printable(&hello.host), nproc: hello.nproc };
        match self.coordinator.join(hello.node, hello.nnodes, newcomer) {
            Err(rejection) => drop(refuse(&wire, rejection)),
            Ok(commands) => {
                wire.allow(MAX_MESSAGE_BYTES);
                // A node that cannot be told is found to be lost when it is read.
                let _ = wire.send(&Answer::Welcome);
                self.nodes[hello.node] = Some(Peer::new(wire));
                self.act(commands);
            }
        }
    }

    fn act(&mut self, commands: Vec<Command>) {
        for (node, order) in commands {
            if let Some(node) = &self.nodes[node] {
                let _ = node.wire.send(&order);
            }
        }
    }

    /// Gives all nodes a sign of life in time.
    fn beat(&mut self) {
        if self.beaten_at.elapsed() >= heartbeat_interval(self.silence) {
            self.beaten_at = Instant::now();
            for node in self.nodes.iter().flatten() {
                let _ = node.wire.send(&Order::Heartbeat);
            }
        }
    }

    /// Lets all nodes read their last order: closing a connection at once could take it from them.
    fn part(&mut self) {
        let until = Instant::now() + FAREWELL;
        self.strangers.clear();
        self.nodes.iter().flatten().for_each(|node| node.wire.shutdown());
        while self.nodes.iter().any(Option::is_some) && Instant::now() < until {
            self.wait(until.saturating_duration_since(Instant::now()).min(LOOK_INTERVAL));
            // Nobody is taken any more.
            while self.listener.accept().is_ok() {}
            for node in &mut self.nodes {
                let has_left = |node: &mut Peer| {
                    node.wire.fill();
                    while node.wire.take::<News>().is_some() {}
                    node.wire.closed().is_some()
                };
                if node.as_mut().is_some_and(has_left) {
                    *node = None;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::coordinator::{Plan, Supplies};
    use super::*;

    const LONG: Duration = Duration::from_secs(300);

    /// A server of a job of `nnodes` with one restart, and the connection of node 0.
    fn server(nnodes: usize) -> (JoinHandle<Option<LaunchError>>, Wire) {
        let supply = || Ok(Supplies { run_id: String::new(), seed: String::new(), master_port: 1 });
        let plan = Plan { nnodes, max_restarts: 1, timeout: LONG };
        let coordinator = Coordinator::new(plan, Box::new(supply), Instant::now());
        let (own, other) = Wire::pair(MAX_MESSAGE_BYTES).expect("sockets");
        let own = (own, Newcomer { host: "here".into(), nproc: 1 });
        let listener = listen("127.0.0.1", 0).expect("a port");
        (Server::start(coordinator, (nnodes, LONG), listener, None, own).expect("a thread"), other)
    }

    #[test]
    fn the_server_ends_when_its_own_launcher_is_gone_whatever_restarts_are_left() {
        for nnodes in [1, 2] {
            let (server, own) = server(nnodes);
            let began = Instant::now();
            drop(own);
            assert!(server.join().expect("no panic").is_none());
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
        }
    }
}
