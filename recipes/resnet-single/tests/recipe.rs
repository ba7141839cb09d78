//! The built recipe, run as a user runs it.

use std::fs;
use std::process::Command;

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
