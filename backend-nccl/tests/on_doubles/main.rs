//! The real server of cubecl-cuda, its queues and its memory pools, on the test double of the driver (`tests/stubs`).
//!
//! The double runs no kernels, so these tests use what needs none: to create, to copy, to read and to wait. cudarc loads the
//! driver by name and once a process, so every test runs in a process of its own with the double's folder in
//! `LD_LIBRARY_PATH`: [`Stubs::run_test`](stubs::Stubs::run_test) starts the ignored test of the same name in `inside`.
//!
//! cubecl-cuda links LLVM. Where it has none, `cargo test` builds this with a stand-in whose functions are not there, and the
//! program must be started with functions that abort in `LD_PRELOAD`, which the processes it starts have too.

mod buckets;
mod collectives;
mod failures;
mod ranks;
mod refusals;
mod server;
