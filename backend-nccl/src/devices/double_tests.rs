//! What is asked of NVML and the driver, tried on a double of both: a library in C, so that calls go the way they go on a
//! machine with GPUs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::nvml::{self, Inventory, NvmlAnswer};
use super::*;

/// Builds the double with the compiler that Rust links with.
fn double(folder: &Path, defined: Option<&str>) -> PathBuf {
    // A file of its own for each: the loader takes a path that it knows for the library that it has.
    let name = defined.unwrap_or("double");
    let (source, library) = (folder.join("double.c"), folder.join(format!("{name}.so")));
    std::fs::write(&source, include_str!("double.c")).unwrap();
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-w", "-o"]).arg(&library).arg(&source);
    command.args(defined.map(|name| format!("-D{name}")));
    assert!(command.status().unwrap().success(), "{command:?}");
    library
}

fn ask_nvml(defined: Option<&str>, time_limit: Duration) -> NvmlAnswer {
    let folder = tempfile::tempdir().unwrap();
    nvml::ask_library(vec![double(folder.path(), defined).into()], time_limit)
}

fn present(answer: NvmlAnswer) -> Inventory {
    match answer {
        NvmlAnswer::Present(inventory) => inventory,
        NvmlAnswer::Absent { reason } => panic!("{reason}"),
    }
}

fn reason(answer: NvmlAnswer) -> String {
    match answer {
        NvmlAnswer::Absent { reason } => reason,
        NvmlAnswer::Present(inventory) => panic!("{inventory:?}"),
    }
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn all_that_nvml_knows_of_a_gpu_arrives() {
    let inventory = present(ask_nvml(None, LONG));
    assert_eq!(inventory.driver_version.as_deref(), Some("570.86.15"));
    assert_eq!(inventory.cuda_version, Some(12080));
    let [first, second, divided, instance] = inventory.gpus.as_slice() else { panic!("{inventory:?}") };
    let memory = GpuMemory { total_bytes: 140 << 30, used_bytes: 12 << 30, free_bytes: 128 << 30 };
    assert_eq!((first.index, first.name.as_str()), (Some(0), "NVIDIA H200"));
    assert_eq!((first.pci_bus_id.as_str(), first.memory), ("0000:3b:00.0", Some(memory)));
    assert_eq!((first.utilization_percent, first.compute_mode), (Some(97), ComputeMode::Shared));
    assert_eq!(first.site.cpus.as_deref(), Some("0-15"));
    // This process is none of the others; the parent has a name, and the one in another container none.
    let [parent, hidden] = first.holders.as_slice() else { panic!("{first:?}") };
    let pid = std::os::unix::process::parent_id();
    assert_eq!((parent.pid, parent.memory_bytes, parent.name.is_some()), (pid, Some(11 << 30), true));
    assert_eq!((hidden.name.as_deref(), hidden.memory_bytes), (None, None));
    assert_eq!((second.compute_mode, second.holders.len()), (ComputeMode::Exclusive, 0));
    assert_eq!((divided.mig, divided.utilization_percent), (Mig::Divided, None));
    let expected = Gpu {
        index: Some(2),
        uuid: "MIG-dddddddd-0000-0000-0000-000000000000".into(),
        name: "NVIDIA H200 MIG 1g.18gb".into(),
        pci_bus_id: "0000:af:00.0".into(),
        mig: Mig::Instance { gpu_instance: 9, compute_instance: 0 },
        memory: Some(GpuMemory {
            total_bytes: 18 << 30,
            used_bytes: 1 << 20,
            free_bytes: (18 << 30) - (1 << 20),
        }),
        site: divided.site.clone(),
        ..Gpu::default()
    };
    assert_eq!(*instance, expected);
}

#[test]
fn nvlinks_to_the_peer_are_counted_and_other_ways_have_their_level() {
    let links = present(ask_nvml(None, LONG)).links;
    let ways: Vec<_> =
        links.iter().map(|link| (link.first.as_str(), link.distance, link.peer_access)).collect();
    assert_eq!(
        ways,
        [
            ("0000:3b:00.0", Some(Distance::NvLink(2)), Some(true)),
            ("0000:3b:00.0", Some(Distance::System), Some(false)),
            ("0000:5e:00.0", Some(Distance::System), Some(false)),
        ]
    );
}

#[test]
fn an_nvml_that_is_not_there_has_no_driver_or_hangs_is_an_answer_in_time() {
    let missing = reason(nvml::ask_library(vec!["/nowhere/libnvidia-ml.so.1".into()], LONG));
    assert!(missing.contains("NVML is not there") && missing.contains("/nowhere"), "{missing}");
    let no_driver = reason(ask_nvml(Some("NVML_HAS_NO_DRIVER"), LONG));
    assert!(no_driver.contains("NVIDIA driver is not loaded"), "{no_driver}");
    let start = Instant::now();
    let hanging = reason(ask_nvml(Some("NVML_HANGS"), Duration::from_millis(100)));
    assert!(hanging.contains("did not answer"), "{hanging}");
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

#[test]
fn the_driver_tells_its_gpus_by_ordinal_in_its_old_form_too() {
    let folder = tempfile::tempdir().unwrap();
    for defined in [None, Some("CUDA_IS_OLD")] {
        let library = double(folder.path(), defined);
        let view = super::driver::ask_library(&[library.to_str().unwrap()]).unwrap();
        let gpus: Vec<_> = view.gpus.iter().map(|gpu| (&gpu.uuid[..12], gpu.pci_bus_id.as_str())).collect();
        assert_eq!(gpus, [("GPU-bbbbbbbb", "0000:5e:00.0"), ("GPU-dddddddd", "0000:af:00.0")], "{defined:?}");
        assert_eq!(view.cuda_version, 12080);
    }
    let nothing = double(folder.path(), Some("CUDA_SHOWS_NOTHING"));
    assert_eq!(super::driver::ask_library(&[nothing.to_str().unwrap()]).unwrap(), Default::default());
    let error = super::driver::ask_library(&["/nowhere/libcuda.so.1"]).unwrap_err();
    assert!(error.contains("/nowhere/libcuda.so.1"), "{error}");
}

#[test]
fn nvml_and_the_driver_together_number_the_gpus_and_the_instance() {
    let folder = tempfile::tempdir().unwrap();
    let library = double(folder.path(), None);
    let view = super::driver::ask_library(&[library.to_str().unwrap()]);
    let report = GpuReport::of(ask_nvml(None, LONG), view, &Sysfs::new("/nowhere"));
    let ordinals: Vec<_> = report.gpus.iter().map(|gpu| gpu.ordinal).collect();
    assert_eq!(ordinals, [None, Some(0), None, Some(1)]);
    assert_eq!(freest(&report.gpus, 2, None), Ok(vec![0, 1]));
    assert_eq!(report.topology.distances[0][1], Some(Distance::NvLink(2)));
    let table = report.to_string();
    assert!(table.contains("\n1     2/9/0  NVIDIA H200 MIG 1g.18gb  0000:af:00.0"), "{table}");
}
