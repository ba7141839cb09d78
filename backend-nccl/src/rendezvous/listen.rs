//! Listening sockets.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    sync::Arc,
};

use socket2::{Domain, Protocol, Socket, Type};

use crate::{Error, Result};

/// Every rank may connect in the same moment, and strangers too. The system cuts it to its own limit.
const BACKLOG: i32 = 4096;

/// Listens on the address, port 0 for a free one.
pub(crate) fn listen(ip: IpAddr, port: u16) -> Result<TcpListener> {
    let address = SocketAddr::new(ip, port);
    open(address).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => Error::PortInUse { address: address.to_string() },
        _ => Error::Listen { address: address.to_string(), source: Arc::new(error) },
    })
}

/// Listens on every address of this machine, of both families where it has both.
///
/// A host's own name may lead to one family on the host itself and to the other elsewhere.
pub(crate) fn listen_everywhere(port: u16) -> Result<TcpListener> {
    match listen(Ipv6Addr::UNSPECIFIED.into(), port) {
        Err(Error::Listen { .. }) => listen(Ipv4Addr::UNSPECIFIED.into(), port),
        listener => listener,
    }
}

fn open(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    // Connections of a previous run that linger do not keep the port from the next run; a listener does.
    socket.set_reuse_address(true)?;
    if address.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED) {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    socket.set_nonblocking(true)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn who_listens_everywhere_is_reached_over_both_families() {
        let listener = listen_everywhere(0).unwrap();
        let port = listener.local_addr().unwrap().port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
        if listen(Ipv6Addr::LOCALHOST.into(), 0).is_ok() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
        }
    }
}
