//! Buffers in a rank's own segment: first fit, in whole pages.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::mapping::{Mapping, PAGE};
use crate::transport::buffer::Memory;

/// The part of a segment that buffers come from.
#[derive(Debug)]
pub(super) struct Arena {
    mapping: Arc<Mapping>,
    free: Mutex<Free>,
}

/// What is not in use.
#[derive(Debug)]
struct Free {
    /// Length by offset of the gaps that buffers have left, never two in touch.
    gaps: BTreeMap<usize, usize>,
    /// Where bytes begin that no buffer has had yet.
    fresh: usize,
    /// Whether peers may still write where a buffer was: the group has failed.
    closed: bool,
}

impl Arena {
    pub(super) fn new(mapping: Arc<Mapping>, start: usize) -> Arc<Self> {
        let free = Free { gaps: BTreeMap::new(), fresh: start, closed: false };
        Arc::new(Self { mapping, free: Mutex::new(free) })
    }

    /// `len` zeros, `None` where the segment or the machine has no room.
    pub(super) fn allocate(self: &Arc<Self>, len: usize) -> Option<Block> {
        let whole = len.max(1).checked_next_multiple_of(PAGE)?;
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if free.closed {
            return None;
        }
        if let Some(offset) = free.take(whole) {
            drop(free);
            let block = Block { arena: self.clone(), offset, len: whole };
            // SAFETY: the block is this call's alone.
            unsafe { block.start().write_bytes(0, whole) };
            return Some(block);
        }
        let offset = free.fresh;
        let end = offset.checked_add(whole)?;
        self.mapping.grow(end).ok()?;
        free.fresh = end;
        drop(free);
        self.mapping.populate(offset, whole);
        Some(Block { arena: self.clone(), offset, len: whole })
    }

    /// Gives out nothing more: a peer that does not know yet that the group has ended may write to what was given.
    pub(super) fn close(&self) {
        self.free.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
    }
}

impl Free {
    /// The first gap that is long enough.
    fn take(&mut self, len: usize) -> Option<usize> {
        let (&offset, &gap) = self.gaps.iter().find(|(_, gap)| **gap >= len)?;
        self.gaps.remove(&offset);
        if gap > len {
            self.gaps.insert(offset + len, gap - len);
        }
        Some(offset)
    }

    fn give_back(&mut self, mut offset: usize, mut len: usize) {
        if let Some((&before, &gap)) = self.gaps.range(..offset).next_back()
            && before + gap == offset
        {
            self.gaps.remove(&before);
            (offset, len) = (before, gap + len);
        }
        if let Some(gap) = self.gaps.remove(&(offset + len)) {
            len += gap;
        }
        self.gaps.insert(offset, len);
    }
}

/// Bytes of the arena that belong to one buffer. They stay mapped after the engine is gone.
pub(super) struct Block {
    arena: Arc<Arena>,
    offset: usize,
    len: usize,
}

impl Block {
    fn start(&self) -> *mut u8 {
        self.arena.mapping.at(self.offset, self.len)
    }
}

impl Memory for Block {
    fn bytes(&self) -> &[u8] {
        // SAFETY: the bytes exist and are this block's. Peers touch them only within a collective on this very buffer,
        // which borrows it, or after a failure, when their contents are undefined.
        unsafe { std::slice::from_raw_parts(self.start(), self.len) }
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and borrowed for writing.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.len) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut free = self.arena.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.give_back(self.offset, self.len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena() -> Arc<Arena> {
        Arena::new(Arc::new(Mapping::create(PAGE, 1 << 20).unwrap()), PAGE)
    }

    #[test]
    fn blocks_are_zeroed_whole_pages_that_never_overlap() {
        let arena = arena();
        let mut blocks: Vec<Block> = [1, 5000, 0, PAGE].map(|len| arena.allocate(len).unwrap()).into();
        for (value, block) in (1u8..).zip(&mut blocks) {
            assert!(block.bytes().iter().all(|byte| *byte == 0));
            assert!(block.bytes().len().is_multiple_of(PAGE) && block.start().addr().is_multiple_of(PAGE));
            block.bytes_mut().fill(value);
        }
        for (value, block) in (1u8..).zip(&blocks) {
            assert!(block.bytes().iter().all(|byte| *byte == value));
        }
    }

    #[test]
    fn memory_of_dropped_blocks_is_joined_and_given_out_again_zeroed() {
        let arena = arena();
        let mut blocks: Vec<Block> = (0..4).map(|_| arena.allocate(PAGE).unwrap()).collect();
        let first = blocks[0].offset;
        blocks.iter_mut().for_each(|block| block.bytes_mut().fill(9));
        for index in [0, 1, 0] {
            drop(blocks.remove(index));
        }
        let joined = arena.allocate(3 * PAGE).unwrap();
        assert_eq!(joined.offset, first);
        assert!(joined.bytes().iter().all(|byte| *byte == 0));
    }

    #[test]
    fn a_segment_without_room_says_so_and_serves_smaller_wishes() {
        let arena = arena();
        assert!(arena.allocate(1 << 20).is_none());
        assert!(arena.allocate(usize::MAX).is_none());
        assert!(arena.allocate(1 << 19).is_some());
        arena.close();
        assert!(arena.allocate(1).is_none());
    }

    #[test]
    fn a_block_outlives_its_arena() {
        let mut block = arena().allocate(10).unwrap();
        block.bytes_mut().fill(3);
        assert_eq!(block.bytes()[..10], [3; 10]);
    }
}
