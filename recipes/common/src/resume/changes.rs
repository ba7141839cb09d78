//! What is different between a checkpoint and the run that goes on from it.

use burn_nccl_records::checkpoint::{SamplerState, TrainingState};
use serde_json::Value;

use crate::config::RunConfig;
use crate::wire::Wire;

/// The key of the state's extras under which [`Position::schedule_offset`] is.
pub(crate) const SCHEDULE_OFFSET: &str = "schedule_offset";
/// The key under which [`skipped_steps`] are.
pub(crate) const SKIPPED_STEPS: &str = "skipped_steps";

/// Far beyond any training, and far enough from the end of the integers for sums and products of two of them.
const MANY: u64 = 1 << 40;

/// Where the loop goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Position {
    /// Optimizer steps so far.
    pub(crate) steps: usize,
    /// Epochs so far.
    pub(crate) epochs: usize,
    /// Images of all ranks so far in the epoch that follows them.
    pub(crate) images: usize,
    /// What is added to a step to find its learning rate: not zero after a change of the global batch.
    pub(crate) schedule_offset: i64,
}

impl Position {
    /// The step of the schedule that the run's step number `step` is.
    pub(crate) fn scheduled(self, step: usize) -> usize {
        step.saturating_add_signed(self.schedule_offset as isize)
    }
}

/// The state of the sampler, if a training can go on from `state`; else why not. The file may come from anywhere.
pub(super) fn check(state: &TrainingState) -> Result<&SamplerState, String> {
    let at = state.sampler.as_ref().ok_or("it does not say which images were used")?;
    let counts = [
        ("world_size", at.world_size, 1 << 20),
        ("batch_size", at.batch_size, 1 << 30),
        ("accumulate", at.accumulate, 1 << 30),
        ("dataset_len", at.dataset_len, MANY),
    ];
    for (name, count, most) in counts {
        if !(1..=most).contains(&count) {
            return Err(format!("its {name} is {count}, which none of a training can be"));
        }
    }
    let offset = offset(state).unsigned_abs();
    let skipped = skipped_steps(state);
    for (name, count) in
        [("step", state.step), ("epoch", at.epoch), (SCHEDULE_OFFSET, offset), (SKIPPED_STEPS, skipped)]
    {
        if count > MANY {
            return Err(format!("its {name} is {count}, which none of a training can be"));
        }
    }
    // An epoch may be filled up so that all ranks have as many images.
    if at.images > at.dataset_len + at.world_size {
        return Err(format!("it has used {} of {} images", at.images, at.dataset_len));
    }
    Ok(at)
}

/// Where a loop goes on that has `global_batch` images a step and so many steps an epoch.
pub(super) fn position(
    state: &TrainingState,
    at: &SamplerState,
    global_batch: usize,
    steps_per_epoch: usize,
) -> Position {
    let steps = state.step as usize;
    let was_global_batch = at.world_size.saturating_mul(at.batch_size).saturating_mul(at.accumulate);
    let schedule_offset = if was_global_batch == global_batch as u64 {
        offset(state)
    } else {
        equivalent_step(at, steps_per_epoch) as i64 - steps as i64
    };
    Position { steps, epochs: at.epoch as usize, images: at.images as usize, schedule_offset }
}

/// Steps that were left out for an overflow.
pub(crate) fn skipped_steps(state: &TrainingState) -> u64 {
    state.extra.get(SKIPPED_STEPS).and_then(Value::as_u64).unwrap_or(0)
}

fn offset(state: &TrainingState) -> i64 {
    state.extra.get(SCHEDULE_OFFSET).and_then(Value::as_i64).unwrap_or(0)
}

/// The optimizer step of a run with `steps_per_epoch` steps that corresponds to a place in an epoch.
fn equivalent_step(at: &SamplerState, steps_per_epoch: usize) -> usize {
    let part = at.images as f64 / at.dataset_len as f64;
    ((at.epoch as f64 + part.min(1.0)) * steps_per_epoch as f64).round() as usize
}

/// Chooses batches with which another number of ranks has the same global batch, and so the same steps and learning
/// rates. Leaves a batch that the user has changed, and one that cannot be kept. Says what comes of another world size.
pub(super) fn keep_global_batch(
    config: &mut RunConfig,
    before: &SamplerState,
    world_size: usize,
) -> Option<String> {
    let [was_world_size, was_batch, was_accumulate] =
        [before.world_size, before.batch_size, before.accumulate].map(|number| number as usize);
    if world_size == was_world_size {
        return None;
    }
    let batches = was_world_size.saturating_mul(was_accumulate);
    let global_batch = batches.saturating_mul(was_batch);
    let change = format!("world size {was_world_size}, now {world_size}");
    if (config.batch_size, config.accumulate) != (was_batch, was_accumulate) {
        let now = config.global_batch_size(world_size);
        return Some(format!("{change}: the global batch was {global_batch} and is {now} now"));
    }
    if batches.is_multiple_of(world_size) {
        // The batches stay as they are, and with them the statistics of batch normalisation.
        config.accumulate = batches / world_size;
    } else if global_batch.is_multiple_of(world_size.saturating_mul(was_accumulate)) {
        config.batch_size = global_batch / (world_size * was_accumulate);
    } else if global_batch.is_multiple_of(world_size) {
        (config.batch_size, config.accumulate) = (global_batch / world_size, 1);
    } else {
        return Some(format!(
            "{change}, which cannot share a global batch of {global_batch}: it is {} now, and the learning rate changes \
             with it",
            config.global_batch_size(world_size)
        ));
    }
    Some(format!(
        "{change}: the global batch stays {global_batch}, with {} images a rank x {} accumulated",
        config.batch_size, config.accumulate
    ))
}

/// What a way to send gradients had kept, which is each rank's own and as large as the model, and no checkpoint holds.
pub(super) fn begun_anew(wire: Wire) -> Option<String> {
    match wire {
        Wire::F32 | Wire::F16 | Wire::Bf16 => None,
        Wire::PowerSgd { start, .. } => Some(format!(
            "--wire {wire} begins anew: gradients are sent whole for {start} steps, and what approximations left out before \
             is lost"
        )),
    }
}

/// The options that are not what the checkpoint's run had, `--lr 0.1, now 0.05`. Of an option that one of the two recipes
/// does not have, only the precision is told: the others are as if they were not given.
pub(super) fn changed_options(before: &Value, now: &Value) -> Vec<String> {
    let show = |value: &Value| match value {
        Value::Null => "not given".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    };
    let full = Value::from("f32");
    let changed = |key: &&str| {
        let absent = (*key == "precision").then_some(&full);
        let (before, now) = (before.get(key).or(absent)?, now.get(key).or(absent)?);
        // How many ranks there are now is told with what comes of it, and workers change nothing.
        let is_told = !matches!(*key, "nproc-per-node" | "workers") && before != now;
        is_told.then(|| format!("--{key} {}, now {}", show(before), show(now)))
    };
    RunConfig::KEYS.iter().filter_map(changed).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::tests::config;

    fn sampler(world_size: u64, batch_size: u64, accumulate: u64) -> SamplerState {
        SamplerState { epoch: 3, images: 250, seed: 0, dataset_len: 1000, world_size, batch_size, accumulate }
    }

    fn state(step: u64, offset: i64, sampler: SamplerState) -> TrainingState {
        let extra = [(SCHEDULE_OFFSET.to_owned(), json!(offset))].into_iter().collect();
        TrainingState { step, sampler: Some(sampler), extra, ..Default::default() }
    }

    /// Batch and accumulation on `world_size` ranks after a run as `before`, and whether something is said.
    fn kept(before: &SamplerState, world_size: usize) -> (usize, usize, bool) {
        let mut config = config(&[]);
        config.batch_size = before.batch_size as usize;
        config.accumulate = before.accumulate as usize;
        let said = keep_global_batch(&mut config, before, world_size).is_some();
        (config.batch_size, config.accumulate, said)
    }

    #[test]
    fn another_number_of_ranks_keeps_the_global_batch_where_it_can() {
        assert_eq!(kept(&sampler(2, 32, 1), 2), (32, 1, false));
        // 2 x 32 = 1 x 32 x 2 = 4 x 16.
        assert_eq!(kept(&sampler(2, 32, 1), 1), (32, 2, true));
        assert_eq!(kept(&sampler(2, 32, 1), 4), (16, 1, true));
        assert_eq!(kept(&sampler(1, 32, 4), 2), (32, 2, true));
        // 2 x 6 x 2 = 3 x 4 x 2; 2 x 3 x 3 = 9 x 2.
        assert_eq!(kept(&sampler(2, 6, 2), 3), (4, 2, true));
        assert_eq!(kept(&sampler(2, 3, 3), 9), (2, 1, true));
        // 2 x 32 is no multiple of 3: the batch of a rank stays.
        assert_eq!(kept(&sampler(2, 32, 1), 3), (32, 1, true));
    }

    #[test]
    fn a_batch_that_the_user_chose_is_not_touched_and_told() {
        let mut chosen = config(&["--batch-size", "8"]);
        let said = keep_global_batch(&mut chosen, &sampler(2, 32, 1), 1).unwrap();
        assert_eq!(said, "world size 2, now 1: the global batch was 64 and is 8 now");
        assert_eq!((chosen.batch_size, chosen.accumulate), (8, 1));
        let (before, now) = (json!({"batch-size": 32}), json!({"batch-size": 8}));
        assert_eq!(changed_options(&before, &now), ["--batch-size 32, now 8"]);
    }

    #[test]
    fn options_that_changed_are_named_with_both_values() {
        let before = json!({"lr": 0.1, "data": "digits", "workers": 1, "clip-grad-norm": null});
        let now = json!({"lr": 0.05, "data": "digits", "workers": 4, "clip-grad-norm": 1.0});
        assert_eq!(
            changed_options(&before, &now),
            ["--lr 0.1, now 0.05", "--clip-grad-norm not given, now 1.0"]
        );
    }

    #[test]
    fn of_another_recipes_options_only_the_precision_is_told() {
        let before = json!({"lr": 0.1, "wire": "f16", "no-overlap": false, "precision": "bf16"});
        assert_eq!(changed_options(&before, &json!({"lr": 0.1})), ["--precision bf16, now f32"]);
        assert_eq!(changed_options(&json!({"lr": 0.1}), &before), ["--precision f32, now bf16"]);
    }

    #[test]
    fn the_place_in_the_schedule_is_kept_with_the_global_batch_and_moved_to_the_same_part_of_an_epoch_without()
     {
        let kept = state(70, -5, sampler(2, 32, 1));
        let at = check(&kept).unwrap();
        let expected = Position { steps: 70, epochs: 3, images: 250, schedule_offset: -5 };
        assert_eq!(position(&kept, at, 64, 100), expected);
        // Three epochs and a quarter of 100 steps are 325 steps.
        assert_eq!(position(&kept, at, 32, 100), Position { schedule_offset: 325 - 70, ..expected });
    }

    #[test]
    fn a_state_that_no_training_can_have_written_is_refused() {
        let good = sampler(2, 32, 1);
        assert!(check(&state(7, 0, good.clone())).is_ok());
        // The last epoch of three ranks is filled up to 1002 images.
        assert!(check(&state(7, 0, SamplerState { images: 1002, world_size: 3, ..good.clone() })).is_ok());
        let cases = [
            ("world_size", state(7, 0, SamplerState { world_size: 0, ..good.clone() })),
            ("world_size", state(7, 0, SamplerState { world_size: 1 << 63, ..good.clone() })),
            ("batch_size", state(7, 0, SamplerState { batch_size: u64::MAX, ..good.clone() })),
            ("accumulate", state(7, 0, SamplerState { accumulate: 0, ..good.clone() })),
            ("dataset_len", state(7, 0, SamplerState { dataset_len: 0, ..good.clone() })),
            ("epoch", state(7, 0, SamplerState { epoch: u64::MAX, ..good.clone() })),
            ("images", state(7, 0, SamplerState { images: u64::MAX, ..good.clone() })),
            ("step", state(u64::MAX, 0, good.clone())),
            ("schedule_offset", state(7, i64::MIN, good.clone())),
            ("images", TrainingState::default()),
            ("skipped_steps", {
                let mut state = state(7, 0, good.clone());
                state.extra.insert(SKIPPED_STEPS.into(), json!(u64::MAX));
                state
            }),
        ];
        for (name, state) in cases {
            assert!(check(&state).unwrap_err().contains(name), "{name}");
        }
    }
}
