//! mpirun with ranks on two hosts, which are two network namespaces with a cable between them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use burn_nccl::TransportKind;
use burn_nccl_tests::Scenario;
use burn_nccl_tests::transfers::Transferred;

use crate::harness::{End, reports, run_command, skip, test_rank};
use crate::hosts::network;
use crate::mpi::{mpirun, succeed, transferred};

/// The addresses of the two hosts, of a range for documentation.
const ADDRESSES: [&str; 2] = ["192.0.2.1", "192.0.2.2"];

/// Two hosts that are removed at the end.
struct TwoHosts {
    names: [String; 2],
    /// Holds what mpirun calls to start something on another host.
    folder: tempfile::TempDir,
}

impl TwoHosts {
    /// `None` where namespaces are not permitted.
    fn new() -> Option<Self> {
        network::remove_stale();
        let names = [0, 1].map(|host| format!("{}-{}-mpi{host}", network::PREFIX, std::process::id()));
        let hosts = Self { names, folder: tempfile::tempdir().unwrap() };
        hosts.connect().then(|| hosts.write_agent())?;
        Some(hosts)
    }

    fn connect(&self) -> bool {
        let [first, second] = &self.names;
        let each = |commands: &dyn Fn(&str, &str, &str) -> Vec<String>| {
            let ends = [(first, "c0", ADDRESSES[0]), (second, "c1", ADDRESSES[1])];
            ends.into_iter()
                .flat_map(|(name, cable, address)| commands(name, cable, address))
                .collect::<Vec<_>>()
        };
        let mut commands = vec![format!("netns add {first}"), format!("netns add {second}")];
        commands.push(format!("link add c0 netns {first} type veth peer name c1 netns {second}"));
        commands.extend(each(&|name, cable, address| {
            vec![
                format!("-n {name} addr add {address}/24 dev {cable}"),
                format!("-n {name} link set {cable} up"),
                format!("-n {name} link set lo up"),
            ]
        }));
        commands.iter().all(|command| network::ip(&command.split(' ').collect::<Vec<_>>()).is_ok())
    }

    /// The remote shell: enters the host's network and gives it a name, as a host has.
    fn write_agent(&self) {
        let cases: String = ADDRESSES
            .iter()
            .zip(&self.names)
            .map(|(address, name)| format!("{address}) name={name} ;;\n"))
            .collect();
        let script = format!(
            "#!/bin/sh\nhost=$1; shift\ncase $host in\n{cases}esac\n\
             exec ip netns exec $name unshare --uts sh -c \"hostname $name; $*\"\n"
        );
        fs::write(self.agent(), script).unwrap();
        fs::set_permissions(self.agent(), fs::Permissions::from_mode(0o755)).unwrap();
    }

    fn agent(&self) -> PathBuf {
        self.folder.path().join("agent")
    }

    /// Runs `scenario` on two ranks of each host.
    fn run(&self, mpirun: PathBuf, scenario: &Scenario) -> End {
        let rank = test_rank(scenario);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.names[0], "unshare", "--uts", "sh", "-c"]);
        command.args([&format!("hostname {}; exec \"$0\" \"$@\"", self.names[0])]);
        command.arg(mpirun).args(["--mca", "plm_rsh_agent"]).arg(self.agent());
        command.args(["--host", &format!("{}:2,{}:2", ADDRESSES[0], ADDRESSES[1]), "-n", "4"]);
        // The other host gets no variable of ours by itself.
        command.args(["-x", "RAYON_NUM_THREADS=1"]);
        command.arg(rank.get_program()).args(rank.get_args());
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        run_command(command)
    }
}

impl Drop for TwoHosts {
    fn drop(&mut self) {
        self.names.iter().for_each(|name| network::remove(name));
    }
}

#[test]
fn ranks_that_mpirun_starts_on_two_hosts_need_nothing_else() {
    const TEST: &str = "ranks_that_mpirun_starts_on_two_hosts_need_nothing_else";
    let Some(mpirun) = mpirun(TEST) else { return };
    let Some(hosts) = TwoHosts::new() else {
        return skip(TEST, "network namespaces are not permitted; run as root with iproute2 installed");
    };
    let run = |kind| -> Vec<Transferred> {
        let end = hosts.run(mpirun.clone(), &Scenario::Transfer(kind));
        succeed(&end, 4).into_iter().map(transferred).collect()
    };
    let by_host = run(TransportKind::Auto);
    assert!(by_host.iter().all(|found| found.transport == "layered" && *found == by_host[0]), "{by_host:?}");
    let expected =
        reports(&Scenario::Transfer(TransportKind::Tcp), 4).into_iter().map(transferred).next().unwrap();
    for found in run(TransportKind::Mpi) {
        assert_eq!(found, Transferred { transport: "mpi".into(), ..expected.clone() });
    }
}
