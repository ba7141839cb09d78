//! How many connections this process may hold open.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Open files that a program may well have besides its connections.
const OTHERS: u64 = 256;
/// Connections of a rank to each other: to the store, for control and for data, and those that are being opened.
const PER_RANK: u64 = 4;
/// The share of the open files that strangers may take.
const STRANGERS_SHARE: u64 = 4;

/// Raises the soft limit of open files where a group of this size would meet it, as far as the hard limit allows.
///
/// The usual soft limit, 1024, is for programs that wait with `select`; a job of a few hundred ranks exceeds it.
pub(super) fn make_room(world_size: usize) {
    let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) else { return };
    let needed = OTHERS + PER_RANK * world_size as u64;
    if soft >= needed {
        return;
    }
    let raised = needed.min(hard);
    if setrlimit(Resource::RLIMIT_NOFILE, raised, hard).is_err() || raised < needed {
        log::warn!(
            "a group of {world_size} ranks may need {needed} open files and the limit is {raised}; raise it by \
             `ulimit -n {needed}` before the ranks start"
        );
    }
}

/// How many connections of those who have proven nothing may be open, up to `most`.
pub(super) fn room_for_strangers(most: usize) -> usize {
    let soft = getrlimit(Resource::RLIMIT_NOFILE).map_or(0, |(soft, _)| soft);
    usize::try_from(soft / STRANGERS_SHARE).unwrap_or(most).clamp(1, most)
}
