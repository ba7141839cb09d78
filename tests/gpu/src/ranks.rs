//! Processes that a check starts.

use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::Options;
use crate::checks::{Check, Role};
use crate::device::Kind;

const POLL: Duration = Duration::from_millis(10);
/// The oldest NCCL that lets two ranks share a GPU.
const SHARING_NCCL: (u32, u32) = (2, 30);

/// The arguments of a process of this program that plays a role in a check.
pub(crate) fn arguments(options: &Options, check: Check, role: Role, report: &Path) -> Vec<String> {
    let numbers = [
        ("--batch-size", options.batch_size),
        ("--image-size", options.image_size),
        ("--steps", options.steps),
        ("--rounds", options.rounds),
    ];
    let mut arguments = vec![check.name().to_owned(), "--role".to_owned(), role.name().to_owned()];
    arguments.extend(["--device".to_owned(), options.device.name().to_owned()]);
    arguments.extend(["--report".to_owned(), report.display().to_string()]);
    arguments.extend(numbers.iter().flat_map(|(name, value)| [(*name).to_owned(), value.to_string()]));
    arguments
}

/// A process that is killed if the check ends before it.
pub(crate) struct Process {
    child: Child,
}

impl Process {
    /// Starts this program in a role, alone or as one of several ranks.
    pub(crate) fn start(arguments: &[String], env: &[(String, String)]) -> anyhow::Result<Self> {
        let program = std::env::current_exe().context("finding this program")?;
        let mut command = Command::new(program);
        // What they print is not a result.
        command.args(arguments).envs(env.iter().cloned()).stdin(Stdio::null()).stdout(Stdio::null());
        Ok(Self { child: command.spawn().context("starting a process")? })
    }

    /// Waits for its end.
    pub(crate) fn wait(&mut self, limit: Duration) -> anyhow::Result<ExitStatus> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                return Ok(status);
            }
            if start.elapsed() > limit {
                bail!("a process has not ended within {limit:.0?}");
            }
            std::thread::sleep(POLL);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The variables of one of two ranks on this machine.
pub(crate) fn rank_environment(rank: usize, port: u16) -> Vec<(String, String)> {
    let variables = [
        ("RANK", rank.to_string()),
        ("LOCAL_RANK", rank.to_string()),
        ("WORLD_SIZE", "2".to_owned()),
        ("LOCAL_WORLD_SIZE", "2".to_owned()),
        ("MASTER_ADDR", Ipv4Addr::LOCALHOST.to_string()),
        ("MASTER_PORT", port.to_string()),
        ("BURN_NCCL_RUN_ID", format!("gpu-check-{port}")),
    ];
    variables.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// A port that nobody has just now.
pub(crate) fn free_port() -> anyhow::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port())
}

/// The device of a rank: one each where there are two, else the same.
pub(crate) fn device_index(options: &Options, rank: usize) -> usize {
    if options.device.count() > 1 { rank } else { 0 }
}

/// The variables that two ranks need here, or why they cannot run.
pub(crate) fn two_ranks(options: &Options) -> anyhow::Result<Result<Vec<(String, String)>, String>> {
    if options.device == Kind::Cpu || options.device.count() > 1 {
        return Ok(Ok(Vec::new()));
    }
    let version = nccl_version()?;
    if version_pair(&version) < Some(SHARING_NCCL) {
        return Ok(Err(format!(
            "there is one GPU, and NCCL {version} lets no two ranks share it; 2.30 is the first that does"
        )));
    }
    let variables = [
        ("NCCL_MULTI_RANK_GPU_ENABLE", "1"),
        // Both ranks' blocks must fit on the GPU at the same time, beside the computation.
        ("NCCL_MAX_CTAS", "2"),
        ("NCCL_NVLS_ENABLE", "0"),
    ];
    Ok(Ok(variables.map(|(name, value)| (name.to_owned(), value.to_owned())).into()))
}

/// The version of NCCL, asked of another process: this one shall not hold memory on the GPU.
fn nccl_version() -> anyhow::Result<String> {
    let program = std::env::current_exe().context("finding this program")?;
    let output = Command::new(program).arg(Check::Discovery.name()).stderr(Stdio::inherit()).output()?;
    let line: serde_json::Value = serde_json::from_slice(&output.stdout).context("reading what there is")?;
    match line["figures"]["nccl_version"].as_str() {
        Some(version) => Ok(version.to_owned()),
        None => bail!("the version of NCCL is unknown: {}", line["why"]),
    }
}

fn version_pair(version: &str) -> Option<(u32, u32)> {
    let mut parts = version.split('.').map(|part| part.parse().ok());
    Some((parts.next()??, parts.next()??))
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn versions_compare_as_numbers() {
        assert_eq!(version_pair("2.30.7"), Some((2, 30)));
        assert!(version_pair("2.9.1") < Some(SHARING_NCCL));
        assert!(version_pair("2.30.0") >= Some(SHARING_NCCL));
        assert!(version_pair("new") < Some(SHARING_NCCL));
    }

    #[test]
    fn every_role_is_a_value_of_the_command_line() {
        for role in Role::value_variants() {
            assert_eq!(Role::from_str(role.name(), false), Ok(*role));
        }
        for check in Check::value_variants() {
            assert_eq!(Check::from_str(check.name(), false), Ok(*check));
            assert!(Check::ALL.contains(check));
        }
        for kind in Kind::value_variants() {
            assert_eq!(Kind::from_str(kind.name(), false), Ok(*kind));
        }
    }
}
