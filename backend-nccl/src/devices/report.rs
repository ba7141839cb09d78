//! All that is known of the GPUs of a machine, from one process's point of view.

use std::fmt;

use serde::Serialize;

use super::driver::{self, DriverGpu, DriverView};
use super::gpu::Bytes;
use super::nvml::{self, Inventory, NvmlAnswer};
use super::visible::places_by_uuid;
use super::{DeviceOrder, Gpu, Mig, Ordinals, Stop, Sysfs, Topology, VisibleDevices, ordinal_of_rank};
use crate::DeviceError;
use crate::rendezvous::cuda_variable;

/// The GPUs of the machine, what this process sees of them, who holds them and how they hang together.
///
/// Its [`Display`](fmt::Display) is a table for logs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuReport {
    /// The driver's version, such as `550.54.15`.
    pub driver_version: Option<String>,
    /// The newest CUDA that the driver supports, such as `12.4`.
    pub cuda_version: Option<String>,
    /// The value of `CUDA_VISIBLE_DEVICES`, where it is set.
    pub filter: Option<String>,
    /// The entry of `CUDA_VISIBLE_DEVICES` at which CUDA stops to read it.
    pub stop: Option<Stop>,
    /// All GPUs of the machine that NVML shows, and those of the driver that NVML does not.
    pub gpus: Vec<Gpu>,
    /// The ways between them.
    pub topology: Topology,
    /// What could not be learnt, and why.
    pub notes: Vec<String>,
}

/// What the environment says of GPUs.
#[derive(Clone, Debug, Default)]
struct CudaEnvironment {
    filter: Option<String>,
    order: DeviceOrder,
}

impl GpuReport {
    /// Asks NVML, the CUDA driver and the kernel. What is absent is a note, never an error; takes tens of milliseconds, at
    /// most 20 s. Makes no CUDA context and takes no memory of a GPU.
    pub fn read() -> Self {
        let order = DeviceOrder::parse(cuda_variable("CUDA_DEVICE_ORDER").as_deref());
        let environment = CudaEnvironment { filter: cuda_variable("CUDA_VISIBLE_DEVICES"), order };
        Self::new(nvml::ask(), driver::ask(), environment, &Sysfs::default())
    }

    /// As [`read`](Self::read), of given answers, with nothing in the environment.
    #[cfg(test)]
    pub(super) fn of(nvml: NvmlAnswer, driver: Result<DriverView, String>, sysfs: &Sysfs) -> Self {
        Self::new(nvml, driver, CudaEnvironment::default(), sysfs)
    }

    fn new(
        nvml: NvmlAnswer,
        driver: Result<DriverView, String>,
        environment: CudaEnvironment,
        sysfs: &Sysfs,
    ) -> Self {
        let mut notes = Vec::new();
        let inventory = match nvml {
            NvmlAnswer::Present(inventory) => inventory,
            NvmlAnswer::Absent { reason } => {
                notes.push(format!("{reason}; who holds a GPU and how much memory is free is not known"));
                Inventory::default()
            }
        };
        let Inventory { driver_version, mut cuda_version, mut gpus, links } = inventory;
        let by_environment =
            VisibleDevices::parse(environment.filter.as_deref()).resolve(&gpus, environment.order);
        // Without NVML's list there is nothing that an entry could be compared with.
        let stop = match &by_environment {
            Ordinals::Known { stop, .. } if !gpus.is_empty() => stop.clone(),
            _ => None,
        };
        match driver {
            Ok(view) => {
                cuda_version = cuda_version.or((view.cuda_version > 0).then_some(view.cuda_version));
                number_by_driver(&mut gpus, &view.gpus);
            }
            Err(reason) => {
                notes.push(format!("the CUDA driver does not answer: {reason}"));
                notes.extend(number_by_environment(&mut gpus, by_environment));
            }
        }
        complete_sites(&mut gpus, sysfs);
        let topology = Topology::new(&gpus, &links, sysfs);
        let cuda_version = cuda_version.map(|version| format!("{}.{}", version / 1000, version % 1000 / 10));
        Self { driver_version, cuda_version, filter: environment.filter, stop, gpus, topology, notes }
    }

    /// The GPU with a CUDA ordinal.
    pub fn gpu(&self, ordinal: usize) -> Option<&Gpu> {
        self.gpus.iter().find(|gpu| gpu.ordinal == Some(ordinal))
    }

    /// How many GPUs this process sees.
    pub fn visible(&self) -> usize {
        self.gpus.iter().filter(|gpu| gpu.ordinal.is_some()).count()
    }

    /// The CUDA ordinal of a rank, by its local rank, of what this process sees ([`ordinal_of_rank`]): the argument of
    /// `Device::cuda`, which panics where there is no such GPU.
    ///
    /// # Errors
    ///
    /// [`DeviceError::VisibleDevices`] for a mistake in `CUDA_VISIBLE_DEVICES`; [`DeviceError::NoSuchGpu`] on all ranks of a
    /// machine that has more of them than GPUs.
    pub fn ordinal_of(&self, local_rank: usize, local_world_size: usize) -> Result<usize, DeviceError> {
        let ordinal = ordinal_of_rank(local_rank, local_world_size, self.visible(), self.filter.as_deref());
        // Fewer GPUs than there should be are often those of a variable with a mistake.
        ordinal.map_err(|error| self.filter_error().unwrap_or(error))
    }

    /// What is wrong with `CUDA_VISIBLE_DEVICES`, where it has an entry that hides what was meant to be shown.
    pub fn filter_error(&self) -> Option<DeviceError> {
        let (value, stop) = (self.filter.clone()?, self.stop.as_ref()?);
        let reason = format!("`{}` and all after it are hidden, because {}", stop.entry, stop.reason);
        Some(DeviceError::VisibleDevices { value, reason })
    }
}

/// Gives the GPUs the ordinals that the environment lets one conclude; or returns why it does not.
fn number_by_environment(gpus: &mut [Gpu], ordinals: Ordinals) -> Option<String> {
    match ordinals {
        Ordinals::Known { places, .. } => {
            places.into_iter().enumerate().for_each(|(ordinal, place)| gpus[place].ordinal = Some(ordinal));
            None
        }
        Ordinals::Unknown { reason } => Some(format!("the CUDA numbers of the GPUs are not known: {reason}")),
    }
}

/// Gives the GPUs the ordinals of the driver, and adds those that are not in the list.
fn number_by_driver(gpus: &mut Vec<Gpu>, by_ordinal: &[DriverGpu]) {
    let uuids: Vec<String> = by_ordinal.iter().map(|gpu| gpu.uuid.clone()).collect();
    for (ordinal, place) in places_by_uuid(&uuids, gpus).into_iter().enumerate() {
        match place {
            Some(place) => gpus[place].ordinal = Some(ordinal),
            None => {
                let DriverGpu { uuid, name, pci_bus_id } = by_ordinal[ordinal].clone();
                gpus.push(Gpu { ordinal: Some(ordinal), uuid, name, pci_bus_id, ..Gpu::default() });
            }
        }
    }
}

/// What the kernel says of where the GPUs hang comes before what NVML does, which knows no sockets.
fn complete_sites(gpus: &mut [Gpu], sysfs: &Sysfs) {
    for gpu in gpus {
        let site = sysfs.site(&gpu.pci_bus_id);
        gpu.site.numa_node = site.numa_node.or(gpu.site.numa_node);
        gpu.site.socket = site.socket.or(gpu.site.socket);
        gpu.site.cpus = site.cpus.or(gpu.site.cpus.take());
    }
}

impl fmt::Display for GpuReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let version = |version: &Option<String>| version.clone().unwrap_or_else(|| "unknown".to_owned());
        writeln!(f, "driver {}, CUDA {}", version(&self.driver_version), version(&self.cuda_version))?;
        if let Some(filter) = &self.filter {
            writeln!(f, "CUDA_VISIBLE_DEVICES={filter}")?;
        }
        if let Some(stop) = &self.stop {
            writeln!(f, "note: `{}` and all after it are hidden: {}", stop.entry, stop.reason)?;
        }
        for note in &self.notes {
            writeln!(f, "note: {note}")?;
        }
        if self.gpus.is_empty() {
            return writeln!(f, "no GPUs");
        }
        let head = ["cuda", "nvml", "name", "bus", "memory in use", "load", "held by"].map(str::to_owned);
        let rows: Vec<[String; 7]> = std::iter::once(head).chain(self.gpus.iter().map(row)).collect();
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..7).map(width).collect();
        for row in &rows {
            let line: String =
                row.iter().zip(&widths).map(|(text, width)| format!("{text:width$}  ")).collect();
            writeln!(f, "{}", line.trim_end())?;
        }
        if self.topology.gpus.len() > 1 { write!(f, "{}", self.topology) } else { Ok(()) }
    }
}

fn row(gpu: &Gpu) -> [String; 7] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    let index = gpu.index.map(|index| match gpu.mig {
        Mig::Instance { gpu_instance, compute_instance } => {
            format!("{index}/{gpu_instance}/{compute_instance}")
        }
        Mig::Off | Mig::Divided => index.to_string(),
    });
    let memory =
        gpu.memory.map(|memory| format!("{} of {}", Bytes(memory.used_bytes), Bytes(memory.total_bytes)));
    [
        or_dash(gpu.ordinal.map(|ordinal| ordinal.to_string())),
        or_dash(index),
        gpu.name.clone(),
        gpu.pci_bus_id.clone(),
        or_dash(memory),
        or_dash(gpu.utilization_percent.map(|percent| format!("{percent}%"))),
        or_dash(gpu.held_by()),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::sysfs::tests::{DEVICES, machine};
    use super::super::{Distance, GpuMemory, Holder, PeerLink};
    use super::*;

    /// NVML's view of a machine with two GPUs under two sockets, of which the first is held.
    fn inventory() -> NvmlAnswer {
        let gpu = |index, uuid: &str, pci_bus_id: &str, used_bytes: u64| Gpu {
            index: Some(index),
            uuid: uuid.into(),
            name: "NVIDIA H200".into(),
            pci_bus_id: pci_bus_id.into(),
            memory: Some(GpuMemory {
                total_bytes: 140 << 30,
                used_bytes,
                free_bytes: (140 << 30) - used_bytes,
            }),
            utilization_percent: Some(0),
            ..Gpu::default()
        };
        let python = Holder { pid: 4711, name: Some("python".into()), memory_bytes: Some(12 << 30) };
        let first = Gpu { holders: vec![python], ..gpu(0, "GPU-00000000-a", "0000:3d:00.0", 12 << 30) };
        NvmlAnswer::Present(Inventory {
            driver_version: Some("570.1".into()),
            cuda_version: Some(12080),
            gpus: vec![first, gpu(1, "GPU-00000000-b", "0000:b1:00.0", 4 << 20)],
            links: vec![PeerLink::new("0000:3d:00.0", "0000:b1:00.0", Some(Distance::System))],
        })
    }

    fn absent() -> NvmlAnswer {
        NvmlAnswer::Absent { reason: "NVML is not there: no such file".into() }
    }

    fn driver(gpus: &[(&str, &str)]) -> Result<DriverView, String> {
        let gpu = |(uuid, bus): &(&str, &str)| DriverGpu {
            uuid: (*uuid).into(),
            name: "NVIDIA H200".into(),
            pci_bus_id: (*bus).into(),
        };
        Ok(DriverView { cuda_version: 12080, gpus: gpus.iter().map(gpu).collect() })
    }

    fn filter(value: &str) -> CudaEnvironment {
        CudaEnvironment { filter: Some(value.into()), ..CudaEnvironment::default() }
    }

    fn ordinals(report: &GpuReport) -> Vec<Option<usize>> {
        report.gpus.iter().map(|gpu| gpu.ordinal).collect()
    }

    #[test]
    fn the_table_shows_each_gpu_with_both_numbers_and_who_holds_it() {
        let (_folder, sysfs) = machine(&DEVICES);
        let driver = driver(&[("GPU-00000000-b", "0000:b1:00.0")]);
        let report = GpuReport::new(inventory(), driver, filter("1"), &sysfs);
        let expected = "driver 570.1, CUDA 12.8\n\
            CUDA_VISIBLE_DEVICES=1\n\
            cuda  nvml  name         bus           memory in use          load  held by\n\
            -     0     NVIDIA H200  0000:3d:00.0  12.0 GiB of 140.0 GiB  0%    python (process 4711, 12.0 GiB)\n\
            0     1     NVIDIA H200  0000:b1:00.0  4 MiB of 140.0 GiB     0%    -\n      \
                  GPU0  GPU1  NUMA  socket  cores\n\
            GPU0  X     SYS   0     0       0-15,32-47\n\
            GPU1  SYS   X     1     1       16-31,48-63\n";
        assert_eq!(report.to_string(), expected);
        assert_eq!(report.gpu(0).map(|gpu| gpu.index), Some(Some(1)));
        assert!(report.topology.warning().is_some());
    }

    #[test]
    fn the_driver_numbers_the_gpus_and_the_environment_where_there_is_no_driver() {
        let sysfs = Sysfs::new("/nowhere");
        let new = |driver, environment| GpuReport::new(inventory(), driver, environment, &sysfs);
        // The driver's word counts, though the variable says something else.
        let swapped = driver(&[("GPU-00000000-b", "x"), ("GPU-00000000-a", "y")]);
        assert_eq!(ordinals(&new(swapped, filter("0,1"))), [Some(1), Some(0)]);
        let report = new(Err("no libcuda.so.1".into()), filter("1"));
        assert_eq!(ordinals(&report), [None, Some(0)]);
        assert_eq!(report.notes, ["the CUDA driver does not answer: no libcuda.so.1"]);
        // A driver that shows nothing is an answer.
        assert_eq!(new(Ok(DriverView::default()), CudaEnvironment::default()).visible(), 0);
    }

    #[test]
    fn without_nvml_the_drivers_gpus_are_there_with_what_the_kernel_says() {
        let (_folder, sysfs) = machine(&DEVICES);
        let driver = driver(&[("GPU-a", "0000:3d:00.0"), ("GPU-b", "0000:3e:00.0")]);
        let report = GpuReport::new(absent(), driver, CudaEnvironment::default(), &sysfs);
        assert_eq!(report.visible(), 2);
        assert_eq!(report.gpu(1).and_then(|gpu| gpu.site.socket), Some(0));
        assert_eq!(report.topology.distances[0][1], Some(Distance::OneSwitch));
        assert!(report.to_string().contains("note: NVML is not there: no such file; who holds"), "{report}");
    }

    #[test]
    fn a_filter_that_names_nothing_is_told_with_the_entry() {
        let report =
            GpuReport::new(inventory(), Ok(DriverView::default()), filter("7"), &Sysfs::new("/nowhere"));
        let error = report.filter_error().unwrap().to_string();
        assert!(error.contains("CUDA_VISIBLE_DEVICES=7: `7` and all after it are hidden"), "{error}");
        assert!(error.contains("this machine has 2 GPUs"), "{error}");
        let hidden =
            GpuReport::new(inventory(), Ok(DriverView::default()), filter(""), &Sysfs::new("/nowhere"));
        assert_eq!((hidden.filter_error(), hidden.visible()), (None, 0));
    }

    #[test]
    fn a_machine_with_nothing_has_a_report_all_the_same() {
        let report =
            GpuReport::new(absent(), Err("x".into()), CudaEnvironment::default(), &Sysfs::new("/nowhere"));
        assert_eq!((report.visible(), report.notes.len()), (0, 2));
        assert!(report.to_string().ends_with("no GPUs\n"), "{report}");
        // And so has this one, whatever it is.
        assert!(GpuReport::read().to_string().starts_with("driver "));
    }

    #[test]
    fn each_rank_has_the_gpu_of_its_local_rank_and_more_ranks_than_gpus_are_refused_on_all() {
        let gpu = |ordinal| Gpu { ordinal: Some(ordinal), ..Gpu::default() };
        let report = GpuReport { gpus: vec![gpu(0), gpu(1)], ..GpuReport::default() };
        assert_eq!([0, 1].map(|rank| report.ordinal_of(rank, 2)), [Ok(0), Ok(1)]);
        for rank in 0..3 {
            let refused = report.ordinal_of(rank, 3);
            assert!(matches!(refused, Err(DeviceError::NoSuchGpu { visible: 2, .. })), "{refused:?}");
        }
        let stop = Stop { entry: "9".into(), reason: "there are 2 GPUs".into() };
        let hidden = GpuReport { filter: Some("9".into()), stop: Some(stop), ..GpuReport::default() };
        assert!(matches!(hidden.ordinal_of(0, 1), Err(DeviceError::VisibleDevices { .. })));
    }
}
