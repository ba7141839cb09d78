//! The built recipe, run as a user runs it.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

#[test]
fn one_rank_leaves_a_complete_run_and_needs_no_launcher() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let output = Command::new(env!("CARGO_BIN_EXE_recipe-resnet-single"))
        .args([
            "--out",
            out.to_str().unwrap(),
            "--device",
            "cpu",
            "--model",
            "resnet18",
            "--progress",
            "plain",
        ])
        .args(["--max-steps", "2", "--batch-size", "8"])
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let last = String::from_utf8_lossy(&output.stdout).lines().last().unwrap().to_owned();
    assert!(last.starts_with("test accuracy ") && last.ends_with(out.to_str().unwrap()), "{last}");

    let summary: Value = serde_json::from_slice(&fs::read(out.join("summary.json")).unwrap()).unwrap();
    assert_eq!((&summary["world_size"], &summary["steps"]), (&1.into(), &2.into()));
    assert_eq!(summary["step_breakdown"]["comm_exposed"], 0.0);
    for file in ["config.json", "metrics.jsonl", "model.bpk", "loss.svg"] {
        assert!(out.join(file).metadata().unwrap().len() > 0, "{file}");
    }
    // No other rank, no log.
    assert!(!out.join("logs").exists());
}

#[test]
fn options_of_the_recipe_with_ranks_are_unknown() {
    let output = Command::new(env!("CARGO_BIN_EXE_recipe-resnet-single")).arg("--wire=f16").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("unexpected argument '--wire'"), "{stderr}");
}

fn one_image_at_a_time(args: &[&str], error_file: &Path) -> Output {
    Command::new(env!("CARGO_BIN_EXE_recipe-resnet-single"))
        .args(["--device", "cpu", "--model", "resnet18", "--progress", "none", "--batch-size", "1"])
        .args(args)
        .env("BURN_NCCL_ERROR_FILE", error_file)
        .output()
        .unwrap()
}

#[test]
fn one_image_at_a_time_is_refused_where_batch_norm_would_see_one_value() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let out_arg = format!("--out={}", out.display());
    let output = one_image_at_a_time(&[&out_arg, "--max-steps=1"], &folder.path().join("error.json"));
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("--batch-size 2") && !stderr.contains("panicked"), "{stderr}");
    assert!(!out.exists());
    // The last stage of a larger image has more than one pixel.
    let larger = one_image_at_a_time(
        &[&out_arg, "--max-steps=1", "--image-size=9"],
        &folder.path().join("other.json"),
    );
    assert!(larger.status.success(), "{}", String::from_utf8_lossy(&larger.stderr));
}

#[test]
fn a_launcher_learns_the_error_of_the_rank_and_not_that_of_a_trial() {
    let folder = tempfile::tempdir().unwrap();
    let error_file = folder.path().join("error.json");
    for image in
        ["train/a/1.png", "train/a/2.png", "train/b/1.png", "train/b/2.png", "val/a/1.png", "val/b/1.png"]
    {
        let image = folder.path().join("images").join(image);
        fs::create_dir_all(image.parent().unwrap()).unwrap();
        fs::write(image, "not a picture").unwrap();
    }
    let output = Command::new(env!("CARGO_BIN_EXE_recipe-resnet-single"))
        .args(["--device", "cpu", "--model", "resnet18", "--batch-size", "4", "--find-batch-size"])
        .arg(format!("--data=folder:{}", folder.path().join("images").display()))
        .arg("--image-size=8")
        .env("BURN_NCCL_ERROR_FILE", &error_file)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(stderr.contains("cannot find a batch size") && stderr.contains("replace or remove"), "{stderr}");
    let report: Value = serde_json::from_slice(&fs::read(error_file).unwrap()).unwrap();
    assert!(report["message"].as_str().unwrap().contains("cannot find a batch size"), "{report}");
}

#[test]
fn a_batch_that_does_not_fit_is_made_smaller_and_the_global_batch_kept() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let program = env!("CARGO_BIN_EXE_recipe-resnet-single");
    let options = ["--device", "cpu", "--model", "resnet18", "--workers", "0", "--image-size", "32"];
    // Threads reserve address space of their own, so one is enough.
    let environment = [("MALLOC_ARENA_MAX", "1"), ("RAYON_NUM_THREADS", "1")];

    // Twice the layers' outputs for 8 images, but not eight times: 64 images do not fit, and some fraction does.
    let small = Command::new(program).args(options).arg("--probe-batch-size=8").envs(environment).spawn();
    let limit_kib = peak_address_space_kib(small.unwrap()) * 6 / 5;
    let output = Command::new("sh")
        .args(["-c", &format!("ulimit -v {limit_kib} && exec \"$0\" \"$@\""), program])
        .args(options)
        .args(["--batch-size", "64", "--find-batch-size", "--max-steps", "1", "--progress", "plain"])
        .args(["--out", out.to_str().unwrap()])
        .envs(environment)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("a batch of 64 images per rank does not fit into memory"), "{stderr}");
    let summary: Value = serde_json::from_slice(&fs::read(out.join("summary.json")).unwrap()).unwrap();
    let number = |key: &str| summary[key].as_u64().unwrap();
    assert!(number("batch_size") < 64);
    assert_eq!(number("batch_size") * number("accumulate"), 64);
    assert_eq!((number("global_batch_size"), number("steps")), (64, 1));
}

/// The most address space that `child` had, as the system counts it, until its end.
fn peak_address_space_kib(mut child: Child) -> u64 {
    let mut peak = 0;
    while child.try_wait().unwrap().is_none() {
        let status = fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmPeak:"));
        let now = line.and_then(|line| line.trim().strip_suffix(" kB")).map_or(0, |kib| kib.parse().unwrap());
        peak = peak.max(now);
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    peak
}

/// Whether the process handles SIGTERM, by its status in `/proc`: bit 14 of the caught signals.
fn handles_sigterm(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).is_some_and(|mask| mask >> 14 & 1 == 1)
}

fn terminate(run: &Child) {
    kill(Pid::from_raw(run.id() as i32), Signal::SIGTERM).unwrap();
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < Duration::from_secs(120), "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn resnet18(out: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_recipe-resnet-single"));
    command.args(["--out", out.to_str().unwrap(), "--device", "cpu", "--model", "resnet18"]).args(args);
    command.args(["--progress", "none"]).stderr(Stdio::piped());
    command
}

#[test]
fn sigterm_leaves_a_checkpoint_from_which_the_run_comes_to_the_same_bits() {
    let folder = tempfile::tempdir().unwrap();
    let (whole, stopped) = (folder.path().join("whole"), folder.path().join("stopped"));
    let summary = |out: &Path| -> Value {
        serde_json::from_slice(&fs::read(out.join("summary.json")).unwrap()).unwrap()
    };
    let args = ["--max-steps", "30", "--batch-size", "8"];
    assert!(resnet18(&whole, &args).output().unwrap().status.success());
    let run = resnet18(&stopped, &args).spawn().unwrap();
    wait_until("some steps", || {
        fs::read_to_string(stopped.join("metrics.jsonl")).is_ok_and(|text| text.lines().count() > 2)
    });
    terminate(&run);
    let output = run.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(75), "{}", String::from_utf8_lossy(&output.stderr));
    let first = summary(&stopped);
    assert!(first["interrupted"] == true && first["steps"].as_u64().unwrap() < 30, "{first}");
    let output = resnet18(&stopped, &["--resume", "auto"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(summary(&stopped)["parameters_sha256"], summary(&whole)["parameters_sha256"]);
    assert_eq!(summary(&stopped)["resumed_from_step"], first["steps"]);
}

#[test]
fn a_second_sigterm_ends_the_run_at_once() {
    let folder = tempfile::tempdir().unwrap();
    // Of steps that take many seconds.
    let args = ["--batch-size", "64", "--image-size", "64", "--stem", "cifar", "--epochs", "9"];
    let mut run = resnet18(&folder.path().join("run"), &args).spawn().unwrap();
    wait_until("the handler", || handles_sigterm(run.id()));
    terminate(&run);
    std::thread::sleep(Duration::from_millis(1100));
    assert!(run.try_wait().unwrap().is_none(), "the first one ended it");
    terminate(&run);
    let start = Instant::now();
    assert_eq!(run.wait().unwrap().signal(), Some(15));
    assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
}

#[test]
fn without_checkpoints_sigterm_ends_the_run_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("run");
    let mut run = resnet18(&out, &["--batch-size", "8", "--checkpoint-epochs", "0"]).spawn().unwrap();
    wait_until("a step", || out.join("metrics.jsonl").exists());
    assert!(!handles_sigterm(run.id()));
    terminate(&run);
    assert_eq!(run.wait().unwrap().signal(), Some(15));
}
