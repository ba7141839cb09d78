//! The statistics of the input: the mean and the sum of squares around it, per channel.
//!
//! Each block is read twice, the second time from the cache: its mean first, then the squares around that mean. So nothing
//! cancels however far the mean is from zero, and the memory is read once. Blocks are merged by Chan's formula.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::element::{BLOCK, Element, Wide};
use super::grid::{Grid, Operand, Walk};
use super::map::repeat_each;
use super::sums::{
    LANES, OCTET, Pair, ROWS, RunBlocks, WIDTH, chunks, per_channel, total_of, total_of_group, with_last,
};
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
                for (row, at, len) in block.pieces() {
                    let mut spare = [MaybeUninit::uninit(); BLOCK];
                    sums = added(sums, T::wide(self.input.slice(row, channel, at, len), &mut spare));
                }
                let center = T::Wide::from_f64(total_of(sums) / block.len() as f64);
                let (mut sums, mut squares) = ([T::Wide::default(); LANES], [T::Wide::default(); LANES]);
                for (row, at, len) in block.pieces() {
                    let mut spare = [MaybeUninit::uninit(); BLOCK];
                    let values = T::wide(self.input.slice(row, channel, at, len), &mut spare);
                    (sums, squares) = deviations_added(sums, squares, values, center);
                }
                weights.merge(total, center.to_f64(), total_of(sums), total_of(squares));
            }
        }
    }

    #[inline(always)]
    fn columns(self) {
        let Grid { rows, run, .. } = self.grid;
        let count = self.channels.len();
        let len = count * run;
        let (mut sums, mut squares) = ([T::Wide::default(); WIDTH], [T::Wide::default(); WIDTH]);
        let (mut center, mut centers) = ([T::Wide::default(); WIDTH], [T::Wide::default(); WIDTH]);
        let (sums, squares) = (&mut sums[..len], &mut squares[..len]);
        let (center, centers) = (&mut center[..count], &mut centers[..len]);
        for start in (0..rows).step_by(ROWS) {
            let block = start..rows.min(start + ROWS);
            let weights = Weights::of(start * run, block.len() * run);
            self.add_columns(block.clone(), sums);
            for (center, sums) in center.iter_mut().zip(sums.chunks_exact(run)) {
                *center = T::Wide::from_f64(total_of_group(sums) * weights.per_element);
            }
            repeat_each(center, run, centers);
            self.add_deviations(block, centers, sums, squares);
            let groups = sums.chunks_exact(run).zip(squares.chunks_exact(run));
            for ((total, center), (sums, squares)) in self.totals.iter_mut().zip(&*center).zip(groups) {
                weights.merge(total, center.to_f64(), total_of_group(sums), total_of_group(squares));
            }
        }
    }

    /// The sum of each column over `rows`.
    #[inline(always)]
    fn add_columns(&self, rows: Range<usize>, sums: &mut [T::Wide]) {
        sums.fill(T::Wide::default());
        for row in rows {
            let mut spare = [MaybeUninit::uninit(); BLOCK];
            let values = T::wide(self.input.slice(row, self.channels.start, 0, sums.len()), &mut spare);
            for (sum, value) in sums.iter_mut().zip(values) {
                *sum = *sum + *value;
            }
        }
    }

    /// The sums of each column's deviations from its center, and of their squares, over `rows`.
    #[inline(always)]
    fn add_deviations(
        &self,
        rows: Range<usize>,
        centers: &[T::Wide],
        sums: &mut [T::Wide],
        squares: &mut [T::Wide],
    ) {
        sums.fill(T::Wide::default());
        squares.fill(T::Wide::default());
        for row in rows {
            let mut spare = [MaybeUninit::uninit(); BLOCK];
            let values = T::wide(self.input.slice(row, self.channels.start, 0, sums.len()), &mut spare);
            let columns = sums.iter_mut().zip(&mut *squares).zip(values).zip(centers);
            for (((sum, square), value), center) in columns {
                let deviation = *value - *center;
                *sum = *sum + deviation;
                *square = *square + deviation * deviation;
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
    let (chunks, octets, rest) = chunks(values);
    for chunk in chunks {
        for lane in 0..LANES {
            sums[lane] = sums[lane] + chunk[lane];
        }
    }
    let mut last = [W::default(); OCTET];
    for octet in octets {
        for lane in 0..OCTET {
            last[lane] = last[lane] + octet[lane];
        }
    }
    for (sum, value) in last.iter_mut().zip(rest) {
        *sum = *sum + *value;
    }
    with_last(sums, last)
}

/// `sums` and `squares` with the deviations from `center` added, each to its lane.
#[inline(always)]
fn deviations_added<W: Wide>(
    mut sums: [W; LANES],
    mut squares: [W; LANES],
    values: &[W],
    center: W,
) -> ([W; LANES], [W; LANES]) {
    let (chunks, octets, rest) = chunks(values);
    for chunk in chunks {
        for lane in 0..LANES {
            let deviation = chunk[lane] - center;
            sums[lane] = sums[lane] + deviation;
            squares[lane] = squares[lane] + deviation * deviation;
        }
    }
    let (mut last_sums, mut last_squares) = ([W::default(); OCTET], [W::default(); OCTET]);
    for octet in octets {
        for lane in 0..OCTET {
            let deviation = octet[lane] - center;
            last_sums[lane] = last_sums[lane] + deviation;
            last_squares[lane] = last_squares[lane] + deviation * deviation;
        }
    }
    for ((sum, square), value) in last_sums.iter_mut().zip(&mut last_squares).zip(rest) {
        let deviation = *value - center;
        *sum = *sum + deviation;
        *square = *square + deviation * deviation;
    }
    (with_last(sums, last_sums), with_last(squares, last_squares))
}

#[cfg(test)]
mod tests {
    use super::super::grid::Steps;
    use super::*;

    #[test]
    fn vectors_of_every_width_compute_the_same_bits() {
        let values: Vec<f32> = (0..40_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 8) as f32).collect();
        for (walk, run) in [(Walk::Runs, 1000), (Walk::Columns, 10)] {
            let grid = Grid { rows: 40_000 / (10 * run), channels: 10, run, walk };
            let steps = Steps { offset: 0, row: 10 * run, channel: run };
            let work =
                |totals| Statistics { input: Operand::new(&values, steps), grid, channels: 0..10, totals };
            let (mut narrow, mut wide) = ([[0.0; 2]; 10], [[0.0; 2]; 10]);
            // Here `run` is compiled as the crate is, for any x86-64.
            work(&mut narrow[..]).run();
            widest(work(&mut wide[..]));
            assert_eq!(narrow, wide);
            assert_ne!(narrow, [[0.0; 2]; 10]);
        }
    }
}
