//! Ranks in processes of their own, one of which is killed.

use std::{
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use stubs::{Config, PeerLoss, Stubs};

use super::{LIMIT, Plan, Rank};
use crate::{
    Failure, GroupOptions, ProcessGroup,
    rendezvous::{Environment, Secret},
};

const SECRET: &str = "00112233445566778899aabbccddeeff";
const PLACE: &str = "BURN_NCCL_TEST_PLACE";
const NAME: &str = "transport::nccl::tests::processes::a_rank_of_another_process";

fn join(stubs: &Stubs, rank: usize, port: u16) -> Rank {
    let secret = Secret::from_hex(SECRET).unwrap();
    let group =
        ProcessGroup::connect(&Environment::in_this_process(rank, 2, port, secret), GroupOptions::default());
    Rank::connect(group.unwrap(), Plan::of(2).settings(stubs, rank), LIMIT).unwrap()
}

/// Not a test of its own: rank 1, started by the test below.
#[test]
#[ignore = "a rank of a test that starts it"]
fn a_rank_of_another_process() {
    let place = std::env::var(PLACE).unwrap();
    let (port, folder) = place.split_once(' ').unwrap();
    let rank = join(&Stubs::open(folder.as_ref()), 1, port.parse().unwrap());
    rank.reduce().unwrap();
    // Until it is killed.
    std::thread::sleep(Duration::from_secs(60));
}

fn spawn(stubs: &Stubs, port: u16) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", NAME])
        .env(PLACE, format!("{port} {}", stubs.folder().display()))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

#[test]
fn a_rank_that_is_killed_is_named_by_the_one_that_waits_for_it() {
    for peer_loss in [PeerLoss::Hang, PeerLoss::RemoteError] {
        let mut config = Config::default();
        config.nccl.peer_loss = peer_loss;
        let stubs = Stubs::install(&config).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut child = spawn(&stubs, port);
        let rank = join(&stubs, 0, port);
        rank.reduce().unwrap();
        let killer = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(200));
            child.kill().unwrap();
            child.wait().unwrap();
        });
        let start = Instant::now();
        let failure = rank.reduce().unwrap_err();
        assert!(start.elapsed() < Duration::from_secs(5), "{failure} after {:?}", start.elapsed());
        assert!(matches!(failure, Failure::PeerLost { rank: 1, .. }), "{failure}");
        let close = Instant::now();
        drop(rank);
        assert!(close.elapsed() < Duration::from_secs(10), "{:?}", close.elapsed());
        killer.join().unwrap();
        assert_eq!(stubs.faults().unwrap(), [""; 0]);
    }
}
