//! The query and the path of a request, with all limits.

use axum::{
    extract::{FromRequestParts, Path, RawQuery},
    http::request::Parts,
};
use serde::de::DeserializeOwned;
use swarmkeep::InfoHash;

use crate::{access::parse_info_hash, admin::problem::Problem};

/// A query without parameters that `T` does not know.
pub(super) struct Query<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match axum::extract::Query::try_from_uri(&parts.uri) {
            Ok(axum::extract::Query(query)) => Ok(Self(query)),
            Err(rejection) => Err(Problem::bad_request(plain(&rejection.body_text()))),
        }
    }
}

/// The error of a query. Serde names an unknown field twice.
fn plain(rejection: &str) -> String {
    let error = rejection.trim_start_matches("Failed to deserialize query string: ");
    match error.split_once(": ") {
        Some((_, twice)) if twice.starts_with("unknown field") => twice.replacen("field", "parameter", 1),
        Some((name, wrong)) if !wrong.starts_with("unknown") => format!("{name}: expected a number in range"),
        _ => error.replace("unknown variant", "unknown value").replace("duplicate field", "given twice:"),
    }
}

/// An empty query.
pub(in crate::admin) struct NoQuery;

impl<S: Send + Sync> FromRequestParts<S> for NoQuery {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match RawQuery::from_request_parts(parts, state).await {
            Ok(RawQuery(Some(query))) if !query.is_empty() => {
                Err(Problem::bad_request("there are no query parameters here; leave them out"))
            }
            _ => Ok(Self),
        }
    }
}

/// The torrent that the path names.
pub(super) struct TorrentPath(pub(super) InfoHash);

impl<S: Send + Sync> FromRequestParts<S> for TorrentPath {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = Path::<String>::from_request_parts(parts, state).await;
        text.ok()
            .and_then(|Path(text)| parse_info_hash(&text))
            .map(Self)
            .ok_or_else(|| not_an_info_hash("the path"))
    }
}

/// The given number, or `without`; an error outside of 1 to `most`.
pub(super) fn limit(given: Option<u32>, without: u32, most: u32) -> Result<usize, Problem> {
    match given.unwrap_or(without) {
        limit if (1..=most).contains(&limit) => Ok(limit as usize),
        limit => Err(Problem::bad_request(format!("limit: {limit} is not from 1 to {most}"))),
    }
}

pub(super) fn not_an_info_hash(place: &str) -> Problem {
    Problem::bad_request(format!(
        "{place}: an info hash is 40 hexadecimal digits, 64 of a v2 torrent, or 32 characters of base 32"
    ))
}
