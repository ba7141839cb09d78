//! What the ranks and the hub of a communicator say to each other: a header as JSON, then bytes.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
};

use serde::{Deserialize, Serialize};

/// What one operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Kind {
    AllReduce,
    Reduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    Send,
    Receive,
}

/// An operation, as all ranks must agree on it. `peer` is the root, or the other rank.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shape {
    pub(crate) kind: Kind,
    pub(crate) dtype: i32,
    pub(crate) op: i32,
    pub(crate) peer: usize,
    pub(crate) count: usize,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Message {
    /// A rank comes.
    Hello { rank: usize, ranks: usize, version: i32, gpu: String },
    /// All ranks are there.
    Ready,
    /// They cannot be a communicator.
    Refused { text: String },
    /// A rank has come to an operation; its bytes follow.
    Start { item: usize, shape: Shape },
    /// It is done; the result follows.
    Done { item: usize },
    /// The ranks do not agree.
    Differ { text: String },
    /// A rank leaves as it should.
    Bye,
    /// A rank has gone without a word.
    Lost { rank: usize },
}

pub(crate) fn write(mut socket: &UnixStream, message: &Message, bytes: &[u8]) -> io::Result<()> {
    let header = serde_json::to_vec(message)?;
    socket.write_all(&(header.len() as u64).to_le_bytes())?;
    socket.write_all(&(bytes.len() as u64).to_le_bytes())?;
    socket.write_all(&header)?;
    socket.write_all(bytes)
}

pub(crate) fn read(mut socket: &UnixStream) -> io::Result<(Message, Vec<u8>)> {
    let mut lengths = [[0; 8]; 2];
    socket.read_exact(lengths.as_flattened_mut())?;
    let [header, bytes] = lengths.map(u64::from_le_bytes);
    let (mut header, mut bytes) = (vec![0; header as usize], vec![0; bytes as usize]);
    socket.read_exact(&mut header)?;
    socket.read_exact(&mut bytes)?;
    Ok((serde_json::from_slice(&header)?, bytes))
}
