use super::{
    admission::{Stage, Stranger},
    protocol::Hello,
    wire::Wire,
};
use crate::rendezvous::Secret;
use nix::{
    errno::Errno,
    sys::resource::{Resource, getrlimit},
};
use socket2::Socket;
use std::{
    io,
    os::fd::BorrowedFd,
    time::{Duration, Instant},
};

/// Connections that have not proved themselves. With more than these one has to go, chosen by chance and rather one that
/// has not greeted, so that a flood of strangers can neither keep out who comes after it nor push out who is to be admitted.
const MAX_STRANGERS: usize = 512;

/// The share of the open files that strangers may take, with two for each.
const STRANGERS_SHARE: u64 = 8;

/// How many strangers are looked at to find one that goes.
const CANDIDATES: usize = 8;

/// Time in which nobody is let in where the system has no descriptor left: looking again at once would find the same.
pub(super) const DEAF: Duration = Duration::from_millis(100);

/// Connections that are taken in one turn, so that a flood does not keep the nodes waiting.
const MAX_ACCEPTED: usize = 16;

/// The connections that have not been admitted, in no order.
#[derive(Default)]
pub(super) struct Strangers {
    all: Vec<Stranger>,
    /// Until when nobody is let in.
    deaf_until: Option<Instant>,
}

impl Strangers {
    /// Whether somebody can be let in, as far as is known.
    pub(super) fn is_open(&self) -> bool {
        self.deaf_until.is_none()
    }

    pub(super) fn fds(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.all.iter().map(Stranger::fd)
    }

    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// Reads what they say. Returns those who have proved that they belong to the job.
    pub(super) fn advance(&mut self, secret: Option<&Secret>, now: Instant) -> Vec<(Wire, Hello)> {
        let mut proved = Vec::new();
        for stranger in std::mem::take(&mut self.all) {
            match stranger.advance(secret, now) {
                Stage::Stranger(stranger) => self.all.push(stranger),
                Stage::Proved(wire, hello) => proved.push((wire, hello)),
                Stage::Gone => {}
            }
        }
        proved
    }

    /// Takes new connections.
    pub(super) fn accept(&mut self, listener: &Socket, silence: Duration, now: Instant) {
        self.deaf_until = self.deaf_until.filter(|until| now < *until);
        if self.deaf_until.is_some() {
            return;
        }
        for _ in 0..MAX_ACCEPTED {
            let error = match listener.accept() {
                Ok((socket, _)) => match self.let_in(socket, silence, now) {
                    Ok(()) => continue,
                    Err(error) => error,
                },
                Err(error) => error,
            };
            match error.raw_os_error().map(Errno::from_raw) {
                Some(Errno::EAGAIN) => return,
                Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOBUFS | Errno::ENOMEM) => {
                    self.send_one_away();
                    self.deaf_until = Some(now + DEAF);
                    return;
                }
                // This one has gone already.
                _ => {}
            }
        }
    }

    fn let_in(&mut self, socket: Socket, silence: Duration, now: Instant) -> io::Result<()> {
        #[cfg(not(target_os = "linux"))]
        let _ = silence;
        #[cfg(target_os = "linux")]
        let _ = socket.set_tcp_user_timeout(Some(silence));
        let stranger = Stranger::new(socket, now)?;
        if self.all.len() >= room_for_strangers() {
            self.send_one_away();
        }
        self.all.push(stranger);
        Ok(())
    }

    fn send_one_away(&mut self) {
        // Without a random source nobody can be challenged either.
        let by_chance = |_| getrandom::u64().map_or(0, |number| number as usize);
        let mut candidates =
            (0..CANDIDATES).map(by_chance).filter_map(|number| number.checked_rem(self.all.len()));
        let first = candidates.next();
        let silent = first.into_iter().chain(candidates).find(|at| !self.all[*at].has_greeted());
        if let Some(at) = silent.or(first) {
            self.all.swap_remove(at);
        }
    }
}

/// How many strangers may be there, as far as the limit of open files allows.
fn room_for_strangers() -> usize {
    let files = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    usize::try_from(files / STRANGERS_SHARE).map_or(MAX_STRANGERS, |room| room.clamp(1, MAX_STRANGERS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rendezvous::listen;
    use std::net::{Ipv4Addr, TcpStream};

    #[test]
    fn a_flood_takes_no_more_than_its_room_and_the_last_to_come_is_let_in() {
        let listener = listen(Ipv4Addr::LOCALHOST.into(), 0).expect("a port");
        let address = listener.local_addr().expect("bound");
        let (listener, mut strangers) = (Socket::from(listener), Strangers::default());
        let room = room_for_strangers();
        let mut callers = Vec::new();
        while callers.len() < room + MAX_ACCEPTED {
            callers.push(TcpStream::connect(address).expect("connected"));
            strangers.accept(&listener, Duration::from_secs(10), Instant::now());
        }
        strangers.accept(&listener, Duration::from_secs(10), Instant::now());
        assert_eq!(strangers.all.len(), room);
        assert!(strangers.is_open());
    }
}
