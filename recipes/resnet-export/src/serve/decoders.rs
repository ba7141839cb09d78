//! The threads that make the network's input of pictures.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, JoinHandle, available_parallelism};
use std::time::Instant;

use axum::http::StatusCode;

use super::answer::Refusal;
use super::multipart;
use super::requests::Kind;
use super::service::{Picture, Prepared, Shared};
use crate::package::Preprocess;
use crate::picture::Preparation;

/// More would only add to the memory that large pictures take together.
const MAX_THREADS: usize = 4;

/// Starts a thread for each processor.
pub(super) fn start(shared: &Arc<Shared>, preprocess: &Preprocess) -> io::Result<Vec<JoinHandle<()>>> {
    let threads = available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let start = |index| {
        let shared = Arc::clone(shared);
        let preparation = Preparation::new(preprocess.clone(), shared.limits.max_pixels);
        Builder::new().name(format!("decode-{index}")).spawn(move || decode(&shared, preparation))
    };
    let started: io::Result<Vec<_>> = (0..threads).map(start).collect();
    // Those that were started would wait for ever.
    started.inspect_err(|_| shared.pictures.close())
}

fn decode(shared: &Shared, mut preparation: Preparation) {
    while let Some(picture) = shared.pictures.pop() {
        let prepared = prepare(shared, &mut preparation, picture);
        let pushed = prepared.map_or(Ok(()), |prepared| shared.prepared.push(prepared));
        // Only now: a batch that waits for this picture must find it.
        shared.decoding.fetch_sub(1, Ordering::AcqRel);
        shared.prepared.wake();
        if let Err(prepared) = pushed {
            prepared.ticket.answer(Err(Refusal::stopping()));
        }
    }
}

/// Prepares a picture, or answers why it cannot be.
fn prepare(shared: &Shared, preparation: &mut Preparation, picture: Picture) -> Option<Prepared> {
    let Picture { bytes, kind, ticket } = picture;
    if ticket.is_cancelled() {
        return None;
    }
    let found = match &kind {
        Kind::Whole => Some(bytes),
        Kind::Form(boundary) => multipart::file(&bytes, boundary),
    };
    let Some(bytes) = found else {
        let error = "the form has no whole file in it";
        ticket.answer(Err(Refusal::new(StatusCode::BAD_REQUEST, error, "send the picture as the body")));
        return None;
    };
    let began = Instant::now();
    let outcome = preparation.prepare(&bytes);
    shared.metrics.decode.add(began.elapsed().as_secs_f64());
    let refusal = match outcome {
        Ok(values) => return Some(Prepared { values, ticket }),
        Err(error) => Refusal::from(&error),
    };
    ticket.answer(Err(refusal));
    None
}
