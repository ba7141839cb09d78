use super::protocol::MAX_MESSAGE_BYTES;
use nix::{
    errno::Errno,
    sys::socket::{MsgFlags, recv},
};
use serde::{Serialize, de::DeserializeOwned};
use socket2::{Domain, Socket, Type};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::Shutdown,
    os::fd::{AsFd, AsRawFd, BorrowedFd},
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// A peer that takes nothing for this long is lost; messages are small, so that the system's buffers hold them.
const SEND_LIMIT: Duration = Duration::from_secs(5);

/// Bytes of the length before each message.
const LENGTH_BYTES: usize = 4;

/// What one call takes from a peer at most, so that one that floods does not keep the others waiting.
const CHUNK_BYTES: usize = 64 << 10;

/// What somebody else says, without the characters by which it could change what the terminal shows.
pub(super) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_control() {
            shown.extend(character.escape_default());
        } else {
            shown.push(character);
        }
    }
    shown
}

/// Messages over a stream socket: a length of 4 bytes, little endian, and that many bytes of JSON.
pub(super) struct Wire {
    sender: Sender,
    reader: Socket,
    unread: Vec<u8>,
    limit: usize,
    /// The peer has closed its end, or the connection is broken.
    closed: Option<String>,
}

/// The end that several threads may write to.
#[derive(Clone)]
pub(super) struct Sender(Arc<Mutex<Socket>>);

impl Sender {
    pub(super) fn send(&self, message: &impl Serialize) -> io::Result<()> {
        let body = serde_json::to_vec(message)?;
        // In one piece, so that two threads' messages do not mix.
        let mut socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if body.len() > MAX_MESSAGE_BYTES {
            // The peer would refuse it, and would wait for it if it were left out.
            let _ = socket.shutdown(Shutdown::Both);
            return Err(io::Error::other(format!(
                "a message of {} bytes, at most {MAX_MESSAGE_BYTES}",
                body.len()
            )));
        }
        let frame = [&(body.len() as u32).to_le_bytes()[..], &body].concat();
        socket.write_all(&frame)
    }
}

impl Wire {
    /// Speaks over `socket` and takes messages of at most `limit` bytes.
    pub(super) fn new(socket: Socket, limit: usize) -> io::Result<Self> {
        socket.set_nonblocking(false)?;
        socket.set_write_timeout(Some(SEND_LIMIT))?;
        if !socket.local_addr()?.is_unix() {
            socket.set_tcp_nodelay(true)?;
        }
        let sender = Sender(Arc::new(Mutex::new(socket.try_clone()?)));
        Ok(Self { sender, reader: socket, unread: Vec::new(), limit, closed: None })
    }

    /// A connection within this process.
    pub(super) fn pair(limit: usize) -> io::Result<(Self, Self)> {
        let (one, other) = Socket::pair(Domain::UNIX, Type::STREAM, None)?;
        Ok((Self::new(one, limit)?, Self::new(other, limit)?))
    }

    /// From now on messages may be this long.
    pub(super) fn allow(&mut self, limit: usize) {
        self.limit = limit;
    }

    pub(super) fn sender(&self) -> Sender {
        self.sender.clone()
    }

    pub(super) fn send(&self, message: &impl Serialize) -> io::Result<()> {
        self.sender.send(message)
    }

    /// Says that nothing more will be sent.
    pub(super) fn shutdown(&self) {
        // Fails only where the connection is gone already.
        let _ = self.reader.shutdown(Shutdown::Write);
    }

    /// Why nothing more will come, once all that came has been taken.
    pub(super) fn closed(&self) -> Option<&str> {
        self.closed.as_deref()
    }

    /// The next message, which must come within `limit`.
    #[cfg(test)]
    pub(super) fn wait<T: DeserializeOwned>(&mut self, limit: Duration) -> io::Result<T> {
        self.wait_at_most(limit)?.ok_or_else(|| io::Error::other("no answer"))
    }

    /// Reads what has arrived without waiting for more. Returns whether anything has.
    pub(super) fn fill(&mut self) -> bool {
        let before = self.unread.len();
        let mut chunk = [0; CHUNK_BYTES];
        while self.closed.is_none() && self.unread.len() < before + CHUNK_BYTES {
            match recv(self.reader.as_raw_fd(), &mut chunk, MsgFlags::MSG_DONTWAIT) {
                Ok(0) => self.closed = Some("it closed the connection".to_owned()),
                Ok(count) => self.unread.extend_from_slice(&chunk[..count]),
                Err(Errno::EAGAIN) => break,
                Err(Errno::EINTR) => {}
                Err(error) => self.closed = Some(io::Error::from(error).to_string()),
            }
        }
        self.unread.len() > before
    }

    /// The next whole message. One that is too long or makes no sense closes the connection.
    pub(super) fn take<T: DeserializeOwned>(&mut self) -> Option<T> {
        match self.decode() {
            Ok(message) => message,
            Err(error) => {
                self.unread.clear();
                self.closed =
                    Some(format!("what it sent is not burnrun's: {}", printable(&error.to_string())));
                None
            }
        }
    }

    fn decode<T: DeserializeOwned>(&mut self) -> io::Result<Option<T>> {
        let Some((length, rest)) = self.unread.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > self.limit {
            return Err(io::Error::other(format!("a message of {length} bytes, at most {}", self.limit)));
        }
        if rest.len() < length {
            return Ok(None);
        }
        let message = serde_json::from_slice(&rest[..length])?;
        self.unread.drain(..LENGTH_BYTES + length);
        Ok(Some(message))
    }

    /// Waits for the next message; `None` where it has not come within `limit`.
    pub(super) fn wait_at_most<T: DeserializeOwned>(&mut self, limit: Duration) -> io::Result<Option<T>> {
        let until = Instant::now() + limit;
        loop {
            if let Some(message) = self.take() {
                return Ok(Some(message));
            }
            if let Some(why) = &self.closed {
                return Err(io::Error::other(why.clone()));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.reader.set_read_timeout(Some(left))?;
            let mut chunk = [0; 4096];
            match self.reader.read(&mut chunk) {
                Ok(0) => self.closed = Some("it closed the connection".to_owned()),
                Ok(count) => self.unread.extend_from_slice(&chunk[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for Wire {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.reader.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(limit: usize) -> (Wire, Wire) {
        Wire::pair(limit).expect("a pair of sockets")
    }

    #[test]
    fn messages_arrive_whole_and_in_order() {
        let (one, mut other) = pair(1 << 20);
        let long = "x".repeat(100_000);
        one.send(&"first").expect("sent");
        one.send(&long).expect("sent");
        drop(one);
        assert_eq!(other.wait::<String>(SEND_LIMIT).expect("a message"), "first");
        assert_eq!(other.wait::<String>(SEND_LIMIT).expect("a message"), long);
        assert!(other.wait::<String>(SEND_LIMIT).is_err_and(|error| error.to_string().contains("closed")));
    }

    #[test]
    fn what_a_stranger_says_cannot_write_to_the_terminal() {
        assert_eq!(printable("wörds\x1b[2J\r\n\u{9b}"), "wörds\\u{1b}[2J\\r\\n\\u{9b}");
        #[derive(Debug, serde::Deserialize)]
        enum Known {}
        let (one, mut other) = pair(100);
        one.send(&"\x1b[2J").expect("sent");
        assert!(other.fill() && other.take::<Known>().is_none());
        assert!(other.closed().is_some_and(|why| !why.contains('\x1b')), "{:?}", other.closed());
    }

    #[test]
    fn a_message_beyond_the_limit_is_refused_before_its_bytes_have_come() {
        let (one, mut other) = pair(100);
        one.sender.0.lock().expect("a lock").write_all(&u32::MAX.to_le_bytes()).expect("written");
        assert!(other.fill());
        assert_eq!(other.take::<String>(), None);
        assert!(other.closed().is_some_and(|why| why.contains("at most 100")), "{:?}", other.closed());
    }

    #[test]
    fn a_message_that_nobody_would_take_is_not_sent_and_not_waited_for() {
        let (one, mut other) = pair(MAX_MESSAGE_BYTES);
        let error = one.send(&"x".repeat(MAX_MESSAGE_BYTES)).expect_err("too long");
        assert!(error.to_string().contains("at most"), "{error}");
        assert!(other.wait::<String>(SEND_LIMIT).is_err_and(|error| error.to_string().contains("closed")));
    }

    #[test]
    fn what_is_not_json_closes_the_connection_and_silence_ends_at_the_limit() {
        let (one, mut other) = pair(100);
        let error = other.wait::<String>(Duration::from_millis(50)).expect_err("silence");
        assert!(error.to_string().contains("no answer"), "{error}");
        one.sender.0.lock().expect("a lock").write_all(b"\x02\0\0\0hi").expect("written");
        assert!(other.wait::<String>(SEND_LIMIT).is_err_and(|error| error.to_string().contains("burnrun's")));
    }
}
