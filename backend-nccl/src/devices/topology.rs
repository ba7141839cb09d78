//! How far the GPUs of a machine are from each other.

use std::fmt;

use serde::Serialize;

use super::{Gpu, HostSite, Mig, PeerLink, Sysfs};

/// The way between two GPUs, the shortest first. The names in tables are those of `nvidia-smi topo -m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Distance {
    /// `NV<n>`: this many NVLinks, directly or through NVSwitch.
    NvLink(u32),
    /// `PIX`: at most one PCI Express switch.
    OneSwitch,
    /// `PXB`: several PCI Express switches, but no host bridge.
    Switches,
    /// `PHB`: a host bridge, which is in the processor as a rule.
    HostBridge,
    /// `NODE`: from one host bridge to another of a NUMA node.
    Node,
    /// `SYS`: from one NUMA node to another, as between processor sockets.
    System,
}

/// The GPUs of a machine and the ways between them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Topology {
    /// The GPUs, none of them twice.
    pub gpus: Vec<TopologyGpu>,
    /// `distances[a][b]`, the same in both directions; `None` where it is not known, and of a GPU to itself.
    pub distances: Vec<Vec<Option<Distance>>>,
}

/// A GPU among others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct TopologyGpu {
    /// Such as `GPU0`, with NVML's number as in `nvidia-smi`; the place on the bus without NVML.
    pub label: String,
    /// Its place on the bus.
    pub pci_bus_id: String,
    /// The part of the machine that it hangs on.
    pub site: HostSite,
}

impl Topology {
    /// That of `gpus`, of which instances of one count once. NVML's `links` come first, then what the kernel says.
    pub fn new(gpus: &[Gpu], links: &[PeerLink], sysfs: &Sysfs) -> Self {
        let whole = gpus.iter().filter(|gpu| !matches!(gpu.mig, Mig::Instance { .. }));
        let gpus: Vec<TopologyGpu> = whole.map(TopologyGpu::new).collect();
        let way = |first: &TopologyGpu, second: &TopologyGpu| {
            let (first, second) = (first.pci_bus_id.as_str(), second.pci_bus_id.as_str());
            if first == second {
                return None;
            }
            let link = links.iter().find(|link| link.is_between(first, second));
            link.and_then(|link| link.distance).or_else(|| sysfs.distance(first, second))
        };
        let distances = gpus.iter().map(|row| gpus.iter().map(|column| way(row, column)).collect()).collect();
        Self { gpus, distances }
    }

    /// The part of it that has the GPUs at these places on the bus; those that are not in it are left out.
    pub fn of(&self, pci_bus_ids: &[String]) -> Self {
        let places: Vec<usize> = (0..self.gpus.len())
            .filter(|place| pci_bus_ids.contains(&self.gpus[*place].pci_bus_id))
            .collect();
        let row = |from: &usize| places.iter().map(|to| self.distances[*from][*to]).collect();
        Self {
            gpus: places.iter().map(|place| self.gpus[*place].clone()).collect(),
            distances: places.iter().map(row).collect(),
        }
    }

    /// What to know before these GPUs train together: that some are under different processor sockets with no NVLink
    /// between them, and what to do about it. `None` where there is nothing to say.
    ///
    /// All that such GPUs send each other crosses the link between the sockets. That is slow, and on some machines direct
    /// access across it does not work at all: NCCL then hangs when it sets up or at its first collective.
    pub fn warning(&self) -> Option<String> {
        let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
        for gpu in &self.gpus {
            let side = gpu.side();
            match groups.iter_mut().find(|(name, _)| *name == side) {
                Some((_, labels)) => labels.push(&gpu.label),
                None => groups.push((side, vec![&gpu.label])),
            }
        }
        let mut pairs =
            self.distances.iter().enumerate().flat_map(|(from, row)| {
                row.iter().enumerate().map(move |(to, distance)| (from, to, *distance))
            });
        let is_apart = |(from, to, distance): (usize, usize, Option<Distance>)| {
            // A socket may have several NUMA nodes.
            let sockets = (self.gpus[from].site.socket, self.gpus[to].site.socket);
            distance == Some(Distance::System) && (sockets.0.is_none() || sockets.0 != sockets.1)
        };
        if !pairs.any(is_apart) {
            return None;
        }
        let groups: Vec<String> =
            groups.iter().map(|(side, labels)| format!("{} on {side}", labels.join(", "))).collect();
        Some(format!(
            "the GPUs of this job are under different CPU sockets, without NVLink between them ({}): what they send each \
             other crosses the link between the sockets, which is slow, and where direct access does not work across it NCCL \
             hangs until its deadline; let CUDA_VISIBLE_DEVICES name GPUs under one socket, bind each rank to the cores of its \
             GPU's socket (numactl --cpunodebind), and if NCCL hangs set NCCL_P2P_LEVEL=PHB or NCCL_P2P_DISABLE=1; \
             nvidia-smi topo -m and lspci -tv show how they hang together",
            groups.join("; ")
        ))
    }
}

impl TopologyGpu {
    fn new(gpu: &Gpu) -> Self {
        let label = gpu.index.map_or_else(|| gpu.pci_bus_id.clone(), |index| format!("GPU{index}"));
        Self { label, pci_bus_id: gpu.pci_bus_id.clone(), site: gpu.site.clone() }
    }

    /// The side of the machine that it is on: its socket, or its NUMA node where the socket is not known.
    fn side(&self) -> String {
        match (self.site.socket, self.site.numa_node) {
            (Some(socket), _) => format!("socket {socket}"),
            (None, Some(node)) => format!("NUMA node {node}"),
            (None, None) => "an unknown NUMA node".to_owned(),
        }
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NvLink(count) => write!(f, "NV{count}"),
            Self::OneSwitch => f.write_str("PIX"),
            Self::Switches => f.write_str("PXB"),
            Self::HostBridge => f.write_str("PHB"),
            Self::Node => f.write_str("NODE"),
            Self::System => f.write_str("SYS"),
        }
    }
}

impl fmt::Display for Topology {
    /// A table like that of `nvidia-smi topo -m`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.gpus.iter().map(|gpu| gpu.label.len()).max().unwrap_or(0).max(4);
        let cell = |text: &str| format!("{text:width$}  ");
        let header: String = self.gpus.iter().map(|gpu| cell(&gpu.label)).collect();
        writeln!(f, "{}{header}{}socket  cores", cell(""), cell("NUMA"))?;
        for (place, gpu) in self.gpus.iter().enumerate() {
            f.write_str(&cell(&gpu.label))?;
            for (other, distance) in self.distances[place].iter().enumerate() {
                let text = match distance {
                    _ if other == place => "X".to_owned(),
                    Some(distance) => distance.to_string(),
                    None => "?".to_owned(),
                };
                f.write_str(&cell(&text))?;
            }
            let number =
                |number: Option<u32>| number.map_or_else(|| "?".to_owned(), |number| number.to_string());
            let (node, socket) = (number(gpu.site.numa_node), number(gpu.site.socket));
            writeln!(f, "{}{socket:6}  {}", cell(&node), gpu.site.cpus.as_deref().unwrap_or("?"))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::sysfs::tests::{DEVICES, machine};
    use super::*;

    /// The GPUs of the made-up machine, numbered as they are listed.
    fn gpus(sysfs: &Sysfs) -> Vec<Gpu> {
        let gpu = |(index, (path, ..)): (usize, &(&str, u32, &str))| {
            let pci_bus_id = path.rsplit('/').next().unwrap().to_owned();
            let site = sysfs.site(&pci_bus_id);
            Gpu { index: Some(index), pci_bus_id, site, ..Gpu::default() }
        };
        DEVICES.iter().enumerate().map(gpu).collect()
    }

    fn ids(gpus: &[Gpu], places: &[usize]) -> Vec<String> {
        places.iter().map(|place| gpus[*place].pci_bus_id.clone()).collect()
    }

    #[test]
    fn the_table_is_that_of_nvidia_smi() {
        let (_folder, sysfs) = machine(&DEVICES);
        let gpus = gpus(&sysfs);
        let nvlink = PeerLink::new(&gpus[0].pci_bus_id, &gpus[1].pci_bus_id, Some(Distance::NvLink(4)));
        let topology = Topology::new(&gpus, &[nvlink], &sysfs).of(&ids(&gpus, &[0, 1, 2, 5]));
        let expected = "      \
                  GPU0  GPU1  GPU2  GPU5  NUMA  socket  cores\n\
            GPU0  X     NV4   PXB   SYS   0     0       0-15,32-47\n\
            GPU1  NV4   X     PXB   SYS   0     0       0-15,32-47\n\
            GPU2  PXB   PXB   X     SYS   0     0       0-15,32-47\n\
            GPU5  SYS   SYS   SYS   X     1     1       16-31,48-63\n";
        assert_eq!(topology.to_string(), expected);
    }

    #[test]
    fn gpus_under_different_sockets_are_warned_of_with_their_sockets_and_what_to_do() {
        let (_folder, sysfs) = machine(&DEVICES);
        let gpus = gpus(&sysfs);
        let topology = Topology::new(&gpus, &[], &sysfs);
        let warning = topology.of(&ids(&gpus, &[0, 1, 5])).warning().unwrap();
        for part in [
            "(GPU0, GPU1 on socket 0; GPU5 on socket 1)",
            "CUDA_VISIBLE_DEVICES",
            "NCCL_P2P_LEVEL=PHB",
            "NCCL_P2P_DISABLE=1",
            "numactl",
            "lspci -tv",
            "nvidia-smi topo -m",
        ] {
            assert!(warning.contains(part), "{part}: {warning}");
        }
        assert_eq!(topology.of(&ids(&gpus, &[0, 1, 2, 3, 4])).warning(), None);
        assert_eq!(topology.of(&ids(&gpus, &[5])).warning(), None);
    }

    #[test]
    fn sockets_do_not_matter_between_gpus_with_nvlink() {
        let (_folder, sysfs) = machine(&DEVICES);
        let gpus = gpus(&sysfs);
        let nvlink = PeerLink::new(&gpus[0].pci_bus_id, &gpus[5].pci_bus_id, Some(Distance::NvLink(18)));
        let topology = Topology::new(&gpus, &[nvlink], &sysfs).of(&ids(&gpus, &[0, 5]));
        assert_eq!(topology.distances[0][1], Some(Distance::NvLink(18)));
        assert_eq!(topology.warning(), None);
    }

    #[test]
    fn nothing_is_claimed_where_nothing_is_known() {
        let unknown = |bus: &str| Gpu { pci_bus_id: bus.into(), ..Gpu::default() };
        let topology =
            Topology::new(&[unknown("0000:01:00.0"), unknown("0000:02:00.0")], &[], &Sysfs::new("/nowhere"));
        assert_eq!(topology.distances, [[None, None], [None, None]]);
        assert_eq!(topology.warning(), None);
        assert!(
            topology
                .to_string()
                .contains("0000:02:00.0  ?             X             ?             ?       ?")
        );
    }
}
