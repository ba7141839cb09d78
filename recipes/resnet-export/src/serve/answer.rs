//! What a client is told.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::json;

use crate::classifier::Prediction;
use crate::picture::PictureError;
use burn_nccl_datasets::DecodeError;

/// The answer to a picture.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Answer {
    /// The most probable classes, the most probable first.
    pub(super) predictions: Vec<Prediction>,
    /// The engine's name and version.
    pub(super) engine: String,
    /// Pictures that were computed together with this one, itself included.
    pub(super) batch: usize,
    /// From the request's header to the answer.
    pub(super) milliseconds: f64,
}

/// Why there is none: a status, the reason and what to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    pub(super) status: StatusCode,
    pub(super) error: String,
    pub(super) help: String,
    /// Seconds after which it is worth another try.
    pub(super) retry_after: Option<u64>,
}

impl Refusal {
    pub(super) fn new(status: StatusCode, error: impl Into<String>, help: impl Into<String>) -> Self {
        Self { status, error: error.into(), help: help.into(), retry_after: None }
    }

    pub(super) fn retry_after(self, seconds: u64) -> Self {
        Self { retry_after: Some(seconds), ..self }
    }

    /// A failure that the client has no part in.
    pub(super) fn internal(error: impl Into<String>) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            error,
            "try again; if it stays so, see the service's log",
        )
    }

    /// A service that is about to end.
    pub(super) fn stopping() -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "the service is stopping", "try again soon").retry_after(5)
    }
}

impl From<&PictureError> for Refusal {
    fn from(error: &PictureError) -> Self {
        let status = match error {
            PictureError::Decode(DecodeError::Format { .. }) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            PictureError::Decode(DecodeError::TooLarge { .. } | DecodeError::Memory { .. }) => {
                StatusCode::PAYLOAD_TOO_LARGE
            }
            PictureError::Decode(_) | PictureError::Panicked | PictureError::Transform(_) => {
                StatusCode::UNPROCESSABLE_ENTITY
            }
            PictureError::Shape { .. } => StatusCode::INTERNAL_SERVER_ERROR,
        };
        let (cause, remedy) = error.cause_and_remedy();
        Self::new(status, cause, remedy)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let body = Json(json!({ "error": self.error, "help": self.help }));
        let mut response = (self.status, body).into_response();
        if let Some(seconds) = self.retry_after {
            response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}
