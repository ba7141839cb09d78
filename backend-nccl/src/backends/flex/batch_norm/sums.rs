//! What the two kernels that compute sums per channel have in common.
//!
//! Sums run in many independent f32 lanes over a block that fits the first-level cache; blocks are summed in f64.

use std::ops::Range;

use super::element::{BLOCK, Wide};
use super::grid::{Grid, Walk};
use super::parallel::{TASK, for_each_chunk};

/// Independent sums of one run: four AVX2 registers of f32.
pub(super) const LANES: usize = 32;

/// Lanes for what does not fill [`LANES`], such as a map of 4x4.
pub(super) const OCTET: usize = 8;

/// Columns that are summed side by side.
pub(super) const WIDTH: usize = 512;

/// Rows of columns that are summed in f32; with [`WIDTH`] columns of f32 they take 32 KiB.
pub(super) const ROWS: usize = 16;

/// Elements of one channel that are summed in f32.
const RUN_BLOCK: usize = 4096;

/// Two results of a channel.
pub(super) type Pair = [f64; 2];

/// Calls `work` with ranges of channels and their pairs, zeros at first; where there are no elements they stay zeros.
pub(super) fn per_channel(grid: Grid, work: impl Fn(Range<usize>, &mut [Pair]) + Sync) -> Vec<Pair> {
    let mut totals = vec![[0.0; 2]; grid.channels];
    let per_task = match grid.walk {
        Walk::Runs => (TASK / (grid.rows * grid.run)).max(1),
        Walk::Columns => WIDTH / grid.run,
    };
    let elements = grid.rows * grid.channels * grid.run;
    for_each_chunk(elements, &mut totals, per_task, |index, totals| {
        let first = index * per_task;
        work(first..first + totals.len(), totals);
    });
    totals
}

/// The elements of one channel in blocks that are small enough for f32 sums: some whole runs, or a piece of one.
pub(super) struct RunBlocks {
    grid: Grid,
    row: usize,
    at: usize,
}

pub(super) struct RunBlock {
    rows: Range<usize>,
    columns: Range<usize>,
}

impl RunBlocks {
    #[inline(always)]
    pub(super) fn of(grid: Grid) -> Self {
        Self { grid, row: 0, at: 0 }
    }
}

impl Iterator for RunBlocks {
    type Item = RunBlock;

    #[inline(always)]
    fn next(&mut self) -> Option<RunBlock> {
        let Grid { rows, run, .. } = self.grid;
        if self.row >= rows {
            return None;
        }
        let columns = self.at..run.min(self.at + RUN_BLOCK);
        let block = if run > RUN_BLOCK {
            RunBlock { rows: self.row..self.row + 1, columns }
        } else {
            RunBlock { rows: self.row..rows.min(self.row + RUN_BLOCK / run), columns }
        };
        self.at = block.columns.end;
        if self.at == run {
            self.at = 0;
            self.row = block.rows.end;
        }
        Some(block)
    }
}

impl RunBlock {
    #[inline(always)]
    pub(super) fn len(&self) -> usize {
        self.rows.len() * self.columns.len()
    }

    /// Row, position and length of each piece, none longer than [`BLOCK`].
    ///
    /// An iterator, for the body of a loop is compiled with it, whereas a closure may stay a function for narrow vectors.
    #[inline(always)]
    pub(super) fn pieces(&self) -> Pieces<'_> {
        Pieces { block: self, row: self.rows.start, at: self.columns.start }
    }
}

pub(super) struct Pieces<'a> {
    block: &'a RunBlock,
    row: usize,
    at: usize,
}

impl Iterator for Pieces<'_> {
    type Item = (usize, usize, usize);

    #[inline(always)]
    fn next(&mut self) -> Option<Self::Item> {
        let RunBlock { rows, columns } = self.block;
        if self.row >= rows.end {
            return None;
        }
        let piece = (self.row, self.at, BLOCK.min(columns.end - self.at));
        self.at += BLOCK;
        if self.at >= columns.end {
            self.at = columns.start;
            self.row += 1;
        }
        Some(piece)
    }
}

/// The values in chunks of lengths that the compiler knows, and the few that are left.
#[inline(always)]
pub(super) fn chunks<W>(values: &[W]) -> (&[[W; LANES]], &[[W; OCTET]], &[W]) {
    let (chunks, rest) = values.as_chunks();
    let (octets, rest) = rest.as_chunks();
    (chunks, octets, rest)
}

/// `sums` with those of the last, incomplete chunk, which have lanes of their own: one loop of unknown length over the
/// lanes, and the compiler keeps them all in memory instead of registers.
#[inline(always)]
pub(super) fn with_last<W: Wide>(mut sums: [W; LANES], last: [W; OCTET]) -> [W; LANES] {
    for lane in 0..OCTET {
        sums[lane] = sums[lane] + last[lane];
    }
    sums
}

/// The sum over all lanes.
#[inline(always)]
pub(super) fn total_of<W: Wide>(mut lanes: [W; LANES]) -> f64 {
    for half in [16, 8, 4] {
        for lane in 0..half {
            lanes[lane] = lanes[lane] + lanes[lane + half];
        }
    }
    (lanes[0].to_f64() + lanes[1].to_f64()) + (lanes[2].to_f64() + lanes[3].to_f64())
}

/// The sum over the columns of one channel.
#[inline(always)]
pub(super) fn total_of_group<W: Wide>(columns: &[W]) -> f64 {
    if let [column] = columns {
        return column.to_f64();
    }
    let (chunks, rest) = columns.as_chunks::<4>();
    let mut lanes = [W::default(); 4];
    for chunk in chunks {
        for lane in 0..4 {
            lanes[lane] = lanes[lane] + chunk[lane];
        }
    }
    let rest: f64 = rest.iter().map(|value| value.to_f64()).sum();
    (lanes[0].to_f64() + lanes[1].to_f64()) + (lanes[2].to_f64() + lanes[3].to_f64()) + rest
}
