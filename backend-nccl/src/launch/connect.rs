use super::{
    config::LaunchConfig,
    error::LaunchError,
    link::heartbeat_interval,
    protocol::{Answer, Hello, MAGIC, MAX_GREETING_BYTES, MAX_MESSAGE_BYTES, PROTOCOL, Proof, Side},
    secret::random_hex,
    signals::Signals,
    watch::show,
    wire::{Wire, printable},
};
use nix::sys::signal::Signal;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io::{self, ErrorKind},
    net::{SocketAddr, ToSocketAddrs},
    time::{Duration, Instant},
};

/// Time for one attempt to reach node 0, and for each of its answers.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(250);
/// Between two looks for signals while an answer is awaited.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);
/// Who waits for node 0 is told so once, after this long.
const NOTE_AFTER: Duration = Duration::from_secs(5);

/// How it went to reach node 0.
pub(super) enum Reached {
    Admitted(Box<Wire>),
    /// The user does not want to wait any longer.
    Signalled(Signal),
}

/// The greeting of this launcher.
pub(super) fn hello(config: &LaunchConfig, host: &str) -> Result<Hello, LaunchError> {
    Ok(Hello {
        magic: MAGIC.to_owned(),
        protocol: PROTOCOL,
        node: config.node_rank,
        nnodes: config.nnodes,
        nproc: config.nproc_per_node,
        host: host.to_owned(),
        nonce: random_hex()?,
        secured: config.secret.is_some(),
    })
}

/// Connects with the launcher of node 0, which may not have started yet.
pub(super) fn connect(config: &LaunchConfig, host: &str, signals: &Signals) -> Result<Reached, LaunchError> {
    let start = Instant::now();
    let search = Search { config, host, signals, until: start + config.rendezvous_timeout };
    let mut is_told = false;
    // Why the attempt before failed.
    let mut last = None;
    // When node 0 first said that this node's place is taken.
    let mut taken_since = None;
    loop {
        let why = match search.admit() {
            Ok(wire) => return Ok(Reached::Admitted(Box::new(wire))),
            Err(Denied::Refused { reason, is_final }) => {
                let taken_since = *taken_since.get_or_insert_with(Instant::now);
                if is_final || taken_since.elapsed() > time_to_be_missed(config) {
                    return Err(refused(config, reason));
                }
                io::Error::other(reason)
            }
            Err(Denied::Error(error)) => return Err(error),
            Err(Denied::Signalled(signal)) => return Ok(Reached::Signalled(signal)),
            // An attempt that only the time limit has cut short says less than the one before.
            Err(Denied::NotYet(why)) if search.is_cut_short(&why) => last.take().unwrap_or(why),
            Err(Denied::NotYet(why)) => why,
        };
        let waited = start.elapsed();
        if waited >= config.rendezvous_timeout {
            let (node, address, seconds) =
                (config.node_rank, config.coordinator_address(), waited.as_secs_f64());
            return Err(LaunchError::Unreachable { node, address, seconds, source: why });
        }
        let left = config.rendezvous_timeout - waited;
        if waited >= NOTE_AFTER && !is_told {
            is_told = true;
            tell(config, &why, left);
        }
        last = Some(why);
        if let Some(signal) = search.signal_within(PAUSE.min(left))? {
            return Ok(Reached::Signalled(signal));
        }
    }
}

fn refused(config: &LaunchConfig, reason: String) -> LaunchError {
    LaunchError::Refused { node: config.node_rank, address: config.coordinator_address(), reason }
}

/// Tells the user what the launcher waits for.
fn tell(config: &LaunchConfig, why: &io::Error, left: Duration) {
    let (node, address, seconds) = (config.node_rank, config.coordinator_address(), left.as_secs_f64());
    show(&format!(
        "note: node {node} has not reached node 0 at {address} yet: {why}; it tries for at most {seconds:.0} s more"
    ));
}

/// Time after which node 0 has noticed that this node's own old connection is silent, where its place is taken by that.
fn time_to_be_missed(config: &LaunchConfig) -> Duration {
    config.heartbeat_timeout + heartbeat_interval(config.heartbeat_timeout) + Duration::from_secs(1)
}

/// Why node 0 did not take this launcher.
enum Denied {
    /// It may if asked again.
    NotYet(io::Error),
    Refused {
        reason: String,
        is_final: bool,
    },
    Error(LaunchError),
    Signalled(Signal),
}

impl From<LaunchError> for Denied {
    fn from(error: LaunchError) -> Self {
        Self::Error(error)
    }
}

impl From<io::Error> for Denied {
    fn from(error: io::Error) -> Self {
        Self::NotYet(error)
    }
}

/// The attempts of one launcher to reach node 0.
struct Search<'a> {
    config: &'a LaunchConfig,
    host: &'a str,
    signals: &'a Signals,
    until: Instant,
}

impl Search<'_> {
    fn admit(&self) -> Result<Wire, Denied> {
        let hello = hello(self.config, self.host)?;
        let secret = self.config.secret.as_ref();
        let mut wire = Wire::new(self.open()?, MAX_GREETING_BYTES)?;
        wire.send(&hello)?;
        // Who has a secret believes nobody who has not proved it: a stranger at this address could end the job otherwise.
        let unproved = |reason: String, is_final| match secret {
            Some(_) => Denied::NotYet(io::Error::other(format!("{reason} (not proved)"))),
            None => Denied::Refused { reason, is_final },
        };
        match self.answer(&mut wire)? {
            Answer::Refused { reason, is_final } => return Err(unproved(printable(&reason), is_final)),
            Answer::Welcome => return Err(io::Error::other("it asked for no proof").into()),
            Answer::Challenge { nonce, proof } => {
                if !Side::Coordinator.is_proved(secret, &hello, &nonce, proof.as_deref()) {
                    return Err(unproved("node 0 does not know this node's secret".to_owned(), true));
                }
                wire.send(&Proof { proof: Side::Agent.prove(secret, &hello, &nonce) })?;
            }
        }
        match self.answer(&mut wire)? {
            Answer::Welcome => {
                wire.allow(MAX_MESSAGE_BYTES);
                Ok(wire)
            }
            Answer::Refused { reason, is_final } => {
                Err(Denied::Refused { reason: printable(&reason), is_final })
            }
            Answer::Challenge { .. } => Err(io::Error::other("it asked for a second proof").into()),
        }
    }

    fn is_cut_short(&self, why: &io::Error) -> bool {
        why.kind() == ErrorKind::TimedOut && Instant::now() >= self.until
    }

    /// Waits for an answer, but not longer than a signal or the time that is left allow.
    fn answer(&self, wire: &mut Wire) -> Result<Answer, Denied> {
        let until = self.until.min(Instant::now() + ANSWER_LIMIT);
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if let Some(answer) = wire.wait_at_most(left.min(LOOK_INTERVAL))? {
                return Ok(answer);
            }
            if left.is_zero() {
                let why = "it takes connections and does not answer";
                return Err(io::Error::new(ErrorKind::TimedOut, why).into());
            }
            if let Some(signal) = self.signal_within(Duration::ZERO)? {
                return Err(Denied::Signalled(signal));
            }
        }
    }

    /// A signal that ends the job, if one comes within this time.
    fn signal_within(&self, limit: Duration) -> Result<Option<Signal>, LaunchError> {
        let received = self.signals.wait(limit, None).map_err(LaunchError::system("wait for signals"))?;
        Ok(received.iter().find(|received| received.is_ending()).map(|received| received.signal))
    }

    /// Tries each address of the name.
    fn open(&self) -> io::Result<Socket> {
        let (name, port) = (self.config.master_addr.as_str(), self.config.coordinator_port());
        let mut last = io::Error::other("the name has no address");
        for address in (name, port).to_socket_addrs()? {
            let left = self.until.saturating_duration_since(Instant::now());
            // The last attempt is one, however little time is left.
            match open_at(address, CONNECT_LIMIT.min(left.max(PAUSE)), self.config.heartbeat_timeout) {
                Ok(socket) => return Ok(socket),
                Err(error) => last = error,
            }
        }
        Err(last)
    }
}

fn open_at(address: SocketAddr, limit: Duration, silence: Duration) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.connect_timeout(&address.into(), limit)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(silence))?;
    #[cfg(not(target_os = "linux"))]
    let _ = silence;
    Ok(socket)
}
