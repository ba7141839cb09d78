//! What may go wrong while a file is saved, and what is left then.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use burn::store::burn_pack::{self, Tensor as PackTensor};
use burn::tensor::{Bytes, DType, Device};
use burn_nccl_records::{Error, SaveDType, SaveFormat, SaveOptions, save, save_tensors, write_file};
use tempfile::tempdir;

use crate::saving::{net, quick};

/// Large enough that a save takes some milliseconds.
const VALUES: usize = 4 << 20;

/// Where a test that runs in a process of its own finds its folder.
const FOLDER: &str = "BURN_NCCL_RECORDS_TEST_FOLDER";

fn filled(value: u8) -> Vec<PackTensor> {
    let bytes = Bytes::from_bytes_vec(vec![value; VALUES]);
    vec![PackTensor::new("t".into(), DType::U8, [VALUES], None, bytes)]
}

/// The one value that a whole file of [`filled`] holds.
fn value(path: &Path) -> u8 {
    let mut tensors = burn_pack::Reader::from_file_exact(path).unwrap().into_tensors().unwrap();
    let bytes = tensors.remove(0).into_bytes().unwrap();
    assert_eq!(bytes.len(), VALUES);
    assert!(bytes.iter().all(|byte| *byte == bytes[0]), "the file mixes two saves");
    bytes[0]
}

fn files(folder: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// This program again, with only one of its ignored tests.
fn child(test: &str, folder: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args([
        &format!("saving_faults::{test}"),
        "--exact",
        "--ignored",
        "--nocapture",
        "--test-threads=1",
    ]);
    command.env(FOLDER, folder).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The folder of a test that [`child`] runs; none where someone runs all ignored tests.
fn folder_from_parent() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

// C11: save not atomic, temporary names collide.
#[test]
fn a_writer_killed_at_any_moment_leaves_a_whole_file() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.bpk");
    let mut seen = BTreeSet::new();
    for round in 0..25_u64 {
        save_tensors(filled(0), &path, &quick()).unwrap();
        let mut writer = child("saves_for_ever", folder.path()).spawn().unwrap();
        let started = Instant::now();
        while value(&path) == 0 && started.elapsed() < Duration::from_secs(60) {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(Duration::from_micros(round * round * 97 % 20_000));
        writer.kill().unwrap();
        writer.wait().unwrap();
        seen.insert(value(&path));
    }
    assert!(seen.iter().all(|value| [1, 2].contains(value)), "{seen:?}");
    save_tensors(filled(3), &path, &quick()).unwrap();
    assert_eq!(value(&path), 3);
    assert_eq!(files(folder.path()), ["model.bpk"], "what the killed ones left is swept");
}

#[test]
#[ignore = "runs in a process of its own, which is killed"]
fn saves_for_ever() {
    let Some(folder) = folder_from_parent() else { return };
    for value in (1..=2).cycle() {
        save_tensors(filled(value), folder.join("model.bpk"), &quick()).unwrap();
    }
}

// C11: two jobs in one folder.
#[test]
fn two_writers_of_one_name_do_not_clash() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.bpk");
    std::thread::scope(|scope| {
        for writer in 1..=2 {
            let path = &path;
            scope.spawn(move || {
                for _ in 0..10 {
                    save_tensors(filled(writer), path, &quick()).unwrap();
                    assert!([1, 2].contains(&value(path)));
                }
            });
        }
    });
    assert_eq!(files(folder.path()), ["model.bpk"]);
}

#[test]
fn a_slow_writer_is_not_disturbed_by_one_that_comes_and_goes() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.bpk");
    let (started, has_started) = mpsc::channel();
    let (go_on, may_go_on) = mpsc::channel::<()>();
    let may_go_on = std::sync::Mutex::new(may_go_on);
    let slow = PackTensor::deferred("t".into(), DType::U8, [VALUES], None, VALUES, move || {
        started.send(()).unwrap();
        may_go_on.lock().unwrap().recv_timeout(Duration::from_secs(60)).unwrap();
        Ok(Bytes::from_bytes_vec(vec![7; VALUES]))
    });
    let writer = {
        let path = path.clone();
        std::thread::spawn(move || save_tensors(vec![slow], path, &quick()))
    };
    has_started.recv_timeout(Duration::from_secs(60)).unwrap();
    let temporary = files(folder.path());
    save_tensors(filled(8), &path, &quick()).unwrap();
    assert_eq!(value(&path), 8);
    assert!(
        temporary.iter().all(|name| files(folder.path()).contains(name)),
        "a living writer keeps its file"
    );
    go_on.send(()).unwrap();
    writer.join().unwrap().unwrap();
    assert_eq!(value(&path), 7, "the last to end stays");
    assert_eq!(files(folder.path()), ["model.bpk"]);
}

#[test]
fn leftovers_of_the_same_name_are_swept_and_nothing_else() {
    let folder = tempdir().unwrap();
    let others = [".model.bpk.notes.tmp", ".model.bpk.1-x.tmp", ".other.bpk.1-0.tmp", "model.bpk.1-0.tmp"];
    for name in others.iter().chain([&".model.bpk.1-0.tmp"]) {
        fs::write(folder.path().join(name), "half").unwrap();
    }
    fs::write(folder.path().join("kept"), "kept").unwrap();
    symlink("kept", folder.path().join(".model.bpk.2-0.tmp")).unwrap();
    save_tensors(filled(1), folder.path().join("model.bpk"), &quick()).unwrap();
    let mut expected: Vec<&str> = others.to_vec();
    expected.extend([".model.bpk.2-0.tmp", "kept", "model.bpk"]);
    expected.sort();
    assert_eq!(files(folder.path()), expected);
}

#[test]
fn an_existing_file_is_refused_before_anything_is_read_or_written() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.bpk");
    fs::write(&path, "mine").unwrap();
    let untouched = PackTensor::deferred("t".into(), DType::U8, [1], None, 1, || panic!("read for nothing"));
    let error = save_tensors(vec![untouched], &path, &quick().with_overwrite(false)).unwrap_err();
    assert!(matches!(&error, Error::Exists { path: refused } if *refused == path), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"mine");
    assert_eq!(files(folder.path()), ["model.bpk"]);
}

#[test]
fn a_file_that_appears_during_a_save_is_not_overwritten_either() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.bpk");
    let other = path.clone();
    let tensor = PackTensor::deferred("t".into(), DType::U8, [1], None, 1, move || {
        fs::write(&other, "other").unwrap();
        Ok(Bytes::from_bytes_vec(vec![1]))
    });
    let error = save_tensors(vec![tensor], &path, &quick().with_overwrite(false)).unwrap_err();
    assert!(matches!(error, Error::Exists { .. }), "{error}");
    assert_eq!(fs::read(&path).unwrap(), b"other");
    assert_eq!(files(folder.path()), ["model.bpk"]);
    save_tensors(filled(1), folder.path().join("new.bpk"), &quick().with_overwrite(false)).unwrap();
    assert_eq!(files(folder.path()), ["model.bpk", "new.bpk"]);
}

#[test]
fn a_folder_a_device_and_a_path_without_a_name_are_refused() {
    let folder = tempdir().unwrap();
    fs::create_dir(folder.path().join("folder")).unwrap();
    for path in [folder.path().join("folder"), "/dev/null".into(), "/".into(), folder.path().join("..")] {
        let error = save_tensors(filled(1), &path, &quick()).unwrap_err();
        assert!(matches!(error, Error::NotAFile { .. }), "{error}");
    }
    fs::write(folder.path().join("file"), "").unwrap();
    let sharded = quick().with_format(SaveFormat::Safetensors).with_max_shard_bytes(10);
    let error = save_tensors(filled(1), folder.path().join("file"), &sharded).unwrap_err();
    assert!(matches!(error, Error::NotAFolder { .. }), "{error}");
    assert_eq!(files(folder.path()), ["file", "folder"]);
}

#[test]
fn a_path_below_a_file_or_in_no_folder_is_an_error_of_the_system() {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("file"), "mine").unwrap();
    for path in ["file/model.bpk", "nowhere/model.bpk"] {
        let error = save_tensors(filled(1), folder.path().join(path), &quick()).unwrap_err();
        assert!(matches!(error, Error::File { .. }), "{error}");
    }
    assert_eq!(fs::read(folder.path().join("file")).unwrap(), b"mine");
}

#[test]
fn a_tensor_that_fails_on_its_device_is_named_and_leaves_the_old_file() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("model.bpk");
    save_tensors(filled(1), &path, &quick()).unwrap();
    let lost = || burn_pack::Error::ValidationError("the device is gone".into());
    let broken = PackTensor::deferred("b".into(), DType::U8, [1], None, 1, move || Err(lost()));
    let error = save_tensors([filled(2), vec![broken]].concat(), &path, &quick()).unwrap_err();
    assert!(matches!(&error, Error::Tensor { tensor, .. } if tensor == "b"), "{error}");
    assert_eq!(value(&path), 1);
    assert_eq!(files(folder.path()), ["model.bpk"]);
}

#[test]
fn a_replaced_file_keeps_its_permissions_and_a_link_is_not_followed() {
    let folder = tempdir().unwrap();
    let [path, target, link] = ["model.bpk", "target", "link"].map(|name| folder.path().join(name));
    fs::write(&path, "").unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    save_tensors(filled(1), &path, &SaveOptions::default()).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    fs::write(&target, "mine").unwrap();
    symlink(&target, &link).unwrap();
    save_tensors(filled(2), &link, &quick()).unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"mine");
    assert_eq!(value(&link), 2);
}

#[test]
fn a_small_file_is_written_through_no_planted_link() {
    let folder = tempdir().unwrap();
    let [outside, path] = ["outside", "state.json"].map(|name| folder.path().join(name));
    let process = std::process::id();
    // Every name that this process may take next.
    let planted = |count: usize| folder.path().join(format!(".state.json.{process}-{count}.tmp"));
    (0..200).for_each(|count| symlink(&outside, planted(count)).unwrap());
    symlink(&outside, &path).unwrap();
    let error = write_file(&path, "new", true, false).unwrap_err();
    assert!(matches!(error, Error::Exists { .. }), "{error}");
    write_file(&path, "new", true, true).unwrap();
    assert!(!outside.exists());
    assert!(fs::symlink_metadata(&path).unwrap().is_file());
    assert_eq!(fs::read(&path).unwrap(), b"new");
    assert_eq!(files(folder.path()).len(), 201, "nothing else is left");
}

#[test]
fn a_relative_path_is_saved_where_the_process_works() {
    let folder = tempdir().unwrap();
    let output =
        child("saves_to_a_relative_path", folder.path()).current_dir(folder.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(value(&folder.path().join("model.bpk")), 4);
}

#[test]
#[ignore = "runs in a process of its own, for its working directory"]
fn saves_to_a_relative_path() {
    if folder_from_parent().is_some() {
        save_tensors(filled(4), "model.bpk", &SaveOptions::default()).unwrap();
    }
}

/// Runs an ignored test of this file in a mount namespace, on a file system that `mount` puts over `folder`.
fn on_mounted(mount: &str, test: &str, folder: &Path) -> Option<std::process::Output> {
    let shell = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--map-root-user", "sh", "-ec", script]).env("AT", folder);
        command
    };
    if !shell(mount).output().is_ok_and(|output| output.status.success()) {
        crate::skip(test, "this system lets no user mount");
        return None;
    }
    let inner = child(test, folder);
    let mut command = shell(&format!("{mount}; exec \"$@\""));
    command.arg("sh").arg(inner.get_program()).args(inner.get_args()).env(FOLDER, folder);
    Some(command.output().unwrap())
}

#[test]
fn a_full_disk_is_an_error_and_leaves_the_old_file() {
    let folder = tempdir().unwrap();
    let mount = "mount -t tmpfs -o size=6m tmpfs \"$AT\"";
    if let Some(output) = on_mounted(mount, "fills_the_disk", folder.path()) {
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
    }
}

#[test]
#[ignore = "runs in a process of its own, on a small disk"]
fn fills_the_disk() {
    let Some(folder) = folder_from_parent() else { return };
    let path = folder.join("model.bpk");
    save_tensors(filled(1), &path, &quick()).unwrap();
    // Squares modulo a prime, which zstd finds nothing in.
    let noise = (0..VALUES as u64).map(|i| ((i * i % 4_294_967_291) >> 11) as u8).collect();
    let noise = PackTensor::new("t".into(), DType::U8, [VALUES], None, Bytes::from_bytes_vec(noise));
    let compressed = quick().with_compression(burn_nccl_records::Zstd { level: 1, threads: 1 });
    for (tensors, options) in [(filled(2), quick()), (vec![noise], compressed)] {
        let error = save_tensors(tensors, &path, &options).unwrap_err();
        assert!(error.to_string().contains("No space left on device"), "{error}");
        assert!(error.to_string().contains("model.bpk"), "{error}");
        assert_eq!(value(&path), 1);
        assert_eq!(files(&folder), ["model.bpk"]);
    }
}

#[test]
fn a_read_only_folder_is_an_error() {
    let folder = tempdir().unwrap();
    save_tensors(filled(1), folder.path().join("model.bpk"), &quick()).unwrap();
    let mount = "mount --bind \"$AT\" \"$AT\"; mount -o remount,bind,ro \"$AT\"";
    if let Some(output) = on_mounted(mount, "saves_to_a_read_only_folder", folder.path()) {
        assert!(output.status.success(), "{output:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"), "{output:?}");
    }
}

#[test]
#[ignore = "runs in a process of its own, on a file system that is read only"]
fn saves_to_a_read_only_folder() {
    let Some(folder) = folder_from_parent() else { return };
    let path = folder.join("model.bpk");
    for options in [quick(), quick().with_dtype(SaveDType::F16)] {
        let error = save(&net(1, &Device::flex()), &path, &options).unwrap_err();
        assert!(error.to_string().contains("Read-only file system"), "{error}");
        assert_eq!(value(&path), 1);
    }
}
