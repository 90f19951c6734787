//! The list of torrents, and edits of its file.

use std::{path::Path, sync::Arc};

use axum::{Json, extract::State};
use serde::Serialize;
use swarmkeep::InfoHash;
use tokio::task::spawn_blocking;
use utoipa::ToSchema;

use super::query::{NoQuery, TorrentPath};
use crate::{
    AccessList, ListFormat as _, ListKind,
    access::{AccessError, add_line, remove_line},
    admin::{
        problem::{Problem, Problems},
        state::AdminState,
    },
};

/// Which torrents are served.
#[derive(Serialize, ToSchema)]
pub(super) struct AccessRule {
    /// `open` without a list: all torrents. With a list, `allow`: only the torrents on it; or `deny`: all
    /// other torrents.
    kind: &'static str,
    /// Number of torrents on the list.
    entries: u64,
}

/// The entry of one torrent.
#[derive(Serialize, ToSchema)]
pub(super) struct AccessEntry {
    /// 40 hexadecimal digits.
    #[schema(pattern = "^[0-9a-f]{40}$")]
    info_hash: String,
    /// Whether it is on the list.
    listed: bool,
    /// Whether it is served.
    admitted: bool,
}

/// Which torrents are served
#[utoipa::path(get, path = "/access", tag = "access", responses(
    (status = 200, description = "The kind of the list, if there is one.", body = AccessRule),
    (status = 400, description = "There are parameters.", body = Problem, content_type = "application/problem+json"),
    Problems,
))]
pub(super) async fn rule(_: NoQuery, State(admin): State<Arc<AdminState>>) -> Json<AccessRule> {
    let rules = admin.control.rules.now();
    let kind = match rules.access.as_ref().map(AccessList::with) {
        None => "open",
        Some(ListKind::Allow) => "allow",
        Some(ListKind::Deny) => "deny",
    };
    Json(AccessRule { kind, entries: rules.access.as_ref().map_or(0, |list| list.list().entries() as u64) })
}

/// Whether a torrent is served
#[utoipa::path(get, path = "/access/{info_hash}", tag = "access",
    params(("info_hash" = String, Path, description = "40 hexadecimal digits, 64 of a v2 torrent, or 32 of base 32.")),
    responses(
        (status = 200, description = "The entry of the torrent.", body = AccessEntry),
        (status = 400, description = "That is no info hash.", body = Problem, content_type = "application/problem+json"),
        Problems,
    ))]
pub(super) async fn entry(
    TorrentPath(info_hash): TorrentPath,
    _: NoQuery,
    State(admin): State<Arc<AdminState>>,
) -> Json<AccessEntry> {
    Json(entry_of(&admin, info_hash))
}

/// Adds a torrent to the list
///
/// The file is edited and read again before the answer, so the next announce follows it. Forbidden torrents
/// are removed within some seconds. A torrent that is already on the list stays there.
#[utoipa::path(put, path = "/access/{info_hash}", tag = "access",
    params(("info_hash" = String, Path, description = "40 hexadecimal digits, 64 of a v2 torrent, or 32 of base 32.")),
    responses(
        (status = 200, description = "It is on the list.", body = AccessEntry),
        (status = 400, description = "That is no info hash.", body = Problem, content_type = "application/problem+json"),
        Problems,
        (status = 409, description = "There is no list.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "The file cannot be edited.", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn add(
    TorrentPath(info_hash): TorrentPath,
    _: NoQuery,
    State(admin): State<Arc<AdminState>>,
) -> Result<Json<AccessEntry>, Problem> {
    edit(&admin, info_hash, |path, info_hash| add_line(path, info_hash)).await
}

/// Removes a torrent from the list
///
/// The file is edited as for an addition. A torrent that is not on the list stays off it.
#[utoipa::path(delete, path = "/access/{info_hash}", tag = "access",
    params(("info_hash" = String, Path, description = "40 hexadecimal digits, 64 of a v2 torrent, or 32 of base 32.")),
    responses(
        (status = 200, description = "It is not on the list.", body = AccessEntry),
        (status = 400, description = "That is no info hash.", body = Problem, content_type = "application/problem+json"),
        Problems,
        (status = 409, description = "There is no list.", body = Problem, content_type = "application/problem+json"),
        (status = 503, description = "The file cannot be edited.", body = Problem, content_type = "application/problem+json"),
    ))]
pub(super) async fn remove(
    TorrentPath(info_hash): TorrentPath,
    _: NoQuery,
    State(admin): State<Arc<AdminState>>,
) -> Result<Json<AccessEntry>, Problem> {
    edit(&admin, info_hash, |path, info_hash| remove_line(path, info_hash)).await
}

async fn edit(
    admin: &Arc<AdminState>,
    info_hash: InfoHash,
    edit: fn(&Path, &InfoHash) -> Result<bool, AccessError>,
) -> Result<Json<AccessEntry>, Problem> {
    // One of two concurrent edits could be lost. An edit that has begun ends even if its client is gone.
    let turn = Arc::clone(&admin.editing).lock_owned().await;
    let path = admin.control.rules.now().access.as_ref().map(|list| list.path().to_owned());
    let Some(path) = path else {
        return Err(Problem::conflict("there is no list of torrents: start the tracker with one"));
    };
    let control = admin.control.clone();
    let edited = tokio::spawn(async move {
        let edited =
            spawn_blocking(move || edit(&path, &info_hash)).await.expect("editing a list does not panic");
        edited?;
        // Even if nothing was edited here, another process may have edited the file.
        control.load_again(|rules| &mut rules.access).await?;
        drop(turn);
        Ok::<_, AccessError>(())
    });
    match edited.await {
        Ok(Ok(())) => Ok(Json(entry_of(admin, info_hash))),
        Ok(Err(error)) => Err(Problem::busy(error.to_string())),
        // The runtime is shutting down.
        Err(_) => Err(Problem::busy("the tracker has been told to stop")),
    }
}

fn entry_of(admin: &AdminState, info_hash: InfoHash) -> AccessEntry {
    let rules = admin.control.rules.now();
    let admitted = rules.access.as_ref().is_none_or(|list| list.list().admits(&info_hash));
    let listed = rules.access.as_ref().is_some_and(|list| (list.with() == ListKind::Allow) == admitted);
    AccessEntry { info_hash: info_hash.to_string(), listed, admitted }
}
