//! Waiting for peers: a short look around, then sleep, and what ends a wait that leads nowhere.

use std::{
    sync::atomic::{Ordering, fence},
    time::{Duration, Instant},
};

use super::{Shm, layout::ASLEEP, mapping};
use crate::{
    failure::Failure,
    transport::{
        Call, Patience, Signature,
        control::{Control, Obstacle},
    },
};

/// How long a call that somebody waits for keeps looking before it sleeps: several times what waking up takes.
const LOOK: Duration = Duration::from_micros(100);
/// Looks between two looks at the clock.
const LOOKS: usize = 64;
/// How often a call gives way to other threads of its core before it sleeps, where ranks outnumber cores.
const YIELDS: usize = 16;
/// The longest sleep. Peers and the control connections wake it before; this is for a peer that died between its work
/// and its call to wake.
pub(super) const SLEEP: Duration = Duration::from_millis(50);

/// The waits of one call.
#[derive(Clone, Copy)]
pub(super) struct Wait<'a> {
    pub(super) shm: &'a Shm,
    pub(super) control: &'a Control,
    pub(super) call: Call,
    /// The place in the order of collectives that the peers must come to; `None` for a message.
    pub(super) sequence: Option<u64>,
    /// Members without which the call cannot end, beside those that are waited for: while some have not come, all.
    pub(super) needed: &'a [usize],
    /// What each member called last, as far as this rank saw it.
    pub(super) last: &'a [Option<Signature>],
}

/// The members that a wait is for.
#[derive(Clone, Debug, Default)]
pub(super) struct Behind {
    pub(super) all: Vec<usize>,
    /// Those of them to name when the time is up: the others may wait for these themselves.
    pub(super) furthest: Vec<usize>,
}

impl From<Vec<usize>> for Behind {
    fn from(all: Vec<usize>) -> Self {
        Self { furthest: all.clone(), all }
    }
}

impl Wait<'_> {
    /// Waits until each of `members` is `ready`.
    pub(super) fn for_all(
        &self,
        members: &[usize],
        mut ready: impl FnMut(usize) -> Result<bool, Failure>,
    ) -> Result<(), Failure> {
        let mut first = 0;
        let mut behind = Vec::new();
        self.until(|name_them| {
            behind.clear();
            while let Some(member) = members.get(first) {
                if !ready(*member)? {
                    break;
                }
                first += 1;
            }
            if name_them {
                for &member in &members[first..] {
                    if !ready(member)? {
                        behind.push(member);
                    }
                }
            }
            Ok(if first == members.len() { None } else { Some(behind.clone().into()) })
        })
    }

    /// Waits until `look` gives `None`. Otherwise it gives the members that are waited for, if it is asked to name them.
    pub(super) fn until(
        &self,
        mut look: impl FnMut(bool) -> Result<Option<Behind>, Failure>,
    ) -> Result<(), Failure> {
        if self.look_around(&mut look)? {
            return Ok(());
        }
        let asleep = self.shm.segments[self.shm.own].futex(ASLEEP);
        let mut seen = None;
        loop {
            asleep.store(1, Ordering::Relaxed);
            // Either this sees what a peer has just written, or the peer sees that this rank sleeps.
            fence(Ordering::SeqCst);
            let changes = self.control.changes();
            let verdict = match look(false)? {
                None => Some(Ok(())),
                Some(_) if seen != Some(changes) || self.call.deadline.expired() => self.judge(&mut look)?,
                Some(_) => None,
            };
            if let Some(verdict) = verdict {
                asleep.store(0, Ordering::Relaxed);
                return verdict;
            }
            // A peer that has gone is looked at once more after each sleep, in case its last change was missed.
            seen = Some(changes);
            let slice = self.call.deadline.remaining_at_most(SLEEP);
            if slept_through(asleep, slice) {
                seen = None;
            }
        }
    }

    /// Looks for a short time without sleep.
    fn look_around(
        &self,
        look: &mut impl FnMut(bool) -> Result<Option<Behind>, Failure>,
    ) -> Result<bool, Failure> {
        if look(false)?.is_none() {
            return Ok(true);
        }
        if self.call.patience == Patience::Background {
            return Ok(false);
        }
        if self.shm.crowded {
            for _ in 0..YIELDS {
                std::thread::yield_now();
                if look(false)?.is_none() {
                    return Ok(true);
                }
            }
            return Ok(false);
        }
        let start = Instant::now();
        while start.elapsed() < LOOK {
            for _ in 0..LOOKS {
                if look(false)?.is_none() {
                    return Ok(true);
                }
                std::hint::spin_loop();
            }
        }
        Ok(false)
    }

    /// Why the wait ends, if it does.
    fn judge(
        &self,
        look: &mut impl FnMut(bool) -> Result<Option<Behind>, Failure>,
    ) -> Result<Option<Result<(), Failure>>, Failure> {
        let Some(behind) = look(true)? else { return Ok(Some(Ok(()))) };
        let obstacle = self.control.failure().or_else(|| self.shm.ended()).or_else(|| {
            let needed = behind.all.iter().chain(self.needed).map(|member| self.shm.members[*member]);
            self.control.obstacle_among(self.sequence, needed).map(Obstacle::failure)
        });
        let failure = match obstacle {
            Some(obstacle) => obstacle,
            None if self.call.deadline.expired() => Failure::Deadline {
                missing: behind.furthest.iter().map(|member| self.shm.members[*member]).collect(),
                last: behind.furthest.iter().map(|member| self.last[*member]).collect(),
                limit: self.call.deadline.limit(),
            },
            None => return Ok(None),
        };
        // The peer may have done its part before it went, and memory has no way on which that could trail.
        Ok(Some(if look(false)?.is_none() { Ok(()) } else { Err(failure) }))
    }
}

/// Sleeps until woken or for `at_most`; whether it was the latter.
fn slept_through(asleep: &std::sync::atomic::AtomicU32, at_most: Duration) -> bool {
    let start = Instant::now();
    mapping::sleep(asleep, 1, at_most);
    start.elapsed() >= at_most
}
