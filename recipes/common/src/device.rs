//! Which device a rank computes on: the one place in the recipes that knows which backends are compiled in.

use std::fmt;
use std::str::FromStr;

use burn::tensor::Device;

use crate::error::{RecipeError, Result};

/// Ranks of a distributed recipe on a machine without GPUs, when nothing else is asked for.
const CPU_RANKS: usize = 2;

/// The device as the command line names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// CUDA where it is compiled in and a GPU is there, else the CPU.
    #[default]
    Auto,
    /// The CPU backend: Flex, or NdArray where that alone is compiled in.
    Cpu,
    /// One GPU a rank, by local rank; or this GPU, for a single rank.
    Cuda(Option<usize>),
}

/// A device that is there.
#[derive(Clone, Debug)]
pub struct SelectedDevice {
    /// The device, without autodiff.
    pub device: Device,
    /// `cuda`, `flex` or `ndarray`.
    pub backend: &'static str,
    /// `cpu`, or `cuda:N`.
    pub name: String,
}

impl DeviceChoice {
    /// The device of a rank.
    ///
    /// # Errors
    /// For a GPU that is not there, or shared by ranks; for a backend that is not compiled in.
    pub fn select(self, local_rank: usize, local_world_size: usize) -> Result<SelectedDevice> {
        let gpus = gpu_count();
        match self {
            Self::Auto if gpus > 0 => select_gpu(local_rank, gpus),
            Self::Auto | Self::Cpu => select_cpu(),
            Self::Cuda(Some(index)) if local_world_size > 1 => Err(RecipeError::usage(
                format!("cannot run {local_world_size} ranks on cuda:{index}"),
                "each rank needs a GPU of its own",
                "use --device cuda, which gives each rank one, and CUDA_VISIBLE_DEVICES to choose them",
            )),
            Self::Cuda(index) => select_gpu(index.unwrap_or(local_rank), gpus),
        }
    }

    /// Ranks to start on this machine when the user names no number: one per GPU, or two on the CPU.
    pub fn default_ranks(self) -> usize {
        match self {
            Self::Cpu => CPU_RANKS,
            Self::Cuda(Some(_)) => 1,
            Self::Auto | Self::Cuda(None) => match gpu_count() {
                0 => CPU_RANKS,
                gpus => gpus,
            },
        }
    }
}

fn select_gpu(index: usize, gpus: usize) -> Result<SelectedDevice> {
    let what = format!("cannot use cuda:{index}");
    match gpu(index) {
        None => Err(RecipeError::usage(
            what,
            "this program was built without CUDA",
            "rebuild with --no-default-features --features cuda, or use --device cpu",
        )),
        Some(_) if index >= gpus => Err(RecipeError::failure(
            what,
            format!("{gpus} CUDA devices are visible and each rank needs its own"),
            "start at most one rank per GPU, check nvidia-smi and CUDA_VISIBLE_DEVICES, or use --device cpu",
        )),
        Some(device) => Ok(SelectedDevice { device, backend: "cuda", name: format!("cuda:{index}") }),
    }
}

fn select_cpu() -> Result<SelectedDevice> {
    let (device, backend) = cpu().ok_or_else(|| {
        RecipeError::usage(
            "cannot compute on the CPU",
            "this program was built without a CPU backend, or no GPU was found for --device auto",
            "rebuild with --features flex, or use --device cuda on a machine with a GPU",
        )
    })?;
    Ok(SelectedDevice { device, backend, name: "cpu".into() })
}

/// The CPU device of the best backend that is compiled in, and that backend's name.
#[allow(unreachable_code, reason = "which line is reached depends on the features")]
fn cpu() -> Option<(Device, &'static str)> {
    #[cfg(feature = "flex")]
    return Some((Device::flex(), "flex"));
    #[cfg(feature = "ndarray")]
    #[allow(deprecated, reason = "deprecated in favour of Flex, which is preferred above")]
    return Some((Device::ndarray(), "ndarray"));
    None
}

#[cfg(feature = "cuda")]
fn gpu(index: usize) -> Option<Device> {
    Some(Device::cuda(index))
}

#[cfg(not(feature = "cuda"))]
fn gpu(_index: usize) -> Option<Device> {
    None
}

#[cfg(feature = "cuda")]
fn gpu_count() -> usize {
    Device::enumerate(burn::tensor::DeviceType::Cuda).into_vec().len()
}

#[cfg(not(feature = "cuda"))]
fn gpu_count() -> usize {
    0
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("unknown device `{text}`: use auto, cpu, cuda or cuda:N");
        match (text, text.strip_prefix("cuda:")) {
            ("auto", _) => Ok(Self::Auto),
            ("cpu", _) => Ok(Self::Cpu),
            ("cuda", _) => Ok(Self::Cuda(None)),
            (_, Some(index)) => index.parse().map(|index| Self::Cuda(Some(index))).map_err(|_| unknown()),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(None) => f.write_str("cuda"),
            Self::Cuda(Some(index)) => write!(f, "cuda:{index}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_parsed_and_printed_back() {
        for text in ["auto", "cpu", "cuda", "cuda:3"] {
            assert_eq!(text.parse::<DeviceChoice>().unwrap().to_string(), text);
        }
        for text in ["gpu", "cuda:", "cuda:x", "CPU"] {
            assert!(text.parse::<DeviceChoice>().is_err(), "{text}");
        }
    }

    #[test]
    fn ranks_cannot_share_a_named_gpu() {
        let error = DeviceChoice::Cuda(Some(0)).select(0, 2).unwrap_err();
        assert_eq!(error.exit_code(), 2);
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn cuda_in_a_build_without_it_says_how_to_get_it() {
        let error = DeviceChoice::Cuda(None).select(1, 2).unwrap_err();
        assert_eq!((error.what.as_str(), error.exit_code()), ("cannot use cuda:1", 2));
        assert!(error.remedy.contains("--no-default-features --features cuda"), "{error}");
    }
}
