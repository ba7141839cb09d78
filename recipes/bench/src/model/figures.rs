//! The numbers that the model is given: those measured here, and those taken from others.

use std::path::Path;

use recipe_common::{RecipeError, Result};
use serde_json::Value;

use super::cost::Link;

/// NVLink 4: 18 links of 25 GB/s each way are 450 GB/s (NVIDIA's H100 white paper), of which 80% are used. The latency is
/// what NCCL's own model gives a hop in a ring (`src/graph/tuning.cc`, protocol Simple); GPUs queue messages by themselves.
pub(super) const NVLINK: Link = Link { latency: 3.4e-6, overhead: 0.5e-6, bandwidth: 0.8 * 450e9 };
/// InfiniBand NDR, 400 Gbit/s for each GPU, of which 90% are used; the latency as above, for the network.
pub(super) const INFINIBAND: Link = Link { latency: 14e-6, overhead: 1e-6, bandwidth: 0.9 * 50e9 };

/// What two ranks on one machine took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Figures {
    /// Processor seconds of a rank for one short message out and one in, over TCP.
    tcp_overhead: f64,
    /// Bytes a second over TCP, both ways at once.
    tcp_bandwidth: f64,
    /// Seconds of the shortest all-reduce in shared memory.
    shm_latency: f64,
    /// Bytes a second of the longest one.
    shm_bandwidth: f64,
}

impl Default for Figures {
    /// Two cores of an AMD EPYC (Zen 4), 2026-11.
    fn default() -> Self {
        Self { tcp_overhead: 11.7e-6, tcp_bandwidth: 5.27e9, shm_latency: 0.76e-6, shm_bandwidth: 15.1e9 }
    }
}

impl Figures {
    /// From a file of `all-reduce --json`.
    pub(super) fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| RecipeError::file("read", path, error))?;
        Self::parse(&text).map_err(|cause| {
            RecipeError::usage(
                format!("cannot use {}", path.display()),
                cause,
                "give a file of `recipe-bench all-reduce --json` with --ranks 2 and two --sizes or more",
            )
        })
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        let json: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        if json["ranks"].as_u64() != Some(2) {
            return Err("it is not of two ranks".into());
        }
        let tcp = Fit::of(&json, "tcp")?;
        // Without shared memory the ranks of a host have TCP.
        let shm = Fit::of(&json, "shm-resident").unwrap_or(tcp);
        Ok(Self {
            tcp_overhead: tcp.cpu_seconds,
            tcp_bandwidth: tcp.bandwidth,
            shm_latency: shm.seconds,
            shm_bandwidth: shm.bandwidth,
        })
    }

    /// Two ranks of a host that add up in shared memory.
    pub(super) fn shared_memory(&self, bytes: f64) -> f64 {
        self.shm_latency + bytes / self.shm_bandwidth
    }
}

/// A transport's shortest all-reduce, and the slope between its two longest.
#[derive(Clone, Copy)]
struct Fit {
    seconds: f64,
    cpu_seconds: f64,
    bandwidth: f64,
}

impl Fit {
    fn of(json: &Value, transport: &str) -> std::result::Result<Self, String> {
        let number =
            |cell: &Value, key: &str| cell[key].as_f64().ok_or_else(|| format!("a cell has no {key}"));
        let cells = json["cells"].as_array().into_iter().flatten();
        let mut cells = cells
            .filter(|cell| cell["transport"] == transport)
            .map(|cell| {
                let seconds = number(cell, "seconds_median")?;
                Ok((number(cell, "bytes")?, seconds, number(cell, "cpu_seconds_median")?))
            })
            .collect::<std::result::Result<Vec<_>, String>>()?;
        cells.sort_by(|a, b| a.0.total_cmp(&b.0));
        let [(_, seconds, cpu_seconds), ..] = cells[..] else {
            return Err(format!("it has no {transport}"));
        };
        let [.., (less, sooner, _), (more, later, _)] = cells[..] else {
            return Err(format!("it has one size of {transport}"));
        };
        if later <= sooner {
            return Err(format!("more bytes take no longer over {transport}"));
        }
        Ok(Self { seconds, cpu_seconds, bandwidth: (more - less) / (later - sooner) })
    }
}

/// What a rank of a large cluster has: the network's latency, and of network and machine what is slower.
pub(super) fn network(figures: &Figures, latency: f64, bandwidth: f64) -> Link {
    Link { latency, overhead: figures.tcp_overhead, bandwidth: bandwidth.min(figures.tcp_bandwidth) }
}

pub(super) fn measured_bandwidth(figures: &Figures) -> f64 {
    figures.tcp_bandwidth
}

impl Link {
    /// In words.
    pub(super) fn text(&self) -> String {
        format!("α {:.1} µs, {:.1} GB/s", self.latency * 1e6, self.bandwidth / 1e9)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELLS: &str = r#"{"ranks": 2, "cells": [
        {"transport": "tcp", "bytes": 102000000, "seconds_median": 0.0230, "cpu_seconds_median": 0.02},
        {"transport": "tcp", "bytes": 1000, "seconds_median": 0.000012, "cpu_seconds_median": 0.000008},
        {"transport": "tcp", "bytes": 26000000, "seconds_median": 0.0040, "cpu_seconds_median": 0.004}]}"#;

    #[test]
    fn the_overhead_is_that_of_the_shortest_and_the_bandwidth_the_slope_of_the_longest() {
        let figures = Figures::parse(CELLS).unwrap();
        assert_eq!(figures.tcp_overhead, 8e-6);
        assert!((figures.tcp_bandwidth - 4e9).abs() < 1.0);
        assert!((figures.shared_memory(4e9) - 1.000_012).abs() < 1e-9);
        let link = network(&figures, 25e-6, 3.125e9);
        assert_eq!((link.latency, link.overhead, link.bandwidth), (25e-6, 8e-6, 3.125e9));
        assert!((network(&figures, 25e-6, 12.5e9).bandwidth - 4e9).abs() < 1.0);
    }

    #[test]
    fn a_file_that_does_not_say_enough_is_refused_with_what_it_lacks() {
        for (text, words) in [
            ("x", "expected value"),
            (r#"{"ranks": 4}"#, "not of two ranks"),
            (r#"{"ranks": 2, "cells": []}"#, "no tcp"),
            (r#"{"ranks": 2, "cells": [{"transport": "tcp", "bytes": 4}]}"#, "no seconds_median"),
            (
                r#"{"ranks": 2, "cells": [{"transport": "tcp", "bytes": 4, "seconds_median": 1, "cpu_seconds_median": 1}]}"#,
                "one size of tcp",
            ),
        ] {
            let error = Figures::parse(text).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
