//! Every way in which this crate reads what others wrote, as a function of bytes that must return.

use std::fs;
use std::path::Path;

use burn_nccl_records::checkpoint::Checkpoint;
use burn_nccl_records::{Manifest, OpenOptions, Source};

/// What a file may expand to here: small, so that an attack on memory is one on time as well, which shows.
const MAX_EXPANDED_BYTES: u64 = 16 << 20;

const ZSTD_MAGIC: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];

/// A way to read hostile bytes; `folder` is an empty folder for files.
pub type Reader = fn(bytes: &[u8], folder: &Path);

/// Each by the name of its corpus.
pub const READERS: [(&str, Reader); 8] = [
    ("burnpack", weights),
    ("index", index),
    ("manifest", manifest),
    ("pickle", pickle),
    ("pytorch", weights),
    ("safetensors", weights),
    ("state", state),
    ("zstd", zstd),
];

/// A file of weights of any format.
pub fn weights(bytes: &[u8], folder: &Path) {
    let file = folder.join("weights");
    fs::write(&file, bytes).expect("the folder can be written");
    read_all(&file);
}

/// A compressed file; what is not compressed yet is, so that changes reach what lies behind.
pub fn zstd(bytes: &[u8], folder: &Path) {
    if bytes.starts_with(&ZSTD_MAGIC) {
        return weights(bytes, folder);
    }
    weights(&zstd::encode_all(bytes, 1).expect("memory takes all"), folder);
}

/// A pickle in an archive that is otherwise sound, whose checksums would stop a changed one.
pub fn pickle(bytes: &[u8], folder: &Path) {
    let storage: Vec<u8> = (0..64).collect();
    let entries: [(&str, &[u8]); 4] = [
        ("archive/data.pkl", bytes),
        ("archive/byteorder", b"little"),
        ("archive/data/0", &storage),
        ("archive/version", b"3\n"),
    ];
    weights(&zip(&entries), folder);
}

/// An index beside two shards.
pub fn index(bytes: &[u8], folder: &Path) {
    for (shard, tensor) in [("a.safetensors", "x"), ("b.safetensors", "y")] {
        fs::write(folder.join(shard), safetensors(tensor)).expect("the folder can be written");
    }
    let file = folder.join("model.safetensors.index.json");
    fs::write(&file, bytes).expect("the folder can be written");
    read_all(&file);
}

/// A manifest beside a file, as a manifest and as that of a checkpoint.
pub fn manifest(bytes: &[u8], folder: &Path) {
    fs::write(folder.join("model.bpk"), "weights").expect("the folder can be written");
    fs::write(folder.join(Manifest::FILE_NAME), bytes).expect("the folder can be written");
    if let Ok(manifest) = Manifest::read(folder) {
        let _ = manifest.verify(folder).to_string();
    }
    read_all(folder);
}

/// The state of a training, in a checkpoint whose manifest fits it.
pub fn state(bytes: &[u8], folder: &Path) {
    const FILES: [&str; 3] = ["model.bpk", "optimizer.bpk", "state.json"];
    let contents: [&[u8]; 3] = [b"weights", b"momentum", bytes];
    for (name, contents) in FILES.iter().zip(contents) {
        fs::write(folder.join(name), contents).expect("the folder can be written");
    }
    let manifest = Manifest::describe(folder, &FILES).expect("the files are there");
    // Not by the manifest itself, which waits for the disk.
    let manifest = serde_json::to_vec(&manifest).expect("a manifest is JSON");
    fs::write(folder.join(Manifest::FILE_NAME), manifest).expect("the folder can be written");
    match Checkpoint::open(folder) {
        Ok(checkpoint) => drop(format!("{:?}", checkpoint.state())),
        Err(error) => drop(error.to_string()),
    }
}

fn read_all(path: &Path) {
    let options = OpenOptions::default().with_max_expanded_bytes(MAX_EXPANDED_BYTES);
    match Source::open(path, &options) {
        // The text of an error is made from the file as well.
        Err(error) => drop(error.to_string()),
        Ok(source) => {
            for tensor in source.tensors() {
                let elements =
                    tensor.shape().iter().try_fold(1_u64, |product, &size| product.checked_mul(size as u64));
                let Ok(data) = tensor.data() else { continue };
                assert_eq!(elements, Some(data.num_elements() as u64), "`{}`", tensor.name());
                assert_eq!(tensor.byte_len(), data.as_bytes().len() as u64, "`{}`", tensor.name());
            }
        }
    }
}

/// A shard with one tensor of two floats.
fn safetensors(tensor: &str) -> Vec<u8> {
    let header = format!(r#"{{"{tensor}":{{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}}}"#);
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &[0; 8]].concat()
}

/// An archive of stored entries. Source: PKWARE's APPNOTE.TXT, sections 4.3.7, 4.3.12 and 4.3.16.
fn zip(entries: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    for (name, contents) in entries {
        let offset = archive.len() as u32;
        let sizes = [crc32(contents), contents.len() as u32, contents.len() as u32];
        // Version 2.0, no flags, stored, midnight of 1980-01-01.
        let mut common = vec![20, 0, 0, 0, 0, 0, 0, 0, 33, 0];
        common.extend(sizes.iter().flat_map(|size| size.to_le_bytes()));
        common.extend((name.len() as u16).to_le_bytes());
        common.extend([0, 0]);
        archive.extend([b"PK\x03\x04", &common[..], name.as_bytes(), contents].concat());
        directory.extend(
            [b"PK\x01\x02\x14\0", &common[..], &[0; 10], &offset.to_le_bytes(), name.as_bytes()].concat(),
        );
    }
    let count = (entries.len() as u16).to_le_bytes();
    let (start, length) = (archive.len() as u32, directory.len() as u32);
    let end =
        [b"PK\x05\x06\0\0\0\0", &count[..], &count, &length.to_le_bytes(), &start.to_le_bytes(), &[0, 0]];
    [archive, directory, end.concat()].concat()
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    })
}
