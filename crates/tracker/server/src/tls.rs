//! TLS: the certificate, and the streams of connections with it or without.

use std::{
    fmt,
    future::poll_fn,
    io,
    net::Ipv4Addr,
    num::NonZero,
    path::Path,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, ready},
    thread,
    time::Duration,
};

use arc_swap::ArcSwap;
use swarmkeep::Timestamp;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
    sync::Semaphore,
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, CertificateError, RootCertStore, ServerConfig,
        client::{verify_server_cert_signed_by_trust_anchor, verify_server_name},
        crypto::ring,
        pki_types::{
            CertificateDer, PrivateKeyDer, UnixTime,
            pem::{self, PemObject},
        },
        server::{NoServerSessionStorage, ParsedCertificate},
    },
    server::TlsStream,
};

use crate::Error;

/// The tracker's certificate and key, for TLS 1.2 and 1.3, and its handshakes. Clones share them.
#[derive(Clone)]
pub struct Tls {
    loaded: Arc<ArcSwap<Loaded>>,
    handshakes: Arc<Handshakes>,
}

struct Loaded {
    config: Arc<ServerConfig>,
    certificate: Certificate,
}

/// A certificate, for the log and for monitoring.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Certificate {
    /// Its DNS names and addresses, separated by commas.
    pub names: String,
    /// When it ends, or the first of its issuers in the file.
    pub expires: Option<Timestamp>,
}

impl Certificate {
    /// The verifier of rustls names dates and names in its errors: for each, it is asked the impossible.
    fn of(chain: &[CertificateDer<'_>]) -> Self {
        use CertificateError::{ExpiredContext, NotValidForNameContext};
        use rustls::Error::InvalidCertificate;

        let (roots, at) = (RootCertStore::empty(), UnixTime::since_unix_epoch(Duration::MAX));
        let parsed = || chain.iter().filter_map(|der| ParsedCertificate::try_from(der).ok());
        let expires = parsed().filter_map(|of| {
            match verify_server_cert_signed_by_trust_anchor(&of, &roots, &[], at, &[]) {
                Err(InvalidCertificate(ExpiredContext { not_after, .. })) => Some(not_after.as_secs()),
                _ => None,
            }
        });
        let nowhere = Ipv4Addr::UNSPECIFIED.into();
        let names = match parsed().next().map(|own| verify_server_name(&own, &nowhere)) {
            Some(Err(InvalidCertificate(NotValidForNameContext { presented, .. }))) => presented,
            _ => Vec::new(),
        };
        // `DnsName("tracker.example")` and `IpAddress(192.0.2.1)`.
        let bare = |name: &String| name.split(['(', ')']).nth(1).unwrap_or(name).trim_matches('"').to_owned();
        let names = names.iter().map(bare).collect::<Vec<_>>().join(", ");
        Self { names, expires: expires.min().map(Timestamp::from_secs) }
    }
}

/// The handshakes of all connections.
struct Handshakes {
    /// A permit for each handshake that is being computed: one core is left for other work.
    computing: Semaphore,
    completed: AtomicU64,
    failed: AtomicU64,
    refused: AtomicU64,
}

/// How many handshakes of TLS there were.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HandshakeCounts {
    /// Completed handshakes.
    pub completed: u64,
    /// Handshakes that failed or were given up.
    pub failed: u64,
    /// Connections that were closed before a handshake began, since their addresses made too many.
    pub refused: u64,
}

impl Tls {
    /// Reads PEM files: a chain of certificates that begins with the tracker's own, and its key without a
    /// passphrase.
    ///
    /// # Errors
    /// [`Error::Pem`] if a file does not contain it. [`Error::Certificate`] if they cannot be used, or do not
    /// match.
    pub fn load(certificate: &Path, key: &Path) -> Result<Self, Error> {
        let loaded = Arc::new(ArcSwap::new(read(certificate, key)?));
        let cores = thread::available_parallelism().map_or(1, NonZero::get);
        Ok(Self { loaded, handshakes: Arc::new(Handshakes::new((cores - 1).max(1))) })
    }

    /// Reads these files instead. New connections use the new certificate; open connections keep the old one.
    ///
    /// # Errors
    /// As [`load`](Self::load). The certificate then stays as it was.
    pub fn reload(&self, certificate: &Path, key: &Path) -> Result<(), Error> {
        self.loaded.store(read(certificate, key)?);
        Ok(())
    }

    /// The certificate for new connections.
    pub fn certificate(&self) -> Certificate {
        self.loaded.load().certificate.clone()
    }

    /// The same certificate and key, with handshakes that wait for none of these.
    pub(crate) fn apart(&self) -> Self {
        Self { loaded: Arc::clone(&self.loaded), handshakes: Arc::new(Handshakes::new(1)) }
    }

    /// Counts a connection that is closed before its handshake.
    pub(crate) fn refuse(&self) {
        self.handshakes.refused.fetch_add(1, Relaxed);
    }

    /// The number of handshakes so far.
    pub fn handshakes(&self) -> HandshakeCounts {
        let Handshakes { completed, failed, refused, .. } = &*self.handshakes;
        let [completed, failed, refused] = [completed, failed, refused].map(|count| count.load(Relaxed));
        HandshakeCounts { completed, failed, refused }
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").finish_non_exhaustive()
    }
}

fn read(certificate: &Path, key: &Path) -> Result<Arc<Loaded>, Error> {
    let unread = |what: &'static str, path: &Path| {
        let path = path.to_owned();
        move |error| {
            let problem = match error {
                pem::Error::NoItemsFound => format!("it has no {what} in PEM"),
                error => swarmkeep::bittorrent::in_words(&error),
            };
            Error::Pem { what, path, problem }
        }
    };
    let chain: Vec<_> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .and_then(|chain: Vec<_>| if chain.is_empty() { Err(pem::Error::NoItemsFound) } else { Ok(chain) })
        .map_err(unread("certificate", certificate))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(unread("key", key))?;
    let described = Certificate::of(&chain);
    let unusable = |error| {
        let problem = match error {
            rustls::Error::InconsistentKeys(_) => "it is the key of another".into(),
            rustls::Error::InvalidCertificate(_) => "it is no certificate of a server".into(),
            error => swarmkeep::bittorrent::in_words(&error),
        };
        Error::Certificate { certificate: certificate.into(), key: key.into(), problem }
    };
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("that provider has ciphers for both versions")
        .with_no_client_auth()
        .with_single_cert(chain, secret)
        .map_err(unusable)?;
    config.alpn_protocols = vec![b"http/1.1".into()];
    // A client that returns in half an hour need not get the certificate again, and no state is kept here for
    // that. One ticket is enough for a client with one connection at a time.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.ticketer = ring::Ticketer::new().map_err(unusable)?;
    config.send_tls13_tickets = 1;
    Ok(Arc::new(Loaded { config: Arc::new(config), certificate: described }))
}

impl Handshakes {
    fn new(most: usize) -> Self {
        let [completed, failed, refused] = [const { AtomicU64::new(0) }; 3];
        Self { computing: Semaphore::new(most), completed, failed, refused }
    }

    /// Computes a handshake as its parts come, whenever a permit is free.
    async fn shake<T>(
        self: Arc<Self>,
        mut accept: impl Future<Output = io::Result<T>> + Unpin,
    ) -> io::Result<T> {
        let mut count = CountOnDrop { handshakes: &self, completed: false };
        loop {
            let permit = self.computing.acquire().await.expect("it is never closed");
            let polled = poll_fn(|cx| Poll::Ready(Pin::new(&mut accept).poll(cx))).await;
            drop(permit);
            if let Poll::Ready(result) = polled {
                count.completed = result.is_ok();
                return result;
            }
            // Wait for the next part.
            let mut waits = true;
            poll_fn(|_| if std::mem::take(&mut waits) { Poll::Pending } else { Poll::Ready(()) }).await;
        }
    }
}

/// Counts a handshake when it ends, however it does.
struct CountOnDrop<'a> {
    handshakes: &'a Handshakes,
    completed: bool,
}

impl Drop for CountOnDrop<'_> {
    fn drop(&mut self) {
        let Handshakes { completed, failed, .. } = self.handshakes;
        (if self.completed { completed } else { failed }).fetch_add(1, Relaxed);
    }
}

/// How much of an answer is encrypted before the system takes it: one record.
const UNSENT: usize = 16 * 1024;

/// The stream of a connection. A handshake is a part of the first read or write, so that limits on the time
/// and the memory until the first request hold for it too.
pub(crate) enum Stream {
    Plain(TcpStream),
    Handshake(Pin<Box<dyn Future<Output = io::Result<TlsStream<TcpStream>>> + Send>>),
    Tls(Box<TlsStream<TcpStream>>),
    /// The handshake failed, and its error was returned once.
    Failed,
}

impl Stream {
    pub(crate) fn new(stream: TcpStream, tls: Option<&Tls>) -> Self {
        let Some(Tls { loaded, handshakes }) = tls else { return Self::Plain(stream) };
        let acceptor = TlsAcceptor::from(Arc::clone(&loaded.load().config));
        let accept = acceptor.accept_with(stream, |session| session.set_buffer_limit(Some(UNSENT)));
        Self::Handshake(Box::pin(Arc::clone(handshakes).shake(accept)))
    }

    pub(crate) const fn is_tls(&self) -> bool {
        !matches!(self, Self::Plain(_))
    }

    /// The stream after the handshake.
    fn poll_open(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&mut dyn OpenStream>> {
        if let Self::Handshake(accept) = self {
            *self = match ready!(accept.as_mut().poll(cx)) {
                Ok(stream) => Self::Tls(Box::new(stream)),
                Err(error) => {
                    *self = Self::Failed;
                    return Poll::Ready(Err(error));
                }
            };
        }
        Poll::Ready(match self {
            Self::Plain(stream) => Ok(stream),
            Self::Tls(stream) => Ok(&mut **stream),
            Self::Handshake(_) | Self::Failed => Err(io::ErrorKind::NotConnected.into()),
        })
    }
}

trait OpenStream: AsyncRead + AsyncWrite + Unpin {}

impl<S: AsyncRead + AsyncWrite + Unpin> OpenStream for S {}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(ready!(self.poll_open(cx))?).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(ready!(self.poll_open(cx))?).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(ready!(self.poll_open(cx))?).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_flush(cx),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_flush(cx),
            // Nothing has been written, and a handshake flushes its own messages.
            Self::Handshake(_) | Self::Failed => Poll::Ready(Ok(())),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut *self {
            Self::Plain(stream) => Pin::new(stream).poll_shutdown(cx),
            Self::Tls(stream) => Pin::new(&mut **stream).poll_shutdown(cx),
            Self::Handshake(_) | Self::Failed => Poll::Ready(Ok(())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_more_handshakes_are_computed_at_once_than_may_be() {
        static COMPUTING: AtomicUsize = AtomicUsize::new(0);
        static MOST: AtomicUsize = AtomicUsize::new(0);
        let handshakes = Arc::new(Handshakes::new(2));
        let all = (0..20).map(|n| {
            let mut parts = 3;
            let handshake = Box::pin(poll_fn(move |cx| {
                MOST.fetch_max(COMPUTING.fetch_add(1, Relaxed) + 1, Relaxed);
                thread::sleep(Duration::from_millis(2));
                COMPUTING.fetch_sub(1, Relaxed);
                parts -= 1;
                if parts > 0 {
                    cx.waker().wake_by_ref();
                    return Poll::Pending;
                }
                Poll::Ready(if n < 5 { Err(io::ErrorKind::InvalidData.into()) } else { Ok(()) })
            }));
            tokio::spawn(Arc::clone(&handshakes).shake(handshake))
        });
        for ended in all.collect::<Vec<_>>() {
            let _ = ended.await.expect("it does not panic");
        }
        assert_eq!(MOST.load(Relaxed), 2);
        assert_eq!([&handshakes.completed, &handshakes.failed].map(|count| count.load(Relaxed)), [15, 5]);
    }
}
