//! A client of the admin server: one connection per request.
#![expect(missing_docs, reason = "read by tests only")]

use std::net::{SocketAddr, TcpStream};

pub use crate::http::Answer;
use crate::http::Client;

/// Sends a request with these header lines, each with its end.
pub fn ask(address: SocketAddr, method: &str, path: &str, lines: &str) -> Client<TcpStream> {
    ask_with(address, method, path, lines, "")
}

/// Sends a request with a body.
pub fn ask_with(address: SocketAddr, method: &str, path: &str, lines: &str, body: &str) -> Client<TcpStream> {
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{lines}\r\n");
    let mut client = Client::of(address);
    client.send((head + body).as_bytes());
    client
}

/// A header line with a token.
pub fn bearing(secret: &str) -> String {
    format!("Authorization: Bearer {secret}\r\n")
}

pub fn get(address: SocketAddr, path: &str) -> Answer {
    ask(address, "GET", path, "").answer()
}

pub fn get_with(address: SocketAddr, path: &str, secret: &str) -> Answer {
    ask(address, "GET", path, &bearing(secret)).answer()
}
