//! Several groups in one job.

use burn_nccl::{DType, Error, Failure, ReduceOp};
use serde::{Deserialize, Serialize};

use crate::fault::{Manner, commit};
use crate::report::{Report, Trained};
use crate::training::{Training, group};

const TIMEOUT_SECONDS: u64 = 60;

/// Two halves of a job that train at the same time, each a model of its own.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Halves(pub [Training; 2]);

impl Halves {
    /// Trains in one of the halves; a collective of the whole job is under way all the time.
    ///
    /// # Errors
    /// What the groups or data-parallel training return.
    ///
    /// # Panics
    /// If the whole job adds up wrongly.
    pub fn train(&self) -> Result<Trained, Error> {
        let whole = group(TIMEOUT_SECONDS)?;
        let half = usize::from(whole.rank() >= whole.world_size() / 2);
        let Some(part) = whole.split(Some(half as u32), 0)? else { unreachable!("it has a color") };
        // One half may have trained to its end before the other lets this finish.
        let sum = whole.all_reduce_async(1i64.to_ne_bytes(), DType::I64, ReduceOp::Sum);
        let trained = self.0[half].in_group(&part)?;
        assert_eq!(i64::from_ne_bytes(sum.wait()?), whole.world_size() as i64);
        Ok(trained)
    }
}

/// The last rank dies; those that have a group without it go on there. Returns what the whole job and that group say.
///
/// # Errors
/// What the group of the survivors returns.
///
/// # Panics
/// If the whole job goes on.
pub fn outlive() -> Result<Report, Error> {
    let whole = group(TIMEOUT_SECONDS)?;
    let is_last = whole.rank() + 1 == whole.world_size();
    let Some(part) = whole.split(Some(is_last.into()), 0)? else { unreachable!("it has a color") };
    if is_last {
        commit(Manner::Kill);
    }
    let error = whole.barrier().expect_err("a rank is gone");
    let failure: Option<Failure> = error.failure().cloned();
    let mut number = (part.rank() as i64 + 1).to_ne_bytes();
    part.all_reduce(&mut number, DType::I64, ReduceOp::Sum)?;
    Ok(Report::Outlived { failure, sum: i64::from_ne_bytes(number) })
}
