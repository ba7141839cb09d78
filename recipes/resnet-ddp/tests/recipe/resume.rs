//! Runs that end early and go on.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::{Place, assert_refused, hold_free_port, stderr};

/// Six steps on two ranks, in the middle of the first epoch, with a checkpoint after the second and the fourth.
const SIX_STEPS: [&str; 8] =
    ["--max-steps", "6", "--batch-size", "8", "--checkpoint-steps", "2", "--keep-last", "9"];

/// The steps that `metrics.jsonl` has, in order.
fn steps(out: &Path) -> Vec<u64> {
    let text = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
    let step = |line: &str| serde_json::from_str::<Value>(line).unwrap()["step"].as_u64().unwrap();
    text.lines().map(step).collect()
}

fn checkpoints(out: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(out.join("checkpoints")).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|name| name.starts_with("step-")).collect()
}

/// A run from beginning to end, and its summary.
fn whole(args: &[&str]) -> (Place, Value) {
    let place = Place::new();
    let output = place.run(args);
    assert!(output.status.success(), "{}", stderr(&output));
    let summary = place.json("summary.json");
    (place, summary)
}

/// Starts a run and kills its launcher, and so all its ranks, once it has this checkpoint.
fn killed_after(place: &Place, args: &[&str], checkpoint: &str) {
    let mut child = place.command(args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while !checkpoints(&place.out).contains(checkpoint) {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none(), "no {checkpoint}");
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!place.out.join("summary.json").exists(), "the run was over before it was killed");
}

#[test]
fn a_killed_run_resumes_in_its_folder_to_the_bits_of_one_that_was_not() {
    let (whole, expected) = whole(&SIX_STEPS);
    let place = Place::new();
    killed_after(&place, &SIX_STEPS, "step-2");
    let output = place.run(&["--resume", "auto", "--batch-size", "8"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let summary = place.json("summary.json");
    assert_eq!(summary["parameters_sha256"], expected["parameters_sha256"]);
    assert_eq!(summary["test_accuracy"], expected["test_accuracy"]);
    let from = summary["resumed_from_step"].as_u64().unwrap();
    assert!(from == 2 || from == 4, "{from}");
    assert!(stderr(&output).contains(&format!("resuming after step {from}")), "{}", stderr(&output));
    // Every step once, whatever the killed run had written after its checkpoint.
    assert_eq!(steps(&place.out), [1, 2, 3, 4, 5, 6]);
    assert_eq!(checkpoints(&place.out), ["step-2", "step-4", "step-6"].map(String::from).into());
    // The picture has the steps before the kill, too.
    assert_eq!(fs::read(place.out.join("loss.svg")).unwrap(), fs::read(whole.out.join("loss.svg")).unwrap());
    // TensorBoard drops what the first file has of later steps: `Event.session_log { status: START }`.
    let is_restart =
        |path: &PathBuf| fs::read(path).unwrap().windows(4).any(|bytes| bytes == [0x3a, 2, 8, 1]);
    let events = place.written().into_iter().filter(|path| path.to_str().unwrap().contains("tfevents"));
    let restarts: Vec<bool> = events.map(|path| is_restart(&path)).collect();
    assert_eq!((restarts.len(), restarts.iter().filter(|is_restart| **is_restart).count()), (2, 1));
}

#[test]
fn an_older_checkpoint_branches_off_into_another_folder_and_is_refused_in_its_own() {
    let (first, expected) = whole(&SIX_STEPS);
    let older = first.out.join("checkpoints/step-2");
    let branch = Place::new();
    let output = branch.run(&["--resume", older.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(branch.json("summary.json")["parameters_sha256"], expected["parameters_sha256"]);
    assert_eq!(steps(&branch.out), [1, 2, 3, 4, 5, 6]);

    let output = first.run(&["--resume", older.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    assert!(stderr(&output).contains("step-6") && stderr(&output).contains("--out"), "{}", stderr(&output));
    assert_eq!((steps(&first.out).len(), first.json("summary.json")), (6, expected));
}

#[test]
fn epochs_go_on_where_they_ended_and_more_can_be_asked_for() {
    let place = Place::new();
    let files: Vec<String> = (0..8).map(|image| format!("{}/{image}.png", ["a", "b"][image % 2])).collect();
    let files: Vec<&str> = files.iter().map(String::as_str).collect();
    let data = place.images(&files, &files);
    let one = ["--data", &data, "--image-size", "16", "--batch-size", "2", "--epochs", "1"];
    let output = place.run(&one);
    assert!(output.status.success(), "{}", stderr(&output));
    let summary = place.json("summary.json");
    assert_eq!((&summary["epochs"], &summary["steps"]), (&1.into(), &2.into()));

    let output = place.run(&["--resume", "auto", "--epochs", "2"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("not as before: --epochs 1, now 2"), "{}", stderr(&output));
    let summary = place.json("summary.json");
    assert_eq!((&summary["epochs"], &summary["steps"]), (&2.into(), &4.into()));
    assert_eq!(summary["resumed_from_step"], 2);
    assert_eq!(steps(&place.out), [1, 2, 3, 4]);
    // By which the best checkpoint is known.
    let state = fs::read(place.out.join("checkpoints/step-4/state.json")).unwrap();
    let state: Value = serde_json::from_slice(&state).unwrap();
    assert_eq!(state["state"]["metric"], summary["test_accuracy"]);

    // Nothing is left to do, and what the run has measured stays.
    let output = place.run(&["--resume", "auto"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("nothing left to train"), "{}", stderr(&output));
    assert_eq!(place.json("summary.json"), summary);

    // In a folder of its own it is tested again, with the results of the same weights.
    let branch = Place::new();
    let output = branch.run(&["--resume", place.out.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    for key in ["parameters_sha256", "train_loss_final", "test_accuracy"] {
        assert_eq!(branch.json("summary.json")[key], summary[key], "{key}");
    }
}

#[test]
fn another_batch_keeps_the_place_in_the_schedule_through_a_second_resume() {
    let rates = |out: &Path| -> Vec<f64> {
        let text = fs::read_to_string(out.join("metrics.jsonl")).unwrap();
        let rate = |line: &str| serde_json::from_str::<Value>(line).unwrap()["lr"].as_f64().unwrap();
        text.lines().map(rate).collect()
    };
    let (first, _) = whole(&["--max-steps", "2", "--batch-size", "8", "--warmup-epochs", "1"]);
    let (halved, again) = (Place::new(), Place::new());
    let from = first.out.to_str().unwrap().to_owned();
    let args = ["--batch-size", "4", "--max-steps", "4", "--checkpoint-steps", "3", "--keep-last", "9"];
    let output = halved.run(&[&["--resume", &from], &args[..]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("not as before: --batch-size 8, now 4"), "{}", stderr(&output));
    // The warm-up is longer than the runs, which end at its top: 0.1 * 16/256 after two steps of 16 images. By their share of
    // an epoch these are four steps of 8 images, so that the next two are the fifth and sixth of six, up to 0.1 * 8/256.
    let found = rates(&halved.out);
    let expected = [(0, 1.0 / 2.0 * 16.0), (1, 16.0), (2, 5.0 / 6.0 * 8.0), (3, 8.0)];
    for (step, share) in expected {
        assert!((found[step] / (0.1 * share / 256.0) - 1.0).abs() < 1e-9, "{found:?}");
    }
    let output = again.run(&["--resume", halved.out.join("checkpoints/step-3").to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(rates(&again.out), found);
}

#[test]
fn a_run_that_was_killed_before_its_first_checkpoint_begins_again_in_its_folder() {
    let place = Place::new();
    let args = ["--batch-size", "8", "--max-steps", "3000"];
    let mut child = place.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while !place.out.join("metrics.jsonl").exists() {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let args = ["--batch-size", "8", "--max-steps", "2"];
    let output = place.run(&args);
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
    let output = place.run(&[&args[..], &["--resume", "auto"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(steps(&place.out), [1, 2]);
    // What has ended without a checkpoint is not begun again over its results.
    fs::remove_dir_all(place.out.join("checkpoints")).unwrap();
    let output = place.run(&[&args[..], &["--resume", "auto"]].concat());
    assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
}

#[test]
fn ranks_that_resume_from_different_checkpoints_are_refused() {
    let (first, _) = whole(&SIX_STEPS);
    let (_held, port) = hold_free_port();
    let place = Place::new();
    let ranks = ["step-2", "step-4"].map(|step| {
        let from = first.out.join("checkpoints").join(step);
        let rank = if step == "step-2" { "0" } else { "1" };
        let mut command = place.command(&["--resume", from.to_str().unwrap()]);
        command.envs([("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")]);
        command.envs([("MASTER_PORT", port.as_str()), ("RANK", rank), ("LOCAL_RANK", rank)]);
        command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap()
    });
    for rank in ranks {
        let output = rank.wait_with_output().unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("step 4") && text.contains("step 2") && text.contains("run folder"), "{text}");
    }
    assert_eq!(place.written(), Vec::<PathBuf>::new());
}

#[test]
fn a_forged_checkpoint_writes_nothing_elsewhere() {
    let (first, _) = whole(&["--max-steps", "1", "--batch-size", "8"]);
    let checkpoint = first.out.join("checkpoints/step-1");
    let elsewhere = first.path("elsewhere");
    let forge = |change: &dyn Fn(&mut Value)| {
        let path = checkpoint.join("state.json");
        let mut file: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        change(&mut file["state"]);
        fs::write(&path, file.to_string()).unwrap();
        let hash = Sha256::digest(fs::read(&path).unwrap());
        let hash: String = hash.iter().map(|byte| format!("{byte:02x}")).collect();
        let path = checkpoint.join("manifest.json");
        let mut manifest: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        for entry in
            manifest["files"].as_array_mut().unwrap().iter_mut().filter(|e| e["name"] == "state.json")
        {
            entry["sha256"] = hash.clone().into();
            entry["bytes"] = fs::metadata(checkpoint.join("state.json")).unwrap().len().into();
        }
        fs::write(&path, manifest.to_string()).unwrap();
    };
    // An option that no run writes into its configuration.
    forge(&|state| {
        state["config"]["out"] = elsewhere.to_str().into();
        state["config"]["probe-batch-size"] = 7.into();
        state["config"]["max-steps"] = 2.into();
    });
    let output = first.run(&["--resume", "auto"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(!elsewhere.exists() && first.json("summary.json")["steps"] == 2);
    // A number that no training has.
    let output = {
        fs::remove_dir_all(first.out.join("checkpoints/step-2")).unwrap();
        forge(&|state| state["sampler"]["world_size"] = 0.into());
        first.run(&["--resume", checkpoint.to_str().unwrap()])
    };
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert!(text.contains("world_size is 0") && !text.contains("panicked"), "{text}");
}

#[test]
fn a_link_that_was_planted_in_a_run_is_not_followed() {
    let (first, _) = whole(&["--max-steps", "1", "--batch-size", "8"]);
    let victim = first.path("victim");
    fs::write(&victim, "precious").unwrap();
    for name in [".config.json.unfinished", ".summary.json.tmp", "loss.svg"] {
        let _ = fs::remove_file(first.out.join(name));
        std::os::unix::fs::symlink(&victim, first.out.join(name)).unwrap();
    }
    let output = first.run(&["--resume", "auto", "--max-steps", "2"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
}

#[test]
fn another_number_of_ranks_keeps_the_global_batch_and_says_so() {
    let (first, _) = whole(&["--max-steps", "2", "--batch-size", "8"]);
    let alone = Place::new();
    let resume = first.out.to_str().unwrap().to_owned();
    let output = alone.run(&["--resume", &resume, "--nproc-per-node", "1", "--max-steps", "4"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let text = stderr(&output);
    assert!(
        text.contains("world size 2, now 1: the global batch stays 16, with 8 images a rank x 2"),
        "{text}"
    );
    let summary = alone.json("summary.json");
    assert_eq!((&summary["world_size"], &summary["global_batch_size"]), (&1.into(), &16.into()));
    assert_eq!((&summary["steps"], &summary["accumulate"]), (&4.into(), &2.into()));
}

#[test]
fn a_broken_checkpoint_is_passed_over_with_the_reason() {
    let (first, _) = whole(&SIX_STEPS);
    let newest = first.out.join("checkpoints/step-6/optimizer.bpk");
    let mut bytes = fs::read(&newest).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&newest, bytes).unwrap();
    let output = first.run(&["--resume", "auto"]);
    let text = stderr(&output);
    assert!(output.status.success(), "{text}");
    assert!(text.contains("step-6") && text.contains("optimizer.bpk"), "{text}");
    assert_eq!(first.json("summary.json")["resumed_from_step"], 4);
}

#[test]
fn auto_without_a_checkpoint_is_a_new_run() {
    let place = Place::new();
    let output = place.run(&["--resume", "auto", "--max-steps", "1", "--batch-size", "8"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("this is a new run"), "{}", stderr(&output));
    assert_eq!(place.json("summary.json").get("resumed_from_step"), None);
}

#[test]
fn what_does_not_go_with_a_checkpoint_is_refused() {
    let (first, _) = whole(&["--max-steps", "1", "--batch-size", "8"]);
    let run = first.out.to_str().unwrap();
    let place = Place::new();
    let data = place.images(&["a/1.png", "b/1.png"], &["a/1.png", "b/1.png"]);
    let cases: &[(&[&str], &[&str])] = &[
        (&["--resume", run, "--model", "resnet34"], &["--model is resnet18, not resnet34", "--weights"]),
        (&["--resume", run, "--weights", "other.pth"], &["the weights are the checkpoint's"]),
        (&["--resume", run, "--data", &data], &["1498 images", "there are 2"]),
    ];
    for (args, texts) in cases {
        // The last `--model` counts.
        assert_refused(&place, &place.run(args), 2, texts);
    }
    assert_refused(&place, &place.run(&["--resume", "/nowhere"]), 1, &["/nowhere", "exists"]);
}

#[test]
fn two_jobs_do_not_go_on_with_one_run() {
    // So far apart that no second one comes while the other job starts.
    let args = ["--batch-size", "8", "--checkpoint-steps", "40", "--max-steps", "4000"];
    let place = Place::new();
    let mut child = place.command(&args).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while checkpoints(&place.out).is_empty() {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(5));
    }
    let before = (steps(&place.out).len(), place.json("config.json"));
    let output = place.run(&["--resume", "auto", "--lr", "0.5"]);
    let after = (steps(&place.out).len(), place.json("config.json"));
    let still_runs = child.try_wait().unwrap().is_none();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(still_runs, "the first job ended before the second one came");
    // Its records are as it wrote them.
    assert!(after.0 >= before.0 && after.1 == before.1, "{before:?} {after:?}");
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("checkpoints") && stderr(&output).contains("another"),
        "{}",
        stderr(&output)
    );
}

#[test]
fn without_checkpoints_there_is_no_folder_for_them() {
    let (place, summary) = whole(&["--max-steps", "1", "--batch-size", "8", "--checkpoint-epochs", "0"]);
    assert_eq!(summary.get("checkpoint_pause_seconds"), None);
    assert!(!place.out.join("checkpoints").exists());
    let names: Vec<PathBuf> = place.written();
    assert!(names.iter().any(|name| name.ends_with("model.bpk")));
}

#[test]
fn approximated_gradients_train_and_begin_anew_in_a_resumed_run_which_says_so() {
    let place = Place::new();
    let output = place.run(&["--max-steps", "3", "--batch-size", "8", "--wire", "powersgd:2:1"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(place.json("config.json")["wire"], "powersgd:2:1");
    let output = place.run(&["--resume", "auto", "--max-steps", "4"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(steps(&place.out), [1, 2, 3, 4]);
    assert!(stderr(&output).contains("--wire powersgd:2:1 begins anew"), "{}", stderr(&output));
}
