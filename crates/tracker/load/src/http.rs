//! A worker over HTTP/1.1: a connection that is kept, with one request at a time or several, or a connection
//! for each request.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind, Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    os::fd::{AsFd, BorrowedFd},
};

use nix::sys::{
    epoll::EpollFlags,
    socket::{setsockopt, sockopt},
};
use socket2::{Domain, Protocol, Socket, Type};
use swarmkeep::{InfoHash, bittorrent::in_words};
use swarmkeep_tracker_protocol::{
    Error as ProtocolError,
    http::{AnnounceRequest, AnnounceResponse, ScrapeRequest, ScrapeResponse},
};

use crate::{
    check::{Checker, ExpectedAnnounce, Fault, Judgement, refused},
    clock::{Clock, SECOND, nanoseconds},
    config::{Config, Origin, Target},
    engine::{Client, NextRequest},
    frames::Frames,
    population::{Hashes, Request},
    stats::{Purpose, Recorder, Sending},
};

/// The longest answer that is read.
const LONGEST_ANSWER: usize = 1 << 20;

/// The failure of requests on a connection that has ended.
const CLOSED_EARLY: &str = "closed before it was answered";

/// The wait of a worker that could not connect.
const REFUSED_PAUSE: u64 = SECOND / 100;

/// A client of an HTTP tracker. Its connects are handshakes of TCP.
#[derive(Debug)]
pub(crate) struct HttpClient {
    target: SocketAddr,
    source: IpAddr,
    own: Option<IpAddr>,
    want: Option<u32>,
    timeout: u64,
    /// The most requests in flight.
    window: usize,
    /// A request closes its connection, and the next one opens another.
    closes: bool,
    /// The beginnings of requests, and their end.
    announce: Vec<u8>,
    scrape: Vec<u8>,
    tail: Vec<u8>,
    /// Kept for as long as the tracker keeps it. After its end, a socket that receives nothing.
    stream: TcpStream,
    is_open: bool,
    is_new: bool,
    was_open: bool,
    /// In their order, which is the order of the answers.
    flights: VecDeque<Flight>,
    /// The torrents of the scrapes in flight.
    hashes: Vec<InfoHash>,
    out: Vec<u8>,
    written: usize,
    inn: Vec<u8>,
    head: Option<Head>,
    lost_fill: Vec<u64>,
    not_before: u64,
}

#[derive(Debug, Clone, Copy)]
struct Flight {
    sending: Sending,
    expected: Expected,
    bytes: usize,
}

#[derive(Debug, Clone, Copy)]
enum Expected {
    /// The connection itself.
    Connect,
    Announce(ExpectedAnnounce),
    /// The number of its torrents.
    Scrape(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    len: usize,
    status: u16,
    body: Body,
    /// Whether the connection ends with this answer.
    closes: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Body {
    Length(usize),
    Chunked,
    UntilClosed,
}

pub(crate) struct HttpBuffers {
    checker: Checker,
    /// A chunked body put together.
    body: Vec<u8>,
}

impl HttpClient {
    fn lose(&mut self, reason: &str, now: u64, recorder: &mut Recorder) {
        while let Some(Flight { sending, .. }) = self.flights.pop_front() {
            recorder.failed(&sending, reason, now);
            self.again(&sending);
        }
    }

    fn again(&mut self, sending: &Sending) {
        if let Purpose::Fill(n) = sending.purpose {
            self.lost_fill.push(n);
        }
    }

    /// Ends the connection, so that a late answer cannot be taken for the next one.
    fn close(&mut self) {
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        (self.is_open, self.head, self.written) = (false, None, 0);
        self.inn.clear();
        self.out.clear();
        self.hashes.clear();
    }

    fn broken(&mut self, error: &io::Error, now: u64, recorder: &mut Recorder) {
        self.lose(&in_words(error), now, recorder);
        self.close();
        self.not_before = now + REFUSED_PAUSE;
    }

    fn connect(&mut self) -> io::Result<()> {
        let socket = Socket::new(Domain::for_address(self.target), Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        if !self.source.is_unspecified() {
            // Otherwise a closed connection keeps its port for a minute. The system may not know the option.
            let _ = setsockopt(&socket, sockopt::IpBindAddressNoPort, &true);
            socket.bind(&SocketAddr::new(self.source, 0).into())?;
        }
        match socket.connect(&self.target.into()) {
            Err(error) if error.raw_os_error() != Some(nix::errno::Errno::EINPROGRESS as i32) => {
                return Err(error);
            }
            _ => {}
        }
        (self.stream, self.is_new) = (socket.into(), true);
        Ok(())
    }

    /// Writes the rest of the request, as far as the socket has room.
    fn write(&mut self) -> io::Result<()> {
        while self.written < self.out.len() {
            match self.stream.write(&self.out[self.written..]) {
                Ok(written) => self.written += written,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads all received bytes. Returns whether the connection has ended.
    fn read(&mut self) -> io::Result<bool> {
        let mut buffer = [0; 8192];
        loop {
            match self.stream.read(&mut buffer) {
                Ok(0) => return Ok(true),
                Ok(len) => self.inn.extend_from_slice(&buffer[..len]),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
            if self.inn.len() > LONGEST_ANSWER {
                return Ok(true);
            }
        }
    }

    /// Checks the answers that are whole.
    fn answer(&mut self, ended: bool, now: u64, shared: &mut HttpBuffers, recorder: &mut Recorder) {
        while let Some(&Flight { sending, expected, .. }) = self.flights.front() {
            let (judged, end) = match self.whole(ended, &mut shared.body) {
                Ok(None) => return,
                Ok(Some((head, range))) => {
                    let (body, end) = match head.body {
                        Body::Chunked => (&shared.body[..], self.inn.len()),
                        _ => (&self.inn[range.clone()], range.end),
                    };
                    let judged = match head.status {
                        200 => check(expected, body, &self.hashes, &mut shared.checker),
                        status => Ok(Err(format!("status {status}"))),
                    };
                    (judged, end)
                }
                Err(wrong) => (Err(wrong), self.inn.len()),
            };
            self.flights.pop_front();
            if recorder.judged(&sending, end, judged, &mut shared.checker, now) {
                self.again(&sending);
            }
            if let Expected::Scrape(count) = expected {
                self.hashes.drain(..count);
            }
            self.inn.drain(..end);
            if self.closes || self.head.take().is_none_or(|head| head.closes) {
                self.lose(CLOSED_EARLY, now, recorder);
                self.close();
            }
        }
        // An answer without a request.
        if !self.inn.is_empty() {
            recorder.wrong(None, self.inn.len(), &Fault::Unasked, now);
            self.close();
        }
    }

    /// The head and the range of the body, once it is whole. A chunked body is joined in `chunked`.
    fn whole(
        &mut self,
        ended: bool,
        chunked: &mut Vec<u8>,
    ) -> Result<Option<(Head, std::ops::Range<usize>)>, Fault> {
        if self.head.is_none() {
            self.head = Head::parse(&self.inn)?;
        }
        let Some(head) = self.head else { return Ok(None) };
        let behind = self.inn.len() - head.len;
        Ok(match head.body {
            Body::Length(len) if behind < len => None,
            Body::Length(len) if behind > len && self.flights.len() == 1 => {
                return Err(Fault::Malformed("more than the length of the body".into()));
            }
            Body::Length(len) => Some((head, head.len..head.len + len)),
            Body::UntilClosed => ended.then_some((head, head.len..self.inn.len())),
            Body::Chunked => dechunk(&self.inn[head.len..], chunked)?.then_some((head, 0..0)),
        })
    }
}

impl Head {
    /// `None` while it is not whole.
    fn parse(bytes: &[u8]) -> Result<Option<Self>, Fault> {
        let mut headers = [httparse::EMPTY_HEADER; 64];
        let mut response = httparse::Response::new(&mut headers);
        let malformed = |error: httparse::Error| Fault::Malformed(format!("HTTP: {error}"));
        let httparse::Status::Complete(len) = response.parse(bytes).map_err(malformed)? else {
            return Ok(None);
        };
        let mut body = Body::UntilClosed;
        let mut closes = response.version == Some(0);
        for header in response.headers.iter() {
            let value = str::from_utf8(header.value).unwrap_or_default().trim();
            if header.name.eq_ignore_ascii_case("content-length") && body != Body::Chunked {
                let wrong = |_| Fault::Malformed("HTTP: a wrong length".into());
                body = Body::Length(value.parse().map_err(wrong)?);
            } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
                body = Body::Chunked;
            } else if header.name.eq_ignore_ascii_case("connection") {
                closes = value.eq_ignore_ascii_case("close")
                    || (closes && !value.eq_ignore_ascii_case("keep-alive"));
            }
        }
        let status = response.code.unwrap_or_default();
        Ok(Some(Self { len, status, body, closes: closes || body == Body::UntilClosed }))
    }
}

/// Joins a chunked body in `out`. Returns whether it is whole.
fn dechunk(mut bytes: &[u8], out: &mut Vec<u8>) -> Result<bool, Fault> {
    let wrong = |problem: &str| Fault::Malformed(format!("HTTP: {problem}"));
    out.clear();
    loop {
        let (start, len) = match httparse::parse_chunk_size(bytes) {
            Ok(httparse::Status::Complete((start, len))) => {
                (start, usize::try_from(len).unwrap_or(usize::MAX))
            }
            Ok(httparse::Status::Partial) => return Ok(false),
            Err(_) => return Err(wrong("a chunk without a length")),
        };
        bytes = &bytes[start..];
        if len > LONGEST_ANSWER {
            return Err(wrong("a chunk too long"));
        }
        if bytes.len() < len + 2 {
            return Ok(false);
        }
        let (chunk, rest) = bytes.split_at(len);
        let rest = rest.strip_prefix(b"\r\n").ok_or_else(|| wrong("a chunk longer than it says"))?;
        out.extend_from_slice(chunk);
        bytes = rest;
        if len == 0 {
            return Ok(true);
        }
    }
}

fn check(expected: Expected, body: &[u8], hashes: &[InfoHash], checker: &mut Checker) -> Judgement {
    // aquatic ends an answer with a line break, which clients ignore.
    let body = body.trim_ascii_end();
    let malformed = |error: ProtocolError| Fault::Malformed(error.to_string());
    match expected {
        Expected::Connect => unreachable!("a connection is no answer with a body"),
        Expected::Announce(asked) => match AnnounceResponse::parse(body).map_err(malformed)? {
            Err(failure) => refused(failure.reason),
            Ok(announce) => {
                let head = announce.head;
                // Clients take more than a tracker should send.
                let whole = swarmkeep::bittorrent::bencode::Value::parse(body).ok();
                let interval = whole.and_then(|whole| whole.dict()?.get(b"interval")?.integer());
                interval.ok_or_else(|| Fault::Malformed("no interval, or bytes behind the end".into()))?;
                let peers = announce.endpoints().map(Ok::<_, std::convert::Infallible>);
                checker.announce(asked, (head.interval, head.complete, head.incomplete), peers).map(Ok)
            }
        },
        Expected::Scrape(count) => match ScrapeResponse::parse(body).map_err(malformed)? {
            Err(failure) => refused(failure.reason),
            Ok(scrape) => {
                let hashes = &hashes[..count];
                // A tracker may leave out unknown torrents (BEP 48).
                let mut got = 0;
                for (info_hash, _) in scrape.swarms() {
                    if !hashes.contains(&info_hash) {
                        return Err(Fault::Unasked);
                    }
                    got += 1;
                }
                let counts = scrape.swarms().map(|(_, swarm)| (swarm.seeders, swarm.leechers));
                checker.scrape(got, counts)?;
                if got > hashes.len() {
                    return Err(Fault::Scraped { got, asked: hashes.len() });
                }
                Ok(Ok(0))
            }
        },
    }
}

impl Client for HttpClient {
    type Shared = HttpBuffers;

    // One event when the connection is made, and one whenever bytes are received.
    const EVENTS: EpollFlags = EpollFlags::EPOLLIN
        .union(EpollFlags::EPOLLOUT)
        .union(EpollFlags::EPOLLRDHUP)
        .union(EpollFlags::EPOLLET);

    fn open(config: &Config, origin: &Origin, _worker: usize) -> io::Result<Self> {
        let Target::Http { address, host, path } = &origin.target else { unreachable!("HTTP targets only") };
        let (closes, window) = (config.connection_per_request, config.window());
        let more = match window {
            _ if closes => "Connection: close\r\n".into(),
            1 => String::new(),
            _ if origin.source.is_unspecified() => String::new(),
            // Only proxies send requests behind each other.
            _ => format!("X-Forwarded-For: {}\r\n", origin.source),
        };
        let version = env!("CARGO_PKG_VERSION");
        let tail = format!(" HTTP/1.1\r\nHost: {host}\r\nUser-Agent: swarmkeep-load/{version}\r\n{more}\r\n");
        let scrape = origin.target.scrape_path().unwrap_or_default();
        let unconnected = Socket::new(Domain::for_address(*address), Type::STREAM, Some(Protocol::TCP))?;
        Ok(Self {
            target: *address,
            source: origin.source,
            own: address.ip().to_canonical().is_loopback().then_some(origin.source),
            want: config.want,
            timeout: nanoseconds(config.timeout),
            window,
            closes,
            announce: format!("GET {path}?").into(),
            scrape: format!("GET {scrape}?").into(),
            tail: tail.into(),
            stream: unconnected.into(),
            is_open: false,
            is_new: false,
            was_open: false,
            flights: VecDeque::with_capacity(window),
            hashes: Vec::with_capacity(config.scrape_hashes * window),
            out: Vec::with_capacity(8192),
            written: 0,
            inn: Vec::with_capacity(8192),
            head: None,
            lost_fill: Vec::new(),
            not_before: 0,
        })
    }

    fn shared(config: &Config, _: Option<Frames>) -> HttpBuffers {
        HttpBuffers { checker: Checker::new(config), body: Vec::new() }
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }

    fn take_is_new(&mut self) -> bool {
        std::mem::take(&mut self.is_new)
    }

    fn in_flight(&self) -> usize {
        self.flights.len()
    }

    fn room(&self, now: u64, _filling: bool) -> usize {
        let most = if self.is_open { self.window } else { 1 };
        if now < self.not_before { 0 } else { most.saturating_sub(self.flights.len()) }
    }

    fn next_request(&self, _now: u64) -> NextRequest {
        if self.is_connected() { NextRequest::Anything } else { NextRequest::Connect }
    }

    fn is_connected(&self) -> bool {
        self.is_open || self.closes && self.was_open
    }

    fn push(&mut self, _shared: &mut HttpBuffers, request: &Request, hashes: &Hashes, sending: Sending) {
        if self.written == self.out.len() {
            self.out.clear();
            self.written = 0;
        }
        let before = self.out.len();
        let expected = match request {
            Request::Connect => Expected::Connect,
            Request::Announce(announcing) => {
                self.out.extend_from_slice(&self.announce);
                let request = AnnounceRequest {
                    uploaded: announcing.uploaded,
                    downloaded: announcing.downloaded,
                    left: Some(announcing.left),
                    event: announcing.event,
                    want: self.want,
                    compact: Some(true),
                    ..AnnounceRequest::new(announcing.info_hash, announcing.peer_id, announcing.port)
                };
                request.write(&mut self.out);
                Expected::Announce(ExpectedAnnounce::of(announcing, self.own, sending.kind))
            }
            Request::Scrape => {
                let hashes = hashes.iter().copied().map(InfoHash::new);
                self.hashes.extend(hashes.clone());
                self.out.extend_from_slice(&self.scrape);
                let count = hashes.len();
                ScrapeRequest::write(hashes, &mut self.out);
                Expected::Scrape(count)
            }
        };
        if self.out.len() > before {
            self.out.extend_from_slice(&self.tail);
        }
        self.flights.push_back(Flight { sending, expected, bytes: self.out.len() - before });
    }

    fn flush(&mut self, _shared: &mut HttpBuffers, clock: &Clock, recorder: &mut Recorder) {
        if self.flights.back().is_none_or(|flight| flight.sending.sent > 0) {
            return;
        }
        let now = clock.now();
        for Flight { sending, bytes, .. } in self.flights.iter_mut().filter(|flight| flight.sending.sent == 0)
        {
            recorder.sent(sending, *bytes, now);
        }
        let begun = if self.is_open { self.write() } else { self.connect() };
        if let Err(error) = begun {
            self.broken(&error, now, recorder);
        }
    }

    fn receive(&mut self, shared: &mut HttpBuffers, clock: &Clock, recorder: &mut Recorder) {
        if !self.is_open
            && let Some(&Flight { sending, expected, .. }) = self.flights.front()
        {
            let now = clock.now();
            match self.stream.take_error().map(|error| error.or_else(|| self.stream.peer_addr().err())) {
                Ok(None) => (self.is_open, self.was_open) = (true, true),
                // Not connected yet.
                Ok(Some(error)) if error.kind() == ErrorKind::NotConnected => {}
                Ok(Some(error)) | Err(error) => self.broken(&error, now, recorder),
            }
            if self.is_open && matches!(expected, Expected::Connect) {
                self.flights.clear();
                recorder.succeeded(&sending, 0, 0, now);
                return;
            }
        }
        if !self.is_open {
            return;
        }
        let done = self.write().and_then(|()| self.read());
        let now = clock.now();
        match done {
            Ok(ended) => {
                self.answer(ended, now, shared, recorder);
                if ended && self.is_open {
                    let whole = self.inn.len() <= LONGEST_ANSWER;
                    let reason = if whole { CLOSED_EARLY } else { "an answer without an end" };
                    self.lose(reason, now, recorder);
                    self.close();
                }
            }
            Err(error) => self.broken(&error, now, recorder),
        }
    }

    fn expire(&mut self, now: u64, recorder: &mut Recorder) {
        if let Some(Flight { sending, .. }) = self.flights.front()
            && now >= sending.sent.saturating_add(self.timeout)
        {
            self.lose("timeout", now, recorder);
            self.close();
        }
    }

    fn take_lost_fill(&mut self) -> std::vec::Drain<'_, u64> {
        self.lost_fill.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_say_where_the_body_ends() {
        let parse = |text: &str| Head::parse(text.as_bytes());
        let head = |text: &str| parse(text).unwrap().unwrap();
        let kept = head("HTTP/1.1 200 OK\r\nContent-Length: 12\r\n\r\n");
        assert_eq!((kept.body, kept.closes, kept.status), (Body::Length(12), false, 200));
        assert!(head("HTTP/1.1 200 OK\r\nconnection: Close\r\ncontent-length: 1\r\n\r\n").closes);
        assert!(head("HTTP/1.0 200 OK\r\ncontent-length: 1\r\n\r\n").closes);
        assert!(!head("HTTP/1.0 200 OK\r\nConnection: keep-alive\r\ncontent-length: 1\r\n\r\n").closes);
        assert_eq!(head("HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\n\r\n").body, Body::Chunked);
        let until_closed = head("HTTP/1.1 200 OK\r\n\r\n");
        assert_eq!((until_closed.body, until_closed.closes), (Body::UntilClosed, true));
        assert_eq!(parse("HTTP/1.1 200 OK\r\nContent-Le"), Ok(None));
        assert!(parse("SSH-2.0-x\r\n\r\n").is_err());
        for length in ["-1", "\u{202e}1"] {
            let said = parse(&format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n"));
            assert!(matches!(said, Err(Fault::Malformed(said)) if said.is_ascii()));
        }
    }

    #[test]
    fn pipelines_name_their_client_where_they_know_its_address() {
        let tail = |ip: [u8; 4]| {
            let (address, path) = ((ip, 80).into(), "/announce".into());
            let target = Target::Http { address, host: "tracker".into(), path };
            let config = Config { window: Some(8), ..Config::new([target]) };
            String::from_utf8(HttpClient::open(&config, &config.origins()[0], 0).unwrap().tail).unwrap()
        };
        assert!(tail([127, 0, 0, 1]).ends_with("\r\nX-Forwarded-For: 127.0.0.1\r\n\r\n"));
        assert!(!tail([192, 0, 2, 1]).contains("X-Forwarded-For"));
    }

    #[test]
    fn chunks_are_put_together() {
        let mut out = Vec::new();
        let whole = b"4\r\nd8:i\r\n5;x=y\r\nabcde\r\n0\r\n\r\n";
        for cut in 0..whole.len() {
            assert_eq!(dechunk(&whole[..cut], &mut out), Ok(false), "{cut} bytes");
        }
        assert_eq!(dechunk(whole, &mut out), Ok(true));
        assert_eq!(out, b"d8:iabcde");
        for wrong in [&b"x\r\n"[..], b"2\r\nabcd", b"ffffffffff\r\n"] {
            assert!(dechunk(wrong, &mut out).is_err());
        }
    }
}
