//! What is known of a GPU: plain data, so that what is decided from it can be tried on made-up machines.

use std::fmt;

use serde::Serialize;

/// More memory than this in use, and nobody seen who uses it: someone in another container does. An idle GPU has a few MiB
/// in use, one with a desktop some hundred.
const UNSEEN_BYTES: u64 = 1 << 30;

/// A GPU, or a MIG instance of one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Gpu {
    /// NVML's number, which `nvidia-smi` shows: by place on the bus, whatever the environment says. That of the whole GPU
    /// for an instance; `None` where NVML is absent.
    pub index: Option<usize>,
    /// CUDA's number in this process; `None` for a GPU that is hidden from it, or whose number cannot be known.
    pub ordinal: Option<usize>,
    /// Such as `GPU-8932f937-d72c-4106-c12f-20bd9faed9f6`; `MIG-…` for an instance.
    pub uuid: String,
    /// The product.
    pub name: String,
    /// Its place on the bus as sysfs writes it, such as `0000:3b:00.0`.
    pub pci_bus_id: String,
    /// Whether it is divided into instances, or one of them.
    pub mig: Mig,
    /// Its memory; `None` where NVML does not tell.
    pub memory: Option<GpuMemory>,
    /// How busy its multiprocessors were lately, in percent.
    pub utilization_percent: Option<u32>,
    /// Which processes may compute on it.
    pub compute_mode: ComputeMode,
    /// The other processes that compute on it.
    pub holders: Vec<Holder>,
    /// The part of the machine that it hangs on.
    pub site: HostSite,
}

/// The memory of a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuMemory {
    /// All of it.
    pub total_bytes: u64,
    /// What processes have; the driver's own part is not in it.
    pub used_bytes: u64,
    /// What can be had.
    pub free_bytes: u64,
}

/// A process that computes on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// Its name for itself, from `/proc`; `None` where it cannot be read, as that of a process in another container.
    pub name: Option<String>,
    /// GPU memory that it has.
    pub memory_bytes: Option<u64>,
}

/// Multi-instance GPU: one GPU divided into several that CUDA takes for devices of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum Mig {
    /// A whole GPU.
    #[default]
    Off,
    /// A GPU that is divided, and cannot be computed on as a whole.
    Divided,
    /// One of its instances.
    Instance {
        /// The number of the GPU instance.
        gpu_instance: u32,
        /// The number of the compute instance in it.
        compute_instance: u32,
    },
}

/// Which processes may compute on a GPU, as `nvidia-smi -c` sets it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub enum ComputeMode {
    /// Any number of processes.
    #[default]
    Shared,
    /// One process at a time.
    Exclusive,
    /// None.
    Prohibited,
}

/// The part of the machine that a GPU hangs on.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HostSite {
    /// The NUMA node; `None` where the machine does not say.
    pub numa_node: Option<u32>,
    /// The processor socket.
    pub socket: Option<u32>,
    /// The cores near it, such as `0-15,32-47`.
    pub cpus: Option<String>,
}

impl Gpu {
    /// Whether other processes compute on it, or hold memory of it that this one cannot see.
    pub fn is_held(&self) -> bool {
        !self.holders.is_empty() || self.unseen_bytes().is_some()
    }

    /// Whether this process may compute on it, as far as its compute mode says.
    pub fn is_open(&self) -> bool {
        match self.compute_mode {
            ComputeMode::Shared => true,
            ComputeMode::Exclusive => self.holders.is_empty(),
            ComputeMode::Prohibited => false,
        }
    }

    /// Who holds it, for a message; `None` where it is idle.
    pub fn held_by(&self) -> Option<String> {
        if let Some(bytes) = self.unseen_bytes() {
            return Some(format!("processes that cannot be seen from here ({} in use)", Bytes(bytes)));
        }
        let holders: Vec<String> = self.holders.iter().map(ToString::to_string).collect();
        (!holders.is_empty()).then(|| holders.join(", "))
    }

    fn unseen_bytes(&self) -> Option<u64> {
        // The memory of a divided GPU is that of its instances.
        if !self.holders.is_empty() || self.mig == Mig::Divided {
            return None;
        }
        self.memory.map(|memory| memory.used_bytes).filter(|used| *used > UNSEEN_BYTES)
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {}", self.name.as_deref().unwrap_or("unknown"), self.pid)?;
        match self.memory_bytes {
            Some(bytes) => write!(f, ", {})", Bytes(bytes)),
            None => f.write_str(")"),
        }
    }
}

/// A number of bytes for people.
pub(super) struct Bytes(pub(super) u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes >= 1 << 30 => write!(f, "{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
            bytes => write!(f, "{} MiB", bytes >> 20),
        }
    }
}

/// A place on the bus as sysfs writes it: NVML writes its domain with eight digits and all of it in capitals.
pub(super) fn sysfs_bus_id(text: &str) -> String {
    let text = text.trim().to_ascii_lowercase();
    match text.split_once(':') {
        Some((domain, rest)) => match u32::from_str_radix(domain, 16) {
            Ok(domain) => format!("{domain:04x}:{rest}"),
            Err(_) => text,
        },
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_memory(used_bytes: u64) -> Gpu {
        let memory = GpuMemory { total_bytes: 80 << 30, used_bytes, free_bytes: (80 << 30) - used_bytes };
        Gpu { memory: Some(memory), ..Gpu::default() }
    }

    #[test]
    fn a_gpu_is_held_by_the_processes_on_it_or_by_ones_that_cannot_be_seen() {
        assert_eq!(with_memory(300 << 20).held_by(), None);
        assert_eq!(
            with_memory(12 << 30).held_by().as_deref(),
            Some("processes that cannot be seen from here (12.0 GiB in use)")
        );
        let python = Holder { pid: 4711, name: Some("python".into()), memory_bytes: Some(12 << 30) };
        let hidden = Holder { pid: 12, name: None, memory_bytes: None };
        let held = Gpu { holders: vec![python, hidden], ..with_memory(12 << 30) };
        assert_eq!(held.held_by().as_deref(), Some("python (process 4711, 12.0 GiB), unknown (process 12)"));
        let divided = Gpu { mig: Mig::Divided, ..with_memory(12 << 30) };
        assert!(!divided.is_held());
    }

    #[test]
    fn an_exclusive_gpu_is_open_until_someone_is_on_it() {
        let gpu = |compute_mode, held: bool| {
            let holders = if held { vec![Holder::default()] } else { Vec::new() };
            Gpu { compute_mode, holders, ..Gpu::default() }.is_open()
        };
        assert!(gpu(ComputeMode::Shared, true));
        assert!(gpu(ComputeMode::Exclusive, false) && !gpu(ComputeMode::Exclusive, true));
        assert!(!gpu(ComputeMode::Prohibited, false));
    }

    #[test]
    fn places_on_the_bus_are_written_as_sysfs_does() {
        assert_eq!(sysfs_bus_id("00000000:3B:00.0"), "0000:3b:00.0");
        assert_eq!(sysfs_bus_id("0001:0A:1f.7"), "0001:0a:1f.7");
        assert_eq!(sysfs_bus_id("00010000:0A:00.0"), "10000:0a:00.0");
        assert_eq!(sysfs_bus_id("none"), "none");
    }
}
