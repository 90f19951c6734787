//! A worker over UDP (BEP 15): a connected socket, a connection id, and requests in flight. It finds the
//! request of an answer by its transaction, which the protocol's `Client` would compare again for each
//! packet.

use std::{
    collections::VecDeque,
    io::{self, ErrorKind, IoSlice, IoSliceMut},
    net::{SocketAddr, UdpSocket},
    os::fd::{AsFd, AsRawFd, BorrowedFd},
};

use nix::{
    errno::Errno,
    sys::{
        epoll::EpollFlags,
        socket::{MsgFlags, MultiHeaders, recvmmsg, sendmmsg},
    },
};
use swarmkeep::{Family, bittorrent::in_words};
use swarmkeep_tracker_protocol::{
    Error as ProtocolError,
    udp::{AnnounceRequest, ConnectRequest, ConnectionId, Response, ScrapeRequest, TransactionId},
};

use crate::{
    check::{Checker, ExpectedAnnounce, Fault, Judgement, refused},
    clock::{Clock, SECOND, nanoseconds},
    config::{Config, Origin},
    engine::{Client, NextRequest},
    frames::{Frames, Route},
    population::{Hashes, Request},
    stats::{Kind, Purpose, Recorder, Sending},
};

/// Datagrams per system call.
const BATCH: usize = 32;

/// The longest request: a scrape of 74 info hashes.
const LONGEST_REQUEST: usize = 1496;

/// The wait of a worker before it tries an address without a tracker again.
const REFUSED_PAUSE: u64 = SECOND / 100;

/// The number of the latest lost requests that a worker remembers, to recognize their late answers.
const REMEMBERED: usize = 1024;

/// A client of a UDP tracker.
#[derive(Debug)]
pub(crate) struct UdpClient {
    socket: UdpSocket,
    /// The way of frames, known from the first received frame.
    route: Option<Route>,
    family: Family,
    /// The address that the tracker must see, if it is on this machine.
    own: Option<std::net::IpAddr>,
    want: Option<u32>,
    timeout: u64,
    /// The age from which on a connection id is not used. The next one is requested a little before.
    lifetime: u64,
    connection: Option<(ConnectionId, u64)>,
    connecting: u32,
    window: usize,
    in_flight: usize,
    /// The requests in flight, each at the place of its number. There are twice as many places as in the
    /// window, so that one is always free.
    flights: Box<[Flight]>,
    /// The number of the next request. Transaction ids are scrambled numbers, so that the id of an answer
    /// shows whether its request was sent.
    next: u32,
    first: u32,
    lost: VecDeque<u32>,
    /// Peers with a lost first announce.
    lost_fill: Vec<u64>,
    not_before: u64,
}

#[derive(Debug, Clone, Copy)]
struct Flight {
    /// Whether there is a request.
    busy: bool,
    number: u32,
    sending: Sending,
    expected: Expected,
}

#[derive(Debug, Clone, Copy)]
enum Expected {
    Connect,
    Announce(ExpectedAnnounce),
    Scrape(u8),
}

/// The buffers that the clients of a thread share.
pub(crate) struct UdpBuffers {
    checker: Checker,
    frames: Option<Frames>,
    out: Box<[[u8; LONGEST_REQUEST]; BATCH]>,
    out_len: [usize; BATCH],
    out_number: [u32; BATCH],
    queued: usize,
    inn: Vec<Vec<u8>>,
    send_headers: MultiHeaders<()>,
    receive_headers: MultiHeaders<()>,
}

impl UdpClient {
    fn slot(&self, number: u32) -> usize {
        number as usize & (self.flights.len() - 1)
    }

    /// Removes the request with this number, if it is in flight.
    fn land(&mut self, number: u32) -> Option<Flight> {
        let slot = self.slot(number);
        let flight = &mut self.flights[slot];
        if !flight.busy || flight.number != number {
            return None;
        }
        flight.busy = false;
        let flight = *flight;
        self.in_flight -= 1;
        if matches!(flight.expected, Expected::Connect) {
            self.connecting -= 1;
        }
        Some(flight)
    }

    /// Gives up on a request.
    fn lose(&mut self, number: u32, reason: &str, now: u64, recorder: &mut Recorder) {
        let Some(flight) = self.land(number) else { return };
        recorder.failed(&flight.sending, reason, now);
        if let Purpose::Fill(n) = flight.sending.purpose {
            self.lost_fill.push(n);
        }
        if self.lost.len() == REMEMBERED {
            self.lost.pop_front();
        }
        self.lost.push_back(number);
    }

    fn lose_all(&mut self, reason: &str, now: u64, recorder: &mut Recorder) {
        for slot in 0..self.flights.len() {
            let Flight { busy, number, .. } = self.flights[slot];
            if busy {
                self.lose(number, reason, now, recorder);
            }
        }
    }

    /// An error of the socket itself. Over UDP, the call after a request reports that no server listens.
    fn broken(&mut self, error: &io::Error, now: u64, recorder: &mut Recorder) {
        let is_full = error.kind() == ErrorKind::WouldBlock;
        let reason = if is_full { "this machine's send buffer is full".into() } else { in_words(error) };
        self.lose_all(&reason, now, recorder);
        self.connection = None;
        self.not_before = now + REFUSED_PAUSE;
    }

    fn answer(&mut self, packet: &[u8], now: u64, checker: &mut Checker, recorder: &mut Recorder) {
        let bytes = packet.len();
        let response = Response::parse(packet, self.family);
        let transaction = match (&response, packet) {
            (Ok(response), _) => Some(response.transaction_id().0),
            (Err(_), &[_, _, _, _, a, b, c, d, ..]) => Some(u32::from_be_bytes([a, b, c, d])),
            (Err(_), _) => None,
        };
        let number = transaction.map(unscrambled);
        let Some(flight) = number.and_then(|number| self.land(number)) else {
            match number {
                Some(number) if self.is_late(number) => recorder.late(),
                _ => {
                    let wrong = match (response, transaction) {
                        (Err(error), None) => Fault::Malformed(error.to_string()),
                        (_, transaction) => Fault::Transaction(transaction.unwrap_or_default()),
                    };
                    recorder.wrong(None, bytes, &wrong, now);
                }
            }
            return;
        };
        let judged = self.check(&flight, response, now, checker);
        if recorder.judged(&flight.sending, bytes, judged, checker, now)
            && let Purpose::Fill(n) = flight.sending.purpose
        {
            self.lost_fill.push(n);
        }
    }

    fn check(
        &mut self,
        flight: &Flight,
        response: Result<Response<'_>, ProtocolError>,
        now: u64,
        checker: &mut Checker,
    ) -> Judgement {
        let response = response.map_err(|error| Fault::Malformed(error.to_string()))?;
        Ok(Ok(match (flight.expected, response) {
            (_, Response::Error(error)) => {
                if error.is_about_the_connection() {
                    self.connection = None;
                }
                return refused(error.message);
            }
            (Expected::Connect, Response::Connect(connect)) => {
                // Its age counts from the request, not from the answer: the tracker may have made it then.
                self.connection = Some((connect.connection_id, flight.sending.sent.min(now)));
                0
            }
            (Expected::Announce(asked), Response::Announce(announce)) => {
                let head = announce.header;
                checker.announce(asked, (head.interval, head.seeders, head.leechers), announce.peers())?
            }
            (Expected::Scrape(asked), Response::Scrape(scrape)) => {
                checker.scrape(asked.into(), scrape.swarms().map(|swarm| (swarm.seeders, swarm.leechers)))?;
                0
            }
            (_, response) => {
                let answered = match response {
                    Response::Connect(_) => "connect",
                    Response::Announce(_) => "announce",
                    Response::Scrape(_) => "scrape",
                    Response::Error(_) => "error",
                };
                return Err(Fault::Action { asked: flight.sending.kind.name(), answered });
            }
        }))
    }

    /// Whether the request with this number was sent and given up.
    fn is_late(&mut self, number: u32) -> bool {
        match self.lost.iter().position(|&lost| lost == number) {
            Some(at) => {
                self.lost.remove(at);
                true
            }
            // Perhaps it was lost long ago and is forgotten: the tracker gets the benefit of the doubt.
            None => {
                let was_sent = number.wrapping_sub(self.first) < self.next.wrapping_sub(self.first);
                was_sent && self.lost.len() == REMEMBERED
            }
        }
    }
}

impl Client for UdpClient {
    type Shared = UdpBuffers;

    const EVENTS: EpollFlags = EpollFlags::EPOLLIN;

    fn open(config: &Config, origin: &Origin, worker: usize) -> io::Result<Self> {
        let target = origin.target.address();
        let socket = UdpSocket::bind((origin.source, 0))?;
        socket.connect(target)?;
        socket.set_nonblocking(true)?;
        // Room for the answers to a whole window.
        let window = config.window();
        socket2::SockRef::from(&socket).set_recv_buffer_size((window * 4096).max(1 << 18))?;
        let places = (window.max(FILL_WINDOW) * 2).next_power_of_two();
        let nothing = Sending { kind: Kind::Connect, intended: 0, sent: 0, purpose: Purpose::WarmUp };
        let flight = Flight { busy: false, number: 0, sending: nothing, expected: Expected::Connect };
        let first = (worker as u32).wrapping_mul(0x0100_0193).wrapping_add(config.seed as u32);
        let local = socket.local_addr()?.ip().to_canonical();
        let family = if matches!(target, SocketAddr::V4(_)) { Family::V4 } else { Family::V6 };
        Ok(Self {
            socket,
            route: None,
            family,
            own: target.ip().to_canonical().is_loopback().then_some(local),
            want: config.want,
            timeout: nanoseconds(config.timeout),
            lifetime: nanoseconds(config.connection_lifetime),
            connection: None,
            connecting: 0,
            window,
            in_flight: 0,
            flights: vec![flight; places].into(),
            next: first,
            first,
            lost: VecDeque::with_capacity(REMEMBERED),
            lost_fill: Vec::new(),
            not_before: 0,
        })
    }

    fn shared(config: &Config, frames: Option<Frames>) -> UdpBuffers {
        // An answer with more than the requested peers is cut off here, and wrong.
        let longest = 64 + 18 * config.want.map_or(250, |want| want as usize + 1);
        UdpBuffers {
            checker: Checker::new(config),
            frames,
            out: Box::new([[0; _]; BATCH]),
            out_len: [0; _],
            out_number: [0; _],
            queued: 0,
            inn: vec![vec![0; longest.max(2048)]; BATCH],
            send_headers: MultiHeaders::preallocate(BATCH, None),
            receive_headers: MultiHeaders::preallocate(BATCH, None),
        }
    }

    fn frames(shared: &mut UdpBuffers) -> Option<&mut Frames> {
        shared.frames.as_mut()
    }

    fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn room(&self, now: u64, filling: bool) -> usize {
        let window = if filling { self.window.max(FILL_WINDOW) } else { self.window };
        if now < self.not_before { 0 } else { window.saturating_sub(self.in_flight) }
    }

    fn next_request(&self, now: u64) -> NextRequest {
        let age = self.connection.map(|(_, since)| now.saturating_sub(since));
        match age {
            Some(age) if age < self.lifetime - self.lifetime / 24 => NextRequest::Anything,
            _ if self.connecting == 0 => NextRequest::Connect,
            // The next id was requested, and this one is still good.
            Some(age) if age < self.lifetime => NextRequest::Anything,
            _ => NextRequest::Wait,
        }
    }

    fn is_connected(&self) -> bool {
        self.connection.is_some()
    }

    fn push(&mut self, shared: &mut UdpBuffers, request: &Request, hashes: &Hashes, sending: Sending) {
        while self.flights[self.slot(self.next)].busy {
            self.next = self.next.wrapping_add(1);
        }
        let number = self.next;
        self.next = number.wrapping_add(1);
        let transaction_id = TransactionId(scrambled(number));
        let connection_id = self.connection.map_or(ConnectionId(0), |(id, _)| id);
        let out = &mut shared.out[shared.queued];
        let (len, expected) = match request {
            Request::Connect => {
                out[..ConnectRequest::LEN].copy_from_slice(&ConnectRequest { transaction_id }.to_bytes());
                self.connecting += 1;
                (ConnectRequest::LEN, Expected::Connect)
            }
            Request::Announce(announcing) => {
                let (info_hash, peer_id, port) = (announcing.info_hash, announcing.peer_id, announcing.port);
                let request = AnnounceRequest {
                    transaction_id,
                    downloaded: announcing.downloaded,
                    left: announcing.left,
                    uploaded: announcing.uploaded,
                    event: announcing.event,
                    key: port.into(),
                    want: self.want,
                    ..AnnounceRequest::new(connection_id, info_hash, peer_id, port)
                };
                let asked = ExpectedAnnounce::of(announcing, self.own, sending.kind);
                (request.write(out), Expected::Announce(asked))
            }
            Request::Scrape => {
                let len = ScrapeRequest::new(connection_id, transaction_id, hashes).write(out);
                (len, Expected::Scrape(hashes.len() as u8))
            }
        };
        let slot = self.slot(number);
        self.flights[slot] = Flight { busy: true, number, sending, expected };
        self.in_flight += 1;
        (shared.out_len[shared.queued], shared.out_number[shared.queued]) = (len, number);
        shared.queued += 1;
    }

    fn is_full(shared: &UdpBuffers) -> bool {
        shared.queued == BATCH
    }

    fn flush(&mut self, shared: &mut UdpBuffers, clock: &Clock, recorder: &mut Recorder) {
        let queued = std::mem::take(&mut shared.queued);
        if queued == 0 {
            return;
        }
        let now = clock.now();
        for n in 0..queued {
            let slot = self.slot(shared.out_number[n]);
            let sending = &mut self.flights[slot].sending;
            recorder.sent(sending, shared.out_len[n], now);
        }
        let mut sent = 0;
        if let (Some(frames), Some(route)) = (&mut shared.frames, &self.route) {
            while sent < queued && frames.send(route, &shared.out[sent][..shared.out_len[sent]]) {
                sent += 1;
            }
        }
        // A full socket is soon empty again: loopback queues nothing here, a network card not for long.
        let mut patience = 100;
        while sent < queued {
            let done = if queued - sent == 1 {
                self.socket.send(&shared.out[sent][..shared.out_len[sent]]).map(|_| 1)
            } else {
                let slices: [[IoSlice<'_>; 1]; BATCH] = std::array::from_fn(|n| {
                    let len = if n < queued { shared.out_len[n] } else { 0 };
                    [IoSlice::new(&shared.out[n][..len])]
                });
                let headers = &mut shared.send_headers;
                let addresses = [None::<()>; BATCH];
                sendmmsg(
                    self.socket.as_raw_fd(),
                    headers,
                    &slices[sent..queued],
                    addresses,
                    [],
                    MsgFlags::empty(),
                )
                .map(Iterator::count)
                .map_err(io::Error::from)
            };
            match done {
                Ok(done) => sent += done,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && patience > 0 => {
                    patience -= 1;
                    std::thread::yield_now();
                }
                // The error is about an earlier datagram, and these have not been sent.
                Err(error) => return self.broken(&error, now, recorder),
            }
        }
    }

    fn receive(&mut self, shared: &mut UdpBuffers, clock: &Clock, recorder: &mut Recorder) {
        let UdpBuffers { checker, frames, inn, receive_headers, .. } = shared;
        if let Some(frames) = frames
            && frames.read(clock, |route, answer, now| {
                self.route = Some(route);
                self.answer(answer, now, checker, recorder);
            })
        {
            return;
        }
        let mut lens = [(0, false); BATCH];
        loop {
            let received = if self.in_flight <= 1 {
                self.socket.recv(&mut inn[0]).map(|len| {
                    // A full buffer may mean that the rest was cut off.
                    lens[0] = (len, len == inn[0].len());
                    1
                })
            } else {
                let mut slices = inn.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]);
                let mut slices: [_; BATCH] = std::array::from_fn(|_| slices.next().expect("as many buffers"));
                recvmmsg(self.socket.as_raw_fd(), receive_headers, &mut slices, MsgFlags::MSG_DONTWAIT, None)
                    .map(|messages| {
                        let cut = |flags: MsgFlags| flags.contains(MsgFlags::MSG_TRUNC);
                        let all = messages.zip(&mut lens);
                        all.map(|(message, len)| *len = (message.bytes, cut(message.flags))).count()
                    })
                    .map_err(|error: Errno| error.into())
            };
            let now = clock.now();
            match received {
                Ok(received) => {
                    for (buffer, &(len, cut)) in inn.iter().zip(&lens).take(received) {
                        if cut {
                            let wrong = Fault::Malformed(format!("longer than {} bytes", buffer.len()));
                            let number =
                                unscrambled(u32::from_be_bytes([buffer[4], buffer[5], buffer[6], buffer[7]]));
                            let flight = self.land(number);
                            recorder.wrong(flight.map(|flight| flight.sending).as_ref(), len, &wrong, now);
                        } else {
                            self.answer(&buffer[..len], now, checker, recorder);
                        }
                    }
                    // The poller wakes if there is more.
                    if self.in_flight == 0 || received < BATCH {
                        return;
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return,
                    ErrorKind::Interrupted => {}
                    _ => return self.broken(&error, now, recorder),
                },
            }
        }
    }

    fn expire(&mut self, now: u64, recorder: &mut Recorder) {
        if self.in_flight == 0 {
            return;
        }
        for slot in 0..self.flights.len() {
            let Flight { busy, number, sending, .. } = self.flights[slot];
            if busy && now >= sending.sent.saturating_add(self.timeout) {
                self.lose(number, "timeout", now, recorder);
            }
        }
    }

    fn take_lost_fill(&mut self) -> std::vec::Drain<'_, u64> {
        self.lost_fill.drain(..)
    }
}

/// Requests that a worker may have in flight while the tracker is filled; the engine bounds those of all
/// workers together.
const FILL_WINDOW: usize = 32;

/// An odd factor has an inverse modulo 2³², so two numbers never have the same transaction id.
const ODD: u32 = 0x9e37_79b1;

const INVERSE: u32 = {
    // Newton's iteration doubles the right bits each time, from three.
    let (mut inverse, mut round) = (ODD, 0);
    while round < 4 {
        inverse = inverse.wrapping_mul(2_u32.wrapping_sub(ODD.wrapping_mul(inverse)));
        round += 1;
    }
    inverse
};

const fn scrambled(number: u32) -> u32 {
    number.wrapping_mul(ODD)
}

const fn unscrambled(transaction_id: u32) -> u32 {
    transaction_id.wrapping_mul(INVERSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transaction_ids_can_be_read_back() {
        for number in (0..u32::MAX).step_by(65_537).chain([u32::MAX]) {
            assert_eq!(unscrambled(scrambled(number)), number);
        }
    }
}
