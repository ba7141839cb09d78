//! One control connection.

use std::{
    io::{self, ErrorKind, Read as _, Write},
    net::TcpStream,
    os::fd::AsFd,
    sync::{Mutex, PoisonError},
};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use crate::deadline::Deadline;

/// The control connection to one peer.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) rank: usize,
    pub(super) stream: TcpStream,
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
    pub(super) fn new(rank: usize, stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        Ok(Self { rank, stream, writing: Mutex::new(()) })
    }

    pub(super) fn read(&self) -> Read {
        let mut bytes = [0; 4096];
        loop {
            return match (&self.stream).read(&mut bytes) {
                Ok(0) => Read::End("its connection ended".to_owned()),
                Ok(count) => Read::Bytes(bytes[..count].to_vec()),
                Err(error) if error.kind() == ErrorKind::WouldBlock => Read::Nothing,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => Read::End(error.to_string()),
            };
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
