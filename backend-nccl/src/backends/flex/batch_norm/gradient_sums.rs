//! The sums of the backward pass: `Σ dy` and `Σ dy (x - mean)`, per channel.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::element::{BLOCK, Element, Wide};
use super::grid::{Grid, Operand, Walk};
use super::map::repeat_each;
use super::sums::{
    LANES, OCTET, Pair, ROWS, RunBlocks, WIDTH, chunks, per_channel, total_of, total_of_group, with_last,
};
use super::vectors::{Work, widest};

/// `Σ dy` and `Σ dy (x - mean)`, per channel.
pub(super) fn gradient_sums<T: Element>(
    input: Operand<'_, T>,
    gradient: Operand<'_, T>,
    mean: &[T::Wide],
    grid: Grid,
) -> Vec<Pair> {
    per_channel(grid, |channels, totals| {
        widest(GradientSums { input, gradient, mean, grid, channels, totals })
    })
}

struct GradientSums<'a, T: Element> {
    input: Operand<'a, T>,
    gradient: Operand<'a, T>,
    mean: &'a [T::Wide],
    grid: Grid,
    channels: Range<usize>,
    totals: &'a mut [Pair],
}

impl<T: Element> Work for GradientSums<'_, T> {
    #[inline(always)]
    fn run(self) {
        match self.grid.walk {
            Walk::Runs => self.runs(),
            Walk::Columns => self.columns(),
        }
    }
}

impl<T: Element> GradientSums<'_, T> {
    #[inline(always)]
    fn runs(self) {
        for (channel, total) in self.channels.zip(self.totals) {
            let mean = self.mean[channel];
            for block in RunBlocks::of(self.grid) {
                let (mut sums, mut products) = ([T::Wide::default(); LANES], [T::Wide::default(); LANES]);
                for (row, at, len) in block.pieces() {
                    let mut spares = [[MaybeUninit::uninit(); BLOCK]; 2];
                    let [spare, other] = &mut spares;
                    let values = T::wide(self.input.slice(row, channel, at, len), spare);
                    let gradients = T::wide(self.gradient.slice(row, channel, at, len), other);
                    (sums, products) = products_added(sums, products, values, gradients, mean);
                }
                total[0] += total_of(sums);
                total[1] += total_of(products);
            }
        }
    }

    #[inline(always)]
    fn columns(self) {
        let Grid { rows, run, .. } = self.grid;
        let first = self.channels.start;
        let len = self.channels.len() * run;
        let mut sums = [T::Wide::default(); WIDTH];
        let mut products = [T::Wide::default(); WIDTH];
        let mut means = [T::Wide::default(); WIDTH];
        let (sums, products, means) = (&mut sums[..len], &mut products[..len], &mut means[..len]);
        repeat_each(&self.mean[self.channels.clone()], run, means);
        for start in (0..rows).step_by(ROWS) {
            sums.fill(T::Wide::default());
            products.fill(T::Wide::default());
            for row in start..rows.min(start + ROWS) {
                let mut spares = [[MaybeUninit::uninit(); BLOCK]; 2];
                let [spare, other] = &mut spares;
                let values = T::wide(self.input.slice(row, first, 0, len), spare);
                let gradients = T::wide(self.gradient.slice(row, first, 0, len), other);
                for ((((sum, product), value), gradient), mean) in
                    sums.iter_mut().zip(&mut *products).zip(values).zip(gradients).zip(&*means)
                {
                    *sum = *sum + *gradient;
                    *product = *product + *gradient * (*value - *mean);
                }
            }
            let groups = sums.chunks_exact(run).zip(products.chunks_exact(run));
            for (total, (sums, products)) in self.totals.iter_mut().zip(groups) {
                total[0] += total_of_group(sums);
                total[1] += total_of_group(products);
            }
        }
    }
}

/// `sums` and `products` with `dy` and `dy (x - mean)` added, each to its lane.
#[inline(always)]
fn products_added<W: Wide>(
    mut sums: [W; LANES],
    mut products: [W; LANES],
    values: &[W],
    gradients: &[W],
    mean: W,
) -> ([W; LANES], [W; LANES]) {
    let (value_chunks, value_octets, value_rest) = chunks(values);
    let (gradient_chunks, gradient_octets, gradient_rest) = chunks(gradients);
    for (values, gradients) in value_chunks.iter().zip(gradient_chunks) {
        for lane in 0..LANES {
            sums[lane] = sums[lane] + gradients[lane];
            products[lane] = products[lane] + gradients[lane] * (values[lane] - mean);
        }
    }
    let (mut last_sums, mut last_products) = ([W::default(); OCTET], [W::default(); OCTET]);
    for (values, gradients) in value_octets.iter().zip(gradient_octets) {
        for lane in 0..OCTET {
            last_sums[lane] = last_sums[lane] + gradients[lane];
            last_products[lane] = last_products[lane] + gradients[lane] * (values[lane] - mean);
        }
    }
    let rest = value_rest.iter().zip(gradient_rest);
    for ((sum, product), (value, gradient)) in last_sums.iter_mut().zip(&mut last_products).zip(rest) {
        *sum = *sum + *gradient;
        *product = *product + *gradient * (*value - mean);
    }
    (with_last(sums, last_sums), with_last(products, last_products))
}
