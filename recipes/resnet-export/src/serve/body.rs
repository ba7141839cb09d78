//! Reading a request's body: bounded in bytes, in time, and over all requests together.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::http::StatusCode;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::answer::Refusal;
use super::options::Limits;

/// For a client that is being refused to send the rest: many read the answer only after that.
const DRAIN: Duration = Duration::from_secs(2);

/// What is allocated before anything has come: a length is quickly said.
const FIRST: usize = 64 << 10;

/// A body, and its bytes among those of all.
pub(super) type Held = (Bytes, OwnedSemaphorePermit);

/// Reads a body whole.
///
/// # Errors
/// 413 beyond the limit, 408 where it does not come in time, 400 where it does not end as it should, 503 where the bodies
/// of all requests together are too much.
pub(super) async fn read(body: &mut Body, limits: &Limits, all: &Arc<Semaphore>) -> Result<Held, Refusal> {
    let max = limits.max_body_bytes;
    let declared = body.size_hint().exact();
    if declared.is_some_and(|bytes| bytes > max as u64) {
        return Err(too_large(max));
    }
    match timeout(limits.client, collect(body, max, declared.unwrap_or(0) as usize, all)).await {
        Ok(read) => read,
        Err(_) => {
            let error = format!("the body did not arrive within {} s", limits.client.as_secs());
            Err(Refusal::new(StatusCode::REQUEST_TIMEOUT, error, "send it faster, or a smaller picture"))
        }
    }
}

async fn collect(
    body: &mut Body,
    max: usize,
    declared: usize,
    all: &Arc<Semaphore>,
) -> Result<Held, Refusal> {
    let overloaded = || {
        let error = "too many bodies are being sent at once";
        Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error, "try again soon").retry_after(1)
    };
    // Zero permits, to which those of each part are added as it comes: who sends nothing holds nothing.
    let mut held = Arc::clone(all).try_acquire_many_owned(0).map_err(|_| overloaded())?;
    let mut bytes = Vec::with_capacity(declared.min(FIRST));
    while let Some(part) = next(body).await? {
        if bytes.len() + part.len() > max {
            return Err(too_large(max));
        }
        let permits = u32::try_from(part.len()).map_err(|_| too_large(max))?;
        held.merge(Arc::clone(all).try_acquire_many_owned(permits).map_err(|_| overloaded())?);
        bytes.extend_from_slice(&part);
    }
    Ok((bytes.into(), held))
}

/// The next part; none at the end.
async fn next(body: &mut Body) -> Result<Option<Bytes>, Refusal> {
    loop {
        match poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await {
            None => return Ok(None),
            Some(Err(_)) => {
                let error = "the body ended early or is not encoded as its header says";
                return Err(Refusal::new(StatusCode::BAD_REQUEST, error, "send the whole picture"));
            }
            // Others are trailers.
            Some(Ok(frame)) => match frame.into_data() {
                Ok(part) => return Ok(Some(part)),
                Err(_) => continue,
            },
        }
    }
}

/// Takes what still comes of the body of a refused request and forgets it, up to four times the limit: a connection that
/// is closed while its client sends is reset, and the answer with it.
pub(super) async fn drain(body: &mut Body, limits: &Limits) {
    let max = limits.max_body_bytes.saturating_mul(4);
    let all = async {
        let mut bytes = 0;
        while bytes < max
            && let Ok(Some(part)) = next(body).await
        {
            bytes += part.len();
        }
    };
    // Who is slower than this does not get an answer, but a closed connection.
    let _ = timeout(DRAIN, all).await;
}

fn too_large(max: usize) -> Refusal {
    let error = format!("the body has more than {} MB", max >> 20);
    Refusal::new(StatusCode::PAYLOAD_TOO_LARGE, error, "send a smaller picture")
}
