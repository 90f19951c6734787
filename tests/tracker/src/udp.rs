//! A client over UDP.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket},
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

/// The other end. What it gets must be in time, and within the bounds of datagrams.
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
    pub fn receive(&mut self) -> Vec<u8> {
        let mut packet = vec![0; 2048];
        let len = uninterrupted(|| self.socket.recv(&mut packet)).expect("an answer within a minute");
        let longest = if self.family == Family::V4 { 1452 } else { 1200 };
        assert!(len <= longest, "{len} bytes");
        packet.truncate(len);
        packet
    }

    /// What an announce is refused with.
    pub fn refusal(&mut self, request: AnnounceRequest<'_>) -> String {
        self.send(&bytes_of(request));
        error_in(&self.receive())
    }

    fn next_transaction(&mut self) -> TransactionId {
        self.transaction_id += 1;
        TransactionId(self.transaction_id)
    }

    /// A connection id.
    pub fn connect(&mut self) -> ConnectionId {
        let transaction_id = self.next_transaction();
        let mut packet = [0; ConnectRequest::LEN];
        ConnectRequest { transaction_id }.write(&mut packet);
        self.send(&packet);
        let answer = self.receive();
        assert!(answer.len() <= packet.len());
        match Response::parse(&answer, self.family) {
            Ok(Response::Connect(response)) if response.transaction_id == transaction_id => {
                response.connection_id
            }
            other => panic!("{other:?}"),
        }
    }

    /// Announces; counts and peers.
    pub fn announce(&mut self, request: AnnounceRequest<'_>) -> (AnnounceResponseHeader, Vec<Endpoint>) {
        let transaction_id = self.next_transaction();
        self.send(&bytes_of(AnnounceRequest { transaction_id, ..request }));
        let answer = self.receive();
        match Response::parse(&answer, self.family) {
            Ok(Response::Announce(response)) if response.header.transaction_id == transaction_id => {
                (response.header, response.peers().map(|peer| peer.expect("no peer at port 0")).collect())
            }
            other => panic!("{other:?}"),
        }
    }

    /// Counts.
    pub fn scrape(&mut self, connection_id: ConnectionId, hashes: &[[u8; 20]]) -> Vec<ScrapeStats> {
        let transaction_id = self.next_transaction();
        let mut packet = vec![0; 16 + hashes.len() * 20];
        ScrapeRequest::new(connection_id, transaction_id, hashes).write(&mut packet);
        self.send(&packet);
        let answer = self.receive();
        match Response::parse(&answer, self.family) {
            Ok(Response::Scrape(response)) if response.transaction_id == transaction_id => {
                response.swarms().collect()
            }
            other => panic!("{other:?}"),
        }
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
    AnnounceRequest {
        connection_id,
        transaction_id: TransactionId(0),
        info_hash: HASH,
        peer_id: PeerId::new([1; 20]),
        downloaded: 0,
        left: 1,
        uploaded: 0,
        event: AnnounceEvent::Started,
        ip: Ipv4Addr::UNSPECIFIED,
        key: 0,
        want: None,
        port: 6881,
        unread: swarmkeep_tracker_protocol::Fields::NONE,
        trailing: &[],
    }
}

/// The packet of an announce.
pub fn bytes_of(request: AnnounceRequest<'_>) -> Vec<u8> {
    let mut packet = vec![0; AnnounceRequest::LEN + request.trailing.len()];
    request.write(&mut packet);
    packet
}

/// Calls again what was interrupted: a wait with an end is when the whole machine was stopped for a moment
/// (signal(7)).
pub fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            came => return came,
        }
    }
}
