//! What NVML, the library under `nvidia-smi`, tells of the machine.

mod gpu;
mod links;

use std::ffi::OsString;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use nvml_wrapper::bitmasks::InitFlags;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use self::gpu::gpu_and_instances;
use self::links::links;
use super::gpu::sysfs_bus_id;
use super::{Distance, Gpu};

/// Where the library is: `.so.1` is what drivers install, `.so` comes with development packages.
const LIBRARIES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];
/// How long it may take. It asks the kernel's driver, which waits for ever for a GPU that has fallen off the bus.
const TIME_LIMIT: Duration = Duration::from_secs(20);
/// What NVML answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum NvmlAnswer {
    /// The GPUs of the machine.
    Present(Inventory),
    /// There is no NVML here, or it does not answer.
    Absent {
        /// Why, in words.
        reason: String,
    },
}

/// The GPUs of the machine as NVML sees them: all of them, whatever `CUDA_VISIBLE_DEVICES` says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Inventory {
    /// The driver's version, such as `550.54.15`.
    pub(super) driver_version: Option<String>,
    /// The newest CUDA that the driver supports, as 1000 times the major version and 10 times the minor one.
    pub(super) cuda_version: Option<i32>,
    /// In NVML's order, that of the bus; the instances of a divided one follow it. None has an ordinal yet.
    pub(super) gpus: Vec<Gpu>,
    /// The ways between them.
    pub(super) links: Vec<PeerLink>,
}

/// What NVML says of the way between two GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerLink {
    /// The place of one on the bus.
    pub first: String,
    /// The place of the other.
    pub second: String,
    /// How far they are from each other.
    pub distance: Option<Distance>,
    /// Whether each can read the other's memory; `None` where NVML does not say.
    pub peer_access: Option<bool>,
}

impl PeerLink {
    /// A way of which nothing else is known.
    pub fn new(first: &str, second: &str, distance: Option<Distance>) -> Self {
        Self { first: first.to_owned(), second: second.to_owned(), distance, peer_access: None }
    }

    /// Whether it is the way between these two, in either direction.
    pub fn is_between(&self, first: &str, second: &str) -> bool {
        let ends = (self.first.as_str(), self.second.as_str());
        ends == (first, second) || ends == (second, first)
    }
}

/// Asks NVML for all it knows, within 20 s.
pub(super) fn ask() -> NvmlAnswer {
    ask_library(LIBRARIES.map(Into::into).to_vec(), TIME_LIMIT)
}

/// As [`ask`], of the first of these libraries that can be loaded.
pub(super) fn ask_library(libraries: Vec<OsString>, time_limit: Duration) -> NvmlAnswer {
    let (sender, receiver) = mpsc::channel();
    // Nobody hears an answer that comes too late.
    let ask = move || sender.send(inventory(&libraries)).unwrap_or_default();
    let asking = std::thread::Builder::new().name("nvml".into()).spawn(ask);
    let answer = match asking {
        // The thread is left behind where it hangs; there is no way to end it.
        Ok(_thread) => receiver.recv_timeout(time_limit).unwrap_or_else(|error| match error {
            RecvTimeoutError::Timeout => {
                Err(format!("NVML did not answer within {} s", time_limit.as_secs_f32()))
            }
            RecvTimeoutError::Disconnected => Err("NVML ended the thread that asked it".to_owned()),
        }),
        Err(error) => Err(format!("no thread could be started to ask NVML: {error}")),
    };
    match answer {
        Ok(inventory) => NvmlAnswer::Present(inventory),
        Err(reason) => NvmlAnswer::Absent { reason },
    }
}

fn inventory(libraries: &[OsString]) -> Result<Inventory, String> {
    let nvml = open(libraries)?;
    let count = nvml.device_count().map_err(|error| format!("NVML does not count the GPUs: {error}"))?;
    // One that cannot be asked, such as one that has fallen off the bus, is left out.
    let devices: Vec<Device<'_>> = (0..count).filter_map(|index| nvml.device_by_index(index).ok()).collect();
    let mut gpus = Vec::new();
    for device in &devices {
        gpus.extend(gpu_and_instances(device));
    }
    Ok(Inventory {
        driver_version: nvml.sys_driver_version().ok(),
        cuda_version: nvml.sys_cuda_driver_version().ok(),
        links: links(&devices),
        gpus,
    })
}

fn open(libraries: &[OsString]) -> Result<Nvml, String> {
    let mut reasons = Vec::new();
    for library in libraries {
        let opened = Nvml::builder().lib_path(library).flags(InitFlags::NO_GPUS).init();
        match opened {
            Ok(nvml) => return Ok(nvml),
            Err(error) => reasons.push(reason(&library.to_string_lossy(), error)),
        }
    }
    // The first name is the one that drivers install.
    Err(reasons.into_iter().next().unwrap_or_else(|| "there is no NVML".to_owned()))
}

/// Why the library could not be opened. The loader's words have its name in them.
fn reason(library: &str, error: NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(error) => format!("NVML is not there: {error}"),
        error => format!("NVML ({library}) does not start: {error}"),
    }
}

fn bus_id(device: &Device<'_>) -> Option<String> {
    device.pci_info().ok().map(|info| sysfs_bus_id(&info.bus_id))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_nvml_is_an_answer_with_its_reason() {
        match ask() {
            NvmlAnswer::Absent { reason } => assert!(reason.contains("NVML"), "{reason}"),
            NvmlAnswer::Present(inventory) => {
                assert!(inventory.gpus.iter().all(|gpu| gpu.ordinal.is_none()), "{inventory:?}");
            }
        }
    }
}
