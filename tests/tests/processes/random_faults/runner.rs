//! Plays one run: starts its ranks, does to them what the plan says, and waits for all of them.

use std::fmt;
use std::io::Read;
use std::net::Ipv4Addr;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use burn_nccl_tests::faulty_job::{End, Manner};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::listeners::is_listening;
use super::plan::{Afterwards, Fault, Plan};
use super::proxy::{Job, Proxy};
use crate::harness::hold_free_port;

/// Longer than any run takes; one that reaches it hangs.
const HARD_LIMIT: Duration = Duration::from_secs(30);
const MOMENT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(4);

/// How a run went.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) ranks: Vec<RankEnd>,
    /// Whether the fault of a connection happened; one of a rank shows in the rank.
    pub(super) fired: bool,
    /// Whether rank 0's port still listens.
    pub(super) port_is_open: bool,
}

/// How the process of a rank ended.
#[derive(Debug)]
pub(super) struct RankEnd {
    pub(super) status: ExitStatus,
    /// What it said, unless it was killed before.
    pub(super) end: Option<End>,
    pub(super) stderr: String,
    /// Whether the harness ended it because it hung.
    pub(super) hung: bool,
}

impl fmt::Display for Run {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  the fault of a connection happened: {}", self.fired)?;
        for (rank, end) in self.ranks.iter().enumerate() {
            let told = end.end.as_ref().map(|end| (end.right, &end.outcome));
            writeln!(f, "  rank {rank}: {}, {told:?} {}", end.status, end.stderr)?;
        }
        Ok(())
    }
}

impl RankEnd {
    /// Whether it was killed, by its fault or by the harness.
    pub(super) fn was_killed(&self) -> bool {
        self.status.signal() == Some(Signal::SIGKILL as i32)
    }
}

/// Plays the plan; `number` is of no other run at the same time.
pub(super) fn play(plan: &Plan, number: usize) -> Run {
    let port = hold_free_port();
    let port_number = port.local_addr().unwrap().as_socket().expect("an IPv4 address").port();
    let own = Ipv4Addr::new(127, 77, (number / 250) as u8, (number % 250 + 1) as u8);
    let victim = match plan.fault {
        Fault::Wire(fault) => Some(fault.victim),
        Fault::None | Fault::Rank(..) => None,
    };
    let start = |rank: usize| {
        let address = if Some(rank) == victim { own } else { Ipv4Addr::LOCALHOST };
        Rank::start(plan, rank, address, port_number)
    };
    // The victim last: the proxy must know the processes of those below it.
    let mut ranks: Vec<Option<Rank>> =
        (0..plan.job.world_size).map(|rank| (Some(rank) != victim).then(|| start(rank))).collect();
    let mut proxy = None;
    if let (Fault::Wire(fault), Some(victim)) = (plan.fault, victim) {
        let processes = ranks[..victim].iter().flatten().map(|rank| rank.child.id()).collect();
        proxy = Some(Proxy::start(own, Job { processes, store_port: port_number }, fault));
        ranks[victim] = Some(start(victim));
    }
    let mut ranks: Vec<Rank> = ranks.into_iter().flatten().collect();
    watch(plan, &mut ranks);
    let fired = proxy.is_some_and(Proxy::end);
    let ranks = ranks.into_iter().map(Rank::end).collect();
    Run { ranks, fired, port_is_open: stays_open(port_number) }
}

/// Whether rank 0's port still listens a moment after its end: a process that another run is about to start may hold
/// a copy of everything until it runs its own program.
fn stays_open(port: u16) -> bool {
    let start = Instant::now();
    while is_listening(port) {
        if start.elapsed() > MOMENT {
            return true;
        }
        std::thread::sleep(POLL);
    }
    false
}

/// Waits for the ranks, wakes or kills a stopped one when its time has come, and ends those that hang.
fn watch(plan: &Plan, ranks: &mut [Rank]) {
    let start = Instant::now();
    let mut stopped = None;
    loop {
        let running: Vec<usize> = (0..ranks.len()).filter(|&rank| !ranks[rank].has_ended()).collect();
        if running.is_empty() {
            return;
        }
        if start.elapsed() > HARD_LIMIT {
            running.iter().for_each(|&rank| ranks[rank].give_up());
            return;
        }
        if let Fault::Rank(fault, afterwards) = plan.fault
            && fault.manner == Manner::Stop
            && running.contains(&fault.rank)
            && ranks[fault.rank].is_stopped()
        {
            let since: &Instant = stopped.get_or_insert_with(Instant::now);
            let alone = running == [fault.rank];
            match afterwards {
                Afterwards::Continue(ms) if since.elapsed() >= Duration::from_millis(ms) => {
                    ranks[fault.rank].send(Signal::SIGCONT);
                }
                Afterwards::ContinueLate if alone => ranks[fault.rank].send(Signal::SIGCONT),
                Afterwards::Kill if alone => ranks[fault.rank].send(Signal::SIGKILL),
                _ => {}
            }
        }
        std::thread::sleep(POLL);
    }
}

/// The process of a rank; it is killed if it is dropped before its end.
struct Rank {
    child: Child,
    status: Option<ExitStatus>,
    hung: bool,
}

impl Rank {
    fn start(plan: &Plan, rank: usize, address: Ipv4Addr, port: u16) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fault-rank"));
        let world_size = plan.job.world_size.to_string();
        command.arg(plan.job.to_argument()).env_clear();
        command.env("RANK", rank.to_string()).env("LOCAL_RANK", rank.to_string());
        command.env("WORLD_SIZE", &world_size).env("LOCAL_WORLD_SIZE", &world_size);
        command.env("MASTER_ADDR", address.to_string()).env("MASTER_PORT", port.to_string());
        command.env("BURN_NCCL_RUN_ID", format!("{}-{}", std::process::id(), plan.job.seed));
        if let Some(folder) = &plan.records {
            command.env("BURN_NCCL_FLIGHT_RECORD", folder);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let child = command.spawn().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        Self { child, status: None, hung: false }
    }

    fn has_ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.child.try_wait().unwrap();
        }
        self.status.is_some()
    }

    fn is_stopped(&self) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    }

    fn send(&self, signal: Signal) {
        // It may have ended meanwhile; until it is waited for its number is nobody else's.
        let _ = kill(Pid::from_raw(self.child.id() as i32), signal);
    }

    fn give_up(&mut self) {
        self.hung = true;
        self.send(Signal::SIGKILL);
        self.status = self.child.wait().ok();
    }

    fn end(mut self) -> RankEnd {
        let stdout = text(self.child.stdout.take());
        RankEnd {
            status: self.status.take().expect("only asked when it has ended"),
            end: stdout.lines().find_map(|line| serde_json::from_str(line).ok()),
            stderr: text(self.child.stderr.take()),
            hung: self.hung,
        }
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn text(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut pipe) = pipe {
        let _ = pipe.read_to_end(&mut bytes);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
