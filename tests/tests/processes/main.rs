//! Whole jobs of real processes: each test starts `test-rank` once per rank and compares what the ranks report.

mod checkpoints;
mod determinism;
mod faults;
mod harness;
mod hosts;
mod launchers;
mod learner;
mod mpi;
mod mpi_hosts;
mod parity;
mod sync_batch_norm;
mod uneven;
