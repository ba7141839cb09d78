//! What the ranks of the process tests do.
//!
//! A test starts the program `test-rank` once per rank, with a [`Scenario`] as JSON in its only argument and the
//! environment of a launcher around it. The program plays the scenario and prints one [`Report`].

// The crate's own tests play it in threads.
#[path = "../../backend-nccl/tests/conformance/suite/mod.rs"]
pub mod conformance;
pub mod data;
pub mod digits;
pub mod evaluation;
pub mod exchange;
pub mod fault;
pub mod faulty_job;
pub mod fingerprint;
pub mod learning;
pub mod loader;
pub mod model;
pub mod parts;
pub mod report;
pub mod resnet;
pub mod resuming;
pub mod saving;
pub mod scenario;
pub mod stress;
pub mod training;
pub mod transfers;

pub use report::Report;
pub use scenario::Scenario;
