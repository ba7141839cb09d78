//! `POST /classify`: what is asked, and the way of a picture through the service.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use tokio::sync::oneshot;
use tokio::time::timeout;

use super::answer::{Answer, Refusal};
use super::body;
use super::metrics::Metrics;
use super::multipart;
use super::routes::App;
use super::service::{Classified, Picture, Shared, Ticket};

/// Classes that are told where the request does not say how many.
const DEFAULT_TOP: usize = 5;

pub(super) async fn classify(State(app): State<App>, request: Request) -> Result<Json<Answer>, Refusal> {
    let began = Instant::now();
    let shared = &app.shared;
    let mut watch = Watch { metrics: &shared.metrics, answered: false };
    let result = answer(&app, request, began).await;
    watch.answered = true;
    result.map(Json)
}

/// Counts a request that is dropped because its client went away.
struct Watch<'a> {
    metrics: &'a Metrics,
    answered: bool,
}

impl Drop for Watch<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.metrics.cancelled.fetch_add(1, Ordering::Relaxed);
        }
    }
}

async fn answer(app: &App, request: Request, began: Instant) -> Result<Answer, Refusal> {
    let shared = &app.shared;
    let (head, mut body) = request.into_parts();
    let (picture, classified) = match accept(app, &head, &mut body).await {
        Ok(accepted) => accepted,
        Err(refusal) => {
            // Who was too slow is not waited for once more.
            if refusal.status != StatusCode::REQUEST_TIMEOUT {
                body::drain(&mut body, &shared.limits).await;
            }
            return Err(refusal);
        }
    };
    submit(shared, picture)?;
    let classified = match timeout(shared.limits.answer, classified).await {
        Ok(Ok(classified)) => classified?,
        Ok(Err(_)) if shared.stopping.load(Ordering::Acquire) => return Err(Refusal::stopping()),
        Ok(Err(_)) => return Err(Refusal::internal("the request was lost")),
        Err(_) => {
            let error = format!("there was no result within {} s", shared.limits.answer.as_secs());
            return Err(
                Refusal::new(StatusCode::SERVICE_UNAVAILABLE, error, "try again later").retry_after(5)
            );
        }
    };
    let seconds = began.elapsed().as_secs_f64();
    shared.metrics.latency.add(seconds);
    Ok(Answer {
        predictions: classified.predictions,
        engine: app.model.engine.clone(),
        batch: classified.batch,
        milliseconds: (seconds * 1e6).round() / 1e3,
    })
}

/// Where the answer to a picture will come.
type Reply = oneshot::Receiver<Result<Classified, Refusal>>;

/// Reads the picture, if it can be taken.
async fn accept(app: &App, head: &Parts, body: &mut Body) -> Result<(Picture, Reply), Refusal> {
    let shared = &app.shared;
    if shared.stopping.load(Ordering::Acquire) {
        return Err(Refusal::stopping());
    }
    let top = top(head.uri.query(), app.model.labels.len())?;
    let kind = kind(&head.headers)?;
    let (bytes, held) = body::read(body, &shared.limits, &shared.body_bytes).await?;
    let place = Arc::clone(&shared.places).try_acquire_owned().map_err(|_| full(shared))?;
    let (reply, classified) = oneshot::channel();
    Ok((Picture { bytes, kind, ticket: Ticket { top, reply, _place: [place, held] } }, classified))
}

/// Hands a picture to the threads that decode.
fn submit(shared: &Shared, picture: Picture) -> Result<(), Refusal> {
    shared.decoding.fetch_add(1, Ordering::AcqRel);
    shared.pictures.try_push(picture).map_err(|_| {
        shared.decoding.fetch_sub(1, Ordering::AcqRel);
        // There is room for all that are accepted, so that it is closed.
        Refusal::stopping()
    })
}

fn full(shared: &Shared) -> Refusal {
    let error = format!("{} requests are under way, which is all that may be", shared.limits.queue);
    Refusal::new(StatusCode::TOO_MANY_REQUESTS, error, "try again after the seconds in Retry-After")
        .retry_after(shared.retry_after())
}

/// How the picture lies in the body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It is all of it.
    Whole,
    /// It is a file of a form with this boundary.
    Form(String),
}

fn kind(headers: &HeaderMap) -> Result<Kind, Refusal> {
    if let Some(encoding) = headers.get(header::CONTENT_ENCODING).filter(|encoding| *encoding != "identity") {
        let error = format!("the content encoding {encoding:?} is not known");
        return Err(Refusal::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, error, "send the picture as it is"));
    }
    let Some(given) = headers.get(header::CONTENT_TYPE) else { return Ok(Kind::Whole) };
    let given = String::from_utf8_lossy(given.as_bytes());
    let media = given.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    if media != "multipart/form-data" {
        // The content tells what it is: curl says of every --data-binary that it is a form's fields.
        return Ok(Kind::Whole);
    }
    multipart::boundary(&given).map(Kind::Form).ok_or_else(|| {
        let error = "the form's boundary is missing";
        Refusal::new(StatusCode::BAD_REQUEST, error, "send the picture as the body")
    })
}

/// The classes that `?top=K` asks for, at most all.
fn top(query: Option<&str>, classes: usize) -> Result<usize, Refusal> {
    let mut top = DEFAULT_TOP;
    for pair in query.unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
        let refused =
            |error: String| Err(Refusal::new(StatusCode::BAD_REQUEST, error, "use ?top=K with K from 1"));
        top = match pair.split_once('=') {
            Some(("top", text)) => match text.parse() {
                Ok(top) if top > 0 => top,
                _ => return refused(format!("top is {text:?}")),
            },
            _ => return refused(format!("{pair:?} is not known")),
        };
    }
    Ok(top.min(classes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_classes_is_read_from_the_query() {
        let of = |query| top(query, 10).map_err(|refusal| refusal.status.as_u16());
        assert_eq!(
            (of(None), of(Some("top=3")), of(Some("top=99")), of(Some(""))),
            (Ok(5), Ok(3), Ok(10), Ok(5))
        );
        for bad in ["top=0", "top=-1", "top=", "top", "k=1", "top=1&x"] {
            assert_eq!(of(Some(bad)), Err(400), "{bad}");
        }
    }

    #[test]
    fn the_content_type_says_whether_the_body_is_a_picture_or_a_form() {
        let of = |text: &str| {
            let headers = HeaderMap::from_iter([(header::CONTENT_TYPE, text.parse().unwrap())]);
            kind(&headers).map_err(|refusal| refusal.status.as_u16())
        };
        assert_eq!(of("Image/PNG; x=y"), Ok(Kind::Whole));
        assert_eq!(of("multipart/form-data; boundary=b"), Ok(Kind::Form("b".into())));
        assert_eq!(of("multipart/form-data"), Err(400));
        assert_eq!(of("application/x-www-form-urlencoded"), Ok(Kind::Whole));
        assert_eq!((of(""), kind(&HeaderMap::new())), (Ok(Kind::Whole), Ok(Kind::Whole)));
    }
}
