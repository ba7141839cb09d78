//! Many clients at once against a service.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::client::Client;
use super::results::quantile;

/// For a connection and for an answer.
const TIMEOUT: Duration = Duration::from_secs(60);
/// Before a client that was refused asks again, so that refusals do not use up the processors.
const PAUSE: Duration = Duration::from_millis(100);

/// What clients have seen.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(crate) struct LoadReport {
    pub(crate) clients: usize,
    /// From the first request to the last answer.
    pub(crate) seconds: f64,
    /// Answers of 200.
    pub(crate) answered: usize,
    /// Answers of 429 and 503.
    pub(crate) refused: usize,
    /// Other answers, and connections that were lost.
    pub(crate) failed: usize,
    /// Answers of 200 a second.
    pub(crate) per_second: f64,
    /// Latency that half of the answers of 200 do not exceed.
    pub(crate) p50_ms: f64,
    /// Latency that 99 of 100 answers of 200 do not exceed.
    pub(crate) p99_ms: f64,
    /// The same of the refusals.
    pub(crate) refused_p99_ms: f64,
}

/// Lets `clients` post `body` to `/classify` for so many `seconds`, each on a connection of its own and as fast as it is
/// answered.
pub(crate) fn measure(address: SocketAddr, clients: usize, seconds: f64, body: &[u8]) -> LoadReport {
    let began = Instant::now();
    let until = began + Duration::from_secs_f64(seconds);
    let each: Vec<Seen> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..clients).map(|_| scope.spawn(|| ask(address, until, body))).collect();
        // A client that panicked has seen nothing.
        threads.into_iter().map(|thread| thread.join().unwrap_or_default()).collect()
    });
    let seconds = began.elapsed().as_secs_f64();
    let mut all = Seen::default();
    for seen in each {
        all.answered.extend(seen.answered);
        all.refused.extend(seen.refused);
        all.failed += seen.failed;
    }
    LoadReport {
        clients,
        seconds,
        answered: all.answered.len(),
        refused: all.refused.len(),
        failed: all.failed,
        per_second: all.answered.len() as f64 / seconds,
        p50_ms: quantile(&all.answered, 0.5),
        p99_ms: quantile(&all.answered, 0.99),
        refused_p99_ms: quantile(&all.refused, 0.99),
    }
}

/// Latencies in milliseconds.
#[derive(Default)]
struct Seen {
    answered: Vec<f64>,
    refused: Vec<f64>,
    failed: usize,
}

fn ask(address: SocketAddr, until: Instant, body: &[u8]) -> Seen {
    let mut seen = Seen::default();
    let mut client = None;
    while Instant::now() < until {
        let began = Instant::now();
        let mut open = match client.take().map_or_else(|| Client::open(address, TIMEOUT), Ok) {
            Ok(open) => open,
            Err(_) => {
                seen.failed += 1;
                std::thread::sleep(PAUSE);
                continue;
            }
        };
        let reply = open.send("POST", "/classify", &[("Content-Type", "application/octet-stream")], body);
        let milliseconds = began.elapsed().as_secs_f64() * 1e3;
        match reply {
            Ok(reply) if reply.status == 200 => seen.answered.push(milliseconds),
            Ok(reply) if matches!(reply.status, 429 | 503) => {
                seen.refused.push(milliseconds);
                std::thread::sleep(PAUSE);
            }
            Ok(_) => seen.failed += 1,
            Err(_) => {
                seen.failed += 1;
                continue;
            }
        }
        client = Some(open);
    }
    seen
}
