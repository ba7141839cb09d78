//! Strangers at the doors of a job: floods, garbage, too many open files, and doors that should be shut.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use burn_nccl::{Environment, Error, ProcessGroup};
use nix::{
    errno::Errno,
    sys::{
        resource::{Resource, UsageWho, getrusage, setrlimit},
        time::TimeValLike,
    },
};
use socket2::{Domain, Protocol, Socket, Type};

use super::{environment, free_port, on_ranks, options, sum};

const SECRET: &str = "5f1e0c6a8b9d4e7f2a3b4c5d6e7f8091";
/// The first words of a caller, as a stranger who has read the protocol would say them.
const GREETING: [u8; 32] = *b"BURNNCCL\x02\x00\x02\x01\0\0\0\0sixteen bytes...";
/// How long ranks may take to join in a flood.
const JOIN: Duration = Duration::from_secs(10);
/// What a flood may cost in memory.
const MEMORY_BYTES: u64 = 64 << 20;
/// How many connections a flood holds open.
const HELD: usize = 3000;

fn with_secret(rank: usize, world_size: usize, port: u16, secret: &str) -> Environment {
    let plain = environment(rank, world_size, port, "job");
    let lookup = |name: &str| match name {
        "RANK" | "LOCAL_RANK" => Some(plain.rank.to_string()),
        "WORLD_SIZE" | "LOCAL_WORLD_SIZE" => Some(world_size.to_string()),
        "MASTER_ADDR" => Some(plain.master_addr.clone()),
        "MASTER_PORT" => Some(port.to_string()),
        "BURN_NCCL_SECRET" => Some(secret.to_owned()),
        _ => None,
    };
    Environment::from_lookup(lookup).unwrap().unwrap()
}

/// A test of this program as a process of its own, told by these variables what to do.
struct Helper {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Helper {
    fn start(test: &str, variables: &[(&str, String)]) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("strangers::{test}"), "--nocapture"])
            .envs(variables.iter().cloned())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The number that it prints next after this word.
    fn number(&mut self, word: &str) -> u64 {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "the helper ended without saying `{word}`");
            // The harness may have printed the name of the test before it.
            if let Some(at) = line.find(word) {
                return line[at + word.len()..].trim().parse().unwrap();
            }
        }
    }

    fn tell(&mut self) {
        self.child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn wait_to_be_told() {
    std::io::stdin().read_exact(&mut [0]).unwrap();
}

/// The TCP ports on which the process `pid` listens.
fn listening_ports(pid: u32) -> Vec<u16> {
    let links = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let sockets: Vec<String> = links
        .filter_map(|link| std::fs::read_link(link.path()).ok()?.to_str().map(str::to_owned))
        .filter_map(|target| Some(target.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned()))
        .collect();
    let tables = ["tcp", "tcp6"].map(|name| std::fs::read_to_string(format!("/proc/{pid}/net/{name}")));
    let rows = tables.iter().flatten().flat_map(|table| table.lines().skip(1));
    // proc(5): sl, local address, remote address, state (0A listens), queues, timer, retransmits, uid, timeout, inode.
    rows.filter_map(|row| {
        let fields: Vec<&str> = row.split_whitespace().collect();
        let is_ours = fields[3] == "0A" && sockets.iter().any(|inode| inode == fields[9]);
        is_ours.then(|| u16::from_str_radix(fields[1].rsplit(':').next()?, 16).ok())?
    })
    .collect()
}

/// Floods the ports of its parent as fast as one thread can until it is told to stop. Nothing as a plain test.
#[test]
fn a_flood_in_a_process_of_its_own() {
    let Ok(port) = std::env::var("BURN_NCCL_TEST_FLOOD") else { return };
    let _ = setrlimit(Resource::RLIMIT_NOFILE, HELD as u64 * 2, HELD as u64 * 2);
    let stop = std::thread::spawn(wait_to_be_told);
    let parent = nix::unistd::getppid().as_raw() as u32;
    let (mut ports, mut looked) = (vec![port.parse().unwrap()], Instant::now());
    let mut held: VecDeque<Socket> = VecDeque::new();
    let mut count = 0u64;
    while !stop.is_finished() {
        if looked.elapsed() > Duration::from_millis(100) {
            let found = listening_ports(parent);
            (ports, looked) = (if found.is_empty() { ports } else { found }, Instant::now());
        }
        let Some(socket) = knock(ports[count as usize % ports.len()]) else { continue };
        count += 1;
        match count % 7 {
            // Says nothing.
            0 => held.push_back(socket),
            1 => say_and_hold(&mut held, socket, b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"),
            2 => say_and_hold(&mut held, socket, &GREETING[..11]),
            3 => say_and_hold(&mut held, socket, &GREETING),
            4 => say_and_hold(&mut held, socket, &[&GREETING[..], &[7; 89]].concat()),
            // Says one byte now and then.
            5 => {
                let _ = socket.send(b"B");
                held.push_front(socket);
            }
            // Closes at once.
            _ => drop(socket),
        }
        if let Some(slow) = held.get(count as usize % held.len().max(1)) {
            let _ = slow.send(b"U");
        }
        if held.len() > HELD {
            held.pop_front();
        }
    }
    println!("flooded {count}");
}

fn say_and_hold(held: &mut VecDeque<Socket>, socket: Socket, bytes: &[u8]) {
    let _ = socket.send(bytes);
    held.push_back(socket);
}

/// A connection that is made or about to be.
fn knock(port: u16) -> Option<Socket> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).ok()?;
    socket.set_nonblocking(true).ok()?;
    match socket.connect(&SocketAddr::from(([127, 0, 0, 1], port)).into()) {
        Err(error) if error.raw_os_error() != Some(Errno::EINPROGRESS as i32) => None,
        _ => Some(socket),
    }
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
}

#[test]
fn four_ranks_join_and_work_in_a_flood_of_strangers() {
    let port = free_port();
    let mut flood =
        Helper::start("a_flood_in_a_process_of_its_own", &[("BURN_NCCL_TEST_FLOOD", port.to_string())]);
    let connect = |rank| {
        let group = ProcessGroup::connect(&with_secret(rank, 4, port, SECRET), options()).unwrap();
        (group, Instant::now())
    };
    let before = resident_bytes();
    let (joined, start) = std::thread::scope(|scope| {
        let zero = scope.spawn(|| connect(0));
        // Long enough for the flood to fill every queue before the first honest call.
        std::thread::sleep(Duration::from_secs(1));
        let start = Instant::now();
        let others = [1, 2, 3].map(|rank| scope.spawn(move || connect(rank)));
        let mut joined = vec![zero.join().unwrap()];
        joined.extend(others.map(|rank| rank.join().unwrap()));
        (joined, start)
    });
    let took = joined.iter().map(|(_, at)| at.duration_since(start)).max().unwrap();
    let grown = resident_bytes().saturating_sub(before);
    for result in on_ranks(joined.into_iter().map(|(group, _)| group).collect(), |group| {
        (0..50).try_for_each(|_| sum(&group, 10_000)).map(|()| group)
    }) {
        result.unwrap();
    }
    flood.tell();
    let count = flood.number("flooded ");
    println!("{count} strangers, joined in {took:.2?}, {} KiB more memory", grown / 1024);
    assert!(took < JOIN, "the ranks took {took:?} to join");
    assert!(grown < MEMORY_BYTES, "{grown} bytes more");
    assert!(count > 2000, "{count} strangers are no flood");
}

/// Rank 0 of 2 that has used up its open files. Nothing as a plain test.
#[test]
fn a_rank_0_with_few_open_files() {
    let Ok(port) = std::env::var("BURN_NCCL_TEST_FEW_FILES") else { return };
    setrlimit(Resource::RLIMIT_NOFILE, 128, 128).unwrap();
    let port: u16 = port.parse().unwrap();
    let joining = std::thread::spawn(move || {
        ProcessGroup::connect(&with_secret(0, 2, port, SECRET), options()).unwrap().barrier().unwrap();
    });
    while listening_ports(std::process::id()).len() < 2 {
        std::thread::sleep(Duration::from_millis(10));
    }
    let mut files: Vec<_> = std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect();
    println!("full {}", files.len());
    wait_to_be_told();
    let spent = || {
        let usage = getrusage(UsageWho::RUSAGE_SELF).unwrap();
        usage.user_time().num_milliseconds() + usage.system_time().num_milliseconds()
    };
    let before = spent();
    std::thread::sleep(Duration::from_secs(1));
    println!("milliseconds {}", spent() - before);
    // Not all: the strangers have to be sent away before the ranks have room.
    files.truncate(files.len() - 20);
    joining.join().unwrap();
    println!("joined 0");
}

#[test]
fn a_rank_out_of_open_files_does_not_spin_and_lets_the_others_in_once_it_has_some() {
    let port = free_port();
    let mut zero =
        Helper::start("a_rank_0_with_few_open_files", &[("BURN_NCCL_TEST_FEW_FILES", port.to_string())]);
    assert!(zero.number("full ") > 20);
    let strangers: Vec<_> = (0..300).map(|_| TcpStream::connect(("127.0.0.1", port)).unwrap()).collect();
    zero.tell();
    let milliseconds = zero.number("milliseconds ");
    assert!(milliseconds < 300, "{milliseconds} ms of computing in a second of waiting");
    let start = Instant::now();
    let one = ProcessGroup::connect(&with_secret(1, 2, port, SECRET), options()).unwrap();
    one.barrier().unwrap();
    assert!(start.elapsed() < JOIN, "{:?}", start.elapsed());
    zero.number("joined ");
    drop(strangers);
}

/// Three ranks in one process, which then tells how many doors it has open. Nothing as a plain test.
#[test]
fn three_ranks_in_a_process_of_their_own() {
    let Ok(port) = std::env::var("BURN_NCCL_TEST_DOORS") else { return };
    let port: u16 = port.parse().unwrap();
    let connect = |rank| ProcessGroup::connect(&with_secret(rank, 3, port, SECRET), options()).unwrap();
    std::thread::scope(|scope| {
        let first = [0, 1].map(|rank| scope.spawn(move || connect(rank)));
        while listening_ports(std::process::id()).len() < 3 {
            std::thread::sleep(Duration::from_millis(10));
        }
        println!("waiting {}", listening_ports(std::process::id()).len());
        let groups = first.into_iter().map(|rank| rank.join().unwrap());
        let last = scope.spawn(move || connect(2));
        let groups: Vec<_> = groups.chain([last.join().unwrap()]).collect();
        println!("connected {}", listening_ports(std::process::id()).len());
        drop(groups);
    });
}

#[test]
fn all_doors_are_shut_once_the_ranks_are_connected() {
    let port = free_port();
    let mut ranks =
        Helper::start("three_ranks_in_a_process_of_their_own", &[("BURN_NCCL_TEST_DOORS", port.to_string())]);
    // The store, and one for each of the two ranks.
    assert_eq!(ranks.number("waiting "), 3);
    assert_eq!(ranks.number("connected "), 0);
}

#[test]
fn a_rank_with_another_secret_is_told_so_and_keeps_nobody_out() {
    let port = free_port();
    let other = SECRET.replace('5', "6");
    std::thread::scope(|scope| {
        let connect = |rank, secret: &str| {
            let environment = with_secret(rank, 2, port, secret);
            scope.spawn(move || ProcessGroup::connect(&environment, options()))
        };
        let zero = connect(0, SECRET);
        let stranger = connect(1, &other).join().unwrap().unwrap_err();
        let text = stranger.to_string();
        assert!(matches!(stranger, Error::Refused { rank: 1, .. }), "{text}");
        assert!(text.contains("the job's secret differs") && text.contains("BURN_NCCL_SECRET"), "{text}");
        assert!(text.contains("another job") && !text.contains(&other), "{text}");
        let without = ProcessGroup::connect(&environment(1, 2, port, "job"), options()).unwrap_err();
        assert!(without.to_string().contains("BURN_NCCL_SECRET where one is set"), "{without}");
        let one = connect(1, SECRET);
        let groups = [zero, one].map(|rank| rank.join().unwrap().unwrap());
        for (result, _group) in on_ranks(groups.into(), |group| (group.barrier(), group)) {
            result.unwrap();
        }
    });
}
