//! A connection on its way in.

use std::{
    io::{self, ErrorKind, Read},
    net::TcpStream,
    time::Duration,
};

use super::hello::{CONFIRMATION, GREETING_BYTES, Hello, Opening, PETITION_BYTES};
use crate::deadline::Deadline;

/// How long a connection may take to prove itself, so that a silent stranger does not stay.
const PROOF_LIMIT: Duration = Duration::from_secs(5);
/// How long one that has proven itself may take to confirm. It goes earlier where it closes the connection.
pub(super) const CONFIRMATION_LIMIT: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Pending {
    pub(super) stream: TcpStream,
    pub(super) stage: Stage,
    pub(super) bytes: [u8; PETITION_BYTES],
    pub(super) have: usize,
    pub(super) deadline: Deadline,
}

/// What a connection is about to say.
#[derive(Debug)]
pub(super) enum Stage {
    Greeting,
    Petition(Opening),
    /// It is answered. The caller may be gone: it gives up a callee that is long busy, and calls again.
    Confirmation(Hello),
}

impl Pending {
    pub(super) fn new(stream: TcpStream) -> Self {
        let deadline = Deadline::after(PROOF_LIMIT);
        Self { stream, stage: Stage::Greeting, bytes: [0; PETITION_BYTES], have: 0, deadline }
    }

    pub(super) fn is_stranger(&self) -> bool {
        !matches!(self.stage, Stage::Confirmation(_))
    }

    pub(super) fn has_greeted(&self) -> bool {
        !matches!(self.stage, Stage::Greeting)
    }

    /// Reads what is there; whether the message that is due is complete. What follows the confirmation is left to whom
    /// the connection is for.
    pub(super) fn read(&mut self) -> io::Result<bool> {
        let end = match self.stage {
            Stage::Greeting => GREETING_BYTES,
            Stage::Petition(_) => PETITION_BYTES,
            Stage::Confirmation(_) => CONFIRMATION.len(),
        };
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
