//! Two hosts on one machine: network namespaces, each with a veth pair to a switch, and a cable between the switches.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::wire::{Conditions, Wire};

/// How the names of all namespaces of these tests begin; the number of the process that made them follows.
pub(crate) const PREFIX: &str = "burn-nccl";
/// Where iproute2 keeps the files of a namespace that replace those in /etc.
const ETC: &str = "/etc/netns";

/// The addresses of the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Family {
    V4,
    V6,
}

impl Family {
    pub(crate) fn address(self, host: usize) -> String {
        match self {
            Self::V4 => format!("10.77.0.{}", host + 1),
            Self::V6 => format!("fd77::{}", host + 1),
        }
    }
}

/// Two hosts, which are gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Network {
    name: String,
    pub(crate) family: Family,
    wire: Option<Wire>,
}

impl Network {
    /// Builds it; the error says what this machine does not allow.
    pub(crate) fn new(family: Family, conditions: Conditions) -> Result<Self, String> {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        remove_stale();
        let name = format!("{PREFIX}-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        // Whatever of it exists is removed from here on.
        let mut network = Self { name, family, wire: None };
        network.build()?;
        let switch = format!("/run/netns/{}", network.switch());
        let wire = Wire::new(&switch, ["tap0", "tap1"], conditions);
        network.wire = Some(wire.map_err(|error| format!("a TAP device cannot be used: {error}"))?);
        Ok(network)
    }

    fn build(&self) -> Result<(), String> {
        let switch = self.switch();
        ip(&["netns", "add", &switch])?;
        for host in 0..2 {
            let name = self.host(host);
            let (bridge, port, tap) = (format!("br{host}"), format!("port{host}"), format!("tap{host}"));
            ip(&["netns", "add", &name])?;
            ip(&["-n", &switch, "link", "add", &bridge, "type", "bridge", "mcast_snooping", "0"])?;
            ip(&["-n", &switch, "tuntap", "add", "dev", &tap, "mode", "tap"])?;
            ip(&[
                "-n", &switch, "link", "add", &port, "type", "veth", "peer", "name", "eth0", "netns", &name,
            ])?;
            for device in [&tap, &port] {
                ip(&["-n", &switch, "link", "set", device, "master", &bridge, "up"])?;
            }
            ip(&["-n", &switch, "link", "set", &bridge, "up"])?;
            ip(&["-n", &name, "link", "set", "lo", "up"])?;
            let address = self.family.address(host);
            match self.family {
                Family::V4 => ip(&["-n", &name, "address", "add", &format!("{address}/24"), "dev", "eth0"])?,
                // Without the second in which a host asks whether its address is taken.
                Family::V6 => {
                    ip(&["-n", &name, "address", "add", &format!("{address}/64"), "dev", "eth0", "nodad"])?
                }
            }
            ip(&["-n", &name, "link", "set", "eth0", "up"])?;
        }
        Ok(())
    }

    fn switch(&self) -> String {
        format!("{}-switch", self.name)
    }

    fn host(&self, host: usize) -> String {
        format!("{}-host{host}", self.name)
    }

    /// `command` on a host.
    pub(crate) fn on_host(&self, host: usize, command: &Command) -> Command {
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", &self.host(host)]).arg(command.get_program()).args(command.get_args());
        inside.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
        inside
    }

    /// Lets a name lead to an address on one host, as an entry in its /etc/hosts.
    pub(crate) fn name_on_host(&self, host: usize, name: &str, address: &str) -> Result<(), String> {
        let folder = Path::new(ETC).join(self.host(host));
        let entry = format!("127.0.0.1 localhost\n{address} {name}\n");
        let written = fs::create_dir_all(&folder).and_then(|()| fs::write(folder.join("hosts"), entry));
        written.map_err(|error| format!("{} cannot be written: {error}", folder.display()))
    }

    /// Pulls the cable out of the switch of a host.
    pub(crate) fn cut(&self, host: usize) {
        ip(&["-n", &self.switch(), "link", "set", &format!("port{host}"), "down"]).unwrap();
    }

    /// The numbers of the processes on both hosts.
    pub(crate) fn processes(&self) -> Vec<String> {
        let pids = [0, 1].map(|host| Command::new("ip").args(["netns", "pids", &self.host(host)]).output());
        let pids = pids.map(|output| String::from_utf8_lossy(&output.unwrap().stdout).into_owned());
        pids.iter().flat_map(|pids| pids.split_whitespace()).map(str::to_owned).collect()
    }

    /// How many frames have gone from host to host.
    pub(crate) fn frames(&self) -> u64 {
        self.wire.as_ref().map_or(0, Wire::frames)
    }

    /// How many of them were lost.
    pub(crate) fn lost(&self) -> u64 {
        self.wire.as_ref().map_or(0, Wire::lost)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        // The devices cannot go while they are in use.
        self.wire = None;
        for name in [self.switch(), self.host(0), self.host(1)] {
            remove(&name);
        }
    }
}

pub(crate) fn remove(name: &str) {
    let _ = ip(&["netns", "delete", name]);
    let etc: PathBuf = Path::new(ETC).join(name);
    if etc.exists() {
        let _ = fs::remove_dir_all(etc);
        // Only if it is empty.
        let _ = fs::remove_dir(ETC);
    }
}

/// Removes what a process that was killed could not remove itself.
pub(crate) fn remove_stale() {
    let names = fs::read_dir("/run/netns").into_iter().chain(fs::read_dir(ETC)).flatten().flatten();
    for name in names.filter_map(|entry| entry.file_name().into_string().ok()) {
        let maker = name.strip_prefix(PREFIX).and_then(|rest| rest.trim_start_matches('-').split('-').next());
        if maker.is_some_and(|pid| pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists()) {
            remove(&name);
        }
    }
}

pub(crate) fn ip(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("ip").args(arguments).output();
    let output = output.map_err(|error| format!("`ip` of iproute2 does not start: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let reason = String::from_utf8_lossy(&output.stderr);
    Err(format!("`ip {}` failed: {}", arguments.join(" "), reason.trim()))
}
