//! Memory of the GPUs and pinned memory: blocks of host memory, which stay known when they are freed.

use std::{
    alloc::{Layout, alloc, dealloc},
    collections::BTreeMap,
    sync::Mutex,
};

use stubs::lock;

/// What freed memory is filled with.
const POISON: u8 = 0xdb;
/// What new memory is filled with, up to a length: larger blocks would cost the pages that nobody touches.
const FRESH: u8 = 0xc5;
const FILLED_BYTES: usize = 16 << 20;
/// That of CUDA's own allocations, and what CubeCL counts on.
const ALIGNMENT: usize = 512;

/// Whose a block is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Of the GPU of an ordinal.
    Device(usize),
    /// Page-locked host memory.
    Pinned,
}

struct Block {
    len: usize,
    kind: Kind,
    freed: bool,
}

/// Why memory cannot be touched.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Bad {
    Freed,
    Outside,
}

#[derive(Default)]
pub(crate) struct Memory {
    blocks: Mutex<BTreeMap<u64, Block>>,
}

impl Memory {
    /// A new block of at least one byte, or none where the kind's memory has no room for it.
    pub(crate) fn allocate(&self, len: usize, kind: Kind, capacity: u64) -> Option<u64> {
        let layout = layout(len)?;
        let mut blocks = lock(&self.blocks);
        if used(&blocks, kind).checked_add(len as u64)? > capacity {
            return None;
        }
        // SAFETY: the layout has at least one byte.
        let address = unsafe { alloc(layout) };
        if address.is_null() {
            return None;
        }
        // SAFETY: within the new block.
        unsafe { address.write_bytes(FRESH, len.min(FILLED_BYTES)) };
        blocks.insert(address as u64, Block { len, kind, freed: false });
        Some(address as u64)
    }

    /// The bytes of a kind that are in use.
    pub(crate) fn used(&self, kind: Kind) -> u64 {
        used(&lock(&self.blocks), kind)
    }

    /// Frees a block by its address; else says why it is none. With `poison` it is filled and kept for ever.
    pub(crate) fn free(&self, address: u64, pinned: bool, poison: bool) -> Result<(), String> {
        let mut blocks = lock(&self.blocks);
        let Some(block) = blocks.get_mut(&address) else {
            return Err(format!("{address:#x} is no allocation"));
        };
        if block.freed {
            return Err(format!("{address:#x} was freed before"));
        }
        if (block.kind == Kind::Pinned) != pinned {
            return Err(format!("{address:#x} is memory of another kind: {:?}", block.kind));
        }
        block.freed = true;
        if poison {
            // SAFETY: the block is ours and is never given back; who still uses it is what the double is to find.
            unsafe { (address as *mut u8).write_bytes(POISON, block.len) };
            return Ok(());
        }
        let len = block.len;
        blocks.remove(&address);
        // SAFETY: allocated above with this layout, and no longer known.
        layout(len).into_iter().for_each(|layout| unsafe { dealloc(address as *mut u8, layout) });
        Ok(())
    }

    /// Whether a region of device memory may be touched. Pinned memory has a device address too: it is the same.
    pub(crate) fn check(&self, address: u64, len: usize) -> Result<(), Bad> {
        let blocks = lock(&self.blocks);
        let (start, block) = blocks.range(..=address).next_back().ok_or(Bad::Outside)?;
        let end = address.checked_add(len as u64).ok_or(Bad::Outside)?;
        match end <= start + block.len as u64 {
            false => Err(Bad::Outside),
            true if block.freed => Err(Bad::Freed),
            true => Ok(()),
        }
    }

    /// Whether the address lies in a block, freed or not, and of which kind.
    pub(crate) fn kind_of(&self, address: u64) -> Option<Kind> {
        let blocks = lock(&self.blocks);
        let (start, block) = blocks.range(..=address).next_back()?;
        (address < start + block.len as u64).then_some(block.kind)
    }

    /// The freed blocks that are not as they were left: somebody wrote to them past the driver. Each is told once.
    pub(crate) fn spoilt(&self) -> Vec<String> {
        let mut spoilt = Vec::new();
        for (address, block) in lock(&self.blocks).iter().filter(|(_, block)| block.freed) {
            // SAFETY: freed blocks are kept for ever.
            let bytes = unsafe { std::slice::from_raw_parts_mut(*address as *mut u8, block.len) };
            if bytes.iter().any(|&byte| byte != POISON) {
                bytes.fill(POISON);
                spoilt
                    .push(format!("{} bytes at {address:#x} were written after they were freed", block.len));
            }
        }
        spoilt
    }
}

fn layout(len: usize) -> Option<Layout> {
    Layout::from_size_align(len.max(1), ALIGNMENT).ok()
}

fn used(blocks: &BTreeMap<u64, Block>, kind: Kind) -> u64 {
    blocks.values().filter(|block| block.kind == kind && !block.freed).map(|block| block.len as u64).sum()
}
