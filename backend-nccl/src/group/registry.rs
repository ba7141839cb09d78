//! Groups by number: tensor operations carry a plain id, because a graph must not keep a group alive.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use super::Inner;

static NEXT: AtomicU64 = AtomicU64::new(1);
static GROUPS: Mutex<BTreeMap<u64, Weak<Inner>>> = Mutex::new(BTreeMap::new());

/// The number of a group, unique in this process and never used again. Not the same on other ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupId(u64);

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "group {}", self.0)
    }
}

impl GroupId {
    pub(super) fn next() -> Self {
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn register(self, group: Weak<Inner>) {
        GROUPS.lock().unwrap_or_else(PoisonError::into_inner).insert(self.0, group);
    }

    pub(super) fn unregister(self) {
        GROUPS.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.0);
    }

    pub(super) fn find(self) -> Option<std::sync::Arc<Inner>> {
        GROUPS.lock().unwrap_or_else(PoisonError::into_inner).get(&self.0)?.upgrade()
    }
}
