//! TLS to trackers over HTTPS.

use std::{io, path::Path, sync::Arc};

use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    rustls::{
        ClientConfig, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, pem::PemObject},
    },
};

/// Connects by TLS; certificates must be of an authority that the system trusts, or of one in a file.
pub(super) struct Tls(TlsConnector);

impl Tls {
    /// Reads the authorities.
    ///
    /// # Errors
    /// If the file of authorities cannot be read, or has none. A system without any is no error: no
    /// certificate is believed then.
    pub(super) fn new(roots: Option<&Path>) -> io::Result<Self> {
        let mut store = RootCertStore::empty();
        match roots {
            Some(path) => {
                let wrong = |problem: &dyn std::fmt::Display| {
                    let problem = swarmkeep_bittorrent::in_words(problem);
                    io::Error::new(io::ErrorKind::InvalidData, format!("{}: {problem}", path.display()))
                };
                for certificate in CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))? {
                    let certificate = certificate.map_err(|error| wrong(&error))?;
                    store.add(certificate).map_err(|error| wrong(&error))?;
                }
                if store.is_empty() {
                    return Err(wrong(&"it has no certificate in PEM"));
                }
            }
            None => {
                let found = rustls_native_certs::load_native_certs();
                // Systems have old ones among them that cannot be used, which is no error.
                store.add_parsable_certificates(found.certs);
                if store.is_empty() {
                    tracing::warn!(errors = ?found.errors, "no authority is believed: trackers over https will fail");
                }
            }
        }
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("that provider has ciphers for both versions")
            .with_root_certificates(store)
            .with_no_client_auth();
        config.alpn_protocols = vec![b"http/1.1".into()];
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    pub(super) async fn connect(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> io::Result<tokio_rustls::client::TlsStream<TcpStream>> {
        let name = host.to_owned().try_into().map_err(io::Error::other)?;
        self.0.connect(name, stream).await
    }
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}
