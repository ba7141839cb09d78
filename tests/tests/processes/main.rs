//! Whole jobs of real processes: each test starts `test-rank` once per rank and compares what the ranks report.

mod checkpoints;
mod communication;
mod conformance;
mod determinism;
mod faults;
mod harness;
mod hosts;
mod launchers;
mod layered;
mod learner;
mod mpi;
mod mpi_hosts;
mod parity;
mod random_faults;
mod reports;
mod sync_batch_norm;
mod uneven;
