//! Announces over HTTP and HTTPS (BEP 3, 7, 23, 24, 31): HTTP/1.1, connections kept and shared by all
//! torrents.

use std::{
    collections::HashSet,
    io::{self, Read},
    net::SocketAddr,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use flate2::read::GzDecoder;
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::{
    HeaderMap, Request, StatusCode,
    client::conn::http1::{Builder, SendRequest},
    header::{
        ACCEPT_ENCODING, CONTENT_ENCODING, HOST, HeaderName, HeaderValue, LOCATION, RETRY_AFTER, USER_AGENT,
    },
    http::response::Parts,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use swarmkeep_bittorrent::{Family, in_words};
use swarmkeep_tracker_protocol::http::{AnnounceRequest, AnnounceResponse, Escaped, RetryIn};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    task::AbortHandle,
    time::{Instant, sleep, timeout},
};
use tracing::debug;

use super::{
    announce::{Announce, Answer, LatestAnswer, Retry, TrackerError, readable, useful},
    options::ClientOptions,
    resolve::Resolver,
    tls::Tls,
    turns::{Cache, TurnQueue},
    url::{Scheme, TrackerUrl},
};
use crate::{near::is_near, source::Source};

/// Asks trackers over HTTP.
#[derive(Debug)]
pub(super) struct HttpClient {
    origins: Arc<Cache<Origin, Server>>,
    patience: Duration,
    user_agent: Option<HeaderValue>,
    tls: Tls,
    source: Source,
    trusted: HashSet<TrackerUrl>,
    sweeping: AbortHandle,
}

/// The server of a connection. The name matters to TLS.
type Origin = (Scheme, String, SocketAddr);

#[derive(Debug)]
struct Server {
    queue: TurnQueue,
    idle: Mutex<Vec<IdleConnection>>,
}

#[derive(Debug)]
struct IdleConnection {
    since: Instant,
    sender: Sender,
}

type Sender = SendRequest<Empty<Bytes>>;

/// The most announces to one server at a time, each over a connection of its own: with answers after 50 ms,
/// a thousand torrents take 3 seconds.
const AT_ONCE: usize = 16;

/// For how long connections are kept for the torrents that are announced next. There are no more of them than
/// announces at a time: one is opened only when none is idle.
const LONGEST_IDLE: Duration = Duration::from_secs(30);

/// The longest answer: twice the length of 1,000 peers in the long form, with their ids. libtorrent takes
/// four times as much.
const LONGEST_ANSWER: usize = 256 * 1024;

/// The longest answer after it was unpacked.
const LONGEST_UNPACKED: usize = 1024 * 1024;

/// The longest head of an answer, and the most headers. libtorrent's parser has no limit of their number.
const LONGEST_HEAD: usize = 16 * 1024;
const MOST_HEADERS: usize = 256;

/// The most redirects: from http to https, to another name, and as much again.
const MOST_REDIRECTS: usize = 4;

/// The longest `tracker id` that is remembered.
const LONGEST_ID: usize = 256;

impl HttpClient {
    pub(super) fn new(options: &ClientOptions) -> io::Result<Self> {
        let origins = Arc::new(Cache::<Origin, Server>::default());
        let sweeping = tokio::spawn(close_idle(Arc::clone(&origins))).abort_handle();
        Ok(Self {
            origins,
            // Small enough for a clock to add.
            patience: options.http_patience.min(Duration::from_secs(24 * 60 * 60)),
            user_agent: HeaderValue::from_str(&options.user_agent).ok(),
            tls: Tls::new(options.root_certificates.as_deref())?,
            source: Source::of(options.addresses.iter().copied()),
            trusted: options.trusted.iter().filter_map(|url| TrackerUrl::parse(url).ok()).collect(),
            sweeping,
        })
    }

    /// Announces to the tracker of `url`, which is at `to`; `asked` is the time of the call.
    pub(super) async fn announce(
        &self,
        url: &TrackerUrl,
        to: SocketAddr,
        resolver: &Resolver,
        announce: &Announce<'_>,
        asked: Instant,
    ) -> Result<Answer, TrackerError> {
        let is_allowed = || url.is_an_announce() && url.query().is_none() || self.trusted.contains(url);
        if is_near(to.ip()) && !is_allowed() {
            return Err(TrackerError::NotATracker(to));
        }
        let mut url = with_query(url, announce);
        let (mut at, mut redirects) = (to, 0);
        let ends = Instant::now() + self.patience;
        loop {
            let (head, body) = self.get(&url, at, asked, ends).await?;
            let is_redirect = matches!(head.status.as_u16(), 301 | 302 | 303 | 307 | 308);
            let location = head.headers.get(LOCATION).filter(|_| is_redirect);
            let Some(location) = location else { return answer(head.status, &head.headers, body) };
            redirects += 1;
            if redirects > MOST_REDIRECTS {
                return Err(TrackerError::Redirects(MOST_REDIRECTS));
            }
            let wrong =
                |problem: String| TrackerError::Redirect { to: readable(location.as_bytes()), problem };
            let next = location.to_str().map_err(|error| wrong(error.to_string()))?;
            let next = url.join(next).map_err(|error| wrong(error.to_string()))?;
            match (url.scheme, next.scheme) {
                (_, Scheme::Udp) => return Err(wrong("HTTP does not lead to UDP".into())),
                // The URL identifies the user to the tracker.
                (Scheme::Https, Scheme::Http) => return Err(wrong("https does not lead to http".into())),
                _ => {}
            }
            let family = if at.is_ipv4() { Family::V4 } else { Family::V6 };
            let next_at = resolver.address(&next, family, 0).await?;
            if is_near(next_at.ip()) && !(is_near(at.ip()) && next.is_an_announce()) {
                return Err(wrong(format!("{next_at} is not public")));
            }
            (url, at) = (next, next_at);
        }
    }

    /// One request and its answer, until `ends`. The wait for a turn may take any time, and moves `ends`.
    async fn get(
        &self,
        url: &TrackerUrl,
        at: SocketAddr,
        asked: Instant,
        ends: Instant,
    ) -> Result<(Parts, Bytes), TrackerError> {
        let new = || Server { queue: TurnQueue::new(AT_ONCE), idle: Mutex::default() };
        let server = self.origins.get((url.scheme, url.host.clone(), at), new);
        let waited = Instant::now();
        let _turn = server.queue.turn(asked).await?;
        let ends = ends + waited.elapsed();
        let got =
            timeout(ends.saturating_duration_since(Instant::now()), self.exchange(url, at, &server)).await;
        got.unwrap_or_else(|_| {
            server.queue.is_silent(&TrackerError::Silent);
            Err(TrackerError::Silent)
        })
    }

    async fn exchange(
        &self,
        url: &TrackerUrl,
        at: SocketAddr,
        server: &Server,
    ) -> Result<(Parts, Bytes), TrackerError> {
        let broke = |problem: String| TrackerError::Connection { to: at, problem };
        let (mut sender, response) = loop {
            let kept = server.take();
            let is_kept = kept.is_some();
            let mut sender = match kept {
                Some(sender) => sender,
                None => self.connect(url, at).await.map_err(|error| broke(in_words(&error)))?,
            };
            let request = self.request(url).map_err(|error| broke(error.to_string()))?;
            let response = match sender.ready().await {
                Ok(()) => sender.send_request(request).await,
                Err(error) => Err(error),
            };
            match response {
                Ok(response) => break (sender, response),
                // The server may have closed it while it was idle, or just now.
                Err(error) if is_kept => {
                    debug!(error = %in_words(&error), %at, "a connection that was kept is gone")
                }
                Err(error) => return Err(broke(chain(&error))),
            }
        };
        let (head, body) = response.into_parts();
        let body = Limited::new(body, LONGEST_ANSWER).collect().await.map_err(|error| {
            if error.is::<LengthLimitError>() {
                TrackerError::TooLong(LONGEST_ANSWER)
            } else {
                broke(chain(&*error))
            }
        })?;
        // It is ready as soon as it has seen the end of the answer; one that is closed instead is of no use.
        if sender.ready().await.is_ok() {
            server.keep(sender);
        }
        Ok((head, body.to_bytes()))
    }

    fn request(&self, url: &TrackerUrl) -> Result<Request<Empty<Bytes>>, hyper::http::Error> {
        let target = if url.target.is_empty() { "/" } else { &url.target };
        let mut request = Request::get(target).header(HOST, url.authority());
        // Compact answers are as short as they get.
        request = request.header(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
        if let Some(user_agent) = &self.user_agent {
            request = request.header(USER_AGENT, user_agent);
        }
        request.body(Empty::new())
    }

    async fn connect(&self, url: &TrackerUrl, at: SocketAddr) -> io::Result<Sender> {
        let stream = self.source.connect(at).await?;
        stream.set_nodelay(true)?;
        match url.scheme {
            Scheme::Https => handshake(self.tls.connect(&url.host, stream).await?).await,
            _ => handshake(stream).await,
        }
    }
}

impl Drop for HttpClient {
    fn drop(&mut self) {
        self.sweeping.abort();
    }
}

async fn handshake<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S) -> io::Result<Sender> {
    let mut builder = Builder::new();
    builder.max_headers(MOST_HEADERS).max_buf_size(LONGEST_HEAD);
    let (sender, connection) = builder.handshake(TokioIo::new(stream)).await.map_err(io::Error::other)?;
    // It ends when its sender is gone.
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            debug!(error = %in_words(&error), "a connection to a tracker");
        }
    });
    Ok(sender)
}

/// Closes connections that were not used for a while.
async fn close_idle(origins: Arc<Cache<Origin, Server>>) {
    loop {
        sleep(LONGEST_IDLE / 2).await;
        for server in origins.all() {
            server.idle.lock().retain(|idle| !idle.sender.is_closed() && idle.since.elapsed() < LONGEST_IDLE);
        }
    }
}

impl Server {
    /// A connection that is kept, the latest used first.
    fn take(&self) -> Option<Sender> {
        let mut idle = self.idle.lock();
        std::iter::from_fn(|| idle.pop()).find(|idle| !idle.sender.is_closed()).map(|idle| idle.sender)
    }

    fn keep(&self, sender: Sender) {
        self.idle.lock().push(IdleConnection { since: Instant::now(), sender });
    }
}

/// The body of an answer. gzip was not requested, but some trackers send it. As libtorrent does: a body with
/// one of these headers is unpacked, and any other is taken as it is.
fn unpacked(encoding: Option<&HeaderValue>, body: Bytes) -> Result<Bytes, TrackerError> {
    match encoding.map(HeaderValue::as_bytes) {
        Some(b"gzip" | b"x-gzip") => {
            let mut plain = Vec::new();
            let read = GzDecoder::new(&body[..]).take(LONGEST_UNPACKED as u64 + 1).read_to_end(&mut plain);
            match read.map_err(|error| TrackerError::Encoding(format!("gzip: {}", in_words(&error))))? {
                length if length > LONGEST_UNPACKED => Err(TrackerError::TooLong(LONGEST_UNPACKED)),
                _ => Ok(plain.into()),
            }
        }
        _ => Ok(body),
    }
}

/// An error with its sources, in words: hyper's errors have the details there.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text = format!("{text}: {error}");
        source = error.source();
    }
    in_words(&text)
}

/// The URL with an announce in its query, behind its own query: a passkey, for example.
fn with_query(url: &TrackerUrl, announce: &Announce<'_>) -> TrackerUrl {
    let Announce { identity, port, progress, event, want, tracker_id } = *announce;
    let key = format!("{:08x}", identity.key);
    let (mut key_room, mut id_room) = (Vec::new(), Vec::new());
    let request = AnnounceRequest {
        uploaded: progress.uploaded,
        downloaded: progress.downloaded,
        left: Some(progress.left),
        event,
        want,
        compact: Some(true),
        no_peer_id: true,
        // The other family's address (BEP 7) is not sent: that family announces itself, and is believed.
        key: Some(Escaped::encode(key.as_bytes(), &mut key_room)),
        tracker_id: tracker_id.map(|id| Escaped::encode(id, &mut id_room)),
        ..AnnounceRequest::new(identity.info_hash, identity.peer_id, port)
    };
    let mut query = Vec::new();
    request.write(&mut query);
    let query = String::from_utf8(query).expect("percent-encoded is ASCII");
    url.with_query(&query)
}

/// Reads an answer that is no redirect.
fn answer(status: StatusCode, headers: &HeaderMap, body: Bytes) -> Result<Answer, TrackerError> {
    let body = match unpacked(headers.get(CONTENT_ENCODING), body) {
        Err(_) if !status.is_success() => Bytes::new(),
        unpacked => unpacked?,
    };
    let number = |name: HeaderName| headers.get(name)?.to_str().ok()?.trim().parse::<u64>().ok();
    let retry = number(RETRY_AFTER).map(Duration::from_secs);
    let response = match AnnounceResponse::parse(&body) {
        Ok(Err(failure)) => {
            let told = failure.retry_in.map(|retry_in| match retry_in {
                RetryIn::Minutes(minutes) => Retry::After(Duration::from_secs(60 * u64::from(minutes))),
                RetryIn::Never => Retry::Never,
            });
            let retry = told.or(retry.map(Retry::After));
            return Err(TrackerError::Refused { reason: readable(failure.reason), retry });
        }
        _ if !status.is_success() => return Err(TrackerError::Status { status: status.as_u16(), retry }),
        Ok(Ok(response)) => response,
        Err(error) => return Err(error.into()),
    };
    let head = response.head;
    let seconds = |number: u32| Duration::from_secs(number.into());
    let latest = LatestAnswer {
        interval: seconds(head.interval),
        min_interval: head.min_interval.map(seconds),
        seeders: head.complete,
        leechers: head.incomplete,
        peers: 0,
        external_ip: head.external_ip,
        warning: head.warning.map(|warning| readable(warning.as_bytes())),
    };
    let tracker_id = head.tracker_id.filter(|id| id.len() <= LONGEST_ID).map(<[u8]>::to_vec);
    Ok(Answer { latest, peers: useful(response.endpoints()), tracker_id })
}
