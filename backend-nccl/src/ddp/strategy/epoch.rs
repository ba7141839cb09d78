//! One epoch on one rank, in step with the others.

use std::sync::{Arc, Mutex, PoisonError};

use burn::optim::GradientsParams;
use burn::train::{
    EventProcessorTraining, InferenceStep, Learner, LearnerEvent, LearnerModel, TrainLoader, TrainStep,
    TrainingItem, ValidLoader,
};

use super::Session;
use crate::amp::{Autocast, GradScaler};
use crate::ddp::{DistributedDataParallel, UnevenInputs};
use crate::error::{Error, Result};
use crate::group::ProcessGroup;
use crate::site::{self, Purpose};
use crate::transport::DType;

/// What a rank tells the others before each step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Status {
    /// It has a micro-batch whose gradients may stay local.
    Batch = 0,
    /// It has a batch after which gradients must be reduced.
    LastOfWindow = 1,
    /// It has no batch left in this epoch.
    Exhausted = 2,
    /// It was interrupted or failed.
    Stopped = 3,
}

/// What all ranks do in the coming step.
#[derive(Debug, PartialEq, Eq)]
enum Plan {
    Accumulate,
    Reduce,
    EndEpoch,
    Stop,
}

/// Decides from all ranks' statuses, equally on every rank.
///
/// If one rank must reduce, all do: accumulation windows stay aligned even where the last one is short.
fn plan(statuses: &[u8], mode: UnevenInputs) -> Result<Plan> {
    let has = |status: Status| statuses.contains(&(status as u8));
    if has(Status::Stopped) {
        return Ok(Plan::Stop);
    }
    let exhausted: Vec<usize> =
        (0..statuses.len()).filter(|&rank| statuses[rank] == Status::Exhausted as u8).collect();
    if exhausted.len() == statuses.len() {
        return Ok(Plan::EndEpoch);
    }
    if !exhausted.is_empty() && matches!(mode, UnevenInputs::Even | UnevenInputs::Strict) {
        return Err(Error::UnevenInputs { exhausted, world_size: statuses.len() });
    }
    Ok(if has(Status::LastOfWindow) { Plan::Reduce } else { Plan::Accumulate })
}

fn exchange(group: &ProcessGroup, own: Status, mode: UnevenInputs) -> Result<Plan> {
    let mut statuses = vec![0; group.world_size()];
    let _site = site::on_behalf_of(Purpose::Of("the agreement on the next step"));
    group.all_gather(&[own as u8], &mut statuses, DType::U8)?;
    plan(&statuses, mode)
}

/// Trains one epoch.
pub(super) struct TrainEpoch<M: LearnerModel> {
    pub(super) loader: TrainLoader<M>,
    /// Micro-batches per optimizer step.
    pub(super) accumulation: usize,
    pub(super) uneven_inputs: UnevenInputs,
    /// Makes the copy of the model that a step runs on.
    pub(super) autocast: Autocast,
    pub(super) scaler: Option<Arc<Mutex<GradScaler>>>,
}

impl<M: LearnerModel> TrainEpoch<M> {
    pub(super) fn run(
        &self,
        epoch: usize,
        learner: &mut Learner<M>,
        ddp: &mut DistributedDataParallel,
        session: &mut Session<'_, M>,
    ) -> Result<()> {
        let total_items = self.loader.num_items() * session.group.world_size();
        session.emit(|processor| {
            processor.process_train(LearnerEvent::StartSplit { epoch_number: epoch, total_items })
        });
        let mut batches = self.loader.iter();
        let (mut iteration, mut in_window) = (0, 0);
        loop {
            let batch = match batches.next().transpose() {
                Ok(batch) => batch,
                Err(error) => {
                    session.interrupter.fail(error);
                    None
                }
            };
            let progress = batches.progress();
            let own = match &batch {
                _ if session.interrupter.should_stop() => Status::Stopped,
                None => Status::Exhausted,
                Some(_) if in_window + 1 >= self.accumulation || progress.is_completed() => {
                    Status::LastOfWindow
                }
                Some(_) => Status::Batch,
            };
            let plan = exchange(session.group, own, self.uneven_inputs)?;
            match plan {
                Plan::Stop | Plan::EndEpoch => break,
                Plan::Accumulate => in_window += 1,
                Plan::Reduce => in_window = 0,
            }
            let reduces = plan == Plan::Reduce;
            iteration += session.group.world_size();
            let Some(batch) = batch else {
                if reduces && let Some(gradients) = ddp.shadow(&learner.model())? {
                    self.optimize(learner, gradients)?;
                }
                continue;
            };
            let output = self.step(batch, reduces, learner, ddp)?;
            let progress = session.global(progress);
            let item = TrainingItem::new(output, progress, Some(iteration), Some(learner.lr_current()));
            session.emit(|processor| processor.process_train(LearnerEvent::ProcessedItem(item)));
        }
        session.emit(|processor| processor.process_train(LearnerEvent::EndSplit(epoch)));
        Ok(())
    }

    /// Forward and backward on the hooked model, and the optimizer step where gradients are reduced.
    fn step(
        &self,
        batch: <M as TrainStep>::Input,
        reduces: bool,
        learner: &mut Learner<M>,
        ddp: &mut DistributedDataParallel,
    ) -> Result<<M as TrainStep>::Output> {
        let model = learner.model();
        let hooked = self.autocast.module(&ddp.hook(&model)?)?;
        // The step's own gradients are empty: the hooked module's parameters are no leaves.
        if !reduces {
            return ddp.accumulate_during(|| TrainStep::step(&hooked, batch).item);
        }
        let (output, gradients) = ddp.reduce_during(&model, || TrainStep::step(&hooked, batch).item)?;
        drop((model, hooked));
        self.optimize(learner, gradients)?;
        Ok(output)
    }

    /// Takes the optimizer step, unless gradients overflowed.
    fn optimize(&self, learner: &mut Learner<M>, gradients: GradientsParams) -> Result<()> {
        let mut gradients = Some(gradients);
        if let Some(scaler) = &self.scaler {
            let mut scaler = scaler.lock().unwrap_or_else(PoisonError::into_inner);
            gradients = scaler.optimizer(0).gate(&learner.model(), gradients.unwrap_or_default())?;
            scaler.update()?;
        }
        if let Some(gradients) = gradients {
            learner.lr_step();
            learner.optimizer_step(gradients);
        }
        Ok(())
    }
}

/// Validates on the whole validation set.
pub(super) fn valid_epoch<M: LearnerModel>(
    epoch: usize,
    learner: &Learner<M>,
    loader: &ValidLoader<M>,
    session: &mut Session<'_, M>,
) {
    let total_items = loader.num_items();
    session.emit(|processor| {
        processor.process_valid(LearnerEvent::StartSplit { epoch_number: epoch, total_items })
    });
    let model = learner.model().valid();
    let mut batches = loader.iter();
    let mut iteration = 0;
    while let Some(batch) = batches.next() {
        match batch {
            Ok(batch) => {
                iteration += 1;
                let output = InferenceStep::step(&model, batch);
                let item = TrainingItem::new(output, batches.progress(), Some(iteration), None);
                session.emit(|processor| processor.process_valid(LearnerEvent::ProcessedItem(item)));
            }
            Err(error) => session.interrupter.fail(error),
        }
        if session.interrupter.should_stop() {
            break;
        }
    }
    session.emit(|processor| processor.process_valid(LearnerEvent::EndSplit(epoch)));
}

#[cfg(test)]
mod tests {
    use super::*;

    const BATCH: u8 = Status::Batch as u8;
    const LAST: u8 = Status::LastOfWindow as u8;
    const EXHAUSTED: u8 = Status::Exhausted as u8;
    const STOPPED: u8 = Status::Stopped as u8;

    #[test]
    fn one_rank_that_must_reduce_makes_all_reduce() {
        assert_eq!(plan(&[BATCH, BATCH], UnevenInputs::Even).unwrap(), Plan::Accumulate);
        assert_eq!(plan(&[BATCH, LAST], UnevenInputs::Even).unwrap(), Plan::Reduce);
        assert_eq!(plan(&[EXHAUSTED, LAST], UnevenInputs::JoinActive).unwrap(), Plan::Reduce);
    }

    #[test]
    fn a_stopped_rank_stops_all_whatever_the_others_have() {
        assert_eq!(plan(&[LAST, STOPPED, EXHAUSTED], UnevenInputs::Even).unwrap(), Plan::Stop);
    }

    #[test]
    fn an_epoch_ends_when_every_rank_is_exhausted() {
        assert_eq!(plan(&[EXHAUSTED, EXHAUSTED], UnevenInputs::Even).unwrap(), Plan::EndEpoch);
    }

    #[test]
    fn ranks_without_data_are_named_unless_joining_is_allowed() {
        let error = plan(&[LAST, EXHAUSTED, LAST], UnevenInputs::Even).unwrap_err();
        assert!(matches!(error, Error::UnevenInputs { exhausted, world_size: 3 } if exhausted == [1]));
    }
}
