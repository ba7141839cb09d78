//! Which checkpoints are kept: arithmetic on steps and metrics.

use super::config::{Best, CheckpointConfig};

/// The steps among `all` (step, metric) that may be deleted once `newest` is on disk.
///
/// Kept are `newest`, the `keep_last` highest steps and the `keep_best` best metrics; of equal metrics the earlier step
/// is the better. A checkpoint whose metric is missing or not finite is not among the best.
pub(super) fn doomed(all: &[(u64, Option<f64>)], newest: u64, config: &CheckpointConfig) -> Vec<u64> {
    let mut steps: Vec<u64> = all.iter().map(|(step, _)| *step).collect();
    steps.sort_unstable();
    let last = &steps[steps.len().saturating_sub(config.keep_last.max(1))..];

    let mut by_metric: Vec<(u64, f64)> = all
        .iter()
        .filter_map(|(step, metric)| Some((*step, metric.filter(|metric| metric.is_finite())?)))
        .collect();
    by_metric.sort_by(|(step, metric), (other_step, other)| {
        let order = match config.best {
            Best::Lowest => metric.total_cmp(other),
            Best::Highest => other.total_cmp(metric),
        };
        order.then(step.cmp(other_step))
    });
    let best: Vec<u64> = by_metric.into_iter().take(config.keep_best).map(|(step, _)| step).collect();

    let is_kept = |step: &u64| *step == newest || last.contains(step) || best.contains(step);
    steps.iter().copied().filter(|step| !is_kept(step)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAN: f64 = f64::NAN;

    /// What is left of `metrics`, numbered from 1, when the last of them is the newest.
    fn kept(metrics: &[Option<f64>], keep_last: usize, keep_best: usize, best: Best) -> Vec<u64> {
        let all: Vec<(u64, Option<f64>)> = (1..).zip(metrics.iter().copied()).collect();
        let newest = all.last().map_or(0, |(step, _)| *step);
        let config = CheckpointConfig { keep_last, keep_best, best, ..CheckpointConfig::default() };
        let doomed = doomed(&all, newest, &config);
        all.iter().map(|(step, _)| *step).filter(|step| !doomed.contains(step)).collect()
    }

    // C15
    #[test]
    fn the_best_and_the_last_are_kept() {
        let metrics = [Some(3.0), Some(1.0), Some(2.0)];
        for (keep_last, keep_best, best, expected) in [
            (1, 1, Best::Lowest, &[2, 3][..]),
            (1, 1, Best::Highest, &[1, 3]),
            (1, 2, Best::Lowest, &[2, 3]),
            (1, 2, Best::Highest, &[1, 3]),
            (1, 3, Best::Highest, &[1, 2, 3]),
            (1, 0, Best::Lowest, &[3]),
            (2, 0, Best::Lowest, &[2, 3]),
            (9, 9, Best::Lowest, &[1, 2, 3]),
        ] {
            assert_eq!(
                kept(&metrics, keep_last, keep_best, best),
                expected,
                "{keep_last}, {keep_best}, {best:?}"
            );
        }
    }

    #[test]
    fn the_newest_is_kept_whatever_is_asked() {
        assert_eq!(kept(&[Some(1.0), Some(2.0), Some(0.0)], 0, 0, Best::Highest), [3]);
        let config = CheckpointConfig { keep_last: 1, keep_best: 0, ..CheckpointConfig::default() };
        // A checkpoint that is newer by its number and older in time does not push out the one just written.
        assert_eq!(doomed(&[(5, None), (9, None), (7, None)], 7, &config), [5]);
        assert!(doomed(&[], 0, &config).is_empty());
    }

    #[test]
    fn without_a_finite_metric_none_is_best() {
        assert_eq!(kept(&[Some(f64::INFINITY), Some(0.1), None], 1, 1, Best::Highest), [2, 3]);
        assert_eq!(kept(&[Some(f64::NEG_INFINITY), Some(0.1), None], 1, 1, Best::Lowest), [2, 3]);
        assert_eq!(kept(&[None, Some(NAN), None], 1, 1, Best::Highest), [3]);
        assert_eq!(kept(&[Some(NAN), Some(0.1), None], 1, 1, Best::Lowest), [2, 3]);
        assert_eq!(kept(&[Some(-NAN), Some(0.1), None], 1, 1, Best::Lowest), [2, 3]);
    }

    #[test]
    fn of_equal_metrics_the_earlier_step_is_the_better() {
        assert_eq!(kept(&[Some(0.5), Some(0.5), Some(0.5), Some(0.1)], 1, 1, Best::Highest), [1, 4]);
    }
}
