//! The corpus of the fuzz targets and what random changes make of it: CI has no hours for fuzzing and keeps what it found.

use std::fs;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

#[allow(unreachable_pub, reason = "the fuzz targets use it from outside")]
#[path = "../../fuzz/src/readers.rs"]
mod readers;

use readers::{READERS, Reader};

/// Changed inputs of each reader.
const CHANGED: usize = 600;
/// All of them take a second.
const LIMIT: Duration = Duration::from_secs(120);

#[test]
fn what_fuzzing_found_and_random_changes_of_it_end_in_a_value_or_an_error() {
    for (name, reader) in READERS {
        let inputs = inputs(name);
        assert!(!inputs.is_empty(), "the corpus of {name} is empty");
        run(name, reader, inputs);
    }
}

/// Gives every input to `reader`, on a thread of its own so that one that never returns is named.
fn run(name: &str, reader: Reader, inputs: Vec<(String, Vec<u8>)>) {
    let folder = tempfile::tempdir().unwrap();
    let current = Arc::new(Mutex::new(String::new()));
    let (ended, end) = mpsc::channel::<()>();
    let worker = thread::spawn({
        let (path, current) = (folder.path().to_owned(), current.clone());
        move || {
            let _ended = ended;
            for (input, bytes) in inputs {
                *current.lock().unwrap() = input;
                reader(&bytes, &path);
            }
        }
    });
    let input = || current.lock().unwrap_or_else(PoisonError::into_inner).clone();
    if end.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
        panic!("{name}: {} takes too long", input());
    }
    assert!(worker.join().is_ok(), "{name}: {} makes it panic", input());
}

/// The files of a corpus, each with its name, and changed ones, each with what it was made of.
fn inputs(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(name);
    let entries = fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let file = |path: &std::path::PathBuf| {
        (path.file_name().unwrap().display().to_string(), fs::read(path).unwrap())
    };
    let mut inputs: Vec<_> = paths.iter().map(file).collect();
    let corpus = inputs.len();
    for number in 0..CHANGED {
        let mut random = Random(number as u64 + 1);
        let (name, bytes) = &inputs[number % corpus];
        let (name, mut bytes) = (format!("{name}, change {number}"), bytes.clone());
        for _ in 0..=random.below(3) {
            change(&mut bytes, &mut random);
        }
        inputs.push((name, bytes));
    }
    inputs
}

/// Numbers that lengths and offsets overflow with.
const EXTREMES: [u64; 8] = [0, 1, 0x7f, 0xffff, 0x7fff_ffff, 0xffff_ffff, 1 << 63, u64::MAX];

fn change(bytes: &mut Vec<u8>, random: &mut Random) {
    let at = random.below(bytes.len());
    let end = (at + 1 + random.below(16)).min(bytes.len());
    match random.below(6) {
        0 => bytes.truncate(at),
        1 => drop(bytes.drain(at..end)),
        2 => bytes.splice(at..at, bytes[at..end].to_vec()).for_each(drop),
        3 => {
            let number = EXTREMES[random.below(EXTREMES.len())].to_le_bytes();
            let width = (1 << random.below(4)).min(bytes.len() - at);
            bytes[at..at + width].copy_from_slice(&number[..width]);
        }
        // In text, a number or a name becomes another.
        4 => {
            let number = EXTREMES[random.below(EXTREMES.len())].to_string();
            let digits = bytes[at..].iter().position(u8::is_ascii_digit).map_or(at, |offset| at + offset);
            let end = digits + bytes[digits..].iter().take_while(|byte| byte.is_ascii_digit()).count();
            bytes.splice(digits..end, number.into_bytes()).for_each(drop);
        }
        _ if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
        _ => {}
    }
}

/// xorshift64, the same in every run.
struct Random(u64);

impl Random {
    /// A number below `limit`; 0 where that is 0.
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit.max(1)
    }
}
