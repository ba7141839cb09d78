//! A trial: two training steps with a batch size, in the process that may not survive them.

use std::os::unix::process::parent_id;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use burn_nccl::{Environment, ProcessGroup};

use crate::config::{JobOptions, RunConfig, ddp_config};
use crate::data::Images;
use crate::error::Result;
use crate::options::ProgressChoice;
use crate::parallel::Parallel;
use crate::progress::display;
use crate::train::{Run, initial_model};

/// Trains two steps of two batches each with what `job` asks for, and writes nothing.
///
/// Two steps, because the optimizer's state is there from the second on; two batches, because a smaller batch is
/// made up for by accumulation, which keeps gradients. The rank does not meet the others: a group of one has buckets
/// of the same size.
///
/// # Errors
/// As training.
pub(crate) fn run(
    job: JobOptions<'_>,
    batch_size: usize,
    environment: Option<&Environment>,
) -> Result<ExitCode> {
    let started = Instant::now();
    volunteer();
    end_with_the_parent();
    let (rank, world_size) = environment.map_or((0, 1), |here| (here.rank, here.world_size));
    let mut config = RunConfig::new(job);
    (config.batch_size, config.accumulate, config.max_steps) = (batch_size, 2, Some(2));
    // The rank that tries has chosen the GPU, and has it.
    let device = config.device.preview(0, 1)?;
    let images = Images::open(&config)?;
    let train = images.train_loader(&config, &device.device.clone().autodiff(), rank, world_size)?;
    let test = images.test_loader(&config, &device.device, rank, world_size)?;
    let model = initial_model(&config, &images, &device, None)?;
    let (parallel, model) = match job.distributed {
        Some(distributed) => {
            Parallel::join(&ProcessGroup::single(), model, &ddp_config(distributed, &device))?
        }
        None => (Parallel::alone(), model),
    };
    let progress = display(ProgressChoice::None, rank);
    let out = std::path::PathBuf::new();
    Run {
        recipe: "trial",
        config,
        device,
        train,
        test,
        parallel,
        out,
        progress,
        started,
        resume: None,
        continues: false,
    }
    .try_steps(model)?;
    Ok(ExitCode::SUCCESS)
}

/// Makes this process the first that the system ends when memory is short, before the rank that waits for it.
fn volunteer() {
    // Without the file, the system chooses by itself.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
}

/// Ends this process when the rank that started it is gone: nobody else would.
fn end_with_the_parent() {
    let parent = parent_id();
    std::thread::spawn(move || {
        while parent_id() == parent {
            std::thread::sleep(Duration::from_millis(200));
        }
        std::process::exit(1);
    });
}
