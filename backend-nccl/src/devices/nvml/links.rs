//! What NVML knows of the ways between GPUs.

use nvml_wrapper::Device;
use nvml_wrapper::enum_wrappers::device::{P2pCapabilitiesIndex, P2pStatus, TopologyLevel};

use super::super::Distance;
use super::super::gpu::sysfs_bus_id;
use super::{PeerLink, bus_id};

/// No GPU has more NVLinks (`NVML_NVLINK_MAX_LINKS`).
const MAX_NVLINKS: u32 = 18;

/// The way between each two of them.
pub(super) fn links(devices: &[Device<'_>]) -> Vec<PeerLink> {
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
    fn nvlinks_are_counted_to_the_peer_or_through_the_switch() {
        let end = |bus: &str| Some(bus.to_owned());
        let direct = [end("b"), end("b"), end("c"), None];
        assert_eq!(count_nvlinks(&direct, 4, Some("b")), 2);
        let switched = [end("s"), end("s"), end("s")];
        assert_eq!(count_nvlinks(&switched, 2, Some("b")), 2);
        assert_eq!(count_nvlinks(&[], 0, Some("b")), 1);
    }
}
