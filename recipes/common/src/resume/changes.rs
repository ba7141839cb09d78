//! What is different between a checkpoint and the run that goes on from it.

use burn_nccl_records::checkpoint::SamplerState;
use serde_json::{Map, Value};

use crate::config::RunConfig;

/// Chooses batches with which another number of ranks has the same global batch, and so the same steps and learning
/// rates. Leaves a batch that the user has changed, and one that cannot be kept. Says what it did.
pub(super) fn keep_global_batch(
    config: &mut RunConfig,
    before: &SamplerState,
    world_size: usize,
) -> Option<String> {
    let [was_world_size, was_batch, was_accumulate] =
        [before.world_size, before.batch_size, before.accumulate].map(|number| number as usize);
    let is_changed = (config.batch_size, config.accumulate) != (was_batch, was_accumulate);
    if world_size == was_world_size || is_changed {
        return None;
    }
    let global_batch = was_world_size * was_batch * was_accumulate;
    let batches = was_world_size * was_accumulate;
    if batches.is_multiple_of(world_size) {
        // The batches stay as they are, and with them the statistics of batch normalisation.
        config.accumulate = batches / world_size;
    } else if global_batch.is_multiple_of(world_size * was_accumulate) {
        config.batch_size = global_batch / (world_size * was_accumulate);
    } else if global_batch.is_multiple_of(world_size) {
        (config.batch_size, config.accumulate) = (global_batch / world_size, 1);
    } else {
        return Some(format!(
            "world size {was_world_size}, now {world_size}, which cannot share a global batch of {global_batch}: it is \
             {} now, and the learning rate changes with it",
            config.global_batch_size(world_size)
        ));
    }
    Some(format!(
        "world size {was_world_size}, now {world_size}: the global batch stays {global_batch}, with {} images a rank \
         x {} accumulated",
        config.batch_size, config.accumulate
    ))
}

/// The options that are not what the checkpoint's run had, `--lr 0.1, now 0.05`.
pub(super) fn changed_options(before: &Value, now: &Value) -> Vec<String> {
    // Said by `keep_global_batch`, or of no effect on what is computed.
    const QUIET: [&str; 4] = ["nproc-per-node", "batch-size", "accumulate", "workers"];
    let none = Map::new();
    let (before, now) = (before.as_object().unwrap_or(&none), now.as_object().unwrap_or(&none));
    let show = |value: Option<&Value>| match value {
        None | Some(Value::Null) => "not given".to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
    };
    let mut keys: Vec<&String> =
        before.keys().chain(now.keys().filter(|key| !before.contains_key(*key))).collect();
    keys.sort();
    keys.into_iter()
        .filter(|key| !QUIET.contains(&key.as_str()))
        .map(|key| (key, show(before.get(key)), show(now.get(key))))
        .filter(|(_, before, now)| before != now)
        .map(|(key, before, now)| format!("--{key} {before}, now {now}"))
        .collect()
}

/// The optimizer step of a run with `steps_per_epoch` steps that corresponds to a place in an epoch.
pub(super) fn equivalent_step(at: &SamplerState, steps_per_epoch: usize) -> usize {
    let part = at.images as f64 / (at.dataset_len as f64).max(1.0);
    ((at.epoch as f64 + part.min(1.0)) * steps_per_epoch as f64).round() as usize
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config::tests::config;

    fn sampler(world_size: u64, batch_size: u64, accumulate: u64) -> SamplerState {
        SamplerState { epoch: 3, images: 250, seed: 0, dataset_len: 1000, world_size, batch_size, accumulate }
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
        // 2 x 6 x 2 = 3 x 4 x 2; 4 x 3 x 5 = 6 x 10.
        assert_eq!(kept(&sampler(2, 6, 2), 3), (4, 2, true));
        assert_eq!(kept(&sampler(4, 3, 5), 6), (10, 1, true));
        // 2 x 32 is no multiple of 3: the batch of a rank stays.
        assert_eq!(kept(&sampler(2, 32, 1), 3), (32, 1, true));
    }

    #[test]
    fn a_batch_that_the_user_chose_is_not_touched() {
        let mut config = config(&["--batch-size", "8"]);
        assert_eq!(keep_global_batch(&mut config, &sampler(2, 32, 1), 1), None);
        assert_eq!((config.batch_size, config.accumulate), (8, 1));
    }

    #[test]
    fn options_that_changed_are_named_with_both_values() {
        let before =
            json!({"lr": 0.1, "data": "digits", "workers": 1, "clip-grad-norm": null, "wire": "f32"});
        let now = json!({"lr": 0.05, "data": "digits", "workers": 4, "clip-grad-norm": 1.0});
        let expected =
            ["--clip-grad-norm not given, now 1.0", "--lr 0.1, now 0.05", "--wire f32, now not given"];
        assert_eq!(changed_options(&before, &now), expected);
    }

    #[test]
    fn a_place_in_an_epoch_is_a_step_of_a_run_with_other_batches() {
        assert_eq!(equivalent_step(&sampler(2, 32, 1), 100), 325);
        assert_eq!(equivalent_step(&SamplerState { images: 0, ..sampler(2, 32, 1) }, 7), 21);
    }
}
