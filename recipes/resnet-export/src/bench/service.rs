//! The HTTP service under load, beside its engine without it.

use std::fmt;
use std::io::BufReader;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child as Process, Command, Stdio};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use image::codecs::jpeg::JpegEncoder;
use image::{ExtendedColorType, ImageEncoder};
use recipe_common::machine::Machine;
use recipe_common::output::digits;
use recipe_common::{RecipeError, Result};
use serde::Serialize;

use super::Options;
use super::child::Child;
use super::load::{self, LoadReport};
use super::results::quantile;
use super::side::Side;
use super::subject::Subject;
use crate::child_process::next_line;

/// How long the service may take to load its network.
const PATIENCE: Duration = Duration::from_secs(120);
/// What it says when it is ready.
const MAX_LINE_BYTES: u64 = 64 << 10;
/// Twice the requests that the service lets wait.
const TOO_MANY: usize = 64;
const REMEDY: &str = "start recipe-resnet-export serve by hand to see why";

/// The service beside its engine.
#[derive(Debug, Serialize)]
pub(super) struct Service {
    engine: String,
    threads: usize,
    /// Images a second of the engine alone, in whole batches, by round.
    engine_images_per_second: Vec<f64>,
    /// What the clients saw, by round.
    rounds: Vec<LoadReport>,
    /// The median of the rounds' ratios of the service's throughput to the engine's.
    share_median: f64,
    /// With more clients than the service lets in.
    saturated: LoadReport,
}

/// Measures engine and service in turn, and then the service with more clients than it takes.
pub(super) fn measure(subject: &Subject, clients: usize, options: &Options) -> Result<Service> {
    let threads = Machine::this().cores;
    let side = Side::default_engine(threads, options.onnxruntime.as_deref());
    let failed = |reason: String| RecipeError::failure("cannot measure the service", reason, REMEDY);
    let mut engine = Child::start(&side, subject.folder()).map_err(failed)?;
    let server = Server::start(subject.folder(), options.onnxruntime.as_deref()).map_err(failed)?;
    let picture = picture(subject.input()).map_err(failed)?;
    let batch = usize::from(options.batch_size);
    let (mut alone, mut rounds) = (Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        let seconds = engine.run(batch, Duration::from_secs_f64(options.seconds)).map_err(failed)?;
        alone.push(batch as f64 / quantile(&seconds, 0.5));
        rounds.push(load::measure(server.address, clients, options.seconds, &picture));
    }
    let shares: Vec<f64> = rounds.iter().zip(&alone).map(|(round, alone)| round.per_second / alone).collect();
    Ok(Service {
        engine: engine.ready.name.clone(),
        threads,
        share_median: quantile(&shares, 0.5),
        engine_images_per_second: alone,
        rounds,
        saturated: load::measure(server.address, TOO_MANY.max(2 * clients), options.seconds, &picture),
    })
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounds = |value: fn(&LoadReport) -> f64| self.rounds.iter().map(value).collect::<Vec<_>>();
        let failed: usize = self.rounds.iter().map(|round| round.failed).sum();
        writeln!(
            f,
            "serve, {} with {} threads: {} clients get {} images/s, {:.0}% of the engine's {} (median of the rounds' \
             ratios), p50 {:.0} ms, p99 {:.0} ms, {failed} failed.",
            self.engine,
            self.threads,
            self.rounds.first().map_or(0, |round| round.clients),
            digits(quantile(&rounds(|round| round.per_second), 0.5)),
            100.0 * self.share_median,
            digits(quantile(&self.engine_images_per_second, 0.5)),
            quantile(&rounds(|round| round.p50_ms), 0.5),
            quantile(&rounds(|round| round.p99_ms), 1.0),
        )?;
        let LoadReport { clients, answered, refused, failed, per_second, p99_ms, refused_p99_ms, .. } =
            &self.saturated;
        writeln!(
            f,
            "{clients} clients: {answered} answered ({} images/s, p99 {p99_ms:.0} ms), {refused} refused with 429 (p99 \
             {refused_p99_ms:.0} ms), {failed} failed.",
            digits(*per_second)
        )
    }
}

/// The service as its own process. It ends with this value.
struct Server {
    process: Process,
    address: SocketAddr,
}

impl Server {
    fn start(folder: &Path, onnxruntime: Option<&Path>) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut command = Command::new(program);
        command.args(["serve", "--address", "127.0.0.1:0", "--from"]).arg(folder);
        if let Some(library) = onnxruntime {
            command.arg("--onnxruntime").arg(library);
        }
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut process = command.spawn().map_err(|error| error.to_string())?;
        let output = process.stdout.take();
        let mut server = Self { process, address: SocketAddr::from(([127, 0, 0, 1], 0)) };
        let (send, line) = sync_channel(1);
        // Ends with the pipe, which ends with the process.
        std::thread::spawn(move || {
            let first =
                output.and_then(|output| next_line(&mut BufReader::new(output), MAX_LINE_BYTES).ok()?);
            let _ = send.send(first.unwrap_or_default());
        });
        let line =
            line.recv_timeout(PATIENCE).map_err(|_| format!("it was not ready within {PATIENCE:.0?}"))?;
        server.address = address(&line).ok_or_else(|| format!("it said `{line}` instead of its address"))?;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The address in the line that says that the service is ready.
fn address(line: &str) -> Option<SocketAddr> {
    let (_, rest) = line.split_once("http://")?;
    rest.split('/').next()?.parse().ok()
}

/// A JPEG file of the network's own size, so that its engine is measured and not the resizing of photographs.
fn picture([_, height, width]: [usize; 3]) -> Result<Vec<u8>, String> {
    let pixels: Vec<u8> = (0..height * width)
        .flat_map(|place| {
            let (y, x) = (place / width, place % width);
            [(x * 255 / width) as u8, (y * 255 / height) as u8, ((x + y) % 256) as u8]
        })
        .collect();
    let mut file = Vec::new();
    JpegEncoder::new(&mut file)
        .write_image(&pixels, width as u32, height as u32, ExtendedColorType::Rgb8)
        .map_err(|error| error.to_string())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_address_is_read_from_the_line_of_a_service_that_is_ready() {
        let line =
            "serving resnet18 (10 classes) at http://127.0.0.1:4711/ by native 0.1.0: ready after 0.10 s";
        assert_eq!(address(line), Some(SocketAddr::from(([127, 0, 0, 1], 4711))));
        assert_eq!((address(""), address("error: http://x/")), (None, None));
    }
}
