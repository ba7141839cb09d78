//! What NVML knows of one GPU.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::ComputeMode as NvmlComputeMode;
use nvml_wrapper::enums::device::UsedGpuMemory;

use super::super::{ComputeMode, Gpu, GpuMemory, Holder, HostSite, Mig};
use super::bus_id;

/// A GPU, and its instances after it where it is divided.
pub(super) fn gpu_and_instances(device: &Device<'_>) -> Vec<Gpu> {
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
    fn the_name_of_a_process_is_that_in_proc() {
        assert!(process_name(std::process::id()).is_some_and(|name| !name.is_empty()));
        assert_eq!(process_name(u32::MAX), None);
    }
}
