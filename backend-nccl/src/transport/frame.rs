//! The wire format: the header of each collective, and the control frames.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::{DType, ReduceOp};
use crate::failure::Failure;

/// Bytes of a collective's header.
pub(crate) const HEADER_BYTES: usize = 32;
/// Bytes before the payload of a control frame.
pub(crate) const CONTROL_BYTES: usize = 12;
/// The longest payload of a control frame that is accepted; a longer reason is cut before it is sent.
pub(crate) const MAX_CONTROL_PAYLOAD: usize = 64 * 1024;
/// The most bytes of a reason that travel, so that the frame fits even when each is escaped sixfold.
const MAX_REASON_BYTES: usize = 8 * 1024;

const HEADER_MAGIC: [u8; 4] = *b"BNc1";
const CONTROL_MAGIC: [u8; 4] = *b"BNx1";
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
}

impl OpKind {
    /// Every kind, in the order of its number on the wire.
    pub const ALL: [Self; 5] =
        [Self::AllReduce, Self::Broadcast, Self::AllGather, Self::ReduceScatter, Self::Barrier];

    /// The name of the method that makes the call.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Broadcast => "broadcast",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::Barrier => "barrier",
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
        if self.kind == OpKind::Broadcast {
            write!(f, " from rank {}", self.root)?;
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

/// A message beside the data: it must be seen even when the data stream is stuck, so it has a connection of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Control {
    /// The rank leaves on purpose.
    Goodbye,
    /// The group has ended.
    Abort(Abort),
}

/// The end of a group as one rank tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Abort {
    pub(crate) failure: Failure,
    /// The last collective that the sender had finished. A rank that is still in it, or before it, has all it needs
    /// to finish too, and reports the failure in the call where it belongs.
    pub(crate) completed: u64,
}

impl Control {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, payload) = match self {
            Self::Goodbye => (1, Vec::new()),
            Self::Abort(abort) => {
                (2, serde_json::to_vec(&cut_reason(abort)).expect("a failure is plain data"))
            }
        };
        let mut frame = Vec::with_capacity(CONTROL_BYTES + payload.len());
        frame.extend_from_slice(&CONTROL_MAGIC);
        frame.extend_from_slice(&[kind, 0, 0, 0]);
        frame.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        frame.extend_from_slice(&payload);
        frame
    }

    /// Reads the frame at the start of `bytes`; `None` until all of it is there.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Option<Self>, String> {
        let Some(head) = bytes.get(..CONTROL_BYTES) else { return Ok(None) };
        if head[0..4] != CONTROL_MAGIC {
            return Err(format!("no control frame where one was due: {:02x?}", &head[0..4]));
        }
        let length = u32_at(head, 8) as usize;
        if length > MAX_CONTROL_PAYLOAD {
            return Err(format!("a control frame of {length} bytes, the limit is {MAX_CONTROL_PAYLOAD}"));
        }
        let Some(payload) = bytes.get(CONTROL_BYTES..CONTROL_BYTES + length) else { return Ok(None) };
        match head[4] {
            1 => Ok(Some(Self::Goodbye)),
            2 => serde_json::from_slice(payload).map(|f| Some(Self::Abort(f))).map_err(|e| e.to_string()),
            kind => Err(format!("unknown control frame {kind}")),
        }
    }
}

/// Keeps free text within what the receiver accepts.
fn cut_reason(abort: &Abort) -> Abort {
    let mut abort = abort.clone();
    if let Failure::Aborted { reason, .. } = &mut abort.failure
        && reason.len() > MAX_REASON_BYTES
    {
        reason.truncate(reason.floor_char_boundary(MAX_REASON_BYTES));
        reason.push('…');
    }
    abort
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
        for (at, value) in [(0, b'X'), (28, 5), (29, 200), (30, 77)] {
            let mut header = SIGNATURE.encode(9);
            header[at] = value;
            assert!(Signature::decode(&header, 9).is_err(), "byte {at}");
        }
    }

    #[test]
    fn a_control_frame_is_read_only_when_it_is_complete() {
        let control = Control::Abort(Abort { failure: Failure::PeerLeft { rank: 3 }, completed: 9 });
        let frame = control.encode();
        for end in 0..frame.len() {
            assert_eq!(Control::decode(&frame[..end]), Ok(None));
        }
        assert_eq!(Control::decode(&frame), Ok(Some(control)));
    }

    #[test]
    fn a_control_frame_that_claims_too_much_is_refused_before_it_is_read() {
        let mut frame = Control::Goodbye.encode();
        frame[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Control::decode(&frame).unwrap_err().contains("4294967295"));
    }

    #[test]
    fn an_endless_reason_is_cut_to_what_the_receiver_accepts() {
        let reason = "\u{1}ä".repeat(100_000);
        let abort = Abort { failure: Failure::Aborted { rank: 0, reason }, completed: 0 };
        let frame = Control::Abort(abort).encode();
        assert!(frame.len() <= CONTROL_BYTES + MAX_CONTROL_PAYLOAD);
        assert!(matches!(Control::decode(&frame), Ok(Some(Control::Abort(_)))));
    }
}
