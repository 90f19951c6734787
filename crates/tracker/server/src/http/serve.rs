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
use swarmkeep::{Random, Timestamp};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinError, JoinSet},
    time::{Instant, MissedTickBehavior, interval, sleep, timeout},
};
use tracing::{error, warn};

use super::{
    HttpHandler, HttpRequest,
    client::{client_of, is_proxy},
    connections::{Connections, Place},
};
use crate::{
    Config, Reach, Tls,
    seldom::{Seldom, log_stranger},
    tls::Stream,
};

/// Answers requests on the connections that come to `listeners`, as `config` says, until `stopped` changes or
/// its sender is gone. Then answers what has been received by then, and takes half a second at most for it.
pub(crate) async fn serve(
    listeners: Vec<(net::TcpListener, Option<Tls>)>,
    handler: Arc<HttpHandler>,
    config: &Config,
    now: fn() -> Timestamp,
    mut stopped: watch::Receiver<()>,
) {
    let connections = Connections::new(config.http_connections, config.http_connections_per_address);
    let shared = Arc::new(Shared { handler, connections: Arc::new(connections), now });
    let mut accepting: JoinSet<_> = listeners
        .into_iter()
        .map(|(listener, tls)| {
            let listener = TcpListener::from_std(listener).expect("`listen` makes sockets that tokio takes");
            accept(Arc::clone(&shared), listener, tls, stopped.clone())
        })
        .collect();
    let mut looks = interval(look_every(config.http_patience));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let ended = loop {
        tokio::select! {
            _ = stopped.changed() => break None,
            _ = looks.tick() => shared.connections.close_the_slow(config.http_patience),
            Some(ended) = accepting.join_next() => break Some(ended),
        }
    };
    if let Some(Err(error)) = ended
        && let Ok(panic) = error.try_into_panic()
    {
        std::panic::resume_unwind(panic);
    }
    shared.connections.stop();
    if timeout(LONGEST_STOP, accepting.join_all()).await.is_err() {
        warn!("stopped with HTTP connections that had not ended");
    }
}

/// How many connections may wait to be accepted; the system may allow fewer.
const BACKLOG: i32 = 4096;

/// A listener for one family: an IPv6 one leaves IPv4 to its neighbour.
pub(crate) fn listen(address: SocketAddr) -> io::Result<net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, None)?;
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    // So that a tracker that is started again need not wait for the connections of its predecessor.
    socket.set_reuse_address(true)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Makes a listener from one that somebody else has opened.
pub(crate) fn adopt(listener: net::TcpListener) -> io::Result<net::TcpListener> {
    if !SockRef::from(&listener).is_listener()? {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it does not listen"));
    }
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// How long stopping may take: half of it for what is received, half for what an asynchronous store still
/// owes.
const LONGEST_STOP: Duration = Duration::from_millis(500);

/// After how long without a request or a connection nothing more counts as received. The runtime may be late
/// on a busy machine.
const QUIET: Duration = Duration::from_millis(20);

/// Who has waited for a request for longer than this can be closed at once: one that was sent before would
/// have been seen.
const HEARD_OUT: Duration = Duration::from_millis(100);

/// How long to wait after the system has refused a connection, so that a lasting error does not take a core.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(10);

/// The longest head of a request: a scrape of the most torrents takes 7,200 bytes, browsers and proxies add
/// one or two thousand.
const LONGEST_HEAD: usize = 16 * 1024;

/// How often to look for connections that have waited for too long.
fn look_every(patience: Duration) -> Duration {
    (patience / 10).clamp(Duration::from_millis(10), Duration::from_secs(1))
}

/// What all connections have in common.
struct Shared {
    handler: Arc<HttpHandler>,
    connections: Arc<Connections>,
    now: fn() -> Timestamp,
}

/// Takes connections from one listener.
async fn accept(
    shared: Arc<Shared>,
    listener: TcpListener,
    tls: Option<Tls>,
    mut stopped: watch::Receiver<()>,
) {
    let reach = listener.local_addr().map_or(Reach::Public, |address| Reach::of_listener(address.ip()));
    let mut tasks = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => shared.admit(accepted, tls.as_ref(), reach, &mut tasks).await,
            Some(ended) = tasks.join_next() => note_panic(ended),
            _ = stopped.changed() => break,
        }
    }
    // Whoever has connected by now has been received.
    let enough = Instant::now() + LONGEST_STOP / 2;
    while Instant::now() < enough
        && let Ok(accepted) = timeout(QUIET, listener.accept()).await
    {
        shared.admit(accepted, tls.as_ref(), reach, &mut tasks).await;
    }
    drop(listener);
    while let Some(ended) = tasks.join_next().await {
        note_panic(ended);
    }
}

/// A panic ends its connection, and no other: stores remain usable.
fn note_panic(ended: Result<(), JoinError>) {
    if let Err(error) = ended {
        error!(%error, "an HTTP connection has failed");
    }
}

impl Shared {
    async fn admit(
        self: &Arc<Self>,
        accepted: io::Result<(TcpStream, SocketAddr)>,
        tls: Option<&Tls>,
        listener: Reach,
        tasks: &mut JoinSet<()>,
    ) {
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // The one who came is gone already, or there are no more file descriptors or memory.
                if error.kind() != io::ErrorKind::ConnectionAborted {
                    static WARNED: Seldom = Seldom::new(1);
                    if WARNED.is_time((self.now)()) {
                        warn!(%error, "cannot accept");
                    }
                    self.connections.make_room();
                    sleep(PAUSE_AFTER_ERROR).await;
                }
                return;
            }
        };
        let from = from.ip().to_canonical();
        let is_proxy = is_proxy(from, &self.handler.rules().now().http_proxies);
        let Some(place) = self.connections.place(from, is_proxy).await else {
            log_stranger!(%from, "too many connections from there");
            // With a reset, so that the system need not remember the connection either.
            let _ = stream.set_zero_linger();
            return;
        };
        // The answers to several requests must not wait for each other's acknowledgements.
        if let Err(error) = stream.set_nodelay(true) {
            log_stranger!(%from, %error, "a connection that was gone at once");
            return;
        }
        tasks.spawn(Arc::clone(self).connection(Stream::new(stream, tls), from, listener, place));
    }

    async fn connection(self: Arc<Self>, stream: Stream, from: IpAddr, listener: Reach, place: Place) {
        let place = Arc::new(place);
        let service = service_fn(|request| {
            place.asked();
            let (shared, place) = (Arc::clone(&self), Arc::clone(&place));
            async move {
                let response = shared.respond(request, from, listener).await;
                place.answered();
                Ok::<_, Infallible>(response)
            }
        });
        // Not `pipeline_flush`: it holds back answers, as many as there may be, while the next request is
        // incomplete. Not `header_read_timeout`: `Connections::close_the_slow` does the same without a timer
        // for each request, and for those who do not read their answers as well.
        let connection = http1::Builder::new()
            .header_read_timeout(None)
            .max_buf_size(LONGEST_HEAD)
            // Who has asked and closes his side is still to be answered.
            .half_close(true)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = pin!(connection);
        let ended = tokio::select! {
            biased;
            ended = connection.as_mut() => ended,
            () = place.told_to_close() => {
                if !place.is_stopping() && place.waited().is_some_and(|waited| waited >= HEARD_OUT) {
                    return;
                }
                answer_the_rest(connection, &place).await
            }
        };
        if let Err(error) = ended {
            log_stranger!(%from, %error, "a connection has ended early");
        }
    }

    async fn respond(&self, request: Request<Incoming>, from: IpAddr, listener: Reach) -> Response<Body> {
        let began = Instant::now();
        let close = !request.body().is_end_stream();
        let mut response = if matches!(*request.method(), Method::GET | Method::HEAD) {
            let uri = request.uri();
            let query = uri.query().unwrap_or_default().as_bytes();
            let rules = self.handler.rules().now();
            let client = client_of(from, request.headers(), &rules.http_proxies);
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

/// Answers what has been received on a connection, and ends it.
async fn answer_the_rest<S>(
    mut connection: Pin<&mut http1::Connection<TokioIo<Stream>, S>>,
    place: &Place,
) -> hyper::Result<()>
where
    S: Service<Request<Incoming>, Response = Response<Body>, Error = Infallible>,
{
    let longest = Instant::now() + LONGEST_STOP;
    let mut latest = None;
    loop {
        let waiting_since = place.waiting_since();
        let quiet = waiting_since.is_some() && waiting_since == latest;
        let enough = if waiting_since.is_some() { longest - LONGEST_STOP / 2 } else { longest };
        if quiet || Instant::now() >= enough {
            break;
        }
        latest = waiting_since;
        if let Ok(ended) = timeout(QUIET, connection.as_mut()).await {
            return ended;
        }
    }
    // Not at once, since that would end it with requests unread.
    connection.as_mut().graceful_shutdown();
    timeout(QUIET, connection).await.unwrap_or(Ok(()))
}

fn plain(status: StatusCode, text: &str) -> Response<Body> {
    let mut response = Response::new(Body::new(text.into(), 0));
    *response.status_mut() = status;
    response
}

/// Bytes from some position on, in one piece.
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

/// The cryptographic generator of whichever thread a connection is on.
struct ThreadRandom;

impl Random for ThreadRandom {
    fn next_u64(&mut self) -> u64 {
        rand::rng().next_u64()
    }
}
