//! `bundle`.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::support::colours::{package, write};
use super::support::pictures::{GREEN, png};
use super::support::server::{Server, json};
use super::support::{RECIPE, run, stderr, stdout};

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A bundle of the colours, and a green picture, in a folder.
fn bundled() -> (TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (program, picture) = (folder.path().join("colours"), folder.path().join("green.png"));
    fs::write(&picture, png(GREEN)).unwrap();
    let package = package();
    let output = run(RECIPE, &["bundle", "--from", text(package.path()), "--to", text(&program)]);
    assert!(output.status.success(), "{}", stderr(&output));
    (folder, program, picture)
}

#[test]
fn a_bundle_classifies_and_serves_by_itself_and_from_still_counts() {
    let (_folder, program, picture) = bundled();
    assert_eq!(fs::metadata(&program).unwrap().permissions().mode() & 0o777, 0o755);
    let output = run(&program, &["classify", text(&picture)]);
    assert!(stdout(&output).contains(": green "), "{}", stderr(&output));
    let server = Server::of(&program, &[]);
    assert_eq!(json(&server.classify(&png(GREEN)))["predictions"][0]["label"], "green");

    let other = tempfile::tempdir().unwrap();
    write(other.path(), ["rot", "gruen", "blau"]);
    let output = run(&program, &["classify", text(&picture), "--from", text(other.path())]);
    assert!(stdout(&output).contains(": gruen "), "{}", stderr(&output));
}

#[test]
fn a_bundle_of_a_bundle_has_the_new_package_alone() {
    let (folder, program, picture) = bundled();
    let other = tempfile::tempdir().unwrap();
    write(other.path(), ["rot", "gruen", "blau"]);
    let again = folder.path().join("again");
    let output = run(&program, &["bundle", "--from", text(other.path()), "--to", text(&again)]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&run(&again, &["classify", text(&picture)])).contains(": gruen "));
    let bytes = |path: &Path| fs::metadata(path).unwrap().len();
    // Labels and manifest differ by some bytes; a second package would be kilobytes.
    assert!(bytes(&again).abs_diff(bytes(&program)) < 64, "{} {}", bytes(&again), bytes(&program));
}

#[test]
fn a_file_that_exists_is_kept_unless_it_is_to_be_replaced() {
    let (folder, program, _) = bundled();
    let package = package();
    let bundle = |args: &[&str]| {
        run(RECIPE, &[&["bundle", "--from", text(package.path()), "--to", text(&program)], args].concat())
    };
    fs::write(&program, "mine").unwrap();
    let refused = bundle(&[]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(stderr(&refused).contains("--overwrite"), "{}", stderr(&refused));
    assert_eq!(fs::read(&program).unwrap(), b"mine");
    assert!(bundle(&["--overwrite"]).status.success());
    assert!(fs::metadata(&program).unwrap().len() > 1 << 20);
    // Nothing else is left there: the program and the picture.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
}

#[test]
fn a_bundle_that_is_cut_off_or_altered_says_so_and_from_still_works() {
    let (_folder, program, picture) = bundled();
    let whole = fs::read(&program).unwrap();
    let own = fs::metadata(RECIPE).unwrap().len() as usize;
    let fails = |bytes: &[u8], expected: &str| {
        fs::write(&program, bytes).unwrap();
        let output = run(&program, &["classify", text(&picture)]);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains(expected), "{}", stderr(&output));
    };
    fails(&whole[..whole.len() - 1], "it is cut off");
    fails(&whole[..own + 200], "it is cut off");
    let mut altered = whole.clone();
    altered[own + 16 + 40] ^= 1;
    fails(&altered, "model.onnx is not what its manifest says");
    let mut altered = whole.clone();
    let trailer = altered.len() - 80;
    altered[trailer - 10] ^= 1;
    fails(&altered, "its manifest is altered");
    let package = package();
    let output = run(&program, &["classify", text(&picture), "--from", text(package.path())]);
    assert!(stdout(&output).contains(": green "), "{}", stderr(&output));
}

#[test]
fn a_folder_that_is_no_export_gives_no_bundle() {
    let (folder, package) = (tempfile::tempdir().unwrap(), package());
    let to = folder.path().join("program");
    fs::write(package.path().join("labels.txt"), "one\ntwo\nthree\n").unwrap();
    for from in [package.path(), folder.path()] {
        let output = run(RECIPE, &["bundle", "--from", text(from), "--to", text(&to)]);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(!to.exists());
    }
}

#[test]
fn a_place_that_cannot_be_written_is_refused_before_the_work() {
    let folder = tempfile::tempdir().unwrap();
    let to = |name: &str| {
        let place = folder.path().join(name);
        // There is no export either, which would be told if it were looked at first.
        let output = run(RECIPE, &["bundle", "--from", "none", "--overwrite", "--to", text(&place)]);
        assert_eq!(output.status.code(), Some(2), "{}", stderr(&output));
        stderr(&output).to_owned()
    };
    assert!(to("").contains("it is a folder"));
    assert!(to("none/program").contains("its folder does not exist"));
    assert!(to("program/").contains("it does not end with the name of a file"));
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
