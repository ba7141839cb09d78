//! Which ranks share a host: the same kernel, network, processes and user.

use std::{fs, os::unix::fs::MetadataExt};

/// What ranks that can share memory have in common. Two network namespaces are two hosts.
pub(crate) fn fingerprint() -> String {
    // A machine that does not tell its boot is alone with its name.
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned());
    let boot = boot.unwrap_or_else(|_| {
        nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
    });
    let namespace = |kind: &str| {
        let link = fs::read_link(format!("/proc/self/ns/{kind}")).unwrap_or_default();
        link.to_string_lossy().into_owned()
    };
    let user = fs::metadata("/proc/self").map_or(0, |process| process.uid());
    format!("{boot}/{}/{}/{user}", namespace("net"), namespace("pid"))
}
