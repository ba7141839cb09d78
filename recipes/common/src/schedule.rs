//! The learning rate of each step.

use std::f64::consts::PI;

/// The global batch size that `--lr` is meant for.
///
/// Source: Goyal et al., "Accurate, Large Minibatch SGD" (arXiv:1706.02677), whose base is 256 images.
pub const BASE_BATCH_SIZE: f64 = 256.0;

/// Linear warm-up, then half a cosine down to zero.
///
/// With `p` the peak, `w` the warm-up steps and `n` all steps, step `t = 0, 1, …` has the rate
/// `p (t + 1) / w` for `t < w` and `p/2 (1 + cos(π (t - w) / (n - w)))` after that.
///
/// Source: Goyal et al. 2017, section 2.2 (warm-up); Loshchilov and Hutter, "SGDR" (arXiv:1608.03983).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Schedule {
    /// The highest rate, reached at the end of the warm-up.
    pub peak: f64,
    /// Steps of rising rate.
    pub warmup_steps: usize,
    /// All steps of the run.
    pub total_steps: usize,
}

impl Schedule {
    /// The schedule for a base rate given per [`BASE_BATCH_SIZE`] images: the peak is
    /// `base · global_batch_size / 256`.
    pub fn scaled(base: f64, global_batch_size: usize, warmup_steps: usize, total_steps: usize) -> Self {
        let peak = base * global_batch_size as f64 / BASE_BATCH_SIZE;
        Self { peak, warmup_steps: warmup_steps.min(total_steps), total_steps }
    }

    /// The rate of step `step`, counted from 0. Zero past the end.
    pub fn rate(&self, step: usize) -> f64 {
        if step < self.warmup_steps {
            return self.peak * (step + 1) as f64 / self.warmup_steps as f64;
        }
        if step >= self.total_steps {
            return 0.0;
        }
        let progress = (step - self.warmup_steps) as f64 / (self.total_steps - self.warmup_steps) as f64;
        self.peak * 0.5 * (1.0 + (PI * progress).cos())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_grows_linearly_with_the_global_batch() {
        assert_eq!(Schedule::scaled(0.1, 256, 0, 10).peak, 0.1);
        assert_eq!(Schedule::scaled(0.1, 1024, 0, 10).peak, 0.4);
        assert_eq!(Schedule::scaled(0.4, 64, 0, 10).peak, 0.1);
    }

    #[test]
    fn the_rate_rises_in_equal_parts_then_follows_the_cosine() {
        let schedule = Schedule { peak: 0.8, warmup_steps: 4, total_steps: 12 };
        let rates: Vec<f64> = (0..13).map(|step| schedule.rate(step)).collect();
        // cos(0) = 1, cos(π/4) = 0.70711, cos(π/2) = 0, cos(3π/4) = -0.70711.
        let expected = [(0, 0.2), (1, 0.4), (3, 0.8), (4, 0.8), (6, 0.682843), (8, 0.4), (10, 0.117157)];
        for (step, value) in expected {
            assert!((rates[step] - value).abs() < 1e-6, "step {step}: {}", rates[step]);
        }
        assert!(rates[11] > 0.0 && rates[12] == 0.0);
    }

    #[test]
    fn a_warm_up_longer_than_the_run_ends_at_the_peak() {
        let schedule = Schedule::scaled(1.0, 256, 100, 5);
        assert_eq!((schedule.rate(0), schedule.rate(4)), (0.2, 1.0));
    }
}
