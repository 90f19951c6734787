//! A client of the admin server: HTTP/1.1 as bytes, one connection per request.
#![expect(missing_docs, reason = "read by tests only")]

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
};

use swarmkeep_store_tests::A_MINUTE;

/// The response.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().skip(1).find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then_some(value.trim())
        })
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.body).expect("text")
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// An open connection after a request.
pub struct PendingResponse(BufReader<TcpStream>);

/// Sends a request with these header lines, each with its end.
pub fn ask(address: SocketAddr, method: &str, path: &str, lines: &str) -> PendingResponse {
    ask_with(address, method, path, lines, "")
}

/// Sends a request with a body.
pub fn ask_with(address: SocketAddr, method: &str, path: &str, lines: &str, body: &str) -> PendingResponse {
    let mut stream = TcpStream::connect(address).expect("the tracker listens");
    stream.set_read_timeout(Some(A_MINUTE)).expect("a socket");
    let head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n{lines}\r\n");
    stream.write_all((head + body).as_bytes()).expect("connected");
    PendingResponse(BufReader::new(stream))
}

impl PendingResponse {
    /// Status and headers.
    pub fn head(&mut self) -> (u16, String) {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert!(
                self.0.read_line(&mut head).expect("an answer within a minute") > 0,
                "no answer: {head:?}"
            );
        }
        (head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status"), head)
    }

    /// The next part of an answer that is sent in parts; `None` at its end.
    pub fn chunk(&mut self) -> Option<Vec<u8>> {
        let mut line = String::new();
        self.0.read_line(&mut line).expect("a chunk within a minute");
        assert!(!line.is_empty(), "the answer ends before its end");
        let len = usize::from_str_radix(line.trim(), 16).ok()?;
        let mut chunk = vec![0; len + 2];
        self.0.read_exact(&mut chunk).expect("a chunk");
        chunk.truncate(len);
        (len > 0).then_some(chunk)
    }

    pub fn answer(mut self) -> Answer {
        let (status, head) = self.head();
        let mut body = Vec::new();
        if head.to_ascii_lowercase().contains("transfer-encoding: chunked") {
            while let Some(chunk) = self.chunk() {
                body.extend_from_slice(&chunk);
            }
        } else {
            let whole = Answer { status, head: head.clone(), body: Vec::new() };
            match whole.header("content-length").map(|len| len.parse().expect("a number")) {
                Some(len) => {
                    body.resize(len, 0);
                    self.0.read_exact(&mut body).expect("the whole answer");
                }
                None => drop(self.0.read_to_end(&mut body).expect("the rest")),
            }
        }
        Answer { status, head, body }
    }

    /// The data of the next event.
    pub fn event(&mut self) -> Option<String> {
        let mut event = String::new();
        loop {
            event.push_str(&String::from_utf8(self.chunk()?).expect("text"));
            if let Some(data) = event.strip_prefix("data: ").and_then(|event| event.strip_suffix("\n\n")) {
                return Some(data.to_owned());
            }
            if event.starts_with(':') {
                event.clear();
            }
        }
    }
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
