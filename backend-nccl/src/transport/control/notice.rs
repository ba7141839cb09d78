//! The frames of control connections.

use serde::{Deserialize, Serialize};

use crate::{
    failure::Failure,
    transport::{MAX_ACCOUNT_BYTES, Signature},
};

/// Bytes before the payload: magic, kind, length, and a checksum of the rest of the head and the payload. Without it a
/// bit that flips could name another rank for a failure.
pub(super) const HEAD_BYTES: usize = 16;
/// The longest payload that is accepted; a longer reason is cut before it is sent.
pub(super) const MAX_PAYLOAD: usize = 64 * 1024;
/// The longest value of a post.
pub(crate) const MAX_POST_BYTES: usize = 32 * 1024;
/// The most bytes of a reason that travel, so that the frame fits even when each is escaped sixfold.
const MAX_REASON_BYTES: usize = 8 * 1024;

const MAGIC: [u8; 4] = *b"BNx3";

/// What one rank tells another beside the data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    /// The rank leaves on purpose, before this collective.
    Goodbye { next: u64 },
    /// The group has ended.
    Abort(Abort),
    /// A value under a label, for [`Control::gather`](super::Control::gather).
    Post { label: String, value: Vec<u8> },
    /// How does the receiver stand, and what was the operation that the sender knows by this signature?
    Ask { number: u64, about: Option<Signature> },
    /// The answer to the question of this number.
    Answer { number: u64, account: Vec<u8> },
}

/// The end of a group as one rank tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Abort {
    pub(super) failure: Failure,
    /// The first collective that the sender had not finished. A rank that is still in one before it has all it needs to
    /// finish too, and reports the failure in the call where it belongs.
    pub(super) next: u64,
}

impl Notice {
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, payload) = match self {
            Self::Goodbye { next } => (1, next.to_le_bytes().to_vec()),
            Self::Abort(abort) => {
                (2, serde_json::to_vec(&cut_reason(abort)).expect("a failure is plain data"))
            }
            Self::Post { label, value } => {
                (3, [&(label.len() as u32).to_le_bytes(), label.as_bytes(), value].concat())
            }
            Self::Ask { number, about } => {
                let about = serde_json::to_vec(about).expect("a signature is plain data");
                (4, [&number.to_le_bytes(), about.as_slice()].concat())
            }
            Self::Answer { number, account } => {
                let account = &account[..account.len().min(MAX_ACCOUNT_BYTES)];
                (5, [&number.to_le_bytes(), account].concat())
            }
        };
        let mut frame = Vec::with_capacity(HEAD_BYTES + payload.len());
        frame.extend_from_slice(&MAGIC);
        frame.extend_from_slice(&[kind, 0, 0, 0]);
        frame.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        let sum = checksum(&frame, &payload);
        frame.extend_from_slice(&sum.to_le_bytes());
        frame.extend_from_slice(&payload);
        frame
    }

    /// Takes the frame at the start of `bytes` off them; `None` until all of it is there.
    pub(super) fn take(bytes: &mut Vec<u8>) -> Result<Option<Self>, String> {
        let Some(head) = bytes.first_chunk::<HEAD_BYTES>() else { return Ok(None) };
        if head[0..4] != MAGIC {
            return Err(format!("no control frame where one was due: {:02x?}", &head[0..4]));
        }
        let (kind, length, sum) = (head[4], u32_at(head, 8) as usize, u32_at(head, 12));
        if length > MAX_PAYLOAD {
            return Err(format!("a control frame of {length} bytes, the limit is {MAX_PAYLOAD}"));
        }
        let Some(payload) = bytes.get(HEAD_BYTES..HEAD_BYTES + length) else { return Ok(None) };
        if checksum(&head[..12], payload) != sum {
            return Err("the checksum of a control frame differs".into());
        }
        let notice = Self::decode(kind, payload)?;
        bytes.drain(..HEAD_BYTES + length);
        Ok(Some(notice))
    }

    fn decode(kind: u8, payload: &[u8]) -> Result<Self, String> {
        match kind {
            1 => {
                let next = payload.try_into().map_err(|_| "a goodbye of the wrong size".to_owned())?;
                Ok(Self::Goodbye { next: u64::from_le_bytes(next) })
            }
            2 => serde_json::from_slice(payload).map(Self::Abort).map_err(|error| error.to_string()),
            3 => {
                let bad = || "a post without a label".to_owned();
                let length = u32::from_le_bytes(*payload.first_chunk().ok_or_else(bad)?) as usize;
                let (label, value) = payload[4..].split_at_checked(length).ok_or_else(bad)?;
                let label = String::from_utf8(label.to_vec()).map_err(|_| bad())?;
                Ok(Self::Post { label, value: value.to_vec() })
            }
            4 | 5 => {
                let bad = || "a question or an answer without a number".to_owned();
                let (number, rest) = payload.split_first_chunk().ok_or_else(bad)?;
                let number = u64::from_le_bytes(*number);
                if kind == 5 {
                    return Ok(Self::Answer { number, account: rest.to_vec() });
                }
                let about = serde_json::from_slice(rest).map_err(|error| error.to_string())?;
                Ok(Self::Ask { number, about })
            }
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

/// The checksum of a frame: of its head before the checksum, and of its payload.
fn checksum(head: &[u8], payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(head), payload)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn notices() -> [Notice; 6] {
        [
            Notice::Goodbye { next: 1 << 40 },
            Notice::Abort(Abort { failure: Failure::PeerLeft { rank: 3 }, next: 9 }),
            Notice::Post { label: "segment".into(), value: vec![1, 2, 3] },
            Notice::Ask { number: 3, about: None },
            Notice::Ask { number: 4, about: Some(signature()) },
            Notice::Answer { number: 3, account: vec![4, 5] },
        ]
    }

    fn signature() -> Signature {
        use crate::transport::{DType, OpKind};
        Signature { sequence: 2, kind: OpKind::Barrier, dtype: DType::U8, op: None, root: 0, bytes: 0 }
    }

    #[test]
    fn a_frame_with_any_flipped_bit_is_never_taken_for_another() {
        for notice in notices() {
            let frame = notice.encode();
            for bit in 0..frame.len() * 8 {
                let mut spoilt = frame.clone();
                spoilt[bit / 8] ^= 1 << (bit % 8);
                // A longer length only makes the frame wait for its end.
                assert!(matches!(Notice::take(&mut spoilt), Err(_) | Ok(None)), "{notice:?}, bit {bit}");
            }
        }
    }

    #[test]
    fn frames_are_taken_one_by_one_and_only_when_they_are_complete() {
        let mut sent: Vec<u8> = notices().iter().flat_map(Notice::encode).collect();
        for notice in notices() {
            let length = notice.encode().len();
            for end in 0..length {
                assert_eq!(Notice::take(&mut sent[..end].to_vec()), Ok(None));
            }
            assert_eq!(Notice::take(&mut sent), Ok(Some(notice)));
        }
        assert!(sent.is_empty());
    }

    #[test]
    fn a_frame_that_claims_too_much_is_refused_before_it_is_read() {
        let mut frame = notices()[0].encode();
        frame[8..12].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(Notice::take(&mut frame).unwrap_err().contains("4294967295"));
    }

    #[test]
    fn a_payload_of_garbage_is_an_error_and_no_panic() {
        // Those of kind 5 carry what only the asker reads.
        for kind in [0, 1, 2, 3, 4, 6] {
            for length in [0, 1, 3, 4, 7, 9] {
                let mut frame = Vec::from(MAGIC);
                frame.extend_from_slice(&[kind, 0, 0, 0]);
                frame.extend_from_slice(&(length as u32).to_le_bytes());
                let payload = vec![0xee; length];
                frame.extend_from_slice(&checksum(&frame, &payload).to_le_bytes());
                frame.extend(payload);
                assert!(Notice::take(&mut frame).is_err(), "kind {kind}, {length} bytes");
            }
        }
    }

    #[test]
    fn an_endless_reason_is_cut_to_what_the_receiver_accepts() {
        let reason = "\u{1}ä".repeat(100_000);
        let abort = Abort { failure: Failure::Aborted { rank: 0, reason }, next: 0 };
        let mut frame = Notice::Abort(abort).encode();
        assert!(frame.len() <= HEAD_BYTES + MAX_PAYLOAD);
        assert!(matches!(Notice::take(&mut frame), Ok(Some(Notice::Abort(_)))));
    }
}
