//! The element types: how they are stored, and what they are computed in.

use std::mem::MaybeUninit;
use std::ops::{Add, Mul, Sub};

use bytemuck::Pod;
use half::{bf16, f16, slice::HalfFloatSliceExt};

/// The most elements that a kernel handles at once, and so the size of its spare buffers: 4 KiB of f32.
pub(super) const BLOCK: usize = 1024;

/// A type that batch normalisation computes in.
pub(super) trait Wide:
    Pod + Default + Send + Sync + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self>
{
    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
}

impl Wide for f32 {
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value as f32
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }
}

impl Wide for f64 {
    #[inline(always)]
    fn from_f64(value: f64) -> Self {
        value
    }
    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }
}

/// Room for one block of wide values. Not initialised: most elements never use it.
pub(super) type Spare<T> = [MaybeUninit<<T as Element>::Wide>; BLOCK];

/// Writes zeros, so that a function that knows nothing of fresh memory can write to it.
fn zeroed<T: Pod>(target: &mut [MaybeUninit<T>]) -> &mut [T] {
    for value in target.iter_mut() {
        value.write(T::zeroed());
    }
    // SAFETY: each value was written by the loop above.
    unsafe { target.assume_init_mut() }
}

/// An element as a tensor stores it.
pub(super) trait Element: Pod + Send + Sync {
    /// The type it is computed in, which is the type of the statistics.
    type Wide: Wide;

    /// The values in the type they are computed in; only halves need `spare` for it. At most [`BLOCK`] values.
    fn wide<'a>(values: &'a [Self], spare: &'a mut Spare<Self>) -> &'a [Self::Wide];

    /// Stores what `fill` computes, at most [`BLOCK`] values; `update` says that it computes them from those already there.
    ///
    /// # Safety
    /// `fill` must write every value of the slice it is given. With `update`, `target` must be initialised, and so is the
    /// slice that `fill` is given.
    unsafe fn store(
        target: &mut [MaybeUninit<Self>],
        update: bool,
        fill: impl FnOnce(&mut [MaybeUninit<Self::Wide>]),
    );
}

macro_rules! element_of_its_own_width {
    ($($type:ty),*) => {$(
        impl Element for $type {
            type Wide = Self;

            #[inline(always)]
            fn wide<'a>(values: &'a [Self], _: &'a mut Spare<Self>) -> &'a [Self] {
                values
            }

            #[inline(always)]
            unsafe fn store(
                target: &mut [MaybeUninit<Self>],
                _: bool,
                fill: impl FnOnce(&mut [MaybeUninit<Self>]),
            ) {
                fill(target);
            }
        }
    )*};
}

macro_rules! element_in_f32 {
    ($($type:ty),*) => {$(
        impl Element for $type {
            type Wide = f32;

            #[inline(always)]
            fn wide<'a>(values: &'a [Self], spare: &'a mut Spare<Self>) -> &'a [f32] {
                let spare = zeroed(&mut spare[..values.len()]);
                values.convert_to_f32_slice(spare);
                spare
            }

            #[inline(always)]
            unsafe fn store(
                target: &mut [MaybeUninit<Self>],
                update: bool,
                fill: impl FnOnce(&mut [MaybeUninit<f32>]),
            ) {
                let mut spare = [MaybeUninit::uninit(); BLOCK];
                let spare = &mut spare[..target.len()];
                if update {
                    // SAFETY: the caller vouches that an updated target is initialised.
                    let values = unsafe { target.assume_init_ref() };
                    values.convert_to_f32_slice(zeroed(spare));
                }
                fill(spare);
                // SAFETY: the caller vouches that `fill` has written all of them.
                let values = unsafe { spare.assume_init_ref() };
                zeroed(target).convert_from_f32_slice(values);
            }
        }
    )*};
}

element_of_its_own_width!(f32, f64);
element_in_f32!(f16, bf16);
