//! Access to servers: TLS, the password, and the hosts that may receive it.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use parking_lot::Mutex;
use redis::{ConnectionAddr, ConnectionInfo, RedisConnectionInfo};
use swarmkeep::bittorrent::in_words;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, UnixStream},
    task::spawn_blocking,
};
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, ServerName, pem::PemObject as _},
    },
};
use tracing::warn;

use crate::RedisConfig;

/// The settings of the connections to all servers of a store.
pub(crate) struct Access {
    tls: Option<TlsConnector>,
    password: Option<PasswordFile>,
    /// The hosts of the URLs that were given.
    hosts: Vec<String>,
    /// The connections per server.
    pub(crate) connections: usize,
}

/// A stream to a server.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Access {
    /// Fails if a URL has TLS, and the given authority's certificate is invalid.
    pub(crate) fn new(config: &RedisConfig, seeds: &[ConnectionInfo]) -> Result<Self, String> {
        let has_tls = seeds.iter().any(|seed| is_tls(seed.addr()));
        Ok(Self {
            tls: has_tls.then(|| tls(config.root_certificate.as_deref())).transpose()?,
            password: config.password_file.clone().map(|path| PasswordFile { path, last: Mutex::default() }),
            hosts: seeds.iter().filter_map(|seed| host_of(seed.addr())).map(str::to_owned).collect(),
            connections: config.connections.max(1),
        })
    }

    /// Why a server must not receive the password: an attacker could have named it. `None` if it may.
    pub(crate) fn refuses(&self, server: &ConnectionInfo) -> Option<String> {
        let has_password = self.password.is_some() || server.redis_settings().password().is_some();
        let host = host_of(server.addr())?;
        let is_known = self.hosts.iter().any(|known| known.eq_ignore_ascii_case(host));
        let is_safe = is_tls(server.addr()) || !has_password || is_known;
        (!is_safe).then(|| {
            format!(
                "{} is named by a server, and its host is in no URL: without TLS it is not told the password; \
                 add a URL with each host of the Cluster, or use rediss://",
                server.addr()
            )
        })
    }

    pub(crate) async fn open(&self, server: &ConnectionAddr) -> io::Result<Box<dyn Stream>> {
        Ok(match server {
            ConnectionAddr::Tcp(host, port) => Box::new(TcpStream::connect((host.as_str(), *port)).await?),
            ConnectionAddr::TcpTls { host, port, .. } => {
                let tls = self.tls.as_ref().ok_or_else(|| io::Error::other("TLS is not set up"))?;
                let name = ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                Box::new(tls.connect(name, TcpStream::connect((host.as_str(), *port)).await?).await?)
            }
            ConnectionAddr::Unix(path) => Box::new(UnixStream::connect(path).await?),
            other => return Err(io::Error::other(format!("{other} is neither of TCP nor a socket's path"))),
        })
    }

    /// The greeting to a server, with the current password of the file.
    pub(crate) async fn greeting(&self, server: &ConnectionInfo) -> Result<RedisConnectionInfo, String> {
        // Since Redis 7.2, the user needs a separate permission to set the library's name.
        let greeting = server.redis_settings().clone().set_skip_set_lib_name();
        Ok(match &self.password {
            Some(file) if greeting.password().is_none() => greeting.set_password(file.read().await?),
            _ => greeting,
        })
    }
}

/// A file that is read for each connection. While it cannot be read, the last password is used.
struct PasswordFile {
    path: PathBuf,
    last: Mutex<Option<String>>,
}

impl PasswordFile {
    async fn read(&self) -> Result<String, String> {
        let path = self.path.clone();
        let read = spawn_blocking(move || password_in(&path)).await.expect("reading a file does not panic");
        let mut last = self.last.lock();
        match (read, &*last) {
            (Ok(password), _) => Ok(last.insert(password).clone()),
            (Err(error), None) => Err(error),
            (Err(error), Some(password)) => {
                warn!(%error, "the previous password is used");
                Ok(password.clone())
            }
        }
    }
}

/// The first line of a file, as [`RedisConfig::password_file`] reads it.
///
/// # Errors
/// The reason, with the name of the file.
pub fn password_in(file: &Path) -> Result<String, String> {
    let wrong = |problem: String| format!("{}: {problem}", file.display());
    let bytes =
        fs::read(file).map_err(|error| format!("cannot read {}: {}", file.display(), in_words(&error)))?;
    let text = String::from_utf8(bytes).map_err(|_| wrong("expected text in UTF-8".to_owned()))?;
    let password = text.lines().next().filter(|line| !line.is_empty());
    password
        .map(str::to_owned)
        .ok_or_else(|| wrong("its first line is empty: write the password there".to_owned()))
}

const fn is_tls(server: &ConnectionAddr) -> bool {
    matches!(server, ConnectionAddr::TcpTls { .. })
}

fn host_of(server: &ConnectionAddr) -> Option<&str> {
    match server {
        ConnectionAddr::Tcp(host, _) | ConnectionAddr::TcpTls { host, .. } => Some(host),
        _ => None,
    }
}

fn tls(authority: Option<&[u8]>) -> Result<TlsConnector, String> {
    let mut store = RootCertStore::empty();
    match authority {
        Some(pem) => {
            let wrong = |error: String| format!("the authority's certificate: {}", in_words(&error));
            for certificate in CertificateDer::pem_slice_iter(pem) {
                let certificate = certificate.map_err(|error| wrong(error.to_string()))?;
                store.add(certificate).map_err(|error| wrong(error.to_string()))?;
            }
        }
        // Some systems have old certificates that cannot be used: these are left out.
        None => _ = store.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
    }
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("that provider has ciphers for both versions")
        .with_root_certificates(store)
        .with_no_client_auth();
    Ok(TlsConnector::from(Arc::new(config)))
}
