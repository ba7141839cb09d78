//! Damaged files are errors, never a panic, and take memory in proportion to their size.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::Instant;

use burn_nccl_inference::{EngineChoice, EngineKind, Onnx, WeightType, load};

use crate::common::options;
use crate::testing::{Conv, Net, Random, ints};

/// Counts the bytes that the thread of a test holds.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread that ends has no counter any more.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

// SAFETY: the system's allocator does the work; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's layout is handed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the pointer came from the system's allocator, with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The bytes that reading takes above those that were held before.
fn taken(bytes: &[u8]) -> usize {
    let before = HELD.get();
    MOST.set(before);
    drop(Onnx::from_bytes(bytes));
    (MOST.get() - before) as usize
}

/// A network of every operation of a residual one, with so few weights that much of the damage meets what is not a weight.
fn small() -> Net {
    let mut net = Net::new(1, 4, 4);
    let conv = net.conv("input", Conv { bias: true, ..Conv::same(1, 2, 3) });
    let normal = net.batch_norm(&conv, 2);
    let relu = net.node("Relu", &[&normal], vec![]);
    let window = vec![ints("kernel_shape", &[2, 2]), ints("pads", &[0; 4]), ints("strides", &[2, 2])];
    let pooled = net.node("MaxPool", &[&relu], window);
    let conv = net.conv(&pooled, Conv { groups: 2, ..Conv::same(2, 2, 1) });
    let sum = net.node("Add", &[&conv, &pooled], vec![]);
    let output = net.head(&sum, 2, 2);
    net.output(&output, 2);
    net
}

#[test]
fn every_beginning_of_a_file_is_an_error_or_a_network() {
    let bytes = small().bytes();
    let mut networks = 0;
    for end in 0..bytes.len() {
        if let Ok(onnx) = Onnx::from_bytes(&bytes[..end]) {
            networks += 1;
            assert_eq!(onnx.signature().classes, 2);
        }
    }
    // The version of the operations comes last, so that no beginning is whole.
    assert_eq!(networks, 0);
    Onnx::from_bytes(&bytes).unwrap();
}

#[test]
fn ten_thousand_damaged_files_take_no_more_than_their_bound() {
    let bytes = small().bytes();
    let mut random = Random(0x5eed);
    let mut accepted = 0;
    for round in 0..10_000 {
        let mut damaged = bytes.clone();
        for _ in 0..=round % 4 {
            let place = random.below(damaged.len());
            damaged[place] ^= 1 << random.below(8);
        }
        accepted += usize::from(Onnx::from_bytes(&damaged).is_ok());
        let taken = taken(&damaged);
        assert!(taken < 64 * bytes.len(), "round {round} takes {taken} bytes");
    }
    // Most bits are those of weights, so that many of the files are networks still.
    assert!(accepted > 1000, "{accepted}");
}

#[test]
fn random_bytes_behind_a_right_start_are_errors() {
    let start = &small().bytes()[..2];
    let mut random = Random(0xb17e5);
    for _ in 0..10_000 {
        let length = random.below(256);
        let bytes: Vec<u8> = start.iter().copied().chain((0..length).map(|_| random.bits() as u8)).collect();
        assert!(Onnx::from_bytes(&bytes).is_err());
        assert!(taken(&bytes) < 1 << 20);
    }
}

#[test]
fn a_file_of_lengths_that_are_not_there_takes_nothing() {
    // A tensor that says it has two gigabytes.
    let bytes = [0x08, 0x08, 0x3a, 0xf8, 0xff, 0xff, 0xff, 0x07, 0x2a, 0xf0, 0xff, 0xff, 0xff, 0x07, 0x4a];
    assert!(taken(&bytes) < 4096);
}

#[test]
fn reading_takes_what_the_file_has_and_its_largest_tensor_once_more() {
    let mut net = Net::new(64, 4, 4);
    let mut conv = "input".to_owned();
    for _ in 0..8 {
        conv = net.conv(&conv, Conv::same(64, 64, 3));
    }
    let output = net.head(&conv, 64, 3);
    net.output(&output, 3);
    let bytes = net.bytes();
    let taken = taken(&bytes);
    let largest = 64 * 64 * 9 * size_of::<f32>();
    assert!(taken < bytes.len() + largest + (1 << 17), "{taken} for {}", bytes.len());
}

/// How long the last test looks for a file that does harm: a second, or what `BURN_NCCL_FUZZ_SECONDS` says.
fn seconds() -> f64 {
    std::env::var("BURN_NCCL_FUZZ_SECONDS").ok().and_then(|seconds| seconds.parse().ok()).unwrap_or(1.0)
}

/// Bits, bytes and pieces changed in a few places.
fn damage(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let mut damaged = bytes.to_vec();
    for _ in 0..=random.below(4) {
        let place = random.below(damaged.len());
        let length = random.below(16).min(damaged.len() - place);
        match random.below(5) {
            0 => damaged[place] = random.bits() as u8,
            1 => drop(damaged.drain(place..place + length)),
            2 => damaged.copy_within(place..place + length, random.below(bytes.len() / 2).min(place)),
            3 => damaged[place..place + length].fill(0xff),
            _ => damaged[place] ^= 1 << random.below(8),
        }
    }
    damaged
}

#[test]
fn what_is_accepted_of_damaged_files_is_changed_loaded_and_run_without_a_panic() {
    let files = WeightType::ALL.map(|weights| {
        let mut onnx = Onnx::from_bytes(&small().bytes()).unwrap();
        onnx.set_weights(weights).unwrap();
        onnx.to_bytes()
    });
    let start = Instant::now();
    let (mut accepted, mut loaded) = (0, 0);
    for seed in 1_u64.. {
        if start.elapsed().as_secs_f64() > seconds() {
            break;
        }
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let damaged = damage(&files[random.below(3)], &mut random);
        let Ok(mut onnx) = Onnx::from_bytes(&damaged) else { continue };
        accepted += 1;
        if random.below(2) == 0 {
            let _ = onnx.fold_batch_norms();
            let _ = onnx.set_weights(WeightType::ALL[random.below(3)]);
            if let Err(error) = Onnx::from_bytes(&onnx.to_bytes()) {
                panic!("seed {seed}: what was written is refused: {error}");
            }
        }
        for kind in [EngineKind::Native, EngineKind::Tract] {
            let Ok(mut engine) = load(&onnx, EngineChoice::Only(kind), &options()) else { continue };
            loaded += 1;
            let signature = onnx.signature();
            let batch = signature.batch.unwrap_or(1);
            if batch * signature.image_values() > 1 << 20 {
                continue;
            }
            let mut logits = Vec::new();
            let images = vec![0.5; batch * signature.image_values()];
            if engine.run(batch, &images, &mut logits).is_ok() {
                assert_eq!(logits.len(), batch * signature.classes, "seed {seed}");
            }
        }
    }
    assert!(accepted > 10 && loaded > 5, "{accepted} accepted, {loaded} loaded");
}
