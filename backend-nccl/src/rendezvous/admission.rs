//! Accepts connections and lets in only those that prove to be ranks of the job.

use std::{
    io::{self, ErrorKind},
    net::{TcpListener, TcpStream},
    os::fd::AsFd,
    time::Duration,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::crowd::{Crowd, SHORTEST_STAY};
use super::hello::{GREETING_BYTES, Hello, Identity, Opening, REFUSED, tell};
use super::pending::{CONFIRMATION_LIMIT, Pending, Stage};
use super::refusal::Refusal;
use crate::deadline::Deadline;

/// How many connections are accepted before those that are there are served.
const ACCEPT_BATCH: usize = 128;
/// How long nothing is accepted after the system had no room for a connection: asking at once would ask for ever.
const NO_ROOM_PAUSE: Duration = Duration::from_millis(50);

/// A listener and the connections that are on their way in.
///
/// One thread serves them all without blocking. Strangers cost a few bytes each, and where they come in a flood each
/// new one takes the place of another, chosen by chance: a rank, which needs its place for two round trips only, keeps
/// it well enough, and calls again if not. Those that have proven to be ranks keep theirs.
#[derive(Debug)]
pub(crate) struct Admission {
    listener: TcpListener,
    host: Identity,
    pending: Crowd,
    /// How long nothing is accepted.
    pause: Option<Deadline>,
    /// How many were refused.
    refused: u64,
    /// How often there was no room for another connection.
    full: u64,
}

/// What becomes of a connection.
enum Step {
    Wait,
    Enter(Hello),
    Leave,
}

impl Admission {
    /// Serves a listener made by [`listen`](super::listen) on behalf of `host`.
    pub(crate) fn new(listener: TcpListener, host: Identity) -> Self {
        Self { listener, host, pending: Crowd::new(), pause: None, refused: 0, full: 0 }
    }

    /// Waits up to `wait`, then returns the callers that have proven to be ranks of the job, that `accepts` lets in,
    /// and that have confirmed the answer.
    pub(crate) fn admit(
        &mut self,
        wait: Duration,
        mut accepts: impl FnMut(&Hello) -> Result<(), Refusal>,
    ) -> Vec<(TcpStream, Hello)> {
        let ready = self.wait(wait);
        let mut admitted: Vec<(TcpStream, Hello)> = Vec::new();
        // From the end: what is removed is replaced by the last, which has had its turn.
        for at in (0..self.pending.len()).rev() {
            if !ready[at] && !self.pending[at].deadline.expired() {
                continue;
            }
            self.serve(at, &mut admitted, &mut accepts);
        }
        self.accept(&mut admitted, &mut accepts);
        admitted
    }

    fn serve(
        &mut self,
        at: usize,
        admitted: &mut Vec<(TcpStream, Hello)>,
        accepts: &mut impl FnMut(&Hello) -> Result<(), Refusal>,
    ) {
        let step = self.advance(at, |hello| {
            let rival = admitted.iter().any(|(_, other)| hello.is_rival(other));
            if rival { Err(Refusal::DuplicateRank) } else { accepts(hello) }
        });
        match step {
            Step::Wait => {}
            Step::Enter(hello) => admitted.push((self.pending.swap_remove(at).stream, hello)),
            Step::Leave => drop(self.pending.swap_remove(at)),
        }
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
            let next = match &caller.stage {
                Stage::Greeting => self.greet(at),
                Stage::Petition(opening) => {
                    let opening = opening.clone();
                    self.decide(at, &opening, &mut accepts)
                }
                Stage::Confirmation(hello) => return Step::Enter(*hello),
            };
            let Some(stage) = next else { return Step::Leave };
            let caller = &mut self.pending[at];
            (caller.stage, caller.have) = (stage, 0);
        }
    }

    /// Answers a greeting; `None` to one that no rank of this version sends.
    fn greet(&mut self, at: usize) -> Option<Stage> {
        let caller = &self.pending[at];
        let greeting = caller.bytes.first_chunk::<GREETING_BYTES>()?;
        let (opening, greeted) = Opening::answer_call(greeting).ok()?;
        // What a caller of another version needs to know is in the greeting.
        let told = match greeted {
            Err(Refusal::Stranger) => tell(&caller.stream, &REFUSED),
            _ => {
                caller.stream.set_nodelay(true).and_then(|()| tell(&caller.stream, opening.callee_greeting()))
            }
        };
        match greeted {
            Ok(()) => told.ok().map(|()| Stage::Petition(opening)),
            Err(refusal) => {
                self.log(at, refusal);
                None
            }
        }
    }

    /// Answers a petition; `None` to a caller that is not let in.
    fn decide(
        &mut self,
        at: usize,
        opening: &Opening,
        accepts: impl FnOnce(&Hello) -> Result<(), Refusal>,
    ) -> Option<Stage> {
        let answered = self.pending.iter().filter_map(|caller| match &caller.stage {
            Stage::Confirmation(hello) => Some(*hello),
            _ => None,
        });
        let answered: Vec<Hello> = answered.collect();
        let caller = &self.pending[at];
        let answer = opening.decide(&caller.bytes, &self.host, |hello| {
            let rival = answered.iter().any(|other| other.is_rival(hello));
            if rival { Err(Refusal::DuplicateRank) } else { accepts(hello) }
        });
        let Some(answer) = answer else {
            let _ = tell(&caller.stream, &REFUSED);
            self.log(at, Refusal::Secret);
            return None;
        };
        let told = tell(&caller.stream, &answer.bytes);
        match answer.verdict {
            Ok(hello) => {
                told.ok()?;
                self.pending[at].deadline = Deadline::after(CONFIRMATION_LIMIT);
                Some(Stage::Confirmation(hello))
            }
            Err(refusal) => {
                self.log(at, refusal);
                None
            }
        }
    }

    /// Says who was refused, ever more rarely: a flood of strangers must not become a flood of lines.
    fn log(&mut self, at: usize, refusal: Refusal) {
        self.refused += 1;
        if self.refused.is_power_of_two() {
            let peer = self.pending[at].stream.peer_addr();
            let peer = peer.map_or("a closed connection".into(), |peer| peer.to_string());
            log::warn!("refused a connection from {peer}, {} so far: {refusal}", self.refused);
        }
    }

    /// Waits for connections and their bytes; which of those pending have some.
    fn wait(&mut self, wait: Duration) -> Vec<bool> {
        self.pause = self.pause.filter(|pause| !pause.expired());
        let wait = self.pause.map_or(wait, |pause| pause.remaining().min(wait));
        let listening = if self.pause.is_some() { PollFlags::empty() } else { PollFlags::POLLIN };
        let mut fds: Vec<PollFd<'_>> = self
            .pending
            .iter()
            .map(|caller| PollFd::new(caller.stream.as_fd(), PollFlags::POLLIN))
            .chain([PollFd::new(self.listener.as_fd(), listening)])
            .collect();
        let milliseconds = i32::try_from(wait.as_millis()).unwrap_or(i32::MAX).max(1);
        // An interrupted wait is a short one, and the caller waits again.
        let _ = poll(&mut fds, PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX));
        fds[..self.pending.len()].iter().map(|fd| fd.any().unwrap_or(true)).collect()
    }

    fn accept(
        &mut self,
        admitted: &mut Vec<(TcpStream, Hello)>,
        accepts: &mut impl FnMut(&Hello) -> Result<(), Refusal>,
    ) {
        for _ in 0..ACCEPT_BATCH {
            if self.pause.is_some() {
                return;
            }
            match self.listener.accept() {
                Ok((stream, _)) => {
                    if stream.set_nonblocking(true).is_ok() {
                        self.pending.push(Pending::new(stream));
                        // What it says is often there already.
                        self.serve(self.pending.len() - 1, admitted, accepts);
                        if !self.pending.make_place() {
                            self.pause = Some(Deadline::after(SHORTEST_STAY));
                        }
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if is_of_the_connection(&error) => {}
                Err(error) => self.out_of_room(&error),
            }
        }
    }

    /// The process or the system has too many open files, or no memory for another connection: half of the strangers
    /// go, and their number stays so. Where there is none, nothing is accepted for a while.
    fn out_of_room(&mut self, error: &io::Error) {
        let gone = self.pending.halve();
        if gone == 0 {
            self.pause = Some(Deadline::after(NO_ROOM_PAUSE));
        }
        self.full += 1;
        if self.full.is_power_of_two() {
            log::warn!(
                "cannot accept connections: {error}; {gone} that had proven nothing were closed, raise the limit of \
                 open files by `ulimit -n`"
            );
        }
    }
}

/// Whether it was the next connection that failed, so that the one after it may be there (accept(2)).
fn is_of_the_connection(error: &io::Error) -> bool {
    use nix::libc::{ECONNABORTED, EHOSTUNREACH, ENETDOWN, ENETUNREACH, EPERM, EPROTO};
    let of_the_connection = [ECONNABORTED, EPERM, EPROTO, ENETDOWN, ENETUNREACH, EHOSTUNREACH];
    error.kind() == ErrorKind::Interrupted
        || error.raw_os_error().is_some_and(|code| of_the_connection.contains(&code))
}

#[cfg(test)]
mod tests {
    use std::{io::Read, net::Ipv4Addr};

    use super::super::call::{call, call_in_attempts};
    use super::super::hello::{CONFIRMATION, PETITION_BYTES, Role};
    use super::super::{dice::Dice, listen};
    use super::*;
    use crate::Error;

    const LIMIT: Duration = Duration::from_secs(20);

    fn identity(rank: usize) -> Identity {
        Identity::new(rank, 2, "job", None)
    }

    fn hello(role: Role) -> Hello {
        Hello::new(identity(1), role, 0).unwrap()
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
            let hello = hello(Role::Data);
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
                let hello = hello(Role::Store);
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

    /// Serves on another thread while `body` runs; how many were let in.
    fn serving(body: impl FnOnce(u16)) -> usize {
        let (listener, port) = listener();
        let done = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| {
                let mut admission = Admission::new(listener, identity(0));
                let mut count = 0;
                while !done.load(std::sync::atomic::Ordering::SeqCst) || !admission.pending.is_empty() {
                    count += admission.admit(Duration::from_millis(5), |_| Ok(())).len();
                }
                count
            });
            body(port);
            done.store(true, std::sync::atomic::Ordering::SeqCst);
            serving.join().unwrap()
        })
    }

    /// A caller that says what `change` makes of the right words, and then waits for the end of the connection.
    fn say(port: u16, change: impl Fn(&mut Vec<u8>, usize)) {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let mut opening = Opening::call().unwrap();
        let mut greeting = opening.caller_greeting().to_vec();
        change(&mut greeting, 0);
        let _ = io::Write::write_all(&mut stream, &greeting);
        if greeting.len() < GREETING_BYTES {
            return;
        }
        let mut reply = [0; GREETING_BYTES];
        if stream.read_exact(&mut reply).is_ok() && opening.hear(&reply).is_ok() {
            let mut petition = opening.petition(&hello(Role::Data)).to_vec();
            petition.extend(CONFIRMATION);
            change(&mut petition, GREETING_BYTES);
            let _ = io::Write::write_all(&mut stream, &petition);
            let _ = stream.shutdown(std::net::Shutdown::Write);
        }
        let end = stream.read_to_end(&mut Vec::new());
        assert!(
            !end.is_err_and(|error| error.kind() == ErrorKind::WouldBlock),
            "the callee keeps a stranger"
        );
    }

    const ALL_BYTES: usize = GREETING_BYTES + PETITION_BYTES + CONFIRMATION.len();

    #[test]
    fn of_all_ways_to_change_or_cut_a_right_opening_none_lets_a_stranger_in() {
        let start = std::time::Instant::now();
        let count = serving(|port| {
            for bit in 0..8 * (ALL_BYTES - CONFIRMATION.len()) {
                say(port, |bytes, from| {
                    if let Some(byte) = (bit / 8).checked_sub(from).and_then(|at| bytes.get_mut(at)) {
                        *byte ^= 1 << (bit % 8);
                    }
                });
            }
            for end in 0..ALL_BYTES {
                say(port, |bytes, from| bytes.truncate(end.saturating_sub(from)));
            }
        });
        assert_eq!(count, 0);
        assert!(start.elapsed() < LIMIT, "some of the strangers were waited for");
        assert_eq!(serving(|port| say(port, |_, _| ())), 1, "the words without a change are the right ones");
    }

    #[test]
    fn random_bytes_of_any_length_are_refused() {
        let mut dice = Dice::new();
        let count = serving(|port| {
            for _ in 0..500 {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
                let bytes: Vec<u8> = (0..dice.below(300)).map(|_| dice.below(256) as u8).collect();
                let _ = io::Write::write_all(&mut stream, &bytes);
                let _ = stream.shutdown(std::net::Shutdown::Write);
                stream.set_read_timeout(Some(LIMIT)).unwrap();
                let mut told = Vec::new();
                let _ = stream.read_to_end(&mut told);
                assert!(REFUSED.starts_with(&told), "a stranger learns {told:?}");
            }
        });
        assert_eq!(count, 0);
    }

    #[test]
    fn strangers_never_take_the_place_of_a_rank_that_has_proven_itself() {
        let (listener, port) = listener();
        let mut admission = Admission::new(listener, identity(0));
        admission.pending.most = 4;
        let mut rank = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut opening = Opening::call().unwrap();
        let mut exchange = |bytes: &[u8], reply: &mut [u8], admission: &mut Admission| {
            io::Write::write_all(&mut rank, bytes).unwrap();
            admission.admit(Duration::from_millis(50), |_| Ok(()));
            rank.read_exact(reply).unwrap();
        };
        let (mut greeting, mut answer) = ([0; GREETING_BYTES], [0; super::super::hello::ANSWER_BYTES]);
        exchange(opening.caller_greeting(), &mut greeting, &mut admission);
        opening.hear(&greeting).unwrap();
        exchange(&opening.petition(&hello(Role::Data)), &mut answer, &mut admission);
        let strangers: Vec<_> = (0..200)
            .map(|_| {
                let stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
                assert!(admission.admit(Duration::from_millis(1), |_| Ok(())).is_empty());
                assert!(admission.pending.strangers() <= 5, "{}", admission.pending.strangers());
                stream
            })
            .collect();
        io::Write::write_all(&mut rank, &CONFIRMATION).unwrap();
        assert_eq!(admit_one(&mut admission).1.identity.rank, 1);
        drop(strangers);
    }
}
