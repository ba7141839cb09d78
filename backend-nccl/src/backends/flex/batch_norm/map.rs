//! The two kernels that compute a tensor: the normalised output, and the gradient of the input.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::element::{BLOCK, Element, Wide};
use super::grid::{Grid, Operand, Steps, Walk};
use super::parallel::{TASK, for_each_chunk};
use super::vectors::{Work, widest};

/// The type that `F` computes in.
type WideOf<F, const K: usize> = <<F as Formula<K>>::Element as Element>::Wide;

/// Elements that lie next to each other: those at `at` and after of the run of `channel` in `row`.
#[derive(Clone, Copy)]
pub(super) struct Place {
    row: usize,
    channel: usize,
    at: usize,
}

/// A formula of an element and of `K` coefficients of its channel.
pub(super) trait Formula<const K: usize>: Copy + Send + Sync {
    type Element: Element;

    /// The coefficients of all channels.
    fn coefficients(&self) -> [&[WideOf<Self, K>]; K];

    /// Whether [`fill`](Self::fill) reads the values that it overwrites.
    fn updates(&self) -> bool {
        false
    }

    /// Writes every value of `target`, which belongs at `place`. At most [`BLOCK`] values.
    ///
    /// # Safety
    /// If the formula [updates](Self::updates), `target` must be initialised.
    unsafe fn fill<C: Coefficient<WideOf<Self, K>>>(
        &self,
        place: Place,
        coefficients: [C; K],
        target: &mut [MaybeUninit<WideOf<Self, K>>],
    );
}

/// `(x - mean) scale + shift`
#[derive(Clone, Copy)]
pub(super) struct Normalize<'a, T: Element> {
    pub(super) input: Operand<'a, T>,
    pub(super) mean: &'a [T::Wide],
    pub(super) scale: &'a [T::Wide],
    pub(super) shift: &'a [T::Wide],
}

impl<'a, T: Element> Formula<3> for Normalize<'a, T> {
    type Element = T;

    #[inline(always)]
    fn coefficients(&self) -> [&[T::Wide]; 3] {
        [self.mean, self.scale, self.shift]
    }

    #[inline(always)]
    unsafe fn fill<C: Coefficient<T::Wide>>(
        &self,
        place: Place,
        coefficients: [C; 3],
        target: &mut [MaybeUninit<T::Wide>],
    ) {
        let len = target.len();
        let mut spare = [MaybeUninit::uninit(); BLOCK];
        let input = &T::wide(self.input.slice(place.row, place.channel, place.at, len), &mut spare)[..len];
        let [mean, scale, shift] = coefficients.map(|coefficient| coefficient.of(len));
        for i in 0..len {
            target[i].write((input[i] - mean.at(i)) * scale.at(i) + shift.at(i));
        }
    }
}

/// `scale (dy - mean_grad - (x - mean) slope)`
#[derive(Clone, Copy)]
pub(super) struct InputGradient<'a, T: Element> {
    pub(super) input: Operand<'a, T>,
    /// `None` if it lies where the result goes.
    pub(super) gradient: Option<Operand<'a, T>>,
    pub(super) mean: &'a [T::Wide],
    pub(super) scale: &'a [T::Wide],
    pub(super) mean_gradient: &'a [T::Wide],
    pub(super) slope: &'a [T::Wide],
}

impl<'a, T: Element> Formula<4> for InputGradient<'a, T> {
    type Element = T;

    #[inline(always)]
    fn coefficients(&self) -> [&[T::Wide]; 4] {
        [self.mean, self.scale, self.mean_gradient, self.slope]
    }

    #[inline(always)]
    fn updates(&self) -> bool {
        self.gradient.is_none()
    }

    #[inline(always)]
    unsafe fn fill<C: Coefficient<T::Wide>>(
        &self,
        place: Place,
        coefficients: [C; 4],
        target: &mut [MaybeUninit<T::Wide>],
    ) {
        let len = target.len();
        let Place { row, channel, at } = place;
        let mut spare = [MaybeUninit::uninit(); BLOCK];
        let target: &mut [T::Wide] = match self.gradient {
            Some(gradient) => {
                target.write_copy_of_slice(T::wide(gradient.slice(row, channel, at, len), &mut spare))
            }
            // SAFETY: the caller vouches for it, since this formula then updates.
            None => unsafe { target.assume_init_mut() },
        };
        let input = &T::wide(self.input.slice(row, channel, at, len), &mut spare)[..len];
        let [mean, scale, mean_gradient, slope] = coefficients.map(|coefficient| coefficient.of(len));
        for i in 0..len {
            let centred = target[i] - mean_gradient.at(i);
            target[i] = scale.at(i) * (centred - (input[i] - mean.at(i)) * slope.at(i));
        }
    }
}

/// A coefficient of neighbouring elements.
pub(super) trait Coefficient<W>: Copy {
    /// The first `len` of them, so that the loop over them needs no bounds checks.
    fn of(self, len: usize) -> Self;
    fn at(&self, index: usize) -> W;
}

/// One coefficient for all elements of a run.
#[derive(Clone, Copy)]
struct Same<W>(W);

impl<W: Wide> Coefficient<W> for Same<W> {
    #[inline(always)]
    fn of(self, _: usize) -> Self {
        self
    }
    #[inline(always)]
    fn at(&self, _: usize) -> W {
        self.0
    }
}

/// A coefficient for each element of a row.
#[derive(Clone, Copy)]
struct Each<'a, W>(&'a [W]);

impl<W: Wide> Coefficient<W> for Each<'_, W> {
    #[inline(always)]
    fn of(self, len: usize) -> Self {
        Self(&self.0[..len])
    }
    #[inline(always)]
    fn at(&self, index: usize) -> W {
        self.0[index]
    }
}

/// The values of `formula`, in the dense memory that `steps` describe: rows or channels outermost.
pub(super) fn map<F: Formula<K>, const K: usize>(formula: F, grid: Grid, steps: Steps) -> Vec<F::Element> {
    let count = grid.rows * grid.channels * grid.run;
    let mut values = Vec::with_capacity(count);
    assert!(!formula.updates(), "there is nothing in fresh memory to update");
    // SAFETY: the formula does not read what it overwrites.
    unsafe { map_into(formula, grid, steps, &mut values.spare_capacity_mut()[..count]) };
    // SAFETY: all `count` values were written by the line above.
    unsafe { values.set_len(count) };
    values
}

/// Overwrites the dense memory that `steps` describe with the values of `formula`.
pub(super) fn update<F: Formula<K>, const K: usize>(
    formula: F,
    grid: Grid,
    steps: Steps,
    target: &mut [F::Element],
) {
    let (start, count) = (target.as_mut_ptr().cast(), target.len());
    // SAFETY: `target` is exclusively ours meanwhile, and nothing but whole elements is ever written to it.
    let target = unsafe { std::slice::from_raw_parts_mut(start, count) };
    // SAFETY: `target` is initialised.
    unsafe { map_into(formula, grid, steps, target) };
}

/// Writes every value of `target`.
///
/// # Safety
/// If the formula updates, `target` must be initialised.
unsafe fn map_into<F: Formula<K>, const K: usize>(
    formula: F,
    grid: Grid,
    steps: Steps,
    target: &mut [MaybeUninit<F::Element>],
) {
    let (unit, channel_major) = match grid.walk {
        Walk::Runs => (grid.run, steps.row < steps.channel && grid.rows > 1),
        Walk::Columns => ((grid.run * grid.channels).max(1), false),
    };
    assert_eq!(target.len(), grid.rows * grid.channels * grid.run, "the target is dense");
    let units = (TASK / unit).max(1);
    for_each_chunk(target.len(), target, unit * units, |index, target| {
        let first = index * units;
        widest(Part { formula, grid, channel_major, units: first..first + target.len() / unit, target });
    });
}

/// The share of one task: some whole runs, or some whole rows.
struct Part<'a, F: Formula<K>, const K: usize> {
    formula: F,
    grid: Grid,
    channel_major: bool,
    units: Range<usize>,
    target: &'a mut [MaybeUninit<F::Element>],
}

impl<F: Formula<K>, const K: usize> Work for Part<'_, F, K> {
    #[inline(always)]
    fn run(self) {
        match self.grid.walk {
            Walk::Runs => self.runs(),
            Walk::Columns => self.columns(),
        }
    }
}

impl<F: Formula<K>, const K: usize> Part<'_, F, K> {
    #[inline(always)]
    fn runs(self) {
        let Grid { rows, channels, run, .. } = self.grid;
        let coefficients = self.formula.coefficients();
        for (unit, target) in self.units.zip(self.target.chunks_exact_mut(run)) {
            let (row, channel) = if self.channel_major {
                (unit % rows, unit / rows)
            } else {
                (unit / channels, unit % channels)
            };
            let same = coefficients.map(|all| Same(all[channel]));
            for (piece, target) in target.chunks_mut(BLOCK).enumerate() {
                let place = Place { row, channel, at: piece * BLOCK };
                // SAFETY: `fill` writes every value, as its trait demands; if it updates, the target is initialised, as
                // the caller of `map_into` vouches, and so is what `store` makes of it.
                unsafe {
                    F::Element::store(target, self.formula.updates(), |wide| {
                        self.formula.fill(place, same, wide)
                    })
                };
            }
        }
    }

    #[inline(always)]
    fn columns(self) {
        let Grid { channels, run, .. } = self.grid;
        let width = channels * run;
        let all = self.formula.coefficients();
        let mut spread = [[WideOf::<F, K>::default(); BLOCK]; K];
        for first in (0..channels).step_by(BLOCK / run) {
            let part = first..channels.min(first + BLOCK / run);
            let len = part.len() * run;
            for (spread, all) in spread.iter_mut().zip(all) {
                repeat_each(&all[part.clone()], run, &mut spread[..len]);
            }
            let each = spread.each_ref().map(|spread| Each(&spread[..len]));
            for (row, target) in self.units.clone().zip(self.target.chunks_exact_mut(width)) {
                let target = &mut target[first * run..][..len];
                let place = Place { row, channel: first, at: 0 };
                // SAFETY: as in `runs`.
                unsafe {
                    F::Element::store(target, self.formula.updates(), |wide| {
                        self.formula.fill(place, each, wide)
                    })
                };
            }
        }
    }
}

/// Each value `run` times.
#[inline(always)]
pub(super) fn repeat_each<W: Wide>(values: &[W], run: usize, target: &mut [W]) {
    if run == 1 {
        target.copy_from_slice(values);
        return;
    }
    for (target, value) in target.chunks_exact_mut(run).zip(values) {
        target.fill(*value);
    }
}
