//! Ranks as processes, each with the doubles where the driver and NCCL would be.

use std::fs::File;
use std::io::{Read, Seek};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use burn::tensor::Device;
use burn_nccl::{Environment, GroupOptions, ProcessGroup};
use stubs::Stubs;

/// The limit of a collective, and of joining: far more than any takes here, on a busy machine too.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);
/// When a rank that hangs is killed: later than it must have noticed by itself.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(2);
/// What a launcher around the tests, or their user, may have left in the environment.
const FOREIGN: [&str; 6] = [
    "BURN_NCCL_DEVICE_TRANSPORT",
    "BURN_NCCL_STREAM_ORDERING",
    "BURN_NCCL_TRANSPORT",
    "BURN_NCCL_DEBUG",
    "BURN_NCCL_SECRET",
    "CUDA_VISIBLE_DEVICES",
];

/// Ranks that run one of the ignored tests of this program.
pub(crate) struct Job {
    test: String,
    ranks: Vec<Vec<(String, String)>>,
}

/// How a rank ended.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) status: ExitStatus,
    output: String,
}

impl Job {
    /// As many ranks as there are doubles given, which may be the same ones; NCCL and the driver are theirs.
    pub(crate) fn new(test: &str, doubles: &[&Stubs]) -> Self {
        let port = free_port();
        let variables = |(rank, stubs): (usize, &&Stubs)| {
            let mut variables = rank_variables(rank, doubles.len(), port);
            variables.extend(double_variables(stubs));
            variables
        };
        Self { test: test.to_owned(), ranks: doubles.iter().enumerate().map(variables).collect() }
    }

    /// A variable for all ranks.
    pub(crate) fn with(mut self, name: &str, value: &str) -> Self {
        self.ranks.iter_mut().for_each(|rank| rank.push((name.into(), value.into())));
        self
    }

    /// A variable for one rank.
    pub(crate) fn with_on(mut self, rank: usize, name: &str, value: &str) -> Self {
        self.ranks[rank].push((name.into(), value.into()));
        self
    }

    /// Runs all ranks to their ends; those that do not end are killed and fail.
    pub(crate) fn run(self) -> Vec<End> {
        let mut processes: Vec<Process> =
            self.ranks.iter().map(|variables| Process::start(&self.test, variables)).collect();
        let start = Instant::now();
        while processes.iter_mut().any(|process| process.status().is_none()) && start.elapsed() < PATIENCE {
            std::thread::sleep(POLL);
        }
        processes.into_iter().map(Process::end).collect()
    }

    /// Runs all ranks, which must pass the test.
    pub(crate) fn pass(self) {
        let ends = self.run();
        // All of them: what one says is often the consequence of what happened to another.
        let failed = ends.iter().enumerate().filter(|(_, end)| !end.has_passed());
        let texts: Vec<String> = failed.map(|(rank, end)| end.account(rank)).collect();
        assert!(texts.is_empty(), "{}", texts.join("\n"));
    }
}

impl End {
    fn has_passed(&self) -> bool {
        // Without the count, a name that no test has would pass.
        self.status.success() && self.output.contains("test result: ok. 1 passed")
    }

    fn account(&self, rank: usize) -> String {
        format!("rank {rank} ended with {}:\n{}", self.status, self.output)
    }

    pub(crate) fn must_have_passed(&self, rank: usize) {
        assert!(self.has_passed(), "{}", self.account(rank));
    }

    pub(crate) fn was_killed(&self) -> bool {
        self.status.signal() == Some(nix::libc::SIGKILL)
    }
}

/// A rank's process, which does not outlive this.
struct Process {
    child: Child,
    output: File,
    status: Option<ExitStatus>,
}

impl Process {
    fn start(test: &str, variables: &[(String, String)]) -> Self {
        let output = tempfile::tempfile().unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--ignored", "--exact", "--nocapture", test]).stdin(Stdio::null());
        command.stdout(output.try_clone().unwrap()).stderr(output.try_clone().unwrap());
        for name in FOREIGN {
            command.env_remove(name);
        }
        let child = command.envs(variables.iter().cloned()).spawn().unwrap();
        Self { child, output, status: None }
    }

    fn status(&mut self) -> Option<ExitStatus> {
        self.status = self.status.or_else(|| self.child.try_wait().unwrap());
        self.status
    }

    fn end(mut self) -> End {
        let _ = self.child.kill();
        let status = self.status.unwrap_or_else(|| self.child.wait().unwrap());
        let mut bytes = Vec::new();
        self.output.rewind().and_then(|()| self.output.read_to_end(&mut bytes)).unwrap();
        End { status, output: String::from_utf8_lossy(&bytes).into_owned() }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn rank_variables(rank: usize, world_size: usize, port: u16) -> Vec<(String, String)> {
    let variables = [
        ("RANK", rank.to_string()),
        ("LOCAL_RANK", rank.to_string()),
        ("WORLD_SIZE", world_size.to_string()),
        ("LOCAL_WORLD_SIZE", world_size.to_string()),
        ("MASTER_ADDR", Ipv4Addr::LOCALHOST.to_string()),
        ("MASTER_PORT", port.to_string()),
        ("BURN_NCCL_RUN_ID", format!("on-doubles-{port}")),
    ];
    variables.map(|(name, value)| (name.to_owned(), value)).into()
}

fn double_variables(stubs: &Stubs) -> Vec<(String, String)> {
    let mut variables: Vec<(String, String)> = stubs
        .environment()
        .map(|(name, value)| (name.to_owned(), value.into_string().expect("a path of this test")))
        .into();
    variables.push(("BURN_NCCL_LIBRARY".into(), stubs.nccl_path().display().to_string()));
    variables.push(("BURN_NCCL_CUDA_LIBRARY".into(), stubs.cuda_path().display().to_string()));
    variables
}

fn free_port() -> u16 {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port()
}

/// A rank, inside of its process.
pub(crate) struct Rank {
    pub(crate) group: ProcessGroup,
    pub(crate) device: Device,
}

impl Rank {
    /// Joins the others, with the GPU of its number.
    pub(crate) fn join() -> Self {
        Self::join_on(|rank| rank)
    }

    /// Joins the others, with a GPU of its choice.
    pub(crate) fn join_on(gpu: impl FnOnce(usize) -> usize) -> Self {
        let options = GroupOptions::default().with_timeout(DEADLINE).with_connect_timeout(DEADLINE);
        Self::join_with(options, gpu)
    }

    pub(crate) fn join_with(options: GroupOptions, gpu: impl FnOnce(usize) -> usize) -> Self {
        let environment = Environment::read().unwrap().expect("started as a rank");
        let device = Device::cuda(gpu(environment.rank));
        Self { group: ProcessGroup::connect(&environment, options).unwrap(), device }
    }

    pub(crate) fn number(&self) -> usize {
        self.group.rank()
    }

    /// Leaves the group; whatever was done wrong with the driver or NCCL until then fails the test.
    pub(crate) fn leave(self) {
        drop(self.group);
        assert_no_faults();
    }
}

pub(crate) fn assert_no_faults() {
    let stubs = Stubs::of_process().expect("started with the doubles");
    assert_eq!(stubs.faults().unwrap(), [""; 0]);
}
