//! The elements as they are stored, the types they accumulate in, and the arithmetic of each reduction.

use bytemuck::Pod;

/// An element as it is stored.
pub(super) trait Element: Pod {
    /// The type it accumulates in.
    type Wide: Wide;
}

/// A type that reductions are computed in.
pub(super) trait Wide: Pod {
    fn add(a: Self, b: Self) -> Self;
    fn multiply(a: Self, b: Self) -> Self;
    fn least(a: Self, b: Self) -> Self;
    fn greatest(a: Self, b: Self) -> Self;
    fn of(count: usize) -> Self;
    fn over(a: Self, b: Self) -> Self;
    fn reciprocal(a: Self) -> Self;
}

/// f16 as it is stored.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Half(pub(super) u16);

/// bf16 as it is stored.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct Brain(pub(super) u16);

macro_rules! sixteen_bits {
    ($($type:ty),*) => {$(
        // SAFETY: a transparent wrapper of a `u16`.
        unsafe impl bytemuck::Zeroable for $type {}
        // SAFETY: as above.
        unsafe impl Pod for $type {}
        impl Element for $type {
            type Wide = f32;
        }
    )*};
}

macro_rules! element_of_its_own_width {
    ($($type:ty),*) => {$(
        impl Element for $type {
            type Wide = Self;
        }
    )*};
}

macro_rules! wide_float {
    ($($type:ty),*) => {$(
        impl Wide for $type {
            #[inline(always)]
            fn add(a: Self, b: Self) -> Self {
                a + b
            }
            #[inline(always)]
            fn multiply(a: Self, b: Self) -> Self {
                a * b
            }
            // Written so that a NaN on either side wins: the standard `min` and `max` would hide it.
            #[inline(always)]
            fn least(a: Self, b: Self) -> Self {
                if a < b || a.is_nan() { a } else { b }
            }
            #[inline(always)]
            fn greatest(a: Self, b: Self) -> Self {
                if a > b || a.is_nan() { a } else { b }
            }
            #[inline(always)]
            fn of(count: usize) -> Self {
                count as Self
            }
            #[inline(always)]
            fn over(a: Self, b: Self) -> Self {
                a / b
            }
            #[inline(always)]
            fn reciprocal(a: Self) -> Self {
                a.recip()
            }
        }
    )*};
}

macro_rules! wide_integer {
    ($($type:ty),*) => {$(
        impl Wide for $type {
            #[inline(always)]
            fn add(a: Self, b: Self) -> Self {
                a.wrapping_add(b)
            }
            #[inline(always)]
            fn multiply(a: Self, b: Self) -> Self {
                a.wrapping_mul(b)
            }
            #[inline(always)]
            fn least(a: Self, b: Self) -> Self {
                a.min(b)
            }
            #[inline(always)]
            fn greatest(a: Self, b: Self) -> Self {
                a.max(b)
            }
            #[inline(always)]
            fn of(count: usize) -> Self {
                count as Self
            }
            // The group refuses the mean of integers before it reaches a transport; there is none to get wrong here.
            #[inline(always)]
            fn over(a: Self, _: Self) -> Self {
                a
            }
            #[inline(always)]
            fn reciprocal(a: Self) -> Self {
                a
            }
        }
    )*};
}

sixteen_bits!(Half, Brain);
element_of_its_own_width!(f32, f64, i32, i64, u8);
wide_float!(f32, f64);
wide_integer!(i32, i64, u8);

/// A reduction of two values.
pub(super) trait Combine {
    fn combine<W: Wide>(a: W, b: W) -> W;
}

macro_rules! combine {
    ($($name:ident: $method:ident),*) => {$(
        pub(super) struct $name;
        impl Combine for $name {
            #[inline(always)]
            fn combine<W: Wide>(a: W, b: W) -> W {
                W::$method(a, b)
            }
        }
    )*};
}

combine!(Add: add, Multiply: multiply, Least: least, Greatest: greatest);

/// What a sum becomes in the end.
#[derive(Clone, Copy)]
pub(super) enum Finish<W> {
    Nothing,
    Times(W),
    Over(W),
}

impl<W: Wide> Finish<W> {
    pub(super) fn mean(count: usize) -> Self {
        // A power of two has an exact reciprocal, and a product costs a fifth of a quotient.
        if count.is_power_of_two() {
            Self::Times(W::reciprocal(W::of(count)))
        } else {
            Self::Over(W::of(count))
        }
    }
}
