//! The statistics of the input: the mean and the sum of squares around it, per channel.
//!
//! Each block is read twice, the second time from the cache: its mean first, then the squares around that mean. So nothing
//! cancels however far the mean is from zero, and the memory is read once. Blocks are merged by Chan's formula.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::element::{BLOCK, Element, Wide};
use super::grid::{Grid, Operand, Walk};
use super::map::repeat_each;
use super::sums::{LANES, Pair, ROWS, RunBlocks, WIDTH, per_channel, total_of, total_of_group};
use super::vectors::{Work, widest};

/// The mean and the sum of squares around it, per channel; zeros where there are no elements.
pub(super) fn statistics<T: Element>(input: Operand<'_, T>, grid: Grid) -> Vec<Pair> {
    per_channel(grid, |channels, totals| widest(Statistics { input, grid, channels, totals }))
}

struct Statistics<'a, T> {
    input: Operand<'a, T>,
    grid: Grid,
    channels: Range<usize>,
    totals: &'a mut [Pair],
}

impl<T: Element> Work for Statistics<'_, T> {
    #[inline(always)]
    fn run(self) {
        match self.grid.walk {
            Walk::Runs => self.runs(),
            Walk::Columns => self.columns(),
        }
    }
}

impl<T: Element> Statistics<'_, T> {
    #[inline(always)]
    fn runs(self) {
        for (channel, total) in self.channels.zip(self.totals) {
            let mut count = 0;
            for block in RunBlocks::of(self.grid) {
                let weights = Weights::of(count, block.len());
                count += block.len();
                let mut sums = [T::Wide::default(); LANES];
                block.each(|row, at, len| {
                    let mut spare = [MaybeUninit::uninit(); BLOCK];
                    sums = added(sums, T::wide(self.input.slice(row, channel, at, len), &mut spare));
                });
                let center = T::Wide::from_f64(total_of(sums) / block.len() as f64);
                let (mut sums, mut squares) = ([T::Wide::default(); LANES], [T::Wide::default(); LANES]);
                block.each(|row, at, len| {
                    let mut spare = [MaybeUninit::uninit(); BLOCK];
                    let values = T::wide(self.input.slice(row, channel, at, len), &mut spare);
                    (sums, squares) = deviations_added(sums, squares, values, center);
                });
                weights.merge(total, center.to_f64(), total_of(sums), total_of(squares));
            }
        }
    }

    #[inline(always)]
    fn columns(self) {
        let Grid { rows, run, .. } = self.grid;
        let first = self.channels.start;
        let len = self.channels.len() * run;
        let mut sums = [T::Wide::default(); WIDTH];
        let mut squares = [T::Wide::default(); WIDTH];
        let mut center = [T::Wide::default(); WIDTH];
        let mut centers = [T::Wide::default(); WIDTH];
        let (sums, squares) = (&mut sums[..len], &mut squares[..len]);
        let (center, centers) = (&mut center[..self.channels.len()], &mut centers[..len]);
        for start in (0..rows).step_by(ROWS) {
            let block = start..rows.min(start + ROWS);
            let weights = Weights::of(start * run, block.len() * run);
            sums.fill(T::Wide::default());
            for row in block.clone() {
                let mut spare = [MaybeUninit::uninit(); BLOCK];
                let values = T::wide(self.input.slice(row, first, 0, len), &mut spare);
                for (sum, value) in sums.iter_mut().zip(values) {
                    *sum = *sum + *value;
                }
            }
            for (center, sums) in center.iter_mut().zip(sums.chunks_exact(run)) {
                *center = T::Wide::from_f64(total_of_group(sums) * weights.per_element);
            }
            repeat_each(center, run, centers);
            sums.fill(T::Wide::default());
            squares.fill(T::Wide::default());
            for row in block {
                let mut spare = [MaybeUninit::uninit(); BLOCK];
                let values = T::wide(self.input.slice(row, first, 0, len), &mut spare);
                for (((sum, square), value), center) in
                    sums.iter_mut().zip(&mut *squares).zip(values).zip(&*centers)
                {
                    let deviation = *value - *center;
                    *sum = *sum + deviation;
                    *square = *square + deviation * deviation;
                }
            }
            let groups = sums.chunks_exact(run).zip(squares.chunks_exact(run));
            for ((total, center), (sums, squares)) in self.totals.iter_mut().zip(&*center).zip(groups) {
                weights.merge(total, center.to_f64(), total_of_group(sums), total_of_group(squares));
            }
        }
    }
}

/// How a block of some elements is merged into what is known of the elements before it.
#[derive(Clone, Copy)]
struct Weights {
    /// One over the elements of the block.
    per_element: f64,
    /// The block's share of all elements so far.
    share: f64,
    /// What the squared distance of the two means adds to the squares.
    between: f64,
}

impl Weights {
    #[inline(always)]
    fn of(before: usize, block: usize) -> Self {
        let (before, block) = (before as f64, block as f64);
        let share = block / (before + block);
        Self { per_element: 1.0 / block, share, between: before * share }
    }

    /// Merges a block whose deviations from `center` have the given sum and sum of squares. `center` is the block's mean up
    /// to rounding; the sum says by how much it is off.
    #[inline(always)]
    fn merge(&self, total: &mut Pair, center: f64, sum: f64, squares: f64) {
        let off = sum * self.per_element;
        let distance = center + off - total[0];
        total[0] += distance * self.share;
        total[1] += (squares - sum * off).max(0.0) + distance * distance * self.between;
    }
}

/// `sums` with the values added, each to its lane.
#[inline(always)]
fn added<W: Wide>(mut sums: [W; LANES], values: &[W]) -> [W; LANES] {
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            sums[lane] = sums[lane] + chunk[lane];
        }
    }
    for (sum, value) in sums.iter_mut().zip(rest) {
        *sum = *sum + *value;
    }
    sums
}

/// `sums` and `squares` with the deviations from `center` added, each to its lane.
#[inline(always)]
fn deviations_added<W: Wide>(
    mut sums: [W; LANES],
    mut squares: [W; LANES],
    values: &[W],
    center: W,
) -> ([W; LANES], [W; LANES]) {
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for lane in 0..LANES {
            let deviation = chunk[lane] - center;
            sums[lane] = sums[lane] + deviation;
            squares[lane] = squares[lane] + deviation * deviation;
        }
    }
    for ((sum, square), value) in sums.iter_mut().zip(&mut squares).zip(rest) {
        let deviation = *value - center;
        *sum = *sum + deviation;
        *square = *square + deviation * deviation;
    }
    (sums, squares)
}
