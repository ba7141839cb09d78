//! How the ranks of a job find each other: the environment that a launcher gives, and a store that rank 0 serves.

mod admission;
mod call;
mod challenge;
mod crowd;
mod dice;
mod environment;
mod hello;
mod limits;
mod listen;
mod opening;
mod pending;
mod refusal;
mod resolve;
mod server;
mod store;

use std::net::{IpAddr, TcpListener};
use std::sync::{Arc, Once};

pub(crate) use admission::Admission;
pub(crate) use call::{call, join_host_port};
pub use challenge::Secret;
pub use environment::Environment;
#[cfg(feature = "nccl")]
pub(crate) use environment::cuda_variable;
#[cfg(feature = "nccl")]
pub(crate) use environment::named_file;
pub(crate) use environment::{debug_requested, flight_record_folder, requested};
pub(crate) use hello::{Hello, Identity, Role};
pub(crate) use listen::{listen, listen_everywhere};
pub use refusal::Refusal;
pub(crate) use resolve::host_name;
use server::StoreServer;
pub(crate) use store::Store;

use crate::{Error, Result, deadline::Deadline};

/// A rank that has joined the store of its job. Rank 0 holds the server too.
#[derive(Debug)]
pub(crate) struct Rendezvous {
    pub(crate) identity: Identity,
    pub(crate) store: Store,
    /// `host:port` of the store, for messages.
    pub(crate) address: String,
    host: String,
    /// Ends with the rendezvous: nothing needs the store, or its port, once the ranks are connected.
    _server: Option<StoreServer>,
}

impl Rendezvous {
    /// Joins the store at `host:port`; rank 0 starts it first, on `listener` if one is given.
    pub(crate) fn join(
        identity: Identity,
        host: &str,
        port: u16,
        listener: Option<TcpListener>,
        deadline: Deadline,
    ) -> Result<Self> {
        limits::make_room(identity.world_size);
        let server = match (identity.rank, listener) {
            (0, Some(listener)) => Some(StoreServer::start(listener, identity)?),
            (0, None) => Some(StoreServer::start(listen_as_master(host, port, deadline)?, identity)?),
            _ => None,
        };
        let store = Store::connect(host, port, identity, deadline)?;
        let address = join_host_port(host, port);
        warn_of_strangers(&store, &identity, &address);
        Ok(Self { identity, store, address, host: host.to_owned(), _server: server })
    }

    /// Listens on a free port of the interface that leads to the store; also the text that tells others where.
    ///
    /// A rank that reaches the store over loopback is on rank 0's machine. It publishes the port alone, since others
    /// know that machine by the address at which they reached the store, which need not be the loopback one.
    pub(crate) fn listen(&self) -> Result<(TcpListener, String)> {
        let ip = self.addresses()?.0;
        let on_loopback = ip.is_loopback();
        let listener = match ip {
            _ if !on_loopback || is_loopback_name(&self.host) => listen(ip, 0)?,
            _ => listen_everywhere(0)?,
        };
        let port = listener.local_addr().map_err(|source| self.no_address(source))?.port();
        let published = if on_loopback { format!(" {port}") } else { format!("{ip} {port}") };
        Ok((listener, published))
    }

    /// The host and port of a rank from what it published.
    pub(crate) fn locate(&self, rank: usize, published: &[u8]) -> Result<(String, u16)> {
        let bad = || Error::Store {
            request: "get",
            key: address_key(rank),
            reason: format!("its value is no address: {:?}", String::from_utf8_lossy(published)),
        };
        let text = std::str::from_utf8(published).map_err(|_| bad())?;
        let (ip, port) = text.split_once(' ').ok_or_else(bad)?;
        let port = port.parse().map_err(|_| bad())?;
        let ip = if ip.is_empty() { self.addresses()?.1.to_string() } else { ip.to_owned() };
        Ok((ip, port))
    }

    /// Waits until every rank has published an address, or names those that have not.
    pub(crate) fn wait_for_all(&self, deadline: Deadline) -> Result<()> {
        let keys: Vec<String> = (0..self.identity.world_size).map(address_key).collect();
        let missing = self.store.wait(&keys, deadline)?;
        if missing.is_empty() {
            return Ok(());
        }
        Err(Error::MissingRanks {
            missing: (0..keys.len()).filter(|rank| missing.contains(&keys[*rank])).collect(),
            world_size: self.identity.world_size,
            address: self.address.clone(),
            waited: deadline.elapsed(),
        })
    }

    fn addresses(&self) -> Result<(IpAddr, IpAddr)> {
        let (local, peer) = self.store.addresses().map_err(|source| self.no_address(source))?;
        Ok((local.ip(), peer.ip()))
    }

    fn no_address(&self, source: std::io::Error) -> Error {
        Error::Listen { address: self.address.clone(), source: Arc::new(source) }
    }
}

/// The key under which a rank publishes where it listens.
pub(crate) fn address_key(rank: usize) -> String {
    format!("address/{rank}")
}

/// Listens where the other ranks will call: on the one address if MASTER_ADDR is literally one, else on all, because
/// a host's own name often resolves to loopback on the host itself.
fn listen_as_master(host: &str, port: u16, deadline: Deadline) -> Result<TcpListener> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return listen(ip, port);
    }
    let resolved = resolve::resolve(host, port, deadline).unwrap_or_default();
    match resolved.first().map(|address| address.ip()) {
        Some(ip) if is_loopback_name(host) => listen(ip, port),
        _ => listen_everywhere(port),
    }
}

/// Says once that a job which others can reach has no secret.
fn warn_of_strangers(store: &Store, identity: &Identity, address: &str) {
    static SAID: Once = Once::new();
    let is_reachable = store.addresses().is_ok_and(|(_, peer)| !peer.ip().to_canonical().is_loopback());
    if is_reachable && !identity.has_secret() {
        SAID.call_once(|| {
            log::warn!(
                "the ranks at {address} have no secret: whoever can reach this port and knows the run token can join \
                 them; start the job with burnrun, or give all ranks the same BURN_NCCL_SECRET, such as `openssl rand \
                 -hex 32` prints"
            );
        });
    }
}

fn is_loopback_name(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write,
        net::{Ipv4Addr, TcpStream},
        time::Duration,
    };

    use super::*;

    fn within(milliseconds: u64) -> Deadline {
        Deadline::after(Duration::from_millis(milliseconds))
    }

    fn serve(world_size: usize) -> (Rendezvous, u16) {
        let listener = listen(Ipv4Addr::LOCALHOST.into(), 0).unwrap();
        let port = listener.local_addr().unwrap().port();
        let identity = Identity::new(0, world_size, "job", None);
        (Rendezvous::join(identity, "127.0.0.1", port, Some(listener), within(5000)).unwrap(), port)
    }

    fn join(rank: usize, world_size: usize, run_id: &str, port: u16) -> Result<Store> {
        Store::connect("127.0.0.1", port, Identity::new(rank, world_size, run_id, None), within(5000))
    }

    fn refusal(result: Result<Store>) -> Refusal {
        match result.unwrap_err() {
            Error::Refused { refusal, .. } => refusal,
            other => panic!("expected a refusal: {other}"),
        }
    }

    #[test]
    fn values_are_shared_and_a_get_waits_for_its_key() {
        let (zero, port) = serve(2);
        let one = join(1, 2, "job", port).unwrap();
        std::thread::scope(|scope| {
            let value = scope.spawn(|| one.get("late", within(5000)));
            zero.store.set("late", b"here", within(1000)).unwrap();
            assert_eq!(value.join().unwrap().unwrap(), b"here");
        });
        let missing = one.wait(&["late".into(), "never".into()], within(20)).unwrap();
        assert_eq!(missing, ["never"]);
        let error = one.get("never", within(20)).unwrap_err().to_string();
        assert!(error.contains("could not get `never`: no rank has set it"), "{error}");
    }

    #[test]
    fn strangers_and_ranks_of_other_jobs_are_refused_while_the_right_ones_are_served() {
        let (_zero, port) = serve(3);
        let silent = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut browser = TcpStream::connect(("127.0.0.1", port)).unwrap();
        browser
            .write_all(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: */*\r\nUser-Agent: browser\r\n\r\n")
            .unwrap();
        assert_eq!(refusal(join(1, 3, "another job", port)), Refusal::Token);
        assert_eq!(refusal(join(1, 4, "job", port)), Refusal::WorldSize { expected: 3 });
        assert_eq!(refusal(join(3, 3, "job", port)), Refusal::RankOutOfRange);
        assert_eq!(refusal(join(0, 3, "job", port)), Refusal::DuplicateRank);
        let one = join(1, 3, "job", port).unwrap();
        assert_eq!(refusal(join(1, 3, "job", port)), Refusal::DuplicateRank);
        one.set("key", b"value", within(1000)).unwrap();
        drop((silent, browser));
    }

    #[test]
    fn ranks_that_never_join_are_named_on_every_rank_even_when_rank_0_gives_up_first() {
        let (zero, port) = serve(4);
        let one = std::thread::spawn(move || {
            let identity = Identity::new(1, 4, "job", None);
            let one = Rendezvous::join(identity, "127.0.0.1", port, None, within(5000)).unwrap();
            one.store.set(&address_key(1), b" 1", within(1000)).unwrap();
            one.wait_for_all(within(60_000)).unwrap_err()
        });
        zero.store.set(&address_key(0), b" 1", within(1000)).unwrap();
        zero.store.get(&address_key(1), within(5000)).unwrap();
        let error = zero.wait_for_all(within(300)).unwrap_err();
        drop(zero);
        for error in [error, one.join().unwrap()] {
            let text = error.to_string();
            assert!(text.starts_with("ranks 2, 3 of 4 did not join 127.0.0.1:"), "{text}");
        }
    }

    #[test]
    fn a_wrong_address_fails_at_the_deadline_and_names_it() {
        let free = listen(Ipv4Addr::LOCALHOST.into(), 0).unwrap().local_addr().unwrap().port();
        let identity = Identity::new(1, 2, "job", None);
        let error = Store::connect("127.0.0.1", free, identity, within(300)).unwrap_err().to_string();
        assert!(error.contains(&format!("127.0.0.1:{free}")) && error.contains("MASTER_ADDR"), "{error}");
        let error = Store::connect("no-such-host.invalid", 1, identity, within(300)).unwrap_err().to_string();
        assert!(error.contains("no-such-host.invalid:1") && error.contains("cannot be resolved"), "{error}");
    }

    #[test]
    fn a_port_in_use_is_named_with_its_remedy() {
        let (_zero, port) = serve(1);
        let error = listen_as_master("127.0.0.1", port, within(1000)).unwrap_err();
        assert!(matches!(&error, Error::PortInUse { address } if *address == format!("127.0.0.1:{port}")));
        assert!(error.to_string().contains("set MASTER_PORT to a free port"), "{error}");
    }

    #[test]
    fn something_else_on_the_port_is_told_from_a_store() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
            stream
        });
        let error =
            Store::connect("127.0.0.1", port, Identity::new(1, 2, "job", None), within(200)).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Connect { .. }), "{text}");
        server.join().unwrap();
    }
}
