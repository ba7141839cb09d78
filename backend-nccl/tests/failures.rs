//! What every rank sees when one of them fails: a typed error that names the cause, in time, and never a hang.

#[path = "failures/diagnosis.rs"]
mod diagnosis;
#[path = "failures/strangers.rs"]
mod strangers;
#[path = "failures/third.rs"]
mod third;

use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use burn_nccl::{DType, Environment, Error, Failure, GroupOptions, ProcessGroup, ReduceOp, TransportKind};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

/// Far more than any of these failures may take, far less than the default.
const PATIENCE: Duration = Duration::from_secs(30);

fn options() -> GroupOptions {
    GroupOptions::default().with_timeout(PATIENCE).with_connect_timeout(PATIENCE)
}

fn local(world_size: usize, options: GroupOptions) -> Vec<ProcessGroup> {
    ProcessGroup::local(world_size, options).unwrap()
}

fn on_ranks<T: Send>(groups: Vec<ProcessGroup>, body: impl Fn(ProcessGroup) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let body = &body;
        let ranks: Vec<_> = groups.into_iter().map(|group| scope.spawn(move || body(group))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn sum(group: &ProcessGroup, count: usize) -> Result<(), Error> {
    group.all_reduce(&mut vec![0; count * 4], DType::F32, ReduceOp::Sum)
}

fn failure(error: &Error) -> &Failure {
    error.failure().unwrap_or_else(|| panic!("not the failure of a collective: {error}"))
}

/// The environment of one rank of a job on this machine.
fn environment(rank: usize, world_size: usize, port: u16, run_id: &str) -> Environment {
    Environment::from_lookup(|name| match name {
        "RANK" | "LOCAL_RANK" => Some(rank.to_string()),
        "WORLD_SIZE" | "LOCAL_WORLD_SIZE" => Some(world_size.to_string()),
        "MASTER_ADDR" => Some("127.0.0.1".to_owned()),
        "MASTER_PORT" => Some(port.to_string()),
        "BURN_NCCL_RUN_ID" => Some(run_id.to_owned()),
        _ => None,
    })
    .unwrap()
    .unwrap()
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[test]
fn different_collectives_are_an_error_that_names_both_on_every_rank() {
    for check in [true, false] {
        let errors = on_ranks(local(3, options().with_check(check)), |group| {
            sum(&group, 10).unwrap();
            let result = if group.rank() == 1 { group.barrier() } else { sum(&group, 100) };
            (group.clone(), result.unwrap_err())
        });
        for (_, error) in &errors {
            assert!(matches!(failure(error), Failure::Mismatch { .. }), "{error}");
            let text = error.to_string();
            for part in
                ["all_reduce #2 (sum of 400 bytes of f32)", "barrier #2", "rank 1 ", "same collective"]
            {
                assert!(text.contains(part), "{part} in {text}");
            }
        }
    }
}

#[test]
fn different_lengths_types_reductions_and_roots_are_told_apart() {
    type Call = fn(&ProcessGroup, bool) -> Result<(), Error>;
    let calls: [Call; 4] = [
        |group, odd| sum(group, if odd { 7 } else { 100_000 }),
        |group, odd| {
            let dtype = if odd { DType::I32 } else { DType::F32 };
            group.all_reduce(&mut vec![0; 400_000], dtype, ReduceOp::Sum)
        },
        |group, odd| {
            let op = if odd { ReduceOp::Max } else { ReduceOp::Sum };
            group.all_reduce(&mut vec![0; 400_000], DType::F32, op)
        },
        |group, odd| group.broadcast(&mut vec![0; 400_000], DType::F32, usize::from(odd)),
    ];
    for call in calls {
        let results = on_ranks(local(2, options()), |group| {
            let odd = group.rank() == 1;
            (call(&group, odd).unwrap_err(), group)
        });
        assert!(results.iter().all(|(error, _)| matches!(failure(error), Failure::Mismatch { .. })));
    }
}

#[test]
fn a_panic_on_one_rank_reaches_the_others_at_once() {
    let start = Instant::now();
    let mut groups = local(3, options());
    let panicking = groups.remove(1);
    let thread = std::thread::spawn(move || {
        let _group = panicking;
        panic!("expected by the test");
    });
    for error in on_ranks(groups, |group| (sum(&group, 1_000_000).unwrap_err(), group)) {
        let Failure::Aborted { rank: 1, reason } = failure(&error.0) else { panic!("{}", error.0) };
        assert!(reason.contains("panicked"), "{reason}");
    }
    assert!(thread.join().is_err());
    assert!(start.elapsed() < PATIENCE / 3, "an abort does not wait for the deadline");
}

#[test]
fn a_rank_that_leaves_is_told_from_one_that_dies() {
    let mut groups = local(3, options());
    drop(groups.pop());
    for (error, _group) in on_ranks(groups, |group| (sum(&group, 1000).unwrap_err(), group)) {
        assert_eq!(*failure(&error), Failure::PeerLeft { rank: 2 });
        assert!(error.to_string().contains("rank 2 has left the group"), "{error}");
    }
}

#[test]
fn leaving_after_the_last_collective_disturbs_nobody() {
    for _ in 0..20 {
        on_ranks(local(4, options()), |group| {
            sum(&group, 200_000).unwrap();
            group.barrier().unwrap();
        });
    }
}

#[test]
fn a_rank_that_does_not_come_is_named_when_the_deadline_passes() {
    let limit = Duration::from_secs(1);
    let errors = on_ranks(local(3, options().with_timeout(limit)), |group| {
        sum(&group, 10).unwrap();
        if group.rank() == 1 {
            std::thread::sleep(limit * 2);
        }
        (sum(&group, 1000).unwrap_err(), group)
    });
    for (error, group) in &errors {
        let Failure::Deadline { missing, limit: passed, .. } = failure(error) else { panic!("{error}") };
        assert_eq!((missing.as_slice(), *passed), ([1].as_slice(), limit));
        assert!(error.to_string().contains(&format!("all_reduce #2 failed on rank {}", group.rank())));
        assert!(error.to_string().contains("last seen in all_reduce #1 (sum of 40 bytes of f32)"), "{error}");
    }
}

#[test]
fn after_a_failure_every_call_returns_the_cause_at_once() {
    let start = Instant::now();
    on_ranks(local(2, options()), |group| {
        if group.rank() == 0 {
            group.abort("the loss is not a number");
        }
        for error in [
            sum(&group, 10).unwrap_err(),
            group.barrier().unwrap_err(),
            group.broadcast(&mut [0; 4], DType::U8, 1).unwrap_err(),
            group.all_gather_bytes(b"x").unwrap_err(),
            group.all_reduce_async(vec![0; 4], DType::F32, ReduceOp::Sum).wait().unwrap_err(),
        ] {
            let expected = Failure::Aborted { rank: 0, reason: "the loss is not a number".to_owned() };
            assert_eq!(*failure(&error), expected);
        }
    });
    assert!(start.elapsed() < PATIENCE / 3);
}

#[test]
fn an_abort_wakes_a_call_that_waits_on_another_thread_of_the_same_rank() {
    let groups = local(2, options());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| sum(&groups[0], 1_000_000).unwrap_err());
        std::thread::sleep(Duration::from_millis(100));
        groups[0].abort("enough");
        let error = waiting.join().unwrap();
        assert_eq!(*failure(&error), Failure::Aborted { rank: 0, reason: "enough".into() });
    });
}

#[test]
fn work_that_is_under_way_ends_when_its_group_is_aborted() {
    let groups = local(2, options());
    let works: Vec<_> =
        (0..3).map(|_| groups[0].all_reduce_async(vec![0; 1 << 20], DType::F32, ReduceOp::Sum)).collect();
    groups[1].abort("enough");
    for work in works {
        assert!(matches!(failure(&work.wait().unwrap_err()), Failure::Aborted { rank: 1, .. }));
    }
}

#[test]
fn dropping_a_group_with_work_under_way_waits_for_nobody() {
    let start = Instant::now();
    let mut groups = local(2, options());
    let work = groups[0].all_reduce_async(vec![0; 1 << 20], DType::F32, ReduceOp::Sum);
    drop(groups.remove(0));
    assert!(start.elapsed() < PATIENCE / 3);
    drop(groups);
    assert!(work.wait().is_err());
}

/// Rank 1 of 3 as a process of its own, which the tests kill or stop. Does nothing when it runs as a plain test.
#[test]
fn rank_1_in_a_process_of_its_own() {
    let Ok(port) = std::env::var("BURN_NCCL_TEST_PORT") else { return };
    let environment = environment(1, 3, port.parse().unwrap(), "job");
    let group = ProcessGroup::connect(&environment, options()).unwrap();
    group.barrier().unwrap();
    // In the second collective with the others, until the test ends this process.
    let _ = sum(&group, 4_000_000);
    std::thread::sleep(PATIENCE);
}

struct Rank1(Child);

impl Rank1 {
    fn start(port: u16) -> Self {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "rank_1_in_a_process_of_its_own"])
            .env("BURN_NCCL_TEST_PORT", port.to_string())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        Self(child)
    }

    fn send(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id() as i32), signal).unwrap();
    }
}

impl Drop for Rank1 {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ranks 0 and 2 here and rank 1 in its own process, after a first barrier.
fn with_rank_1(options: GroupOptions) -> (Rank1, Vec<ProcessGroup>) {
    let port = free_port();
    let child = Rank1::start(port);
    let groups = std::thread::scope(|scope| {
        let connect = |rank| {
            let options = options.clone();
            scope.spawn(move || {
                let group = ProcessGroup::connect(&environment(rank, 3, port, "job"), options).unwrap();
                group.barrier().unwrap();
                group
            })
        };
        [connect(0), connect(2)].map(|rank| rank.join().unwrap())
    });
    (child, groups.into())
}

#[test]
fn a_rank_that_is_killed_between_collectives_is_named_at_the_next() {
    let start = Instant::now();
    let (child, groups) = with_rank_1(options());
    drop(child);
    for (error, _group) in on_ranks(groups, |group| (group.barrier().unwrap_err(), group)) {
        // Rank 1 may have called its second collective before it died.
        let lost = matches!(failure(&error), Failure::PeerLost { rank: 1, .. });
        assert!(lost || matches!(failure(&error), Failure::Mismatch { .. }), "{error}");
    }
    assert!(start.elapsed() < PATIENCE / 2);
}

#[test]
fn a_rank_that_is_killed_in_a_collective_is_named_on_all_others() {
    let start = Instant::now();
    let (child, groups) = with_rank_1(options());
    let errors = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| sum(&groups[0], 4_000_000).unwrap_err());
        std::thread::sleep(Duration::from_millis(200));
        child.send(Signal::SIGKILL);
        let late = sum(&groups[1], 4_000_000).unwrap_err();
        [waiting.join().unwrap(), late]
    });
    for error in errors {
        assert!(matches!(failure(&error), Failure::PeerLost { rank: 1, .. }), "{error}");
        assert!(error.to_string().contains("rank 1 is gone"), "{error}");
    }
    assert!(start.elapsed() < PATIENCE / 2);
}

#[test]
fn a_rank_that_is_stopped_is_named_when_the_deadline_passes() {
    let limit = Duration::from_secs(2);
    let (child, groups) = with_rank_1(options().with_timeout(limit));
    child.send(Signal::SIGSTOP);
    for (error, _group) in on_ranks(groups, |group| (sum(&group, 4_000_000).unwrap_err(), group)) {
        let Failure::Deadline { missing, .. } = failure(&error) else { panic!("{error}") };
        // Ranks 0 and 2 have not finished either, but only because they wait for rank 1.
        assert_eq!(missing, &[1], "{error}");
    }
}

#[test]
fn a_rank_that_never_starts_is_named_within_the_connect_timeout() {
    let (port, limit) = (free_port(), Duration::from_millis(800));
    let errors = std::thread::scope(|scope| {
        [0, 2]
            .map(|rank| {
                let options = options().with_connect_timeout(limit);
                scope.spawn(move || {
                    ProcessGroup::connect(&environment(rank, 3, port, "job"), options).unwrap_err()
                })
            })
            .map(|rank| rank.join().unwrap())
    });
    for error in errors {
        assert!(matches!(&error, Error::MissingRanks { missing, .. } if *missing == [1]), "{error}");
    }
}

#[test]
fn a_rank_of_another_job_does_not_keep_the_right_one_out() {
    let port = free_port();
    std::thread::scope(|scope| {
        let connect = |rank, run_id: &'static str| {
            scope.spawn(move || ProcessGroup::connect(&environment(rank, 2, port, run_id), options()))
        };
        let zero = connect(0, "job");
        let stranger = connect(1, "another job").join().unwrap().unwrap_err();
        assert!(stranger.to_string().contains("rank 1 of 2 was refused"), "{stranger}");
        assert!(stranger.to_string().contains("the run token differs"), "{stranger}");
        let one = connect(1, "job");
        let groups = [zero, one].map(|rank| rank.join().unwrap().unwrap());
        for (error, _) in on_ranks(groups.into(), |group| (group.barrier(), group)) {
            error.unwrap();
        }
    });
}

#[test]
fn a_port_in_use_is_an_error_of_rank_0_that_says_what_to_do() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let error = ProcessGroup::connect(&environment(0, 2, port, "job"), options()).unwrap_err();
    assert!(matches!(error, Error::PortInUse { .. }));
    assert!(error.to_string().contains(&format!("127.0.0.1:{port}")), "{error}");
}

/// Open descriptors of this process, and mappings of segments.
fn held() -> (usize, usize) {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let segments = maps.lines().filter(|line| line.contains("memfd:burn-nccl")).count();
    (std::fs::read_dir("/proc/self/fd").unwrap().count(), segments)
}

/// One rank of three in a process of its own: collectives over shared memory without end, until one fails. Does nothing
/// when it runs as a plain test.
#[test]
fn a_rank_in_shared_memory_in_a_process_of_its_own() {
    let Ok(place) = std::env::var("BURN_NCCL_TEST_SHARED") else { return };
    let (rank, port) = place.split_once(':').unwrap();
    let environment = environment(rank.parse().unwrap(), 3, port.parse().unwrap(), "shared");
    // Loads what the first use of a socket or a thread loads.
    drop(ProcessGroup::local(2, options()).unwrap());
    let before = held();
    let limit = Duration::from_secs(2);
    let group = ProcessGroup::connect(
        &environment,
        options().with_timeout(limit).with_transport(TransportKind::SharedMemory),
    )
    .unwrap();
    assert_eq!(group.transport_name(), "shm");
    assert!(held().1 >= 3);
    let (mut resident, mut heap) = (group.buffer(3_000_000), vec![0u8; 3_000_000]);
    let mut calls = 0usize;
    let error = loop {
        let bytes = [400, 40_000, 3_000_000][calls % 3];
        calls += 1;
        let buffer = if calls.is_multiple_of(2) { &mut resident[..bytes] } else { &mut heap[..bytes] };
        if let Err(error) = group.all_reduce(buffer, DType::F32, ReduceOp::Sum) {
            break error;
        }
        if calls == 1 {
            println!("ready");
        }
    };
    match failure(&error) {
        Failure::PeerLost { rank: 1, .. } => {}
        Failure::Deadline { missing, .. } if *missing == [1] => {}
        other => panic!("{other}"),
    }
    drop((group, resident));
    assert_eq!(held(), before);
}

#[test]
fn survivors_of_shared_memory_name_the_rank_that_is_killed_or_stopped_and_keep_nothing_of_it() {
    for (signal, after) in [Signal::SIGKILL, Signal::SIGSTOP].into_iter().zip([3u64, 17]) {
        let port = free_port();
        let mut ranks: Vec<Rank1> = (0..3)
            .map(|rank| {
                let child = Command::new(std::env::current_exe().unwrap())
                    .args(["--exact", "a_rank_in_shared_memory_in_a_process_of_its_own", "--nocapture"])
                    .env("BURN_NCCL_TEST_SHARED", format!("{rank}:{port}"))
                    .stdout(Stdio::piped())
                    .spawn()
                    .unwrap();
                Rank1(child)
            })
            .collect();
        // Kept until the end: a rank that writes to a closed pipe fails for that.
        let mut outputs = Vec::new();
        for rank in &mut ranks {
            let mut lines = BufReader::new(rank.0.stdout.take().unwrap()).lines();
            assert!(lines.any(|line| line.unwrap().contains("ready")));
            outputs.push(lines);
        }
        std::thread::sleep(Duration::from_millis(after));
        ranks[1].send(signal);
        let start = Instant::now();
        for survivor in [0, 2] {
            assert!(ranks[survivor].0.wait().unwrap().success(), "rank {survivor} after {signal}");
        }
        assert!(start.elapsed() < PATIENCE);
    }
}
