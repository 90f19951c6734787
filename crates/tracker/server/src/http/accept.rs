//! The accept loop of all servers over TCP: a place and a task for each connection.

use std::{io, net, net::IpAddr, net::SocketAddr, sync::Arc, time::Duration};

use swarmkeep::bittorrent::in_words;
use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{JoinError, JoinSet},
    time::{Instant, sleep, timeout},
};
use tracing::{error, warn};

use super::connections::{ConnectionPlace, Connections};
use crate::{
    Reach, Tls,
    clock::now,
    seldom::{LogLimit, log_stranger},
    tls::Stream,
};

/// A server over TCP, which [`accept`] runs.
pub(crate) trait ConnectionServer: Send + Sync + 'static {
    /// The name of its connections in logs.
    const NAME: &'static str;

    /// The open connections.
    fn connections(&self) -> &Connections;

    /// Waits for a place for a connection from this address, over `tls`. `None`: close it.
    fn admit(&self, from: IpAddr, tls: Option<&Tls>) -> impl Future<Output = Option<ConnectionPlace>> + Send;

    /// Answers the requests on a connection.
    fn serve(self: Arc<Self>, accepted: Accepted) -> impl Future<Output = ()> + Send;
}

/// A connection that has a place.
pub(crate) struct Accepted {
    pub(crate) stream: Stream,
    pub(crate) from: IpAddr,
    /// The distance from which the listener is reached.
    pub(crate) listener: Reach,
    pub(crate) place: ConnectionPlace,
}

/// After this time without a request or a connection, all have been received. The runtime may be late on a
/// busy machine.
pub(super) const QUIET: Duration = Duration::from_millis(20);

/// How long to wait after the system has refused a connection, so that a lasting error does not take a core.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(10);

/// Takes connections from a listener until `stopped` changes or its sender is gone, then for `drain` those
/// that wait. Returns when all of them have ended.
pub(crate) async fn accept<S: ConnectionServer>(
    server: Arc<S>,
    listener: net::TcpListener,
    tls: Option<Tls>,
    drain: Duration,
    mut stopped: watch::Receiver<()>,
) {
    let listener = TcpListener::from_std(listener).expect("`listen` makes sockets that tokio takes");
    let reach = listener.local_addr().map_or(Reach::Public, |address| Reach::of_listener(address.ip()));
    let mut accepting = Accepting { server, tls, reach, tasks: JoinSet::new() };
    loop {
        tokio::select! {
            accepted = listener.accept() => accepting.admit(accepted).await,
            Some(ended) = accepting.tasks.join_next() => note_panic::<S>(ended),
            _ = stopped.changed() => break,
        }
    }
    // A client that has connected by now has been received.
    let begun = Instant::now();
    while begun.elapsed() < drain
        && let Ok(accepted) = timeout(QUIET, listener.accept()).await
    {
        accepting.admit(accepted).await;
    }
    drop(listener);
    while let Some(ended) = accepting.tasks.join_next().await {
        note_panic::<S>(ended);
    }
}

/// One listener's server, and the tasks of its connections.
struct Accepting<S> {
    server: Arc<S>,
    tls: Option<Tls>,
    reach: Reach,
    tasks: JoinSet<()>,
}

impl<S: ConnectionServer> Accepting<S> {
    async fn admit(&mut self, accepted: io::Result<(TcpStream, SocketAddr)>) {
        let (stream, from) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                // The client is gone already, or there are no more file descriptors or memory.
                if error.kind() != io::ErrorKind::ConnectionAborted {
                    static WARNED: LogLimit = LogLimit::new(1);
                    if WARNED.is_time(now()) {
                        warn!(error = %in_words(&error), server = S::NAME, "cannot accept");
                    }
                    self.server.connections().make_room();
                    sleep(PAUSE_AFTER_ERROR).await;
                }
                return;
            }
        };
        let from = from.ip().to_canonical();
        let Some(place) = self.server.admit(from, self.tls.as_ref()).await else {
            log_stranger!(%from, "too many connections from there");
            // With a reset, so that the system need not remember the connection either.
            let _ = stream.set_zero_linger();
            return;
        };
        // The answers to several requests must not wait for each other's acknowledgements.
        if let Err(error) = stream.set_nodelay(true) {
            log_stranger!(%from, error = %in_words(&error), "a connection that was gone at once");
            return;
        }
        let stream = Stream::new(stream, self.tls.as_ref());
        let accepted = Accepted { stream, from, listener: self.reach, place };
        self.tasks.spawn(Arc::clone(&self.server).serve(accepted));
    }
}

/// A panic ends its connection, and no other: stores remain usable.
fn note_panic<S: ConnectionServer>(ended: Result<(), JoinError>) {
    if ended.is_err() {
        error!("a fault of this program has ended an {} connection: report it with the panic above", S::NAME);
    }
}
