//! The loop over tiles, compiled for each level of vector instructions that a processor may have.
//!
//! A tile fits the vector registers: the compiler turns the loops over its elements into straight vector code (the
//! bench's README says what it made of them). Only f16 needs instructions of its own, which no loop is compiled to.

use std::{ptr, sync::OnceLock};

use half::f16;

#[cfg(target_arch = "x86_64")]
use super::x86;
use super::{
    super::{DType, ReduceOp},
    element::{Add, Brain, Combine, Element, Finish, Greatest, Half, Least, Multiply, Wide},
};

/// The loop at one level of instructions.
type Run = unsafe fn(DType, ReduceOp, &[*const u8], &[*mut u8], usize);

/// Folds `count` elements.
///
/// # Safety
///
/// As [`fold_into`](super::fold_into).
pub(super) unsafe fn run(
    dtype: DType,
    op: ReduceOp,
    sources: &[*const u8],
    targets: &[*mut u8],
    count: usize,
) {
    static BEST: OnceLock<Run> = OnceLock::new();
    let run = *BEST.get_or_init(best);
    // SAFETY: handed on to the caller; the processor has what the function needs.
    unsafe { run(dtype, op, sources, targets, count) }
}

#[cfg(target_arch = "x86_64")]
fn best() -> Run {
    let f16c = is_x86_feature_detected!("f16c");
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    if avx512 && f16c {
        x86::with_avx512
    } else if is_x86_feature_detected!("avx2") && f16c {
        x86::with_avx2
    } else {
        plain
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn best() -> Run {
    plain
}

unsafe fn plain(dtype: DType, op: ReduceOp, sources: &[*const u8], targets: &[*mut u8], count: usize) {
    // SAFETY: handed on to the caller.
    unsafe { each::<Portable>(dtype, op, sources, targets, count) }
}

/// How f16 becomes f32 and back.
pub(super) trait Halves {
    fn widen<const N: usize>(from: &[Half; N]) -> [f32; N];
    fn narrow<const N: usize>(from: &[f32; N]) -> [Half; N];
}

pub(super) struct Portable;

impl Halves for Portable {
    fn widen<const N: usize>(from: &[Half; N]) -> [f32; N] {
        from.map(|half| f16::from_bits(half.0).to_f32())
    }
    fn narrow<const N: usize>(from: &[f32; N]) -> [Half; N] {
        from.map(|wide| Half(f16::from_f32(wide).to_bits()))
    }
}

/// Reads and writes elements of one type in the type they accumulate in.
trait Store<T: Element> {
    fn load<const N: usize>(from: &[T; N]) -> [T::Wide; N];
    fn store<const N: usize>(from: &[T::Wide; N]) -> [T; N];
}

macro_rules! stored_as_it_is {
    ($($type:ty),*) => {$(
        impl<H: Halves> Store<$type> for H {
            #[inline(always)]
            fn load<const N: usize>(from: &[$type; N]) -> [$type; N] {
                *from
            }
            #[inline(always)]
            fn store<const N: usize>(from: &[$type; N]) -> [$type; N] {
                *from
            }
        }
    )*};
}

stored_as_it_is!(f32, f64, i32, i64, u8);

impl<H: Halves> Store<Half> for H {
    #[inline(always)]
    fn load<const N: usize>(from: &[Half; N]) -> [f32; N] {
        <H as Halves>::widen(from)
    }
    #[inline(always)]
    fn store<const N: usize>(from: &[f32; N]) -> [Half; N] {
        <H as Halves>::narrow(from)
    }
}

impl<H: Halves> Store<Brain> for H {
    #[inline(always)]
    fn load<const N: usize>(from: &[Brain; N]) -> [f32; N] {
        let mut to = [0.0; N];
        for i in 0..N {
            to[i] = f32::from_bits(u32::from(from[i].0) << 16);
        }
        to
    }
    #[inline(always)]
    fn store<const N: usize>(from: &[f32; N]) -> [Brain; N] {
        let mut to = [Brain(0); N];
        for i in 0..N {
            let bits = from[i].to_bits();
            // To the nearest, ties to even. A NaN stays one even if its payload is in the bits that are cut.
            let rounded = bits.wrapping_add(0x7fff + ((bits >> 16) & 1)) >> 16;
            let quiet = (bits >> 16) | 0x40;
            to[i] = Brain(if from[i].is_nan() { quiet } else { rounded } as u16);
        }
        to
    }
}

#[inline(always)]
pub(super) unsafe fn each<H: Halves>(
    dtype: DType,
    op: ReduceOp,
    sources: &[*const u8],
    targets: &[*mut u8],
    count: usize,
) {
    // SAFETY: handed on to the caller; each type is as wide as its dtype.
    unsafe {
        match dtype {
            DType::F32 => of_type::<H, f32, 64>(op, sources, targets, count),
            DType::F64 => of_type::<H, f64, 32>(op, sources, targets, count),
            DType::F16 => of_type::<H, Half, 64>(op, sources, targets, count),
            DType::BF16 => of_type::<H, Brain, 64>(op, sources, targets, count),
            DType::I32 => of_type::<H, i32, 64>(op, sources, targets, count),
            DType::I64 => of_type::<H, i64, 32>(op, sources, targets, count),
            DType::U8 => of_type::<H, u8, 256>(op, sources, targets, count),
        }
    }
}

#[inline(always)]
unsafe fn of_type<H: Store<T>, T: Element, const N: usize>(
    op: ReduceOp,
    sources: &[*const u8],
    targets: &[*mut u8],
    count: usize,
) {
    // SAFETY: handed on to the caller.
    unsafe {
        match op {
            ReduceOp::Sum => tiles::<H, T, Add, N>(Finish::Nothing, sources, targets, count),
            ReduceOp::Mean => {
                tiles::<H, T, Add, N>(Finish::mean(sources.len()), sources, targets, count);
            }
            ReduceOp::Min => tiles::<H, T, Least, N>(Finish::Nothing, sources, targets, count),
            ReduceOp::Max => tiles::<H, T, Greatest, N>(Finish::Nothing, sources, targets, count),
            ReduceOp::Product => tiles::<H, T, Multiply, N>(Finish::Nothing, sources, targets, count),
        }
    }
}

/// The tiles, then what is left one by one.
#[inline(always)]
unsafe fn tiles<H: Store<T>, T: Element, C: Combine, const N: usize>(
    finish: Finish<T::Wide>,
    sources: &[*const u8],
    targets: &[*mut u8],
    count: usize,
) {
    let whole = count - count % N;
    // SAFETY: the caller vouches for `count` elements behind every pointer.
    unsafe {
        for start in (0..whole).step_by(N) {
            tile::<H, T, C, N>(finish, sources, targets, start);
        }
        for start in whole..count {
            tile::<H, T, C, 1>(finish, sources, targets, start);
        }
    }
}

#[inline(always)]
unsafe fn tile<H: Store<T>, T: Element, C: Combine, const N: usize>(
    finish: Finish<T::Wide>,
    sources: &[*const u8],
    targets: &[*mut u8],
    start: usize,
) {
    // SAFETY: the caller vouches for `start + N` elements behind every pointer. Reads come before writes, so a target
    // may be a source.
    unsafe {
        let at = |source: *const u8| source.cast::<T>().add(start).cast::<[T; N]>().read_unaligned();
        let mut sum = H::load(&at(sources[0]));
        for source in &sources[1..] {
            // Volatile, or the compiler takes the loop over versions of integers for one that it may run side by side.
            let version = H::load(&at(ptr::read_volatile(source)));
            for i in 0..N {
                sum[i] = C::combine(sum[i], version[i]);
            }
        }
        match finish {
            Finish::Nothing => {}
            Finish::Times(by) => sum.iter_mut().for_each(|sum| *sum = T::Wide::multiply(*sum, by)),
            Finish::Over(by) => sum.iter_mut().for_each(|sum| *sum = T::Wide::over(*sum, by)),
        }
        let result = H::store(&sum);
        for target in targets {
            target.cast::<T>().add(start).cast::<[T; N]>().write_unaligned(result);
        }
    }
}
