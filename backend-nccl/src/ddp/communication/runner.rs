//! Runs a hook: on the communication thread for each bucket, and at the end of a step.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use burn::tensor::Bytes;
use sha2::{Digest, Sha256};

use super::{BucketLayout, CommunicationHook, GradientBucket, HookError, HookState};
use crate::error::{Error, Result};
use crate::group::{ProcessGroup, Work};
use crate::transport::ReduceOp;

/// What is the same for all buckets of a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    pub(crate) op: ReduceOp,
    pub(crate) loss_scale: f32,
}

/// A hook with the buckets that it averages.
#[derive(Debug)]
pub(crate) struct Communicator {
    name: String,
    places: u64,
    layouts: Arc<[BucketLayout]>,
    hook: Arc<Mutex<Box<dyn CommunicationHook>>>,
}

impl Communicator {
    /// Prepares `hook` for the buckets.
    ///
    /// # Errors
    /// [`Error::CommunicationHookRefused`], the same on every rank.
    pub(crate) fn new(
        mut hook: Box<dyn CommunicationHook>,
        layouts: Vec<BucketLayout>,
        group: &ProcessGroup,
    ) -> Result<Self> {
        let name = hook.name();
        hook.prepare(&layouts, group.world_size()).map_err(|error| Error::CommunicationHookRefused {
            hook: name.clone(),
            reason: error.to_string(),
        })?;
        let places = hook.collectives();
        if places == 0 {
            let reason = "it has no collective, so that ranks would keep gradients of their own; return at least 1 from CommunicationHook::collectives";
            return Err(Error::CommunicationHookRefused { hook: name, reason: reason.into() });
        }
        let (layouts, hook) = (layouts.into(), Arc::new(Mutex::new(hook)));
        Ok(Self { name, places, layouts, hook })
    }

    /// Starts to average a bucket, and takes its places in the order of collectives.
    pub(crate) fn start(
        &self,
        group: &ProcessGroup,
        index: usize,
        mut bytes: Bytes,
        terms: Terms,
    ) -> Work<Bytes> {
        let (layouts, hook) = (self.layouts.clone(), self.hook.clone());
        let (name, rank) = (self.name.clone(), group.rank());
        group.reserve_async(self.places, move |collectives| {
            let mut bucket = view(&layouts[index], &mut bytes, terms, &[]);
            let averaged = guarded(|| lock(&hook).average(&mut bucket, collectives));
            averaged.map_err(|error| failed(name, format!("bucket {index}"), rank, error))?;
            Ok(bytes)
        })
    }

    /// Ends a step. `used` tells of each parameter of each bucket whether any rank had a gradient for it.
    ///
    /// # Errors
    /// [`Error::CommunicationHook`], after ending the group.
    pub(crate) fn finish(
        &self,
        group: &ProcessGroup,
        buckets: &mut [Bytes],
        used: &[Vec<bool>],
        terms: Terms,
    ) -> Result<()> {
        let parts = self.layouts.iter().zip(buckets).zip(used);
        let mut views: Vec<GradientBucket<'_>> =
            parts.map(|((layout, bytes), used)| view(layout, bytes, terms, used)).collect();
        guarded(|| lock(&self.hook).finish(&mut views)).map_err(|error| {
            let error = failed(self.name.clone(), "the end of a step".into(), group.rank(), error);
            group.abort(&error.to_string());
            error
        })
    }

    pub(crate) fn state(&self) -> Option<HookState> {
        lock(&self.hook).state()
    }

    /// Loads a state on all ranks, or on none.
    ///
    /// # Errors
    /// [`Error::CommunicationHookState`] on the ranks whose state does not fit, and on all where the shared parts differ.
    pub(crate) fn load_state(&self, group: &ProcessGroup, state: &HookState) -> Result<()> {
        let refused = |reason: String| Error::CommunicationHookState { hook: self.name.clone(), reason };
        let before = lock(&self.hook).state();
        let loaded = guarded(|| lock(&self.hook).load_state(state));
        let mut vote = vec![u8::from(loaded.is_ok())];
        vote.extend(Sha256::digest(&state.shared));
        let votes = group.all_gather_bytes(&vote)?;
        let reason = if let Err(error) = loaded {
            error.to_string()
        } else if let Some(rank) = votes.iter().position(|vote| vote.first() != Some(&1)) {
            format!("rank {rank} cannot load its own, read its error")
        } else if let Some(rank) = votes.iter().position(|vote| *vote != votes[0]) {
            format!("rank {rank} has another than rank 0, and what ranks share must be equal")
        } else {
            return Ok(());
        };
        // What was there before came from this hook, so it loads.
        if let Some(before) = before {
            lock(&self.hook).load_state(&before).map_err(|error| refused(error.to_string()))?;
        }
        Err(refused(reason))
    }
}

fn view<'a>(
    layout: &'a BucketLayout,
    bytes: &'a mut [u8],
    terms: Terms,
    used: &'a [bool],
) -> GradientBucket<'a> {
    let Terms { op, loss_scale } = terms;
    GradientBucket { layout, bytes: &mut bytes[..layout.len_bytes], op, loss_scale, used }
}

/// A panic in a user's hook is an error with the hook's name.
fn guarded<T>(run: impl FnOnce() -> Result<T, HookError>) -> Result<T, HookError> {
    catch_unwind(AssertUnwindSafe(run))
        .unwrap_or_else(|_| Err("it panicked, read the log for the message".into()))
}

/// The failure of the group where that is the hook's error, else the hook's own.
fn failed(hook: String, place: String, rank: usize, error: HookError) -> Error {
    match error.downcast::<Error>() {
        Ok(error) if error.failure().is_some() => *error,
        Ok(error) => Error::CommunicationHook { hook, place, rank, cause: Arc::new(*error) },
        Err(error) => Error::CommunicationHook { hook, place, rank, cause: error.into() },
    }
}

fn lock(hook: &Mutex<Box<dyn CommunicationHook>>) -> MutexGuard<'_, Box<dyn CommunicationHook>> {
    hook.lock().unwrap_or_else(PoisonError::into_inner)
}
