//! The passes over a gradient matrix `M` of `rows` x `columns`, row by row in memory.
//!
//! The thin matrices are stored by columns: column `k` of `P` is `p[k * rows..]`, column `k` of `Q` is
//! `q[k * columns..]`, so that every inner loop runs along memory. The order of all sums is fixed and no
//! multiply-add is fused, so that the bits depend on nothing but the values: ranks may run on different processors.

/// Sums in flight at a time, so that additions do not wait for each other.
const LANES: usize = 8;
/// Columns of `M` at a time: their part of `Q` stays in the first cache while all rows pass by.
const BLOCK: usize = 1024;
/// Thin columns at a time in a product with a row: with more, their sums do not fit into the registers of SSE2.
const DOTS: usize = 2;
/// Thin columns at a time elsewhere.
const WIDTH: usize = 4;

/// What makes a gradient the matrix to compress: `gradient * factor + scale * error`.
#[derive(Clone, Copy)]
pub(super) struct Load<'a> {
    pub(super) factor: f32,
    /// As many elements as the gradient, or none.
    pub(super) error: &'a [f32],
    pub(super) scale: f32,
}

impl Load<'_> {
    fn apply(self, row: &mut [f32], start: usize) {
        if self.factor != 1.0 {
            row.iter_mut().for_each(|value| *value *= self.factor);
        }
        if !self.error.is_empty() {
            let error = &self.error[start..start + row.len()];
            row.iter_mut().zip(error).for_each(|(value, error)| *value += self.scale * error);
        }
    }
}

/// Loads `M` in place of the gradient, and `P = M Q`: row by row, while the row is in the cache.
pub(super) fn project(gradient: &mut [f32], load: Load<'_>, q: &[f32], p: &mut [f32], columns: usize) {
    let rows = gradient.len() / columns;
    for (i, row) in gradient.chunks_exact_mut(columns).enumerate() {
        load.apply(row, i * columns);
        for (q, p) in q.chunks(DOTS * columns).zip(p.chunks_mut(DOTS * rows)) {
            match q.len() / columns {
                1 => dots::<1>(row, q, p, i, rows),
                _ => dots::<DOTS>(row, q, p, i, rows),
            }
        }
    }
}

/// Row `i` of `K` columns of `P`.
fn dots<const K: usize>(row: &[f32], q: &[f32], p: &mut [f32], i: usize, rows: usize) {
    let columns: [&[f32]; K] = std::array::from_fn(|k| &q[k * row.len()..(k + 1) * row.len()]);
    let mut lanes = [[0.0f32; LANES]; K];
    let whole = row.len() - row.len() % LANES;
    for start in (0..whole).step_by(LANES) {
        let values: &[f32; LANES] = row[start..start + LANES].try_into().expect("a whole group");
        for k in 0..K {
            let other: &[f32; LANES] = columns[k][start..start + LANES].try_into().expect("a whole group");
            for lane in 0..LANES {
                lanes[k][lane] += values[lane] * other[lane];
            }
        }
    }
    for k in 0..K {
        for at in whole..row.len() {
            lanes[k][at - whole] += row[at] * columns[k][at];
        }
        p[k * rows + i] = lanes[k].iter().sum();
    }
}

/// `Q = Mᵀ P`.
pub(super) fn project_back(matrix: &[f32], p: &[f32], q: &mut [f32], columns: usize) {
    let rows = matrix.len() / columns;
    q.fill(0.0);
    for start in (0..columns).step_by(BLOCK) {
        let block = start..columns.min(start + BLOCK);
        let row = |i: usize| &matrix[i * columns + block.start..i * columns + block.end];
        for i in (0..rows - rows % 4).step_by(4) {
            let values = [row(i), row(i + 1), row(i + 2), row(i + 3)];
            for (p, q) in p.chunks_exact(rows).zip(q.chunks_exact_mut(columns)) {
                add_four(&mut q[block.clone()], values, [p[i], p[i + 1], p[i + 2], p[i + 3]]);
            }
        }
        for i in rows - rows % 4..rows {
            for (p, q) in p.chunks_exact(rows).zip(q.chunks_exact_mut(columns)) {
                q[block.clone()].iter_mut().zip(row(i)).for_each(|(q, value)| *q += p[i] * value);
            }
        }
    }
}

fn add_four(q: &mut [f32], values: [&[f32]; 4], p: [f32; 4]) {
    let [a, b, c, d] = values.map(|row| &row[..q.len()]);
    for j in 0..q.len() {
        q[j] += (p[0] * a[j] + p[1] * b[j]) + (p[2] * c[j] + p[3] * d[j]);
    }
}

/// The thin matrices of a step: what `M` is approximated by.
#[derive(Clone, Copy)]
pub(super) struct Factors<'a> {
    pub(super) p: &'a [f32],
    /// `Mᵀ P` of this rank.
    pub(super) own: &'a [f32],
    /// Its mean over ranks.
    pub(super) mean: &'a [f32],
}

/// Ends a step: `M` becomes `P meanᵀ`, and `error` what this rank's part lacks, `(M - P ownᵀ) * inverse_scale`.
pub(super) fn finish(
    matrix: &mut [f32],
    factors: Factors<'_>,
    columns: usize,
    mut error: Option<(&mut [f32], f32)>,
) {
    let rows = matrix.len() / columns;
    let rank = factors.p.len() / rows;
    let (mut mean, mut own) = ([0.0f32; BLOCK], [0.0f32; BLOCK]);
    for start in (0..columns).step_by(BLOCK) {
        let len = BLOCK.min(columns - start);
        for i in 0..rows {
            let at = i * columns + start..i * columns + start + len;
            combine(&mut mean[..len], factors.p, factors.mean, Place { i, rows, start, columns, rank });
            if let Some((error, inverse_scale)) = &mut error {
                combine(&mut own[..len], factors.p, factors.own, Place { i, rows, start, columns, rank });
                let values = matrix[at.clone()].iter().zip(&own);
                let missing = values.map(|(value, own)| (value - own) * *inverse_scale);
                error[at.clone()].iter_mut().zip(missing).for_each(|(error, missing)| *error = missing);
            }
            matrix[at].copy_from_slice(&mean[..len]);
        }
    }
}

/// Part of one row of `P Qᵀ`.
#[derive(Clone, Copy)]
struct Place {
    i: usize,
    rows: usize,
    start: usize,
    columns: usize,
    rank: usize,
}

fn combine(out: &mut [f32], p: &[f32], q: &[f32], place: Place) {
    let Place { i, rows, start, columns, rank } = place;
    let len = out.len();
    let column = |k: usize| (p[k * rows + i], &q[k * columns + start..k * columns + start + len]);
    let mut first = true;
    for k in (0..rank).step_by(WIDTH) {
        match rank - k {
            1 => sum_into(out, [column(k)], first),
            2 => sum_into(out, [column(k), column(k + 1)], first),
            3 => sum_into(out, [column(k), column(k + 1), column(k + 2)], first),
            _ => sum_into(out, [column(k), column(k + 1), column(k + 2), column(k + 3)], first),
        }
        first = false;
    }
}

fn sum_into<const K: usize>(out: &mut [f32], terms: [(f32, &[f32]); K], first: bool) {
    let terms = terms.map(|(p, q)| (p, &q[..out.len()]));
    for (j, out) in out.iter_mut().enumerate() {
        let mut sum = if first { 0.0 } else { *out };
        for (p, q) in terms {
            sum += p * q[j];
        }
        *out = sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wave(count: usize, phase: f32) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * 0.7 + phase).sin()).collect()
    }

    fn close(found: &[f32], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!(
                (f64::from(*found) - expected).abs() < 1e-4 * expected.abs().max(1.0),
                "{found} {expected}"
            );
        }
    }

    /// Shapes under and over every block, width and group.
    const CASES: [(usize, usize, usize); 7] =
        [(1, 1, 1), (3, 5, 2), (4, 16, 3), (7, 33, 4), (6, 1023, 5), (9, 1025, 1), (5, 2100, 8)];

    #[test]
    fn both_projections_are_the_products_of_their_definition() {
        for (rows, columns, rank) in CASES {
            let (matrix, q, p) =
                (wave(rows * columns, 0.1), wave(rank * columns, 0.2), wave(rank * rows, 0.3));
            let (mut found_p, mut found_q) = (vec![9.0; rank * rows], vec![9.0; rank * columns]);
            let load = Load { factor: 1.0, error: &[], scale: 1.0 };
            project(&mut matrix.clone(), load, &q, &mut found_p, columns);
            project_back(&matrix, &p, &mut found_q, columns);
            let product = |k: usize, i: usize| {
                (0..columns).map(|j| f64::from(matrix[i * columns + j]) * f64::from(q[k * columns + j])).sum()
            };
            let expected: Vec<f64> = (0..rank * rows).map(|at| product(at / rows, at % rows)).collect();
            close(&found_p, &expected);
            let product = |k: usize, j: usize| {
                (0..rows).map(|i| f64::from(matrix[i * columns + j]) * f64::from(p[k * rows + i])).sum()
            };
            let expected: Vec<f64> =
                (0..rank * columns).map(|at| product(at / columns, at % columns)).collect();
            close(&found_q, &expected);
        }
    }

    #[test]
    fn the_error_is_added_in_the_units_of_the_step() {
        let (mut matrix, error) = (vec![1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]);
        let mut p = [0.0; 2];
        project(&mut matrix, Load { factor: 2.0, error: &error, scale: 0.5 }, &[1.0, 0.0], &mut p, 2);
        assert_eq!(matrix, [7.0, 14.0, 21.0, 28.0]);
        assert_eq!(p, [7.0, 21.0]);
    }

    #[test]
    fn the_end_of_a_step_leaves_the_mean_and_what_this_rank_lacks() {
        for (rows, columns, rank) in CASES {
            let matrix = wave(rows * columns, 0.1);
            let (p, own, mean) =
                (wave(rank * rows, 0.3), wave(rank * columns, 0.4), wave(rank * columns, 0.5));
            let factors = Factors { p: &p, own: &own, mean: &mean };
            let (mut found, mut error) = (matrix.clone(), vec![9.0; matrix.len()]);
            finish(&mut found, factors, columns, Some((&mut error, 0.5)));
            let at = |q: &[f32], index: usize| -> f64 {
                let (i, j) = (index / columns, index % columns);
                (0..rank).map(|k| f64::from(p[k * rows + i]) * f64::from(q[k * columns + j])).sum()
            };
            let expected: Vec<f64> = (0..matrix.len()).map(|index| at(&mean, index)).collect();
            close(&found, &expected);
            let missing = |index: usize| (f64::from(matrix[index]) - at(&own, index)) / 2.0;
            close(&error, &(0..matrix.len()).map(missing).collect::<Vec<_>>());
            let mut without = matrix.clone();
            finish(&mut without, factors, columns, None);
            assert_eq!(without, found);
        }
    }
}
