//! Jobs over two hosts: network namespaces with a poor network between them, and what becomes of it.
//!
//! Ranks 0 and 1 are on host 0, ranks 2 and 3 on host 1. Where this machine allows no namespaces the tests are skipped.

pub(crate) mod network;
mod wire;

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use burn_nccl::Failure;
use burn_nccl_tests::exchange::Exchange;
use burn_nccl_tests::model::Net;
use burn_nccl_tests::report::ERROR_EXIT_CODE;
use burn_nccl_tests::training::{Precision, Training};
use burn_nccl_tests::{Report, Scenario};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use self::network::{Family, Network};
use self::wire::Conditions;
use crate::harness::{End, assert_close, run_commands, skip, test_rank, trained_alone};

const RANKS: usize = 4;
const RANKS_PER_HOST: usize = 2;
/// The same in every network: no two networks meet.
const PORT: u16 = 29_500;
const SECRET: &str = "8d3bb8e1b5f04c4fb0a2f5d4c1e09a77";
/// Longer than any job here takes to join.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a host may be out of reach by default, and what a busy machine may add.
const HOST_TIMEOUT: Duration = Duration::from_secs(10);
const MARGIN: Duration = Duration::from_secs(5);

/// Two hosts, or the line that says why there are none.
fn network(test: &str, family: Family, conditions: Conditions) -> Option<Network> {
    match Network::new(family, conditions) {
        Ok(network) => Some(network),
        Err(reason) => {
            skip(test, &format!("network namespaces are not permitted here: {reason}"));
            None
        }
    }
}

/// The ranks of a job over both hosts, which know rank 0's as `master`.
fn ranks(network: &Network, scenario: &Scenario, master: &str) -> Vec<Command> {
    let rank = |rank: usize| {
        let mut command = test_rank(scenario);
        let local = rank % RANKS_PER_HOST;
        command.env("RANK", rank.to_string()).env("LOCAL_RANK", local.to_string());
        command.env("WORLD_SIZE", RANKS.to_string()).env("LOCAL_WORLD_SIZE", RANKS_PER_HOST.to_string());
        command.env("MASTER_ADDR", master).env("MASTER_PORT", PORT.to_string());
        command.env("BURN_NCCL_RUN_ID", "job").env("BURN_NCCL_SECRET", SECRET);
        network.on_host(rank / RANKS_PER_HOST, &command)
    };
    (0..RANKS).map(rank).collect()
}

fn exchange(rounds: usize, elements: usize, folder: Option<&Path>) -> Exchange {
    Exchange { rounds, elements, timeout_seconds: 60.0, folder: folder.map(Path::to_owned) }
}

/// Asserts that the ranks of a job with this name of rank 0's host find each other, share memory within each host without
/// being told, and compute what they should.
fn assert_exchanged(network: &Network, exchange: Exchange, master: &str, meanwhile: impl FnOnce(&[u32])) {
    assert_carried("layered", ranks(network, &Scenario::Exchange(exchange), master), meanwhile);
}

/// Asserts that ranks that exchange compute what they should over this transport.
fn assert_carried(by: &str, ranks: Vec<Command>, meanwhile: impl FnOnce(&[u32])) {
    let ends = run_commands(ranks, meanwhile);
    for (expected, end) in ends.iter().enumerate() {
        assert!(end.status.success(), "{ends:#?}");
        let Report::Exchanged { rank, transport } = end.report() else { panic!("{end:#?}") };
        assert_eq!(rank, expected);
        assert_eq!(transport, by);
    }
}

#[test]
fn four_ranks_on_two_hosts_compute_over_a_slow_and_lossy_network() {
    let test = "four_ranks_on_two_hosts_compute_over_a_slow_and_lossy_network";
    let Some(network) = network(test, Family::V4, Conditions::POOR) else { return };
    let start = Instant::now();
    assert_exchanged(&network, exchange(3, 10_007, None), &network.family.address(0), |_| ());
    // Each collective has to cross the network at least once.
    assert!(start.elapsed() > 3 * 4 * Conditions::POOR.delay, "the network was not slow");
    let scenario = Scenario::Exchange(exchange(3, 10_007, None));
    let mut flat = ranks(&network, &scenario, &network.family.address(0));
    for rank in &mut flat {
        rank.env("BURN_NCCL_TRANSPORT", "tcp");
    }
    assert_carried("tcp", flat, |_| ());
    assert!(network.lost() > 0, "none of {} frames was lost", network.frames());
}

#[test]
fn hosts_without_ipv4_find_each_other() {
    let test = "hosts_without_ipv4_find_each_other";
    let Some(network) = network(test, Family::V6, Conditions::GOOD) else { return };
    assert_exchanged(&network, exchange(2, 1000, None), &network.family.address(0), |_| ());
}

#[test]
fn a_host_whose_own_name_leads_to_loopback_can_be_that_of_rank_0() {
    let test = "a_host_whose_own_name_leads_to_loopback_can_be_that_of_rank_0";
    for (family, loopback) in
        [(Family::V4, "127.0.1.1"), (Family::V6, "127.0.1.1"), (Family::V6, "::1"), (Family::V4, "::1")]
    {
        let Some(network) = network(test, family, Conditions::GOOD) else { return };
        let named = network
            .name_on_host(0, "head", loopback)
            .and_then(|()| network.name_on_host(1, "head", &family.address(0)));
        if let Err(reason) = named {
            return skip(test, &reason);
        }
        assert_exchanged(&network, exchange(1, 100, None), "head", |_| ());
    }
}

#[test]
fn training_on_two_hosts_equals_one_process_on_the_joined_batch() {
    let test = "training_on_two_hosts_equals_one_process_on_the_joined_batch";
    let Some(network) = network(test, Family::V4, Conditions::POOR) else { return };
    let training = Training { precision: Precision::Double, ..Training::new(Net::Plain, RANKS, 5) };
    let expected = trained_alone(&Scenario::Joined(training.clone()));
    assert_ne!(expected.sha256, expected.start_sha256, "the reference has not learnt anything");
    let job = ranks(&network, &Scenario::Train(training), &network.family.address(0));
    let ends = run_commands(job, |_| ());
    for end in &ends {
        let Report::Trained(found) = end.report() else { panic!("{ends:#?}") };
        assert_eq!(found.start_sha256, expected.start_sha256);
        assert_close(&found.parameters, &expected.parameters, 1e-11);
    }
}

/// Asserts that every rank says that it has lost a rank of the other host.
fn assert_lost_the_other_host(ends: &[End], cut: Instant, limit: Duration) {
    for (rank, end) in ends.iter().enumerate() {
        assert_eq!(end.status.code(), Some(ERROR_EXIT_CODE), "{ends:#?}");
        let error = end.failed();
        let Some(Failure::PeerLost { rank: lost, .. }) = error.failure else { panic!("{error:?}") };
        assert_ne!(
            lost / RANKS_PER_HOST,
            rank / RANKS_PER_HOST,
            "rank {rank} names one of its own host: {error:?}"
        );
        let cause = format!("rank {lost} is gone (its host has not answered for 10s)");
        assert!(error.text.contains(&cause), "{error:?}");
        let late = end.at.saturating_duration_since(cut);
        assert!(late < limit, "rank {rank} ended {late:?} after the cut: {error:?}");
    }
}

#[test]
fn a_host_that_is_cut_off_in_the_middle_of_training_is_lost_to_the_other_in_time() {
    let test = "a_host_that_is_cut_off_in_the_middle_of_training_is_lost_to_the_other_in_time";
    let Some(network) = network(test, Family::V4, Conditions::GOOD) else { return };
    let endless = Training::new(Net::Plain, RANKS, 1_000_000);
    let mut cut = Instant::now();
    let ends = run_commands(ranks(&network, &Scenario::Train(endless), &network.family.address(0)), |_| {
        cut = cut_in_training(&network);
    });
    assert_lost_the_other_host(&ends, cut, HOST_TIMEOUT + MARGIN);
    assert_eq!(network.processes(), [""; 0]);
}

/// Cuts host 1 off in the middle of a training; when.
fn cut_in_training(network: &Network) -> Instant {
    let start = Instant::now();
    // Joining takes a few hundred, each step some more.
    while network.frames() < 5000 && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(10));
    }
    network.cut(1);
    Instant::now()
}

#[test]
fn a_stopped_rank_of_a_host_that_is_alive_is_waited_for() {
    let test = "a_stopped_rank_of_a_host_that_is_alive_is_waited_for";
    let Some(network) = network(test, Family::V4, Conditions::POOR) else { return };
    let folder = tempfile::tempdir().unwrap();
    let joined = |rank: usize| folder.path().join(format!("joined-{rank}")).exists();
    let job = exchange(40, 100, Some(folder.path()));
    assert_exchanged(&network, job, &network.family.address(0), |pids| {
        let start = Instant::now();
        while !(0..RANKS).all(joined) && start.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(10));
        }
        let stopped = Pid::from_raw(pids[3] as i32);
        kill(stopped, Signal::SIGSTOP).unwrap();
        std::thread::sleep(HOST_TIMEOUT + Duration::from_secs(4));
        kill(stopped, Signal::SIGCONT).unwrap();
    });
}

/// The launchers of a job of two nodes, one on each host, or the line that says why there are none.
fn launchers(test: &str, network: &Network, scenario: &Scenario, master: &str) -> Option<Vec<Command>> {
    let rank = test_rank(scenario);
    let burnrun = Path::new(rank.get_program()).with_file_name("burnrun");
    if !burnrun.exists() {
        skip(test, "burnrun is not built; test the whole workspace");
        return None;
    }
    let launcher = |node: usize| {
        let mut command = Command::new(&burnrun);
        command.args(["--nnodes", "2", "--node-rank", &node.to_string(), "--nproc-per-node", "2"]);
        command.args([
            "--master-addr",
            master,
            "--master-port",
            &PORT.to_string(),
            "--grace-seconds",
            "3",
            "--",
        ]);
        command.arg(rank.get_program()).args(rank.get_args()).env("BURN_NCCL_SECRET", SECRET);
        network.on_host(node, &command)
    };
    Some(vec![launcher(0), launcher(1)])
}

/// Asserts that the launchers of both hosts have run a job whose ranks computed what they should.
fn assert_launched(test: &str, network: &Network, master: &str) {
    let scenario = Scenario::Exchange(exchange(2, 1000, None));
    let Some(launchers) = launchers(test, network, &scenario, master) else { return };
    let ends = run_commands(launchers, |_| ());
    let mut ranks = Vec::new();
    for end in &ends {
        assert!(end.status.success(), "{ends:#?}");
        // burnrun puts a prefix before each line.
        for line in end.stdout.lines().filter_map(|line| Some(&line[line.find('{')?..])) {
            let Ok(Report::Exchanged { rank, .. }) = serde_json::from_str(line) else { panic!("{line}") };
            ranks.push(rank);
        }
    }
    assert_eq!(ranks.len(), RANKS, "{ends:#?}");
    ranks.sort_unstable();
    assert!(ranks.into_iter().eq(0..RANKS), "{ends:#?}");
}

#[test]
fn a_launcher_on_each_host_starts_one_job_over_both() {
    let test = "a_launcher_on_each_host_starts_one_job_over_both";
    for family in [Family::V4, Family::V6] {
        let Some(network) = network(test, family, Conditions::POOR) else { return };
        assert_launched(test, &network, &family.address(0));
    }
}

#[test]
fn launchers_meet_at_a_host_whose_own_name_leads_to_loopback() {
    let test = "launchers_meet_at_a_host_whose_own_name_leads_to_loopback";
    for family in [Family::V4, Family::V6] {
        let Some(network) = network(test, family, Conditions::GOOD) else { return };
        let named = network
            .name_on_host(0, "head", "127.0.1.1")
            .and_then(|()| network.name_on_host(1, "head", &family.address(0)));
        if let Err(reason) = named {
            return skip(test, &reason);
        }
        assert_launched(test, &network, "head");
    }
}

#[test]
fn the_launchers_of_both_hosts_end_when_the_hosts_are_cut_off_from_each_other() {
    let test = "the_launchers_of_both_hosts_end_when_the_hosts_are_cut_off_from_each_other";
    let Some(network) = network(test, Family::V4, Conditions::GOOD) else { return };
    let endless = Scenario::Train(Training::new(Net::Plain, RANKS, 1_000_000));
    let master = network.family.address(0);
    let Some(launchers) = launchers(test, &network, &endless, &master) else { return };
    let mut cut = Instant::now();
    let ends = run_commands(launchers, |_| cut = cut_in_training(&network));
    for end in &ends {
        assert!(!end.status.success(), "{ends:#?}");
        let late = end.at.saturating_duration_since(cut);
        assert!(late < HOST_TIMEOUT + 2 * MARGIN, "a launcher ended {late:?} after the cut: {ends:#?}");
    }
    assert_eq!(network.processes(), [""; 0]);
}
