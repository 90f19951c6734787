//! Certificates for servers of tests, and clients that trust them.
#![expect(missing_docs, reason = "the names say it")]

use std::{
    fs::{self, Permissions},
    net::{IpAddr, SocketAddr, TcpStream},
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    sync::Arc,
};

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use swarmkeep_tracker::Tls;
use tempfile::TempDir;
use tokio_rustls::rustls::{
    ALL_VERSIONS, ClientConfig, ClientConnection, RootCertStore, StreamOwned, SupportedProtocolVersion,
    crypto::ring,
    pki_types::{CertificateDer, ServerName},
};

use crate::http::{self, connect};

fn for_loopback() -> CertificateParams {
    CertificateParams::new(["127.0.0.1", "::1", "localhost"].map(String::from)).expect("names")
}

/// A certificate for the loopback addresses with its chain, and a root that clients trust, in files of a
/// folder that every user may read. Only their owner may read the key. The issuer ends before it, at the end
/// of February 2100.
#[derive(Debug)]
pub struct CertificateAuthority {
    folder: TempDir,
    /// The certificate without its chain.
    pub leaf: CertificateDer<'static>,
    root: CertificateDer<'static>,
}

impl Default for CertificateAuthority {
    fn default() -> Self {
        Self::within(tempfile::tempdir().expect("room"))
    }
}

impl CertificateAuthority {
    pub fn new() -> Self {
        Self::default()
    }

    /// A certificate that is its own root.
    pub fn self_signed() -> Self {
        let (mut authority, key) = (Self::new(), KeyPair::generate().expect("randomness"));
        let certificate = for_loopback().self_signed(&key).expect("a certificate");
        for (path, pem) in [
            (authority.certificate(), certificate.pem()),
            (authority.root(), certificate.pem()),
            (authority.key(), key.serialize_pem()),
        ] {
            fs::write(path, pem).expect("room");
        }
        (authority.leaf, authority.root) = (certificate.der().clone(), certificate.der().clone());
        authority
    }

    /// Another authority, with its files in the place of the former ones.
    #[must_use]
    pub fn renewed(self) -> Self {
        Self::within(self.folder)
    }

    fn within(folder: TempDir) -> Self {
        let name = folder.path().display();
        let key = || KeyPair::generate().expect("randomness");
        let authority = |level: &str| {
            let mut params = CertificateParams::default();
            params.distinguished_name.push(DnType::CommonName, format!("{level} of {name}"));
            params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
            params.not_after = date_time_ymd(2100, 2, 28);
            params
        };
        let (root_key, middle_key, leaf_key) = (key(), key(), key());
        let root = authority("root").self_signed(&root_key).expect("a certificate");
        let issuer = Issuer::new(authority("root"), &root_key);
        let middle = authority("middle").signed_by(&middle_key, &issuer).expect("a certificate");
        let issuer = Issuer::new(authority("middle"), &middle_key);
        let leaf = for_loopback().signed_by(&leaf_key, &issuer).expect("a certificate");

        let authority = Self { leaf: leaf.der().clone(), root: root.der().clone(), folder };
        fs::write(authority.certificate(), leaf.pem() + &middle.pem()).expect("room");
        fs::write(authority.key(), leaf_key.serialize_pem()).expect("room");
        fs::write(authority.root(), root.pem()).expect("room");
        for (path, mode) in [(authority.file("."), 0o755), (authority.key(), 0o600)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("ours");
        }
        authority
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn certificate(&self) -> PathBuf {
        self.file("certificate.pem")
    }

    pub fn key(&self) -> PathBuf {
        self.file("key.pem")
    }

    pub fn root(&self) -> PathBuf {
        self.file("root.pem")
    }

    /// The options of `swarmkeep serve` that name the files.
    pub fn options(&self) -> [String; 2] {
        [("tls-certificate", self.certificate()), ("tls-key", self.key())]
            .map(|(option, path)| format!("--{option}={}", path.display()))
    }

    pub fn tls(&self) -> Tls {
        Tls::load(&self.certificate(), &self.key()).expect("they belong together")
    }

    /// A client that trusts the root alone.
    pub fn client(&self) -> Arc<ClientConfig> {
        self.client_of(ALL_VERSIONS)
    }

    /// The same with some versions.
    pub fn client_of(&self, versions: &[&'static SupportedProtocolVersion]) -> Arc<ClientConfig> {
        let mut roots = RootCertStore::empty();
        roots.add(self.root.clone()).expect("a certificate");
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_protocol_versions(versions)
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".into()];
        Arc::new(config)
    }

    pub fn hello(&self) -> Vec<u8> {
        let name = ServerName::try_from("localhost").expect("a name");
        let mut hello = Vec::new();
        let mut session = ClientConnection::new(self.client(), name).expect("a name");
        session.write_tls(&mut hello).expect("room");
        hello
    }
}

pub type Client = http::Client<StreamOwned<ClientConnection, TcpStream>>;

impl Client {
    /// At the tracker's own address.
    pub fn over_tls(tracker: SocketAddr, config: &Arc<ClientConfig>) -> Self {
        Self::over_tls_at(tracker.ip(), tracker, config)
    }

    /// At an address of this machine.
    pub fn over_tls_at(from: IpAddr, tracker: SocketAddr, config: &Arc<ClientConfig>) -> Self {
        let stream = connect(from, tracker).expect("loopback");
        let session = ClientConnection::new(Arc::clone(config), tracker.ip().into()).expect("a name");
        Self::on(StreamOwned::new(session, stream))
    }
}
