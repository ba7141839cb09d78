//! `--find-batch-size`: the largest batch of which a training step fits into memory.
//!
//! Each size is tried in a process of its own. A backend that runs out of memory may panic, abort or be killed by the
//! system, and none of that leaves a process that can go on.

pub(crate) mod trial;

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use burn_nccl::launch::ERROR_FILE_VARIABLE;

use crate::batch_statistics::check_statistics;
use crate::config::RunConfig;
use crate::device::SelectedDevice;
use crate::error::{RecipeError, Result, split_remedy};

/// How a process that tried a batch size ended.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Probe {
    Fits,
    OutOfMemory,
    /// Something else is wrong, which a smaller batch would not mend.
    Failed(String),
}

/// How long the steps of one trial may take.
pub(crate) const TIME_LIMIT: Duration = Duration::from_secs(600);

const SIGKILL: i32 = 9;

/// What backends, allocators and drivers write when memory is short.
const SIGNS: [&str; 8] = [
    "out of memory",
    "out of device memory",
    "outofmemory",
    "out_of_memory",
    "memory allocation of",
    "cannot allocate",
    "can't allocate",
    "bad_alloc",
];

/// The largest divisor of the batch size that `config` asks for of which this program can train two steps; a smaller
/// divisor is at most half of the one before. It is tried on `device`. Only divisors, so that accumulation restores the global batch exactly.
///
/// # Errors
/// Where not even the smallest batch fits, or a step fails for another reason than memory.
pub(crate) fn find(config: &RunConfig, device: &SelectedDevice) -> Result<usize> {
    // A trial runs alone, so that it needs as many images as a rank alone.
    let can_be_tried = |batch_size| check_statistics(&RunConfig { batch_size, ..config.clone() }, 1).is_ok();
    if next_smaller(config.batch_size, config.batch_size).is_none_or(|smaller| !can_be_tried(smaller)) {
        return Ok(config.batch_size);
    }
    largest(config.batch_size, can_be_tried, |batch_size| {
        let probe = probe(batch_size, device)?;
        if probe == Probe::OutOfMemory {
            log::warn!("a batch of {batch_size} images per rank does not fit into memory");
        }
        Ok(probe)
    })
}

fn largest(
    wanted: usize,
    can_be_tried: impl Fn(usize) -> bool,
    mut probe: impl FnMut(usize) -> Result<Probe>,
) -> Result<usize> {
    let what = "cannot find a batch size";
    let mut batch_size = wanted;
    loop {
        match probe(batch_size)? {
            Probe::Fits => return Ok(batch_size),
            Probe::OutOfMemory => {}
            Probe::Failed(text) => {
                let (cause, remedy) = split_remedy(&text);
                return Err(RecipeError::failure(what, cause, remedy));
            }
        }
        let cause = match next_smaller(wanted, batch_size) {
            Some(smaller) if can_be_tried(smaller) => {
                batch_size = smaller;
                continue;
            }
            Some(_) => format!(
                "a step with {batch_size} images per rank runs out of memory, and fewer cannot be normalised"
            ),
            None => "a step with one image per rank runs out of memory".into(),
        };
        let remedy = "use a smaller --model or --image-size, or fewer ranks on this machine";
        return Err(RecipeError::failure(what, cause, remedy));
    }
}

/// The largest divisor of `wanted` that is at most half of `current`.
fn next_smaller(wanted: usize, current: usize) -> Option<usize> {
    (1..=current / 2).rev().find(|candidate| wanted.is_multiple_of(*candidate))
}

fn probe(batch_size: usize, device: &SelectedDevice) -> Result<Probe> {
    let run = || {
        let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
        args.push(format!("--probe-batch-size={batch_size}").into());
        // The rank's own: by itself a trial would choose another GPU.
        args.push(format!("--device={}", device.name).into());
        let mut command = Command::new(std::env::current_exe()?);
        // Its first error would be taken for the rank's.
        command.args(args).env_remove(ERROR_FILE_VARIABLE);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn()?;
        wait(child)
    };
    run().map_err(|error| {
        RecipeError::failure(
            "cannot find a batch size",
            format!("the process that tries {batch_size} images did not run: {error}"),
            "give a --batch-size that fits, without --find-batch-size",
        )
    })
}

/// Waits for a trial, and ends it at the time limit.
fn wait(mut child: Child) -> io::Result<Probe> {
    let mut pipe = child.stderr.take();
    let reader = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before a failure is what there is to judge by.
        let _ = pipe.as_mut().map(|pipe| pipe.read_to_end(&mut bytes));
        bytes
    });
    let deadline = Instant::now() + TIME_LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline {
            child.kill()?;
            child.wait()?;
            let seconds = TIME_LIMIT.as_secs();
            return Ok(Probe::Failed(format!(
                "a trial step took over {seconds} s; use a smaller --batch-size"
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    let stderr = reader.join().unwrap_or_default();
    Ok(verdict(status, &String::from_utf8_lossy(&stderr)))
}

/// What the end of the process and its last words mean.
fn verdict(status: ExitStatus, stderr: &str) -> Probe {
    let lower = stderr.to_lowercase();
    // The system's killer gives no words.
    let killed = status.signal() == Some(SIGKILL);
    if status.success() {
        Probe::Fits
    } else if killed || SIGNS.iter().any(|sign| lower.contains(sign)) {
        Probe::OutOfMemory
    } else {
        let line = |start: &str| stderr.lines().find_map(|line| line.strip_prefix(start)).map(str::trim);
        Probe::Failed(match (line("cause:"), line("help:")) {
            (Some(cause), Some(help)) => format!("{cause}; {help}"),
            _ => {
                let last = stderr.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or_default();
                format!(
                    "a trial step ended with {status}: {last}; run without --find-batch-size to see it whole"
                )
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(code: i32) -> ExitStatus {
        ExitStatus::from_raw(code << 8)
    }

    fn killed_by(signal: i32) -> ExitStatus {
        ExitStatus::from_raw(signal)
    }

    #[test]
    fn every_smaller_size_divides_the_wanted_one_and_is_at_most_half() {
        let sizes = |wanted: usize| {
            std::iter::successors(Some(wanted), |&current| next_smaller(wanted, current)).collect::<Vec<_>>()
        };
        assert_eq!(sizes(32), [32, 16, 8, 4, 2, 1]);
        assert_eq!(sizes(12), [12, 6, 3, 1]);
        assert_eq!(sizes(45), [45, 15, 5, 1]);
        assert_eq!(sizes(7), [7, 1]);
    }

    #[test]
    fn the_first_size_that_fits_is_taken() {
        let mut tried = Vec::new();
        let found = largest(
            48,
            |_| true,
            |batch_size| {
                tried.push(batch_size);
                Ok(if batch_size > 10 { Probe::OutOfMemory } else { Probe::Fits })
            },
        );
        assert_eq!((found.unwrap(), tried), (6, vec![48, 24, 12, 6]));
    }

    #[test]
    fn a_model_that_never_fits_and_another_fault_are_told_apart() {
        let error = largest(4, |_| true, |_| Ok(Probe::OutOfMemory)).unwrap_err();
        assert!(error.cause.contains("one image per rank"), "{error}");
        let error = largest(4, |batch_size| batch_size > 1, |_| Ok(Probe::OutOfMemory)).unwrap_err();
        assert!(error.cause.contains("2 images per rank") && error.cause.contains("normalised"), "{error}");
        let error =
            largest(4, |_| true, |_| Ok(Probe::Failed("no such file; check --data".into()))).unwrap_err();
        assert_eq!((error.cause.as_str(), error.remedy.as_str()), ("no such file", "check --data"));
    }

    #[test]
    fn the_words_of_allocators_drivers_and_the_systems_killer_mean_memory() {
        assert_eq!(verdict(ended(0), "memory allocation of 8 bytes failed"), Probe::Fits);
        assert_eq!(verdict(killed_by(9), ""), Probe::OutOfMemory);
        assert_eq!(verdict(killed_by(6), "memory allocation of 805306368 bytes failed"), Probe::OutOfMemory);
        let panic = "thread 'main' panicked at x.rs:1:\nCUDA_ERROR_OUT_OF_MEMORY, \"out of memory\"";
        assert_eq!(verdict(ended(101), panic), Probe::OutOfMemory);
        // CubeCL's three errors of an allocation.
        for text in [
            "out of device memory allocating 805306368 bytes",
            "can't allocate buffer of size: 805306368",
            "Can't allocate 805306368 bytes: every page size the memory tracks still holds live allocations",
        ] {
            assert_eq!(verdict(ended(101), text), Probe::OutOfMemory, "{text}");
        }
        let stderr = "error: cannot open the images\ncause: /x does not exist\nhelp:  check --data\n";
        assert_eq!(verdict(ended(1), stderr), Probe::Failed("/x does not exist; check --data".into()));
        assert!(matches!(verdict(killed_by(11), ""), Probe::Failed(text) if text.contains("signal")));
    }
}
