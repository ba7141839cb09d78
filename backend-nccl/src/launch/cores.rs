use super::error::LaunchError;
use std::{num::NonZeroUsize, str::FromStr};

/// How many ranks to start on a machine: a number, or one per device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NprocPerNode {
    /// This many.
    Count(NonZeroUsize),
    /// One for each NVIDIA GPU that programs may see, or one for each core where there is none, as `torchrun` does.
    Auto,
}

impl NprocPerNode {
    /// The number of ranks on this machine.
    pub fn resolve(self) -> usize {
        match self {
            Self::Count(count) => count.get(),
            Self::Auto => match visible_gpu_count() {
                0 => core_count(),
                gpus => gpus,
            },
        }
    }
}

impl FromStr for NprocPerNode {
    type Err = LaunchError;

    fn from_str(text: &str) -> Result<Self, LaunchError> {
        match text.parse() {
            Ok(count) => Ok(Self::Count(count)),
            Err(_) if text == "auto" => Ok(Self::Auto),
            Err(_) => Err(LaunchError::NprocPerNode { given: text.to_owned() }),
        }
    }
}

/// NVIDIA GPUs that programs started here may see: those of the machine or container, less what
/// `CUDA_VISIBLE_DEVICES` hides. Asks no driver, so it works in builds without CUDA.
pub fn visible_gpu_count() -> usize {
    visible_gpus(gpu_count(), std::env::var("CUDA_VISIBLE_DEVICES").ok().as_deref())
}

/// Compute threads of each rank when `ranks` share `cores`: an equal part, and at least 1.
pub fn threads_per_rank(cores: usize, ranks: usize) -> usize {
    (cores / ranks.max(1)).max(1)
}

/// Cores that this process may use, by its affinity and its control group.
pub(super) fn core_count() -> usize {
    std::thread::available_parallelism().map_or(1, NonZeroUsize::get)
}

/// NVIDIA GPUs of the machine or container, by their device files `/dev/nvidia<N>`.
fn gpu_count() -> usize {
    let Ok(entries) = std::fs::read_dir("/dev") else { return 0 };
    entries
        .flatten()
        .filter(|entry| {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix("nvidia"));
            number.is_some_and(|number| number.parse::<u32>().is_ok())
        })
        .count()
}

/// How many of `gpus` the CUDA driver shows under `CUDA_VISIBLE_DEVICES`: it reads the list up to the first index
/// that is not there (`-1` is the usual way to hide all), and an empty list hides all.
fn visible_gpus(gpus: usize, visible: Option<&str>) -> usize {
    let Some(visible) = visible else { return gpus };
    let is_device = |entry: &&str| match entry.parse::<i64>() {
        Ok(index) => usize::try_from(index).is_ok_and(|index| index < gpus),
        Err(_) => entry.starts_with("GPU-") || entry.starts_with("MIG-"),
    };
    visible.split(',').map(str::trim).take_while(is_device).count().min(gpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cores_are_divided_and_never_below_one() {
        let table = [(8, 2, 4), (8, 3, 2), (2, 2, 1), (2, 4, 1), (1, 1, 1), (4, 0, 4)];
        for (cores, ranks, expected) in table {
            assert_eq!(threads_per_rank(cores, ranks), expected, "{cores} cores, {ranks} ranks");
        }
    }

    #[test]
    fn visible_devices_are_counted_as_the_driver_does() {
        let table = [
            (None, 4),
            (Some(""), 0),
            (Some("-1"), 0),
            (Some("2"), 1),
            (Some("0, 1,3"), 3),
            (Some("0,9,1"), 1),
            (Some("GPU-8932f937,MIG-1"), 2),
        ];
        for (visible, expected) in table {
            assert_eq!(visible_gpus(4, visible), expected, "{visible:?}");
        }
    }

    #[test]
    fn a_number_of_ranks_is_auto_or_at_least_one() {
        assert_eq!("auto".parse().ok(), Some(NprocPerNode::Auto));
        assert_eq!("3".parse().map(NprocPerNode::resolve).ok(), Some(3));
        for wrong in ["0", "-1", "", "all"] {
            assert!(wrong.parse::<NprocPerNode>().is_err(), "{wrong:?}");
        }
    }
}
