//! Faults that a rank commits on purpose.

use std::sync::Arc;
use std::time::Duration;

use burn::tensor::Tensor;
use burn_nccl::{
    ArrivedGradient, DType, Error, GradientHook, GradientSink, ProcessGroup, ReduceOp, gradient_hook,
};
use nix::sys::signal::{Signal, raise};
use serde::{Deserialize, Serialize};

/// The exit code of a rank that leaves on purpose.
pub const FAULT_EXIT_CODE: i32 = 7;
/// The message of a panic on purpose.
pub const FAULT_MESSAGE: &str = "a fault that the test asked for";

/// Where in a step a rank fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Place {
    /// Between the hooks and the loss.
    Forward,
    /// When the gradient of the logits arrives.
    Backward,
    /// In an all-reduce of its own, for which the others have come.
    Collective,
}

/// How a rank fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Manner {
    /// A panic.
    Panic,
    /// `std::process::exit`, as a program does that gives up.
    Exit,
    /// `SIGKILL`, as the out-of-memory killer does.
    Kill,
    /// `SIGSTOP`: the process stays and does nothing, like one that hangs.
    Stop,
}

/// One fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The rank that commits it.
    pub rank: usize,
    /// In which step, from 0.
    pub step: usize,
    /// Where in the step.
    pub place: Place,
    /// How.
    pub manner: Manner,
}

impl Fault {
    fn is_due(&self, place: Place, step: usize, rank: usize) -> bool {
        (self.place, self.step, self.rank) == (place, step, rank)
    }

    /// Fails in the forward pass if it is time.
    pub fn in_forward(&self, step: usize, rank: usize) {
        if self.is_due(Place::Forward, step, rank) {
            commit(self.manner);
        }
    }

    /// `logits` with a hook that fails in the backward pass if it is time.
    pub fn in_backward(&self, step: usize, rank: usize, logits: Tensor<2>) -> Tensor<2> {
        if !self.is_due(Place::Backward, step, rank) {
            return logits;
        }
        let lift = Tensor::zeros([1], &logits.device());
        gradient_hook(logits, &lift, GradientHook::new(Arc::new(FaultySink(self.manner)), 0))
    }

    /// Takes part in one all-reduce more if it is time, and fails in it on the rank that is to fail.
    ///
    /// # Errors
    /// What the all-reduce returns.
    pub fn in_collective(&self, step: usize, group: &ProcessGroup) -> Result<(), Error> {
        if self.place != Place::Collective || self.step != step {
            return Ok(());
        }
        let is_faulty = self.rank == group.rank();
        let buffer =
            FaultyBuffer { bytes: vec![0; 1 << 20], manner: is_faulty.then_some(self.manner), uses: 0 };
        group.all_reduce_async(buffer, DType::F32, ReduceOp::Sum).wait().map(drop)
    }
}

/// Fails, here and now.
pub(crate) fn commit(manner: Manner) {
    match manner {
        Manner::Panic => panic!("{FAULT_MESSAGE}"),
        Manner::Exit => std::process::exit(FAULT_EXIT_CODE),
        Manner::Kill => send(Signal::SIGKILL),
        Manner::Stop => send(Signal::SIGSTOP),
    }
}

fn send(signal: Signal) {
    raise(signal).expect("a process may signal itself");
    // Raised on this thread, so nothing runs past it; a moment all the same, should a system deliver it late.
    std::thread::sleep(Duration::from_secs(1));
}

struct FaultySink(Manner);

impl GradientSink for FaultySink {
    fn receive(&self, _: usize, _: &ArrivedGradient<'_>) {
        commit(self.0);
    }

    fn fail(&self, _: usize, _: Error) {}
}

/// A buffer that fails when the communication thread takes it for the all-reduce.
struct FaultyBuffer {
    bytes: Vec<u8>,
    manner: Option<Manner>,
    uses: usize,
}

impl AsMut<[u8]> for FaultyBuffer {
    fn as_mut(&mut self) -> &mut [u8] {
        // The first use measures the length at the call.
        self.uses += 1;
        if let (2, Some(manner)) = (self.uses, self.manner) {
            commit(manner);
        }
        &mut self.bytes
    }
}
