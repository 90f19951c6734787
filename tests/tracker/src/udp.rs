//! A client over UDP.

use std::{
    io::{self, ErrorKind},
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Instant,
};

use swarmkeep::{AnnounceEvent, Endpoint, Family, InfoHash, PeerId};
use swarmkeep_store_tests::A_MINUTE;
use swarmkeep_tracker_protocol::udp::{
    AnnounceRequest, AnnounceResponseHeader, ConnectRequest, ConnectionId, Response, ScrapeRequest,
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
    family: Family,
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
        let family = if address.is_ipv4() { Family::V4 } else { Family::V6 };
        Self { socket, family, transaction_id: 0 }
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
        let longest = if self.family == Family::V4 { 1452 } else { 1200 };
        assert!(len <= longest, "{len} bytes");
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
            let response = Response::parse(&answer, self.family).expect("a response");
            // A request that was sent twice may be answered twice.
            if response.transaction_id().0 == self.transaction_id {
                return read(response).unwrap_or_else(|| panic!("{response:?}"));
            }
            assert!(response.transaction_id().0 < self.transaction_id, "{response:?}");
        }
    }

    /// The error of a refused announce.
    pub fn refusal(&mut self, request: AnnounceRequest<'_>) -> String {
        self.send(&request.to_vec());
        error_in(&self.receive())
    }

    /// A connection id.
    pub fn connect(&mut self) -> ConnectionId {
        let packet = |transaction_id| ConnectRequest { transaction_id }.to_bytes().to_vec();
        self.ask(packet, |response| match response {
            Response::Connect(response) => Some(response.connection_id),
            _ => None,
        })
    }

    /// Announces. Returns counts and peers.
    pub fn announce(&mut self, request: AnnounceRequest<'_>) -> (AnnounceResponseHeader, Vec<Endpoint>) {
        let packet = |transaction_id| AnnounceRequest { transaction_id, ..request }.to_vec();
        self.ask(packet, |response| match response {
            Response::Announce(response) => {
                let peers = response.peers().map(|peer| peer.expect("no peer at port 0"));
                Some((response.header, peers.collect()))
            }
            _ => None,
        })
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

/// The text of an error response.
pub fn error_in(answer: &[u8]) -> String {
    match Response::parse(answer, Family::V4) {
        Ok(Response::Error(error)) => String::from_utf8(error.message.to_vec()).expect("text"),
        other => panic!("{other:?}"),
    }
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
