//! The part of a collective in which bytes move. Where nothing is staged, it is one round and nobody waits in it.
//!
//! Staged bytes move in rounds through three steps, each ahead of the next by some rounds: a rank *stages* a round of
//! its source, *folds* its share of what all have staged, and *takes* what others have folded. It does whichever step
//! can go on, and waits if none can: no step waits for a later one of the same round, so no set of ranks waits in a
//! circle.

use std::{ops::Range, sync::atomic::Ordering};

use super::{
    Shm,
    layout::{Layout, Progress, ROUNDS, part_bytes},
    post::{Location, Post},
    shape::Shape,
    wait::{Behind, Wait},
};
use crate::{failure::Failure, transport::reduce::fold_into};

/// The buffers of a collective as addresses: the target may be the source, and peers write to it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Buffers {
    pub(super) source: *const u8,
    pub(super) source_len: usize,
    pub(super) target: *mut u8,
    pub(super) target_len: usize,
}

impl Buffers {
    fn source(&self, range: &Range<usize>) -> *const u8 {
        assert!(range.start <= range.end && range.end <= self.source_len, "{range:?} of the source");
        self.source.wrapping_add(range.start)
    }

    fn target(&self, range: &Range<usize>) -> *mut u8 {
        assert!(range.start <= range.end && range.end <= self.target_len, "{range:?} of the target");
        self.target.wrapping_add(range.start)
    }
}

/// One collective whose ranks have all announced it. Ranks are places.
pub(super) struct Rounds<'a> {
    shm: &'a Shm,
    shape: Shape,
    own: usize,
    /// The member in each place.
    members: &'a [usize],
    posts: &'a [Post],
    buffers: Buffers,
    /// Bytes of a piece that move in one round.
    chunk: usize,
    count: u64,
    folds: bool,
    /// Whether bytes of any rank pass through its staging area, so that ranks wait for each other's rounds.
    is_staged: bool,
}

/// The rounds of each step that are done.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Done {
    staged: u64,
    folded: u64,
    taken: u64,
}

impl<'a> Rounds<'a> {
    pub(super) fn new(
        shm: &'a Shm,
        shape: Shape,
        own: usize,
        members: &'a [usize],
        posts: &'a [Post],
        buffers: Buffers,
    ) -> Self {
        let is_staged = posts.iter().any(|post| post.location == Location::Staged);
        let longest = shape.longest();
        let chunk = if is_staged { part_bytes(shape.parts()) } else { longest.max(1) };
        let count = longest.div_ceil(chunk) as u64;
        let folds = shape.reduction.is_some();
        Self { shm, shape, own, members, posts, buffers, chunk, count, folds, is_staged }
    }

    /// Moves everything; the number of rounds it took.
    pub(super) fn run(&self, wait: &Wait<'_>) -> Result<u64, Failure> {
        let (count, skip) = (self.count, |step: bool| if step { 0 } else { self.count });
        let takes = !self.folds || (self.shape.spreads() && self.is_staged(self.own));
        let mut done =
            Done { staged: skip(self.is_staged(self.own)), folded: skip(self.folds), taken: skip(takes) };
        while done != (Done { staged: count, folded: count, taken: count }) {
            let before = done;
            if done.staged < count && self.all_ready(Progress::Staged, done.staged) {
                self.stage(done.staged);
                done.staged += 1;
                self.publish(Progress::Staged, done.staged);
            }
            if done.folded < count && self.all_ready(Progress::Folded, done.folded) {
                self.fold(done.folded);
                done.folded += 1;
                self.publish(Progress::Folded, done.folded);
            }
            if done.taken < count && self.all_ready(Progress::Taken, done.taken) {
                self.take(done.taken);
                done.taken += 1;
                self.publish(Progress::Taken, done.taken);
            }
            if done == before {
                wait.until(|name_them| Ok(self.blocked(done, name_them)))?;
            }
        }
        if count > 0 {
            for progress in [Progress::Staged, Progress::Folded, Progress::Taken] {
                self.put(progress, count);
            }
        }
        Ok(count)
    }

    /// The members that the steps wait for, if they are to be named; `None` if a step can go on.
    fn blocked(&self, done: Done, name_them: bool) -> Option<Behind> {
        let steps =
            [(Progress::Staged, done.staged), (Progress::Folded, done.folded), (Progress::Taken, done.taken)];
        let open = || steps.into_iter().filter(|(_, round)| *round < self.count);
        if open().any(|(step, round)| self.all_ready(step, round)) {
            return None;
        }
        if !name_them {
            return Some(Behind::default());
        }
        let waits_for = |place: &usize| open().any(|(step, round)| !self.ready(step, round, *place));
        let places: Vec<usize> = self.others().filter(waits_for).collect();
        let moved = |place: usize| {
            let steps = [Progress::Staged, Progress::Folded, Progress::Taken];
            steps.iter().map(|step| self.progress(place, *step)).sum::<u64>()
        };
        let least = places.iter().map(|place| moved(*place)).min();
        let member = |place: &usize| self.members[*place];
        Some(Behind {
            furthest: places.iter().filter(|place| Some(moved(**place)) == least).map(member).collect(),
            all: places.iter().map(member).collect(),
        })
    }

    fn all_ready(&self, step: Progress, round: u64) -> bool {
        self.others().all(|place| self.ready(step, round, place))
    }

    /// Whether `place` is where this rank's `step` of `round` needs it.
    fn ready(&self, step: Progress, round: u64, place: usize) -> bool {
        let reads_me = !self.shape.piece(self.own, place).is_empty();
        let feeds_me = !self.shape.piece(place, self.own).is_empty();
        let staged = self.is_staged(place);
        match step {
            // The part of the staging area must be free again: who reads it is done with it.
            Progress::Staged => {
                let reader = if self.folds { Progress::Folded } else { Progress::Taken };
                !reads_me || round < ROUNDS || self.progress(place, reader) > round - ROUNDS
            }
            Progress::Folded => {
                let input = !feeds_me || !staged || self.progress(place, Progress::Staged) > round;
                let output = !self.passes_results() || !staged || round < ROUNDS;
                input && (output || self.progress(place, Progress::Taken) > round - ROUNDS)
            }
            Progress::Taken if self.folds => self.progress(place, Progress::Folded) > round,
            Progress::Taken => !feeds_me || !staged || self.progress(place, Progress::Staged) > round,
        }
    }

    /// Copies a round of this rank's source to where the others can read it.
    fn stage(&self, round: u64) {
        let parts = self.shape.parts();
        let targets: Vec<usize> = if parts == 1 {
            self.others().find(|to| !self.shape.piece(self.own, *to).is_empty()).into_iter().collect()
        } else {
            self.others().collect()
        };
        for to in targets {
            let range = self.cut(self.shape.piece(self.own, to), round);
            let part = if parts == 1 { 0 } else { to };
            let target = self.staging(self.own, round, part, range.len());
            // SAFETY: the source has the range; the part is in this rank's segment and its readers are done with it.
            unsafe { target.copy_from_nonoverlapping(self.buffers.source(&range), range.len()) };
        }
    }

    /// Folds a round of this rank's share, and writes it wherever it belongs.
    fn fold(&self, round: u64) {
        let Some((dtype, op)) = self.shape.reduction else { return };
        let piece = self.cut(self.shape.piece(self.own, self.own), round);
        let sources: Vec<*const u8> = (0..self.members.len()).map(|from| self.piece(from, round).0).collect();
        let start = self.shape.landing(self.own, self.own) + self.chunk * round as usize;
        let mut targets = vec![self.buffers.target(&(start..start + piece.len()))];
        if self.shape.spreads() {
            for place in self.others() {
                if let Location::Resident { offset } = self.posts[place].location {
                    targets.push(self.segment(place).at(offset + piece.start, piece.len()));
                }
            }
        }
        if self.passes_results() {
            targets.push(self.staging(self.own, round, self.own, piece.len()));
        }
        // SAFETY: every source and target has these bytes. A share is this rank's alone, in every rank's buffer, until
        // it says that it is done; what it reads in staging areas stays until it says so. A target is a source itself
        // or apart from all.
        unsafe { fold_into(dtype, op, &sources, &targets, piece.len()) };
    }

    /// Takes a round of what the others have: of their folded shares, or of their sources.
    fn take(&self, round: u64) {
        for place in 0..self.members.len() {
            let (source, range) = if self.folds {
                if place == self.own {
                    continue;
                }
                let share = self.cut(self.shape.piece(place, place), round);
                (self.result(place, round, &share), share)
            } else {
                let (source, len) = self.piece(place, round);
                let start = self.shape.landing(place, self.own) + self.chunk * round as usize;
                (source, start..start + len)
            };
            if range.is_empty() {
                continue;
            }
            // SAFETY: both sides have the bytes; the owner of the source has said that they are there, and waits for
            // this rank before it changes them. Source and target are the same buffer only where both are this rank's
            // own, which the group refuses to borrow twice.
            unsafe { self.buffers.target(&range).copy_from_nonoverlapping(source, range.len()) };
        }
    }

    /// The bytes of `from` for this rank in a round.
    fn piece(&self, from: usize, round: u64) -> (*const u8, usize) {
        let range = self.cut(self.shape.piece(from, self.own), round);
        let address = if range.is_empty() {
            std::ptr::NonNull::dangling().as_ptr()
        } else if from == self.own {
            self.buffers.source(&range)
        } else if let Some(offset) = self.shm.layout.fixed(self.posts[from].location, range.start) {
            self.segment(from).at(offset, range.len()).cast_const()
        } else {
            let part = if self.shape.parts() == 1 { 0 } else { self.own };
            self.staging(from, round, part, range.len()).cast_const()
        };
        (address, range.len())
    }

    /// Where a round of the folded share of `place` is.
    fn result(&self, place: usize, round: u64, share: &Range<usize>) -> *const u8 {
        match self.shm.layout.fixed(self.posts[place].location, share.start) {
            Some(offset) => self.segment(place).at(offset, share.len()),
            None => self.staging(place, round, place, share.len()),
        }
    }

    /// Whether this rank's results go through its staging area: nobody can write to its buffer, nor it to another's.
    fn passes_results(&self) -> bool {
        self.shape.spreads() && self.is_staged(self.own) && self.others().any(|place| self.is_staged(place))
    }

    /// The bytes of a piece that belong to a round.
    fn cut(&self, piece: Range<usize>, round: u64) -> Range<usize> {
        let start = piece.end.min(piece.start + self.chunk * round as usize);
        start..piece.end.min(start + self.chunk)
    }

    fn staging(&self, place: usize, round: u64, part: usize, len: usize) -> *mut u8 {
        self.segment(place).at(self.shm.layout.staging(round, part, self.shape.parts()), len)
    }

    fn segment(&self, place: usize) -> &super::mapping::Mapping {
        &self.shm.segments[self.members[place]]
    }

    fn others(&self) -> impl Iterator<Item = usize> + '_ {
        (0..self.members.len()).filter(|place| *place != self.own)
    }

    fn is_staged(&self, place: usize) -> bool {
        self.posts[place].location == Location::Staged
    }

    /// The rounds of this collective that `place` has behind it in a step.
    fn progress(&self, place: usize, step: Progress) -> u64 {
        let word = self.segment(place).word(Layout::progress(step));
        word.load(Ordering::Acquire).saturating_sub(self.posts[place].base)
    }

    /// Tells the others that rounds of a step are done. Where nothing is staged nobody waits for rounds, and all are told
    /// at the end.
    fn publish(&self, step: Progress, rounds: u64) {
        self.put(step, rounds);
        if self.is_staged {
            self.shm.notify(self.members);
        }
    }

    fn put(&self, step: Progress, rounds: u64) {
        let word = self.segment(self.own).word(Layout::progress(step));
        word.store(self.posts[self.own].base + rounds, Ordering::Release);
    }
}
