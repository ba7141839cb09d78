//! What was measured, and what follows from it.

use serde::Serialize;

use crate::engine::{Variant, median};
use crate::model::ring_factor;
use recipe_common::machine::Machine;

/// Below this, caches hold what is reduced, and the memory's bandwidth says nothing.
const LARGE_BYTES: usize = 16_000_000;

/// All numbers of a run.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Results {
    machine: Machine,
    pub(super) ranks: usize,
    rounds: usize,
    /// Bytes a second of all ranks together in the triad of STREAM.
    #[serde(rename = "memory_bytes_per_second")]
    pub(super) memory_bandwidth: Option<f64>,
    pub(super) cells: Vec<Cell>,
}

/// One transport at one size.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Cell {
    pub(super) transport: &'static str,
    pub(super) bytes: usize,
    /// The median of the rounds.
    pub(super) seconds_median: f64,
    /// `2 (n - 1) / n x bytes / seconds`, what a link between two ranks has to carry.
    pub(super) bus_bytes_per_second: f64,
    /// The least bytes that cross the memory bus over the median time, as a part of what the triad moves.
    pub(super) memory_share: Option<f64>,
    /// How many times as long gloo takes: the median of the rounds' ratios.
    pub(super) gloo_ratio_median: Option<f64>,
    /// Processor seconds of one rank, the median of the rounds.
    pub(super) cpu_seconds_median: f64,
    /// Each round's median.
    seconds: Vec<f64>,
    cpu_seconds: Vec<f64>,
}

impl Results {
    pub(super) fn new(machine: Machine, ranks: usize, rounds: usize) -> Self {
        Self { machine, ranks, rounds, memory_bandwidth: None, cells: Vec::new() }
    }

    /// Adds a round of one transport at one size.
    pub(super) fn add(&mut self, transport: &'static str, bytes: usize, seconds: f64, cpu_seconds: f64) {
        let place = self.cells.iter().position(|cell| (cell.transport, cell.bytes) == (transport, bytes));
        let place = place.unwrap_or_else(|| {
            self.cells.push(Cell::empty(transport, bytes));
            self.cells.len() - 1
        });
        self.cells[place].seconds.push(seconds);
        self.cells[place].cpu_seconds.push(cpu_seconds);
        self.conclude(bytes);
    }

    pub(super) fn cell(&self, transport: &str, bytes: usize) -> Option<&Cell> {
        self.cells.iter().find(|cell| cell.transport == transport && cell.bytes == bytes)
    }

    /// What was measured, in the order of the first round, and the sizes likewise.
    pub(super) fn transports(&self) -> Vec<&'static str> {
        distinct(self.cells.iter().map(|cell| cell.transport))
    }

    pub(super) fn sizes(&self) -> Vec<usize> {
        distinct(self.cells.iter().map(|cell| cell.bytes))
    }

    pub(super) fn machine(&self) -> &Machine {
        &self.machine
    }

    pub(super) fn rounds(&self) -> usize {
        self.rounds
    }

    pub(super) fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("names and numbers are JSON") + "\n"
    }

    fn conclude(&mut self, bytes: usize) {
        let gloo = self.cell(Variant::Gloo.name(), bytes).map(|cell| cell.seconds.clone());
        let (ranks, memory) = (self.ranks as f64, self.memory_bandwidth);
        let ring = ring_factor(self.ranks);
        for cell in self.cells.iter_mut().filter(|cell| cell.bytes == bytes) {
            let (bytes, seconds) = (cell.bytes as f64, median(cell.seconds.iter().copied()));
            cell.seconds_median = seconds;
            cell.cpu_seconds_median = median(cell.cpu_seconds.iter().copied());
            cell.bus_bytes_per_second = ring * bytes / seconds;
            // Each of n ranks reads its part of n buffers and writes it to n, so n buffers are read and n written.
            let is_bound = cell.transport == Variant::SharedResident.name() && cell.bytes >= LARGE_BYTES;
            cell.memory_share =
                memory.filter(|_| is_bound).map(|memory| 2.0 * ranks * bytes / seconds / memory);
            cell.gloo_ratio_median = gloo.as_ref().map(|gloo| {
                let pairs = gloo.iter().zip(&cell.seconds);
                median(pairs.map(|(gloo, own)| gloo / own))
            });
        }
    }
}

impl Cell {
    fn empty(transport: &'static str, bytes: usize) -> Self {
        Self {
            transport,
            bytes,
            seconds_median: f64::NAN,
            bus_bytes_per_second: f64::NAN,
            memory_share: None,
            gloo_ratio_median: None,
            cpu_seconds_median: f64::NAN,
            seconds: Vec::new(),
            cpu_seconds: Vec::new(),
        }
    }
}

fn distinct<T: PartialEq>(values: impl Iterator<Item = T>) -> Vec<T> {
    values.fold(Vec::new(), |mut known, value| {
        if !known.contains(&value) {
            known.push(value);
        }
        known
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn results() -> Results {
        let mut results = Results::new(Machine { processor: "x".into(), cores: 2 }, 4, 3);
        results.memory_bandwidth = Some(40e9);
        // The machine is twice as slow in the last round, for both.
        for (own, gloo) in [(0.010, 0.050), (0.010, 0.040), (0.020, 0.090)] {
            results.add("shm-resident", 100_000_000, own, own / 2.0);
            results.add("gloo", 100_000_000, gloo, gloo);
        }
        results
    }

    #[test]
    fn the_ratio_is_the_median_of_the_rounds_ratios_and_not_that_of_the_medians() {
        let results = results();
        let own = results.cell("shm-resident", 100_000_000).unwrap();
        assert_eq!(own.seconds_median, 0.010);
        assert_eq!(own.gloo_ratio_median, Some(4.5));
        assert_eq!(own.cpu_seconds_median, 0.005);
        assert_eq!(results.cell("gloo", 100_000_000).unwrap().gloo_ratio_median, Some(1.0));
    }

    #[test]
    fn bandwidths_are_what_the_bus_and_the_memory_carry() {
        let results = results();
        let own = results.cell("shm-resident", 100_000_000).unwrap();
        // 2 x 3 / 4 x 100 MB in 10 ms; eight buffers of 100 MB in 10 ms are 80 GB/s, twice what the triad moves.
        assert!((own.bus_bytes_per_second / 15e9 - 1.0).abs() < 1e-12);
        assert!((own.memory_share.unwrap() - 2.0).abs() < 1e-12);
        assert_eq!(results.cell("gloo", 100_000_000).unwrap().memory_share, None);
    }

    #[test]
    fn the_json_holds_every_round() {
        let json: serde_json::Value = serde_json::from_str(&results().json()).unwrap();
        assert_eq!(json["cells"][0]["seconds"], serde_json::json!([0.010, 0.010, 0.020]));
        assert_eq!(json["cells"][1]["transport"], "gloo");
        assert_eq!(json["memory_bytes_per_second"], 40e9);
    }
}
