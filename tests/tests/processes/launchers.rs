//! The ways to start ranks: this workspace's launcher, and those of others where they are installed.

use std::path::PathBuf;
use std::process::Command;

use burn_nccl_tests::{Report, Scenario};

use crate::harness::{End, hold_free_port, run_alone, run_command, skip, test_rank};

/// Asserts that ranks 0 and 1 of 2 have added up their numbers.
fn assert_two_ranks_reduced(end: &End) {
    assert!(end.status.success(), "{end:#?}");
    // A launcher may put a prefix before each line.
    let lines = end.stdout.lines().filter_map(|line| serde_json::from_str(&line[line.find('{')?..]).ok());
    let mut ranks: Vec<usize> = lines
        .map(|report| match report {
            Report::Reduced { rank, world_size: 2, sum: 3 } => rank,
            other => panic!("expected 1 + 2 on one of 2 ranks, found {other:?}"),
        })
        .collect();
    ranks.sort_unstable();
    assert_eq!(ranks, [0, 1], "{end:#?}");
}

#[test]
fn four_jobs_that_are_launched_at_once_do_not_meet() {
    let job = Scenario::Launch(2, Box::new(Scenario::Reduce));
    std::thread::scope(|scope| {
        let jobs: Vec<_> = (0..4).map(|_| scope.spawn(|| run_alone(&job))).collect();
        jobs.into_iter().for_each(|job| assert_two_ranks_reduced(&job.join().unwrap()));
    });
}

fn on_path(program: &str) -> Option<PathBuf> {
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|folder| folder.join(program))
        .find(|it| it.is_file())
}

/// `test-rank` under another launcher with its options.
fn under(launcher: PathBuf, options: &[&str]) -> Command {
    let rank = test_rank(&Scenario::Reduce);
    let mut command = Command::new(launcher);
    command.args(options).arg(rank.get_program()).args(rank.get_args());
    command
}

#[test]
fn torchrun_can_start_the_ranks() {
    let named = std::env::var_os("BURN_NCCL_TORCHRUN").map(PathBuf::from);
    let Some(torchrun) = named.or_else(|| on_path("torchrun")) else {
        return skip("torchrun_can_start_the_ranks", "no torchrun on PATH nor in BURN_NCCL_TORCHRUN");
    };
    let options = ["--standalone", "--no-python", "--nproc-per-node", "2"];
    assert_two_ranks_reduced(&run_command(under(torchrun, &options)));
}

#[test]
fn open_mpi_can_start_the_ranks() {
    let is_open_mpi = |mpirun: &PathBuf| {
        let version = Command::new(mpirun).arg("--version").output();
        version.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("Open MPI"))
    };
    let Some(mpirun) = on_path("mpirun").filter(is_open_mpi) else {
        return skip("open_mpi_can_start_the_ranks", "no mpirun of Open MPI on PATH");
    };
    let mut command = under(mpirun, &["-n", "2", "--oversubscribe"]);
    // Containers run as root, which Open MPI refuses unless told twice.
    command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
    assert_two_ranks_reduced(&run_command(command));
}

#[test]
fn tasks_of_srun_find_each_other_by_its_variables() {
    let held = hold_free_port();
    let port = held.local_addr().unwrap().as_socket().expect("an IPv4 address").port().to_string();
    let tasks = ["0", "1"].map(|task| {
        let mut command = test_rank(&Scenario::Reduce);
        command.envs([
            ("SLURM_JOB_ID", "4711"),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_STEP_NODELIST", "127.0.0.1"),
        ]);
        command.envs([("SLURM_PROCID", task), ("SLURM_LOCALID", task), ("SLURM_NODEID", "0")]);
        command.envs([("SLURM_STEP_NUM_TASKS", "2"), ("SLURM_STEP_TASKS_PER_NODE", "2")]);
        command.env("MASTER_PORT", &port);
        command
    });
    let ends = std::thread::scope(|scope| {
        let running = tasks.map(|task| scope.spawn(|| run_command(task)));
        running.map(|task| task.join().unwrap())
    });
    for (rank, end) in ends.iter().enumerate() {
        let report = end.report();
        assert!(
            matches!(report, Report::Reduced { rank: r, world_size: 2, sum: 3 } if r == rank),
            "{end:#?}"
        );
    }
}
