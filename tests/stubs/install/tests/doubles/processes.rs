//! A communicator over two processes: the test's own, and another that runs the ignored test below.

use std::{
    path::Path,
    process::{Command, Stdio},
};

use stubs::{Config, Stubs};

use crate::libraries::{Doubles, UniqueId};

const FOLDER: &str = "BURN_NCCL_STUBS_FOLDER";
const ID: &str = "BURN_NCCL_STUBS_ID";

/// Sums 1 of rank 0 and 2 of rank 1, on each.
fn sum(doubles: &Doubles, id: UniqueId, rank: i32) {
    doubles.use_gpu(rank);
    let (communicator, code) = doubles.join(2, id, rank);
    assert_eq!(code, 0);
    let (stream, memory) = (doubles.stream(1), doubles.with(&(rank as f32 + 1.0).to_le_bytes()));
    assert_eq!(doubles.all_reduce((memory, memory, 1, 7, 0), communicator, stream), 0);
    assert_eq!(doubles.synchronize(stream), 0);
    assert_eq!(doubles.bytes(memory, 4), 3_f32.to_le_bytes());
    assert_eq!(doubles.destroy(communicator), 0);
    assert_eq!(doubles.faults(), [""; 0]);
}

#[test]
fn two_processes_reduce_together() {
    let doubles = Doubles::new(&Config::default());
    let id = doubles.unique_id();
    let text: String = id.0.iter().map(|byte| format!("{byte:02x}")).collect();
    let other = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "processes::the_other_process"])
        .env(FOLDER, doubles.stubs.folder())
        .env(ID, text)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    sum(&doubles, id, 0);
    let other = other.wait_with_output().unwrap();
    assert!(other.status.success(), "{}", String::from_utf8_lossy(&other.stdout));
}

#[test]
#[ignore = "started by the test above, in a process of its own"]
fn the_other_process() {
    let folder = std::env::var(FOLDER).unwrap();
    let text = std::env::var(ID).unwrap();
    let mut id = UniqueId([0; 128]);
    for (byte, digits) in id.0.iter_mut().zip(text.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
    }
    sum(&Doubles::of(Stubs::open(Path::new(&folder))), id, 1);
}
