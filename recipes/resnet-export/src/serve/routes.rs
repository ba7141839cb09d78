//! What is at which path.

use std::sync::Arc;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use super::answer::Refusal;
use super::page::Page;
use super::service::{Model, Service, Shared};
use super::{body, health, requests};

/// What all requests have at hand.
#[derive(Clone)]
pub(super) struct App {
    pub(super) shared: Arc<Shared>,
    pub(super) model: Arc<Model>,
    page: Arc<Page>,
}

/// The paths that are counted by name.
const PATHS: [&str; 4] = ["/", "/classify", "/healthz", "/metrics"];

pub(super) fn router(service: &Service) -> Router {
    let app =
        App { shared: Arc::clone(&service.shared), model: Arc::clone(&service.model), page: Arc::default() };
    Router::new()
        .route("/", get(page))
        .route("/classify", post(requests::classify))
        .route("/healthz", get(health::healthz))
        .route("/metrics", get(health::metrics))
        .fallback(unknown)
        .method_not_allowed_fallback(other_method)
        .layer(from_fn_with_state(app.clone(), every))
        .with_state(app)
}

async fn page(State(app): State<App>) -> Response {
    let headers = HeaderMap::from_iter([
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, app.page.policy.clone()),
    ]);
    (headers, Page::HTML).into_response()
}

async fn unknown(State(app): State<App>, request: Request) -> Refusal {
    let error = format!("there is nothing at {:?}", request.uri().path());
    body::drain(&mut request.into_body(), &app.shared.limits).await;
    Refusal::new(StatusCode::NOT_FOUND, error, "POST a picture to /classify, or open / in a browser")
}

async fn other_method(State(app): State<App>, request: Request) -> Refusal {
    let error = format!("{:?} does not know {}", request.uri().path(), request.method());
    body::drain(&mut request.into_body(), &app.shared.limits).await;
    Refusal::new(StatusCode::METHOD_NOT_ALLOWED, error, "POST to /classify; GET /, /healthz and /metrics")
}

/// Counts each answer, and says of it what holds for all.
async fn every(State(app): State<App>, request: Request, next: Next) -> Response {
    let path = PATHS.into_iter().find(|path| *path == request.uri().path()).unwrap_or("other");
    let mut response = next.run(request).await;
    app.shared.metrics.answered(path, response.status().as_u16());
    let headers = response.headers_mut();
    for (name, value) in [
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::CACHE_CONTROL, "no-store"),
        (header::REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    let nothing = HeaderValue::from_static("default-src 'none'; frame-ancestors 'none'");
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(nothing);
    response
}
