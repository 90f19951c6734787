//! Scrapes over HTTP and HTTPS.

use std::{
    io::{Read, Write},
    net::SocketAddr,
};

use swarmkeep::InfoHash;
use swarmkeep_tests::{
    http::{self, scrape_path},
    https::{CertificateAuthority, Client},
};

pub(crate) fn scrape(at: SocketAddr) {
    ask(&mut http::Client::of(at));
}

/// Scrapes on a connection that stays open.
pub(crate) fn scrape_over_https(at: SocketAddr, authority: &CertificateAuthority) -> Client {
    let mut client = Client::over_tls(at, &authority.client());
    ask(&mut client);
    client
}

pub(crate) fn ask<S: Read + Write>(client: &mut http::Client<S>) {
    let answer = client.get(&scrape_path(InfoHash::new([b'a'; 20])));
    assert!(answer.status == 200 && answer.body.starts_with(b"d5:filesd20:aaaa"), "{answer:?}");
}
