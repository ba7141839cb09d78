//! Gives a group to the layers inside a model.
//!
//! A module's `map` hands only its parameters to the mapper, so a layer cannot be reached from outside by its type.
//! While a scope is open on the thread, each layer's own `map` looks here instead.

use std::cell::RefCell;

use burn::module::{Module, ModuleMapper};

use crate::group::ProcessGroup;

struct Scope {
    group: ProcessGroup,
    /// Synchronized layers met so far.
    layers: usize,
}

thread_local! {
    static SCOPE: RefCell<Option<Scope>> = const { RefCell::new(None) };
}

/// Gives `group` to every synchronized [`SyncBatchNorm`](super::SyncBatchNorm) inside `model` that has no group yet.
pub fn connect<M: Module>(model: M, group: &ProcessGroup) -> M {
    connect_and_count(model, group).0
}

/// As [`connect`], with the number of synchronized layers, those that had a group before included.
pub(crate) fn connect_and_count<M: Module>(model: M, group: &ProcessGroup) -> (M, usize) {
    struct Unchanged;
    impl ModuleMapper for Unchanged {}
    connecting(group, || model.map(&mut Unchanged))
}

/// Runs `body`, in which every synchronized layer that is mapped gets `group`, and counts those layers.
///
/// Loading a record maps a module, which is how the layers of a model that burn-train holds are reached.
pub(crate) fn connecting<R>(group: &ProcessGroup, body: impl FnOnce() -> R) -> (R, usize) {
    let outer = SCOPE.replace(Some(Scope { group: group.clone(), layers: 0 }));
    let restore = Restore(outer);
    let output = body();
    let layers = SCOPE.with_borrow(|scope| scope.as_ref().map_or(0, |scope| scope.layers));
    drop(restore);
    (output, layers)
}

/// What a synchronized layer with `group` has after it was mapped.
pub(super) fn group_in_scope(group: Option<ProcessGroup>) -> Option<ProcessGroup> {
    SCOPE.with_borrow_mut(|scope| match scope {
        Some(scope) => {
            scope.layers += 1;
            group.or_else(|| Some(scope.group.clone()))
        }
        None => group,
    })
}

/// Puts the outer scope back, after a panic too.
struct Restore(Option<Scope>);

impl Drop for Restore {
    fn drop(&mut self) {
        SCOPE.set(self.0.take());
    }
}
