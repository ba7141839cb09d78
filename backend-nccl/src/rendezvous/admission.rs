//! Accepts connections and lets in only those that open with the right hello.

use std::{
    io::{self, ErrorKind, Read},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::AsFd,
    sync::Arc,
    time::Duration,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{Domain, Protocol, Socket, Type};

use super::hello::{HELLO_BYTES, Hello, Identity, Refusal};
use crate::{Error, Result, deadline::Deadline};

/// How long a connection may take to say hello, so that a silent stranger does not stay.
const HELLO_LIMIT: Duration = Duration::from_secs(5);
/// How many connections may be about to say hello; beyond it the oldest goes.
const MAX_PENDING: usize = 256;
/// Every rank may connect in the same moment.
const BACKLOG: i32 = 1024;

/// Listens on the address, port 0 for a free one.
pub(crate) fn listen(ip: IpAddr, port: u16) -> Result<TcpListener> {
    let address = SocketAddr::new(ip, port);
    let attempt = || -> io::Result<TcpListener> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        // Connections of a previous run that linger do not keep the port from the next run; a listener does.
        socket.set_reuse_address(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    attempt().map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => Error::PortInUse { address: address.to_string() },
        _ => Error::Listen { address: address.to_string(), source: Arc::new(error) },
    })
}

/// A listener and the connections that have not said who they are.
///
/// One thread serves them all without blocking, so strangers cost a few bytes each and delay nobody.
#[derive(Debug)]
pub(crate) struct Admission {
    listener: TcpListener,
    host: Identity,
    pending: Vec<Pending>,
}

#[derive(Debug)]
struct Pending {
    stream: TcpStream,
    bytes: [u8; HELLO_BYTES],
    have: usize,
    deadline: Deadline,
}

impl Admission {
    /// Serves a listener made by [`listen`] on behalf of `host`.
    pub(crate) fn new(listener: TcpListener, host: Identity) -> Self {
        Self { listener, host, pending: Vec::new() }
    }

    /// Waits up to `wait`, then returns the callers that said the right hello and that `admit` lets in.
    pub(crate) fn admit(
        &mut self,
        wait: Duration,
        mut admit: impl FnMut(&Hello) -> Result<(), Refusal>,
    ) -> Vec<(TcpStream, Hello)> {
        self.wait(wait);
        self.accept();
        let mut admitted = Vec::new();
        for mut caller in std::mem::take(&mut self.pending) {
            match caller.read() {
                Err(_) => {}
                Ok(false) => {
                    if !caller.deadline.expired() {
                        self.pending.push(caller);
                    }
                }
                Ok(true) => match Hello::check(&caller.bytes, &self.host).and_then(|h| admit(&h).map(|()| h))
                {
                    Ok(hello) => admitted.push((caller.stream, hello)),
                    Err(refusal) => {
                        log::warn!(
                            "refused a connection from {:?}: {refusal}",
                            caller.stream.peer_addr().ok()
                        );
                        let _ = Refusal::answer(Some(refusal), &caller.stream);
                    }
                },
            }
        }
        admitted.retain(|(stream, _)| Refusal::answer(None, stream).is_ok());
        admitted
    }

    fn wait(&self, wait: Duration) {
        let mut fds: Vec<PollFd<'_>> = std::iter::once(self.listener.as_fd())
            .chain(self.pending.iter().map(|caller| caller.stream.as_fd()))
            .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
            .collect();
        let milliseconds = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX).max(1);
        // An interrupted wait is a short one, and the caller waits again.
        let _ = poll(&mut fds, PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX));
    }

    fn accept(&mut self) {
        while let Ok((stream, _)) = self.listener.accept() {
            if stream.set_nonblocking(true).is_err() || stream.set_nodelay(true).is_err() {
                continue;
            }
            if self.pending.len() == MAX_PENDING {
                self.pending.remove(0);
            }
            let deadline = Deadline::after(HELLO_LIMIT);
            self.pending.push(Pending { stream, bytes: [0; HELLO_BYTES], have: 0, deadline });
        }
    }
}

impl Pending {
    /// Reads what is there; whether the hello is complete.
    fn read(&mut self) -> io::Result<bool> {
        while self.have < HELLO_BYTES {
            match self.stream.read(&mut self.bytes[self.have..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => self.have += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }
}
