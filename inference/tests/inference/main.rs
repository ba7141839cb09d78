//! Files of ONNX and the engines, through what the crate offers.

#[path = "../../src/testing.rs"]
#[allow(dead_code, reason = "each test uses a part")]
mod testing;

mod common;
mod damaged;
mod engines;
mod fold;
mod python;
mod read;
mod weights;
