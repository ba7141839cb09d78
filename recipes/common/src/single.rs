//! A recipe with one rank.

use std::process::ExitCode;
use std::time::Instant;

use burn::module::Module;

use crate::config::RunConfig;
use crate::data::Images;
use crate::error::Result;
use crate::options::TrainOptions;
use crate::parallel::Parallel;
use crate::progress::{self, display};
use crate::run_folder::RunFolder;
use crate::train::Run;

/// Trains on one device.
///
/// # Errors
/// Where an option asks for what is not there, and as [`Run::train`].
pub fn run(recipe: &'static str, options: &TrainOptions) -> Result<ExitCode> {
    let started = Instant::now();
    let config = RunConfig::new(options, None);
    progress::check(options.progress)?;
    options.out.as_deref().map_or(Ok(()), RunFolder::check_unused)?;
    let device = config.device.select(0, 1)?;
    let images = Images::open(&config)?;
    let train = images.train_loader(&config, &device.device.clone().autodiff(), 0, 1)?;
    let test = images.test_loader(&config, &device.device, 0, 1)?;
    device.device.seed(config.seed);
    let model = config.model(images.num_classes()).init(&device.device.clone().autodiff());
    // Draws the weights now, in the order of the layers.
    let model = model.materialize();
    let (parallel, progress) = (Parallel::Alone, display(options.progress, 0));
    let out = options.out.clone().map_or_else(|| RunFolder::claim(recipe), Ok)?;
    Run { recipe, config, device, train, test, parallel, out, progress, started }.train(model)?;
    Ok(ExitCode::SUCCESS)
}
