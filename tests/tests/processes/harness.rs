//! Starts ranks as processes, waits for all of them, and leaves none behind.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use burn_nccl_tests::report::{Failed, Learned, Trained};
use burn_nccl_tests::{Report, Scenario};
use socket2::{Domain, Protocol, Socket, Type};

/// Longer than any job here takes on a busy machine; only one that hangs reaches it.
const PATIENCE: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(5);
/// What a launcher around the tests may have left in the environment.
const LAUNCH_VARIABLES: [&str; 11] = [
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "OMPI_COMM_WORLD_RANK",
    "SLURM_PROCID",
    "BURN_NCCL_ERROR_FILE",
    "BURN_NCCL_TRANSPORT",
    "BURN_NCCL_SECRET",
];

/// The end of one process.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) status: ExitStatus,
    pub(crate) at: Instant,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl End {
    /// Every report on stdout. A launcher may put a prefix before each line.
    pub(crate) fn reports(&self) -> Vec<Report> {
        self.stdout.lines().filter_map(|line| serde_json::from_str(&line[line.find('{')?..]).ok()).collect()
    }

    pub(crate) fn report(&self) -> Report {
        self.reports().pop().unwrap_or_else(|| panic!("a rank reported nothing: {self:#?}"))
    }

    /// The error that the rank returned.
    pub(crate) fn failed(&self) -> Failed {
        match self.report() {
            Report::Failed(failed) => failed,
            other => panic!("a rank that should have failed reports {other:?}"),
        }
    }
}

/// A process that is killed if the test ends before it.
struct Process {
    child: Child,
    stdout: File,
    stderr: File,
    ended: Option<(ExitStatus, Instant)>,
}

impl Process {
    fn start(mut command: Command) -> Self {
        for name in LAUNCH_VARIABLES {
            if command.get_envs().all(|(set, _)| set != name) {
                command.env_remove(name);
            }
        }
        let (stdout, stderr) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        command.stdin(Stdio::null());
        command.stdout(stdout.try_clone().unwrap()).stderr(stderr.try_clone().unwrap());
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        Self { child, stdout, stderr, ended: None }
    }

    fn has_ended(&mut self) -> bool {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().unwrap().map(|status| (status, Instant::now()));
        }
        self.ended.is_some()
    }

    fn end(mut self) -> End {
        let (status, at) = self.ended.take().expect("only asked when it has ended");
        End { status, at, stdout: text(&mut self.stdout), stderr: text(&mut self.stderr) }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(file: &mut File) -> String {
    let mut bytes = Vec::new();
    file.rewind().and_then(|()| file.read_to_end(&mut bytes)).expect("a temporary file is readable");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Waits until all processes have ended; `abandoned` is killed when it is the last.
fn wait(mut processes: Vec<Process>, abandoned: Option<usize>) -> Vec<End> {
    let start = Instant::now();
    loop {
        let running: Vec<usize> =
            (0..processes.len()).filter(|&index| !processes[index].has_ended()).collect();
        match running[..] {
            [] => return processes.into_iter().map(Process::end).collect(),
            [last] if Some(last) == abandoned => processes[last].child.kill().unwrap(),
            _ => {}
        }
        if start.elapsed() > PATIENCE {
            let outputs: Vec<_> =
                processes.iter_mut().map(|it| (text(&mut it.stdout), text(&mut it.stderr))).collect();
            panic!("processes {running:?} did not end in time, the output of all is {outputs:#?}");
        }
        std::thread::sleep(POLL);
    }
}

/// `test-rank` with its scenario.
pub(crate) fn test_rank(scenario: &Scenario) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_test-rank"));
    command.arg(scenario.to_argument()).env("RAYON_NUM_THREADS", "1").env("OMP_NUM_THREADS", "1");
    command
}

/// Runs `command` for as long as `delay` and then kills it as the system does; returns what it had printed.
pub(crate) fn kill_after(command: Command, delay: Duration) -> End {
    let mut process = Process::start(command);
    std::thread::sleep(delay);
    let _ = process.child.kill();
    wait(vec![process], None).remove(0)
}

/// Starts all commands, then does `meanwhile` with their process numbers, and waits for their ends.
pub(crate) fn run_commands(commands: Vec<Command>, meanwhile: impl FnOnce(&[u32])) -> Vec<End> {
    let processes: Vec<Process> = commands.into_iter().map(Process::start).collect();
    let pids: Vec<u32> = processes.iter().map(|process| process.child.id()).collect();
    meanwhile(&pids);
    wait(processes, None)
}

/// Runs `command` to its end.
pub(crate) fn run_command(command: Command) -> End {
    wait(vec![Process::start(command)], None).remove(0)
}

/// Runs `scenario` in one process without a launcher.
pub(crate) fn run_alone(scenario: &Scenario) -> End {
    run_command(test_rank(scenario))
}

/// Runs `scenario` on `ranks` ranks and returns how each ended; `stuck` is a rank that does not end by itself.
pub(crate) fn run(scenario: &Scenario, ranks: usize, stuck: Option<usize>) -> Vec<End> {
    let port = hold_free_port();
    let number = port.local_addr().unwrap().as_socket().expect("an IPv4 address").port();
    wait(start(scenario, ranks, number), stuck)
}

/// A free port that rank 0 can listen on and the system gives to nobody else while the socket lives. A port that is
/// released first may become the end of another job's connection before rank 0 comes.
pub(crate) fn hold_free_port() -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    socket
}

fn start(scenario: &Scenario, ranks: usize, port: u16) -> Vec<Process> {
    static JOBS: AtomicUsize = AtomicUsize::new(0);
    // A rank that reaches the port of another job is refused there.
    let run_id = format!("{}-{}", std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed));
    let rank = |rank: usize| {
        let mut command = test_rank(scenario);
        command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
        command.env("WORLD_SIZE", ranks.to_string()).env("LOCAL_WORLD_SIZE", ranks.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string());
        command.env("BURN_NCCL_RUN_ID", &run_id);
        Process::start(command)
    };
    (0..ranks).map(rank).collect()
}

/// The reports of a job that must succeed.
pub(crate) fn reports(scenario: &Scenario, ranks: usize) -> Vec<Report> {
    let ends = run(scenario, ranks, None);
    assert!(ends.iter().all(|end| end.status.success()), "{scenario:?} failed: {ends:#?}");
    ends.iter().map(End::report).collect()
}

/// As [`reports`], for trainings.
pub(crate) fn trained(scenario: &Scenario, ranks: usize) -> Vec<Trained> {
    let trained = |report| match report {
        Report::Trained(trained) => trained,
        other => panic!("expected the end of a training, found {other:?}"),
    };
    reports(scenario, ranks).into_iter().map(trained).collect()
}

/// As [`reports`], for trainings with burn-train.
pub(crate) fn learned(scenario: &Scenario, ranks: usize) -> Vec<Learned> {
    let learned = |report| match report {
        Report::Learned(learned) => learned,
        other => panic!("expected the end of a training, found {other:?}"),
    };
    reports(scenario, ranks).into_iter().map(learned).collect()
}

/// As [`trained`], for one process without a launcher.
pub(crate) fn trained_alone(scenario: &Scenario) -> Trained {
    let end = run_alone(scenario);
    match end.report() {
        Report::Trained(trained) => trained,
        other => panic!("expected the end of a training, found {other:?}"),
    }
}

/// `limit`, which a machine keeps that has nothing else to do; five times as much on one with more work than processors, as
/// it is where other tests run at the same time.
pub(crate) fn on_this_machine(limit: Duration) -> Duration {
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0);
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    if load > processors as f64 { limit * 5 } else { limit }
}

/// A skip is said on the terminal even where the test harness keeps the output of tests that pass.
pub(crate) fn skip(test: &str, reason: &str) {
    let _ = writeln!(std::io::stderr(), "skipped: {test}: {reason}");
}

/// Asserts that `found` equals `expected` element by element to `tolerance`, relative to the larger of the element
/// and the typical size of a parameter.
pub(crate) fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    let mean_square = expected.iter().map(|value| value * value).sum::<f64>() / expected.len() as f64;
    let typical = mean_square.sqrt();
    assert_eq!(found.len(), expected.len());
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let difference = (found - expected).abs() / expected.abs().max(typical);
        assert!(
            difference <= tolerance,
            "element {index} is {found}, expected {expected}: relative difference {difference:e}"
        );
    }
}
