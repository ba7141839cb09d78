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

use super::hello::{CONFIRMATION, HELLO_BYTES, Hello, Identity, Refusal};
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

/// A listener and the connections that are on their way in: hello, answer, confirmation.
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
    /// The hello, then the confirmation.
    bytes: [u8; HELLO_BYTES + CONFIRMATION.len()],
    have: usize,
    deadline: Deadline,
    /// The hello, once it is answered. The caller may be gone: it gives up a callee that is long busy, and calls again.
    answered: Option<Hello>,
}

/// What becomes of a connection.
enum Step {
    Wait,
    Enter(Hello),
    Leave,
}

impl Admission {
    /// Serves a listener made by [`listen`] on behalf of `host`.
    pub(crate) fn new(listener: TcpListener, host: Identity) -> Self {
        Self { listener, host, pending: Vec::new() }
    }

    /// Waits up to `wait`, then returns the callers that said the right hello, that `accepts` lets in, and that have
    /// confirmed the answer.
    pub(crate) fn admit(
        &mut self,
        wait: Duration,
        mut accepts: impl FnMut(&Hello) -> Result<(), Refusal>,
    ) -> Vec<(TcpStream, Hello)> {
        self.wait(wait);
        self.accept();
        let mut admitted: Vec<(TcpStream, Hello)> = Vec::new();
        let mut at = 0;
        while at < self.pending.len() {
            let step = self.advance(at, |hello| {
                let rival = admitted.iter().any(|(_, other)| hello.is_rival(other));
                if rival { Err(Refusal::DuplicateRank) } else { accepts(hello) }
            });
            match step {
                Step::Wait => at += 1,
                Step::Enter(hello) => admitted.push((self.pending.remove(at).stream, hello)),
                Step::Leave => drop(self.pending.remove(at)),
            }
        }
        admitted
    }

    /// Takes one connection as far as its bytes allow.
    fn advance(&mut self, at: usize, mut accepts: impl FnMut(&Hello) -> Result<(), Refusal>) -> Step {
        loop {
            let caller = &mut self.pending[at];
            match caller.read() {
                Ok(true) => {}
                Ok(false) if !caller.deadline.expired() => return Step::Wait,
                Ok(false) | Err(_) => return Step::Leave,
            }
            if let Some(hello) = caller.answered {
                return Step::Enter(hello);
            }
            let checked = Hello::check(caller.hello(), &self.host).and_then(|hello| {
                let rival =
                    self.pending.iter().filter_map(|other| other.answered).any(|o| o.is_rival(&hello));
                if rival { Err(Refusal::DuplicateRank) } else { accepts(&hello).map(|()| hello) }
            });
            let caller = &mut self.pending[at];
            if let Err(refusal) = checked {
                let peer =
                    caller.stream.peer_addr().map_or("a closed connection".into(), |peer| peer.to_string());
                log::warn!("refused a connection from {peer}: {refusal}");
            }
            let told = Refusal::answer(checked.err(), &caller.stream);
            match (checked, told) {
                (Ok(hello), Ok(())) => caller.answered = Some(hello),
                _ => return Step::Leave,
            }
        }
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
            let bytes = [0; HELLO_BYTES + CONFIRMATION.len()];
            self.pending.push(Pending { stream, bytes, have: 0, deadline, answered: None });
        }
    }
}

impl Pending {
    fn hello(&self) -> &[u8; HELLO_BYTES] {
        self.bytes.first_chunk().expect("a hello comes first")
    }

    /// Reads what is there; whether the hello, or once that is answered its confirmation, is complete. What follows is
    /// left to whom the connection is for.
    fn read(&mut self) -> io::Result<bool> {
        let end = if self.answered.is_some() { self.bytes.len() } else { HELLO_BYTES };
        while self.have < end {
            match self.stream.read(&mut self.bytes[self.have..end]) {
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

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::super::hello::{Role, call, call_in_attempts};
    use super::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn identity(rank: usize) -> Identity {
        Identity::new(rank, 2, "job")
    }

    fn listener() -> (TcpListener, u16) {
        let listener = listen(Ipv4Addr::LOCALHOST.into(), 0).unwrap();
        let port = listener.local_addr().unwrap().port();
        (listener, port)
    }

    fn admit_one(admission: &mut Admission) -> (TcpStream, Hello) {
        let deadline = Deadline::after(LIMIT);
        loop {
            let mut admitted = admission.admit(Duration::from_millis(10), |_| Ok(()));
            assert!(admitted.len() < 2, "one call was taken for two");
            if let Some(caller) = admitted.pop() {
                return caller;
            }
            assert!(!deadline.expired(), "nobody was let in");
        }
    }

    #[test]
    fn a_call_that_a_busy_callee_left_waiting_for_several_attempts_gets_one_live_connection() {
        let (listener, port) = listener();
        let caller = std::thread::spawn(move || {
            let hello = Hello::new(identity(1), Role::Data);
            let attempt = Duration::from_millis(20);
            let place = ("127.0.0.1", port);
            let mut stream = call_in_attempts(place, "rank 0", &hello, Deadline::after(LIMIT), attempt)?;
            io::Write::write_all(&mut stream, b"alive").unwrap();
            Ok::<_, Error>(stream)
        });
        // Longer than an attempt and its pauses: the first connections to be accepted are dead.
        std::thread::sleep(Duration::from_millis(200));
        let (mut stream, hello) = admit_one(&mut Admission::new(listener, identity(0)));
        assert_eq!(hello.identity.rank, 1);
        let caller = caller.join().unwrap().unwrap();
        stream.set_nonblocking(false).unwrap();
        let mut bytes = [0; 5];
        stream.read_exact(&mut bytes).unwrap();
        assert_eq!(&bytes, b"alive");
        drop(caller);
    }

    #[test]
    fn of_two_processes_that_claim_one_rank_at_once_one_is_let_in_and_the_other_is_told_why() {
        let (listener, port) = listener();
        let start = || {
            std::thread::spawn(move || {
                let hello = Hello::new(identity(1), Role::Store);
                call(("127.0.0.1", port), "rank 0", &hello, Deadline::after(LIMIT))
            })
        };
        let callers = [start(), start()];
        let mut admission = Admission::new(listener, identity(0));
        let admitted = admit_one(&mut admission);
        while !callers.iter().all(|caller| caller.is_finished()) {
            let later = admission.admit(Duration::from_millis(10), |_| Err(Refusal::DuplicateRank));
            assert!(later.is_empty());
        }
        let results = callers.map(|caller| caller.join().unwrap());
        assert_eq!(results.iter().filter(|result| result.is_ok()).count(), 1);
        let refused = results.into_iter().find_map(Result::err).unwrap();
        assert!(matches!(refused, Error::Refused { refusal: Refusal::DuplicateRank, .. }), "{refused}");
        drop(admitted);
    }
}
