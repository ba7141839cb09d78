//! Tests against straight loops in f64, and of files that are not as they should be.

mod builder;
mod convolutions;
mod networks;
mod reference;
mod refusals;

use self::builder::Builder;
use super::simd::Isa;
use super::{Engine, Native};
use crate::Onnx;

/// Runs a network on every instruction set of this processor.
fn run_everywhere(onnx: &Onnx, threads: usize, batch: usize, images: &[f32]) -> Vec<(Isa, Vec<f32>)> {
    let run = |isa| {
        let mut engine = Native::load_with(onnx, threads, isa).expect("the network can be run");
        let mut logits = Vec::new();
        engine.run(batch, images, &mut logits).expect("the batch can be run");
        (isa, logits)
    };
    Isa::present().into_iter().map(run).collect()
}

/// Asserts that logits are those of f64, to a part of the largest.
fn assert_close(found: &[f32], expected: &[f64], tolerance: f64, what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().fold(1e-30_f64, |largest, value| largest.max(value.abs()));
    for (at, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        let error = (f64::from(found) - expected).abs() / largest;
        assert!(
            error <= tolerance,
            "{what}: value {at} is {found}, not {expected}: {error:e} of the largest"
        );
    }
}

/// Asserts that a network gives what straight loops in f64 give, on every instruction set, for two images.
fn assert_as_reference(builder: Builder, what: &str) {
    let onnx = builder.finish();
    let images = builder::random(2 * onnx.signature().image_values(), 7);
    let expected = reference::run(&onnx, 2, &images);
    for (isa, logits) in run_everywhere(&onnx, 2, 2, &images) {
        assert_close(&logits, &expected, 1e-5, &format!("{what} on {isa}"));
    }
}
