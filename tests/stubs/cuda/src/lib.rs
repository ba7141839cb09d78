//! A test double of the CUDA driver: a `libcuda.so.1` over host memory, whose streams are threads with random delays and whose
//! freed memory is poisoned. Nothing outside of tests may load it.
//!
//! `api` has the driver's functions under their own names, and `private` what tests and the double of NCCL
//! ask of the double itself. See
//! `tests/stubs/README.md` for what it checks and what it cannot show.

mod api;
mod code;
mod context;
mod copy;
mod driver;
mod event;
mod memory;
mod private;
mod stream;
