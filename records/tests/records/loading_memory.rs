//! How much memory loading takes. The peak is that of a whole process, so each measurement is a process of its own.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use burn_nccl_records::{Error, LoadOptions, OpenOptions, SaveFormat, SaveOptions, Source, load, save};

use crate::fixtures::fixture;

const WEIGHTS: usize = 8;
/// Values of one weight: 8 MiB of f32.
const VALUES: usize = 2 << 20;
const FILE_BYTES: u64 = (WEIGHTS * VALUES * 4) as u64;

#[derive(Module, Debug)]
struct Weights {
    weights: Vec<Param<Tensor<1>>>,
}

fn weights(device: &Device) -> Weights {
    let weight = |_| {
        let zeros = |device: &Device, _| Tensor::zeros([VALUES], device);
        Param::uninitialized(Default::default(), zeros, device.clone(), false, [VALUES].into())
    };
    Weights { weights: (0..WEIGHTS).map(weight).collect() }
}

/// A line of `/proc/self/status`, in bytes.
fn status(field: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
}

const TASK: &str = "BURN_NCCL_TEST_MEASURE";

/// Runs `test` of this file in a process of its own, with `path` as its task, and returns the figure that it prints.
fn measured(test: &str, path: &Path) -> u64 {
    figure(&mut Command::new(std::env::current_exe().unwrap()), test, path)
}

fn figure(program: &mut Command, test: &str, path: &Path) -> u64 {
    let output = program
        .args(["--exact", "--nocapture", &format!("loading_memory::{test}")])
        .env(TASK, path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let figure = text.lines().find_map(|line| line.trim().strip_prefix("measured ")?.parse().ok());
    figure.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// The growth of the peak over what the process had before, mapped pages of the file included. It is the same for a PyTorch
/// file, whose values are read to memory that the tensors keep.
#[test]
fn loading_takes_at_most_a_fifth_more_than_the_file() {
    const NAME: &str = "loading_takes_at_most_a_fifth_more_than_the_file";
    if let Some(path) = std::env::var_os(TASK) {
        let before = status("VmRSS");
        let device = Device::flex();
        let (loaded, _) = load(&weights(&device), path, &LoadOptions::default()).unwrap();
        // Every value is touched, as a mapped file takes no memory before.
        let sum: f32 = loaded.weights.iter().map(|weight| weight.val().max().into_scalar::<f32>()).sum();
        assert_eq!(sum, WEIGHTS as f32 * 3.0);
        println!("measured {}", status("VmHWM").saturating_sub(before));
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    for path in files(folder.path()) {
        let peak = measured(NAME, &path);
        println!("{}: {peak} bytes for {FILE_BYTES}", path.display());
        assert!(peak <= FILE_BYTES * 6 / 5, "{}: {peak} bytes for {FILE_BYTES}", path.display());
    }
}

/// The same weights in every format, and compressed.
fn files(folder: &Path) -> Vec<PathBuf> {
    let device = Device::flex();
    let values = |_| Param::from_data(TensorData::new(vec![3f32; VALUES], [VALUES]), &device);
    let weights = Weights { weights: (0..WEIGHTS).map(values).collect() };
    let [bpk, one, shards, pth] =
        ["weights.bpk", "weights.safetensors", "shards", "weights.pth"].map(|name| folder.join(name));
    let options = SaveOptions::default().with_durable(false);
    let safetensors = options.clone().with_format(SaveFormat::Safetensors);
    save(&weights, &bpk, &options).unwrap();
    save(&weights, &one, &safetensors).unwrap();
    save(&weights, &shards, &safetensors.with_max_shard_bytes(FILE_BYTES / 4)).unwrap();
    fs::write(&pth, archive()).unwrap();
    let compressed = folder.join("weights.bpk.zst");
    zstd::stream::copy_encode(File::open(&bpk).unwrap(), File::create(&compressed).unwrap(), 1).unwrap();
    let repeated = folder.join("weights.pth.zst");
    zstd::stream::copy_encode(File::open(&pth).unwrap(), File::create(&repeated).unwrap(), 1).unwrap();
    vec![bpk, one, shards, pth, compressed, repeated]
}

/// What `torch.save` writes of a dictionary of the weights: a zip archive, whose pickle says where each is.
fn archive() -> Vec<u8> {
    let storage = 3f32.to_le_bytes().repeat(VALUES);
    let checksum = crc32(&storage);
    let (mut archive, mut directory) = (Vec::new(), Vec::new());
    let mut entry = |name: &str, bytes: &[u8], checksum: u32| {
        let size = (bytes.len() as u32).to_le_bytes();
        // Version 2.0, no flags, stored as it is, of the first day of 1980.
        let mut header = vec![20, 0, 0, 0, 0, 0, 0, 0, 0x21, 0];
        header.extend([checksum.to_le_bytes(), size, size].concat());
        header.extend((name.len() as u32).to_le_bytes());
        directory.extend(
            [
                b"PK\x01\x02\x14\0",
                &header[..],
                &[0; 10],
                &(archive.len() as u32).to_le_bytes(),
                name.as_bytes(),
            ]
            .concat(),
        );
        archive.extend([b"PK\x03\x04", &header[..], name.as_bytes(), bytes].concat());
    };
    let pickle = pickle();
    entry("weights/data.pkl", &pickle, crc32(&pickle));
    entry("weights/byteorder", b"little", crc32(b"little"));
    (0..WEIGHTS).for_each(|index| entry(&format!("weights/data/{index}"), &storage, checksum));
    let entries = (WEIGHTS as u16 + 2).to_le_bytes();
    let (size, at) = ((directory.len() as u32).to_le_bytes(), (archive.len() as u32).to_le_bytes());
    let end = [b"PK\x05\x06\0\0\0\0", &entries[..], &entries, &size, &at, &[0, 0]].concat();
    [archive, directory, end].concat()
}

/// By the pickle's own operations: a dictionary of calls of `_rebuild_tensor_v2`.
fn pickle() -> Vec<u8> {
    let text = |text: &str| [b"X", &(text.len() as u32).to_le_bytes()[..], text.as_bytes()].concat();
    let values = [b"J", &(VALUES as u32).to_le_bytes()[..]].concat();
    let weight = |index: usize| {
        [
            &text(&format!("weights.{index}"))[..],
            b"ctorch._utils\n_rebuild_tensor_v2\n((",
            &text("storage"),
            b"ctorch\nFloatStorage\n",
            &text(&index.to_string()),
            &text("cpu"),
            &values,
            // The storage, the offset 0, the shape, the stride 1, no gradient and no hooks.
            b"tQK\0",
            &values,
            b"\x85K\x01\x85\x89}tR",
        ]
        .concat()
    };
    let weights: Vec<u8> = (0..WEIGHTS).flat_map(weight).collect();
    [b"\x80\x02}(", &weights[..], b"u."].concat()
}

/// As zip archives have it.
fn crc32(bytes: &[u8]) -> u32 {
    let update = |crc: u32, byte: &u8| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg()))
    };
    !bytes.iter().fold(!0, update)
}

/// A process that may have 8 GiB of addresses, as under `ulimit -v`.
#[test]
fn a_compressed_file_takes_the_addresses_that_it_says_and_one_that_says_none_those_that_are_allowed() {
    const NAME: &str =
        "a_compressed_file_takes_the_addresses_that_it_says_and_one_that_says_none_those_that_are_allowed";
    let options = OpenOptions::default().with_max_expanded_bytes(1 << 40);
    if let Some(folder) = std::env::var_os(TASK) {
        let open = |name: &str| Source::open(Path::new(&folder).join(name), &options);
        assert_eq!(open("says").unwrap().tensors().len(), WEIGHTS);
        let refused = open("says-none").unwrap_err();
        assert!(matches!(refused, Error::Memory { bytes: 0x100_0000_0000, .. }), "{refused}");
        assert!(refused.to_string().contains("max_expanded_bytes"), "{refused}");
        println!("measured 0");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let file = fs::read(&files(folder.path())[0]).unwrap();
    // At once, zstd knows the size, and in pieces it does not.
    fs::write(folder.path().join("says"), zstd::bulk::compress(&file, 1).unwrap()).unwrap();
    fs::write(folder.path().join("says-none"), zstd::encode_all(&file[..], 1).unwrap()).unwrap();
    let limited = ["-c", "ulimit -v 8388608 && exec \"$0\" \"$@\""];
    figure(Command::new("sh").args(limited).arg(std::env::current_exe().unwrap()), NAME, folder.path());
}

// C16, C18: each file is smaller than 5 kB and asks for gigabytes.
#[test]
fn hostile_files_take_little_memory() {
    const NAME: &str = "hostile_files_take_little_memory";
    if std::env::var_os(TASK).is_some() {
        let before = status("VmRSS");
        let hostile = std::fs::read_dir(fixture("")).unwrap().map(|entry| entry.unwrap().path());
        let hostile =
            hostile.filter(|path| path.file_name().unwrap().to_str().unwrap().starts_with("hostile-"));
        let mut files = 0;
        for path in hostile {
            let read = Source::open(path, &OpenOptions::default()).and_then(|source| {
                source.tensors().iter().map(|tensor| tensor.data()).collect::<Result<Vec<_>, _>>()
            });
            assert!(read.is_err());
            files += 1;
        }
        assert_eq!(files, 10);
        println!("measured {}", status("VmHWM").saturating_sub(before));
        return;
    }
    let peak = measured(NAME, Path::new("-"));
    assert!(peak < 256 << 20, "{peak} bytes");
}
