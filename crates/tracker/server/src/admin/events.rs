//! Statistics as server-sent events.

use std::{convert::Infallible, sync::Arc, time::Duration};

use axum::{
    extract::State,
    response::{IntoResponse, Response, Sse, sse},
};
use futures_util::stream::unfold;

use super::{
    api::NoQuery,
    problem::{Problem, Problems},
    state::AdminState,
    stats::Stats,
};

/// The time without an event after which one is sent, so that each side notices when the other is gone.
const HEARTBEAT: Duration = Duration::from_secs(5);

/// Statistics, once per second
///
/// Server-sent events with the data of `stats`. They end when the tracker stops. At most 16 clients may
/// listen.
#[utoipa::path(get, path = "/events", tag = "statistics", responses(
    (status = 200, description = "One event a second.", body = Stats, content_type = "text/event-stream"),
    Problems,
    (status = 503, description = "There are 16 listeners already.", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn events(_: NoQuery, State(admin): State<Arc<AdminState>>) -> Response {
    let Ok(listener) = Arc::clone(&admin.listeners).try_acquire_owned() else {
        return Problem::busy("there are 16 listeners already; close one").into_response();
    };
    let (mut samples, stopping) = (admin.latest.subscribe(), admin.stopping.subscribe());
    samples.mark_changed();
    let events = unfold((samples, stopping, listener), |(mut samples, mut stopping, listener)| async move {
        let json = loop {
            tokio::select! {
                _ = stopping.wait_for(|&stopping| stopping) => return None,
                changed = samples.changed() => changed.ok()?,
            }
            let json = samples.borrow_and_update().json.clone();
            if !json.is_empty() {
                break json;
            }
        };
        let event = sse::Event::default().data(json);
        Some((Ok::<_, Infallible>(event), (samples, stopping, listener)))
    });
    Sse::new(events).keep_alive(sse::KeepAlive::new().interval(HEARTBEAT)).into_response()
}
