//! Where a training stands, besides the tensors.

use burn_nccl::amp::GradScalerState;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The version of `state.json` that this crate writes; it reads this one and the older.
const VERSION: u64 = 1;

/// Where a training stands, besides the tensors: the file `state.json` of a checkpoint.
///
/// [`step`](Self::step) names the checkpoint; everything else is the caller's to fill and to use again.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TrainingState {
    /// Optimizer steps that were made, which is the number in the checkpoint's name.
    pub step: u64,
    /// Epochs that were finished.
    pub epoch: u64,
    /// Where the data stands, in the middle of an epoch too.
    #[serde(default)]
    pub sampler: Option<SamplerState>,
    /// The state of loss scaling.
    #[serde(default)]
    pub scaler: Option<GradScalerState>,
    /// What keep-best compares; one that is not finite is as none.
    #[serde(default)]
    pub metric: Option<f64>,
    /// The configuration of the run.
    #[serde(default)]
    pub config: Value,
    /// The metrics so far.
    #[serde(default)]
    pub history: Value,
    /// Anything else that the caller must find again: the scheduler, counters, names.
    #[serde(default)]
    pub extra: Map<String, Value>,
}

/// How far the data of an epoch is consumed.
///
/// The order of an epoch is a function of `seed`, `epoch` and `dataset_len`, so `images` is all that a resume must
/// skip, on any number of ranks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SamplerState {
    /// The epoch that is under way.
    pub epoch: u64,
    /// Images of all ranks that were consumed in it.
    pub images: u64,
    /// What the order is drawn from, and every other draw by [`step_seed`].
    pub seed: u64,
    /// Samples in the data set.
    pub dataset_len: u64,
    /// The ranks that shared them.
    pub world_size: u64,
    /// Images in a batch of one rank.
    pub batch_size: u64,
    /// Batches of one optimizer step.
    pub accumulate: u64,
}

/// The seed of the random draws of `rank` in `step`: the same whenever it is asked, so that a training that resumes
/// there draws the same numbers, and unrelated for steps and ranks beside each other.
///
/// `mix(mix(mix(seed) ^ step) ^ rank)` with splitmix64's output function.
///
/// Source: G. Steele, D. Lea, C. Flood, "Fast Splittable Pseudorandom Number Generators", 2014.
pub fn step_seed(seed: u64, step: u64, rank: u64) -> u64 {
    [step, rank].into_iter().fold(mix(seed), |state, value| mix(state ^ value))
}

/// splitmix64: a step by the golden ratio, then the finalizer.
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// `state.json`.
#[derive(Serialize)]
struct Written<'a> {
    version: u64,
    state: &'a TrainingState,
}

/// The text of `state.json`.
pub(super) fn encode(state: &TrainingState) -> String {
    let written = Written { version: VERSION, state };
    let mut text = serde_json::to_string_pretty(&written).expect("plain data with text for keys is JSON");
    text.push('\n');
    text
}

/// The state in the text of `state.json`; what is wrong with it otherwise.
pub(super) fn decode(text: &str) -> Result<TrainingState, String> {
    let mut written: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let version = written.get("version").and_then(Value::as_u64).ok_or("it has no `version`")?;
    if version > VERSION {
        return Err(format!(
            "it is of version {version} and this program reads {VERSION}; use a newer program"
        ));
    }
    let state = written.get_mut("state").map(Value::take).ok_or("it has no `state`")?;
    serde_json::from_value(state).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use burn_nccl::amp::ScaleState;
    use serde_json::json;

    use super::*;

    fn scaler() -> GradScalerState {
        let scaling = ScaleState {
            scale: 1.1,
            growth_factor: 1.0 + 1e-15,
            backoff_factor: 1.0 / 3.0,
            growth_interval: 2000,
            growth_tracker: 1234,
        };
        GradScalerState { scaling: Some(scaling) }
    }

    fn state() -> TrainingState {
        TrainingState {
            step: u64::MAX,
            epoch: 3,
            sampler: Some(SamplerState { images: 1 << 60, seed: u64::MAX, ..SamplerState::default() }),
            scaler: Some(scaler()),
            metric: Some(0.1 + 0.2),
            config: json!({ "a \" 1.5 \\": ["\\", "1.5", "-2e3", 7], "empty": {} }),
            history: json!([1e-308, 5e-324, -1.7976931348623157e308, 0.1, -0.5]),
            extra: Map::from_iter([("lr".to_owned(), json!(0.30000000000000004))]),
        }
    }

    #[test]
    fn a_state_comes_back_as_it_was() {
        assert_eq!(decode(&encode(&state())).unwrap(), state());
        assert_eq!(decode(&encode(&TrainingState::default())).unwrap(), TrainingState::default());
    }

    // C14
    #[test]
    fn the_scaler_keeps_its_scale_and_its_growth_tracker() {
        let scaling = decode(&encode(&state())).unwrap().scaler.unwrap().scaling.unwrap();
        assert_eq!((scaling.scale, scaling.growth_tracker), (1.1, 1234));
    }

    #[test]
    fn a_metric_that_is_not_finite_is_none() {
        for metric in [f64::NAN, f64::INFINITY] {
            let state = TrainingState { metric: Some(metric), ..TrainingState::default() };
            assert_eq!(decode(&encode(&state)).unwrap().metric, None);
        }
    }

    #[test]
    fn a_state_of_a_newer_version_is_refused_by_its_number() {
        let error = decode(r#"{"version": 2, "state": {"step": "something new"}}"#).unwrap_err();
        assert!(error.contains("version 2") && error.contains("reads 1"), "{error}");
    }

    /// A whole state with this in it.
    fn with(fields: &str) -> String {
        format!(r#"{{"version": 1, "state": {{"epoch": 0, {fields}}}}}"#)
    }

    #[test]
    fn what_a_caller_left_out_is_empty() {
        let found = decode(&with(r#""step": 1"#)).unwrap();
        assert_eq!(found, TrainingState { step: 1, ..TrainingState::default() });
    }

    #[test]
    fn hostile_states_are_errors() {
        let deep = with(&format!(r#""step": 1, "extra": {}1.5"#, r#"{"a":"#.repeat(100_000)));
        let pickle = "\u{80}\u{2}}q\u{0}.";
        for text in [
            "",
            "null",
            "[]",
            "1",
            "\"",
            "\"\\",
            "{",
            "-",
            "1e",
            "{}",
            r#"{"version": 1}"#,
            r#"{"version": -1, "state": {}}"#,
            r#"{"version": 1.0, "state": {}}"#,
            r#"{"version": 1e999, "state": {}}"#,
            r#"{"version": 1, "state": 7}"#,
            r#"{"version": 1, "state": {}}"#,
            r#"{"version": 1, "state": {"step": 1}}"#,
            &with(r#""step": -1"#),
            &with(r#""step": 1.5"#),
            &with(r#""step": 18446744073709551616"#),
            &with(r#""step": "1""#),
            &with(r#""step": 1, "metric": 1e999"#),
            &with(r#""step": 1, "metric": 1.5.5"#),
            &with(r#""step": 1, "extra": []"#),
            &with(r#""step": 1, "scaler": {"scale": 1.0}"#),
            &with(r#""step": 1, "sampler": {"images": 1}"#),
            &format!("{} trailing", with(r#""step": 1"#)),
            &deep,
            // C17
            pickle,
        ] {
            assert!(decode(text).is_err(), "{}", &text[..text.len().min(80)]);
        }
    }

    #[test]
    fn seeds_are_the_same_whenever_asked_and_differ_by_step_and_rank() {
        // splitmix64's own first outputs for the state 0, of S. Vigna's reference code.
        assert_eq!(mix(0), 0xe220_a839_7b1d_cdaf);
        assert_eq!(mix(0x9e37_79b9_7f4a_7c15), 0x6e78_9e6a_a1b9_65f4);
        assert_eq!(step_seed(1, 2, 3), step_seed(1, 2, 3));
        let mut seeds: Vec<u64> =
            (0..100).flat_map(|step| (0..8).map(move |rank| step_seed(42, step, rank))).collect();
        seeds.sort_unstable();
        seeds.dedup();
        assert_eq!(seeds.len(), 800);
        assert_ne!(step_seed(42, 1, 0), step_seed(42, 0, 1));
        assert_ne!(step_seed(42, 1, 0), step_seed(1, 42, 0));
    }
}
