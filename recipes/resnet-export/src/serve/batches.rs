//! The thread that computes: what waits, together.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use super::answer::Refusal;
use super::service::{Classified, Prepared, Shared, Ticket};
use crate::classifier::{Classifier, Prediction};

pub(super) fn start(shared: Arc<Shared>, classifier: Classifier) -> io::Result<JoinHandle<()>> {
    let on_failure = Arc::clone(&shared);
    let started = Builder::new().name("engine".into()).spawn(move || compute(&shared, classifier));
    started.inspect_err(|_| on_failure.pictures.close())
}

fn compute(shared: &Shared, mut classifier: Classifier) {
    let mut images = Vec::new();
    while let Some(batch) = next_batch(shared) {
        images.clear();
        let mut tickets: Vec<Ticket> = Vec::with_capacity(batch.len());
        for Prepared { values, ticket } in batch {
            images.extend_from_slice(&values);
            tickets.push(ticket);
        }
        let top = tickets.iter().map(|ticket| ticket.top).max().unwrap_or(1);
        let began = Instant::now();
        let outcome = classify(&mut classifier, tickets.len(), &images, top);
        shared.metrics.engine.add(began.elapsed().as_secs_f64());
        shared.metrics.batch.add(tickets.len() as f64);
        shared.engine_failed.store(outcome.is_err(), Ordering::Release);
        answer(shared, tickets, outcome);
    }
}

/// Pictures that wait, without those that nobody waits for; none once the service stops.
fn next_batch(shared: &Shared) -> Option<Vec<Prepared>> {
    let limits = &shared.limits;
    let mut batch: Vec<Prepared> = Vec::new();
    let mut deadline = None;
    while batch.len() < limits.max_batch {
        let next = if batch.is_empty() {
            // A stop is the only way to none.
            Some(shared.prepared.pop()?)
        } else {
            // Waiting helps only where a picture is about to come.
            let until = *deadline.get_or_insert_with(|| Instant::now() + limits.max_wait);
            shared.prepared.pop_until(until, || shared.decoding.load(Ordering::Acquire) > 0)
        };
        match next {
            Some(prepared) if prepared.ticket.is_cancelled() => {}
            Some(prepared) => batch.push(prepared),
            None => break,
        }
    }
    Some(batch)
}

/// The classes of each picture, or why there are none.
fn classify(
    classifier: &mut Classifier,
    batch: usize,
    images: &[f32],
    top: usize,
) -> Result<Vec<Vec<Prediction>>, String> {
    match catch_unwind(AssertUnwindSafe(|| classifier.classify(batch, images, top))) {
        Ok(Ok(rows)) if rows.len() == batch => Ok(rows),
        Ok(Ok(rows)) => Err(format!("the engine gave {} results for {batch} pictures", rows.len())),
        Ok(Err(error)) => Err(error.to_string()),
        // The panic hook has logged what it was.
        Err(_) => Err("the engine panicked".into()),
    }
}

fn answer(shared: &Shared, tickets: Vec<Ticket>, outcome: Result<Vec<Vec<Prediction>>, String>) {
    let batch = tickets.len();
    let rows = match outcome {
        Ok(rows) => rows,
        Err(error) => {
            log::error!("a batch of {batch} failed: {error}");
            shared.metrics.engine_failures.fetch_add(1, Ordering::Relaxed);
            return tickets.into_iter().for_each(|ticket| {
                ticket.answer(Err(Refusal::internal(format!("the engine failed: {error}"))));
            });
        }
    };
    for (ticket, mut predictions) in tickets.into_iter().zip(rows) {
        predictions.truncate(ticket.top);
        let finite = predictions.iter().all(|prediction| prediction.probability.is_finite());
        ticket.answer(match finite {
            true => Ok(Classified { predictions, batch }),
            false => Err(Refusal::internal("the network's result is not a number")),
        });
    }
}
