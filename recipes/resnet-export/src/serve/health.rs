//! `GET /healthz` and `GET /metrics`.

use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use recipe_common::metrics::Memory;
use serde_json::json;

use super::routes::App;

/// Whether pictures can be classified now: 200 or 503, and what is served.
pub(super) async fn healthz(State(app): State<App>) -> Response {
    let App { shared, model, .. } = &app;
    let (code, status) = if shared.stopping.load(Ordering::Acquire) {
        (StatusCode::SERVICE_UNAVAILABLE, "stopping")
    } else if shared.engine_failed.load(Ordering::Acquire) {
        (StatusCode::SERVICE_UNAVAILABLE, "the newest batch failed")
    } else {
        (StatusCode::OK, "ok")
    };
    let body = json!({
        "status": status,
        "model": model.name,
        "classes": model.labels.len(),
        "engine": model.engine,
        "under_way": shared.now().under_way,
        "queue": shared.limits.queue,
        "max_batch": shared.limits.max_batch,
        "max_body_bytes": shared.limits.max_body_bytes,
        "max_pixels": shared.limits.max_pixels,
        "peak_memory_bytes": Memory::now().peak,
        "uptime_seconds": shared.metrics.uptime_seconds(),
    });
    (code, Json(body)).into_response()
}

pub(super) async fn metrics(State(app): State<App>) -> Response {
    let text = app.shared.metrics.text(&app.shared.now());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}
