//! What a rank says at its end.

use burn::module::Module;
use burn_nccl::{Error, Failure};
use serde::{Deserialize, Serialize};

use crate::fingerprint::{parameters, sha256};
use crate::resuming::Resumed;
use crate::saving::Saved;

/// The exit code of a rank that returned an error.
pub const ERROR_EXIT_CODE: i32 = 3;

/// The last line of a rank on stdout, as JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub enum Report {
    /// It trained to the end.
    Trained(Trained),
    /// It trained to the end with burn-train.
    Learned(Learned),
    /// It evaluated.
    Evaluated {
        /// Right answers on all ranks.
        correct: i64,
        /// Samples on all ranks.
        total: i64,
    },
    /// It added up the ranks' numbers.
    Reduced {
        /// This rank.
        rank: usize,
        /// The number of ranks.
        world_size: usize,
        /// The sum of all ranks' numbers plus one each.
        sum: i64,
    },
    /// It took part in rounds of collectives.
    Exchanged {
        /// This rank.
        rank: usize,
        /// The transport that carried them.
        transport: String,
    },
    /// It went on without a rank that died.
    Outlived {
        /// What the group of all ranks failed of.
        failure: Option<Failure>,
        /// The sum of the survivors' numbers plus one each.
        sum: i64,
    },
    /// It joined, and found its transport as it should be.
    Conformed {
        /// The number of ranks.
        world_size: usize,
        /// What carried the data.
        transport: String,
    },
    /// It saved checkpoints.
    Saved(Saved),
    /// It trained from a checkpoint to a checkpoint.
    Resumed(Resumed),
    /// It returned an error of checkpoints.
    Refused(String),
    /// It returned an error.
    Failed(Failed),
}

/// The end of a training.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Trained {
    /// All parameters and running statistics in visit order.
    pub parameters: Vec<f64>,
    /// Their fingerprint.
    pub sha256: String,
    /// The fingerprint before the first step.
    pub start_sha256: String,
}

/// The end of a training with burn-train.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Learned {
    /// All parameters in visit order.
    pub parameters: Vec<f64>,
    /// Their fingerprint.
    pub sha256: String,
    /// The devices that they are on.
    pub devices: usize,
    /// The epochs that were started.
    pub epochs: usize,
    /// The training batches that were taken from the loader.
    pub batches: usize,
    /// Whether burn-train says that training was interrupted.
    pub interrupted: bool,
    /// The error that burn-train gives.
    pub error: Option<String>,
    /// The loss scale at the end and the optimizer steps that were skipped, where losses are scaled.
    pub scaling: Option<(f32, u64)>,
}

/// A typed error.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failed {
    /// Its text.
    pub text: String,
    /// The cause that ended the group, where that is what happened.
    pub failure: Option<Failure>,
    /// Seconds from the start of the failed collective to its error.
    pub seconds: f64,
}

impl Trained {
    /// The end of a training that began with `start_sha256`.
    pub fn new<M: Module>(model: &M, start_sha256: String) -> Self {
        Self { parameters: parameters(model), sha256: sha256(model), start_sha256 }
    }
}

impl From<&Error> for Failed {
    fn from(error: &Error) -> Self {
        let seconds = match error {
            Error::Collective { elapsed, .. } => elapsed.as_secs_f64(),
            _ => 0.0,
        };
        Self { text: error.to_string(), failure: error.failure().cloned(), seconds }
    }
}
