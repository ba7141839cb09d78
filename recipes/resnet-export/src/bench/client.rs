//! An HTTP client of a few lines: one connection, one request at a time.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Of an answer's head and of its body, in bytes.
const MAX_HEAD: u64 = 64 << 10;
const MAX_BODY: u64 = 64 << 20;

/// A connection that is kept from request to request.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    /// Names in lower case.
    pub(crate) headers: Vec<(String, String)>,
    pub(crate) body: Vec<u8>,
}

impl Reply {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }
}

impl Client {
    /// Connects; each wait ends after `timeout`.
    pub(crate) fn open(address: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, timeout)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_write_timeout(Some(timeout))?;
        Ok(Self { stream: BufReader::new(stream) })
    }

    /// Sends a request and reads the answer.
    pub(crate) fn send(
        &mut self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> io::Result<Reply> {
        let mut head =
            format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n", body.len());
        headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        head.push_str("\r\n");
        self.write(&[head.as_bytes(), body].concat())?;
        self.read()
    }

    /// Sends bytes that may be no request at all.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.get_mut().write_all(bytes)
    }

    /// Reads an answer that has a `Content-Length`, or none and no body.
    pub(crate) fn read(&mut self) -> io::Result<Reply> {
        let mut head = (&mut self.stream).take(MAX_HEAD);
        let mut line = || -> io::Result<String> {
            let mut line = String::new();
            match head.read_line(&mut line)? {
                0 => Err(ErrorKind::UnexpectedEof.into()),
                _ => Ok(line.trim_end().to_owned()),
            }
        };
        let status =
            line()?.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or(ErrorKind::InvalidData)?;
        let mut headers = Vec::new();
        loop {
            let line = line()?;
            match line.split_once(':') {
                Some((name, value)) => headers.push((name.to_ascii_lowercase(), value.trim().to_owned())),
                None if line.is_empty() => break,
                None => return Err(ErrorKind::InvalidData.into()),
            }
        }
        let mut reply = Reply { status, headers, body: Vec::new() };
        let length = reply.header("content-length").map_or(Ok(0), str::parse::<u64>);
        let length = length.ok().filter(|length| *length <= MAX_BODY).ok_or(ErrorKind::InvalidData)?;
        (&mut self.stream).take(length).read_to_end(&mut reply.body)?;
        if reply.body.len() as u64 != length {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        Ok(reply)
    }
}
