//! Who listens where, from `/proc`.

use std::collections::BTreeSet;
use std::path::Path;

/// The state of a listening socket in `/proc/net/tcp`.
const LISTEN: &str = "0A";

/// The IPv4 ports on which a process listens.
pub(super) fn listening_ports(process: u32) -> BTreeSet<u16> {
    let sockets = sockets_of(process);
    listeners().into_iter().filter(|(_, socket)| sockets.contains(socket)).map(|(port, _)| port).collect()
}

/// Whether anything listens on this port of the first loopback address.
pub(super) fn is_listening(port: u16) -> bool {
    let place = format!("0100007F:{port:04X}");
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let mut fields = table.lines().map(|line| line.split_ascii_whitespace());
    fields.any(|mut fields| fields.nth(1) == Some(place.as_str()) && fields.nth(1) == Some(LISTEN))
}

/// The inodes of the sockets that a process holds.
fn sockets_of(process: u32) -> BTreeSet<u64> {
    let folder = Path::new("/proc").join(process.to_string()).join("fd");
    let Ok(entries) = std::fs::read_dir(folder) else { return BTreeSet::new() };
    let inode = |link: std::path::PathBuf| {
        link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse::<u64>().ok()
    };
    entries.flatten().filter_map(|entry| inode(std::fs::read_link(entry.path()).ok()?)).collect()
}

/// Port and inode of every IPv4 socket that listens.
fn listeners() -> Vec<(u16, u64)> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    let listener = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let (_, port) = fields.get(1)?.split_once(':')?;
        (*fields.get(3)? == LISTEN).then_some(())?;
        Some((u16::from_str_radix(port, 16).ok()?, fields.get(9)?.parse().ok()?))
    };
    table.lines().skip(1).filter_map(listener).collect()
}
