//! What a rank announces on its line for a peer: its call, where its source is, and from where its rounds count.

use std::sync::atomic::Ordering;

use super::{
    layout::{INLINE_BYTES, Layout, SLOTS},
    mapping::Mapping,
};
use crate::transport::{Signature, frame::HEADER_BYTES};

const HEADER_WORDS: usize = HEADER_BYTES / 8;
const LOCATION: usize = HEADER_WORDS;
const BASE: usize = HEADER_WORDS + 1;
/// Written last: the number of the announcement, from 1.
const NUMBER: usize = 7;
const KIND_SHIFT: u32 = 60;

/// Where the source of a rank is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// Nobody reads one.
    Nowhere,
    /// In a slot of the rank's segment, where it stays until its readers are done.
    Inline { slot: usize },
    /// The buffer itself is in the rank's segment.
    Resident { offset: usize },
    /// It passes through the staging area, round by round.
    Staged,
}

impl Location {
    fn encode(self) -> u64 {
        let (kind, value) = match self {
            Self::Nowhere => (0, 0),
            Self::Inline { slot } => (1, slot),
            Self::Resident { offset } => (2, offset),
            Self::Staged => (3, 0),
        };
        kind << KIND_SHIFT | value as u64
    }

    /// Reads a location of a source of `bytes` bytes in `segment`, or says why it cannot be there.
    fn decode(word: u64, bytes: usize, segment: &Mapping) -> Result<Self, String> {
        let value = word & ((1 << KIND_SHIFT) - 1);
        match word >> KIND_SHIFT {
            0 if bytes == 0 => Ok(Self::Nowhere),
            1 if value < SLOTS as u64 && bytes <= INLINE_BYTES => Ok(Self::Inline { slot: value as usize }),
            2 if segment.has(value, bytes as u64) => Ok(Self::Resident { offset: value as usize }),
            3 => Ok(Self::Staged),
            _ => Err(format!("{bytes} bytes cannot be at {word:#x}")),
        }
    }
}

/// An announcement.
#[derive(Clone, Copy, Debug)]
pub(super) struct Post {
    pub(super) signature: Signature,
    pub(super) location: Location,
    /// The rounds that the rank had done before.
    pub(super) base: u64,
}

/// An announcement as it was found.
pub(super) struct Found {
    header: [u8; HEADER_BYTES],
    location: u64,
    base: u64,
}

impl Post {
    /// Writes it to `offset` as announcement `number`. What the rank wrote before is visible to who finds it.
    pub(super) fn write(&self, segment: &Mapping, offset: usize, number: u64, tag: u32) {
        let header = self.signature.encode(tag);
        for (index, bytes) in header.chunks_exact(8).enumerate() {
            let word = u64::from_ne_bytes(bytes.try_into().expect("eight bytes"));
            segment.word(offset + 8 * index).store(word, Ordering::Relaxed);
        }
        segment.word(offset + 8 * LOCATION).store(self.location.encode(), Ordering::Relaxed);
        segment.word(offset + 8 * BASE).store(self.base, Ordering::Relaxed);
        segment.word(offset + 8 * NUMBER).store(number, Ordering::Release);
    }
}

impl Found {
    /// The announcement `number` at `offset`, `None` while it is not there.
    ///
    /// # Errors
    ///
    /// A later one is there: the writer has lost count.
    pub(super) fn at(segment: &Mapping, offset: usize, number: u64) -> Result<Option<Self>, String> {
        let there = segment.word(offset + 8 * NUMBER).load(Ordering::Acquire);
        if there > number {
            return Err(format!("announcement {there} where {number} was due"));
        }
        if there < number {
            return Ok(None);
        }
        let mut header = [0; HEADER_BYTES];
        for (index, bytes) in header.chunks_exact_mut(8).enumerate() {
            bytes.copy_from_slice(&segment.word(offset + 8 * index).load(Ordering::Relaxed).to_ne_bytes());
        }
        let location = segment.word(offset + 8 * LOCATION).load(Ordering::Relaxed);
        let base = segment.word(offset + 8 * BASE).load(Ordering::Relaxed);
        Ok(Some(Self { header, location, base }))
    }

    pub(super) fn signature(&self, tag: u32) -> Result<Signature, String> {
        Signature::decode(&self.header, tag)
    }

    /// The whole announcement, once its signature is the expected one: its source has `bytes` bytes in `segment`.
    pub(super) fn accept(
        &self,
        signature: Signature,
        bytes: usize,
        segment: &Mapping,
    ) -> Result<Post, String> {
        let location = Location::decode(self.location, bytes, segment)?;
        Ok(Post { signature, location, base: self.base })
    }
}

impl Layout {
    /// Where byte `at` of a source at an address that is there for the whole collective is; `None` if it is staged.
    pub(super) fn fixed(&self, location: Location, at: usize) -> Option<usize> {
        match location {
            Location::Inline { slot } => Some(self.inline(slot) + at),
            Location::Resident { offset } => Some(offset + at),
            Location::Nowhere | Location::Staged => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::{DType, OpKind};

    fn segment() -> Mapping {
        Mapping::create(8192, 1 << 20).unwrap()
    }

    #[test]
    fn an_announcement_is_found_once_it_is_written_and_reads_the_same() {
        let segment = segment();
        let signature = Signature {
            sequence: 9,
            kind: OpKind::AllGather,
            dtype: DType::I64,
            op: None,
            root: 0,
            bytes: 64,
        };
        assert!(Found::at(&segment, 128, 3).unwrap().is_none());
        for location in [Location::Inline { slot: 2 }, Location::Resident { offset: 4096 }, Location::Staged]
        {
            Post { signature, location, base: 5 }.write(&segment, 128, 3, 77);
            let found = Found::at(&segment, 128, 3).unwrap().unwrap();
            assert_eq!(found.signature(77), Ok(signature));
            assert!(found.signature(78).is_err());
            let post = found.accept(signature, 64, &segment).unwrap();
            assert_eq!((post.signature, post.location, post.base), (signature, location, 5));
        }
        assert!(Found::at(&segment, 128, 2).is_err());
    }

    #[test]
    fn places_outside_of_the_segment_are_refused() {
        let segment = segment();
        let end = segment.span() as u64;
        for word in
            [0, 1 << 60 | SLOTS as u64, 1 << 60 | 1 << 40, 2 << 60 | 8190, 2 << 60 | end, 4 << 60, u64::MAX]
        {
            assert!(Location::decode(word, 64, &segment).is_err(), "{word:#x}");
        }
        assert!(Location::decode(2 << 60 | 8128, 64, &segment).is_ok());
        assert!(Location::decode(1 << 60, INLINE_BYTES + 1, &segment).is_err());
    }
}
