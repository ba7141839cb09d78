//! This crate's own engine, for networks of convolutions.
//!
//! A file is read into a graph of few operations ([`graph`]), what follows a convolution is joined with it ([`fuse`]), and
//! the rest is compiled into steps that share memory ([`plan`]). Channels are blocked by sixteen, `[blocks, height, width,
//! 16]`, so that one vector holds a pixel; one kernel ([`kernel`]) computes all convolutions and matrix products, on
//! weights packed when the network is loaded. Convolutions of 3x3 are computed with fewer products ([`step`]).
//!
//! An image's logits are the same, bit for bit, in whatever batch it is and with any number of threads: every sum is
//! computed by one thread in one order. Between instruction sets they differ by rounding.
//!
//! Values are taken to be finite. Groups of channels and blocks are filled up with weights of zero, and convolutions of 3x3
//! mix the pixels of a patch, so that one that is infinite or no number makes others no number too, in channels and pixels
//! that do not depend on it. Those of other images of the batch stay as they are.

mod arena;
mod fuse;
mod graph;
mod kernel;
mod memory;
mod plan;
mod simd;
mod step;
mod team;
#[cfg(test)]
mod tests;

use self::graph::failed;
use self::memory::Memory;
use self::plan::Program;
use self::simd::Isa;
use self::step::Context;
use self::team::{Barrier, Team};
use super::Engine;
use crate::{EngineKind, Error, Onnx, Result, Signature};

/// A network of convolutions, compiled for this processor.
pub(super) struct Native {
    signature: Signature,
    program: Program,
    team: Team,
    /// Of the largest batch so far.
    memory: Memory,
    /// Of each thread.
    scratch: Memory,
}

impl Native {
    /// Compiles the network for `threads` threads.
    pub(super) fn load(onnx: &Onnx, threads: usize) -> Result<Self> {
        Self::load_with(onnx, threads, Isa::best())
    }

    /// Compiles the network for an instruction set.
    fn load_with(onnx: &Onnx, threads: usize, isa: Isa) -> Result<Self> {
        let mut graph = graph::read(onnx)?;
        fuse::fuse(&mut graph);
        let program = plan::compile(graph, isa)?;
        let no_memory = || failed("there is no memory for it".to_owned());
        let team =
            Team::new(threads).map_err(|error| failed(format!("no thread can be started: {error}")))?;
        let scratch = program.scratch.checked_mul(team.threads());
        let scratch = scratch.and_then(Memory::new).ok_or_else(no_memory)?;
        Ok(Self { signature: onnx.signature().clone(), program, team, memory: Memory::none(), scratch })
    }

    /// Makes room for a batch.
    fn grow(&mut self, batch: usize) -> Result<()> {
        let needed = self.program.memory.checked_mul(batch);
        if needed.is_some_and(|needed| needed <= self.memory.len()) {
            return Ok(());
        }
        // The old memory goes first: both together could be too much.
        self.memory = Memory::none();
        let memory = needed.and_then(Memory::new);
        self.memory = memory.ok_or_else(|| run_failed(format!("there is no memory for {batch} images")))?;
        Ok(())
    }
}

fn run_failed(reason: String) -> Error {
    Error::Engine { engine: EngineKind::Native, action: "run the network", reason }
}

/// The memory of one run, for all threads.
#[derive(Clone, Copy)]
struct Pointers {
    input: *const f32,
    memory: *mut f32,
    scratch: *mut f32,
}

// SAFETY: threads write only their own parts, and wait for each other between steps.
unsafe impl Send for Pointers {}
// SAFETY: as above.
unsafe impl Sync for Pointers {}

impl Pointers {
    /// Computes a thread's part of every step.
    ///
    /// # Safety
    ///
    /// The memory is that of the program for the batch, and of as many scratches as there are threads.
    unsafe fn compute(
        &self,
        program: &Program,
        batch: usize,
        [thread, threads]: [usize; 2],
        barrier: &Barrier,
    ) {
        let context = Context {
            batch,
            isa: program.isa,
            kernels: program.kernels,
            places: &program.places,
            input: self.input,
            memory: self.memory,
            // SAFETY: there is one scratch for each thread.
            scratch: unsafe { self.scratch.add(program.scratch * thread) },
            thread,
            threads,
        };
        for step in &program.steps {
            // SAFETY: the caller gives the memory; every thread runs the same steps and waits after each.
            unsafe { step.run(&context) };
            if !barrier.wait() {
                return;
            }
        }
    }
}

impl Engine for Native {
    fn name(&self) -> String {
        format!("native {} ({})", env!("CARGO_PKG_VERSION"), self.program.isa)
    }

    fn run(&mut self, batch: usize, images: &[f32], logits: &mut Vec<f32>) -> Result<()> {
        super::check(&self.signature, batch, images.len())?;
        self.grow(batch)?;
        let (program, threads) = (&self.program, self.team.threads());
        let pointers = Pointers {
            input: images.as_ptr(),
            memory: self.memory.pointer(),
            scratch: self.scratch.pointer(),
        };
        let finished = self.team.run(&|thread, barrier| {
            let pointers = &pointers;
            // SAFETY: `grow` and `load` made the memory for this batch and the team's threads; `check` the images.
            unsafe { pointers.compute(program, batch, [thread, threads], barrier) }
        });
        if !finished {
            return Err(run_failed("a thread of it panicked; load the network again".to_owned()));
        }
        let place = program.places[program.output];
        logits.clear();
        for image in self.memory.as_mut()[place.offset * batch..].chunks(place.values.max(1)).take(batch) {
            logits.extend_from_slice(&image[..self.signature.classes]);
        }
        Ok(())
    }
}
