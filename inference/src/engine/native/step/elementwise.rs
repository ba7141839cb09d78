//! What is done to each value by itself, where no convolution before it does it.

use super::super::graph::Shape;
use super::super::kernel::Activation;
use super::super::simd::{Job, LANES, Simd};
use super::{Context, Step};

/// The sum of two values. The output may be the first.
pub(in super::super) struct AddStep {
    pub(in super::super) inputs: [usize; 2],
    pub(in super::super) out: usize,
    pub(in super::super) activation: Option<Activation>,
}

/// `x * scale + shift`, by channel. The output may be the input.
pub(in super::super) struct AffineStep {
    pub(in super::super) input: usize,
    pub(in super::super) out: usize,
    pub(in super::super) shape: Shape,
    /// Of each channel, with zeros up to whole blocks.
    pub(in super::super) scale: Vec<f32>,
    pub(in super::super) shift: Vec<f32>,
    pub(in super::super) activation: Option<Activation>,
}

/// Bounds. The output may be the input.
pub(in super::super) struct BoundStep {
    pub(in super::super) input: usize,
    pub(in super::super) out: usize,
    pub(in super::super) activation: Activation,
}

/// `activation(x * scale + shift + other)` of a run of vectors, each part left out where it is none.
struct Run {
    x: *const f32,
    other: *const f32,
    out: *mut f32,
    vectors: usize,
    affine: Option<(*const f32, *const f32)>,
    activation: Option<Activation>,
}

impl Job for Run {
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        for at in (0..self.vectors).map(|vector| vector * LANES) {
            // SAFETY: who makes the job gives as many vectors.
            unsafe {
                let mut value = S::load(self.x.add(at));
                if let Some((scale, shift)) = self.affine {
                    value = S::fma(value, S::load(scale), S::load(shift));
                }
                if !self.other.is_null() {
                    value = S::add(value, S::load(self.other.add(at)));
                }
                if let Some(activation) = self.activation {
                    value = activation.apply::<S>(value);
                }
                S::store(self.out.add(at), value);
            }
        }
    }
}

/// Runs over a thread's part of all vectors of a batch.
unsafe fn all(
    context: &Context<'_>,
    x: usize,
    other: Option<usize>,
    out: usize,
    activation: Option<Activation>,
) {
    let part = context.part(context.batch * context.stride(out) / LANES);
    let start = part.start * LANES;
    // SAFETY: the values are of one shape, and the part is this thread's alone.
    unsafe {
        let other = other.map_or(std::ptr::null(), |other| context.images(other).add(start).cast_const());
        let (x, out) = (context.images(x).add(start), context.images(out).add(start));
        context.isa.dispatch(Run { x, other, out, vectors: part.len(), affine: None, activation });
    }
}

impl Step for AddStep {
    unsafe fn run(&self, context: &Context<'_>) {
        // SAFETY: the caller keeps the promises of the trait.
        unsafe { all(context, self.inputs[0], Some(self.inputs[1]), self.out, self.activation) }
    }
}

impl Step for BoundStep {
    unsafe fn run(&self, context: &Context<'_>) {
        // SAFETY: the caller keeps the promises of the trait.
        unsafe { all(context, self.input, None, self.out, Some(self.activation)) }
    }
}

impl Step for AffineStep {
    unsafe fn run(&self, context: &Context<'_>) {
        let (blocks, vectors) = (self.shape.blocks(), self.shape.pixels());
        let (x, out) = (context.images(self.input), context.images(self.out));
        for at in context.part(context.batch * blocks) {
            let (image, block) = (at / blocks, at % blocks);
            let start = image * context.stride(self.out) + block * vectors * LANES;
            let affine = (self.scale[block * LANES..].as_ptr(), self.shift[block * LANES..].as_ptr());
            // SAFETY: the block lies in both images, and is this thread's alone; there are scales for whole blocks.
            unsafe {
                let (x, out) = (x.add(start), out.add(start));
                let other = std::ptr::null();
                context.isa.dispatch(Run {
                    x,
                    other,
                    out,
                    vectors,
                    affine: Some(affine),
                    activation: self.activation,
                });
            }
        }
    }
}
