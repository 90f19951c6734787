//! A client over UDP.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Instant,
};

use swarmkeep::{AnnounceEvent, Endpoint, Family, InfoHash, PeerId};
use swarmkeep_store_tests::A_MINUTE;
use swarmkeep_tracker_protocol::udp::{
    self, AnnounceRequest, AnnounceResponseHeader, ConnectRequest, ConnectionId, Response, ScrapeRequest,
    ScrapeStats, TransactionId,
};

/// The swarm of [`announce`].
pub const HASH: InfoHash = InfoHash::new([0xaa; 20]);

/// A connect request (BEP 15).
pub const CONNECT: [u8; 16] = [0, 0, 4, 0x17, 0x27, 0x10, 0x19, 0x80, 0, 0, 0, 0, 0, 0, 0, 7];

/// A client. Each answer must be in time, and within the bounds of datagrams.
#[derive(Debug)]
pub struct Client {
    /// Connected to the tracker.
    pub socket: UdpSocket,
    /// Knows its connection id.
    pub protocol: udp::Client,
    longest: usize,
    transaction_id: u32,
}

impl Client {
    /// At the tracker's own address.
    pub fn of(tracker: SocketAddr) -> Self {
        Self::at(tracker.ip(), tracker)
    }

    /// At an address of this machine.
    pub fn at(address: IpAddr, tracker: SocketAddr) -> Self {
        let socket = UdpSocket::bind((address, 0)).expect("loopback");
        socket.connect(tracker).expect("loopback");
        socket.set_read_timeout(Some(A_MINUTE)).expect("above zero");
        let (family, longest) = if address.is_ipv4() { (Family::V4, 1452) } else { (Family::V6, 1200) };
        Self { socket, protocol: udp::Client::new(family), longest, transaction_id: 0 }
    }

    /// Also returns a connection id.
    pub fn connected(mut self) -> (Self, ConnectionId) {
        let id = self.connect();
        (self, id)
    }

    /// Sends a packet as it is.
    pub fn send(&self, packet: &[u8]) {
        assert_eq!(self.socket.send(packet).expect("it fits"), packet.len());
    }

    /// The next answer.
    pub fn receive(&self) -> Vec<u8> {
        self.received().expect("an answer within a minute")
    }

    fn received(&self) -> io::Result<Vec<u8>> {
        let mut packet = vec![0; 2048];
        let len = uninterrupted(|| self.socket.recv(&mut packet))?;
        assert!(len <= self.longest, "{len} bytes");
        packet.truncate(len);
        Ok(packet)
    }

    /// The response to a request, which is sent again after each read timeout of the socket.
    fn ask<T>(
        &mut self,
        packet: impl FnOnce(TransactionId) -> Vec<u8>,
        read: impl FnOnce(Response<'_>) -> Option<T>,
    ) -> T {
        self.transaction_id += 1;
        let (packet, asked) = (packet(TransactionId(self.transaction_id)), Instant::now());
        loop {
            self.send(&packet);
            let answer = match self.received() {
                Err(error) if error.kind() == ErrorKind::WouldBlock && asked.elapsed() < A_MINUTE => continue,
                answer => answer.expect("an answer within a minute"),
            };
            match self.protocol.answer(&packet, &answer, Instant::now()).expect("a response") {
                Some(response) => return read(response).unwrap_or_else(|| panic!("{response:?}")),
                // A request that was sent twice may be answered twice.
                None => assert!(answer[4..8] < packet[12..16], "{answer:?}"),
            }
        }
    }

    /// The latest connection id, or the next if that is too old.
    pub fn connection_id(&mut self) -> ConnectionId {
        self.protocol.connection_id(Instant::now()).unwrap_or_else(|| self.connect())
    }

    /// A new connection id.
    pub fn connect(&mut self) -> ConnectionId {
        let packet = |transaction_id| ConnectRequest { transaction_id }.to_bytes().to_vec();
        self.ask(packet, |response| matches!(response, Response::Connect(_)).then_some(()));
        self.protocol.connection_id(Instant::now()).expect("that response")
    }

    /// Announces.
    pub fn try_announce(&mut self, request: AnnounceRequest<'_>) -> Announced {
        let packet = |transaction_id| AnnounceRequest { transaction_id, ..request }.to_vec();
        self.ask(packet, |response| Some(announced(response)))
    }

    /// Announces. Returns counts and peers.
    pub fn announce(&mut self, request: AnnounceRequest<'_>) -> (AnnounceResponseHeader, Vec<Endpoint>) {
        self.try_announce(request).expect("no error")
    }

    /// The error of a refused announce.
    pub fn refusal(&mut self, request: AnnounceRequest<'_>) -> String {
        self.try_announce(request).expect_err("an error")
    }

    /// Scrapes. Returns counts.
    pub fn scrape(&mut self, connection_id: ConnectionId, hashes: &[[u8; 20]]) -> Vec<ScrapeStats> {
        let packet = |transaction_id| ScrapeRequest::new(connection_id, transaction_id, hashes).to_vec();
        self.ask(packet, |response| match response {
            Response::Scrape(response) => Some(response.swarms().collect()),
            _ => None,
        })
    }
}

/// The counts and peers of an answer to an announce, or the text of an error.
pub type Announced = Result<(AnnounceResponseHeader, Vec<Endpoint>), String>;

/// Reads an answer to an announce.
pub fn announced(response: Response<'_>) -> Announced {
    match response {
        Response::Announce(response) => {
            Ok((response.header, response.peers().map(|peer| peer.expect("no peer at port 0")).collect()))
        }
        Response::Error(error) => Err(String::from_utf8(error.message.to_vec()).expect("text")),
        other => panic!("{other:?}"),
    }
}

/// The text of an error response.
pub fn error_in(answer: &[u8]) -> String {
    announced(Response::parse(answer, Family::V4).expect("a response")).expect_err("an error")
}

/// Whether a tracker accepts an announce with this connection id.
pub fn accepts(tracker: SocketAddr, id: ConnectionId) -> bool {
    let answer = Client::of(tracker).try_announce(announce(id));
    assert!(answer.as_ref().err().is_none_or(|error| error == "invalid connection id"), "{answer:?}");
    answer.is_ok()
}

/// The first announce of a leecher.
pub const fn announce(connection_id: ConnectionId) -> AnnounceRequest<'static> {
    let new = AnnounceRequest::new(connection_id, HASH, PeerId::new([1; 20]), 6881);
    AnnounceRequest { left: 1, event: AnnounceEvent::Started, ..new }
}

/// Repeats a call that was interrupted. A wait with a timeout is interrupted when the whole machine stops for
/// a moment (signal(7)).
pub fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            came => return came,
        }
    }
}
