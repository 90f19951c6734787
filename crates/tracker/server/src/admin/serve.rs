//! Connections to the admin address, and their limits.

use std::{
    convert::Infallible,
    io,
    net::{self, IpAddr},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    Router,
    body::{Body, HttpBody},
};
use hyper::{
    Request, Response,
    body::{Bytes, Frame, Incoming, SizeHint},
    server::conn::http1,
    service::{Service as _, service_fn},
};
use hyper_util::{
    rt::{TokioIo, TokioTimer},
    service::TowerToHyperService,
};
use swarmkeep::bittorrent::in_words;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::watch,
    time::{Sleep, sleep, timeout},
};
use tracing::warn;

use super::pace::Pace;
use crate::{
    Tls,
    http::{
        accept::{Accepted, ConnectionServer, accept},
        connections::{ConnectionPlace, Connections, HEARD_OUT, Yields},
    },
    seldom::log_stranger,
};

/// The most open connections: a few dashboards and scrapers. Each takes up to 100 KiB.
const MOST_CONNECTIONS: usize = 64;

/// The longest time from one answer to the end of the next request. Scrapers ask every 15 seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// The longest time without progress of an answer before its connection is closed.
const LONGEST_STALL: Duration = Duration::from_secs(30);

/// The longest head of a request, and the most bytes of an answer in memory for a client that reads slowly.
const LONGEST_HEAD: usize = 32 * 1024;

/// The longest time that stopping takes.
const LONGEST_STOP: Duration = Duration::from_millis(400);

/// Answers requests that come to `listener` until `stop` is ready, and then finishes the answers.
pub(super) async fn serve(
    listener: net::TcpListener,
    tls: Option<Tls>,
    app: Router,
    stop: impl Future<Output = ()>,
) {
    let connections = Arc::new(Connections::new(MOST_CONNECTIONS, MOST_CONNECTIONS, Yields::LargestCrowd));
    let server = Arc::new(AdminServer { app, connections: Arc::clone(&connections), pace: Pace::new() });
    let (accepting, stopped) = watch::channel(());
    let stopping = async {
        stop.await;
        drop(accepting);
        connections.stop();
        sleep(LONGEST_STOP).await;
    };
    tokio::select! {
        () = accept(server, listener, tls, Duration::ZERO, stopped) => {}
        () = stopping => warn!("stopped with admin connections that had not ended"),
    }
}

/// The state that all connections share.
struct AdminServer {
    app: Router,
    connections: Arc<Connections>,
    /// The rate of handshakes. Requests have another one, so that many requests do not delay new clients.
    pace: Pace,
}

impl ConnectionServer for AdminServer {
    const NAME: &'static str = "admin";

    fn connections(&self) -> &Connections {
        &self.connections
    }

    async fn admit(&self, from: IpAddr, _: Option<&Tls>) -> Option<ConnectionPlace> {
        self.connections.place(from, true).await
    }

    async fn serve(self: Arc<Self>, Accepted { stream, place, .. }: Accepted) {
        if stream.is_tls() {
            tokio::select! {
                () = self.pace.turn() => {}
                () = place.close_requested() => return,
            }
        }
        connection(stream, self.app.clone(), place).await;
    }
}

/// Answers the requests on one connection, with TLS or without.
async fn connection(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    app: Router,
    place: ConnectionPlace,
) {
    let connection = Arc::new(AdminConnection { place, asked: false.into(), stalled: false.into() });
    let place = &connection.place;
    let app = TowerToHyperService::new(app);
    let service = service_fn(|mut request: Request<Incoming>| {
        request.extensions_mut().insert(Arc::clone(&connection));
        connection.place.speaks();
        let answer = app.call(request);
        async {
            let response = answer.await.unwrap_or_else(|never| match never {});
            connection.note(&connection.asked, connection.asked.load(Relaxed));
            Ok::<Response<Body>, Infallible>(response)
        }
    });
    let http = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .max_buf_size(LONGEST_HEAD)
        .serve_connection(
            TokioIo::new(StallTimeout { stream, connection: Arc::clone(&connection), stalled: None }),
            service,
        );
    let mut http = pin!(http);
    let ended = tokio::select! {
        // Received bytes first: they may be a request.
        biased;
        ended = http.as_mut() => ended,
        () = place.close_requested() => {
            if !place.is_stopping() && place.is_silent() || place.may_close_at_once() {
                return;
            }
            http.as_mut().graceful_shutdown();
            let longest = if place.is_stopping() { LONGEST_STOP } else { HEARD_OUT };
            timeout(longest, http).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        log_stranger!(error = %in_words(&error), "an admin connection has ended early");
    }
}

/// The place of a connection, and whether it must make room for others. It need not while a client with a
/// token reads an answer.
pub(super) struct AdminConnection {
    place: ConnectionPlace,
    asked: AtomicBool,
    stalled: AtomicBool,
}

impl AdminConnection {
    fn note(&self, what: &AtomicBool, holds: bool) {
        what.store(holds, Relaxed);
        if self.asked.load(Relaxed) && !self.stalled.load(Relaxed) {
            self.place.begin_request();
        } else {
            self.place.answered();
        }
    }
}

/// A request with a token, until the end of its answer is sent.
pub(super) struct AuthorizedRequest(Arc<AdminConnection>);

impl AuthorizedRequest {
    pub(super) fn new(connection: &Arc<AdminConnection>) -> Self {
        connection.note(&connection.asked, true);
        Self(Arc::clone(connection))
    }

    /// Lasts for as long as the body of this response.
    pub(super) fn until_sent(self, response: Response<Body>) -> Response<Body> {
        response.map(|body| Body::new(AnswerBody { body, _asked: self }))
    }
}

impl Drop for AuthorizedRequest {
    fn drop(&mut self) {
        self.0.note(&self.0.asked, false);
    }
}

/// An answer on its way.
struct AnswerBody {
    body: Body,
    _asked: AuthorizedRequest,
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// A stream that fails to write after [`LONGEST_STALL`] without progress.
struct StallTimeout<S> {
    stream: S,
    connection: Arc<AdminConnection>,
    stalled: Option<Pin<Box<Sleep>>>,
}

impl<S> StallTimeout<S> {
    fn watch<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            if self.stalled.take().is_some() {
                self.connection.note(&self.connection.stalled, false);
            }
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| {
            self.connection.note(&self.connection.stalled, true);
            Box::pin(sleep(LONGEST_STALL))
        });
        ready!(stalled.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for StallTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallTimeout<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.watch(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.watch(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.watch(cx, shut)
    }
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        time::Instant,
    };

    use super::*;

    async fn watched<S>(stream: S) -> StallTimeout<S> {
        let connections = Arc::new(Connections::new(1, 1, Yields::LargestCrowd));
        let place = connections.place([127, 0, 0, 1].into(), true).await.expect("there is room");
        let connection = AdminConnection { place, asked: false.into(), stalled: false.into() };
        StallTimeout { stream, connection: Arc::new(connection), stalled: None }
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_keeps_its_place_while_it_reads_an_answer() {
        let (stream, mut client) = tokio::io::duplex(1000);
        let mut stream = watched(stream).await;
        let connection = Arc::clone(&stream.connection);
        let waits = || connection.place.waiting_since().is_some();
        assert!(waits());
        let asked = AuthorizedRequest::new(&connection);
        assert!(!waits());
        stream.write_all(&[0; 1000]).await.expect("there is room");
        assert!(!waits());
        assert!(timeout(Duration::from_secs(1), stream.write_all(&[0; 500])).await.is_err());
        assert!(waits());
        client.read_exact(&mut [0; 1000]).await.expect("written");
        stream.write_all(&[0; 500]).await.expect("there is room");
        assert!(!waits());
        drop(asked);
        assert!(waits());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_let_go() {
        let (stream, _client) = tokio::io::duplex(1000);
        let mut stream = watched(stream).await;
        stream.write_all(&[0; 1000]).await.expect("there is room");
        let began = Instant::now();
        let error = stream.write_all(&[0]).await.expect_err("the client does not read");
        assert_eq!((error.kind(), began.elapsed()), (io::ErrorKind::TimedOut, LONGEST_STALL));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_is_not() {
        let (stream, mut client) = tokio::io::duplex(1000);
        let mut stream = watched(stream).await;
        let reader = async {
            for _ in 0..100 {
                sleep(LONGEST_STALL - Duration::from_secs(1)).await;
                client.read_exact(&mut [0; 100]).await.expect("written");
            }
        };
        let (written, ()) = tokio::join!(stream.write_all(&[0; 10_000]), reader);
        written.expect("some was read every time");
    }
}
