//! What PowerSGD keeps, as bytes: a length in little-endian u32, a header in JSON, then f32 values in little-endian.
//!
//! Matrices go by the names of their parameters, so that a state fits whatever the buckets are.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::{Bucket, PowerSgdConfig};
use crate::ddp::communication::HookState;

const VERSION: u32 = 1;

#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Header {
    version: u32,
    step: u64,
    rank: usize,
    /// The parameters whose values follow, with their numbers.
    parameters: Vec<(String, usize)>,
}

/// Which of the two parts.
#[derive(Clone, Copy)]
enum Part {
    Directions,
    Errors,
}

pub(super) fn save(step: u64, config: &PowerSgdConfig, buckets: &[Bucket]) -> HookState {
    let part = |part| encode(step, config.rank, buckets, part);
    HookState { shared: part(Part::Directions), own: part(Part::Errors) }
}

/// Loads both parts and returns the step. Changes nothing on an error.
pub(super) fn load(
    state: &HookState,
    config: &PowerSgdConfig,
    buckets: &mut [Bucket],
) -> Result<u64, String> {
    let (step, directions) = decode(&state.shared, config.rank, buckets, Part::Directions)?;
    let (own_step, errors) = decode(&state.own, config.rank, buckets, Part::Errors)?;
    if own_step != step {
        return Err(format!("its parts are of different steps, {step} and {own_step}"));
    }
    for (bucket, (directions, errors)) in buckets.iter_mut().zip(directions.into_iter().zip(errors)) {
        (bucket.directions, bucket.errors) = (directions, errors);
    }
    Ok(step)
}

fn encode(step: u64, rank: usize, buckets: &[Bucket], part: Part) -> Vec<u8> {
    let mut header = Header { version: VERSION, step, rank, parameters: Vec::new() };
    let mut values = Vec::new();
    for bucket in buckets {
        for (matrix, name) in bucket.plan.matrices.iter().zip(&bucket.names) {
            let kept = match part {
                Part::Directions => bucket.directions.get(matrix.q.clone()),
                Part::Errors => bucket.errors.get(matrix.error.clone()),
            };
            let Some(kept) = kept else { continue };
            header.parameters.push((name.clone(), kept.len()));
            values.extend(kept.iter().flat_map(|value| value.to_le_bytes()));
        }
    }
    let header = serde_json::to_vec(&header).unwrap_or_default();
    [&(header.len() as u32).to_le_bytes()[..], &header, &values].concat()
}

/// The step, and each bucket's values.
fn decode(bytes: &[u8], rank: usize, buckets: &[Bucket], part: Part) -> Result<(u64, Vec<Vec<f32>>), String> {
    let (length, rest) = bytes.split_first_chunk::<4>().ok_or("it is too short to be one")?;
    let length = u32::from_le_bytes(*length) as usize;
    let (header, values) = rest.split_at_checked(length).ok_or("it is cut off in its header")?;
    let header: Header =
        serde_json::from_slice(header).map_err(|error| format!("its header cannot be read: {error}"))?;
    if header.version != VERSION {
        return Err(format!("it has version {}, and this program reads {VERSION}", header.version));
    }
    if header.rank != rank {
        return Err(format!("it was saved with rank {}, and this run has {rank}", header.rank));
    }
    let mut found = HashMap::new();
    let mut rest = values;
    for (name, count) in &header.parameters {
        let length = count.checked_mul(4).ok_or("its header names an impossible number of values")?;
        let (own, more) = rest.split_at_checked(length).ok_or("it is cut off in its values")?;
        found.insert(name.as_str(), own);
        rest = more;
    }
    if !rest.is_empty() || found.len() != header.parameters.len() {
        return Err("it has more values than its header names".into());
    }
    let none = found.is_empty();
    let mut all = Vec::with_capacity(buckets.len());
    for bucket in buckets {
        let mut of_bucket = Vec::new();
        for (matrix, name) in bucket.plan.matrices.iter().zip(&bucket.names).filter(|_| !none) {
            let expected = match part {
                Part::Directions => matrix.q.len(),
                Part::Errors => matrix.error.len(),
            };
            let own = found.remove(name.as_str()).ok_or_else(|| format!("it lacks `{name}`"))?;
            if own.len() != 4 * expected {
                return Err(format!("`{name}` has {} values in it, expected {expected}", own.len() / 4));
            }
            let value = |bytes: &[u8]| f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            of_bucket.extend(own.chunks_exact(4).map(value));
        }
        all.push(of_bucket);
    }
    match found.keys().next() {
        Some(name) => Err(format!("it has `{name}`, which this model does not compress")),
        None if all.iter().flatten().all(|value| value.is_finite()) => Ok((header.step, all)),
        None => Err("it has values that are not finite".into()),
    }
}
