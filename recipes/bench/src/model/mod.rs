//! `model`: what an all-reduce would cost where nobody has measured it.

mod cost;
mod figures;

use std::path::PathBuf;

use clap::Args;
use recipe_common::Result;

use self::cost::{by_parts, ring_of_hosts};
use self::figures::{Figures, INFINIBAND, NVLINK, measured_bandwidth, network};
use crate::size::Size;
use recipe_common::output::{digits, print, table, time};

pub(crate) use cost::ring_factor;

/// Compute what an all-reduce costs on 8 x 8 GPUs and on 1,000 hosts, from what was measured here.
#[derive(Args)]
pub(crate) struct Options {
    /// A file that `all-reduce --json` has written with two ranks and two sizes or more; without one, figures of
    /// two cores of an AMD EPYC (Zen 4).
    #[arg(long, value_name = "FILE")]
    measured: Option<PathBuf>,
    /// Hosts of the large cluster.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    hosts: u32,
    /// One way through the network of the large cluster, in microseconds.
    #[arg(long, default_value_t = 25.0, value_parser = positive)]
    latency_us: f64,
    /// The network card of its hosts, in Gbit/s.
    #[arg(long, default_value_t = 25.0, value_parser = positive)]
    gbit: f64,
}

const SIZES: [usize; 5] = [1_000, 64_000, 1_000_000, 26_000_000, 102_000_000];

fn positive(text: &str) -> std::result::Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number > 0.0);
    number.ok_or_else(|| "it is not above 0: give a larger number".to_owned())
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let figures = match &options.measured {
        Some(file) => Figures::read(file)?,
        None => Figures::default(),
    };
    print(&format!("{}\n{}", gpus(), cluster(options, &figures)))
}

/// 8 hosts of 8 GPUs.
fn gpus() -> String {
    const HOSTS: usize = 8;
    const PER_HOST: usize = 8;
    let header = [
        "size",
        "ring of 64",
        "by parts, ring of 8 hosts",
        "by parts, pairs of 8 hosts",
        "bus GB/s of the best",
    ];
    let rows = SIZES.map(|size| {
        let bytes = size as f64;
        let ring = ring_of_hosts(&NVLINK, &INFINIBAND, HOSTS, PER_HOST, bytes);
        let parts = by_parts(&NVLINK, |n, bytes| INFINIBAND.ring(n, bytes), HOSTS, PER_HOST, bytes);
        let pairs = by_parts(&NVLINK, |n, bytes| INFINIBAND.pairwise(n, bytes), HOSTS, PER_HOST, bytes);
        let bus = ring_factor(HOSTS * PER_HOST) * bytes / ring.min(parts).min(pairs) / 1e9;
        vec![Size(size).to_string(), time(ring), time(parts), time(pairs), digits(bus)]
    });
    format!(
        "8 hosts x 8 GPUs; inside a host NVLink, {}; between hosts a network card for each GPU, {}:\n\n{}",
        NVLINK.text(),
        INFINIBAND.text(),
        table(&header.map(str::to_owned), &rows),
    )
}

/// Many hosts without GPUs.
fn cluster(options: &Options, figures: &Figures) -> String {
    let hosts = options.hosts as usize;
    let link = network(figures, options.latency_us * 1e-6, options.gbit * 1e9 / 8.0);
    let header = ["size", "by pairs (tcp)", "ring", "halving (MPI)", "tree", "two ranks a host, by pairs"];
    let rows = SIZES.map(|size| {
        let bytes = size as f64;
        let layered = figures.shared_memory(bytes) + link.pairwise(hosts, bytes);
        vec![
            Size(size).to_string(),
            time(link.pairwise(hosts, bytes)),
            time(link.ring(hosts, bytes)),
            time(link.halving(hosts, bytes)),
            time(link.tree(hosts, bytes)),
            time(layered),
        ]
    });
    format!(
        "{hosts} hosts, one rank each; {}, of which {:.1} µs a message and at most {} GB/s are measured:\n\n{}",
        link.text(),
        link.overhead * 1e6,
        digits(measured_bandwidth(figures) / 1e9),
        table(&header.map(str::to_owned), &rows),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tables_have_a_row_for_each_size_and_say_what_they_assume() {
        let options = Options { measured: None, hosts: 1000, latency_us: 25.0, gbit: 25.0 };
        let text = format!("{}\n{}", gpus(), cluster(&options, &Figures::default()));
        assert_eq!(text.lines().filter(|line| line.starts_with("| 102 MB |")).count(), 2, "{text}");
        assert!(text.contains("α 25.0 µs"), "{text}");
        assert!(text.contains("1000 hosts, one rank each"), "{text}");
    }

    #[test]
    fn numbers_on_the_command_line_must_be_above_zero() {
        assert!(["0", "-1", "nan", "inf", "x"].iter().all(|text| positive(text).is_err()));
        assert_eq!(positive("2.5"), Ok(2.5));
    }
}
