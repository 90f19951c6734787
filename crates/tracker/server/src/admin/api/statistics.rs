//! The state of the tracker, now and in the last hours.

use std::sync::Arc;

use axum::{Extension, Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::query::{NoQuery, Query};
use crate::{
    admin::{
        history::{self, Point},
        problem::{Problem, Problems},
        state::AdminState,
        stats::{Stats, Totals},
    },
    store::NoAnswer,
    tokens::Scopes,
};

/// The state of the tracker
///
/// It is gathered once per second, so a request costs the store nothing.
#[utoipa::path(get, path = "/stats", tag = "statistics", responses(
    (status = 200, description = "The latest.", body = Stats),
    Problems,
))]
pub(super) async fn stats(_: NoQuery, State(admin): State<Arc<AdminState>>) -> Json<Stats> {
    Json(admin.latest().stats.clone())
}

/// Counts over all torrents
#[utoipa::path(get, path = "/totals", tag = "statistics", responses(
    (status = 200, description = "The latest.", body = Totals),
    Problems,
    (status = 503, description = "The store cannot be reached.", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn totals(
    _: NoQuery,
    State(admin): State<Arc<AdminState>>,
) -> Result<Json<Totals>, Problem> {
    match admin.latest().totals {
        Some(totals) => Ok(Json(totals.into())),
        None => Err(NoAnswer.into()),
    }
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct HistoryQuery {
    /// How many seconds to go back; 3600 unless given.
    #[param(minimum = 10, maximum = 21600, default = 3600)]
    seconds: Option<u64>,
}

/// The history of the tracker.
#[derive(Serialize, ToSchema)]
pub(super) struct Points {
    /// Seconds between two points.
    step_seconds: u64,
    /// The points, oldest first. They are lost when the tracker stops.
    points: Vec<Point>,
}

/// The history of the tracker
///
/// One point per ten seconds of the last six hours.
#[utoipa::path(get, path = "/history", tag = "statistics", params(HistoryQuery), responses(
    (status = 200, description = "Those points.", body = Points),
    Problems,
))]
pub(super) async fn history(
    Query(query): Query<HistoryQuery>,
    State(admin): State<Arc<AdminState>>,
) -> Result<Json<Points>, Problem> {
    let seconds = query.seconds.unwrap_or(3600);
    if !(history::STEP..=history::LONGEST).contains(&seconds) {
        let longest = history::LONGEST;
        return Err(Problem::bad_request(format!("seconds: {seconds} is not from 10 to {longest}")));
    }
    Ok(Json(Points { step_seconds: history::STEP, points: admin.history.last(seconds) }))
}

/// The scopes of a token.
#[derive(Serialize, ToSchema)]
pub(super) struct About {
    /// Some of `read`, `write`, `peers` and `members`.
    scopes: Vec<&'static str>,
}

/// The scopes of the token of this request
#[utoipa::path(get, path = "/token", tag = "statistics", responses(
    (status = 200, description = "Its scopes.", body = About),
    Problems,
))]
pub(super) async fn token(_: NoQuery, Extension(scopes): Extension<Scopes>) -> Json<About> {
    Json(About { scopes: scopes.names().collect() })
}
