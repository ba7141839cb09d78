//! Communication hooks: how the gradients in a bucket become the average over all ranks.
//!
//! | hook | what travels | for |
//! |---|---|---|
//! | [`AllReduce`] | the gradients | the default; exact |
//! | [`HalfPrecision`] | gradients rounded to f16 or bf16 | half the bytes, no state |
//! | [`PowerSgd`] | two thin matrices for each weight | a tenth to a hundredth of the bytes, on slow networks |
//! | your own [`CommunicationHook`] | what it sends | everything else |
//!
//! The first three are chosen by [`DdpConfig::communication`](super::DdpConfig::communication); a hook of your own is
//! given to [`DistributedDataParallel::with_communication_hook`](super::DistributedDataParallel::with_communication_hook).
//!
//! # Order
//!
//! Ranks must run the same collectives in the same order, and a hook may need several for one bucket, of which a later
//! one sends what the earlier one brought. PyTorch chains futures: the second collective is issued by whichever thread
//! finishes the first, at a moment that differs between ranks, and may then fall on different sides of another
//! bucket's. Here a bucket takes *all* its places in the group's order when it is launched, on the thread of the
//! backward pass, where launches come in bucket order; [`CommunicationHook::collectives`] says how many. The hook then
//! runs on the communication thread with those places in hand, as straight-line code:
//!
//! - The order on every rank is that of the launches. What a hook computes between its collectives cannot change it.
//! - A collective of a synchronized batch norm takes its place on the same thread as the launches and waits for its turn;
//!   the job before it needs nothing from that thread, so nobody waits in a circle.
//! - A job ends: each of its collectives is under the group's deadline, and a place that a job leaves unused (because
//!   all ranks decided so from what they share) is passed over.
//! - The price: while a hook computes, the group's network is idle. On the networks that such a hook is for, sending
//!   takes much longer than compressing.
//!
//! The alternative, dependent rounds in `finish` in bucket order, would need no places in hand, but would send
//! everything after the backward pass.
//!
//! # What a hook keeps
//!
//! A step counts for what a hook keeps from step to step only in [`CommunicationHook::finish`], after every bucket has
//! been averaged and all ranks have agreed on which parameters were used. Until then a step can fail or turn out to be
//! one that loss scaling skips, and nothing may have changed.

mod bucket;
mod half;
mod hook;
mod option;
mod power_sgd;
mod runner;
mod whole;

pub use bucket::{BucketLayout, BucketParameter, GradientBucket};
pub use half::{HalfPrecision, HalfType};
pub use hook::{CommunicationHook, HookError, HookState};
pub use option::Communication;
pub use power_sgd::{PowerSgd, PowerSgdConfig};
pub(crate) use runner::{Communicator, Terms};
pub use whole::AllReduce;
