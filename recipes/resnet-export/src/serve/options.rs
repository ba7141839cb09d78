//! The options of `serve`, and what they limit.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use recipe_common::{RecipeError, Result};

use crate::engine_options::EngineArgs;

/// Classify pictures over HTTP.
///
/// POST /classify takes a JPEG or PNG picture as its body (or as a form's file) and answers in JSON; ?top=K asks for K
/// classes. GET / is a page to drop pictures on, GET /healthz tells the state, GET /metrics the figures for Prometheus.
/// SIGTERM and SIGINT stop the service: what is under way is answered; a second signal ends it at once.
#[derive(Args)]
pub(crate) struct Options {
    /// The folder that `export` wrote; a program made by `bundle` has one of its own.
    #[arg(long, value_name = "DIR")]
    pub(super) from: Option<PathBuf>,
    /// Where to listen: 127.0.0.1:8000, localhost:8000; port 0 takes a free one. 0.0.0.0:8000 lets other machines in.
    #[arg(long, default_value = "127.0.0.1:8000", value_name = "ADDRESS:PORT")]
    address: String,
    /// Pictures that the engine computes together where so many wait.
    #[arg(long, default_value_t = 8, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    max_batch: u16,
    /// Wait so long for pictures that are being decoded before a batch starts that is not full.
    #[arg(long, default_value_t = 0, value_name = "MS", value_parser = clap::value_parser!(u16).range(..=1000))]
    max_wait_ms: u16,
    /// Requests that may be under way together; more are refused with 429.
    #[arg(long, default_value_t = 32, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    queue: u16,
    /// Connections that may be open; more are refused with 503.
    #[arg(long, default_value_t = 256, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=16384))]
    connections: u16,
    /// Size of a picture's file.
    #[arg(long, default_value_t = 10, value_name = "MB", value_parser = clap::value_parser!(u16).range(1..=1024))]
    max_body_mb: u16,
    /// Pixels of a picture; decoding takes up to 12 bytes for each.
    #[arg(long, default_value_t = 25, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    max_megapixels: u16,
    /// Seconds in which a client must have sent its request's header, and then its body; an idle connection is closed
    /// after as many.
    #[arg(long, default_value_t = 10, value_name = "S", value_parser = clap::value_parser!(u16).range(1..=3600))]
    client_seconds: u16,
    /// Seconds after which a request is given up.
    #[arg(long, default_value_t = 30, value_name = "S", value_parser = clap::value_parser!(u16).range(1..=3600))]
    timeout_seconds: u16,
    /// Seconds that requests under way have to end when the service is stopped.
    #[arg(long, default_value_t = 10, value_name = "S", value_parser = clap::value_parser!(u16).range(..=3600))]
    grace_seconds: u16,
    #[command(flatten)]
    pub(super) engine: EngineArgs,
}

/// What the service may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Pictures of a batch.
    pub(crate) max_batch: usize,
    /// Wait for pictures that are being decoded.
    pub(crate) max_wait: Duration,
    /// Requests under way.
    pub(crate) queue: usize,
    /// Open connections.
    pub(crate) connections: usize,
    /// Bytes of a body.
    pub(crate) max_body_bytes: usize,
    /// Bytes of all bodies that are being read or wait.
    pub(crate) all_bodies_bytes: usize,
    /// Pixels of a picture.
    pub(crate) max_pixels: u64,
    /// For a client to send a header, and then a body.
    pub(crate) client: Duration,
    /// For an answer.
    pub(crate) answer: Duration,
    /// For what is under way when the service is stopped.
    pub(crate) grace: Duration,
}

impl Options {
    /// Where to listen.
    ///
    /// # Errors
    ///
    /// What is no address with a port, and a name that nobody knows.
    pub(super) fn address(&self) -> Result<SocketAddr> {
        resolve(&self.address).map_err(|error| {
            RecipeError::usage(
                "the options were not understood",
                format!("--address {}: {error}", self.address),
                "write --address ADDRESS:PORT, such as 127.0.0.1:8000, or 0.0.0.0:8000 to let other machines in",
            )
        })
    }

    pub(super) fn limits(&self) -> Limits {
        let max_body_bytes = usize::from(self.max_body_mb) << 20;
        Limits {
            max_batch: self.max_batch.into(),
            max_wait: Duration::from_millis(self.max_wait_ms.into()),
            queue: self.queue.into(),
            connections: self.connections.into(),
            max_body_bytes,
            all_bodies_bytes: (4 * max_body_bytes).max(64 << 20),
            max_pixels: u64::from(self.max_megapixels) * 1_000_000,
            client: Duration::from_secs(self.client_seconds.into()),
            answer: Duration::from_secs(self.timeout_seconds.into()),
            grace: Duration::from_secs(self.grace_seconds.into()),
        }
    }
}

/// An address and port, or those of a name: of version 4 where it has both, as the default is.
fn resolve(text: &str) -> io::Result<SocketAddr> {
    let addresses: Vec<SocketAddr> = text.to_socket_addrs()?.collect();
    let first = addresses.iter().find(|address| address.is_ipv4()).or(addresses.first());
    first.copied().ok_or_else(|| io::Error::other("the name has no address"))
}

impl Limits {
    /// The batch of a network that takes no other one.
    pub(super) fn for_batch(self, fixed: Option<usize>) -> Self {
        // A network of a fixed batch other than 1 refuses single pictures, which the engine will say.
        Self { max_batch: if fixed.is_some() { 1 } else { self.max_batch }, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_be_a_name() {
        assert_eq!(resolve("127.0.0.1:8000").unwrap().to_string(), "127.0.0.1:8000");
        assert_eq!(resolve("[::1]:80").unwrap().to_string(), "[::1]:80");
        let local = resolve("localhost:8000").unwrap();
        assert!(local.ip().is_loopback() && local.port() == 8000, "{local}");
        for bad in ["nowhere", "", "127.0.0.1", "8000", "127.0.0.1:99999"] {
            assert!(resolve(bad).is_err(), "{bad}");
        }
    }
}
