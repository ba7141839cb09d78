//! The connections that are on their way in, and which of them goes where there are too many.

use std::{
    ops::{Deref, DerefMut},
    time::Duration,
};

use super::{dice::Dice, limits::room_for_strangers, pending::Pending};

/// How many connections may be about to prove themselves, if the limit of open files allows.
const MAX_STRANGERS: usize = 4096;
/// How long each may try, at least, before it loses its place to another: two round trips in a fast network.
pub(super) const SHORTEST_STAY: Duration = Duration::from_millis(2);
/// How many are looked at to find one that goes.
const CANDIDATES: usize = 8;

/// Connections in no order.
#[derive(Debug)]
pub(super) struct Crowd {
    all: Vec<Pending>,
    /// How many of them may be strangers.
    pub(super) most: usize,
    dice: Dice,
}

impl Crowd {
    pub(super) fn new() -> Self {
        Self { all: Vec::new(), most: room_for_strangers(MAX_STRANGERS), dice: Dice::new() }
    }

    pub(super) fn strangers(&self) -> usize {
        self.all.iter().filter(|caller| caller.is_stranger()).count()
    }

    /// Sends a stranger away if there is one too many; whether there is room for another now.
    pub(super) fn make_place(&mut self) -> bool {
        if self.all.len() <= self.most || self.strangers() <= self.most {
            return true;
        }
        let Some(at) = self.victim() else { return false };
        drop(self.all.swap_remove(at));
        true
    }

    /// A stranger that had its chance, and rather one that has not even greeted; `None` if all are too new.
    fn victim(&mut self) -> Option<usize> {
        let mut victim = None;
        for _ in 0..CANDIDATES {
            let at = self.dice.below(self.all.len());
            let caller = &self.all[at];
            if caller.is_stranger() && caller.deadline.elapsed() >= SHORTEST_STAY {
                victim = Some(at);
                if !caller.has_greeted() {
                    break;
                }
            }
        }
        victim
    }

    /// Sends half of the strangers away, and lets no more in again than are left. How many went.
    pub(super) fn halve(&mut self) -> usize {
        let strangers = self.strangers();
        let gone = strangers.div_ceil(2);
        self.most = (strangers - gone).max(1);
        let mut going = gone;
        self.all.retain(|caller| {
            let goes = going > 0 && caller.is_stranger();
            going -= usize::from(goes);
            !goes
        });
        gone
    }
}

impl Deref for Crowd {
    type Target = Vec<Pending>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl DerefMut for Crowd {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.all
    }
}
