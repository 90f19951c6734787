//! A client over HTTP/1.1, on a connection of its own.
#![expect(missing_docs, reason = "read by tests only")]

use std::{
    io::{self, BufRead, BufReader, ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
};

use socket2::{Domain, Socket, Type};
use swarmkeep::{Endpoint, InfoHash, PeerId};
use swarmkeep_store_tests::A_MINUTE;
use swarmkeep_tracker_protocol::http::{AnnounceRequest, AnnounceResponse, ScrapeRequest};

use crate::udp::HASH;

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

    /// Whether the server closes the connection after it.
    pub fn closes(&self) -> bool {
        self.header("connection") == Some("close")
    }
}

/// The client's end of a connection.
#[derive(Debug)]
pub struct Client<S>(BufReader<S>);

impl Client<TcpStream> {
    pub fn of(server: SocketAddr) -> Self {
        let stream = TcpStream::connect(server).expect("the server listens");
        stream.set_read_timeout(Some(A_MINUTE)).expect("above zero");
        Self::on(stream)
    }

    /// At an address of this machine.
    pub fn at(from: IpAddr, server: SocketAddr) -> Self {
        Self::on(connect(from, server).expect("loopback"))
    }

    /// Whether the server has left the connection open. Its answers so far are discarded.
    pub fn is_open(&self) -> bool {
        let mut stream = self.0.get_ref();
        stream.set_nonblocking(true).expect("a socket");
        let mut answer = [0; 8192];
        let end = loop {
            match stream.read(&mut answer) {
                Ok(1..) => {}
                end => break end,
            }
        };
        stream.set_nonblocking(false).expect("a socket");
        matches!(end, Err(error) if is_timeout(&error))
    }
}

impl<S: Read + Write> Client<S> {
    pub fn on(stream: S) -> Self {
        Self(BufReader::new(stream))
    }

    pub fn stream(&mut self) -> &mut S {
        self.0.get_mut()
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream().write_all(bytes).expect("the server listens");
    }

    /// Status and headers.
    pub fn head(&mut self) -> (u16, String) {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            let length = self.0.read_line(&mut head).expect("an answer within a minute");
            assert!(length > 0, "no answer: {head:?}");
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

    pub fn answer(&mut self) -> Answer {
        let (status, head) = self.head();
        let mut answer = Answer { status, head, body: Vec::new() };
        if answer.header("transfer-encoding").is_some_and(|encoding| encoding.contains("chunked")) {
            while let Some(chunk) = self.chunk() {
                answer.body.extend_from_slice(&chunk);
            }
            return answer;
        }
        match answer.header("content-length").map(|len| len.parse().expect("a number")) {
            Some(len) => {
                answer.body.resize(len, 0);
                self.0.read_exact(&mut answer.body).expect("the whole answer");
            }
            None => drop(self.0.read_to_end(&mut answer.body).expect("the rest")),
        }
        answer
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

    /// Everything until the server closes the connection.
    pub fn rest(&mut self) -> Vec<u8> {
        let mut rest = Vec::new();
        match self.0.read_to_end(&mut rest) {
            Err(error) if is_timeout(&error) => panic!("open after a minute"),
            // A close with unread bytes resets the connection.
            _ => rest,
        }
    }

    pub fn get(&mut self, path: &str) -> Answer {
        self.send(&request(path));
        self.answer()
    }

    /// The peers of the answer to an announce, in ascending order.
    pub fn peers(&mut self, announce: &AnnounceRequest<'_>) -> Vec<Endpoint> {
        let answer = self.get(&announce_path(announce));
        assert_eq!(answer.status, 200);
        let response = AnnounceResponse::parse(&answer.body).expect("a response").expect("no failure");
        let mut peers: Vec<_> = response.endpoints().collect();
        peers.sort();
        peers
    }
}

/// Connects from an address of this machine.
pub fn connect(from: IpAddr, to: SocketAddr) -> io::Result<TcpStream> {
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, None)?;
    socket.bind(&SocketAddr::new(from, 0).into())?;
    socket.connect(&to.into())?;
    socket.set_read_timeout(Some(A_MINUTE))?;
    Ok(socket.into())
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

/// A request without a body.
pub fn request(path: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes()
}

/// An announce of a leecher.
pub fn announce(port: u16) -> AnnounceRequest<'static> {
    let new = AnnounceRequest::new(HASH, PeerId::new([1; 20]), port);
    AnnounceRequest { left: Some(1), want: Some(60), ..new }
}

pub fn announce_path(request: &AnnounceRequest<'_>) -> String {
    path("/announce?", |query| request.write(query))
}

pub fn scrape_path(info_hash: InfoHash) -> String {
    path("/scrape?", |query| ScrapeRequest::write([info_hash], query))
}

fn path(path: &str, write: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut path = path.as_bytes().to_vec();
    write(&mut path);
    String::from_utf8(path).expect("queries are text")
}
