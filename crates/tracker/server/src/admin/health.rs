//! Whether the tracker lives (for a service manager that restarts it), and whether it is ready (for a load
//! balancer). Both answers come from the latest sample, and contain nothing private.

use std::{sync::Arc, time::Duration};

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::json;

use super::state::AdminState;

/// Samples are taken once per second, or every other second while the store does not answer.
const OLDEST_SAMPLE: Duration = Duration::from_secs(10);

/// The tracker is not ready after this many failed snapshots in a row: a stop may then lose its state.
const FAILED_IN_A_ROW: u64 = 3;

pub(super) async fn live(State(admin): State<Arc<AdminState>>) -> Response {
    let stuck = admin.control.metrics.threads().stuck;
    if stuck > 0 {
        return unwell("stuck", &format!("threads that did not look at their sockets for 5 s: {stuck}"));
    }
    Json(json!({ "status": "live" })).into_response()
}

pub(super) async fn ready(State(admin): State<Arc<AdminState>>) -> Response {
    match not_ready(&admin).into_iter().flatten().next() {
        Some((status, reason)) => unwell(status, &reason),
        None => Json(json!({ "status": "ready" })).into_response(),
    }
}

/// The reasons why the tracker is not ready, the most urgent first: a word for programs, and text for people.
fn not_ready(admin: &AdminState) -> [Option<(&'static str, String)>; 6] {
    let sample = admin.latest();
    let is_starting = sample.json.is_empty() || admin.control.metrics.threads().starting > 0;
    let shared = admin.control.metrics.shared_store();
    let differs = shared.is_some_and(|store| store.refused.is_some());
    let is_silent = sample.totals.is_none() || sample.taken.elapsed() > OLDEST_SAMPLE;
    let snapshots = sample.stats.snapshots.as_ref();
    let counts = admin.control.metrics.state().and_then(|state| state.counts);
    let unread = counts.filter(|counts| counts.is_unreadable || counts.is_damaged);
    let unkept = snapshots.filter(|snapshots| snapshots.failed_in_a_row >= FAILED_IN_A_ROW);
    [
        admin.is_stopping().then(|| ("stopping", "the tracker has been told to stop".into())),
        is_starting.then(|| ("starting", "not all threads answer yet".into())),
        differs.then(|| ("unavailable", "the store was begun anew with other settings".into())),
        is_silent.then(|| ("unavailable", "the store cannot be reached".into())),
        unread.map(|counts| {
            let why = if counts.is_damaged { "are damaged" } else { "cannot be read" };
            ("unread", format!("the stored download counts {why}"))
        }),
        unkept.map(|snapshots| {
            let (failed, why) = (snapshots.failed_in_a_row, snapshots.failure.as_deref().unwrap_or_default());
            ("unkept", format!("{failed} snapshots in a row have failed: {why}"))
        }),
    ]
}

fn unwell(status: &str, reason: &str) -> Response {
    (StatusCode::SERVICE_UNAVAILABLE, Json(json!({ "status": status, "reason": reason }))).into_response()
}
