//! [`Checkpointer`]: saving while training goes on, in step with the other ranks.

use std::path::{Path, PathBuf};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use burn::module::Module;
use burn::optim::ModuleOptimizer;
use burn_nccl::ProcessGroup;
use serde::{Deserialize, Serialize};

use super::agreement::{Background, decide, decide_by};
use super::config::{CheckpointConfig, OnFailure};
use super::failure::{self, CheckpointFailure};
use super::find::newest;
use super::folder::Folder;
use super::snapshot::Snapshot;
use super::state::TrainingState;
use super::writer::Writer;
use crate::error::{Error, Result};

/// Saves the checkpoints of a training, on every rank.
///
/// Rank 0 writes, in a thread of its own while training goes on, and tells the others how it went. Every method is a
/// collective: all ranks call the same in the same order, and all return the same. So no rank takes a checkpoint for saved
/// that is not, and none goes on alone after a failure.
///
/// A checkpoint appears as `<folder>/step-N` once all of it is on disk: whenever the training is killed, the newest such
/// folder is a complete checkpoint. The folder is locked for one training; the lock ends with its process.
///
/// Where the group fails before all values have been read, there is no checkpoint: the step that made them may not have
/// ended on the GPU, and then they are wrong. Ranks that leave on purpose do not matter.
///
/// What is saved is what rank 0 holds. In data-parallel training all ranks hold the same, but for the running statistics
/// of a plain batch norm, which are each rank's own; training does not depend on them.
#[derive(Debug)]
pub struct Checkpointer {
    folder: PathBuf,
    on_failure: OnFailure,
    /// On rank 0. Dropped before the group, which must know whether its last handle ends in a panic.
    keeper: Option<Keeper>,
    group: Option<ProcessGroup>,
    /// The step of the save whose end is not known yet.
    pending: Option<u64>,
    pause: Duration,
}

impl Checkpointer {
    /// Takes `folder` for this training: rank 0 creates it where it is missing, locks it, and removes what a training that
    /// died has left half written. The other ranks need not see it.
    ///
    /// # Errors
    /// [`Error::CheckpointFolder`] on every rank, where another training saves in the folder
    /// ([`CheckpointFailure::InUse`]) or it cannot be written; [`Error::Group`].
    pub fn open(
        folder: impl AsRef<Path>,
        config: CheckpointConfig,
        group: Option<&ProcessGroup>,
    ) -> Result<Self> {
        let folder = folder.as_ref().to_path_buf();
        let on_failure = config.on_failure;
        let (sender, keeper) = channel();
        let (path, ranks) = (folder.clone(), group.cloned());
        let taken = decide_by(group, "open", move || {
            let keeper = Keeper::new(&path, config, ranks)?;
            // Nobody takes it where the group has failed: it ends here, and gives the folder free.
            let _ = sender.send(keeper);
            Ok(())
        })?;
        match taken {
            Ok(()) => Ok(Self {
                folder,
                on_failure,
                group: group.cloned(),
                keeper: keeper.try_recv().ok(),
                pending: None,
                pause: Duration::ZERO,
            }),
            Err(failure) => Err(Error::CheckpointFolder { folder, failure }),
        }
    }

    /// Saves a checkpoint of `model`, `optimizer` and `state` as they are now, as `step-N` with the step of `state`.
    ///
    /// Returns once rank 0 holds on to the tensors, before any of them is written. Until it is, updates of parameters and
    /// of the optimizer's state go to new memory, so that there may be two of each, and a copy of the latter in host
    /// memory. If the checkpoint before this is still being written, this waits for it, so that training can be ahead by
    /// one checkpoint at most.
    ///
    /// A checkpoint of the same step is replaced. How this one ends is what the next call says.
    ///
    /// # Errors
    /// [`Error::CheckpointNotSaved`] on every rank if the checkpoint before this could not be written, in which case this
    /// one is not begun; with [`OnFailure::Continue`] rank 0 logs that instead, and this one is.
    /// [`Error::CheckpointFolder`] with [`CheckpointFailure::LaterCheckpoint`] where the folder holds a complete later
    /// checkpoint, whatever is configured. [`Error::CheckpointCalls`] where ranks call different things; [`Error::Group`]
    /// for a rank that is lost.
    pub fn save<M: Module>(
        &mut self,
        model: &M,
        optimizer: &ModuleOptimizer,
        state: TrainingState,
    ) -> Result<()> {
        let start = Instant::now();
        let step = state.step;
        let saved = self.settle(&format!("save of step {step}"), Some(step));
        if saved.is_ok() {
            if let Some(keeper) = &mut self.keeper {
                keeper.write(Snapshot::of(model, optimizer, state));
            }
            self.pending = Some(step);
        }
        self.pause = start.elapsed();
        saved
    }

    /// Returns once the last checkpoint is on disk, on every rank.
    ///
    /// # Errors
    /// As [`save`](Self::save), of that checkpoint.
    pub fn wait(&mut self) -> Result<()> {
        self.settle("wait", None)
    }

    /// As [`wait`](Self::wait), and gives the folder free.
    ///
    /// # Errors
    /// As [`wait`](Self::wait).
    pub fn finish(mut self) -> Result<()> {
        self.settle("finish", None)
    }

    /// Seconds for which the last [`save`](Self::save) held up the training: waiting for the checkpoint before it and for
    /// slower ranks included.
    pub fn pause_seconds(&self) -> f64 {
        self.pause.as_secs_f64()
    }

    /// Has all ranks know how the last save ended, and whether the next, if any, may begin.
    fn settle(&mut self, call: &str, next: Option<u64>) -> Result<()> {
        let keeper = &mut self.keeper;
        let status = decide(self.group.as_ref(), call, |patience| keeper.as_mut()?.status(patience, next))?;
        let pending = self.pending.take();
        if let (Err(failure), Some(step)) = (status.previous, pending) {
            let is_stuck = matches!(failure, CheckpointFailure::TimedOut { .. });
            let error = Error::CheckpointNotSaved { step, folder: self.folder.clone(), failure };
            if self.on_failure == OnFailure::Stop || is_stuck {
                // A checkpoint that is still being written is so in the next call, too.
                self.pending = pending.filter(|_| is_stuck);
                return Err(error);
            }
            if self.keeper.is_some() {
                log::error!("{error}; training goes on");
            }
        }
        status.next.map_err(|failure| Error::CheckpointFolder { folder: self.folder.clone(), failure })
    }
}

/// What rank 0 says when all ranks come together.
#[derive(Serialize, Deserialize)]
struct Status {
    /// How the last save ended.
    previous: failure::Result<()>,
    /// Whether the next may begin.
    next: failure::Result<()>,
}

/// What rank 0 has besides.
struct Keeper {
    folder: PathBuf,
    writer: Writer,
    /// The steps of checkpoints that may be in the folder, without those too early to matter.
    steps: Vec<u64>,
    /// How the last save ended, until all ranks are told.
    previous: Option<failure::Result<()>>,
    /// The look for later checkpoints than a step, while it lasts.
    look: Option<(u64, Background<failure::Result<()>>)>,
}

impl Keeper {
    fn new(path: &Path, config: CheckpointConfig, group: Option<ProcessGroup>) -> failure::Result<Self> {
        let limit = config.write_timeout;
        let folder = Folder::take(path, config, group)?;
        let steps = folder.steps();
        let writer =
            Writer::start(folder, limit).map_err(CheckpointFailure::io("start a thread for", path))?;
        Ok(Self { folder: path.into(), writer, steps, previous: None, look: None })
    }

    fn status(&mut self, patience: Duration, next: Option<u64>) -> Option<Status> {
        if self.previous.is_none() {
            self.previous = Some(self.writer.outcome(patience)?);
        }
        let next = next.map_or(Some(Ok(())), |step| self.check_later(step, patience))?;
        Some(Status { previous: self.previous.take()?, next })
    }

    /// Refuses to save `step` where a later checkpoint is complete, which the next resume would take. To know that, the
    /// later ones are read, which takes as long as it takes.
    fn check_later(&mut self, step: u64, patience: Duration) -> Option<failure::Result<()>> {
        self.steps.retain(|&later| later > step);
        if self.steps.is_empty() {
            return Some(Ok(()));
        }
        let folder = self.folder.clone();
        let (_, look) = match self.look.take() {
            Some(look) if look.0 == step => self.look.insert(look),
            _ => self.look.insert((step, Background::start(move || refuse_later(&folder, step)))),
        };
        let refused = look.poll(patience)?;
        self.look = None;
        Some(refused)
    }

    fn write(&mut self, snapshot: Snapshot) {
        self.steps.push(snapshot.step());
        self.writer.write(snapshot);
    }
}

fn refuse_later(folder: &Path, step: u64) -> failure::Result<()> {
    match newest(folder).map_err(CheckpointFailure::io("read", folder))? {
        (_, Some(TrainingState { step: later, .. })) if later > step => {
            Err(CheckpointFailure::LaterCheckpoint { step: later })
        }
        _ => Ok(()),
    }
}

impl std::fmt::Debug for Keeper {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Keeper").field("folder", &self.folder).finish_non_exhaustive()
    }
}
