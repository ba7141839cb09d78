//! What the kernel tells of where PCI devices hang, for machines and containers whose NVML does not.

use std::fs;
use std::path::{Path, PathBuf};

use super::{Distance, HostSite};

/// The folder of the kernel's view of the machine: `/sys`, or a made-up one.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
}

impl Default for Sysfs {
    fn default() -> Self {
        Self::new("/sys")
    }
}

impl Sysfs {
    /// The one at `root`.
    pub fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// The part of the machine that the device at `pci_bus_id` hangs on; what the kernel does not say is `None`.
    pub fn site(&self, pci_bus_id: &str) -> HostSite {
        let device = self.device(pci_bus_id);
        let cpus = read(&device.join("local_cpulist")).filter(|cpus| !cpus.is_empty());
        let numa_node = read(&device.join("numa_node")).and_then(|node| node.parse().ok());
        // The kernel writes -1 where the firmware does not say; with one node there is no question.
        let numa_node = numa_node.or_else(|| (self.numa_nodes() == 1 && device.exists()).then_some(0));
        let first_cpu = cpus.as_deref().and_then(|cpus| cpus.split(['-', ',']).next());
        // The cores are near a node. Where that is not known they are all cores, which says nothing of a socket.
        let socket = first_cpu.filter(|_| numa_node.is_some()).and_then(|cpu| self.socket(cpu));
        HostSite { numa_node, socket, cpus }
    }

    /// How far two devices are from each other over PCI Express; `None` where the kernel does not say.
    pub fn distance(&self, first: &str, second: &str) -> Option<Distance> {
        let (first_path, second_path) = (self.bridges(first)?, self.bridges(second)?);
        match below_host_bridge(&first_path, &second_path) {
            Some(distance) => Some(distance),
            None => match (self.site(first).numa_node, self.site(second).numa_node) {
                (Some(first), Some(second)) if first == second => Some(Distance::Node),
                (Some(_), Some(_)) => Some(Distance::System),
                _ => None,
            },
        }
    }

    fn device(&self, pci_bus_id: &str) -> PathBuf {
        self.root.join("bus/pci/devices").join(pci_bus_id)
    }

    /// The host bridge, the bridges below it and the device itself, from the top.
    fn bridges(&self, pci_bus_id: &str) -> Option<Vec<String>> {
        let path = fs::canonicalize(self.device(pci_bus_id)).ok()?;
        let parts = path.iter().map(|part| part.to_string_lossy().into_owned());
        // Such as pci0000:3a; on some virtual machines it is not directly below devices/.
        let parts: Vec<String> = parts.skip_while(|part| !is_host_bridge(part)).collect();
        (parts.len() > 1).then_some(parts)
    }

    fn socket(&self, cpu: &str) -> Option<u32> {
        let file = format!("devices/system/cpu/cpu{cpu}/topology/physical_package_id");
        read(&self.root.join(file))?.parse().ok()
    }

    fn numa_nodes(&self) -> usize {
        let Ok(entries) = fs::read_dir(self.root.join("devices/system/node")) else { return 0 };
        let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let number = |name: &str| name.strip_prefix("node").is_some_and(|node| node.parse::<u32>().is_ok());
        names.filter(|name| number(name)).count()
    }
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn is_host_bridge(part: &str) -> bool {
    part.strip_prefix("pci").is_some_and(|rest| rest.contains(':'))
}

/// The distance of two devices under one host bridge, from the ways to them; `None` where the bridges differ.
///
/// A PCI Express switch is two levels of bridges: the port towards the processor, and one port towards each device. So ways
/// that part less than two levels above both devices part in one switch.
fn below_host_bridge(first: &[String], second: &[String]) -> Option<Distance> {
    let common = first.iter().zip(second).take_while(|(first, second)| first == second).count();
    let apart = first.len().max(second.len()) - common;
    match common {
        0 => None,
        1 => Some(Distance::HostBridge),
        _ if apart <= 2 => Some(Distance::OneSwitch),
        _ => Some(Distance::Switches),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Two sockets of one NUMA node each. On the first, 0000:3d:00.0 and 0000:3e:00.0 share a switch that hangs on another
    /// one with 0000:41:00.0; 0000:51:00.0 has another root port, 0000:61:00.0 another host bridge. 0000:b1:00.0 is on
    /// the second socket.
    pub(in super::super) const DEVICES: [(&str, u32, &str); 6] = [
        (
            "pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:00.0/0000:3c:01.0/0000:3c:02.0/0000:3d:00.0",
            0,
            "0-15,32-47",
        ),
        (
            "pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:00.0/0000:3c:01.0/0000:3c:03.0/0000:3e:00.0",
            0,
            "0-15,32-47",
        ),
        ("pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3f:00.0/0000:40:00.0/0000:41:00.0", 0, "0-15,32-47"),
        ("pci0000:3a/0000:3a:02.0/0000:51:00.0", 0, "0-15,32-47"),
        ("pci0000:5d/0000:5d:00.0/0000:61:00.0", 0, "0-15,32-47"),
        ("pci0000:ae/0000:ae:00.0/0000:b1:00.0", 1, "16-31,48-63"),
    ];

    pub(in super::super) fn machine(devices: &[(&str, u32, &str)]) -> (tempfile::TempDir, Sysfs) {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("bus/pci/devices")).unwrap();
        for (path, node, cpus) in devices {
            let device = root.join("devices").join(path);
            fs::create_dir_all(&device).unwrap();
            fs::write(device.join("numa_node"), format!("{node}\n")).unwrap();
            fs::write(device.join("local_cpulist"), format!("{cpus}\n")).unwrap();
            symlink(&device, root.join("bus/pci/devices").join(device.file_name().unwrap())).unwrap();
        }
        for (cpu, socket) in [(0, 0), (16, 1)] {
            let topology = root.join(format!("devices/system/cpu/cpu{cpu}/topology"));
            fs::create_dir_all(&topology).unwrap();
            fs::write(topology.join("physical_package_id"), format!("{socket}\n")).unwrap();
            fs::create_dir_all(root.join(format!("devices/system/node/node{socket}"))).unwrap();
        }
        let sysfs = Sysfs::new(root);
        (folder, sysfs)
    }

    #[test]
    fn distances_are_those_of_the_bridges_between_two_devices() {
        let (_folder, sysfs) = machine(&DEVICES);
        let cases = [
            ("0000:3d:00.0", "0000:3e:00.0", Some(Distance::OneSwitch)),
            ("0000:3d:00.0", "0000:41:00.0", Some(Distance::Switches)),
            ("0000:3d:00.0", "0000:51:00.0", Some(Distance::HostBridge)),
            ("0000:3d:00.0", "0000:61:00.0", Some(Distance::Node)),
            ("0000:3d:00.0", "0000:b1:00.0", Some(Distance::System)),
            ("0000:3d:00.0", "0000:ff:00.0", None),
        ];
        for (first, second, expected) in cases {
            assert_eq!(sysfs.distance(first, second), expected, "{first} {second}");
            assert_eq!(sysfs.distance(second, first), expected, "{second} {first}");
        }
    }

    #[test]
    fn the_site_of_a_device_has_its_node_its_socket_and_its_cores() {
        let (_folder, sysfs) = machine(&DEVICES);
        let expected = HostSite { numa_node: Some(1), socket: Some(1), cpus: Some("16-31,48-63".into()) };
        assert_eq!(sysfs.site("0000:b1:00.0"), expected);
        assert_eq!(sysfs.site("0000:ff:00.0"), HostSite::default());
    }

    #[test]
    fn a_node_that_the_firmware_does_not_name_is_known_only_where_there_is_one() {
        let (folder, sysfs) = machine(&DEVICES[3..]);
        for device in ["pci0000:3a/0000:3a:02.0/0000:51:00.0", "pci0000:5d/0000:5d:00.0/0000:61:00.0"] {
            fs::write(folder.path().join("devices").join(device).join("numa_node"), "-1\n").unwrap();
        }
        assert_eq!(sysfs.distance("0000:51:00.0", "0000:61:00.0"), None);
        assert_eq!(sysfs.site("0000:51:00.0").socket, None);
        fs::remove_dir(folder.path().join("devices/system/node/node1")).unwrap();
        assert_eq!(sysfs.distance("0000:51:00.0", "0000:61:00.0"), Some(Distance::Node));
    }
}
