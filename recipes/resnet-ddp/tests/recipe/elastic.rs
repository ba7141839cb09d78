//! Runs that are stopped by a signal, or lose a rank, and go on.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::{Place, hold_free_port, stderr};

/// Longer than anything here takes on a busy machine.
const DEADLINE: Duration = Duration::from_secs(180);

/// Twenty steps on two ranks within one epoch.
const TWENTY_STEPS: [&str; 4] = ["--max-steps", "20", "--batch-size", "8"];

/// The hash of the parameters after them, where nothing disturbs them.
fn twenty_steps() -> &'static Value {
    static HASH: OnceLock<Value> = OnceLock::new();
    HASH.get_or_init(|| undisturbed(&TWENTY_STEPS))
}

/// A run in the background, killed if the test ends before it.
struct Running(Option<Child>);

impl Running {
    fn start(mut command: Command) -> Self {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Self(Some(command.spawn().unwrap()))
    }

    fn pid(&self) -> u32 {
        self.0.as_ref().unwrap().id()
    }

    fn end(mut self) -> Output {
        let mut child = self.0.take().unwrap();
        // Where nobody reads a pipe it may fill up, but these runs say little.
        wait_for("the end of a run", || child.try_wait().unwrap());
        child.wait_with_output().unwrap()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn wait_for<T>(what: &str, mut ready: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        match ready() {
            Some(value) => return value,
            None => assert!(start.elapsed() < DEADLINE, "waited in vain for {what}"),
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn signal(signal: Signal, pid: u32) {
    kill(Pid::from_raw(pid as i32), signal).unwrap();
}

/// The process of `rank` among the children of `launcher`.
fn rank_of(launcher: u32, rank: usize) -> u32 {
    let variable = format!("RANK={rank}");
    let is_rank = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let mut variables = environment.split(|byte| *byte == 0);
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let parent = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(1));
        parent == Some(&launcher.to_string()) && variables.any(|it| it == variable.as_bytes())
    };
    wait_for("a rank", || {
        let processes = fs::read_dir("/proc").unwrap().flatten();
        processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).find(is_rank)
    })
}

fn lines(out: &Path) -> usize {
    fs::read_to_string(out.join("metrics.jsonl")).map_or(0, |text| text.lines().count())
}

fn trained(out: &Path, steps: usize) {
    wait_for("some steps", || (lines(out) >= steps).then_some(()));
}

fn with<'a>(args: &[&'a str], more: &[&'a str]) -> Vec<&'a str> {
    [args, more].concat()
}

/// The hash of the parameters of a run that nothing disturbs.
fn undisturbed(args: &[&str]) -> Value {
    let place = Place::new();
    let output = place.run(args);
    assert!(output.status.success(), "{}", stderr(&output));
    place.json("summary.json")["parameters_sha256"].clone()
}

/// Asserts that a run has been stopped in order, and returns the step.
fn assert_stopped(place: &Place, output: &Output) -> u64 {
    let text = stderr(output);
    assert_eq!(output.status.code(), Some(75), "{text}");
    assert!(text.contains("a signal has stopped the run after step "), "{text}");
    assert!(text.contains("can be resumed: its ranks left with exit code 75"), "{text}");
    let summary = place.json("summary.json");
    assert_eq!((&summary["interrupted"], summary.get("test_accuracy")), (&true.into(), None));
    let step = summary["steps"].as_u64().unwrap();
    assert_eq!(lines(&place.out) as u64, step);
    assert!(place.out.join(format!("checkpoints/step-{step}/manifest.json")).exists());
    assert!(!place.out.join("model.bpk").exists());
    step
}

fn assert_resumes(place: &Place, from: u64, expected: &Value) {
    let output = place.run(&["--resume", "auto"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let summary = place.json("summary.json");
    assert_eq!((&summary["parameters_sha256"], &summary["resumed_from_step"]), (expected, &from.into()));
    assert_eq!((summary.get("interrupted"), summary["test_accuracy"].is_number()), (None, true));
    assert!(place.out.join("model.bpk").exists());
}

#[test]
fn sigterm_leaves_a_checkpoint_from_which_the_run_comes_to_the_same_bits() {
    let expected = twenty_steps();
    let place = Place::new();
    let run = Running::start(place.command(&TWENTY_STEPS));
    trained(&place.out, 3);
    signal(Signal::SIGTERM, run.pid());
    let step = assert_stopped(&place, &run.end());
    assert!((3..20).contains(&step), "{step}");
    assert_resumes(&place, step, expected);
}

#[test]
fn all_ranks_stop_after_the_same_step_when_one_of_them_gets_the_signal() {
    let place = Place::new();
    // Without a launcher of its own, as under srun.
    let (_held, port) = hold_free_port();
    let ranks = ["0", "1"].map(|rank| {
        let mut command = place.command(&TWENTY_STEPS);
        command.envs([("SLURM_PROCID", rank), ("SLURM_LOCALID", rank), ("SLURM_NTASKS", "2")]);
        command.envs([("SLURM_NODEID", "0"), ("SLURM_TASKS_PER_NODE", "2")]);
        command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port.as_str())]);
        Running::start(command)
    });
    trained(&place.out, 3);
    signal(Signal::SIGUSR1, ranks[1].pid());
    let outputs = ranks.map(Running::end);
    assert!(outputs.iter().all(|output| output.status.code() == Some(75)), "{outputs:#?}");
    let step = place.json("summary.json")["steps"].as_u64().unwrap();
    assert!(stderr(&outputs[0]).contains(&format!("stopped the run after step {step};")), "{outputs:#?}");
    assert!(place.out.join(format!("checkpoints/step-{step}/manifest.json")).exists());
}

#[test]
fn a_signal_at_any_place_of_short_epochs_loses_nothing() {
    let place = Place::new();
    let files: Vec<String> = (0..8).map(|image| format!("{}/{image}.png", ["a", "b"][image % 2])).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let data = place.images(&files, &files);
    // Two steps each, so many that the run is not over before the signal comes.
    let args = ["--data", &data, "--image-size", "16", "--batch-size", "2", "--epochs", "16"];
    let args = with(&args, &["--checkpoint-epochs", "5"]);
    let expected = undisturbed(&args);
    let run = Running::start(place.command(&args));
    trained(&place.out, 2);
    signal(Signal::SIGTERM, run.pid());
    let output = run.end();
    assert_eq!(output.status.code(), Some(75), "{}", stderr(&output));
    // Once more, now in a run that goes on.
    let before = lines(&place.out);
    let run = Running::start(place.command(&["--resume", "auto"]));
    trained(&place.out, before + 1);
    signal(Signal::SIGTERM, run.pid());
    let output = run.end();
    assert_eq!(output.status.code(), Some(75), "{}", stderr(&output));
    let step = place.json("summary.json")["steps"].as_u64().unwrap();
    assert_resumes(&place, step, &expected);
    assert_eq!(lines(&place.out), 32);
}

/// Kills `rank` of `launcher` once the run in `out` has a checkpoint.
fn kill_rank(launcher: u32, rank: usize, out: &Path) {
    wait_for("a checkpoint", || out.join("checkpoints/step-4/manifest.json").exists().then_some(()));
    signal(Signal::SIGKILL, rank_of(launcher, rank));
}

const WITH_RESTART: [&str; 6] = ["--checkpoint-steps", "4", "--keep-last", "9", "--max-restarts", "1"];

/// Asserts that a run went on after a rank was killed, to the bits of one that was not disturbed.
fn assert_restarted(place: &Place, expected: &Value) {
    let summary = place.json("summary.json");
    assert_eq!(summary["parameters_sha256"], *expected);
    let from = summary["resumed_from_step"].as_u64().unwrap();
    assert!(from >= 4 && from.is_multiple_of(4), "{from}");
    assert_eq!((lines(&place.out), &summary["steps"]), (20, &20.into()));
}

#[test]
fn a_killed_rank_costs_the_steps_since_the_last_checkpoint_only() {
    let expected = twenty_steps();
    let place = Place::new();
    let run = Running::start(place.command(&with(&TWENTY_STEPS, &WITH_RESTART)));
    kill_rank(run.pid(), 1, &place.out);
    let output = run.end();
    let text = stderr(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("failed first: SIGKILL; restart 1 of 1"), "{text}");
    assert!(text.contains("resuming after step "), "{text}");
    assert!(place.out.join("logs/restart-1/rank-1.log").exists());
    assert_restarted(&place, expected);
}

#[test]
fn a_rank_that_is_killed_before_the_first_checkpoint_begins_again_in_the_same_folder() {
    let place = Place::new();
    let args = ["--max-steps", "12", "--batch-size", "8", "--max-restarts", "1"];
    let expected = undisturbed(&args);
    let run = Running::start(place.command(&args));
    trained(&place.out, 2);
    signal(Signal::SIGKILL, rank_of(run.pid(), 0));
    let output = run.end();
    assert!(output.status.success(), "{}", stderr(&output));
    let summary = place.json("summary.json");
    assert_eq!((&summary["parameters_sha256"], summary.get("resumed_from_step")), (&expected, None));
    assert_eq!(lines(&place.out), 12);
}

#[test]
fn nodes_that_the_recipe_starts_itself_go_on_after_a_killed_rank() {
    let four = ["--nproc-per-node", "4"];
    let args = ["--max-steps", "20", "--batch-size", "4"];
    let expected = undisturbed(&with(&args, &four));
    let place = Place::new();
    let (_held, port) = hold_free_port();
    let nodes = ["1", "0"].map(|node| {
        let options = ["--nproc-per-node", "2", "--nnodes", "2", "--node-rank", node, "--master-port", &port];
        Running::start(place.command(&[&args[..], &WITH_RESTART, &options].concat()))
    });
    kill_rank(nodes[0].pid(), 3, &place.out);
    for output in nodes.map(Running::end) {
        let text = stderr(&output);
        assert!(output.status.success(), "{text}");
        assert!(text.contains("note: rank 3 (pid ") && text.contains("; restart 1 of 1"), "{text}");
    }
    assert!(place.out.join("logs/rank-3.log").exists());
    assert_restarted(&place, &expected);
}

#[test]
fn ranks_that_are_started_again_leave_the_run_of_another_job_alone() {
    let place = Place::new();
    let start = |job: &str, restart: &str, args: &[&str]| {
        let mut command = place.command(args);
        command.envs([("RANK", "0"), ("LOCAL_RANK", "0"), ("WORLD_SIZE", "1"), ("LOCAL_WORLD_SIZE", "1")]);
        command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")]);
        command.envs([("TORCHELASTIC_RUN_ID", job), ("TORCHELASTIC_RESTART_COUNT", restart)]);
        command.output().unwrap()
    };
    let args = ["--max-steps", "1", "--batch-size", "8"];
    let output = start("old", "0", &args);
    assert!(output.status.success(), "{}", stderr(&output));
    let files = || ["summary.json", "config.json", "job.json"].map(|name| place.json(name));
    let before = files();
    // The job is another one, or asks for something else; torchrun tries again whatever the exit code was.
    let more = ["--max-steps", "2", "--batch-size", "8"];
    for (job, restart, args) in
        [("new", "0", args), ("new", "1", args), ("new", "1", more), ("old", "1", more)]
    {
        let output = start(job, restart, &args);
        assert_eq!(output.status.code(), Some(2), "{job} {restart}: {}", stderr(&output));
        assert!(stderr(&output).contains("it is not empty"), "{}", stderr(&output));
        assert_eq!(files(), before);
    }
    // Its own run is complete.
    let output = start("old", "1", &args);
    assert!(
        output.status.success() && stderr(&output).contains("nothing left to train"),
        "{}",
        stderr(&output)
    );
    assert_eq!(files(), before);
}

#[test]
fn options_for_several_nodes_that_do_not_go_together_are_usage_errors() {
    let place = Place::new();
    let cases: [(&[&str], &str); 4] = [
        (&["--nnodes", "2"], "without --node-rank"),
        (&["--nnodes", "2", "--node-rank", "2"], "--node-rank 2 is not one of 2 nodes"),
        (&["--node-rank", "1"], "--node-rank 1 is not one of 1 nodes"),
        (&["--nnodes", "0"], "--nnodes"),
    ];
    for (args, text) in cases {
        let output = place.run(args);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        assert!(stderr(&output).contains(text), "{}", stderr(&output));
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_recipe-resnet-ddp"));
    let output = command.args(["--nnodes", "2", "--node-rank", "0", "--device", "cpu"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(stderr(&output).contains("there is no --out"), "{}", stderr(&output));
}

#[test]
fn a_rank_that_torchrun_starts_again_goes_on_from_its_checkpoint() {
    const TEST: &str = "a_rank_that_torchrun_starts_again_goes_on_from_its_checkpoint";
    let on_path = || {
        let folders = std::env::var_os("PATH")?;
        std::env::split_paths(&folders).map(|folder| folder.join("torchrun")).find(|it| it.is_file())
    };
    let named = std::env::var_os("BURN_NCCL_TORCHRUN").map(PathBuf::from);
    let Some(torchrun) = named.or_else(on_path) else {
        use std::io::Write;
        let reason = "no torchrun on PATH nor in BURN_NCCL_TORCHRUN";
        let _ = writeln!(std::io::stderr(), "skipped: {TEST}: {reason}");
        return;
    };
    let expected = twenty_steps();
    let place = Place::new();
    let recipe = place.command(&with(&TWENTY_STEPS, &WITH_RESTART[..4]));
    let mut command = Command::new(torchrun);
    command.args(["--standalone", "--no-python", "--nproc-per-node", "2", "--max-restarts", "1"]);
    command.arg(recipe.get_program()).args(recipe.get_args());
    let run = Running::start(command);
    kill_rank(run.pid(), 1, &place.out);
    let output = run.end();
    assert!(output.status.success(), "{}", stderr(&output));
    assert_restarted(&place, expected);
}

#[test]
fn a_signal_to_a_run_that_cannot_write_a_checkpoint_is_a_failure() {
    let place = Place::new();
    let run = Running::start(place.command(&with(&TWENTY_STEPS, &["--on-checkpoint-failure", "continue"])));
    trained(&place.out, 2);
    // No folder can be made there.
    fs::write(place.out.join("checkpoints"), "").unwrap();
    signal(Signal::SIGTERM, run.pid());
    let output = run.end();
    let text = stderr(&output);
    assert_ne!(output.status.code(), Some(75), "{text}");
    assert!(text.contains("there will be no checkpoints in "), "{text}");
    assert!(text.contains("cannot go on") && text.contains("no checkpoint could be written"), "{text}");
    assert!(!text.contains("go on with --resume auto"), "{text}");
}

#[test]
fn a_rank_that_sees_the_newest_checkpoint_late_waits_for_it() {
    let place = Place::new();
    let args = ["--max-steps", "2", "--batch-size", "8", "--checkpoint-steps", "1"];
    let start = |outs: [&Path; 2], restart: &str| {
        let (held, port) = hold_free_port();
        let ranks = ["0", "1"].map(|rank| {
            let mut command = place.command(&args);
            command.args(["--out", outs[rank.parse::<usize>().unwrap()].to_str().unwrap()]);
            command.envs([
                ("RANK", rank),
                ("LOCAL_RANK", rank),
                ("WORLD_SIZE", "2"),
                ("LOCAL_WORLD_SIZE", "2"),
            ]);
            command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", port.as_str())]);
            command.envs([("TORCHELASTIC_RUN_ID", "job"), ("TORCHELASTIC_RESTART_COUNT", restart)]);
            Running::start(command)
        });
        (held, ranks)
    };
    let (_held, ranks) = start([&place.out, &place.out], "0");
    for rank in ranks {
        let output = rank.end();
        assert!(output.status.success(), "{}", stderr(&output));
    }
    // The same files on another machine, which shows the last of them later.
    let other = place.path("other");
    fs::create_dir_all(other.join("checkpoints")).unwrap();
    let link = |name: &str| std::os::unix::fs::symlink(place.out.join(name), other.join(name)).unwrap();
    ["config.json", "job.json", "summary.json", "checkpoints/step-1"].into_iter().for_each(link);
    let (_held, ranks) = start([&place.out, &other], "1");
    std::thread::sleep(Duration::from_secs(2));
    link("checkpoints/step-2");
    for rank in ranks {
        let output = rank.end();
        assert!(output.status.success(), "{}", stderr(&output));
    }
}
