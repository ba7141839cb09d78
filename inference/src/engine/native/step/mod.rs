//! What a compiled network does, one step after another.

mod block;
mod direct;
mod elementwise;
mod layout;
mod packed;
mod pad;
mod pool;
mod winograd;

pub(super) use block::{Block, Flatten};
pub(super) use direct::Direct;
pub(super) use elementwise::{AddStep, AffineStep, BoundStep};
pub(super) use layout::Layout;
pub(super) use packed::by_block;
pub(super) use pad::Pad;
pub(super) use pool::{GlobalAverage, PoolStep};
pub(super) use winograd::Winograd;

use std::ops::Range;

use super::graph::INPUT;
use super::kernel::Kernels;
use super::simd::Isa;

/// One step of a network.
pub(super) trait Step: Send + Sync {
    /// Computes a thread's part.
    ///
    /// # Safety
    ///
    /// The context's memory is that of the plan which the step was made with; every thread of the team runs the same step
    /// of the same plan, and nothing else touches the memory.
    unsafe fn run(&self, context: &Context<'_>);

    /// Values of memory that each thread needs besides.
    fn scratch(&self) -> usize {
        0
    }
}

/// The values that a convolution reads and writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Io {
    pub(super) input: usize,
    pub(super) out: usize,
    /// Added to the sums; may be `out`.
    pub(super) residual: Option<usize>,
}

/// Where a value lies: at `offset * batch`, the images one after another.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Place {
    pub(super) offset: usize,
    /// Values of one image.
    pub(super) values: usize,
}

/// What a step runs with.
pub(super) struct Context<'a> {
    pub(super) batch: usize,
    pub(super) isa: Isa,
    pub(super) kernels: &'static Kernels,
    /// By value of the graph.
    pub(super) places: &'a [Place],
    pub(super) input: *const f32,
    pub(super) memory: *mut f32,
    /// This thread's own.
    pub(super) scratch: *mut f32,
    pub(super) thread: usize,
    pub(super) threads: usize,
}

impl Context<'_> {
    /// The first image of a value. Of the input it must only be read.
    pub(super) fn images(&self, value: usize) -> *mut f32 {
        if value == INPUT {
            return self.input.cast_mut();
        }
        // SAFETY: the memory holds every place of the plan for this batch.
        unsafe { self.memory.add(self.places[value].offset * self.batch) }
    }

    /// Values of one image.
    pub(super) fn stride(&self, value: usize) -> usize {
        self.places[value].values
    }

    /// This thread's part of `count` things.
    pub(super) fn part(&self, count: usize) -> Range<usize> {
        count * self.thread / self.threads..count * (self.thread + 1) / self.threads
    }
}
