//! Files made to crash, to fill the memory or to reach outside their folder: an error each time.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use burn::store::burn_pack::{Tensor as PackTensor, Writer};
use burn::tensor::{Bytes, DType};
use burn_nccl_records::{Error, OpenOptions, Result, Source};

use crate::fixtures::fixture;

/// Opens a file and reads every tensor, as the most careless user would.
fn read_all(path: &Path) -> Result<usize> {
    let source = Source::open(path, &OpenOptions::default())?;
    source.tensors().iter().map(|tensor| tensor.data().map(|data| data.as_bytes().len())).sum()
}

fn refusal(path: &Path) -> String {
    match read_all(path) {
        Ok(bytes) => panic!("{}: {bytes} bytes were read", path.display()),
        Err(error) => error.to_string(),
    }
}

/// A file in a folder of its own.
struct Scratch(tempfile::TempDir);

impl Scratch {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn refusal_of(&self, bytes: &[u8]) -> String {
        let path = self.0.path().join("file");
        fs::write(&path, bytes).unwrap();
        refusal(&path)
    }
}

fn safetensors(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

// C16
#[test]
fn hostile_pickles_are_refused() {
    for (name, reason) in [
        ("setitem-on-a-list", ""),
        ("storage-longer-than-entry", "tensor `a`"),
        ("tensor-beyond-storage", "declares 4"),
        ("memo-bomb", "memo bomb"),
        ("nesting", "nesting"),
        ("repeated-to-8-gib", "expands to 8589934592 bytes or more"),
        ("shape-overflow", "overflow"),
        ("key-leads-out", "not found in archive"),
        ("length-of-a-string", ""),
    ] {
        let text = refusal(&fixture(&format!("hostile-{name}.pth")));
        assert!(text.contains(reason), "{name}: {text}");
    }
}

#[test]
fn a_pickle_runs_nothing() {
    // Where the fixture writes to, on every machine.
    let witness = Path::new("/tmp/burn-nccl-pwn");
    let _ = fs::remove_file(witness);
    refusal(&fixture("hostile-runs-a-program.pth"));
    assert!(!witness.exists());
}

// C18
#[test]
fn hostile_safetensors_are_refused() {
    let scratch = Scratch::new();
    let max = usize::MAX;
    let tensor = |name: &str, dtype: &str, shape: &str, start: u64, end: u64| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[{start},{end}]}}"#)
    };
    let one = |shape: &str, start, end| tensor("a", "F32", shape, start, end);
    let two = |a: (u64, u64), b: (u64, u64)| {
        format!("{{{},{}}}", tensor("a", "F32", "[2]", a.0, a.1), tensor("b", "F32", "[2]", b.0, b.1))
    };
    for (header, data, reason) in [
        (format!("{{{}}}", one(&format!("[{max},2]"), 0, 8)), 8, "not those of F32"),
        (format!("{{{}}}", one(&format!("[{max}]"), 0, 8)), 8, "not those of F32"),
        (format!("{{{}}}", one("[2]", u64::MAX - 8, u64::MAX)), 8, "a gap or overlap"),
        (format!("{{{}}}", one("[2]", 8, 0)), 8, "a gap or overlap"),
        (two((0, 8), (u64::MAX - 7, u64::MAX)), 16, "a gap or overlap"),
        (two((0, 8), (4, 12)), 12, "a gap or overlap"),
        (two((0, 8), (0, 8)), 8, "a gap or overlap"),
        (two((0, 8), (12, 20)), 20, "a gap or overlap"),
        (format!("{{{}}}", one("[2]", 0, 8)), 4, "cut short"),
        (format!("{{{}}}", one("[2]", 0, 8)), 12, "has more"),
        (format!("{{{},{}}}", one("[0]", 0, 0), one("[2]", 0, 8)), 8, "`a` is there twice"),
        (r#"{"__metadata__":{"k":"1","k":"2"}}"#.into(), 0, "`k` is there twice"),
        (r#"{"__metadata__":{},"__metadata__":{}}"#.into(), 0, "`__metadata__` is there twice"),
        (r#"{"__metadata__":{"k":1}}"#.into(), 0, "expected a string"),
        (r#"{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,0]}}"#.into(), 0, "its header"),
        (
            r#"{"a":{"dtype":"F32","dtype":"F64","shape":[],"data_offsets":[0,4]}}"#.into(),
            4,
            "duplicate field",
        ),
        (format!(r#"{{"a":{}"#, "[".repeat(5000)), 0, "its header"),
        (format!("{{{}}}", tensor("a", "F8_E4M3", "[4]", 0, 4)), 4, "element type F8_E4M3"),
        ("{\"\u{1}".into(), 0, "its header"),
    ] {
        let text = scratch.refusal_of(&safetensors(&header, data));
        assert!(text.contains(reason), "{header}: {text}");
    }
    // A header said to be longer than 100 MB, and one longer than the file.
    let with_length = |length: u64| [&length.to_le_bytes()[..], b"{}"].concat();
    assert!(scratch.refusal_of(&with_length(100_000_001)).contains("no file of weights"));
    assert!(scratch.refusal_of(&with_length(100_000_000)).contains("ends within its header"));
    assert!(scratch.refusal_of(&with_length(u64::MAX)).contains("no file of weights"));
    // More tensors than any model has.
    let many: Vec<_> = (0..100_001).map(|i| tensor(&i.to_string(), "F32", "[0]", 0, 0)).collect();
    assert!(
        scratch.refusal_of(&safetensors(&format!("{{{}}}", many.join(",")), 0)).contains("more than 100000")
    );
}

fn pack(tensors: usize) -> Vec<u8> {
    let tensor = |i: usize| {
        PackTensor::new(
            format!("t{i}"),
            DType::F32,
            vec![3],
            Some(i as u64),
            Bytes::from_bytes_vec(vec![1; 12]),
        )
    };
    Writer::new((0..tensors).map(tensor).collect()).into_bytes().unwrap().to_vec()
}

#[test]
fn hostile_burnpacks_are_refused() {
    let scratch = Scratch::new();
    let sound = pack(2);
    let changed = |at: usize, with: &[u8]| {
        let mut bytes = sound.clone();
        bytes[at..at + with.len()].copy_from_slice(with);
        bytes
    };
    assert!(scratch.refusal_of(&changed(4, &[9, 0])).contains("version"));
    assert!(scratch.refusal_of(&changed(6, &u32::MAX.to_le_bytes())).contains("Metadata size"));
    assert!(scratch.refusal_of(&changed(6, &50_000_000u32.to_le_bytes())).contains("not a sound burnpack"));
    // CBOR that nests without end: arrays of one element.
    assert!(scratch.refusal_of(&changed(10, &[0x81; 100])).contains("not a sound burnpack"));
    // Tensors that all lie at the same place: each is sound, and together they ask for more than the file has.
    let text = |text: &str| [&[0x60 + text.len() as u8], text.as_bytes()].concat();
    let tensor = |name: &str| {
        let dtype = [text("dtype"), text("U8")].concat();
        let place =
            [text("shape"), vec![0x81, 0x19, 1, 0], text("data_offsets"), vec![0x82, 0, 0x19, 1, 0]].concat();
        [text(name), vec![0xa3], dtype, place].concat()
    };
    let metadata = [vec![0xa1], text("tensors"), vec![0xa3], tensor("a"), tensor("b"), tensor("c")].concat();
    let mut overlapping = [&b"NRUB\x01\0"[..], &(metadata.len() as u32).to_le_bytes(), &metadata].concat();
    overlapping.resize(512, 0);
    assert!(scratch.refusal_of(&overlapping).contains("its tensors claim 768 bytes and overlap"));
}

#[test]
fn a_small_compressed_file_does_not_fill_the_memory() {
    let scratch = Scratch::new();
    // 64 MiB of zeros in 6 kB, allowed 1 MiB; in the shape of each format, whose header asks for all of them.
    let zeros = vec![0; 64 << 20];
    let header = r#"{"a":{"dtype":"U8","shape":[67108864],"data_offsets":[0,67108864]}}"#;
    let tensor = PackTensor::new("a".into(), DType::U8, vec![64 << 20], None, Bytes::from_bytes_vec(zeros));
    let pth = [b"PK\x03\x04", &[0u8; 64 << 20][..]].concat();
    for bytes in
        [safetensors(header, 64 << 20), Writer::new(vec![tensor]).into_bytes().unwrap().to_vec(), pth]
    {
        let path = scratch.0.path().join("bomb.zst");
        fs::write(&path, zstd::encode_all(&bytes[..], 3).unwrap()).unwrap();
        let error =
            Source::open(&path, &OpenOptions::default().with_max_expanded_bytes(1 << 20)).unwrap_err();
        assert!(matches!(error, Error::TooLarge { limit: 1_048_576, .. }), "{error}");
        let unlimited = Source::open(&path, &OpenOptions::default().with_max_expanded_bytes(u64::MAX));
        assert_eq!(unlimited.is_ok(), !bytes.starts_with(b"PK"), "that one is no archive");
    }
}

#[test]
fn an_index_cannot_lead_out_of_its_folder() {
    let outer = tempfile::tempdir().unwrap();
    let folder = outer.path().join("model");
    fs::create_dir(&folder).unwrap();
    fs::copy(fixture("net.safetensors"), outer.path().join("secret.safetensors")).unwrap();
    let secret = outer.path().join("secret.safetensors");
    let refusal_of = |shard: &str| {
        let index = serde_json::json!({ "weight_map": { "conv.bias": shard } });
        fs::write(folder.join("model.safetensors.index.json"), index.to_string()).unwrap();
        match read_all(&folder) {
            Err(error @ Error::Shards { .. }) => error.to_string(),
            other => panic!("{shard}: {other:?}"),
        }
    };
    let absolute = secret.to_str().unwrap();
    for shard in ["../secret.safetensors", absolute, "..", ".", "", "a/b", "a\\b", "/etc/passwd"] {
        assert!(refusal_of(shard).contains("no plain file name"), "{shard}");
    }
    assert!(refusal_of("absent.safetensors").contains("absent.safetensors"));
    {
        symlink(&secret, folder.join("link.safetensors")).unwrap();
        assert!(refusal_of("link.safetensors").contains("a link out of the folder"));
        symlink(folder.join("loop"), folder.join("loop")).unwrap();
        refusal_of("loop");
    }
}

/// In Hugging Face's cache every shard is a link into the repository's blobs.
#[test]
fn the_links_of_a_hugging_face_cache_are_followed() {
    let repository = tempfile::tempdir().unwrap();
    let (blobs, snapshot) = (repository.path().join("blobs"), repository.path().join("snapshots/0123abc"));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    for file in fs::read_dir(fixture("sharded")).unwrap().map(|entry| entry.unwrap().path()) {
        let name = file.file_name().unwrap();
        fs::copy(&file, blobs.join(name)).unwrap();
        let target = Path::new("../../blobs").join(name);
        symlink(target, snapshot.join(name)).unwrap();
    }
    assert_eq!(Source::open(&snapshot, &OpenOptions::default()).unwrap().tensors().len(), 9);
}

#[test]
fn an_index_larger_than_any_is_refused_and_not_cut() {
    let folder = tempfile::tempdir().unwrap();
    let index = folder.path().join("model.safetensors.index.json");
    fs::copy(fixture("sharded/model.safetensors.index.json"), &index).unwrap();
    fs::File::options().write(true).open(&index).unwrap().set_len(100_000_001).unwrap();
    let text = refusal(&index);
    assert!(text.contains("larger than 100000000 bytes"), "{text}");
}

#[test]
fn shards_and_index_must_agree() {
    let folder = tempfile::tempdir().unwrap();
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let index = folder.path().join("model.safetensors.index.json");
    for name in shards {
        fs::copy(fixture("sharded").join(name), folder.path().join(name)).unwrap();
    }
    let sound = fs::read_to_string(fixture("sharded/model.safetensors.index.json")).unwrap();
    let refusal_of = |text: &str| {
        fs::write(&index, text).unwrap();
        refusal(folder.path())
    };
    // Moved to the other shard; listed in two; not in its shard; not listed; no map at all.
    let moved = sound.replace(r#""conv.bias": "model-00001"#, r#""conv.bias": "model-00002"#);
    assert!(refusal_of(&moved).contains("holds `conv.bias`, which the index does not have there"));
    let twice =
        sound.replace(r#""conv.bias""#, r#""bn.bias": "model-00001-of-00002.safetensors", "conv.bias""#);
    assert!(refusal_of(&twice).contains("`bn.bias` is there twice"));
    let lacking =
        sound.replace(r#""conv.bias""#, r#""conv.scale": "model-00001-of-00002.safetensors", "conv.bias""#);
    assert!(refusal_of(&lacking).contains("`conv.scale` is not in its shard"));
    assert!(refusal_of(r#"{"weight_map": {}}"#).contains("is empty"));
    assert!(refusal_of(r#"{"metadata": {}}"#).contains("missing field"));
    assert!(refusal_of(r#"{"weight_map": ["a"]}"#).contains("cannot be followed"));
    // A tensor that is in both shards.
    fs::copy(fixture("net.safetensors"), folder.path().join(shards[0])).unwrap();
    assert!(refusal_of(&sound).contains("which the index does not have there"));
    // A shard of another format, and a missing one.
    fs::copy(fixture("net.pth"), folder.path().join(shards[0])).unwrap();
    assert!(refusal_of(&sound).contains("is PyTorch, not safetensors"));
    fs::remove_file(folder.path().join(shards[0])).unwrap();
    assert!(refusal_of(&sound).contains(shards[0]));
}

/// Small files of every format, compressed too.
fn sound_files() -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = ["net.pth", "net-legacy.pth", "net-whole.pth", "net.safetensors"]
        .map(|name| (name.to_string(), fs::read(fixture(name)).unwrap()))
        .into();
    files.push(("net.bpk".into(), pack(2)));
    for at in [0, 3, 4] {
        let (name, bytes) = &files[at];
        files.push((format!("{name}.zst"), zstd::encode_all(&bytes[..], 3).unwrap()));
    }
    files
}

#[test]
fn a_file_cut_short_anywhere_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in sound_files() {
        let path = folder.path().join(&name);
        fs::write(&path, &bytes).unwrap();
        read_all(&path).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        for length in (0..bytes.len()).rev() {
            file.set_len(length as u64).unwrap();
            assert!(read_all(&path).is_err(), "{name} cut to {length} of {} bytes", bytes.len());
        }
    }
}

#[test]
fn a_changed_byte_anywhere_is_an_error_or_another_value() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in sound_files() {
        let path = folder.path().join(name);
        fs::write(&path, &bytes).unwrap();
        let file = fs::File::options().write(true).open(&path).unwrap();
        for (at, &byte) in bytes.iter().enumerate() {
            for change in [0xff, 0x01] {
                file.write_all_at(&[byte ^ change], at as u64).unwrap();
                // Whatever it says, it comes back.
                let _ = read_all(&path);
            }
            file.write_all_at(&[byte], at as u64).unwrap();
        }
    }
}

#[test]
fn what_is_no_file_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    assert!(refusal(&path).contains("neither a file nor a folder"));
    assert!(refusal(Path::new("/dev/zero")).contains("neither a file nor a folder"));
}
