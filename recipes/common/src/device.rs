//! Which device a rank computes on: the one place in the recipes that knows which backends are compiled in.

#[cfg(feature = "cuda")]
mod cuda;
#[cfg(not(feature = "cuda"))]
#[path = "device/no_cuda.rs"]
mod cuda;

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use burn::tensor::Device;
use burn_nccl::ProcessGroup;

use crate::error::{RecipeError, Result};

/// Ranks of a distributed recipe on a machine without GPUs, when nothing else is asked for.
const CPU_RANKS: usize = 2;

/// The device as the command line names it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeviceChoice {
    /// CUDA where it is compiled in and a GPU is there, else the CPU. One rank takes the first GPU, or the freest one that
    /// is idle where others compute on the first; of several ranks, each takes the one of its local rank.
    #[default]
    Auto,
    /// The CPU backend: Flex, or NdArray where that alone is compiled in.
    Cpu,
    /// One GPU a rank, by local rank.
    Cuda,
    /// This GPU, for a single rank.
    CudaOrdinal(usize),
    /// The GPU with the most free memory that no other rank and no other run takes.
    CudaFree,
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
    /// The GPU, where it is one.
    pub gpu: Option<SelectedGpu>,
}

/// A GPU that a rank computes on.
#[derive(Clone, Debug)]
pub struct SelectedGpu {
    /// Its product name.
    pub name: String,
    /// Its place on the bus.
    pub pci_bus_id: String,
    /// Keeps other runs that look for a free GPU away.
    _claim: Option<Arc<cuda::Claim>>,
}

/// What carries the CUDA tensors of a group.
#[derive(Clone, Debug)]
pub(crate) struct DeviceTransport {
    pub(crate) nccl_version: String,
    pub(crate) stream_ordering: String,
}

/// What a GPU is chosen for.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "without GPUs there is nothing to choose"))]
#[derive(Clone, Copy, Debug)]
struct Purpose {
    local_rank: usize,
    local_world_size: usize,
    /// Whether this process will compute on it; else it only asks which one it would be.
    takes: bool,
}

impl DeviceChoice {
    /// The device of a rank, which takes it: the log says which and why, and who else computes on it.
    ///
    /// # Errors
    /// For a GPU that is not there, or shared by ranks; for a backend that is not compiled in.
    pub fn select(self, local_rank: usize, local_world_size: usize) -> Result<SelectedDevice> {
        self.find(Purpose { local_rank, local_world_size, takes: true })
    }

    /// The device that a rank would take, for a process that only checks what ranks would find.
    ///
    /// # Errors
    /// As [`select`](Self::select).
    pub fn preview(self, local_rank: usize, local_world_size: usize) -> Result<SelectedDevice> {
        self.find(Purpose { local_rank, local_world_size, takes: false })
    }

    fn find(self, purpose: Purpose) -> Result<SelectedDevice> {
        match self {
            Self::Auto if cuda::gpu_count() == 0 => {
                if let Some(reason) = cuda::hidden_gpus() {
                    log::warn!("{reason}");
                }
                select_cpu()
            }
            Self::Cpu => select_cpu(),
            Self::CudaOrdinal(index) if purpose.local_world_size > 1 => Err(RecipeError::usage(
                format!("cannot run {} ranks on cuda:{index}", purpose.local_world_size),
                "each rank needs a GPU of its own",
                "use --device cuda, which gives each rank one, and CUDA_VISIBLE_DEVICES to choose them; or --device cuda:free",
            )),
            Self::Auto | Self::Cuda | Self::CudaOrdinal(_) | Self::CudaFree => cuda::select(self, purpose),
        }
    }

    /// Ranks to start on this machine when the user names no number: one per GPU, with `cuda:free` per GPU that nobody
    /// holds; or two on the CPU.
    pub fn default_ranks(self) -> usize {
        match self {
            Self::Cpu => CPU_RANKS,
            Self::CudaOrdinal(_) => 1,
            Self::CudaFree => cuda::idle_count().max(1),
            Self::Auto | Self::Cuda => match cuda::gpu_count() {
                0 => CPU_RANKS,
                gpus => gpus,
            },
        }
    }
}

/// What carries the CUDA tensors of a group, once it has moved some.
pub(crate) fn device_transport(group: &ProcessGroup) -> Option<DeviceTransport> {
    cuda::device_transport(group)
}

/// What to know of the GPUs at these places on the bus before they train together, if anything.
pub(crate) fn topology_warning(pci_bus_ids: &[String]) -> Option<String> {
    cuda::topology_warning(pci_bus_ids)
}

fn select_cpu() -> Result<SelectedDevice> {
    let (device, backend) = cpu().ok_or_else(|| {
        RecipeError::usage(
            "cannot compute on the CPU",
            "this program was built without a CPU backend, and --device auto takes the CPU where there is no GPU",
            "rebuild with --features flex; or check nvidia-smi and CUDA_VISIBLE_DEVICES, --device cuda says what is missing",
        )
    })?;
    Ok(SelectedDevice { device, backend, name: "cpu".into(), gpu: None })
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

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("unknown device `{text}`: use auto, cpu, cuda, cuda:N or cuda:free");
        match (text, text.strip_prefix("cuda:")) {
            ("auto", _) => Ok(Self::Auto),
            ("cpu", _) => Ok(Self::Cpu),
            ("cuda", _) => Ok(Self::Cuda),
            (_, Some("free")) => Ok(Self::CudaFree),
            (_, Some(index)) => index.parse().map(Self::CudaOrdinal).map_err(|_| unknown()),
            _ => Err(unknown()),
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda => f.write_str("cuda"),
            Self::CudaOrdinal(index) => write!(f, "cuda:{index}"),
            Self::CudaFree => f.write_str("cuda:free"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_parsed_and_printed_back() {
        for text in ["auto", "cpu", "cuda", "cuda:3", "cuda:free"] {
            assert_eq!(text.parse::<DeviceChoice>().unwrap().to_string(), text);
        }
        for text in ["gpu", "cuda:", "cuda:x", "cuda:Free", "cuda:-1", "CPU"] {
            assert!(text.parse::<DeviceChoice>().is_err(), "{text}");
        }
    }

    #[test]
    fn ranks_cannot_share_a_named_gpu() {
        let error = DeviceChoice::CudaOrdinal(0).select(0, 2).unwrap_err();
        assert_eq!(error.exit_code(), 2);
    }

    #[cfg(not(feature = "cuda"))]
    #[test]
    fn cuda_in_a_build_without_it_says_how_to_get_it() {
        for choice in [DeviceChoice::Cuda, DeviceChoice::CudaFree] {
            let error = choice.select(1, 2).unwrap_err();
            assert_eq!((error.what.clone(), error.exit_code()), (format!("cannot use {choice}"), 2));
            assert!(error.remedy.contains("--no-default-features --features cuda"), "{}", error.remedy);
        }
        assert_eq!(DeviceChoice::CudaFree.default_ranks(), 1);
        assert!(topology_warning(&["0000:3b:00.0".into()]).is_none());
    }
}
