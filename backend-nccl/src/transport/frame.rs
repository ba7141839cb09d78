//! The wire format of data connections: the header of each collective or message.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{DType, ReduceOp};
/// Bytes of a collective's header.
pub(crate) const HEADER_BYTES: usize = 32;

const HEADER_MAGIC: [u8; 4] = *b"BNc1";
const NO_REDUCTION: u8 = u8::MAX;

/// The kinds of collectives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum OpKind {
    AllReduce,
    Broadcast,
    AllGather,
    ReduceScatter,
    Barrier,
    Gather,
    Scatter,
    AllToAll,
    /// A message between two ranks.
    Message,
}

impl OpKind {
    /// Every kind, in the order of its number on the wire.
    pub const ALL: [Self; 9] = [
        Self::AllReduce,
        Self::Broadcast,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Barrier,
        Self::Gather,
        Self::Scatter,
        Self::AllToAll,
        Self::Message,
    ];

    /// The name of the method that makes the call.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Barrier => "barrier",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllToAll => "all_to_all",
            Self::Message => "message",
        }
    }
}

impl fmt::Display for OpKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What a rank called: the fingerprint that all ranks must share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signature {
    /// The place in the order of collectives, from 1.
    pub sequence: u64,
    /// The collective.
    pub kind: OpKind,
    /// The element type.
    pub dtype: DType,
    /// The reduction, where there is one.
    pub op: Option<ReduceOp>,
    /// The root, 0 where there is none.
    pub root: u32,
    /// The bytes that each rank gives (all-reduce, broadcast, all-gather) or keeps (reduce-scatter).
    pub bytes: u64,
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{}", self.kind, self.sequence)?;
        if self.kind == OpKind::Barrier {
            return Ok(());
        }
        f.write_str(" (")?;
        if let Some(op) = self.op {
            write!(f, "{op} of ")?;
        }
        write!(f, "{} bytes of {}", self.bytes, self.dtype)?;
        match self.kind {
            OpKind::Broadcast | OpKind::Scatter | OpKind::Message => write!(f, " from rank {}", self.root)?,
            OpKind::Gather => write!(f, " to rank {}", self.root)?,
            _ => {}
        }
        f.write_str(")")
    }
}

impl Signature {
    /// The header for a group whose members know it by `tag`.
    pub(crate) fn encode(&self, tag: u32) -> [u8; HEADER_BYTES] {
        let mut header = [0; HEADER_BYTES];
        header[0..4].copy_from_slice(&HEADER_MAGIC);
        header[4..8].copy_from_slice(&tag.to_le_bytes());
        header[8..16].copy_from_slice(&self.sequence.to_le_bytes());
        header[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        header[24..28].copy_from_slice(&self.root.to_le_bytes());
        header[28] = number(&OpKind::ALL, &self.kind);
        header[29] = number(&DType::ALL, &self.dtype);
        header[30] = self.op.map_or(NO_REDUCTION, |op| number(&ReduceOp::ALL, &op));
        header
    }

    /// Reads a header, or says what is wrong with it.
    pub(crate) fn decode(header: &[u8; HEADER_BYTES], tag: u32) -> Result<Self, String> {
        if header[0..4] != HEADER_MAGIC {
            return Err(format!("no header where one was due: {:02x?}", &header[0..4]));
        }
        let found = u32_at(header, 4);
        if found != tag {
            return Err(format!("the header is of group {found:08x}, this is {tag:08x}"));
        }
        let unknown = |what: &str, number: u8| format!("unknown {what} {number}");
        Ok(Self {
            sequence: u64_at(header, 8),
            bytes: u64_at(header, 16),
            root: u32_at(header, 24),
            kind: *OpKind::ALL.get(header[28] as usize).ok_or_else(|| unknown("collective", header[28]))?,
            dtype: *DType::ALL.get(header[29] as usize).ok_or_else(|| unknown("type", header[29]))?,
            op: match header[30] {
                NO_REDUCTION => None,
                n => Some(*ReduceOp::ALL.get(n as usize).ok_or_else(|| unknown("reduction", n))?),
            },
        })
    }
}

fn number<T: PartialEq>(all: &[T], one: &T) -> u8 {
    all.iter().position(|other| other == one).expect("ALL lists every variant") as u8
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIGNATURE: Signature = Signature {
        sequence: 7,
        kind: OpKind::ReduceScatter,
        dtype: DType::BF16,
        op: Some(ReduceOp::Mean),
        root: 3,
        bytes: 1 << 40,
    };

    #[test]
    fn a_header_reads_back_as_it_was_written() {
        assert_eq!(Signature::decode(&SIGNATURE.encode(9), 9), Ok(SIGNATURE));
    }

    #[test]
    fn a_header_of_another_group_or_of_garbage_is_an_error_and_no_panic() {
        assert!(Signature::decode(&SIGNATURE.encode(9), 8).unwrap_err().contains("group 00000009"));
        for (at, value) in [(0, b'X'), (28, 9), (29, 200), (30, 77)] {
            let mut header = SIGNATURE.encode(9);
            header[at] = value;
            assert!(Signature::decode(&header, 9).is_err(), "byte {at}");
        }
    }
}
