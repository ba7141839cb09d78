//! What NVML, the library under `nvidia-smi`, tells of the machine.

use std::ffi::OsStr;
use std::sync::mpsc;
use std::time::Duration;

use nvml_wrapper::bitmasks::InitFlags;
use nvml_wrapper::enum_wrappers::device::{
    ComputeMode as NvmlComputeMode, P2pCapabilitiesIndex, P2pStatus, TopologyLevel,
};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::{Device, Nvml};

use super::gpu::sysfs_bus_id;
use super::{ComputeMode, Distance, Gpu, GpuMemory, Holder, HostSite, Mig};

/// Where the library is: `.so.1` is what drivers install, `.so` comes with development packages.
const LIBRARIES: [&str; 2] = ["libnvidia-ml.so.1", "libnvidia-ml.so"];
/// How long it may take. It asks the kernel's driver, which waits for ever for a GPU that has fallen off the bus.
const TIME_LIMIT: Duration = Duration::from_secs(20);
/// No GPU has more NVLinks (`NVML_NVLINK_MAX_LINKS`).
const MAX_NVLINKS: u32 = 18;

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
    let (sender, receiver) = mpsc::channel();
    let asking = std::thread::Builder::new().name("nvml".into()).spawn(move || sender.send(inventory()));
    let answer = match asking {
        // The thread is left behind where it hangs; there is no way to end it.
        Ok(_thread) => receiver
            .recv_timeout(TIME_LIMIT)
            .unwrap_or_else(|_| Err(format!("NVML did not answer within {} s", TIME_LIMIT.as_secs()))),
        Err(error) => Err(format!("no thread could be started to ask NVML: {error}")),
    };
    match answer {
        Ok(inventory) => NvmlAnswer::Present(inventory),
        Err(reason) => NvmlAnswer::Absent { reason },
    }
}

fn inventory() -> Result<Inventory, String> {
    let nvml = open()?;
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

fn open() -> Result<Nvml, String> {
    let mut reasons = Vec::new();
    for library in LIBRARIES {
        let opened = Nvml::builder().lib_path(OsStr::new(library)).flags(InitFlags::NO_GPUS).init();
        match opened {
            Ok(nvml) => return Ok(nvml),
            Err(error) => reasons.push(reason(library, error)),
        }
    }
    Err(reasons.swap_remove(0))
}

/// Why the library could not be opened. The loader's words have its name in them.
fn reason(library: &str, error: NvmlError) -> String {
    match error {
        NvmlError::LibloadingError(error) => format!("NVML is not there: {error}"),
        error => format!("NVML ({library}) does not start: {error}"),
    }
}

fn gpu_and_instances(device: &Device<'_>) -> Vec<Gpu> {
    let is_divided = device.mig_mode().is_ok_and(|mode| mode.current == 1);
    let mut whole = gpu(device, if is_divided { Mig::Divided } else { Mig::Off });
    whole.index = device.index().ok().map(|index| index as usize);
    whole.pci_bus_id = bus_id(device).unwrap_or_default();
    whole.site = site(device);
    let mut all = vec![whole];
    // The numbers are those that there may be; not each one is used.
    for number in 0..if is_divided { device.mig_device_count().unwrap_or(0) } else { 0 } {
        let Ok(instance) = device.mig_device_by_index(number) else { continue };
        let Some(mig) = instance_numbers(&instance) else { continue };
        let whole = &all[0];
        let (index, pci_bus_id, site) = (whole.index, whole.pci_bus_id.clone(), whole.site.clone());
        all.push(Gpu { index, pci_bus_id, site, ..gpu(&instance, mig) });
    }
    all
}

/// What a GPU and an instance have in common.
fn gpu(device: &Device<'_>, mig: Mig) -> Gpu {
    Gpu {
        uuid: device.uuid().unwrap_or_default(),
        name: device.name().unwrap_or_else(|_| "unknown GPU".into()),
        mig,
        memory: device.memory_info().ok().map(|memory| GpuMemory {
            total_bytes: memory.total,
            used_bytes: memory.used,
            free_bytes: memory.free,
        }),
        utilization_percent: device.utilization_rates().ok().map(|rates| rates.gpu),
        compute_mode: match device.compute_mode() {
            Ok(NvmlComputeMode::Prohibited) => ComputeMode::Prohibited,
            Ok(NvmlComputeMode::ExclusiveProcess | NvmlComputeMode::ExclusiveThread) => {
                ComputeMode::Exclusive
            }
            Ok(NvmlComputeMode::Default) | Err(_) => ComputeMode::Shared,
        },
        holders: holders(device),
        ..Gpu::default()
    }
}

/// The processes on a GPU other than this one.
fn holders(device: &Device<'_>) -> Vec<Holder> {
    let processes = device.running_compute_processes().unwrap_or_default();
    let others = processes.into_iter().filter(|process| process.pid != std::process::id());
    others
        .map(|process| Holder {
            pid: process.pid,
            name: process_name(process.pid),
            memory_bytes: match process.used_gpu_memory {
                UsedGpuMemory::Used(bytes) => Some(bytes),
                UsedGpuMemory::Unavailable => None,
            },
        })
        .collect()
}

fn process_name(pid: u32) -> Option<String> {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some(name.trim().to_owned())
}

fn bus_id(device: &Device<'_>) -> Option<String> {
    device.pci_info().ok().map(|info| sysfs_bus_id(&info.bus_id))
}

/// What NVML knows of the GPU's part of the machine; it knows no sockets.
fn site(device: &Device<'_>) -> HostSite {
    /// Words of a mask that has a bit for each core: enough for 1024.
    const WORDS: usize = 16;
    let cpus = device.cpu_affinity(WORDS).ok().and_then(|words| cpu_list(&words));
    // The node that NVML has is that of the GPU's own memory, on machines where that is one.
    HostSite { numa_node: None, socket: None, cpus }
}

/// The cores of a mask as the kernel lists them, such as `0-15,32-47`; `None` for an empty one.
fn cpu_list(words: &[u64]) -> Option<String> {
    let is_set = |cpu: usize| words.get(cpu / 64).is_some_and(|word| word >> (cpu % 64) & 1 == 1);
    let mut ranges = Vec::new();
    let mut cpu = 0;
    while cpu < words.len() * 64 {
        let start = cpu;
        while is_set(cpu) {
            cpu += 1;
        }
        match cpu - start {
            0 => cpu += 1,
            1 => ranges.push(start.to_string()),
            _ => ranges.push(format!("{start}-{}", cpu - 1)),
        }
    }
    (!ranges.is_empty()).then(|| ranges.join(","))
}

fn instance_numbers(instance: &Device<'_>) -> Option<Mig> {
    let library = instance.nvml().lib();
    let gpu_instance_id = library.nvmlDeviceGetGpuInstanceId.as_ref().ok()?;
    let compute_instance_id = library.nvmlDeviceGetComputeInstanceId.as_ref().ok()?;
    let (mut gpu_instance, mut compute_instance) = (0, 0);
    // SAFETY: the handle is used while `instance` lives, and the pointers are to integers that live through the calls.
    let codes = unsafe {
        [
            gpu_instance_id(instance.handle(), &mut gpu_instance),
            compute_instance_id(instance.handle(), &mut compute_instance),
        ]
    };
    (codes == [0, 0]).then_some(Mig::Instance { gpu_instance, compute_instance })
}

fn links(devices: &[Device<'_>]) -> Vec<PeerLink> {
    let mut links = Vec::new();
    for (place, first) in devices.iter().enumerate() {
        for second in &devices[place + 1..] {
            let (Some(first_id), Some(second_id)) = (bus_id(first), bus_id(second)) else { continue };
            let can = |index| first.p2p_status(second, index).ok().map(|status| status == P2pStatus::Ok);
            let nvlinks =
                if can(P2pCapabilitiesIndex::NvLink) == Some(true) { nvlinks(first, second) } else { 0 };
            let level = || first.nvml().topology_common_ancestor(first, second).ok().map(distance);
            let distance = if nvlinks > 0 { Some(Distance::NvLink(nvlinks)) } else { level() };
            let peer_access = can(P2pCapabilitiesIndex::Read);
            links.push(PeerLink { first: first_id, second: second_id, distance, peer_access });
        }
    }
    links
}

/// NVLinks between two GPUs that NVML says have some: those that end at the other, or, through NVSwitch, all that both have.
fn nvlinks(first: &Device<'_>, second: &Device<'_>) -> u32 {
    let ends = |device: &Device<'_>| -> Vec<Option<String>> {
        let links = (0..MAX_NVLINKS).map(|link| device.link_wrapper_for(link));
        let active = links.filter(|link| link.is_active().unwrap_or(false));
        active.map(|link| link.remote_pci_info().ok().map(|info| sysfs_bus_id(&info.bus_id))).collect()
    };
    let (from_first, from_second) = (ends(first), ends(second));
    count_nvlinks(&from_first, from_second.len(), bus_id(second).as_deref())
}

/// The number of links to `other` among the ends of one GPU's active links; of a switch's, where none ends there.
fn count_nvlinks(ends: &[Option<String>], ends_of_other: usize, other: Option<&str>) -> u32 {
    let direct = ends.iter().filter(|end| end.is_some() && end.as_deref() == other).count();
    let links = if direct > 0 { direct } else { ends.len().min(ends_of_other) };
    // NVML has said that there is one.
    links.max(1) as u32
}

fn distance(level: TopologyLevel) -> Distance {
    match level {
        TopologyLevel::Internal | TopologyLevel::Single => Distance::OneSwitch,
        TopologyLevel::Multiple => Distance::Switches,
        TopologyLevel::HostBridge => Distance::HostBridge,
        TopologyLevel::Node => Distance::Node,
        TopologyLevel::System => Distance::System,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mask_of_cores_becomes_the_kernels_list() {
        assert_eq!(cpu_list(&[0x0000_ffff_0000_ffff]).as_deref(), Some("0-15,32-47"));
        assert_eq!(cpu_list(&[1 << 63, 1]).as_deref(), Some("63-64"));
        assert_eq!(cpu_list(&[0b101, 0]).as_deref(), Some("0,2"));
        assert_eq!(cpu_list(&[u64::MAX]).as_deref(), Some("0-63"));
        assert_eq!(cpu_list(&[0, 0]), None);
    }

    #[test]
    fn nvlinks_are_counted_to_the_peer_or_through_the_switch() {
        let end = |bus: &str| Some(bus.to_owned());
        let direct = [end("b"), end("b"), end("c"), None];
        assert_eq!(count_nvlinks(&direct, 4, Some("b")), 2);
        let switched = [end("s"), end("s"), end("s")];
        assert_eq!(count_nvlinks(&switched, 2, Some("b")), 2);
        assert_eq!(count_nvlinks(&[], 0, Some("b")), 1);
    }

    #[test]
    fn the_name_of_a_process_is_that_in_proc() {
        assert!(process_name(std::process::id()).is_some_and(|name| !name.is_empty()));
        assert_eq!(process_name(u32::MAX), None);
    }

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
