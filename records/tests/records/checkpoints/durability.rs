//! Checkpoints as the system sees them: in which order they reach the disk, of which a power cut leaves what was flushed,
//! and what a slow disk holds up.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use burn_nccl_records::checkpoint::{CheckpointConfig, Checkpointer};

use super::deciding::ranks;
use super::training::{names, net, open, sgd, state, train};

/// Where the test that is traced saves.
const FOLDER: &str = "BURN_NCCL_RECORDS_TEST_TRACED";
const CALLS: &str = "trace=fsync,fdatasync,rename,renameat,renameat2,link,linkat,unlink,unlinkat,rmdir";

/// What a program asked the system for, with whole paths.
#[derive(Debug, PartialEq)]
enum Call {
    Flush(PathBuf),
    /// A rename, or a hard link, which gives a name too.
    Name(PathBuf, PathBuf),
    Remove(PathBuf),
}

/// A call in a line of `strace -f -y`: `12 unlinkat(7</folder>, "file", 0) = 0`. The end of a call that was interrupted
/// is none, as its beginning has the paths already.
fn parse(line: &str) -> Option<Call> {
    let (name, arguments) = line.split_once(' ')?.1.trim_start().split_once('(')?;
    // Of `7</folder>, "file"`, of `"/folder/file"`, and of `AT_FDCWD</working/folder>, "/folder/file"`.
    let mut paths: Vec<PathBuf> = Vec::new();
    let mut within = None;
    for part in arguments.split(", ") {
        if let Some(name) = part.strip_prefix('"') {
            let name = &name[..name.find('"')?];
            paths.push(within.take().map_or_else(|| name.into(), |folder: PathBuf| folder.join(name)));
        } else if let Some((_, folder)) = part.split_once('<').filter(|_| !part.starts_with('<')) {
            within = Some(folder[..folder.find('>')?].into());
        }
    }
    let mut paths = paths.into_iter();
    match name {
        "fsync" | "fdatasync" => within.map(Call::Flush),
        "unlink" | "unlinkat" | "rmdir" => paths.next().map(Call::Remove),
        _ => Some(Call::Name(paths.next()?, paths.next()?)),
    }
}

/// Asserts that these calls are among `calls`, in this order, and returns those that follow them.
fn after<'a>(mut calls: &'a [Call], expected: &[Call]) -> &'a [Call] {
    for call in expected {
        let at = calls.iter().position(|found| found == call);
        calls = &calls[at.unwrap_or_else(|| panic!("{call:?} is not among {calls:#?}")) + 1..];
    }
    calls
}

/// The one call that gives a file the name `to`: which name it had, and the calls before.
fn named<'a>(calls: &'a [Call], to: &Path) -> (&'a Path, &'a [Call]) {
    let name = |(at, call): (usize, &'a Call)| match call {
        Call::Name(from, found) if found == to => Some((from.as_path(), &calls[..at])),
        _ => None,
    };
    calls.iter().enumerate().find_map(name).unwrap_or_else(|| panic!("no {} in {calls:#?}", to.display()))
}

#[test]
fn all_of_a_checkpoint_is_on_the_disk_before_it_has_its_name_and_before_another_goes() {
    let test = "all_of_a_checkpoint_is_on_the_disk_before_it_has_its_name_and_before_another_goes";
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("checkpoints");
    let Some(log) = trace(test, &["-e", CALLS], "saves_a_step_twice", &at) else { return };
    assert_eq!(names(&at), ["step-1"]);
    let calls: Vec<Call> = log.lines().filter_map(parse).collect();
    let step = at.join("step-1");
    let mut rest = &calls[..];
    for _ in 0..2 {
        let (staged, before) = named(rest, &step);
        assert_is_on_disk(staged, before);
        assert_eq!(removed_outside(staged, before), 0, "{before:#?}");
        let after_rename = after(rest, &[Call::Name(staged.into(), step.clone())]);
        rest = after(after_rename, &[Call::Flush(at.clone())]);
        // The replaced one goes when its successor's name is on the disk.
        assert_eq!(removed_outside(staged, after_rename), removed_outside(staged, rest), "{after_rename:#?}");
    }
    assert!(removed_outside(&at.join("none"), rest) > 0, "the replaced one goes: {rest:#?}");
}

/// What `strace` with `options` says of an ignored test of this file, which has `folder`; none where it cannot be used.
fn trace(test: &str, options: &[&str], traced: &str, folder: &Path) -> Option<String> {
    let log = folder.with_extension("log");
    let strace = |program: &Path| {
        let mut command = Command::new("strace");
        command.args(["-f", "-y", "-s", "4096"]).args(options).arg("-o").arg(&log).arg(program);
        command
    };
    if !strace(Path::new("true")).output().is_ok_and(|output| output.status.success()) {
        crate::skip(test, "there is no strace, or it may not trace");
        return None;
    }
    let mut command = strace(&std::env::current_exe().unwrap());
    command.args(["--exact", "--ignored", "--nocapture", &format!("checkpoints::durability::{traced}")]);
    let output = command.env(FOLDER, folder).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{output:?}");
    Some(std::fs::read_to_string(log).unwrap())
}

/// Each file is flushed before it has its name, all have theirs before the manifest, and the folder is flushed after.
fn assert_is_on_disk(staged: &Path, calls: &[Call]) {
    let manifest = staged.join("manifest.json");
    let (unfinished, before) = named(calls, &manifest);
    let flush = |path: &Path| Call::Flush(path.into());
    let sealed = Call::Name(unfinished.into(), manifest);
    after(calls, &[flush(unfinished), sealed, flush(staged)]);
    for name in ["model.bpk", "optimizer.bpk", "state.json"] {
        let (unfinished, written) = named(before, &staged.join(name));
        after(written, &[flush(unfinished)]);
    }
}

/// How many files and folders are removed, but for those that never had their name.
fn removed_outside(staged: &Path, calls: &[Call]) -> usize {
    let is_one = |call: &&Call| matches!(call, Call::Remove(path) if !path.starts_with(staged));
    calls.iter().filter(is_one).count()
}

/// Taking a folder may last: a lock on a disk far away, and leftovers to remove.
#[test]
fn to_take_a_folder_may_last_longer_than_a_collective_may() {
    let test = "to_take_a_folder_may_last_longer_than_a_collective_may";
    let folder = tempfile::tempdir().unwrap();
    let slow = ["--seccomp-bpf", "-e", "trace=flock", "-e", "inject=flock:delay_enter=1600000"];
    let Some(log) = trace(test, &slow, "takes_a_folder", &folder.path().join("checkpoints")) else { return };
    assert!(log.contains("(DELAYED)"), "{log}");
}

#[test]
#[ignore = "runs in a process of its own, which is slowed down"]
fn takes_a_folder() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    ranks(Duration::from_millis(400), |_, group| {
        Checkpointer::open(&folder, CheckpointConfig::default(), Some(group)).unwrap().finish().unwrap();
    });
}

#[test]
#[ignore = "runs in a process of its own, which is traced"]
fn saves_a_step_twice() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let mut optimizer = sgd();
    let model = train(net(1), &mut optimizer, 0..1);
    let mut checkpointer = open(Path::new(&folder), CheckpointConfig::default());
    for _ in 0..2 {
        checkpointer.save(&model, &optimizer, state(1)).unwrap();
        checkpointer.wait().unwrap();
    }
    checkpointer.finish().unwrap();
}
