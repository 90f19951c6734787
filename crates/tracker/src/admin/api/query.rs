//! What a request says: its query and its path, with every limit.

use axum::{
    extract::{FromRequestParts, Path, RawQuery},
    http::request::Parts,
};
use data_encoding::BASE32_NOPAD;
use serde::de::DeserializeOwned;
use swarmkeep::InfoHash;

use super::Problem;

/// A query without parameters that `T` does not know.
pub(super) struct Query<T>(pub(super) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Problem> {
        match axum::extract::Query::try_from_uri(&parts.uri) {
            Ok(axum::extract::Query(query)) => Ok(Self(query)),
            Err(rejection) => Err(Problem::bad_request(rejection.body_text())),
        }
    }
}

/// For what takes no parameters.
pub(super) struct NoQuery;

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
pub(super) struct Torrent(pub(super) InfoHash);

impl<S: Send + Sync> FromRequestParts<S> for Torrent {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        let text = Path::<String>::from_request_parts(parts, state).await;
        text.ok()
            .and_then(|Path(text)| info_hash(&text))
            .map(Self)
            .ok_or_else(|| not_an_info_hash("the path"))
    }
}

/// What a number is that may be from 1 to `most`.
pub(super) fn limit(given: Option<u32>, without: u32, most: u32) -> Result<usize, Problem> {
    match given.unwrap_or(without) {
        limit if (1..=most).contains(&limit) => Ok(limit as usize),
        limit => Err(Problem::bad_request(format!("limit: {limit} is not from 1 to {most}"))),
    }
}

/// 40 hexadecimal digits, or the 32 of base 32 that older magnet links have.
pub(super) fn info_hash(text: &str) -> Option<InfoHash> {
    let base32 =
        || BASE32_NOPAD.decode(text.to_ascii_uppercase().as_bytes()).ok()?.try_into().ok().map(InfoHash::new);
    text.parse().ok().or_else(base32)
}

pub(super) fn not_an_info_hash(place: &str) -> Problem {
    Problem::bad_request(format!(
        "{place}: an info hash is 40 hexadecimal digits, or 32 of base 32; a v2 torrent's is cut to 20 bytes first"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_hashes_are_hexadecimal_or_base_32() {
        let hash = InfoHash::new(std::array::from_fn(|at| at as u8 * 13));
        let base32 = BASE32_NOPAD.encode(hash.as_bytes());
        for text in [hash.to_string(), hash.to_string().to_uppercase(), base32.to_lowercase(), base32.clone()]
        {
            assert_eq!(info_hash(&text), Some(hash), "{text}");
        }
        for text in
            ["", "x", &base32[1..], &format!("{base32}A"), &"g".repeat(40), &"1".repeat(32), &"é".repeat(16)]
        {
            assert_eq!(info_hash(text), None, "{text}");
        }
    }
}
