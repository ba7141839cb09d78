//! Writes the run folder, on rank 0.

use std::path::PathBuf;

use burn_nccl_models::{ResNet, ResNetConfig};
use burn_nccl_records::{SaveOptions, save_model};

use crate::config::RunConfig;
use crate::error::{RecipeError, Result};
use crate::metrics::{Evaluation, MetricsFile, StepRecord, Summary};
use crate::ownership::{self, Job};
use crate::plot::Curves;
use crate::run_folder::{RunFolder, SUMMARY};
use crate::tensorboard::EventFile;

const CONFIG: &str = "config.json";
const METRICS: &str = "metrics.jsonl";

/// Every file of a run but the logs and checkpoints.
#[derive(Debug)]
pub struct Recorder {
    folder: RunFolder,
    metrics: MetricsFile,
    events: EventFile,
    curves: Curves,
}

/// What a run has recorded before it was interrupted.
#[derive(Debug)]
pub struct Resumed {
    /// The step of the checkpoint; later records are dropped.
    pub step: usize,
    /// The curves up to it.
    pub curves: Curves,
    /// The run's folder, where there is one.
    pub run: Option<PathBuf>,
}

impl Recorder {
    /// Starts the records of a run in its folder.
    ///
    /// # Errors
    /// Where a file cannot be written.
    pub fn create(folder: RunFolder, config: &RunConfig) -> Result<Self> {
        ownership::mark(&folder, Job::current().as_ref())?;
        folder.write_json(CONFIG, config)?;
        let metrics = MetricsFile::create(folder.file(METRICS))?;
        let events = EventFile::create(folder.path())?;
        Ok(Self { folder, metrics, events, curves: Curves::default() })
    }

    /// Goes on with the records of a run that `resumed`, in its folder or another.
    ///
    /// # Errors
    /// Where a file cannot be read or written.
    pub fn resume(folder: RunFolder, config: &RunConfig, resumed: Resumed) -> Result<Self> {
        let Resumed { step, curves, run } = resumed;
        let from = run.as_deref().unwrap_or(folder.path()).join(METRICS);
        ownership::mark(&folder, Job::current().as_ref())?;
        // It says that the run is complete, which it is no longer.
        folder.remove(SUMMARY)?;
        folder.write_json(CONFIG, config)?;
        let metrics = MetricsFile::resume(&folder, METRICS, &from, step)?;
        let mut events = EventFile::create(folder.path())?;
        events.restart(step)?;
        Ok(Self { folder, metrics, events, curves })
    }

    /// The curves so far.
    pub fn curves(&self) -> &Curves {
        &self.curves
    }

    /// Records a step.
    ///
    /// # Errors
    /// Where a file cannot be written.
    pub fn step(&mut self, record: &StepRecord) -> Result<()> {
        self.metrics.push(record)?;
        // A skipped step may have a loss that is not a number.
        if record.loss.is_finite() {
            self.curves.loss.push((record.step, record.loss));
        }
        let mut values = vec![
            ("train/loss", record.loss),
            ("train/lr", record.lr),
            ("speed/images_per_second", record.images_per_second),
            ("speed/data_wait_seconds", record.data_wait_seconds),
            ("speed/comm_exposed_seconds", record.comm_exposed_seconds),
        ];
        values.extend(record.loss_scale.map(|scale| ("train/loss_scale", scale)));
        values.extend(record.skipped.map(|skipped| ("train/skipped", f64::from(u8::from(skipped)))));
        values.extend(record.grad_norm.map(|norm| ("train/grad_norm", norm)));
        self.events.scalars(record.step, &values)
    }

    /// Records an evaluation after `step`.
    ///
    /// # Errors
    /// Where a file cannot be written.
    pub fn evaluation(&mut self, step: usize, evaluation: &Evaluation) -> Result<()> {
        self.curves.accuracy.push((step, evaluation.accuracy()));
        self.events.scalars(step, &[("test/accuracy", evaluation.accuracy()), ("test/loss", evaluation.loss)])
    }

    /// Saves weights, picture and summary, the summary last: where it is, the run is complete.
    ///
    /// # Errors
    /// Where a file cannot be written.
    pub fn finish(
        &self,
        config: &ResNetConfig,
        model: &ResNet,
        title: &str,
        summary: &Summary,
    ) -> Result<()> {
        let weights = self.folder.file("model.bpk");
        save_model(config, model, &weights, &SaveOptions::default())
            .map_err(|error| RecipeError::records(format!("cannot write {}", weights.display()), error))?;
        self.folder.write("loss.svg", self.curves.svg(title)?.as_bytes())?;
        self.folder.write_json(SUMMARY, summary)
    }

    /// Saves what there is of a run that a signal has stopped; its weights are in its checkpoint.
    ///
    /// # Errors
    /// Where a file cannot be written.
    pub fn interrupt(&self, title: &str, summary: &Summary) -> Result<()> {
        self.folder.write("loss.svg", self.curves.svg(title)?.as_bytes())?;
        self.folder.write_json(SUMMARY, summary)
    }

    /// The run's folder.
    pub fn folder(&self) -> &RunFolder {
        &self.folder
    }
}
