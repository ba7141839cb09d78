use super::{
    config::LaunchConfig,
    error::LaunchError,
    link::heartbeat_interval,
    protocol::{Answer, Hello, MAGIC, MAX_GREETING_BYTES, MAX_MESSAGE_BYTES, PROTOCOL, Proof, Side},
    secret::random_hex,
    signals::Signals,
    wire::{Wire, printable},
};
use nix::sys::signal::Signal;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io,
    net::{SocketAddr, ToSocketAddrs},
    time::{Duration, Instant},
};

/// Time for one attempt to reach node 0, and for each of its answers.
const CONNECT_LIMIT: Duration = Duration::from_secs(3);
const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(250);

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
    // When node 0 first said that this node's place is taken.
    let mut taken_since = None;
    loop {
        let why = match admit(config, host) {
            Ok(wire) => return Ok(Reached::Admitted(Box::new(wire))),
            Err(Denied::Refused { reason, is_final }) => {
                let taken_since = *taken_since.get_or_insert_with(Instant::now);
                if is_final || taken_since.elapsed() > time_to_be_missed(config) {
                    let (node, address) = (config.node_rank, address(config));
                    return Err(LaunchError::Refused { node, address, reason });
                }
                io::Error::other(reason)
            }
            Err(Denied::Error(error)) => return Err(error),
            Err(Denied::NotYet(why)) => why,
        };
        let waited = start.elapsed();
        if waited >= config.rendezvous_timeout {
            let (node, address, seconds) = (config.node_rank, address(config), waited.as_secs_f64());
            return Err(LaunchError::Unreachable { node, address, seconds, source: why });
        }
        let pause = PAUSE.min(config.rendezvous_timeout - waited);
        let signals = signals.wait(pause, None).map_err(LaunchError::system("wait for signals"))?;
        if let Some(received) = signals.iter().find(|received| received.is_ending()) {
            return Ok(Reached::Signalled(received.signal));
        }
    }
}

/// Time after which node 0 has noticed that this node's own old connection is silent, where its place is taken by that.
fn time_to_be_missed(config: &LaunchConfig) -> Duration {
    config.heartbeat_timeout + heartbeat_interval(config.heartbeat_timeout) + Duration::from_secs(1)
}

fn address(config: &LaunchConfig) -> String {
    format!("{}:{}", config.master_addr, config.coordinator_port())
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
}

impl From<io::Error> for Denied {
    fn from(error: io::Error) -> Self {
        Self::NotYet(error)
    }
}

fn admit(config: &LaunchConfig, host: &str) -> Result<Wire, Denied> {
    let hello = hello(config, host).map_err(Denied::Error)?;
    let mut wire = Wire::new(open(config)?, MAX_GREETING_BYTES)?;
    wire.send(&hello)?;
    let secret = config.secret.as_ref();
    // Who has a secret believes nobody who has not proved it: a stranger at this address could end the job otherwise.
    let unproved = |reason: String, is_final| match secret {
        Some(_) => Denied::NotYet(io::Error::other(format!("{reason} (not proved)"))),
        None => Denied::Refused { reason, is_final },
    };
    match wire.wait::<Answer>(ANSWER_LIMIT)? {
        Answer::Refused { reason, is_final } => return Err(unproved(printable(&reason), is_final)),
        Answer::Welcome => return Err(io::Error::other("it asked for no proof").into()),
        Answer::Challenge { nonce, proof } => {
            if !Side::Coordinator.is_proved(secret, &hello, &nonce, proof.as_deref()) {
                let reason = "node 0 does not know this node's secret".to_owned();
                return Err(unproved(reason, true));
            }
            wire.send(&Proof { proof: Side::Agent.prove(secret, &hello, &nonce) })?;
        }
    }
    match wire.wait::<Answer>(ANSWER_LIMIT)? {
        Answer::Welcome => {
            wire.allow(MAX_MESSAGE_BYTES);
            Ok(wire)
        }
        Answer::Refused { reason, is_final } => Err(Denied::Refused { reason: printable(&reason), is_final }),
        Answer::Challenge { .. } => Err(io::Error::other("it asked for a second proof").into()),
    }
}

/// Tries each address of the name.
fn open(config: &LaunchConfig) -> io::Result<Socket> {
    let addresses = (config.master_addr.as_str(), config.coordinator_port()).to_socket_addrs()?;
    let mut last = io::Error::other("the name has no address");
    for address in addresses {
        match open_at(address, config.heartbeat_timeout) {
            Ok(socket) => return Ok(socket),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn open_at(address: SocketAddr, silence: Duration) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.connect_timeout(&address.into(), CONNECT_LIMIT)?;
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(silence))?;
    #[cfg(not(target_os = "linux"))]
    let _ = silence;
    Ok(socket)
}
