//! How often a value was in which range, as Prometheus counts.

use std::fmt::Write;
use std::sync::{Mutex, PoisonError};

/// Counts of values up to each of some bounds.
pub(super) struct Histogram {
    bounds: &'static [f64],
    counts: Mutex<Counts>,
}

struct Counts {
    /// One for each bound and one for what is above them all.
    buckets: Vec<u64>,
    sum: f64,
}

impl Histogram {
    /// For `bounds` in ascending order.
    pub(super) fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: Mutex::new(Counts { buckets: vec![0; bounds.len() + 1], sum: 0.0 }) }
    }

    pub(super) fn add(&self, value: f64) {
        let bucket = self.bounds.partition_point(|bound| *bound < value);
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        counts.buckets[bucket] += 1;
        counts.sum += value;
    }

    /// Number of the values and their sum.
    pub(super) fn total(&self) -> (u64, f64) {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        (counts.buckets.iter().sum(), counts.sum)
    }

    /// Appends the lines in Prometheus's text format.
    pub(super) fn write(&self, name: &str, help: &str, out: &mut String) {
        let counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
        let mut below = 0;
        for (bound, count) in self.bounds.iter().zip(&counts.buckets) {
            below += count;
            let _ = writeln!(out, "{name}_bucket{{le=\"{bound}\"}} {below}");
        }
        let all: u64 = counts.buckets.iter().sum();
        let _ = writeln!(
            out,
            "{name}_bucket{{le=\"+Inf\"}} {all}\n{name}_sum {}\n{name}_count {all}",
            counts.sum
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_counts_for_each_bound_that_it_does_not_exceed() {
        let histogram = Histogram::new(&[0.5, 1.0]);
        [0.25, 0.5, 0.75, 4.0].into_iter().for_each(|value| histogram.add(value));
        let mut text = String::new();
        histogram.write("x_seconds", "X.", &mut text);
        let expected = "# HELP x_seconds X.\n# TYPE x_seconds histogram\nx_seconds_bucket{le=\"0.5\"} 2\n\
                        x_seconds_bucket{le=\"1\"} 3\nx_seconds_bucket{le=\"+Inf\"} 4\nx_seconds_sum 5.5\nx_seconds_count 4\n";
        assert_eq!(text, expected);
        assert_eq!(histogram.total(), (4, 5.5));
    }
}
