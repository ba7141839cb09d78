//! `serve`: classification over HTTP.
//!
//! ```text
//! sockets (one thread, tokio) -> body -> decoding (a thread a processor) -> engine (one thread, batches) -> answer
//! ```
//!
//! What waits is bounded everywhere: connections, bytes of bodies that are being read, requests that are under way,
//! prepared pictures. Beyond that a request is refused at once (429, 503), so that those which are accepted keep a
//! bounded latency however many come.

mod answer;
mod batches;
mod body;
mod connections;
mod decoders;
mod health;
mod histogram;
mod metrics;
mod multipart;
mod options;
mod page;
mod queue;
mod requests;
mod routes;
mod service;
mod signals;
#[cfg(test)]
mod tests;

use std::io::{self, Write};
use std::net::TcpListener;

use recipe_common::metrics::Memory;
use recipe_common::{RecipeError, Result};

pub(crate) use self::options::Options;
use self::service::{Model, Service};
use crate::bundle::open_package;
use crate::classifier::Classifier;
use crate::engine_options::inference;
use crate::package::Package;
use crate::process::age_seconds;

pub(crate) fn run(options: &Options) -> Result<()> {
    let address = options.address()?;
    // Before the network is loaded: a taken address is told at once.
    let listener = TcpListener::bind(address).map_err(|error| {
        RecipeError::failure(
            format!("cannot listen at {address}"),
            error.to_string(),
            "give another --address, or end the program that has it",
        )
    })?;
    let service = start(options)?;
    serve(listener, &service).map_err(|error| {
        RecipeError::failure(
            "the service cannot go on",
            error.to_string(),
            "see the limits of open files: ulimit -n",
        )
    })?;
    service.stop();
    Ok(())
}

/// Loads the network and starts the threads behind the sockets.
fn start(options: &Options) -> Result<Service> {
    let package = open_package(options.from.as_deref())?;
    let classifier = Classifier::new(&package, options.engine.engine, &options.engine.options())
        .map_err(|error| inference("the network cannot be loaded", &error))?;
    let limits = options.limits().for_batch(package.onnx.signature().batch);
    let Package { onnx, labels, preprocess, info, .. } = package;
    // The engine has its own copy of the weights, and the service runs for long.
    drop(onnx);
    let name = info.architecture.get("depth").and_then(|depth| depth.as_str()).unwrap_or("network");
    let model = Model { name: name.to_owned(), labels, engine: classifier.engine() };
    Service::start(model, preprocess, classifier, limits).map_err(|error| {
        RecipeError::failure(
            "cannot start the threads of the service",
            error.to_string(),
            "raise the limit of processes: ulimit -u",
        )
    })
}

/// Answers requests until a signal.
fn serve(listener: TcpListener, service: &Service) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let signals = signals::Signals::watch()?;
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        announce(service, listener.local_addr()?);
        connections::serve(listener, service, signals.stop()).await
    })
}

/// Says that requests are answered from now on; whoever started this program waits for the line.
fn announce(service: &Service, address: std::net::SocketAddr) {
    let Model { name, labels, engine } = &*service.model;
    let age = age_seconds().map_or_else(|| "an unknown time".into(), |seconds| format!("{seconds:.2} s"));
    let mut out = std::io::stdout().lock();
    // Nobody may be reading.
    let _ = writeln!(
        out,
        "serving {name} ({} classes) at http://{address}/ by {engine}: ready after {age}, {} at most",
        labels.len(),
        Memory::now().peak_text()
    );
    let _ = out.flush();
}
