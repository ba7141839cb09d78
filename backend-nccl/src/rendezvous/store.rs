//! The client side of the store, and its messages.

use std::{
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use super::{
    call::call,
    hello::{Hello, Identity, Role},
};
use crate::{Error, Result, deadline::Deadline};

/// The longest key, or list of keys, in bytes.
const MAX_KEY_BYTES: usize = 1 << 20;
/// The longest value in bytes.
const MAX_VALUE_BYTES: usize = 4 << 20;
/// How much later than the server a client gives up: the server's answer names what is missing.
const ANSWER_GRACE: Duration = Duration::from_secs(2);
/// Separates keys in one message, so a key must not contain it.
const SEPARATOR: char = '\n';

/// A key-value store that all ranks of a job share, served by rank 0. Every call has a deadline.
#[derive(Debug)]
pub(crate) struct Store {
    stream: Mutex<TcpStream>,
}

impl Store {
    /// Connects to the store that rank 0 serves at `host:port`, trying until the deadline.
    pub(crate) fn connect(host: &str, port: u16, identity: Identity, deadline: Deadline) -> Result<Self> {
        let hello = Hello::new(identity, Role::Store, 0)?;
        let stream = call((host, port), "the rendezvous store of rank 0", &hello, deadline)?;
        Ok(Self { stream: Mutex::new(stream) })
    }

    /// This side's and the server's address on the connection.
    pub(crate) fn addresses(&self) -> io::Result<(std::net::SocketAddr, std::net::SocketAddr)> {
        let stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((stream.local_addr()?, stream.peer_addr()?))
    }

    /// Sets a key, replacing its value.
    pub(crate) fn set(&self, key: &str, value: &[u8], deadline: Deadline) -> Result<()> {
        self.value("set", key, Request::Set { key: key.into(), value: value.into() }, deadline).map(|_| ())
    }

    /// Waits for a key and returns its value.
    pub(crate) fn get(&self, key: &str, deadline: Deadline) -> Result<Vec<u8>> {
        self.value("get", key, Request::Get { key: key.into(), limit: deadline.remaining() }, deadline)
    }

    /// Waits for all keys; returns those that were not set in time, none if all were.
    pub(crate) fn wait(&self, keys: &[String], deadline: Deadline) -> Result<Vec<String>> {
        let request = Request::Wait { keys: keys.to_vec(), limit: deadline.remaining() };
        match self.ask("wait for", &keys.join(", "), request, deadline)? {
            Reply::Value(_) => Ok(Vec::new()),
            Reply::Missing(missing) => Ok(missing),
            Reply::Bad(reason) => Err(failed("wait for", &keys.join(", "), &reason)),
        }
    }

    fn value(&self, name: &'static str, key: &str, request: Request, deadline: Deadline) -> Result<Vec<u8>> {
        match self.ask(name, key, request, deadline)? {
            Reply::Value(value) => Ok(value),
            Reply::Missing(_) => {
                Err(failed(name, key, &format!("no rank has set it within {:.1?}", deadline.elapsed())))
            }
            Reply::Bad(reason) => Err(failed(name, key, &reason)),
        }
    }

    fn ask(&self, name: &'static str, key: &str, request: Request, deadline: Deadline) -> Result<Reply> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let limit = deadline.remaining().saturating_add(ANSWER_GRACE);
        let mut exchange = || {
            stream.set_read_timeout(Some(limit))?;
            request.write(&mut *stream)?;
            Reply::read(&mut *stream)
        };
        exchange().map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => failed(name, key, "rank 0 closed the connection"),
            ErrorKind::WouldBlock => failed(name, key, "rank 0 does not answer"),
            _ => failed(name, key, &error.to_string()),
        })
    }
}

fn failed(request: &'static str, key: &str, reason: &str) -> Error {
    Error::Store { request, key: key.to_owned(), reason: reason.to_owned() }
}

/// What a client asks.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    Set { key: String, value: Vec<u8> },
    Get { key: String, limit: Duration },
    Wait { keys: Vec<String>, limit: Duration },
}

/// What the server answers.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Reply {
    Value(Vec<u8>),
    /// The keys that are not set, when the time is up or the server closes.
    Missing(Vec<String>),
    Bad(String),
}

impl Request {
    fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        let milliseconds = |limit: &Duration| (limit.as_millis() as u64).to_le_bytes().to_vec();
        let (kind, key, value) = match self {
            Self::Set { key, value } => (0, key.clone(), value.clone()),
            Self::Get { key, limit } => (1, key.clone(), milliseconds(limit)),
            Self::Wait { keys, limit } => (2, join(keys), milliseconds(limit)),
        };
        write_message(stream, kind, key.as_bytes(), &value)
    }

    pub(super) fn read(stream: &mut impl Read) -> io::Result<Self> {
        let (kind, key, value) = read_message(stream)?;
        let key = text(key)?;
        if kind == 0 {
            return Ok(Self::Set { key, value });
        }
        let number: [u8; 8] = value.try_into().map_err(|_| bad("a number of the wrong size"))?;
        let limit = Duration::from_millis(u64::from_le_bytes(number));
        match kind {
            1 => Ok(Self::Get { key, limit }),
            2 => Ok(Self::Wait { keys: split(&key), limit }),
            _ => Err(bad("an unknown request")),
        }
    }
}

impl Reply {
    pub(super) fn write(&self, stream: &mut impl Write) -> io::Result<()> {
        match self {
            Self::Value(value) => write_message(stream, 0, &[], value),
            Self::Missing(keys) => write_message(stream, 1, join(keys).as_bytes(), &[]),
            Self::Bad(reason) => write_message(stream, 2, reason.as_bytes(), &[]),
        }
    }

    fn read(stream: &mut impl Read) -> io::Result<Self> {
        let (kind, key, value) = read_message(stream)?;
        match kind {
            0 => Ok(Self::Value(value)),
            1 => Ok(Self::Missing(split(&text(key)?))),
            2 => Ok(Self::Bad(text(key)?)),
            _ => Err(bad("an unknown answer")),
        }
    }
}

/// A message: kind, lengths of key and value, key, value.
fn write_message(stream: &mut impl Write, kind: u8, key: &[u8], value: &[u8]) -> io::Result<()> {
    if key.len() > MAX_KEY_BYTES || value.len() > MAX_VALUE_BYTES {
        return Err(bad("the key or the value is too long"));
    }
    let mut message = Vec::with_capacity(9 + key.len() + value.len());
    message.push(kind);
    message.extend_from_slice(&(key.len() as u32).to_le_bytes());
    message.extend_from_slice(&(value.len() as u32).to_le_bytes());
    message.extend_from_slice(key);
    message.extend_from_slice(value);
    stream.write_all(&message)
}

fn read_message(stream: &mut impl Read) -> io::Result<(u8, Vec<u8>, Vec<u8>)> {
    let mut head = [0; 9];
    stream.read_exact(&mut head)?;
    let length = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes")) as usize;
    let (key_bytes, value_bytes) = (length(1), length(5));
    if key_bytes > MAX_KEY_BYTES || value_bytes > MAX_VALUE_BYTES {
        return Err(bad("a message that claims to be too long"));
    }
    Ok((head[0], read_bytes(stream, key_bytes)?, read_bytes(stream, value_bytes)?))
}

/// Reads so many bytes into memory that grows as they come, so that a mere claim costs nothing.
fn read_bytes(stream: &mut impl Read, count: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    if stream.take(count as u64).read_to_end(&mut bytes)? < count {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(bytes)
}

fn join(keys: &[String]) -> String {
    keys.join(&SEPARATOR.to_string())
}

fn split(keys: &str) -> Vec<String> {
    keys.split(SEPARATOR).filter(|key| !key.is_empty()).map(str::to_owned).collect()
}

fn text(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes).map_err(|_| bad("a key that is not UTF-8"))
}

fn bad(what: &'static str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_replies_read_back_as_they_were_written() {
        let limit = Duration::from_millis(1234);
        for request in [
            Request::Set { key: "a".into(), value: vec![1, 2, 3] },
            Request::Get { key: "ä".into(), limit },
            Request::Wait { keys: vec!["a".into(), "b".into()], limit },
        ] {
            let mut bytes = Vec::new();
            request.write(&mut bytes).unwrap();
            assert_eq!(Request::read(&mut bytes.as_slice()).unwrap(), request);
        }
        for reply in
            [Reply::Value(vec![9]), Reply::Missing(vec!["a".into(), "b".into()]), Reply::Bad("no".into())]
        {
            let mut bytes = Vec::new();
            reply.write(&mut bytes).unwrap();
            assert_eq!(Reply::read(&mut bytes.as_slice()).unwrap(), reply);
        }
    }

    #[test]
    fn a_message_that_claims_four_gigabytes_is_refused_before_any_allocation() {
        let mut bytes = vec![0];
        bytes.extend_from_slice(&u32::MAX.to_le_bytes());
        bytes.extend_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(Request::read(&mut bytes.as_slice()).unwrap_err().kind(), ErrorKind::InvalidData);
    }
}
