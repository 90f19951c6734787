//! Torrents and their peers.

use std::sync::Arc;

use axum::{Json, extract::State};
use serde::{Deserialize, Serialize};
use swarmkeep::{PageCost, PeerRecord, Role, SwarmStats, SwarmSummary, Timestamp};
use utoipa::{IntoParams, ToSchema};

use super::{
    cursor::{self, Listing},
    query::{self, Query, limit, not_an_info_hash},
};
use crate::{
    access::parse_info_hash,
    admin::{
        problem::{Problem, Problems},
        state::AdminState,
    },
    clock::now,
};

/// One torrent.
#[derive(Serialize, ToSchema)]
pub(super) struct Torrent {
    /// 40 hexadecimal digits.
    #[schema(pattern = "^[0-9a-f]{40}$")]
    info_hash: String,
    /// Peers that have the whole torrent.
    seeders: u32,
    /// Peers that do not.
    leechers: u32,
    /// Finished downloads.
    downloads: u32,
}

impl From<&SwarmSummary> for Torrent {
    fn from(SwarmSummary { info_hash, stats }: &SwarmSummary) -> Self {
        let SwarmStats { complete, incomplete, downloaded } = *stats;
        let info_hash = info_hash.to_string();
        Self { info_hash, seeders: complete, leechers: incomplete, downloads: downloaded }
    }
}

/// The most entries per answer.
const MOST: u32 = 1000;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct ListQuery {
    /// Most entries; 100 unless given.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    /// The `next` of the previous answer. Not with `sort`.
    cursor: Option<String>,
    /// The order; the order of the store unless given.
    #[param(inline)]
    sort: Option<Sort>,
    /// With `sort=info_hash`: only torrents after this one.
    after: Option<String>,
}

/// An order.
#[derive(Deserialize, ToSchema, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "snake_case")]
enum Sort {
    /// By info hash.
    InfoHash,
}

/// Some torrents.
#[derive(Serialize, ToSchema)]
pub(super) struct Torrents {
    torrents: Vec<Torrent>,
    /// The `cursor` or, with `sort`, the `after` of the next request; null at the end.
    next: Option<String>,
    /// With `sort`: the cost of this answer for the store. `ordered` is the time of a search and of the
    /// listed torrents; `whole_store` is a look at every torrent.
    #[schema(value_type = Option<String>)]
    #[serde(skip_serializing_if = "Option::is_none")]
    cost: Option<&'static str>,
}

/// All torrents, some at a time
///
/// Without `sort`, in the order of the store, at a cost that does not depend on the position. A torrent that
/// exists all the time is listed exactly once, any other at most once. An answer may contain fewer than
/// `limit` torrents, or none, and still have a `next`.
///
/// With `sort=info_hash`, in ascending order. `cost` is the cost of that: most stores look at every torrent
/// for each answer, which takes about a second for 10 million torrents.
#[utoipa::path(get, path = "/torrents", tag = "torrents", params(ListQuery), responses(
    (status = 200, description = "Some of them.", body = Torrents),
    Problems,
    (status = 503, description = "The store cannot be reached.", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn list(
    Query(query): Query<ListQuery>,
    State(admin): State<Arc<AdminState>>,
) -> Result<Json<Torrents>, Problem> {
    let limit = limit(query.limit, 100, MOST)?;
    let (swarms, next, cost) = match query {
        ListQuery { sort: Some(_), cursor: Some(_), .. } => {
            return Err(Problem::bad_request("cursor: not with `sort`; give `after` instead"));
        }
        ListQuery { sort: Some(Sort::InfoHash), after, .. } => {
            let after = after.map(|text| parse_info_hash(&text).ok_or_else(|| not_an_info_hash("after")));
            let swarms = admin.store.page(after.transpose()?, limit, Vec::new()).await?;
            let next = swarms.last().filter(|_| swarms.len() == limit).map(|last| last.info_hash.to_string());
            let cost = match admin.store.page_cost() {
                PageCost::Ordered => "ordered",
                _ => "whole_store",
            };
            (swarms, next, Some(cost))
        }
        ListQuery { after: Some(_), .. } => {
            return Err(Problem::bad_request("after: only with `sort=info_hash`; give `cursor` instead"));
        }
        ListQuery { cursor, .. } => {
            let from = cursor::decode(&admin.key, Listing::Torrents, cursor.as_deref())?;
            let (swarms, next) = admin.store.walk(from, limit).await?;
            (swarms, cursor::encode(&admin.key, Listing::Torrents, next), None)
        }
    };
    Ok(Json(Torrents { torrents: swarms.iter().map(Torrent::from).collect(), next, cost }))
}

/// One torrent
#[utoipa::path(get, path = "/torrents/{info_hash}", tag = "torrents",
    params(("info_hash" = String, Path, description = "40 hexadecimal digits, 64 of a v2 torrent, or 32 of base 32.")),
    responses(
        (status = 200, description = "Its counts.", body = Torrent),
        Problems,
        (status = 404, description = "It is not known here.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "The store cannot be reached.", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn show(
    query::TorrentPath(info_hash): query::TorrentPath,
    _: query::NoQuery,
    State(admin): State<Arc<AdminState>>,
) -> Result<Json<Torrent>, Problem> {
    let stats = admin.store.scrape(info_hash).await?;
    if stats == SwarmStats::default() {
        return Err(unknown());
    }
    Ok(Json(Torrent::from(&SwarmSummary { info_hash, stats })))
}

/// Removes a torrent
///
/// The torrent is removed with its peers and its number of downloads. Its peers may announce it again.
#[utoipa::path(delete, path = "/torrents/{info_hash}", tag = "torrents",
    params(("info_hash" = String, Path, description = "40 hexadecimal digits, 64 of a v2 torrent, or 32 of base 32.")),
    responses(
        (status = 200, description = "The removed torrent.", body = Torrent),
        Problems,
        (status = 404, description = "It is not known here.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "The store cannot be reached; whether it was removed is not known.", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn remove(
    query::TorrentPath(info_hash): query::TorrentPath,
    _: query::NoQuery,
    State(admin): State<Arc<AdminState>>,
) -> Result<Json<Torrent>, Problem> {
    let stats = admin.store.remove(info_hash).await?.ok_or_else(unknown)?;
    Ok(Json(Torrent::from(&SwarmSummary { info_hash, stats })))
}

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct PeersQuery {
    /// Most entries; 100 unless given.
    #[param(minimum = 1, maximum = 1000, default = 100)]
    limit: Option<u32>,
    /// The `next` of the previous answer about the same torrent.
    cursor: Option<String>,
}

/// Some peers.
#[derive(Serialize, ToSchema)]
pub(super) struct PeerList {
    peers: Vec<Peer>,
    /// The `cursor` of the next request; null at the end.
    next: Option<String>,
}

/// One peer.
#[derive(Serialize, ToSchema)]
struct Peer {
    /// Address and port, IPv6 in brackets.
    endpoint: String,
    /// `seeder` or `leecher`.
    role: &'static str,
    /// Seconds since its last announce, with the resolution of the store's clock.
    age_seconds: u64,
}

impl Peer {
    fn of(peer: &PeerRecord, now: Timestamp) -> Self {
        let role = match peer.role {
            Role::Seeder => "seeder",
            Role::Leecher => "leecher",
        };
        Self { endpoint: peer.endpoint.to_string(), role, age_seconds: now.secs_since(peer.last_announce) }
    }
}

/// The peers of one torrent, some at a time
///
/// A peer that exists all the time is listed exactly once. An answer may contain fewer than `limit` peers, or
/// none, and still have a `next`. Peer ids are not shown.
#[utoipa::path(get, path = "/torrents/{info_hash}/peers", tag = "torrents",
    params(("info_hash" = String, Path, description = "40 hexadecimal digits, 64 of a v2 torrent, or 32 of base 32."), PeersQuery),
    responses(
        (status = 200, description = "Some of them; none of a torrent that is not known.", body = PeerList),
        Problems,
        (status = 503, description = "The store cannot be reached.", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn peers(
    query::TorrentPath(info_hash): query::TorrentPath,
    Query(query): Query<PeersQuery>,
    State(admin): State<Arc<AdminState>>,
) -> Result<Json<PeerList>, Problem> {
    let limit = limit(query.limit, 100, MOST)?;
    let listing = Listing::Peers(info_hash.as_bytes());
    let from = cursor::decode(&admin.key, listing, query.cursor.as_deref())?;
    let (peers, next) = admin.store.peers(info_hash, from, limit).await?;
    let now = now();
    Ok(Json(PeerList {
        peers: peers.iter().map(|peer| Peer::of(peer, now)).collect(),
        next: cursor::encode(&admin.key, listing, next),
    }))
}

fn unknown() -> Problem {
    Problem::not_found("this torrent is not known here: no peer announces it")
}
