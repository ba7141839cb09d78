use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use burn_nccl_models::Depth;

use crate::fixtures::*;

/// A folder with the export `out`.
fn exported(more: &str) -> tempfile::TempDir {
    let folder = folder();
    network(folder.path(), Depth::ResNet18, 10);
    export(folder.path(), more);
    folder
}

/// The rows of the table as words.
fn rows(said: &str) -> Vec<Vec<&str>> {
    let table = said.lines().skip_while(|line| !line.starts_with("engine")).skip(1);
    table
        .take_while(|line| !line.starts_with("out: "))
        .map(|line| line.split_whitespace().collect())
        .collect()
}

#[test]
fn every_engine_that_is_here_is_compared_with_burn_on_test_and_random_images() {
    let folder = exported("");
    let said = succeeds(folder.path(), "verify --from out --images 9");
    let rows = rows(&said);
    let mut engines = vec!["burn 0.22.1", "native"];
    // The one that comes from outside.
    if !said.contains("without onnxruntime: ") {
        engines.push("onnxruntime");
    }
    engines.push("tract");
    // Each on two kinds of images, in three batch sizes.
    assert_eq!(rows.len(), engines.len() * 2 * 3, "{said}");
    for (at, row) in rows.iter().enumerate() {
        let text = row.join(" ");
        assert!(text.starts_with(engines[at / 6]) && text.ends_with("9 of 9"), "{text}");
        assert!(text.contains(if at % 6 < 3 { " test " } else { " random " }), "{text}");
        assert!(text.contains(&format!(" {} ", [1, 3, 8][at % 3])), "{text}");
    }
    // One image at a time by Burn is what all are compared with.
    assert!(rows[0].contains(&"0.0e0"), "{said}");
    assert!(said.contains("out: whole"), "{said}");
}

#[test]
fn what_is_further_from_burn_than_allowed_is_marked_and_fails() {
    let folder = exported("--weights int8");
    let output = recipe(folder.path(), "verify --from out --images 3 --engine tract --tolerance 1e-6");
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.lines().any(|line| line.starts_with("tract") && line.ends_with("too far")), "{said}");
    assert!(!said.lines().any(|line| line.starts_with("burn") && line.ends_with("too far")), "{said}");
    // What int8 may differ by is known.
    succeeds(folder.path(), "verify --from out --images 3 --engine tract");
}

#[test]
fn an_altered_a_short_and_a_missing_file_are_named() {
    let folder = exported("");
    let out = folder.path().join("out");
    let mut model = fs::read(out.join("model.onnx")).unwrap();
    let middle = model.len() / 2;
    model[middle] ^= 1;
    fs::write(out.join("model.onnx"), &model).unwrap();
    fs::write(out.join("labels.txt"), "0\n").unwrap();
    fs::remove_file(out.join("model.safetensors")).unwrap();
    let [error, cause, _] = refuses(folder.path(), "verify --from out", 1);
    assert_eq!(error, "out cannot be used as an export");
    for fault in ["model.onnx: altered", "labels.txt: short, 2 of 20 bytes", "model.safetensors: missing"] {
        assert!(cause.contains(fault), "{fault}: {cause}");
    }
    assert!(!cause.contains("preprocess.json"), "{cause}");
}

/// Gives the manifest the hashes of what is there now, as someone would who means to mislead.
fn rehash(out: &Path) {
    let manifest = burn_nccl_records::Manifest::read(out).unwrap();
    let names: Vec<_> = manifest.files.iter().map(|file| file.name.clone()).collect();
    let again = burn_nccl_records::Manifest::describe(out, &names).unwrap().with_metrics(manifest.metrics);
    again.write(out).unwrap();
}

#[test]
fn files_that_do_not_belong_together_are_refused_whatever_their_hashes() {
    let folder = exported("");
    let out = folder.path().join("out");
    let original = |name: &str| fs::read_to_string(out.join(name)).unwrap();
    let (labels, preprocess) = (original("labels.txt"), original("preprocess.json"));
    for (name, text, expected) in [
        ("labels.txt", labels.replace("9\n", ""), "9 names for 10 classes"),
        ("labels.txt", labels.replace("9\n", "8\n"), "repeats the name"),
        ("preprocess.json", preprocess.replace("32", "16"), "it prepares [3, 16, 16]"),
        ("preprocess.json", preprocess.replacen("\"height\": 32", "\"height\": 31", 1), "[3, 31, 32]"),
        ("preprocess.json", preprocess.replacen("\"height\": 32", "\"height\": 99999999", 1), "4096"),
        (
            "preprocess.json",
            preprocess.replace("\"to_rgb\"", "{\"random_horizontal_flip\": {\"probability\": 0.5}}"),
            "random",
        ),
        ("preprocess.json", "[".repeat(100_000), "preprocess.json"),
        ("preprocess.json", preprocess.replacen("{", "{\"more\": 1,", 1), "unknown field `more`"),
    ] {
        fs::write(out.join(name), text).unwrap();
        rehash(&out);
        let [error, cause, _] = refuses(folder.path(), "verify --from out", 1);
        assert_eq!(error, "out cannot be used as an export");
        assert!(cause.contains(name) && cause.contains(expected), "{expected}: {cause}");
        fs::write(out.join("labels.txt"), &labels).unwrap();
        fs::write(out.join("preprocess.json"), &preprocess).unwrap();
    }
}

#[test]
fn folders_of_others_are_refused() {
    let folder = folder();
    let path = folder.path();
    fs::create_dir_all(path.join("empty")).unwrap();
    fs::create_dir_all(path.join("other")).unwrap();
    fs::write(path.join("other/notes.txt"), "seen").unwrap();
    burn_nccl_records::Manifest::describe(path.join("other"), &["notes.txt"])
        .unwrap()
        .write(path.join("other"))
        .unwrap();
    let [error, cause, remedy] = refuses(path, "verify --from nowhere", 1);
    assert!(error.contains("nowhere") && cause.contains("No such file"), "{error} {cause}");
    // To read a folder it need not be writable.
    assert_eq!(remedy, "give --from with the folder that export has written");
    let [error, cause, _] = refuses(path, "verify --from empty", 1);
    assert!(error.contains("empty") && cause.contains("manifest.json"), "{error} {cause}");
    let [_, cause, remedy] = refuses(path, "verify --from other", 1);
    assert!(cause.contains("does not describe model.onnx"), "{cause}");
    assert!(remedy.contains("export has written"), "{remedy}");
    let [_, cause, _] = refuses(path, "verify --from other/notes.txt", 1);
    assert_eq!(cause, "it is a file");
}

#[test]
fn an_export_without_its_images_is_verified_on_random_ones() {
    let folder = folder();
    network(folder.path(), Depth::ResNet18, 10);
    fs::write(folder.path().join("names"), "a\nb\nc\nd\ne\nf\ng\nh\ni\nj\n").unwrap();
    let args = "export --from model.bpk --to out --labels names --image-size 16";
    succeeds(folder.path(), args);
    let said = succeeds(folder.path(), "verify --from out --images 3 --engine tract");
    assert!(said.contains("without test images: the export does not say which"), "{said}");
    assert_eq!(rows(&said).len(), 2 * 3, "{said}");
    let said = succeeds(folder.path(), "verify --from out --images 3 --engine tract --data digits");
    assert_eq!(rows(&said).len(), 2 * 2 * 3, "{said}");
    refuses(folder.path(), "verify --from out --data folder:/nowhere", 1);
}

#[test]
fn an_engine_that_is_asked_for_and_not_there_is_named() {
    let folder = exported("");
    let args = "verify --from out --engine onnxruntime --onnxruntime /nowhere/libonnxruntime.so";
    let [error, cause, _] = refuses(folder.path(), args, 1);
    assert_eq!(error, "cannot run the export");
    assert!(cause.contains("onnxruntime"), "{cause}");
}

#[test]
fn onnxruntime_and_the_checker_of_python_agree() {
    let Some(python) = python("onnxruntime_and_the_checker_of_python_agree") else { return };
    for more in ["", "--no-fold", "--weights f16", "--weights int8"] {
        let folder = exported(more);
        let args = format!(
            "verify --from out --images 9 --engine tract --threads 1 --against-python {}",
            python.display()
        );
        let said = succeeds(folder.path(), &args);
        assert!(said.contains("onnx.checker"), "{said}");
        let rows = rows(&said);
        assert_eq!(rows.len(), 3 * 2 * 3, "{said}");
        let of_python: Vec<_> = said.lines().filter(|line| line.contains("(Python)")).collect();
        assert_eq!(of_python.len(), 6, "{said}");
    }
}

#[test]
fn a_python_that_hangs_or_fails_is_ended_and_named() {
    let folder = exported("");
    let program = |name: &str, script: &str| {
        let path = folder.path().join(name);
        fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    program("hangs", "exec sleep 100");
    program("fails", "echo something is wrong >&2; exit 3");
    program("lies", "echo '{\"onnx\": \"1\", \"onnxruntime\": \"2\"}'; : > \"$4\"");
    let against = |program: &str, more: &str| {
        let args = format!("verify --from out --images 1 --engine tract --against-python {program} {more}");
        refuses(folder.path(), &args, 1)[1].clone()
    };
    assert_eq!(against("./hangs", "--timeout-seconds 1"), "it did not end within 1 s");
    assert!(against("./fails", "").contains("something is wrong"));
    assert_eq!(against("./lies", ""), "it gave 0 logits instead of 30");
    assert!(against("./nothing", "").contains("No such file"));
}
