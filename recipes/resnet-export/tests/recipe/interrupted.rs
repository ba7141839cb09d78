use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use burn_nccl_models::Depth;
use burn_nccl_records::Manifest;

use crate::fixtures::*;

const EXPORT: &str = "export --from model.bpk --to out --data digits --image-size 8 --test-images 0";

/// Whether the export in `out` is whole.
fn is_whole(out: &Path) -> bool {
    Manifest::read(out).unwrap().verify(out).is_intact() && out.join("model.onnx").is_file()
}

#[test]
fn a_kill_leaves_the_folder_absent_or_whole_and_the_next_export_cleans_up() {
    let folder = folder();
    let path = folder.path();
    network(path, Depth::ResNet18, 10);
    let started = Instant::now();
    succeeds(path, EXPORT);
    let whole = started.elapsed();
    fs::remove_dir_all(path.join("out")).unwrap();
    let (mut before, mut after) = (0, 0);
    // Over all of its time, and a little more.
    for part in 1..=12 {
        let mut child = command(path, EXPORT).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(whole * part / 11);
        child.kill().unwrap();
        child.wait().unwrap();
        if path.join("out").exists() {
            assert!(is_whole(&path.join("out")), "killed after {part} of 11 parts");
            fs::remove_dir_all(path.join("out")).unwrap();
            after += 1;
        } else {
            before += 1;
        }
    }
    assert!(before > 0, "{before} {after}");
    succeeds(path, EXPORT);
    assert_eq!(entries(path), ["model.bpk", "out"]);
}

#[test]
fn a_kill_between_two_files_leaves_nothing_under_the_name() {
    let folder = folder();
    let path = folder.path();
    network(path, Depth::ResNet18, 10);
    let mut child = command(path, EXPORT).stdout(Stdio::null()).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    // Its hidden folder has some files and not all.
    while !entries(path).iter().any(|name| path.join(name).join("labels.txt").exists()) {
        assert!(Instant::now() < deadline && child.try_wait().unwrap().is_none());
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!path.join("out").exists());
    assert_eq!(entries(path).iter().filter(|name| name.starts_with(".out.")).count(), 2);
    succeeds(path, EXPORT);
    assert!(is_whole(&path.join("out")));
    assert_eq!(entries(path), ["model.bpk", "out"]);
}

/// As a writer leaves it that is killed while it replaces `out` on a system that cannot exchange two names.
fn set_aside(path: &Path) {
    fs::rename(path.join("out"), path.join(".out.1-0.tmp.old")).unwrap();
    fs::write(path.join(".out.1-0.tmp.lock"), "").unwrap();
}

#[test]
fn an_export_that_a_killed_writer_has_set_aside_comes_back_or_goes() {
    let folder = folder();
    let path = folder.path();
    network(path, Depth::ResNet18, 10);
    succeeds(path, EXPORT);
    // Before the new one had the name: the old one has it again, and is not replaced unasked.
    set_aside(path);
    fs::create_dir(path.join(".out.1-0.tmp")).unwrap();
    fs::write(path.join(".out.1-0.tmp/model.onnx"), "new").unwrap();
    let [_, cause, _] = refuses(path, EXPORT, 2);
    assert_eq!(cause, "it is there already");
    assert!(is_whole(&path.join("out")));
    assert_eq!(entries(path), ["model.bpk", "out"]);

    // After it: the new one is there, and the old one is not needed any more.
    set_aside(path);
    fs::create_dir(path.join("out")).unwrap();
    fs::write(path.join("out/model.onnx"), "new").unwrap();
    refuses(path, EXPORT, 2);
    assert_eq!(fs::read(path.join("out/model.onnx")).unwrap(), b"new");
    assert_eq!(entries(path), ["model.bpk", "out"]);
}

#[test]
fn an_export_is_replaced_only_when_that_is_asked_for_and_nothing_else_ever() {
    let folder = folder();
    let path = folder.path();
    network(path, Depth::ResNet18, 10);
    succeeds(path, EXPORT);
    let first = manifest(&path.join("out"));
    let [_, cause, remedy] = refuses(path, EXPORT, 2);
    assert_eq!(cause, "it is there already");
    assert!(remedy.contains("--overwrite"), "{remedy}");
    network(path, Depth::ResNet18, 10);
    succeeds(path, &format!("{EXPORT} --overwrite"));
    let second = manifest(&path.join("out"));
    assert_ne!(first["metrics"]["parameters_sha256"], second["metrics"]["parameters_sha256"]);
    assert!(is_whole(&path.join("out")));
    assert_eq!(entries(path), ["model.bpk", "out"]);

    fs::write(path.join("out/notes.txt"), "mine").unwrap();
    let [_, cause, _] = refuses(path, &format!("{EXPORT} --overwrite"), 2);
    assert_eq!(cause, "it is no export: it holds notes.txt");
    assert_eq!(fs::read_to_string(path.join("out/notes.txt")).unwrap(), "mine");
    let [_, cause, _] = refuses(path, &EXPORT.replace("--to out", "--to model.bpk --overwrite"), 2);
    assert_eq!(cause, "it is a file or a link");
    fs::remove_file(path.join("out/notes.txt")).unwrap();
    std::os::unix::fs::symlink("out", path.join("link")).unwrap();
    for link in ["link", "link/", "link/."] {
        let [_, cause, _] =
            refuses(path, &EXPORT.replace("--to out", &format!("--to {link} --overwrite")), 2);
        assert_eq!(cause, "it is a file or a link", "{link}");
    }
    let [_, cause, _] = refuses(path, &EXPORT.replace("--to out", "--to .. --overwrite"), 2);
    assert!(cause.contains("name of a folder"), "{cause}");
}

#[test]
fn a_failed_export_keeps_the_one_that_it_was_to_replace() {
    let folder = folder();
    let path = folder.path();
    network(path, Depth::ResNet18, 10);
    succeeds(path, EXPORT);
    let first = manifest(&path.join("out"));
    refuses(path, &format!("{EXPORT} --overwrite --tolerance 0"), 1);
    assert_eq!(manifest(&path.join("out")), first);
    assert!(is_whole(&path.join("out")));
    assert_eq!(entries(path), ["model.bpk", "out"]);
}

#[test]
fn a_disk_without_space_is_an_error_and_leaves_nothing() {
    let folder = folder();
    let path = folder.path();
    network(path, Depth::ResNet18, 10);
    // No file may be larger than 20 MiB; the weights have 44.
    let script = format!("trap '' XFSZ; ulimit -f 20480; exec \"$0\" {EXPORT}");
    let output = Command::new("bash")
        .args(["-c", &script, env!("CARGO_BIN_EXE_recipe-resnet-export")])
        .current_dir(path)
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("out/model.safetensors") && stderr.contains("File too large"), "{stderr}");
    assert_eq!(entries(path), ["model.bpk"]);
}

#[test]
fn a_folder_that_cannot_be_written_is_named() {
    let folder = folder();
    network(folder.path(), Depth::ResNet18, 10);
    let [error, ..] = refuses(folder.path(), &EXPORT.replace("--to out", "--to /proc/exported"), 1);
    assert_eq!(error, "cannot create /proc/exported");
}
