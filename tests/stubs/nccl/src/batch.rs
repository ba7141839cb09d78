//! The operations that start together: one alone, or those of a group.

use std::{cell::RefCell, sync::Arc};

use crate::{
    code,
    communicator::Communicator,
    library::{Outcome, library},
    wire::Shape,
};

/// One operation of one rank.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    pub(crate) function: &'static str,
    pub(crate) shape: Shape,
    /// What the rank brings; empty where it brings nothing.
    pub(crate) send: Region,
    /// Where its result goes; empty where it gets none.
    pub(crate) recv: Region,
}

/// Memory of a GPU.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Region {
    pub(crate) address: u64,
    pub(crate) len: usize,
}

/// Operations of one communicator on one stream.
#[derive(Debug)]
pub(crate) struct Batch {
    pub(crate) stream: usize,
    pub(crate) items: Vec<Item>,
}

/// The group of a thread, from its first `ncclGroupStart` to its last `ncclGroupEnd`.
#[derive(Default)]
struct Group {
    depth: u32,
    batches: Vec<(Arc<Communicator>, Batch)>,
    error: Option<i32>,
}

thread_local! {
    static GROUP: RefCell<Group> = RefCell::default();
}

impl Region {
    pub(crate) fn overlaps(&self, other: &Self) -> bool {
        let ends = |region: &Self| region.address + region.len as u64;
        self.len > 0 && other.len > 0 && self.address < ends(other) && other.address < ends(self)
    }
}

impl Batch {
    pub(crate) fn function(&self) -> &'static str {
        self.items.first().map_or("ncclGroupEnd", |item| item.function)
    }
}

/// Whether this thread is within a group.
pub(crate) fn in_group() -> bool {
    GROUP.with_borrow(|group| group.depth > 0)
}

pub(crate) fn start_group() {
    GROUP.with_borrow_mut(|group| group.depth += 1);
}

/// Starts an operation, or keeps it for the end of the group. A failure within a group is its end's too.
pub(crate) fn submit(communicator: &Arc<Communicator>, stream: usize, item: Outcome<Item>) -> Outcome {
    if !in_group() {
        return communicator.launch(Batch { stream, items: vec![item?] });
    }
    GROUP.with_borrow_mut(|group| {
        let item = item.inspect_err(|&code| group.error = group.error.or(Some(code)))?;
        let known = group.batches.iter_mut().find(|(known, _)| known.handle == communicator.handle);
        match known {
            None => group.batches.push((communicator.clone(), Batch { stream, items: vec![item] })),
            Some((_, batch)) if batch.stream == stream => batch.items.push(item),
            Some(_) => {
                group.error = Some(code::INVALID_USAGE);
                return library()
                    .refuse(code::INVALID_USAGE, "a group with two streams for one communicator".into());
            }
        }
        Ok(())
    })
}

/// Starts what the group has kept, at its outermost end.
pub(crate) fn end_group() -> Outcome {
    let ended = GROUP.with_borrow_mut(|group| {
        group.depth = group.depth.checked_sub(1)?;
        Some(if group.depth == 0 { std::mem::take(group) } else { Group::default() })
    });
    let Some(group) = ended else {
        return library().refuse(code::INVALID_USAGE, "ncclGroupEnd without ncclGroupStart".into());
    };
    if let Some(code) = group.error {
        return Err(code);
    }
    let mut result = Ok(());
    for (communicator, batch) in group.batches {
        result = result.and(communicator.launch(batch));
    }
    result
}

/// Ends the group of this thread without starting anything.
pub(crate) fn forget_group() {
    GROUP.take();
}
