//! The built recipe, run as a user runs it.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use socket2::{Domain, Protocol, Socket, Type};
use tempfile::TempDir;

/// A run folder for one test, removed with it.
struct Place {
    _folder: TempDir,
    out: PathBuf,
}

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("run");
        Self { _folder: folder, out }
    }

    fn run(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_recipe-resnet-amp"))
            .args(["--out", self.out.to_str().unwrap(), "--device", "cpu", "--model", "resnet18"])
            .args(["--progress", "plain"])
            .args(args)
            .output()
            .unwrap()
    }

    fn summary(&self) -> Value {
        serde_json::from_slice(&fs::read(self.out.join("summary.json")).unwrap()).unwrap()
    }

    fn steps(&self) -> Vec<Value> {
        let metrics = fs::read_to_string(self.out.join("metrics.jsonl")).unwrap();
        metrics.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A free port that rank 0 can listen on and the system gives to nobody else while the socket lives.
fn hold_free_port() -> (Socket, String) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP)).unwrap();
    socket.set_reuse_address(true).unwrap();
    socket.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    let port = socket.local_addr().unwrap().as_socket().expect("an IPv4 address").port().to_string();
    (socket, port)
}

#[test]
fn two_ranks_train_in_f16_and_log_the_loss_scale() {
    let place = Place::new();
    let args = ["--precision", "f16", "--max-steps", "2", "--batch-size", "4", "--accumulate", "2"];
    let output = place.run(&[&args[..], &["--growth-interval", "1", "--init-scale", "1024"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let summary = place.summary();
    assert_eq!((&summary["precision"], &summary["world_size"]), (&"f16".into(), &2.into()));
    // 4 images x 2 batches x 2 ranks.
    assert_eq!((&summary["global_batch_size"], &summary["accumulate"]), (&16.into(), &2.into()));
    assert!(String::from_utf8_lossy(&output.stdout).contains("in f16, global batch 16 (4 a rank x 2"));
    // No overflow, and the scale doubles after each step.
    let scales: Vec<f64> = place.steps().iter().map(|step| step["loss_scale"].as_f64().unwrap()).collect();
    assert_eq!(scales, [1024.0, 2048.0]);
    assert_eq!((&summary["loss_scale_final"], &summary["skipped_steps"]), (&4096.0.into(), &0.into()));
}

#[test]
fn a_scale_that_overflows_skips_steps_and_comes_down() {
    let place = Place::new();
    let common = ["--precision", "f16", "--batch-size", "4", "--nproc-per-node", "1"];
    // Far beyond the 65504 of f16 in the first gradient, for three steps.
    let output = place.run(&[&common[..], &["--init-scale", "1e30", "--max-steps", "3"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(place.summary()["skipped_steps"], 3);
    let scales: Vec<f64> = place.steps().iter().map(|step| step["loss_scale"].as_f64().unwrap()).collect();
    for (found, expected) in scales.iter().zip([1e30, 5e29, 2.5e29]) {
        assert!((found / expected - 1.0).abs() < 1e-6, "{scales:?}");
    }
    assert!(place.steps().iter().all(|step| step["skipped"] == true && step["loss"].is_number()));
    // The warm-up waits for a step that counts.
    let rates: Vec<f64> = place.steps().iter().map(|step| step["lr"].as_f64().unwrap()).collect();
    assert!(rates[0] > 0.0 && rates.iter().all(|&rate| rate == rates[0]), "{rates:?}");
}

#[test]
fn bf16_needs_no_loss_scale_and_stays_close_to_f32() {
    let run = |args: &[&str]| {
        let place = Place::new();
        let common = ["--max-steps", "2", "--batch-size", "8", "--clip-grad-norm", "1"];
        let output = place.run(&[&common[..], args].concat());
        assert!(output.status.success(), "{}", stderr(&output));
        place.steps()
    };
    let (half, full) = (run(&["--precision", "bf16"]), run(&["--precision", "f32"]));
    for (half, full) in half.iter().zip(&full) {
        assert!(half.get("loss_scale").is_none() && half.get("skipped").is_none(), "{half}");
        // bf16 has 8 bits of precision, and errors of layers average out.
        for key in ["loss", "grad_norm"] {
            let (half, full) = (half[key].as_f64().unwrap(), full[key].as_f64().unwrap());
            assert!((half - full).abs() < 0.05 * full, "{key}: {half} and {full}");
            assert_ne!(half, full, "{key}");
        }
    }
}

#[test]
fn a_path_that_names_no_layer_is_refused_with_those_that_are_near() {
    let place = Place::new();
    let output = place.run(&["--full-precision", "fd", "--max-steps", "1"]);
    let text = stderr(&output);
    assert!(!output.status.success() && text.contains("`fd`") && text.contains("fc"), "{text}");
    assert!(!text.contains("panicked") && !place.out.join("summary.json").exists(), "{text}");
}

#[test]
fn small_batches_are_warned_of_and_synchronised_statistics_named_as_the_remedy() {
    let warning = |args: &[&str]| stderr(&Place::new().run(&[&["--max-steps", "1"], args].concat()));
    let text = warning(&["--batch-size", "8", "--precision", "f32"]);
    assert!(text.contains("8 images of each rank") && text.contains("--norm sync-batch"), "{text}");
    let text = warning(&["--batch-size", "8", "--precision", "f32", "--norm", "sync-batch"]);
    assert!(!text.contains("WARN"), "{text}");
}

#[test]
fn windows_longer_than_an_epoch_are_cut_to_it_and_the_learning_rate_with_them() {
    let place = Place::new();
    // 1498 training images on one rank: 5 batches of 256.
    let args = ["--accumulate", "1000", "--batch-size", "256", "--nproc-per-node", "1", "--precision", "f32"];
    let output = place.run(&[&args[..], &["--max-steps", "1", "--warmup-epochs", "0"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("--accumulate is 5 and not 1000"), "{}", stderr(&output));
    assert_eq!(place.summary()["global_batch_size"], 5 * 256);
    assert_eq!(place.steps()[0]["lr"], 0.1 * 5.0);
}

#[test]
fn a_configuration_repeats_a_run_on_another_number_of_ranks_than_the_default() {
    let (first, again) = (Place::new(), Place::new());
    let args = ["--precision", "f16", "--max-steps", "2", "--batch-size", "4", "--accumulate", "2"];
    let output = first.run(&[&args[..], &["--norm", "sync-batch", "--nproc-per-node", "3"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let output = again.run(&["--config", first.out.join("config.json").to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(again.summary()["world_size"], 3);
    assert_eq!(first.summary()["parameters_sha256"], again.summary()["parameters_sha256"]);
}

#[test]
fn ranks_with_other_options_are_refused_and_the_option_is_named() {
    let (_held, port) = hold_free_port();
    let ranks: Vec<_> = ["0.1", "0.2"]
        .into_iter()
        .enumerate()
        .map(|(rank, lr)| {
            let place = Place::new();
            let child = Command::new(env!("CARGO_BIN_EXE_recipe-resnet-amp"))
                .args(["--out", place.out.to_str().unwrap(), "--device", "cpu", "--model", "resnet18"])
                .args(["--max-steps", "1", "--lr", lr])
                .envs([("WORLD_SIZE", "2"), ("LOCAL_WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1")])
                .envs([("MASTER_PORT", port.as_str())])
                .envs([("RANK", rank.to_string()), ("LOCAL_RANK", rank.to_string())])
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap();
            (place, child)
        })
        .collect();
    for (_place, child) in ranks {
        let output = child.wait_with_output().unwrap();
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        assert!(text.contains("rank 1") && text.contains("--lr is 0.2, 0.1 on rank 0"), "{text}");
    }
}

#[test]
fn a_resumed_run_has_the_bits_of_one_that_was_not_with_loss_scale_and_synchronised_statistics() {
    let (whole, branch) = (Place::new(), Place::new());
    let args = ["--precision", "f16", "--norm", "sync-batch", "--batch-size", "4", "--accumulate", "2"];
    let scale = ["--init-scale", "1e30", "--growth-interval", "2"];
    let end = ["--max-steps", "4", "--checkpoint-steps", "2", "--keep-last", "9"];
    let output = whole.run(&[&args[..], &scale, &end].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    // The first steps overflow, so that the checkpoint holds a scale and a count of its own.
    let checkpoint = whole.out.join("checkpoints/step-2");
    let file: Value = serde_json::from_slice(&fs::read(checkpoint.join("state.json")).unwrap()).unwrap();
    let state = &file["state"];
    assert_eq!(
        (&state["scaler"]["_growth_tracker"], &state["extra"]["skipped_steps"]),
        (&0.into(), &2.into())
    );
    let saved = state["scaler"]["scale"].as_f64().unwrap();
    assert!((saved / 2.5e29 - 1.0).abs() < 1e-6, "{saved}");

    let output = branch.run(&["--resume", checkpoint.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let (expected, resumed) = (whole.summary(), branch.summary());
    for key in ["parameters_sha256", "loss_scale_final", "skipped_steps", "test_accuracy", "steps"] {
        assert_eq!(resumed[key], expected[key], "{key}");
    }
    // Speeds differ, everything else of the later steps is equal too.
    for (resumed, expected) in branch.steps().iter().zip(whole.steps()) {
        for key in ["step", "loss", "lr", "loss_scale", "skipped"] {
            assert_eq!(resumed[key], expected[key], "{key} of {expected}");
        }
    }
}

#[test]
fn a_scale_that_has_grown_is_gone_on_with() {
    let (whole, branch) = (Place::new(), Place::new());
    let args = ["--precision", "f16", "--batch-size", "4", "--growth-interval", "2", "--init-scale", "1024"];
    let output = whole
        .run(&[&args[..], &["--max-steps", "6", "--checkpoint-steps", "3", "--keep-last", "9"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    // Grown once after two steps, and one step towards the next time.
    let output = branch.run(&["--resume", whole.out.join("checkpoints/step-3").to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(branch.summary()["parameters_sha256"], whole.summary()["parameters_sha256"]);
    let scales: Vec<f64> = branch.steps().iter().map(|step| step["loss_scale"].as_f64().unwrap()).collect();
    assert_eq!(scales, [1024.0, 1024.0, 2048.0, 2048.0, 4096.0, 4096.0]);

    // When it grows is an option, which counts more than what the checkpoint says.
    let checkpoint = whole.out.join("checkpoints/step-3");
    let slower = Place::new();
    let output = slower.run(&["--resume", checkpoint.to_str().unwrap(), "--growth-interval", "100"]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(slower.summary()["loss_scale_final"], 2048.0);
}
