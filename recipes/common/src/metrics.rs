//! What is measured in a run.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::error::{RecipeError, Result};
use crate::run_folder::RunFolder;

/// One line of `metrics.jsonl`.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepRecord {
    /// The step, counted from 1.
    pub step: usize,
    /// The epoch it is in, counted from 1.
    pub epoch: usize,
    /// The training loss, the mean over all ranks; `null` in JSON where it is not finite, in a skipped step.
    pub loss: f64,
    /// The learning rate of the step.
    pub lr: f64,
    /// Images of all ranks per second of this step.
    pub images_per_second: f64,
    /// Seconds that rank 0 waited for its batch.
    pub data_wait_seconds: f64,
    /// Seconds that rank 0 waited for gradients after its backward pass; see [`StepBreakdown`] for GPUs.
    pub comm_exposed_seconds: f64,
    /// The factor that the loss was multiplied by, where gradients are scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale: Option<f64>,
    /// Whether gradients overflowed and the weights were left alone, where gradients are scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped: Option<bool>,
    /// The global norm of the gradient before clipping, where it is clipped; `null` where it is not finite.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub grad_norm: Option<f64>,
}

/// The accuracy on the test images of all ranks, each counted once.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Evaluation {
    /// Images that were classified.
    pub examples: u64,
    /// Images whose largest logit is that of their class.
    pub correct: u64,
    /// Mean cross-entropy, without label smoothing.
    pub loss: f64,
}

impl Evaluation {
    /// The share of images that are classified correctly, 0 to 1.
    pub fn accuracy(&self) -> f64 {
        if self.examples == 0 { 0.0 } else { self.correct as f64 / self.examples as f64 }
    }
}

/// Seconds that a step spends in its parts, on one rank.
///
/// They are measured on the host, which hands its work to a GPU and goes on: there the times of the forward pass, the
/// backward pass and the optimizer are those of handing over. So is that of waiting for gradients where
/// [`stream_ordering`](Summary::stream_ordering) is `context-events`. What the GPU still has to do then shows where the host
/// waits for it next, such as for the loss; the time of the whole step stays true on average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct StepBreakdown {
    /// Waiting for the batch.
    pub data: f64,
    /// Forward pass and loss.
    pub forward: f64,
    /// Backward pass, with the communication that it hides.
    pub backward: f64,
    /// Waiting for gradients after the backward pass.
    pub comm_exposed: f64,
    /// Optimizer step.
    pub optimizer: f64,
}

/// The durations of all steps, from which the summary's figures come.
///
/// The first step is left out of them where there are others: it allocates memory, and compiles kernels on a GPU.
#[derive(Clone, Debug, Default)]
pub struct StepTimes {
    steps: Vec<StepTime>,
}

#[derive(Clone, Copy, Debug)]
struct StepTime {
    seconds: f64,
    images: usize,
    breakdown: StepBreakdown,
}

impl StepTimes {
    /// Adds a step of `seconds` in all, on `images` images over all ranks.
    pub fn push(&mut self, seconds: f64, images: usize, breakdown: StepBreakdown) {
        self.steps.push(StepTime { seconds, images, breakdown });
    }

    fn counted(&self) -> &[StepTime] {
        if self.steps.len() > 1 { &self.steps[1..] } else { &self.steps }
    }

    /// The median duration of a step in seconds, 0 without any.
    pub fn median(&self) -> f64 {
        let mut seconds: Vec<f64> = self.counted().iter().map(|step| step.seconds).collect();
        seconds.sort_by(f64::total_cmp);
        match seconds.len() {
            0 => 0.0,
            count if count % 2 == 1 => seconds[count / 2],
            count => (seconds[count / 2 - 1] + seconds[count / 2]) / 2.0,
        }
    }

    /// Images per second of training, evaluation not counted.
    pub fn images_per_second(&self) -> f64 {
        let seconds: f64 = self.counted().iter().map(|step| step.seconds).sum();
        let images: usize = self.counted().iter().map(|step| step.images).sum();
        if seconds == 0.0 { 0.0 } else { images as f64 / seconds }
    }

    /// The mean seconds of each part.
    pub fn mean_breakdown(&self) -> StepBreakdown {
        let count = self.counted().len().max(1) as f64;
        let mean = |part: fn(&StepBreakdown) -> f64| {
            self.counted().iter().map(|step| part(&step.breakdown)).sum::<f64>() / count
        };
        StepBreakdown {
            data: mean(|step| step.data),
            forward: mean(|step| step.forward),
            backward: mean(|step| step.backward),
            comm_exposed: mean(|step| step.comm_exposed),
            optimizer: mean(|step| step.optimizer),
        }
    }
}

/// `summary.json`.
#[derive(Clone, Debug, Serialize)]
pub struct Summary {
    /// The recipe's name.
    pub recipe: String,
    /// The backend that computed: `flex`, `ndarray` or `cuda`.
    pub backend: String,
    /// Rank 0's device.
    pub device: String,
    /// The product name of rank 0's GPU, where it computes on one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<String>,
    /// The version of the NCCL that carried tensors of the GPUs, where one did; whether gradients were among them is
    /// what [`bucket_storage`](Self::bucket_storage) tells.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nccl_version: Option<String>,
    /// How NCCL's stream was ordered with the computation: `context-events` or `host-fence`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stream_ordering: Option<String>,
    /// Where gradients of several ranks that compute on GPUs are averaged: on the `device`, or in `host` memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bucket_storage: Option<&'static str>,
    /// Number of ranks.
    pub world_size: usize,
    /// The network.
    pub model: String,
    /// Element type of convolutions and matrix products.
    pub precision: String,
    /// The normalisation: `batch` or `sync-batch`.
    pub norm: &'static str,
    /// Images per batch and rank.
    pub batch_size: usize,
    /// Batches per optimizer step.
    pub accumulate: usize,
    /// Images of all ranks in one optimizer step.
    pub global_batch_size: usize,
    /// Trainable values of the network.
    pub parameters: usize,
    /// Optimizer steps.
    pub steps: usize,
    /// The step of the checkpoint that the run went on from; the figures of speed and time are of what followed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumed_from_step: Option<usize>,
    /// The longest time that training stood still for a checkpoint, where there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoint_pause_seconds: Option<f64>,
    /// Epochs that were completed.
    pub epochs: usize,
    /// Training images per second over all ranks, without evaluation and without the first step.
    pub images_per_second: f64,
    /// Median duration of a step on rank 0.
    pub step_seconds_median: f64,
    /// Mean loss over ranks of the last step whose loss is finite.
    pub train_loss_final: f64,
    /// The loss scale at the end, where gradients are scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub loss_scale_final: Option<f64>,
    /// Steps that were skipped for an overflow, where gradients are scaled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub skipped_steps: Option<u64>,
    /// Whether a signal has stopped the run before its end; it can go on.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub interrupted: bool,
    /// Share of test images that the final weights classify correctly, 0 to 1; none where a signal stopped the run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub test_accuracy: Option<f64>,
    /// Number of test images.
    pub test_examples: u64,
    /// Largest resident memory of rank 0's process, where the system tells.
    pub peak_memory_bytes: Option<u64>,
    /// SHA-256 of the final parameters, see [`parameters_sha256`](crate::parameters::parameters_sha256).
    pub parameters_sha256: String,
    /// From the start of the process to the summary.
    pub seconds_total: f64,
    /// Mean seconds per step of rank 0.
    pub step_breakdown: StepBreakdown,
}

/// Appends to `metrics.jsonl`. A line is written at once, so that a run that is killed keeps what it has measured.
#[derive(Debug)]
pub struct MetricsFile {
    path: PathBuf,
    file: File,
}

impl MetricsFile {
    /// Creates the file.
    ///
    /// # Errors
    /// Where that is not possible.
    pub fn create(path: PathBuf) -> Result<Self> {
        let file = File::create(&path).map_err(|error| RecipeError::file("create", &path, error))?;
        Ok(Self { path, file })
    }

    /// Goes on with a file of which the first `step` steps are kept.
    ///
    /// # Errors
    /// Where it cannot be read or written.
    pub fn resume(folder: &RunFolder, name: &str, from: &Path, step: usize) -> Result<Self> {
        let text = match std::fs::read_to_string(from) {
            Ok(text) => text,
            // The checkpoint may have been taken out of its run.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(RecipeError::file("read", from, error)),
        };
        folder.write(name, kept_lines(&text, step).as_bytes())?;
        let path = folder.file(name);
        let file = File::options().append(true).open(&path);
        let file = file.map_err(|error| RecipeError::file("write", &path, error))?;
        Ok(Self { path, file })
    }

    /// Adds a line.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn push(&mut self, record: &StepRecord) -> Result<()> {
        let mut write = || {
            let mut line = serde_json::to_string(record)?;
            line.push('\n');
            self.file.write_all(line.as_bytes())
        };
        write().map_err(|error| RecipeError::file("write", &self.path, error))
    }
}

/// The lines up to a step. A last line that a crash has cut off is not one.
fn kept_lines(text: &str, step: usize) -> String {
    let is_kept = |line: &&str| {
        let record: Option<serde_json::Value> = serde_json::from_str(line).ok();
        record.and_then(|record| record["step"].as_u64()).is_some_and(|number| number <= step as u64)
    };
    text.lines().filter(is_kept).flat_map(|line| [line, "\n"]).collect()
}

/// Memory of this process in bytes; none where the system does not tell.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// In use now: `VmRSS` of `/proc/self/status`, see proc(5).
    pub resident: Option<u64>,
    /// The most that was in use at any time: `VmHWM`.
    pub peak: Option<u64>,
}

impl Memory {
    /// Of this process.
    pub fn now() -> Self {
        let status = std::fs::read_to_string("/proc/self/status");
        status.map_or_else(|_| Self::default(), |text| Self::parse(&text))
    }

    /// Reads `VmHWM:   1234 kB` in the text of `/proc/PID/status`.
    fn parse(status: &str) -> Self {
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
            let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            kibibytes.checked_mul(1024)
        };
        Self { resident: field("VmRSS"), peak: field("VmHWM") }
    }

    /// The peak as people read it: `123 MB`.
    pub fn peak_text(&self) -> String {
        self.peak.map_or_else(|| "an unknown size".into(), |bytes| format!("{:.0} MB", bytes as f64 / 1e6))
    }
}

/// The largest resident memory that this process has had, in bytes; `None` where the system does not tell.
pub fn peak_memory_bytes() -> Option<u64> {
    Memory::now().peak
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(seconds: &[f64]) -> StepTimes {
        let mut times = StepTimes::default();
        for &second in seconds {
            times.push(second, 16, StepBreakdown { data: second / 2.0, ..Default::default() });
        }
        times
    }

    #[test]
    fn the_first_step_does_not_count_when_there_are_others() {
        let times = times(&[100.0, 1.0, 4.0, 3.0]);
        assert_eq!(times.median(), 3.0);
        assert_eq!(times.images_per_second(), 3.0 * 16.0 / 8.0);
        assert!((times.mean_breakdown().data - 8.0 / 6.0).abs() < 1e-12);
    }

    #[test]
    fn one_step_counts_and_none_gives_zeros() {
        assert_eq!((times(&[2.0]).median(), times(&[2.0]).images_per_second()), (2.0, 8.0));
        assert_eq!((times(&[]).median(), times(&[]).images_per_second()), (0.0, 0.0));
        assert_eq!(times(&[9.0, 1.0, 2.0]).median(), 1.5);
    }

    #[test]
    fn memory_is_read_in_bytes_from_the_status_of_a_process() {
        let status = "Name:\tx\nVmPeak:\t 9 kB\nVmHWM:\t    2048 kB\nVmRSS:\t 1024 kB\n";
        assert_eq!(Memory::parse(status), Memory { resident: Some(1 << 20), peak: Some(2 << 20) });
        assert_eq!(Memory::parse("Name:\tx\nVmHWM: many\n"), Memory::default());
        assert_eq!(Memory { peak: Some(123_456_789), resident: None }.peak_text(), "123 MB");
    }

    #[test]
    fn a_resumed_file_keeps_whole_lines_up_to_the_step() {
        let text = "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n{\"st";
        assert_eq!(kept_lines(text, 2), "{\"step\":1}\n{\"step\":2}\n");
        assert_eq!(kept_lines(text, 9), "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
    }

    #[test]
    fn each_record_is_one_json_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("metrics.jsonl");
        let mut file = MetricsFile::create(path.clone()).unwrap();
        let record = StepRecord {
            step: 1,
            epoch: 1,
            loss: 2.5,
            lr: 0.125,
            images_per_second: 64.0,
            data_wait_seconds: 0.5,
            comm_exposed_seconds: 0.25,
            loss_scale: None,
            skipped: None,
            grad_norm: None,
        };
        file.push(&record).unwrap();
        file.push(&StepRecord { step: 2, ..record }).unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        let first = r#"{"step":1,"epoch":1,"loss":2.5,"lr":0.125,"images_per_second":64.0,"data_wait_seconds":0.5,"comm_exposed_seconds":0.25}"#;
        assert_eq!(text.lines().collect::<Vec<_>>(), [first, &first.replace("\"step\":1", "\"step\":2")]);
    }
}
