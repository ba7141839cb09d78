//! How ranks that only MPI knows of find each other: rank 0's addresses, a free port and a secret of the run.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use super::{
    checked::{Fault, Turn},
    library::{self, Library},
};
use crate::{
    Error, Result,
    deadline::Deadline,
    rendezvous::{Environment, Secret, join_host_port, listen},
    transport::host,
};

/// Bytes that each rank contributes: its host's fingerprint, and an invitation that only rank 0 fills in.
const RECORD_BYTES: usize = 1024;
/// Bytes of the secret, which nobody guesses.
const SECRET_BYTES: usize = 32;
const ACTION: &str = "tell all ranks where rank 0 is";
/// How long one address of rank 0 may take to answer before the next is tried.
const ATTEMPT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(50);

/// What a rank says.
#[derive(Debug, PartialEq, Eq)]
struct Record {
    host: String,
    port: u16,
    secret: String,
    addresses: Vec<IpAddr>,
}

/// Completes an environment that does not say where rank 0 is; returns rank 0's socket there.
///
/// Two rounds: rank 0 listens for other hosts only when it knows that there are some.
pub(super) fn find(
    library: &Library,
    environment: &mut Environment,
    deadline: Deadline,
) -> Result<Option<TcpListener>> {
    let host = host::fingerprint();
    let own = Record { host, port: 0, secret: String::new(), addresses: Vec::new() };
    let hosts = collect(library, &own, deadline)?;
    let one_host = hosts.iter().all(|record| record.host == own.host);
    let (own, listener) = match environment.rank {
        0 => invite(own, environment, one_host).map(|(record, listener)| (record, Some(listener)))?,
        _ => (own, None),
    };
    let first = collect(library, &own, deadline)?.swap_remove(0);
    environment.master_port = first.port;
    if environment.secret.is_none() {
        environment.secret = Some(Secret::from_hex(&first.secret)?);
    }
    if environment.master_addr.is_empty() {
        environment.master_addr = if one_host {
            Ipv4Addr::LOCALHOST.to_string()
        } else {
            reachable(environment.rank, &first.addresses, first.port, deadline)?.to_string()
        };
    }
    Ok(listener)
}

/// Listens, and says where.
fn invite(own: Record, environment: &Environment, one_host: bool) -> Result<(Record, TcpListener)> {
    let port = environment.master_port;
    let listener = if one_host && environment.master_addr.is_empty() {
        listen(Ipv4Addr::LOCALHOST.into(), port)?
    } else {
        listen(Ipv4Addr::UNSPECIFIED.into(), port).or_else(|_| listen(Ipv6Addr::UNSPECIFIED.into(), port))?
    };
    let failed = |error: String| Fault::ours(ACTION, error);
    let port = listener.local_addr().map_err(|error| failed(error.to_string()))?.port();
    let mut secret = [0; SECRET_BYTES];
    getrandom::fill(&mut secret).map_err(|error| failed(error.to_string()))?;
    let secret = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok((Record { port, secret, addresses: own_addresses()?, ..own }, listener))
}

/// The addresses of this host that others may reach, those of IPv4 first.
fn own_addresses() -> Result<Vec<IpAddr>, Fault> {
    let interfaces =
        nix::ifaddrs::getifaddrs().map_err(|error| Fault::ours(ACTION, format!("no addresses: {error}")))?;
    let mut addresses: Vec<IpAddr> = interfaces
        .filter_map(|interface| {
            let address = interface.address?;
            let v4 = address.as_sockaddr_in().map(|it| IpAddr::V4(it.ip()));
            v4.or_else(|| address.as_sockaddr_in6().map(|it| IpAddr::V6(it.ip())))
        })
        .filter(|ip| match ip {
            IpAddr::V4(ip) => !ip.is_loopback(),
            // A link-local address means nothing without the name of the interface.
            IpAddr::V6(ip) => !ip.is_loopback() && !ip.is_unicast_link_local(),
        })
        .collect();
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses.dedup();
    Ok(addresses)
}

/// Every rank's record, in rank order.
fn collect(library: &Library, own: &Record, deadline: Deadline) -> Result<Vec<Record>, Fault> {
    // MPI may write to them after the deadline, so they are given up then.
    let send = Box::leak(own.encode().into_boxed_slice());
    let recv = Box::leak(vec![0; RECORD_BYTES * library.size].into_boxed_slice());
    // SAFETY: neither is freed before the request is complete, and nobody looks at them until then.
    let request = unsafe { library.comm.all_gather(&Turn::wait(ACTION)?, send, recv) }?;
    library::wait(request, ACTION, deadline)?;
    let records = recv.chunks_exact(RECORD_BYTES).map(Record::decode).collect::<Option<_>>();
    // SAFETY: both came from boxes, and MPI has let go of them.
    unsafe {
        drop(Box::from_raw(send));
        drop(Box::from_raw(recv));
    }
    records.ok_or_else(|| Fault::ours(ACTION, "a rank sent none; build all ranks from one version"))
}

/// The first of rank 0's addresses that answers from here.
fn reachable(rank: usize, addresses: &[IpAddr], port: u16, deadline: Deadline) -> Result<IpAddr> {
    let mut last = "it has no address but loopback".to_owned();
    loop {
        for address in addresses {
            match TcpStream::connect_timeout(
                &SocketAddr::new(*address, port),
                deadline.remaining_at_most(ATTEMPT),
            ) {
                Ok(_) => return Ok(*address),
                Err(error) => last = error.to_string(),
            }
        }
        if addresses.is_empty() || deadline.expired() {
            let places: Vec<String> =
                addresses.iter().map(|address| join_host_port(&address.to_string(), port)).collect();
            return Err(Error::Connect {
                rank,
                target: "the rendezvous store of rank 0".into(),
                address: places.join(", "),
                waited: deadline.elapsed(),
                last,
            });
        }
        std::thread::sleep(PAUSE);
    }
}

impl Record {
    fn encode(&self) -> Vec<u8> {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        let mut text = format!("{}\n{}\n{}\n", self.host, self.port, self.secret);
        for address in addresses {
            // What does not fit is not told: a host with that many addresses has one among the first.
            if text.len() + address.len() < RECORD_BYTES {
                text.push_str(&address);
                text.push(' ');
            }
        }
        let mut bytes = text.into_bytes();
        bytes.resize(RECORD_BYTES, 0);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?.trim_end_matches('\0');
        let mut lines = text.splitn(4, '\n');
        let (host, port, secret) = (lines.next()?.into(), lines.next()?.parse().ok()?, lines.next()?.into());
        let addresses = lines.next()?.split_whitespace().map(|it| it.parse().ok()).collect::<Option<_>>()?;
        Some(Self { host, port, secret, addresses })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_as_it_was_written_and_never_outgrows_its_place() {
        let record = Record {
            host: "b6f0/4026531840/4026531836/0".into(),
            port: 40_000,
            secret: "00ff".into(),
            addresses: vec!["10.0.0.1".parse().unwrap(), "2001:db8::1".parse().unwrap()],
        };
        assert_eq!(Record::decode(&record.encode()).as_ref(), Some(&record));
        let record = Record {
            host: "h".into(),
            port: 1,
            secret: "s".into(),
            addresses: (0..5000).map(|i| IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + i))).collect(),
        };
        let read = Record::decode(&record.encode()).unwrap();
        assert!(read.addresses.len() > 50 && record.addresses.starts_with(&read.addresses));
        assert_eq!(Record::decode(&[0; RECORD_BYTES]), None);
    }
}
