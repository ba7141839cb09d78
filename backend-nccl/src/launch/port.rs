use super::error::LaunchError;
use socket2::{Domain, Protocol, Socket, Type};
use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs},
};

/// The master port, kept from other processes for as long as this value lives.
///
/// The launcher cannot serve the port itself, because rank 0 does, and a port that is only looked up and released
/// may be taken by another job before rank 0 has it. So the launcher holds a socket that is bound to the port and
/// does not listen. On Linux such a socket lets rank 0 bind and listen beside it when both have `SO_REUSEADDR` (the
/// standard library and PyTorch set it on listeners), while the system gives the port to nobody who asks for any
/// free port, neither to another launcher nor to an outgoing connection. Only a process that names this very port
/// and sets `SO_REUSEADDR` could still come before rank 0; the run token then makes the ranks refuse it.
///
/// A system that does not let two sockets share the port has it released before the ranks start.
pub(super) struct MasterPort {
    pub(super) number: u16,
    _held: Option<Socket>,
}

impl MasterPort {
    /// Takes the port `asked` on `address`, or any free one.
    pub(super) fn reserve(address: &str, asked: Option<u16>) -> Result<Self, LaunchError> {
        match asked {
            None => Self::hold((Ipv6Addr::UNSPECIFIED, 0).into())
                // A host without the other family.
                .or_else(|_| Self::hold((Ipv4Addr::UNSPECIFIED, 0).into()))
                .map_err(|source| LaunchError::NoFreePort { source }),
            Some(port) => Self::ask(address, port),
        }
    }

    /// A name or address that is not of this machine is left to the rendezvous, which names it in its error.
    fn ask(address: &str, port: u16) -> Result<Self, LaunchError> {
        let resolved = (address, port).to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
        match resolved.map(Self::hold) {
            Some(Ok(held)) => Ok(held),
            Some(Err(source))
                if matches!(source.kind(), ErrorKind::AddrInUse | ErrorKind::PermissionDenied) =>
            {
                Err(LaunchError::Port { port, source })
            }
            _ => Ok(Self { number: port, _held: None }),
        }
    }

    fn hold(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_reuse_address(true)?;
        if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
            // Rank 0 may serve either family.
            socket.set_only_v6(false)?;
        }
        socket.bind(&address.into())?;
        let bound = socket.local_addr()?.as_socket().unwrap_or(address);
        // Also finds a listener on the port, which the bind alone does not always show.
        let shared = TcpListener::bind(bound);
        match shared {
            Ok(_) => Ok(Self { number: bound.port(), _held: Some(socket) }),
            Err(_) => {
                drop(socket);
                TcpListener::bind(bound)?;
                Ok(Self { number: bound.port(), _held: None })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rank_zero_can_listen_on_a_held_port() {
        let port = MasterPort::reserve("127.0.0.1", None).expect("a free port");
        TcpListener::bind(("127.0.0.1", port.number)).expect("rank 0 listens on loopback");
        TcpListener::bind(("0.0.0.0", port.number)).expect("rank 0 listens on all interfaces");
        if TcpListener::bind("[::1]:0").is_ok() {
            TcpListener::bind(("::1", port.number)).expect("rank 0 listens on loopback of the other family");
            TcpListener::bind(("::", port.number)).expect("rank 0 listens on all interfaces of both");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_held_port_is_given_to_nobody_else() {
        let held: Vec<_> =
            (0..200).map(|_| MasterPort::reserve("127.0.0.1", None).expect("a free port")).collect();
        assert!(held.iter().all(|port| port._held.is_some()));
        let numbers: std::collections::HashSet<_> = held.iter().map(|port| port.number).collect();
        assert_eq!(numbers.len(), held.len());
        let listeners: Vec<_> = (0..200)
            .map(|_| TcpListener::bind("127.0.0.1:0").expect("a port"))
            .chain((0..200).flat_map(|_| TcpListener::bind("[::1]:0")))
            .collect();
        assert!(listeners.iter().all(|l| !numbers.contains(&l.local_addr().expect("bound").port())));
    }

    #[test]
    fn a_port_that_somebody_serves_is_an_error_that_names_it() {
        let other = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = other.local_addr().expect("bound").port();
        let error = MasterPort::reserve("127.0.0.1", Some(port)).err().expect("the port is taken");
        assert!(matches!(error, LaunchError::Port { port: named, .. } if named == port), "{error}");
    }

    #[test]
    fn a_host_that_is_not_here_is_left_to_the_rendezvous() {
        let port = MasterPort::reserve("203.0.113.1", Some(29500)).expect("not checked");
        assert_eq!(port.number, 29500);
    }
}
