//! Where to compute: the one place that knows whether CUDA is compiled in.

use std::time::Duration;

use burn::tensor::Device;
use burn_nccl::{DeviceTransport, Environment, GroupOptions, ProcessGroup, StreamOrdering};
use clap::ValueEnum;

/// Longer than a collective takes while another rank still compiles its kernels, shorter than a check may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(50);

/// The kind of device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// NVIDIA GPUs.
    Cuda,
    /// The CPU, by Flex.
    Cpu,
}

impl Kind {
    /// Its name on the command line.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Cuda => "cuda",
            Self::Cpu => "cpu",
        }
    }

    /// Why nothing can run on it here.
    pub(crate) fn obstacle(self) -> Option<String> {
        match self {
            Self::Cpu => None,
            Self::Cuda if !cfg!(feature = "cuda") => {
                Some("this program was built without the feature cuda".to_owned())
            }
            Self::Cuda if self.count() == 0 => Some("there is no GPU, or no driver for it".to_owned()),
            Self::Cuda => None,
        }
    }

    /// How many devices of the kind there are. The CPU is one for as many ranks as like.
    pub(crate) fn count(self) -> usize {
        match self {
            Self::Cuda => gpus(),
            Self::Cpu => usize::MAX,
        }
    }

    /// One of them, without autodiff.
    pub(crate) fn device(self, index: usize) -> Device {
        match self {
            Self::Cuda => gpu(index),
            Self::Cpu => Device::flex(),
        }
    }

    /// The ranks that the environment tells of, or a group of this process alone; with NCCL in any case where there are GPUs.
    pub(crate) fn group(self, ordering: StreamOrdering) -> anyhow::Result<ProcessGroup> {
        let mut options = GroupOptions::default()
            .with_timeout(TIMEOUT)
            .with_connect_timeout(TIMEOUT)
            .with_check(false)
            .with_stream_ordering(ordering);
        if self == Self::Cuda {
            options = options.with_device_transport(DeviceTransport::Nccl);
        }
        Ok(match Environment::read()? {
            Some(environment) => ProcessGroup::connect(&environment, options)?,
            None => {
                let mut alone = ProcessGroup::local(1, options)?;
                alone.remove(0)
            }
        })
    }
}

#[cfg(feature = "cuda")]
fn gpus() -> usize {
    Device::enumerate(burn::tensor::DeviceType::Cuda).into_vec().len()
}

#[cfg(not(feature = "cuda"))]
fn gpus() -> usize {
    0
}

#[cfg(feature = "cuda")]
fn gpu(index: usize) -> Device {
    Device::cuda(index)
}

#[cfg(not(feature = "cuda"))]
fn gpu(_index: usize) -> Device {
    unreachable!("without CUDA every check has been skipped")
}

/// Runs `body` in a window in which this thread's work on `device` is recorded as a graph.
#[cfg(feature = "cuda")]
pub(crate) fn capturing<T>(device: &Device, body: impl FnOnce() -> T) -> anyhow::Result<T> {
    let burn::backend::DispatchDevice::Cube(device) = device.as_dispatch() else {
        anyhow::bail!("this is no GPU")
    };
    let client = device.client();
    client.graph_prepare().map_err(|error| anyhow::anyhow!("preparing the capture: {error:?}"))?;
    client.start_capture().map_err(|error| anyhow::anyhow!("starting the capture: {error:?}"))?;
    let found = body();
    // Nothing was launched in it, which may count as an error; it is over in any case.
    drop(client.stop_capture());
    anyhow::ensure!(!client.is_capturing(), "the capture does not end");
    Ok(found)
}

/// Runs `body`; there are no graphs without CUDA.
#[cfg(not(feature = "cuda"))]
pub(crate) fn capturing<T>(_device: &Device, _body: impl FnOnce() -> T) -> anyhow::Result<T> {
    anyhow::bail!("this program was built without the feature cuda")
}
