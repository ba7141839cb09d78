//! What lies where in a rank's segment.
//!
//! ```text
//! 0        identity: magic, token           written once, before anybody opens it
//! 64       the futex word                   written by all
//! 128      progress: staged, folded, taken  written by the owner
//! 4096     one cell for each member         written by the owner, read by that member
//! ..       slots, staging                   written by the owner
//! ..       the arena                        written as the collectives say
//! ```
//!
//! Words of different writers or different readers never share a cache line.

use super::mapping::PAGE;

/// The first word of a segment: who opens another file by mistake reads something else.
pub(super) const MAGIC: u64 = u64::from_le_bytes(*b"BNshm\x001\n");
pub(super) const TOKEN: usize = 8;
pub(super) const TOKEN_WORDS: usize = 4;
pub(super) const ASLEEP: usize = 64;
const PROGRESS: usize = 128;
const CELLS: usize = PAGE;

/// Bytes of the line on which a rank announces what it calls.
pub(super) const POST_BYTES: usize = 64;
/// Announcements of collectives that are kept for each peer: the last and the one before, which the peer may still read.
pub(super) const POSTS: u64 = 2;
/// Messages that may be under way from one rank to another.
pub(super) const MESSAGES: u64 = 64;
const COUNTERS: usize = POSTS as usize * POST_BYTES;
const MESSAGE_COUNTERS: usize = COUNTERS + 64;
const MESSAGE_POSTS: usize = MESSAGE_COUNTERS + 64;
const CELL_BYTES: usize = MESSAGE_POSTS + MESSAGES as usize * POST_BYTES;

/// What fits a slot of the segment that a small buffer is copied to. Up to here an all-reduce is one hop.
pub(super) const INLINE_BYTES: usize = 32 * 1024;
/// Buffers of collectives that may lie there at once.
pub(super) const INLINE_SLOTS: usize = 4;
/// Messages that may lie there at once, to all ranks together, in slots of their own behind those of collectives.
pub(super) const MESSAGE_SLOTS: usize = 64;
pub(super) const SLOTS: usize = INLINE_SLOTS + MESSAGE_SLOTS;
/// Bytes that a rank stages at once: of all that all ranks have staged, the second-level caches hold several rounds.
pub(super) const ROUND_BYTES: usize = 256 * 1024;
/// Rounds that a rank may be ahead of the slowest.
pub(super) const ROUNDS: u64 = 4;

/// How far a rank has come, counted in rounds since the segment was made.
#[derive(Clone, Copy, Debug)]
pub(super) enum Progress {
    /// Rounds of its source that the others may read.
    Staged,
    /// Rounds of its share that are folded, for the others to take.
    Folded,
    /// Rounds of the others that it has taken.
    Taken,
}

/// What a rank tells one other.
#[derive(Clone, Copy, Debug)]
pub(super) enum Counter {
    /// Collectives with that rank that are over: nothing of that rank is touched any more for them.
    Finished,
    /// Messages of that rank that are over.
    MessagesFinished,
    /// Rounds of that rank's messages that it has taken.
    MessageRoundsTaken,
    /// Rounds of messages to that rank that it may read.
    MessageRoundsStaged,
}

/// The places in a segment among `members`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    members: usize,
}

impl Layout {
    pub(super) fn new(members: usize) -> Self {
        Self { members }
    }

    pub(super) fn progress(of: Progress) -> usize {
        PROGRESS + 8 * of as usize
    }

    /// Where the announcement `count` for `member` is.
    pub(super) fn post(&self, member: usize, count: u64) -> usize {
        self.cell(member) + (count % POSTS) as usize * POST_BYTES
    }

    /// Where the announcement of message `count` for `member` is.
    pub(super) fn message(&self, member: usize, count: u64) -> usize {
        self.cell(member) + MESSAGE_POSTS + (count % MESSAGES) as usize * POST_BYTES
    }

    pub(super) fn counter(&self, member: usize, counter: Counter) -> usize {
        let place = match counter {
            Counter::Finished => COUNTERS,
            Counter::MessagesFinished => MESSAGE_COUNTERS,
            Counter::MessageRoundsTaken => MESSAGE_COUNTERS + 8,
            Counter::MessageRoundsStaged => MESSAGE_COUNTERS + 16,
        };
        self.cell(member) + place
    }

    pub(super) fn inline(&self, slot: usize) -> usize {
        self.cell(self.members).next_multiple_of(PAGE) + slot * INLINE_BYTES
    }

    /// Where the part of round `round` for `part` of `parts` is.
    pub(super) fn staging(&self, round: u64, part: usize, parts: usize) -> usize {
        let round = (round % ROUNDS) as usize;
        self.inline(SLOTS) + round * ROUND_BYTES + part * part_bytes(parts)
    }

    /// Where the arena begins.
    pub(super) fn arena(&self) -> usize {
        self.inline(SLOTS) + ROUNDS as usize * ROUND_BYTES
    }

    fn cell(&self, member: usize) -> usize {
        CELLS + member * CELL_BYTES
    }
}

/// Bytes of one of `parts` parts of a round, a multiple of any element.
pub(super) fn part_bytes(parts: usize) -> usize {
    (ROUND_BYTES / parts.max(1) / 64 * 64).max(64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_place_overlaps_another_and_lines_have_one_writer() {
        for members in [1, 2, 3, 8, 64] {
            let layout = Layout::new(members);
            let mut places =
                vec![(0, 8 + 8 * TOKEN_WORDS), (ASLEEP, 4), (Layout::progress(Progress::Staged), 24)];
            for member in 0..members {
                places.extend((0..POSTS).map(|count| (layout.post(member, count), POST_BYTES)));
                places.extend((0..MESSAGES).map(|count| (layout.message(member, count), POST_BYTES)));
                places.push((layout.counter(member, Counter::Finished), 8));
                places.push((layout.counter(member, Counter::MessagesFinished), 24));
            }
            places.extend((0..SLOTS).map(|slot| (layout.inline(slot), INLINE_BYTES)));
            for round in 0..ROUNDS {
                let parts =
                    (0..members).map(|part| (layout.staging(round, part, members), part_bytes(members)));
                places.extend(parts);
            }
            places.push((layout.arena(), 1));
            places.sort_unstable();
            for pair in places.windows(2) {
                let end = (pair[0].0 + pair[0].1).next_multiple_of(64);
                assert!(end <= pair[1].0 && pair[1].0.is_multiple_of(64), "{pair:?} of {members}");
            }
        }
    }
}
