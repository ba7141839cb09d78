//! Data-parallel training with gradients in host memory, and with gradients as tensors on their device: the same tests twice.
//! On a GPU the second is what runs; here the tensors' way ends in the host transport.

#![allow(clippy::duplicate_mod, reason = "the same tests run with two configurations")]

mod in_host_memory;
mod on_the_device;
