//! How much memory loading takes. The peak is that of a whole process, so each measurement is a process of its own.

use std::path::Path;
use std::process::Command;

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor, TensorData};
use burn_nccl_records::{LoadOptions, OpenOptions, Source, load};

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
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "--nocapture", &format!("loading_memory::{test}")])
        .env(TASK, path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let figure = text.lines().find_map(|line| line.trim().strip_prefix("measured ")?.parse().ok());
    figure.unwrap_or_else(|| panic!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// The growth of the peak over what the process had before, mapped pages of the file included.
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
    let device = Device::flex();
    let values = |_| Param::from_data(TensorData::new(vec![3f32; VALUES], [VALUES]), &device);
    let path = folder.path().join("weights.bpk");
    Weights { weights: (0..WEIGHTS).map(values).collect() }.into_record().save(&path).unwrap();
    let compressed = folder.path().join("weights.bpk.zst");
    let file = std::fs::File::open(&path).unwrap();
    zstd::stream::copy_encode(file, std::fs::File::create(&compressed).unwrap(), 1).unwrap();
    for path in [path, compressed] {
        let peak = measured(NAME, &path);
        assert!(peak <= FILE_BYTES * 6 / 5, "{}: {peak} bytes for {FILE_BYTES}", path.display());
    }
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
