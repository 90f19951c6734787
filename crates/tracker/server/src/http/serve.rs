//! Connections of HTTP/1 around an [`HttpHandler`].

use std::{
    convert::Infallible,
    io::{self, Cursor},
    net::{self, IpAddr, SocketAddr},
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use hyper::{
    Method, Request, Response, StatusCode,
    body::{Body as _, Frame, Incoming, SizeHint},
    header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue},
    server::conn::http1,
    service::{Service, service_fn},
};
use hyper_util::rt::TokioIo;
use rand::Rng;
use socket2::{Domain, SockRef, Socket, Type};
use swarmkeep::{Random, Timestamp, bittorrent::in_words};
use tokio::{
    sync::watch,
    task::JoinSet,
    time::{Instant, MissedTickBehavior, interval, timeout},
};
use tracing::warn;

use super::{
    HttpHandler, HttpRequest,
    accept::{Accepted, ConnectionServer, QUIET, accept},
    client::{client_of, is_proxy},
    connections::{ConnectionPlace, Connections, Yields},
};
use crate::{Config, Reach, Tls, families, seldom::log_stranger, tls::Stream};

/// Answers requests on connections to `listeners`, as configured, until `stopped` changes or its sender is
/// gone. Then it answers the requests that were received before, which takes at most half a second.
pub(crate) async fn serve(
    listeners: Vec<(net::TcpListener, Option<Tls>)>,
    handler: Arc<HttpHandler>,
    config: &Config,
    now: fn() -> Timestamp,
    mut stopped: watch::Receiver<()>,
) {
    let (most, per_address) = (config.http_connections, config.http_connections_per_address);
    let connections = Connections::new(most, per_address, Yields::LongestWaiting);
    let (connections, drain) = (Arc::new(connections), config.http_drain);
    let server = Arc::new(HttpServer { handler, connections, drain, now });
    let accept = |(listener, tls)| accept(Arc::clone(&server), listener, tls, drain, stopped.clone());
    let mut accepting: JoinSet<_> = listeners.into_iter().map(accept).collect();
    let mut looks = interval(look_every(config.http_patience));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ended = loop {
        tokio::select! {
            _ = stopped.changed() => break None,
            _ = looks.tick() => server.connections.close_the_slow(config.http_patience, config.http_proxy_patience),
            Some(ended) = accepting.join_next() => break Some(ended),
        }
    };
    if let Some(Err(error)) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
    server.connections.stop();
    if timeout(drain.saturating_mul(2), accepting.join_all()).await.is_err() {
        warn!("stopped with HTTP connections that had not ended");
    }
}

/// The most connections that wait for `accept`; the system may allow fewer.
const BACKLOG: i32 = 4096;

/// Opens a listener, for both families as [`families::choose`] says.
pub(crate) fn listen(address: SocketAddr, listening: &[SocketAddr]) -> io::Result<net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    families::choose(&socket, address, listening)?;
    // A restarted tracker need not wait for the connections of its predecessor.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Prepares a listener that was opened elsewhere.
pub(crate) fn adopt(listener: net::TcpListener) -> io::Result<net::TcpListener> {
    if !SockRef::from(&listener).is_listener()? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it does not listen"));
    }
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// The longest head of a request: a scrape of the most torrents takes 7,200 bytes, browsers and proxies add
/// one or two thousand.
const LONGEST_HEAD: usize = 16 * 1024;

/// The time between two searches for connections that have waited for too long.
fn look_every(patience: Duration) -> Duration {
    (patience / 10).clamp(Duration::from_millis(10), Duration::from_secs(1))
}

/// The state that the connections of all listeners share.
struct HttpServer {
    handler: Arc<HttpHandler>,
    connections: Arc<Connections>,
    drain: Duration,
    now: fn() -> Timestamp,
}

impl ConnectionServer for HttpServer {
    const NAME: &'static str = "HTTP";

    fn connections(&self) -> &Connections {
        &self.connections
    }

    async fn admit(&self, from: IpAddr, tls: Option<&Tls>) -> Option<ConnectionPlace> {
        let rules = self.handler.rules().now();
        let is_proxy = is_proxy(from, &rules.http_proxies);
        if let Some(tls) = tls
            && !is_proxy
            && !rules.may_shake_hands(from, (self.now)())
        {
            tls.refuse();
            return None;
        }
        drop(rules);
        self.connections.place(from, is_proxy).await
    }

    async fn serve(self: Arc<Self>, Accepted { stream, from, listener, place }: Accepted) {
        let place = Arc::new(place);
        let service = service_fn(|request| {
            place.begin_request();
            let (server, place) = (Arc::clone(&self), Arc::clone(&place));
            async move {
                let response = server.respond(request, from, listener).await;
                place.answered();
                Ok::<_, Infallible>(response)
            }
        });
        // Not `pipeline_flush`: it holds back answers, as many as there may be, while the next request is
        // incomplete. Not `header_read_timeout`: `Connections::close_the_slow` does the same without a timer
        // for each request, and also for clients that do not read their answers.
        let connection = http1::Builder::new()
            .header_read_timeout(None)
            .max_buf_size(LONGEST_HEAD)
            // A client that closes its side after a request still gets the answer.
            .half_close(true)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let ended = tokio::select! {
            biased;
            ended = connection.as_mut() => ended,
            () = place.close_requested() => {
                if place.may_close_at_once() {
                    return;
                }
                answer_the_rest(connection, &place, self.drain).await
            }
        };
        if let Err(error) = ended {
            log_stranger!(%from, error = %in_words(&error), "a connection has ended early");
        }
    }
}

impl HttpServer {
    async fn respond(&self, request: Request<Incoming>, from: IpAddr, listener: Reach) -> Response<Body> {
        let began = Instant::now();
        let close = !request.body().is_end_stream();
        let mut response = if matches!(*request.method(), Method::GET | Method::HEAD) {
            let uri = request.uri();
            let query = uri.query().unwrap_or_default().as_bytes();
            let rules = self.handler.rules().now();
            let client = client_of(from, request.headers(), &rules);
            let asked = HttpRequest { path: uri.path(), query, client, listener };
            let counters = self.handler.counters();
            counters.received((asked.path.len() + query.len()) as u64);
            let mut out = Vec::new();
            match self.handler.answer_by(&rules, asked, (self.now)(), &mut ThreadRandom, &mut out).await {
                Some(start) => {
                    counters.answered(1, (out.len() - start) as u64, began.elapsed());
                    Response::new(Body::new(out, start))
                }
                None => plain(StatusCode::NOT_FOUND, "there is nothing here but /announce and /scrape\n"),
            }
        } else {
            let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, "only GET is understood here\n");
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        };
        response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/plain"));
        if close {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// Answers the received requests of a connection, and closes it.
async fn answer_the_rest<S>(
    mut connection: Pin<&mut http1::Connection<TokioIo<Stream>, S>>,
    place: &ConnectionPlace,
    drain: Duration,
) -> hyper::Result<()>
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>,
{
    let begun = Instant::now();
    let mut latest = None;
    loop {
        let waiting_since = place.waiting_since();
        let quiet = waiting_since.is_some() && waiting_since == latest;
        let longest = if waiting_since.is_some() { drain } else { drain.saturating_mul(2) };
        if quiet || begun.elapsed() >= longest {
            break;
        }
        latest = waiting_since;
        if let Ok(ended) = timeout(QUIET, connection.as_mut()).await {
            return ended;
        }
    }
    // Not earlier, since that would close it with unread requests.
    connection.as_mut().graceful_shutdown();
    timeout(QUIET, connection).await.unwrap_or(Ok(()))
}

fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(Body::new(text.into(), 0));
    *response.status_mut() = status;
    response
}

/// Bytes from some position on, in one frame.
struct Body(Option<Cursor<Vec<u8>>>);

impl Body {
    fn new(bytes: Vec<u8>, start: usize) -> Self {
        let mut bytes = Cursor::new(bytes);
        bytes.set_position(start as u64);
        Self(Some(bytes))
    }
}

impl hyper::body::Body for Body {
    type Data = Cursor<Vec<u8>>;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Infallible>>> {
        Poll::Ready(self.0.take().map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.0.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        let left = self.0.as_ref().map_or(0, |bytes| bytes.get_ref().len() as u64 - bytes.position());
        SizeHint::with_exact(left)
    }
}

/// The cryptographic generator of the current thread.
struct ThreadRandom;

impl Random for ThreadRandom {
    fn next_u64(&mut self) -> u64 {
        rand::rng().next_u64()
    }
}
