//! Whether the tracker lives, and whether it can serve: for what starts it again, and for what sends clients
//! to it. Both answer from what has been gathered, and tell nothing that is private.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::state::AdminState;

/// Samples are taken once per second, and of a store that does not answer every other.
const OLDEST_SAMPLE: Duration = Duration::from_secs(10);

pub(super) async fn live(State(admin): State<Arc<AdminState>>) -> Response {
    let stuck = admin.control.metrics.threads().stuck;
    if stuck > 0 {
        return unwell("stuck", &format!("{stuck} threads have not looked at their sockets for 5 seconds"));
    }
    Json(json!({ "status": "live" })).into_response()
}

pub(super) async fn ready(State(admin): State<Arc<AdminState>>) -> Response {
    if admin.is_stopping() {
        return unwell("stopping", "the tracker has been told to stop");
    }
    let sample = admin.latest();
    if sample.json.is_empty() || admin.control.metrics.threads().starting > 0 {
        return unwell("starting", "not all threads answer yet");
    }
    if sample.totals.is_none() || sample.taken.elapsed() > OLDEST_SAMPLE {
        return unwell("unavailable", "the store cannot be reached");
    }
    Json(json!({ "status": "ready" })).into_response()
}

fn unwell(status: &str, reason: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": status, "reason": reason }))).into_response()
}
