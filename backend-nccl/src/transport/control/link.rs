//! One control connection.

use std::{
    io::{self, ErrorKind, Read as _, Write},
    net::TcpStream,
    os::fd::AsFd,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use socket2::{SockRef, TcpKeepalive};

use crate::deadline::Deadline;

/// The shortest time after which a host counts as gone: the system counts heartbeats in whole seconds.
const SHORTEST_HOST_TIMEOUT: Duration = Duration::from_secs(2);
/// Heartbeats within a host's time, so that some may be lost on the way.
const HEARTBEATS: u32 = 5;

/// The control connection to one peer.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) rank: usize,
    pub(super) stream: TcpStream,
    host_timeout: Duration,
    /// Frames of several threads must not mix.
    writing: Mutex<()>,
}

/// What a look at a connection finds.
pub(super) enum Read {
    Nothing,
    Bytes(Vec<u8>),
    /// The connection has ended, in the system's words.
    End(String),
}

impl Link {
    /// Takes over the connection to a rank, whose host is lost when nothing comes from it for `host_timeout`.
    pub(super) fn new(rank: usize, stream: TcpStream, host_timeout: Duration) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        let host_timeout = host_timeout.max(SHORTEST_HOST_TIMEOUT);
        keep_alive(&stream, host_timeout)?;
        Ok(Self { rank, stream, host_timeout, writing: Mutex::new(()) })
    }

    pub(super) fn read(&self) -> Read {
        let mut bytes = [0; 4096];
        loop {
            return match (&self.stream).read(&mut bytes) {
                Ok(0) => Read::End("its connection ended".to_owned()),
                Ok(count) => Read::Bytes(bytes[..count].to_vec()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => Read::Nothing,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Read::End(self.reason(&error)),
            };
        }
    }

    /// What the end of the connection means.
    fn reason(&self, error: &io::Error) -> String {
        match error.kind() {
            ErrorKind::TimedOut | ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => {
                format!("its host has not answered for {:.0?}", self.host_timeout)
            }
            _ => error.to_string(),
        }
    }

    /// Sends a whole frame by the deadline.
    pub(super) fn send(&self, mut frame: &[u8], deadline: Deadline) -> io::Result<()> {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        while !frame.is_empty() {
            match (&self.stream).write(frame) {
                Ok(count) => frame = &frame[count..],
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && !deadline.expired() => {
                    let mut fds = [PollFd::new(self.stream.as_fd(), PollFlags::POLLOUT)];
                    let timeout = PollTimeout::try_from(deadline.poll_milliseconds());
                    let _ = poll(&mut fds, timeout.unwrap_or(PollTimeout::MAX));
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Has the system send heartbeats while nothing else is sent, and end the connection when `host_timeout` passes without
/// an answer: a host that loses its power or its cable closes nothing.
///
/// The heartbeats are TCP's own. They cost no thread, wake nobody up and fill no buffer, and the other host's system
/// answers them even for a process that is stopped: how long that may be is the matter of the call's deadline.
fn keep_alive(stream: &TcpStream, host_timeout: Duration) -> io::Result<()> {
    let interval = (host_timeout / HEARTBEATS).max(Duration::from_secs(1));
    let socket = SockRef::from(stream);
    let keepalive = TcpKeepalive::new().with_time(interval).with_interval(interval);
    socket.set_tcp_keepalive(&keepalive.with_retries(HEARTBEATS - 1))?;
    // Also where bytes are on their way that nobody acknowledges. The end is looked at with each heartbeat, so the last
    // one before the limit must be in time.
    #[cfg(target_os = "linux")]
    socket.set_tcp_user_timeout(Some(host_timeout - interval))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn link(host_timeout: Duration) -> Link {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        Link::new(1, stream, host_timeout).unwrap()
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn heartbeats_are_a_fifth_of_the_hosts_time_apart_and_never_less_than_a_second() {
        let seconds = Duration::from_secs;
        for (given, interval, limit) in [(10, 2, 8), (60, 12, 48), (2, 1, 1), (0, 1, 1)] {
            let link = link(seconds(given));
            let socket = SockRef::from(&link.stream);
            assert!(socket.keepalive().unwrap());
            assert_eq!(socket.tcp_keepalive_time().unwrap(), seconds(interval));
            assert_eq!(socket.tcp_keepalive_interval().unwrap(), seconds(interval));
            assert_eq!(socket.tcp_user_timeout().unwrap(), Some(seconds(limit)));
        }
    }

    #[test]
    fn a_host_that_does_not_answer_is_told_from_one_that_closes() {
        let link = link(Duration::from_secs(10));
        for kind in [ErrorKind::TimedOut, ErrorKind::HostUnreachable] {
            assert_eq!(link.reason(&kind.into()), "its host has not answered for 10s");
        }
        assert_eq!(link.reason(&ErrorKind::ConnectionReset.into()), "connection reset");
    }
}
