//! The torrents with the most peers.

use std::sync::Arc;

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::{
    query::{Query, limit},
    torrents::Torrent,
};
use crate::admin::{
    census,
    problem::{Problem, Problems},
    state::AdminState,
};

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct BusiestQuery {
    /// Number of torrents; 20 unless given.
    #[param(minimum = 1, maximum = 100, default = 20)]
    limit: Option<u32>,
}

/// The torrents with the most peers, found by a walk through the store.
#[derive(Serialize, ToSchema)]
pub(super) struct Busiest {
    /// The busiest first; empty until the first walk has ended.
    torrents: Vec<Torrent>,
    /// Seconds since the end of the walk; null before the end of the first walk.
    age_seconds: Option<f64>,
    /// Duration of the walk in seconds; null before the end of the first walk.
    took_seconds: Option<f64>,
    /// Number of torrents that the walk has seen; null before the end of the first walk.
    seen: Option<u64>,
    /// Number of torrents that the current walk has seen; null if there is none.
    under_way: Option<u64>,
}

/// The torrents with the most peers
///
/// Found by walks through the store in the background, at 150,000 torrents per second. They begin with the
/// first request, and end a minute after the last request or when no client listens to events.
#[utoipa::path(get, path = "/busiest", tag = "torrents", params(BusiestQuery), responses(
    (status = 200, description = "The result of the latest walk.", body = Busiest),
    Problems,
))]
pub(super) async fn busiest(
    Query(query): Query<BusiestQuery>,
    State(admin): State<Arc<AdminState>>,
) -> Result<Json<Busiest>, Problem> {
    let limit = limit(query.limit, 20, census::MOST as u32)?;
    let found = admin.census.ask().await;
    let found = found.as_deref();
    Ok(Json(Busiest {
        torrents: found.iter().flat_map(|found| &found.busiest).take(limit).map(Torrent::from).collect(),
        age_seconds: found.map(|found| found.finished.elapsed().as_secs_f64()),
        took_seconds: found.map(|found| found.took.as_secs_f64()),
        seen: found.map(|found| found.torrents),
        under_way: admin.census.under_way(),
    }))
}
