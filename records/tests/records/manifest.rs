use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use burn::tensor::Device;
use burn_nccl_records::{Error, Fault, Manifest, SaveFormat, save};
use serde_json::{Map, json};
use tempfile::{TempDir, tempdir};

use crate::saving::{net, quick};

/// SHA-256 of `abc`. Source: FIPS 180-2, appendix B.1.
const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

fn folder() -> TempDir {
    let folder = tempdir().unwrap();
    fs::write(folder.path().join("a.bin"), "abc").unwrap();
    fs::create_dir(folder.path().join("inner")).unwrap();
    fs::write(folder.path().join("inner/empty.bin"), "").unwrap();
    folder
}

fn describe(folder: &Path) -> Manifest {
    Manifest::describe(folder, &["a.bin", "inner/empty.bin"]).unwrap()
}

/// The refusal of a manifest with this text.
fn refusal(json: &str) -> String {
    let folder = folder();
    fs::write(folder.path().join("manifest.json"), json).unwrap();
    match Manifest::read(folder.path()) {
        Err(Error::Manifest { why, .. }) => why,
        other => panic!("{json:.80} is not refused but {other:?}"),
    }
}

fn with_file(name: &str) -> String {
    json!({ "files": [{ "name": name, "bytes": 3, "sha256": ABC }] }).to_string()
}

#[test]
fn a_file_that_git_lfs_has_not_fetched_is_not_described() {
    let folder = tempfile::tempdir().unwrap();
    let pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n";
    std::fs::write(folder.path().join("model.bpk"), pointer).unwrap();
    let text = Manifest::describe(folder.path(), &["model.bpk"]).unwrap_err().to_string();
    assert!(text.contains("git lfs pull"), "{text}");
}

#[test]
fn a_manifest_is_read_as_it_was_written() {
    let folder = folder();
    let metrics = Map::from_iter([("accuracy".to_string(), json!(0.97))]);
    let manifest = describe(folder.path()).with_metrics(metrics);
    assert_eq!((manifest.files[0].bytes, manifest.files[0].sha256.as_str()), (3, ABC));
    assert_eq!(manifest.files[1].bytes, 0);
    manifest.write(folder.path()).unwrap();
    let read = Manifest::read(folder.path()).unwrap();
    assert_eq!(read, manifest);
    assert!(read.verify(folder.path()).is_intact());
    assert!(read.created > 1_700_000_000, "seconds since 1970");
}

#[test]
fn the_tensors_of_weights_are_listed_one_a_line() {
    let folder = folder();
    let zip = b"PK\x03\x04 an archive of something else";
    fs::write(folder.path().join("images.zip"), zip).unwrap();
    let net = net(1, &Device::flex());
    save(&net, folder.path().join("net.bpk"), &quick()).unwrap();
    let sharded = quick().with_format(SaveFormat::Safetensors).with_max_shard_bytes(100);
    let shards = save(&net, folder.path(), &sharded).unwrap().files;
    let mut names: Vec<String> =
        shards.iter().map(|path| path.file_name().unwrap().to_str().unwrap().into()).collect();
    names.extend(["net.bpk", "images.zip", "a.bin"].map(String::from));
    let manifest = Manifest::describe(folder.path(), &names).unwrap();
    let of = |file: fn(&str) -> bool| manifest.tensors.iter().filter(move |tensor| file(&tensor.file));
    assert_eq!(of(|file| file == "net.bpk").count(), 11);
    assert_eq!(of(|file| file.starts_with("model-")).count(), 11);
    assert_eq!(manifest.tensors.len(), 22);
    let weight = of(|file| file == "net.bpk").find(|tensor| tensor.name == "fc.weight").unwrap();
    assert_eq!((weight.shape.as_slice(), weight.dtype.as_str()), (&[3, 4][..], "f32"));

    manifest.write(folder.path()).unwrap();
    assert_eq!(Manifest::read(folder.path()).unwrap(), manifest);
    let text = fs::read_to_string(folder.path().join("manifest.json")).unwrap();
    let line = "  {\"file\":\"net.bpk\",\"name\":\"fc.weight\",\"shape\":[3,4],\"dtype\":\"f32\"},\n";
    assert!(text.contains(line), "{text}");

    let path = folder.path().join("net.bpk");
    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let error = Manifest::describe(folder.path(), &["net.bpk"]).unwrap_err();
    assert!(matches!(error, Error::Corrupt { .. }), "damaged weights are not described as sound: {error}");
}

#[test]
fn sha256sum_agrees() {
    let folder = folder();
    let large: Vec<u8> = (0..3_000_000_u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    fs::write(folder.path().join("large.bin"), large).unwrap();
    let manifest = Manifest::describe(folder.path(), &["large.bin"]).unwrap();
    match Command::new("sha256sum").arg(folder.path().join("large.bin")).output() {
        Ok(output) => {
            assert!(String::from_utf8(output.stdout).unwrap().starts_with(&manifest.files[0].sha256))
        }
        Err(error) => crate::skip("sha256sum_agrees", error),
    }
}

#[test]
fn the_version_of_burn_is_the_one_of_the_workspace() {
    let workspace = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../Cargo.toml")).unwrap();
    let folder = folder();
    let versions = describe(folder.path()).versions;
    assert!(workspace.contains(&format!("\nburn = {{ version = \"={}\"", versions["burn"])), "{versions:?}");
    assert_eq!(versions["manifest"], "1");
}

#[test]
fn each_damaged_file_is_named_with_what_is_wrong() {
    let folder = folder();
    let at = |name: &str| folder.path().join(name);
    let names = ["short", "long", "altered", "pointer", "gone", "link", "folder", "whole"];
    names.iter().for_each(|name| fs::write(at(name), "12345678").unwrap());
    let manifest = Manifest::describe(folder.path(), &names).unwrap();
    fs::write(at("short"), "123").unwrap();
    fs::write(at("long"), "123456789").unwrap();
    fs::write(at("altered"), "12345679").unwrap();
    fs::write(at("pointer"), "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 8\n").unwrap();
    for name in ["gone", "link", "folder"] {
        fs::remove_file(at(name)).unwrap();
    }
    symlink("whole", at("link")).unwrap();
    fs::create_dir(at("folder")).unwrap();
    let found = manifest.verify(folder.path());
    assert_eq!(found.faults[0], ("short".into(), Fault::Size { expected: 8, found: 3 }));
    assert_eq!(
        found.to_string(),
        "short: short, 3 of 8 bytes\n\
         long: too long, 9 bytes in place of 8\n\
         altered: altered, its SHA-256 is another\n\
         pointer: a Git LFS pointer, not fetched yet\n\
         gone: missing\n\
         link: is a link or lies behind one\n\
         folder: is not a file"
    );
}

#[test]
fn a_pipe_is_refused_and_not_waited_for() {
    let folder = folder();
    if !Command::new("mkfifo").arg(folder.path().join("pipe")).status().is_ok_and(|status| status.success()) {
        crate::skip("a_pipe_is_refused_and_not_waited_for", "no mkfifo");
        return;
    }
    fs::write(folder.path().join("manifest.json"), with_file("pipe")).unwrap();
    let found = Manifest::read(folder.path()).unwrap().verify(folder.path());
    assert_eq!(found.to_string(), "pipe: is not a file");
}

#[test]
fn names_that_leave_the_folder_are_refused() {
    let outside = [
        "/etc/passwd",
        "../a.bin",
        "inner/../../a.bin",
        "..",
        ".",
        "",
        "./a.bin",
        "inner//empty.bin",
        "inner/",
        "inner\\..\\..\\a.bin",
        "a\u{0}.bin",
        "a\n.bin",
        "\u{1b}[2J",
        "C:\\a.bin",
    ];
    for name in outside {
        let why = refusal(&with_file(name));
        assert!(why.contains("is not the plain name of a file in its folder"), "{name}: {why}");
        let folder = folder();
        let error = Manifest::describe(folder.path(), &[name]).unwrap_err();
        assert!(matches!(error, Error::Manifest { .. }), "{error}");
        // One that was made by hand and not read.
        let manifest: Manifest = serde_json::from_str(&with_file(name)).unwrap();
        assert!(matches!(&manifest.verify(folder.path()).faults[0].1, Fault::Unreadable { .. }));
    }
}

#[test]
fn a_link_out_of_the_folder_is_not_followed() {
    let (folder, outside) = (folder(), tempdir().unwrap());
    fs::write(outside.path().join("secret"), "abc").unwrap();
    symlink(outside.path(), folder.path().join("away")).unwrap();
    symlink(outside.path().join("secret"), folder.path().join("direct")).unwrap();
    for name in ["away/secret", "direct"] {
        let manifest: Manifest = serde_json::from_str(&with_file(name)).unwrap();
        assert_eq!(
            manifest.verify(folder.path()).to_string(),
            format!("{name}: is a link or lies behind one")
        );
        assert!(Manifest::describe(folder.path(), &[name]).is_err());
    }
    // Nor is a manifest itself read through a link.
    describe(folder.path()).write(folder.path()).unwrap();
    fs::rename(folder.path().join("manifest.json"), outside.path().join("m.json")).unwrap();
    symlink(outside.path().join("m.json"), folder.path().join("manifest.json")).unwrap();
    assert!(matches!(Manifest::read(folder.path()), Err(Error::Manifest { .. })));
}

#[test]
fn a_manifest_that_is_no_manifest_is_refused() {
    for json in ["", "{", "[]", "null", "{}", "{\"files\": 3}", "{\"files\": [{\"name\": \"a.bin\"}]}"] {
        refusal(json);
    }
    let negative = with_file("a.bin").replace("\"bytes\":3", "\"bytes\":-3");
    assert!(refusal(&negative).contains("invalid value: integer `-3`"));
    let two = format!("{{\"files\": [{0}, {0}]}}", json!({ "name": "a.bin", "bytes": 3, "sha256": ABC }));
    assert_eq!(refusal(&two), "`a.bin` appears twice");
    assert_eq!(refusal(&with_file("manifest.json")), "`manifest.json` cannot describe itself");
    assert!(refusal("{\"files\": [], \"files\": []}").contains("duplicate field"));
    let deep = format!("{{\"files\": [], \"metrics\": {{\"a\": {}}}}}", "[".repeat(100_000));
    assert!(refusal(&deep).contains("recursion limit"));
}

#[test]
fn a_huge_manifest_is_refused_without_being_read_whole() {
    let folder = folder();
    let file = fs::File::create(folder.path().join("manifest.json")).unwrap();
    file.set_len(1 << 40).unwrap();
    let error = Manifest::read(folder.path()).unwrap_err();
    assert!(error.to_string().contains("it is larger than 16 MiB"), "{error}");
    let metrics = Map::from_iter([("text".to_string(), json!("x".repeat(17 << 20)))]);
    let error = describe(folder.path()).with_metrics(metrics).write(folder.path()).unwrap_err();
    assert!(matches!(error, Error::Limit { .. }), "{error}");
}

#[test]
fn a_folder_without_a_manifest_is_an_error_that_names_the_file() {
    let folder = folder();
    let error = Manifest::read(folder.path()).unwrap_err();
    assert!(matches!(&error, Error::File { path, .. } if path.ends_with("manifest.json")), "{error}");
}

#[test]
fn unknown_fields_of_a_later_version_are_passed_over() {
    let folder = folder();
    let later =
        json!({ "files": [{ "name": "a.bin", "bytes": 3, "sha256": ABC, "owner": "x" }], "signature": 1 });
    fs::write(folder.path().join("manifest.json"), later.to_string()).unwrap();
    assert!(Manifest::read(folder.path()).unwrap().verify(folder.path()).is_intact());
}
