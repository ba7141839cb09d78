//! Which checkpoint a resume takes.

use std::fs::{self, File};
use std::path::Path;

use burn_nccl_records::checkpoint::{Checkpoint, CheckpointConfig, Found, find};
use burn_nccl_records::{Error, Manifest};

use super::training::{at, names, net, open, saved, sgd, state};

fn all() -> CheckpointConfig {
    CheckpointConfig { keep_last: 99, ..CheckpointConfig::default() }
}

/// Describes the files of a checkpoint anew, as someone does who means to deceive.
fn seal(folder: &Path) {
    let names: Vec<String> =
        Manifest::read(folder).unwrap().files.into_iter().map(|file| file.name).collect();
    Manifest::describe(folder, &names).unwrap().write(folder).unwrap();
}

#[test]
fn steps_are_numbers_and_not_text() {
    let folder = saved(&[(8, None), (9, None), (10, None)], all());
    assert_eq!(find(folder.path()).unwrap(), Found { newest: Some(at(folder.path(), 10)), broken: vec![] });
}

#[test]
fn nothing_is_found_where_nothing_is() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().to_path_buf(), folder.path().join("missing")] {
        assert_eq!(find(path).unwrap(), Found::default());
    }
    fs::write(folder.path().join("file"), "").unwrap();
    assert!(matches!(find(folder.path().join("file")), Err(Error::File { .. })));
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert!(matches!(&error, Error::NoCheckpoint { .. }), "{error}");
}

#[test]
fn each_broken_checkpoint_is_skipped_and_explained() {
    let folder = saved(&[(1, None), (2, None)], all());
    let newest = at(folder.path(), 2);
    let damages: [(&dyn Fn(), &str); 12] = [
        (
            &|| fs::remove_file(newest.join("manifest.json")).unwrap(),
            "no manifest.json, so that it was never finished",
        ),
        (&|| fs::write(newest.join("manifest.json"), "{").unwrap(), "manifest.json is not valid"),
        (
            &|| fs::write(newest.join("manifest.json"), r#"{"files":[]}"#).unwrap(),
            "manifest.json lacks model.bpk",
        ),
        (&|| fs::remove_file(newest.join("model.bpk")).unwrap(), "model.bpk is missing"),
        (&|| truncate(&newest.join("optimizer.bpk")), "optimizer.bpk has "),
        (&|| flip(&newest.join("model.bpk")), "model.bpk: altered"),
        (&|| fs::remove_dir_all(&newest).and_then(|()| fs::create_dir(&newest)).unwrap(), "no manifest.json"),
        (&|| write_state(&newest, "{"), "state.json is not valid"),
        (
            &|| write_state(&newest, r#"{"version":9,"state":{}}"#),
            "it is of version 9 and this program reads 1",
        ),
        (
            &|| write_state(&newest, r#"{"version":1,"state":{"step":7,"epoch":0}}"#),
            "its state is that of step 7",
        ),
        (&|| link(&newest.join("model.bpk"), &at(folder.path(), 1).join("model.bpk")), "model.bpk is a link"),
        (&|| link(&newest.join("manifest.json"), &at(folder.path(), 1).join("manifest.json")), "is a link"),
    ];
    for (damage, why) in damages {
        let copy = tempfile::tempdir().unwrap();
        copy_folder(&newest, &copy.path().join("copy"));
        damage();
        let found = find(folder.path()).unwrap();
        assert_eq!(found.newest, Some(at(folder.path(), 1)), "{why}");
        let [broken] = &found.broken[..] else { panic!("{found:?}") };
        assert!(broken.path == newest && broken.why.contains(why), "{why}: {broken:?}");
        // Named by its path, it gives the same reason and not that there is none.
        let error = Checkpoint::open(&newest).unwrap_err();
        assert!(matches!(&error, Error::CheckpointBroken { path, .. } if *path == newest), "{error}");
        assert!(error.to_string().contains(why), "{why}: {error}");
        fs::remove_dir_all(&newest).unwrap();
        copy_folder(&copy.path().join("copy"), &newest);
    }
    assert_eq!(find(folder.path()).unwrap().newest, Some(newest));
}

fn truncate(path: &Path) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_len(file.metadata().unwrap().len() - 1).unwrap();
}

fn flip(path: &Path) {
    let mut bytes = fs::read(path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(path, bytes).unwrap();
}

fn write_state(folder: &Path, text: &str) {
    fs::write(folder.join("state.json"), text).unwrap();
    seal(folder);
}

fn link(path: &Path, to: &Path) {
    fs::remove_file(path).unwrap();
    std::os::unix::fs::symlink(to, path).unwrap();
}

fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn when_all_are_broken_the_error_says_why_of_each() {
    let folder = saved(&[(1, None), (2, None)], all());
    for step in [1, 2] {
        fs::remove_file(at(folder.path(), step).join("state.json")).unwrap();
    }
    let error = Checkpoint::open(folder.path()).unwrap_err().to_string();
    for part in ["step-1: state.json is missing", "step-2: state.json is missing", "start without resuming"] {
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn a_checkpoint_opens_by_its_folder_its_parent_its_run_or_a_link() {
    let run = tempfile::tempdir().unwrap();
    let folder = run.path().join("checkpoints");
    let mut checkpointer = open(&folder, all());
    checkpointer.save(&net(1), &sgd(), state(3)).unwrap();
    checkpointer.finish().unwrap();
    fs::write(run.path().join("model.bpk"), "the weights of the run").unwrap();
    std::os::unix::fs::symlink(at(&folder, 3), run.path().join("latest")).unwrap();
    for path in [at(&folder, 3), folder.clone(), run.path().into(), run.path().join("latest")] {
        let found = Checkpoint::open(&path).unwrap();
        assert_eq!(found.path().file_name().unwrap(), "step-3", "{}", path.display());
    }
}

#[test]
fn what_dead_writers_left_is_swept_and_not_found() {
    let folder = saved(&[(1, None)], all());
    copy_folder(&at(folder.path(), 1), &folder.path().join(".step-2.77-0.tmp"));
    copy_folder(&at(folder.path(), 1), &folder.path().join(".step-1.77-1.old"));
    assert_eq!(find(folder.path()).unwrap().newest, Some(at(folder.path(), 1)));
    open(folder.path(), all()).finish().unwrap();
    assert_eq!(names(folder.path()), ["step-1"]);
}

/// Its writer died after it had retired the checkpoint and before it put the new one in its place.
#[test]
fn a_checkpoint_whose_replacement_was_cut_short_is_found_and_kept() {
    let folder = saved(&[(1, None), (2, None)], all());
    let retired = folder.path().join(".step-2.77-1.old");
    fs::rename(at(folder.path(), 2), &retired).unwrap();
    assert_eq!(find(folder.path()).unwrap().newest.as_ref(), Some(&retired));
    let mut checkpointer = open(folder.path(), CheckpointConfig { keep_last: 1, keep_best: 0, ..all() });
    assert_eq!(Checkpoint::open(folder.path()).unwrap().path(), retired);
    checkpointer.save(&net(1), &sgd(), state(2)).unwrap();
    checkpointer.wait().unwrap();
    assert_eq!(Checkpoint::open(folder.path()).unwrap().path(), at(folder.path(), 2));
    checkpointer.save(&net(1), &sgd(), state(3)).unwrap();
    checkpointer.finish().unwrap();
    open(folder.path(), all()).finish().unwrap();
    assert_eq!(names(folder.path()), ["step-3"]);
}
