//! All torrents in one answer, for other programs: a scrape of everything (BEP 48).

use std::{
    io::{self, Write as _},
    mem,
    sync::Arc,
};

use axum::{
    body::Body,
    extract::State,
    http::{HeaderMap, header},
    response::{IntoResponse, Response},
};
use flate2::{Compression, write::GzEncoder};
use futures_util::stream::try_unfold;
use hyper::body::Bytes;
use swarmkeep::{PageCost, SwarmStats, SwarmSummary, bittorrent::bencode::Writer};
use tokio::{sync::OwnedSemaphorePermit, task::spawn_blocking};

use super::query::NoQuery;
use crate::admin::{
    problem::{Problem, Problems},
    state::AdminState,
};

/// How many torrents are read at once: more if each page costs a look at every torrent. The buffer of
/// a scrape then takes 17 MiB: twice as many, and those of one look.
const fn at_once(cost: PageCost) -> usize {
    match cost {
        PageCost::Ordered => 4096,
        _ => 1 << 18,
    }
}

/// How many are sent at once, of some 70 bytes each.
const PART: usize = 16_384;

/// All torrents in one answer
///
/// A bencoded dictionary as in BEP 48 with ascending keys, compressed with gzip if the client accepts that.
/// It is sent while it is read, in bounded memory. A torrent that comes or goes meanwhile may be missing. If
/// the store keeps no order, each 262,144 torrents cost a look at all torrents. At most two full scrapes run
/// at a time.
#[utoipa::path(get, path = "/scrape", tag = "torrents", responses(
    (status = 200, description = "All of them.", body = Vec<u8>, content_type = "application/octet-stream"),
    Problems,
    (status = 503, description = "The store cannot be reached, or two are under way.", body = Problem, content_type = "application/problem+json"),
))]
pub(super) async fn scrape(
    _: NoQuery,
    State(admin): State<Arc<AdminState>>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let Ok(place) = Arc::clone(&admin.scrapes).try_acquire_owned() else {
        return Err(Problem::busy("two full scrapes are under way; wait until one is through"));
    };
    let gzip = accepts_gzip(&headers);
    let mut output = Output::new(gzip);
    output.write(b"d5:filesd");
    // First, so that the client gets an error, not half an answer, if the store cannot be reached.
    let most = at_once(admin.store.page_cost());
    // One buffer for all pages, with twice the room that they need: glibc maps 32 MiB by themselves, so all
    // of them go back to the system.
    let first = admin.store.page(None, most, Vec::with_capacity(4 * most)).await?;
    let state = Scrape { admin, _place: place, output, read: first, sent: 0 };
    let body = Body::from_stream(try_unfold(Some(state), |state| async {
        let Some(state) = state else { return Ok(None) };
        state.step().await.map(Some)
    }));
    let mut response =
        ([(header::CONTENT_TYPE, "application/octet-stream"), (header::VARY, "accept-encoding")], body)
            .into_response();
    if gzip {
        response.headers_mut().insert(header::CONTENT_ENCODING, header::HeaderValue::from_static("gzip"));
    }
    Ok(response)
}

/// A full scrape that is under way.
struct Scrape {
    admin: Arc<AdminState>,
    _place: OwnedSemaphorePermit,
    output: Output,
    /// The page that was read last, and how many of its torrents are sent.
    read: Vec<SwarmSummary>,
    sent: usize,
}

impl Scrape {
    /// Returns the next part and, unless it is the last, the scrape for the parts after it.
    async fn step(mut self) -> io::Result<(Bytes, Option<Self>)> {
        let most = at_once(self.admin.store.page_cost());
        if self.sent == most {
            let last = self.read[most - 1].info_hash;
            let read = self.admin.store.page(Some(last), most, mem::take(&mut self.read)).await;
            self.read = read.map_err(|_| io::Error::other("the store cannot be reached"))?;
            self.sent = 0;
        }
        let Self { mut output, read, sent, .. } = self;
        let until = read.len().min(sent + PART);
        let is_last = until == read.len() && read.len() < most;
        let written = spawn_blocking(move || {
            let part = output.part(&read[sent..until], is_last);
            (output, read, part)
        });
        let part;
        (self.output, self.read, part) = written.await.map_err(io::Error::other)?;
        self.sent = until;
        Ok((part, (!is_last).then_some(self)))
    }
}

/// Bytes on their way out.
enum Output {
    Plain(Vec<u8>),
    Gzip(GzEncoder<Vec<u8>>),
}

impl Output {
    fn new(gzip: bool) -> Self {
        if gzip {
            Self::Gzip(GzEncoder::new(Vec::new(), Compression::fast()))
        } else {
            Self::Plain(Vec::new())
        }
    }

    fn write(&mut self, bytes: &[u8]) {
        match self {
            Self::Plain(out) => out.extend_from_slice(bytes),
            Self::Gzip(out) => out.write_all(bytes).expect("into memory"),
        }
    }

    /// Adds these torrents, and the end if this is the `last` part, and takes all bytes so far.
    fn part(&mut self, swarms: &[SwarmSummary], last: bool) -> Bytes {
        let mut text = Vec::with_capacity(swarms.len().min(1024) * 96);
        for some in swarms.chunks(1024) {
            text.clear();
            some.iter().for_each(|swarm| entry(&mut Writer::new(&mut text), swarm));
            self.write(&text);
        }
        if last {
            self.write(b"ee");
        }
        match self {
            Self::Plain(out) => mem::take(out),
            Self::Gzip(out) => {
                if last {
                    out.try_finish().expect("into memory");
                } else {
                    out.flush().expect("into memory");
                }
                mem::take(out.get_mut())
            }
        }
        .into()
    }
}

fn entry(out: &mut Writer<'_>, swarm: &SwarmSummary) {
    let SwarmStats { complete, incomplete, downloaded } = swarm.stats;
    out.bytes(swarm.info_hash.as_bytes()).dict();
    for (key, value) in
        [(&b"complete"[..], complete), (b"downloaded", downloaded), (b"incomplete", incomplete)]
    {
        out.bytes(key).integer(value.into());
    }
    out.end();
}

/// Whether `Accept-Encoding` lists gzip with a weight above zero.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(header::ACCEPT_ENCODING).iter().filter_map(|line| line.to_str().ok());
    lines.flat_map(|line| line.split(',')).any(|coding| {
        let mut parts = coding.split(';').map(str::trim);
        let gzip = parts.next().is_some_and(|name| name.eq_ignore_ascii_case("gzip"));
        let weight = parts.find_map(|part| part.strip_prefix("q=")?.parse::<f32>().ok());
        gzip && weight.is_none_or(|weight| weight > 0.0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gzip_is_used_if_accepted() {
        let accepts = |lines: &[&str]| {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(header::ACCEPT_ENCODING, line.parse().expect("a header"));
            }
            accepts_gzip(&headers)
        };
        for yes in [&["gzip"][..], &["br, GZIP;q=0.5"], &["br", "deflate,gzip ; q=1"]] {
            assert!(accepts(yes), "{yes:?}");
        }
        for no in [&[][..], &[""], &["br"], &["gzip;q=0"], &["xgzip"]] {
            assert!(!accepts(no), "{no:?}");
        }
    }
}
