//! Mean and spread of a batch that lies on several ranks: plain arithmetic in f64, in rank order, so that every rank
//! gets the same bits.

/// What a set of values says about each channel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Statistics {
    /// Values per channel. A rank with an empty batch has none.
    pub(crate) count: u64,
    /// The mean of each channel; zero without values.
    pub(crate) mean: Vec<f64>,
    /// The sum of squared deviations from the mean, of each channel.
    pub(crate) squares: Vec<f64>,
}

impl Statistics {
    /// What a rank sends: `[mean | squares | count]`. A count is exact up to 2^53.
    pub(crate) fn to_wire(&self) -> Vec<f64> {
        [self.mean.as_slice(), &self.squares, &[self.count as f64]].concat()
    }

    fn from_wire(values: &[f64]) -> Self {
        let channels = values.len() / 2;
        Self {
            count: values[2 * channels] as u64,
            mean: values[..channels].to_vec(),
            squares: values[channels..2 * channels].to_vec(),
        }
    }

    /// Merges what all ranks sent, in rank order.
    pub(crate) fn merge_wire(gathered: &[f64], ranks: usize) -> Self {
        let parts = gathered.chunks_exact(gathered.len() / ranks).map(Self::from_wire);
        parts.reduce(|all, rank| all.merge(&rank)).expect("a group has a rank")
    }

    /// The statistics of both sets of values together: with `δ = mean_b - mean_a` and `n = n_a + n_b`,
    /// `mean = mean_a + δ n_b / n` and `squares = squares_a + squares_b + δ² n_a n_b / n`.
    ///
    /// Sums of values and of squares would do in exact arithmetic; in floating point they cancel where the mean is
    /// large beside the deviation.
    ///
    /// Source: T. Chan, G. Golub, R. LeVeque, "Algorithms for Computing the Sample Variance", 1983.
    fn merge(mut self, other: &Self) -> Self {
        if other.count == 0 {
            return self;
        }
        if self.count == 0 {
            return other.clone();
        }
        let (own, others) = (self.count as f64, other.count as f64);
        let share = others / (own + others);
        for channel in 0..self.mean.len() {
            let difference = other.mean[channel] - self.mean[channel];
            self.mean[channel] += difference * share;
            self.squares[channel] += other.squares[channel] + difference * difference * own * share;
        }
        self.count += other.count;
        self
    }

    /// The biased variance of each channel, `squares / count`; zero without values.
    pub(crate) fn variance(&self) -> Vec<f64> {
        self.squares.iter().map(|squares| squares / self.count.max(1) as f64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One channel, straight from the definition.
    fn of(values: &[f64]) -> Statistics {
        let count = values.len() as u64;
        let mean = values.iter().sum::<f64>() / count.max(1) as f64;
        let squares = values.iter().map(|value| (value - mean).powi(2)).sum();
        Statistics { count, mean: vec![mean], squares: vec![squares] }
    }

    fn merged(parts: &[&[f64]]) -> Statistics {
        let wire: Vec<f64> = parts.iter().flat_map(|part| of(part).to_wire()).collect();
        Statistics::merge_wire(&wire, parts.len())
    }

    fn assert_is_joined(parts: &[&[f64]], tolerance: f64) {
        let (found, expected) = (merged(parts), of(&parts.concat()));
        assert_eq!(found.count, expected.count);
        for (found, expected) in [(found.mean[0], expected.mean[0]), (found.squares[0], expected.squares[0])]
        {
            assert!(
                (found - expected).abs() <= tolerance * expected.abs().max(1.0),
                "{found}, expected {expected}"
            );
        }
    }

    #[test]
    fn parts_of_any_size_merge_to_the_statistics_of_all_values() {
        assert_is_joined(&[&[1.0, 2.5, -3.0], &[0.25], &[4.0, 4.5, 9.0, -1.0, 0.0]], 1e-15);
        assert_is_joined(&[&[3.0], &[5.0]], 0.0);
        assert_is_joined(&[&[-1e6, -1e6 + 1.0], &[1e6, 1e6 - 3.0]], 1e-15);
    }

    #[test]
    fn an_empty_part_changes_nothing_wherever_it_stands() {
        let expected = of(&[1.0, 2.0, 7.0]);
        for parts in [[&[][..], &[1.0, 2.0, 7.0]], [&[1.0, 2.0, 7.0], &[]]] {
            assert_eq!(merged(&parts), expected);
        }
    }

    #[test]
    fn no_values_at_all_have_mean_and_variance_zero() {
        let none = merged(&[&[], &[], &[]]);
        assert_eq!((none.count, none.mean.clone(), none.variance()), (0, vec![0.0], vec![0.0]));
    }

    #[test]
    fn a_deviation_survives_beside_a_mean_ten_million_times_as_large() {
        let found = merged(&[&[1e7, 1e7 + 1.0], &[1e7 + 2.0, 1e7 + 3.0]]);
        assert_eq!(found.mean, [1e7 + 1.5]);
        assert_eq!(found.variance(), [1.25]);
    }

    #[test]
    fn counts_beyond_the_integers_of_f32_are_exact() {
        let part = |count| Statistics { count, mean: vec![0.0], squares: vec![0.0] }.to_wire();
        let wire = [part((1 << 24) + 1), part(1), part((1 << 40) + 1)].concat();
        assert_eq!(Statistics::merge_wire(&wire, 3).count, (1 << 24) + (1 << 40) + 3);
    }

    #[test]
    fn channels_do_not_mix() {
        let part =
            |mean: [f64; 2]| Statistics { count: 2, mean: mean.to_vec(), squares: vec![2.0, 0.5] }.to_wire();
        let found = Statistics::merge_wire(&[part([1.0, -2.0]), part([3.0, -2.0])].concat(), 2);
        let expected = Statistics { count: 4, mean: vec![2.0, -2.0], squares: vec![8.0, 1.0] };
        assert_eq!(found, expected);
    }
}
