//! A recipe with one rank.

use std::process::ExitCode;
use std::time::Instant;

use crate::batch_size::{self, trial};
use crate::config::{JobOptions, RunConfig};
use crate::data::Images;
use crate::error::Result;
use crate::options::TrainOptions;
use crate::parallel::Parallel;
use crate::progress::{self, display};
use crate::resume;
use crate::train::{Run, initial_model};

/// Trains on one device.
///
/// # Errors
/// Where an option asks for what is not there, and as [`Run::train`].
pub fn run(recipe: &'static str, options: &TrainOptions) -> Result<ExitCode> {
    let started = Instant::now();
    let job = JobOptions { train: options, distributed: None, mixed_precision: None };
    if let Some(batch_size) = options.probe_batch_size {
        return trial::run(job, batch_size, None);
    }
    progress::check(options.progress)?;
    let resume = resume::open(recipe, options)?;
    resume::check_out(options, resume.as_ref())?;
    let mut config = RunConfig::new(job);
    let device = config.device.select(0, 1)?;
    let images = Images::open(&config)?;
    resume::adapt(resume.as_ref(), &mut config, &images, 0, 1)?;
    if options.find_batch_size {
        config.shrink_batch(batch_size::find(&config, &device)?);
    }
    let train = images.train_loader(&config, &device.device.clone().autodiff(), 0, 1)?;
    let test = images.test_loader(&config, &device.device, 0, 1)?;
    let model = initial_model(&config, &images, &device, resume.as_ref())?;
    let (parallel, progress) = (Parallel::alone(), display(options.progress, 0));
    let out = resume::run_folder(recipe, options.out.as_deref(), resume.as_ref())?;
    let continues = resume::continues(&out, options, resume.as_ref());
    let run =
        Run { recipe, config, device, train, test, parallel, out, progress, started, resume, continues };
    Ok(run.train(model)?.exit_code())
}
