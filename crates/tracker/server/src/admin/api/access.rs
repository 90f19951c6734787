//! The list of torrents, and edits of its file.

use std::{path::Path, sync::Arc};

use axum::{Json, extract::State};
use serde::Serialize;
use swarmkeep::InfoHash;
use tokio::task::spawn_blocking;
use utoipa::ToSchema;

use super::query::{NoQuery, TorrentPath};
use crate::{
    AccessList, ListFormat, ListKind, Listed, Rules,
    access::{AccessError, add_line, remove_line},
    admin::{
        problem::{ListProblems, Problem, Problems},
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
        Problems,
        ListProblems,
    ))]
pub(super) async fn add(
    TorrentPath(info_hash): TorrentPath,
    _: NoQuery,
    State(admin): State<Arc<AdminState>>,
) -> Result<Json<AccessEntry>, Problem> {
    edit(&admin, |rules| &mut rules.access, move |path| add_line(path, &info_hash)).await?;
    Ok(Json(entry_of(&admin, info_hash)))
}

/// Removes a torrent from the list
///
/// The file is edited as for an addition. A torrent that is not on the list stays off it.
#[utoipa::path(delete, path = "/access/{info_hash}", tag = "access",
    params(("info_hash" = String, Path, description = "40 hexadecimal digits, 64 of a v2 torrent, or 32 of base 32.")),
    responses(
        (status = 200, description = "It is not on the list.", body = AccessEntry),
        Problems,
        ListProblems,
    ))]
pub(super) async fn remove(
    TorrentPath(info_hash): TorrentPath,
    _: NoQuery,
    State(admin): State<Arc<AdminState>>,
) -> Result<Json<AccessEntry>, Problem> {
    edit(&admin, |rules| &mut rules.access, move |path| remove_line(path, &info_hash)).await?;
    Ok(Json(entry_of(&admin, info_hash)))
}

/// Reads or edits the file of a list, which is then read again if it has changed.
pub(super) async fn edit<L: ListFormat, T: Send + 'static>(
    admin: &AdminState,
    list: fn(&mut Rules) -> &mut Option<Listed<L>>,
    edit: impl FnOnce(&Path) -> Result<T, AccessError> + Send + 'static,
) -> Result<T, Problem> {
    // One of two concurrent edits could be lost. An edit that has begun ends even if its client is gone.
    let turn = Arc::clone(&admin.editing).lock_owned().await;
    let listed = list(&mut Rules::clone(&admin.control.rules.now())).take();
    let Some(path) = listed.map(|list| list.path().to_owned()) else {
        return Err(Problem::conflict(format!("there is no {}: start the tracker with one", L::NAME)));
    };
    let control = admin.control.clone();
    let edited = tokio::spawn(async move {
        let edited = spawn_blocking(move || edit(&path)).await.expect("editing a list does not panic")?;
        // Even if nothing was edited here, another process may have edited the file.
        control.load_again(list).await?;
        drop(turn);
        Ok::<_, AccessError>(edited)
    });
    match edited.await {
        Ok(edited) => edited.map_err(|error| Problem::busy(error.to_string())),
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
