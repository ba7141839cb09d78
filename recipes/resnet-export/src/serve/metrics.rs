//! What the service has done, for `GET /metrics`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use recipe_common::metrics::Memory;

use super::histogram::Histogram;
use crate::process::open_files;

const SECONDS: &[f64] = &[0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];
const SIZES: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0];

/// Counters and histograms since the start.
pub(super) struct Metrics {
    started: Instant,
    requests: Mutex<BTreeMap<(&'static str, u16), u64>>,
    /// From the header to the answer, of classifications that succeeded.
    pub(super) latency: Histogram,
    pub(super) batch: Histogram,
    /// Decoding and preparing one picture.
    pub(super) decode: Histogram,
    /// Computing one batch.
    pub(super) engine: Histogram,
    /// Requests whose client went away before the answer.
    pub(super) cancelled: AtomicU64,
    pub(super) engine_failures: AtomicU64,
    pub(super) connections: AtomicUsize,
    pub(super) refused_connections: AtomicU64,
}

/// What is so now, which others count.
pub(super) struct Now {
    pub(super) under_way: usize,
    pub(super) queue: usize,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            requests: Mutex::default(),
            latency: Histogram::new(SECONDS),
            batch: Histogram::new(SIZES),
            decode: Histogram::new(SECONDS),
            engine: Histogram::new(SECONDS),
            cancelled: AtomicU64::new(0),
            engine_failures: AtomicU64::new(0),
            connections: AtomicUsize::new(0),
            refused_connections: AtomicU64::new(0),
        }
    }
}

impl Metrics {
    /// Counts an answer.
    pub(super) fn answered(&self, path: &'static str, status: u16) {
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        *requests.entry((path, status)).or_default() += 1;
    }

    pub(super) fn uptime_seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// Seconds that the engine takes for a picture, over all so far.
    pub(super) fn seconds_per_picture(&self) -> f64 {
        let (_, seconds) = self.engine.total();
        let (_, pictures) = self.batch.total();
        if pictures > 0.0 { seconds / pictures } else { 0.0 }
    }

    /// All of it in Prometheus's text format, version 0.0.4.
    pub(super) fn text(&self, now: &Now) -> String {
        let mut out = String::with_capacity(8192);
        let name = "http_requests_total";
        let _ = writeln!(out, "# HELP {name} Answered requests by path and status.\n# TYPE {name} counter");
        for ((path, status), count) in self.requests.lock().unwrap_or_else(PoisonError::into_inner).iter() {
            let _ = writeln!(out, "{name}{{path=\"{path}\",status=\"{status}\"}} {count}");
        }
        self.latency.write("classify_seconds", "From a request's header to its answer of 200.", &mut out);
        self.decode.write("classify_decode_seconds", "Decoding and preparing one picture.", &mut out);
        self.engine.write("classify_engine_seconds", "Computing one batch.", &mut out);
        self.batch.write("classify_batch_size", "Pictures of a batch.", &mut out);
        for (name, help, count) in self.counters() {
            let count = count.load(Ordering::Relaxed);
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {count}");
        }
        for (name, help, value) in self.gauges(now) {
            if let Some(value) = value {
                let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name} {value}");
            }
        }
        out
    }

    /// Name, help and count of what only grows.
    fn counters(&self) -> [(&'static str, &'static str, &AtomicU64); 3] {
        [
            ("classify_cancelled_total", "Requests whose client went away.", &self.cancelled),
            ("classify_engine_failures_total", "Batches that failed.", &self.engine_failures),
            ("http_connections_refused_total", "Connections beyond the limit.", &self.refused_connections),
        ]
    }

    /// Name, help and value of what rises and falls; no value where the system does not tell.
    fn gauges(&self, now: &Now) -> [(&'static str, &'static str, Option<f64>); 7] {
        let memory = Memory::now();
        let float = |bytes: u64| bytes as f64;
        let connections = self.connections.load(Ordering::Relaxed) as f64;
        [
            ("classify_under_way", "Requests accepted and not answered.", Some(now.under_way as f64)),
            ("classify_queue_size", "Requests that may be under way.", Some(now.queue as f64)),
            ("http_connections", "Open connections.", Some(connections)),
            ("process_resident_memory_bytes", "Memory in use.", memory.resident.map(float)),
            ("process_peak_memory_bytes", "The most memory in use so far.", memory.peak.map(float)),
            ("process_open_fds", "Open files and sockets.", open_files().map(|files| files as f64)),
            ("process_uptime_seconds", "Since the service started.", Some(self.uptime_seconds())),
        ]
    }
}
