//! A test double of NCCL: a `libnccl.so.2` over the memory of the driver's double, which moves the data of all collectives
//! between threads and processes, checks every argument and every call, and fails as it is told. Nothing outside of tests may
//! load it.
//!
//! It uses the `libcuda.so.1` of its own folder. See `tests/stubs/README.md` for what it checks and what it cannot show.

mod api;
mod batch;
mod check;
mod code;
mod communicator;
mod datatype;
mod driver;
mod execute;
mod hub;
mod library;
mod private;
mod reduce;
mod unique_id;
mod wire;
