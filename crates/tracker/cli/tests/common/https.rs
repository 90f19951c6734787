//! Certificates, and clients that trust them.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
};

use rcgen::{CertifiedKey, generate_simple_self_signed};
use tokio_rustls::rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto::ring, pki_types::CertificateDer,
};

use crate::common::{A_MINUTE, Folder};

/// The files of a certificate and its key.
pub(crate) fn files_of_pair(folder: &Folder) -> [String; 2] {
    ["certificate.pem", "key.pem"].map(|name| folder.join(name).to_str().expect("text").into())
}

/// Writes a new certificate and its key.
pub(crate) fn write_pair(folder: &Folder) -> CertificateDer<'static> {
    let CertifiedKey { cert, signing_key } =
        generate_simple_self_signed(["127.0.0.1".into()]).expect("randomness");
    folder.write("certificate.pem", &cert.pem());
    folder.write_secret("key.pem", &signing_key.serialize_pem());
    cert.der().clone()
}

pub(crate) fn scrape(at: SocketAddr) {
    let stream = TcpStream::connect(at).expect("loopback");
    stream.set_read_timeout(Some(A_MINUTE)).expect("above zero");
    ask(&mut BufReader::new(stream));
}

pub(crate) type OverTls = BufReader<StreamOwned<ClientConnection, TcpStream>>;

/// Scrapes on a connection that stays open.
pub(crate) fn scrape_over_https(at: SocketAddr, certificate: &CertificateDer<'static>) -> OverTls {
    let mut connection = over_https(at, certificate);
    ask(&mut connection);
    connection
}

/// Connects a client that trusts this certificate and no other.
pub(crate) fn over_https(at: SocketAddr, certificate: &CertificateDer<'static>) -> OverTls {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).expect("a certificate");
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let session = ClientConnection::new(Arc::new(config), at.ip().into()).expect("a name");
    let stream = TcpStream::connect(at).expect("loopback");
    stream.set_read_timeout(Some(A_MINUTE)).expect("above zero");
    BufReader::new(StreamOwned::new(session, stream))
}

pub(crate) fn ask<S: Read + Write>(connection: &mut BufReader<S>) {
    let body = get(connection, &format!("/scrape?info_hash={}", "a".repeat(20)));
    assert!(body.starts_with(b"d5:filesd20:aaaa"), "{}", String::from_utf8_lossy(&body));
}

pub(crate) fn get<S: Read + Write>(connection: &mut BufReader<S>, path: &str) -> Vec<u8> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n");
    connection.get_mut().write_all(request.as_bytes()).expect("a server");
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        assert_ne!(connection.read_line(&mut head).expect("an answer soon"), 0, "{head}");
    }
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    let (_, len) = head.split_once("content-length: ").expect("a length");
    let mut body = vec![0; len.lines().next().expect("a line").parse().expect("a number")];
    connection.read_exact(&mut body).expect("a body");
    body
}
