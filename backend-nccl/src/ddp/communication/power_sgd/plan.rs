//! Which gradients of a bucket are compressed, and where their parts lie. Pure arithmetic.

use std::ops::Range;

use super::PowerSgdConfig;
use crate::ddp::communication::BucketLayout;

/// A gradient that is compressed, as a matrix: its first dimension by the rest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Matrix {
    /// Its place among the bucket's parameters.
    pub(super) parameter: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
    /// Columns of its thin matrices, at most its smaller side.
    pub(super) rank: usize,
    /// Where it lies in the bucket, in elements.
    pub(super) elements: Range<usize>,
    /// Where it lies among the bucket's errors.
    pub(super) error: Range<usize>,
    /// Where its `rank` columns of `rows` elements lie in `P`, one column after the other.
    pub(super) p: Range<usize>,
    /// Where its `rank` columns of `columns` elements lie in `Q`.
    pub(super) q: Range<usize>,
}

/// What is done with each gradient of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) matrices: Vec<Matrix>,
    /// What is averaged whole: places among the bucket's parameters, and where they lie in the bucket, in elements.
    pub(super) whole: Vec<(usize, Range<usize>)>,
    /// Elements of the errors, of all `P` and of all `Q`.
    pub(super) errors: usize,
    pub(super) p: usize,
    pub(super) q: usize,
}

impl Plan {
    pub(super) fn new(layout: &BucketLayout, config: &PowerSgdConfig) -> Self {
        let mut plan = Self::default();
        for (parameter, info) in layout.parameters.iter().enumerate() {
            let size = layout.dtype.size_bytes();
            let elements = info.range.start / size..info.range.end / size;
            let rows = info.shape.first().copied().unwrap_or(1);
            let columns: usize = info.shape.iter().skip(1).product();
            let rank = config.rank.min(rows).min(columns);
            if !is_worth_it(rows, columns, rank, config.min_compression_rate) {
                plan.whole.push((parameter, elements));
                continue;
            }
            let next = |total: &mut usize, count: usize| {
                *total += count;
                *total - count..*total
            };
            plan.matrices.push(Matrix {
                parameter,
                rows,
                columns,
                rank,
                error: next(&mut plan.errors, elements.len()),
                p: next(&mut plan.p, rank * rows),
                q: next(&mut plan.q, rank * columns),
                elements,
            });
        }
        plan
    }

    /// Elements that are averaged whole.
    pub(super) fn whole_elements(&self) -> usize {
        self.whole.iter().map(|(_, elements)| elements.len()).sum()
    }
}

/// PyTorch's `_should_compress`. Vectors never are: as one column they would be sent with more than they hold.
fn is_worth_it(rows: usize, columns: usize, rank: usize, min_rate: f64) -> bool {
    rank > 0 && (rows + columns) as f64 * rank as f64 * min_rate < rows as f64 * columns as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ddp::communication::BucketParameter;
    use crate::transport::DType;

    fn layout(shapes: &[&[usize]]) -> BucketLayout {
        let mut start = 0;
        let parameters = shapes.iter().map(|shape| {
            let range = start..start + 4 * shape.iter().product::<usize>();
            start = range.end.next_multiple_of(64);
            BucketParameter { name: format!("p{}", range.start), shape: shape.to_vec(), range }
        });
        let parameters = parameters.collect();
        BucketLayout { index: 0, is_last: true, dtype: DType::F32, len_bytes: start, parameters }
    }

    #[test]
    fn torchs_rule_decides_what_is_compressed() {
        // (rows + columns) * rank * 2 < rows * columns: 64 x 147 at rank 4 has 1688 < 9408, 8 x 9 at rank 1 has 34 < 72,
        // 4 x 4 has 16 = 16 and stays, and so do a vector and a scalar.
        let shapes: [&[usize]; 5] = [&[64, 3, 7, 7], &[8, 9], &[4, 4], &[1000], &[]];
        let plan = Plan::new(&layout(&shapes), &PowerSgdConfig::new().with_rank(1));
        let compressed: Vec<usize> = plan.matrices.iter().map(|matrix| matrix.parameter).collect();
        assert_eq!(compressed, [0, 1]);
        assert_eq!(plan.whole.iter().map(|(parameter, _)| *parameter).collect::<Vec<_>>(), [2, 3, 4]);
        let plan = Plan::new(&layout(&shapes), &PowerSgdConfig::new().with_rank(4));
        assert_eq!(plan.matrices.len(), 1);
        let matrix = &plan.matrices[0];
        assert_eq!((matrix.rows, matrix.columns, matrix.rank), (64, 147, 4));
    }

    #[test]
    fn parts_follow_one_another_and_a_rank_is_no_more_than_the_smaller_side() {
        let config = PowerSgdConfig::new().with_rank(100).with_min_compression_rate(1e-3);
        let plan = Plan::new(&layout(&[&[3, 5], &[4, 2]]), &config);
        let [first, second] = &plan.matrices[..] else { panic!("{plan:?}") };
        assert_eq!((first.rank, first.p.clone(), first.q.clone()), (3, 0..9, 0..15));
        assert_eq!((second.rank, second.p.clone(), second.q.clone()), (2, 9..17, 15..19));
        assert_eq!((second.elements.clone(), second.error.clone()), (16..24, 15..23));
        assert_eq!((plan.errors, plan.p, plan.q), (23, 17, 19));
    }
}
