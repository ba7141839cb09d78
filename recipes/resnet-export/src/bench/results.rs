//! What was measured, and what follows from it.

use std::fmt;

use recipe_common::machine::Machine;
use recipe_common::output::{digits, table, time};
use serde::Serialize;

use super::Options;
use super::child::{Child, Measured};
use super::peer;
use super::service::Service;
use super::side::{Program, Side};

/// All numbers of a run.
#[derive(Debug, Serialize)]
pub(super) struct Results {
    machine: Machine,
    /// What network, in words.
    network: String,
    rounds: usize,
    batch_size: usize,
    pub(super) rows: Vec<Row>,
    /// What this machine lacks, and why.
    absent: Vec<String>,
    /// The HTTP service, where it was asked for.
    pub(super) service: Option<Service>,
}

/// One side.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    engine: String,
    threads: usize,
    /// Of single images, over all rounds.
    latency_seconds_p50: f64,
    latency_seconds_p99: f64,
    /// The median over the rounds of the ratio of the rounds' medians to Python's ONNX Runtime with as many threads.
    onnxruntime_ratio_median: Option<f64>,
    /// Images a second in whole batches, the median of the rounds.
    images_per_second: f64,
    load_seconds: f64,
    peak_bytes: u64,
    deploy_bytes: u64,
    /// Every run of every round.
    latency_seconds: Vec<Vec<f64>>,
    batch_seconds: Vec<Vec<f64>>,
    #[serde(skip)]
    is_reference: bool,
}

impl Row {
    pub(super) fn new(side: &Side, child: &Child, measured: Measured) -> Self {
        let all = measured.latency.concat();
        Self {
            engine: child.ready.name.clone(),
            threads: side.threads,
            latency_seconds_p50: quantile(&all, 0.5),
            latency_seconds_p99: quantile(&all, 0.99),
            onnxruntime_ratio_median: None,
            images_per_second: 0.0,
            load_seconds: child.ready.load_seconds,
            peak_bytes: measured.peak_bytes,
            deploy_bytes: child.ready.deploy_bytes,
            latency_seconds: measured.latency,
            batch_seconds: measured.batches,
            is_reference: side.program == Program::Python(peer::ONNXRUNTIME),
        }
    }

    fn medians(rounds: &[Vec<f64>]) -> Vec<f64> {
        rounds.iter().map(|round| quantile(round, 0.5)).collect()
    }
}

impl Results {
    pub(super) fn new(machine: Machine, network: String, options: &Options) -> Self {
        Self {
            machine,
            network,
            rounds: options.rounds.into(),
            batch_size: options.batch_size.into(),
            rows: Vec::new(),
            absent: Vec::new(),
            service: None,
        }
    }

    /// Notes a side that could not be started, once for all numbers of threads.
    pub(super) fn absent(&mut self, side: &Side, reason: &str) {
        let Program::Engine(kind) = side.program else { return };
        let note = format!("{kind}: {reason}");
        if !self.absent.contains(&note) {
            self.absent.push(note);
        }
    }

    /// Computes what compares rows with each other.
    pub(super) fn conclude(&mut self) {
        let references: Vec<(usize, Vec<f64>)> = self
            .rows
            .iter()
            .filter(|row| row.is_reference)
            .map(|row| (row.threads, Row::medians(&row.latency_seconds)))
            .collect();
        for row in &mut self.rows {
            let batches =
                if row.batch_seconds.is_empty() { &row.latency_seconds } else { &row.batch_seconds };
            let size = if row.batch_seconds.is_empty() { 1 } else { self.batch_size };
            row.images_per_second = size as f64 / quantile(&Row::medians(batches), 0.5);
            let reference = references.iter().find(|(threads, _)| *threads == row.threads);
            row.onnxruntime_ratio_median = reference.map(|(_, reference)| {
                let own = Row::medians(&row.latency_seconds);
                let ratios: Vec<f64> = own.iter().zip(reference).map(|(own, other)| own / other).collect();
                quantile(&ratios, 0.5)
            });
        }
    }
}

impl fmt::Display for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { processor, cores } = &self.machine;
        writeln!(
            f,
            "{} on {processor}, {cores} cores, {} rounds; latency of one image, throughput in batches of {}; the ratio is to \
             the latency of ONNX Runtime in Python (median of the rounds' ratios):\n",
            self.network, self.rounds, self.batch_size
        )?;
        let header =
            ["engine", "threads", "p50", "p99", "ratio", "images/s", "peak MB", "load", "on disk MB"];
        let rows: Vec<Vec<String>> = self.rows.iter().map(cells).collect();
        f.write_str(&table(&header.map(str::to_owned), &rows))?;
        for absent in &self.absent {
            writeln!(f, "\nNot measured: {absent}")?;
        }
        match &self.service {
            Some(service) => write!(f, "\n{service}"),
            None => Ok(()),
        }
    }
}

fn cells(row: &Row) -> Vec<String> {
    let megabytes = |bytes: u64| digits(bytes as f64 / 1e6);
    vec![
        row.engine.clone(),
        row.threads.to_string(),
        time(row.latency_seconds_p50),
        time(row.latency_seconds_p99),
        row.onnxruntime_ratio_median.map_or("-".to_owned(), |ratio| format!("{ratio:.2}")),
        digits(row.images_per_second),
        megabytes(row.peak_bytes),
        time(row.load_seconds),
        megabytes(row.deploy_bytes),
    ]
}

/// The value below which a `part` of the values lies, by the nearest rank; 0 of none.
pub(crate) fn quantile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_the_value_of_the_nearest_rank() {
        let values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        // By the definition: the smallest value with at least that part of all at or below it.
        assert_eq!([0.5, 0.99, 0.991, 1.0].map(|part| quantile(&values, part)), [50.0, 99.0, 100.0, 100.0]);
        assert_eq!(
            (quantile(&[3.0, 1.0, 2.0], 0.5), quantile(&[7.0], 0.99), quantile(&[], 0.5)),
            (2.0, 7.0, 0.0)
        );
    }

    fn row(engine: &str, threads: usize, latency: &[&[f64]], is_reference: bool) -> Row {
        Row {
            engine: engine.into(),
            threads,
            latency_seconds_p50: 0.0,
            latency_seconds_p99: 0.0,
            onnxruntime_ratio_median: None,
            images_per_second: 0.0,
            load_seconds: 0.0,
            peak_bytes: 0,
            deploy_bytes: 0,
            latency_seconds: latency.iter().map(|round| round.to_vec()).collect(),
            batch_seconds: vec![vec![2.0], vec![4.0], vec![1.0]],
            is_reference,
        }
    }

    #[test]
    fn a_ratio_is_the_median_of_the_rounds_ratios_to_the_peer_with_as_many_threads() {
        let machine = Machine { processor: "x".into(), cores: 2 };
        let mut results = Results {
            machine,
            network: "n".into(),
            rounds: 3,
            batch_size: 8,
            rows: vec![
                row("a", 1, &[&[2.0], &[30.0], &[4.0]], false),
                row("peer", 1, &[&[1.0], &[10.0], &[4.0]], true),
                row("peer", 2, &[&[9.0], &[9.0], &[9.0]], true),
                row("b", 4, &[&[1.0], &[1.0], &[1.0]], false),
            ],
            absent: vec!["onnxruntime: none".into()],
            service: None,
        };
        results.conclude();
        // The rounds' ratios are 2, 3 and 1.
        assert_eq!(results.rows[0].onnxruntime_ratio_median, Some(2.0));
        assert_eq!(results.rows[3].onnxruntime_ratio_median, None);
        // Batches of 8 take 2 s in the median.
        assert_eq!(results.rows[0].images_per_second, 4.0);
        assert!(results.to_string().contains("Not measured: onnxruntime: none"));
    }
}
