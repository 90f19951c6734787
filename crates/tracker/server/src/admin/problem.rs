//! The answer to a request that fails: a problem (RFC 9457), and a solution.

use axum::{
    http::{
        HeaderName, HeaderValue, StatusCode,
        header::{CONTENT_TYPE, RETRY_AFTER, WWW_AUTHENTICATE},
    },
    response::{IntoResponse, Response},
};
use serde::Serialize;
use utoipa::{IntoResponses, ToSchema};

use crate::{store::NoAnswer, tokens::Scope};

/// A problem (RFC 9457).
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Problem {
    /// The HTTP status of the answer.
    status: u16,
    /// The kind of the problem.
    title: &'static str,
    /// The problem and the solution.
    detail: String,
    #[serde(skip)]
    header: Option<(HeaderName, &'static str)>,
}

/// Problems that any request can have.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "only for the document")]
pub(super) enum Problems {
    /// The path or a parameter is wrong, or there is no such parameter.
    #[response(status = 400, content_type = "application/problem+json")]
    BadRequest(#[to_schema] Problem),
    /// There is no token, or it is unknown.
    #[response(status = 401, content_type = "application/problem+json")]
    Unauthorized(#[to_schema] Problem),
    /// The token does not have the required scope.
    #[response(status = 403, content_type = "application/problem+json")]
    Forbidden(#[to_schema] Problem),
    /// The token is wrong, and there were too many wrong tokens in the last second.
    #[response(status = 429, content_type = "application/problem+json")]
    TooManyRequests(#[to_schema] Problem),
}

/// Problems with a list and its file.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "only for the document")]
pub(super) enum ListProblems {
    /// There is no list.
    #[response(status = 409, content_type = "application/problem+json")]
    NoList(#[to_schema] Problem),
    /// The file cannot be read or edited.
    #[response(status = 503, content_type = "application/problem+json")]
    NoFile(#[to_schema] Problem),
}

impl Problem {
    fn new(status: StatusCode, detail: impl Into<String>) -> Self {
        let title = status.canonical_reason().unwrap_or_default();
        Self { status: status.as_u16(), title, detail: detail.into(), header: None }
    }

    fn with(mut self, name: HeaderName, value: &'static str) -> Self {
        self.header = Some((name, value));
        self
    }

    pub(super) fn bad_request(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn unauthorized(detail: &str) -> Self {
        Self::new(StatusCode::UNAUTHORIZED, detail).with(WWW_AUTHENTICATE, "Bearer realm=\"swarmkeep\"")
    }

    pub(super) fn forbidden(scope: Scope) -> Self {
        let scope = scope.name();
        Self::new(
            StatusCode::FORBIDDEN,
            format!("this takes a token with the scope `{scope}`; this one has others"),
        )
    }

    pub(super) fn too_many_wrong_tokens() -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "too many wrong tokens; try again in a second")
            .with(RETRY_AFTER, "1")
    }

    pub(super) fn misdirected() -> Self {
        Self::new(
            StatusCode::MISDIRECTED_REQUEST,
            "this tracker does not know that name as its own: ask by IP address, or list the name by --admin-host",
        )
    }

    pub(super) fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, detail)
    }

    pub(super) fn method_not_allowed() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "this path is not for this method; see /api/v1/openapi.json",
        )
    }

    pub(super) fn conflict(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, detail)
    }

    pub(super) fn busy(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, detail).with(RETRY_AFTER, "10")
    }
}

impl From<NoAnswer> for Problem {
    fn from(NoAnswer: NoAnswer) -> Self {
        Self::busy("the store cannot be reached; try again later")
    }
}

impl IntoResponse for Problem {
    fn into_response(mut self) -> Response {
        let header = self.header.take();
        let status = StatusCode::from_u16(self.status).expect("made from one");
        let body = serde_json::to_vec(&self).expect("numbers and names");
        let mut response = (status, body).into_response();
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if let Some((name, value)) = header {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}
