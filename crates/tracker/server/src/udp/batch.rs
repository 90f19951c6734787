//! Requests that are received together, and their answers.

use std::{
    fmt,
    net::{IpAddr, SocketAddr},
    time::Instant,
};

use arrayvec::ArrayVec;
use swarmkeep::Announce;
use swarmkeep_tracker_protocol::udp::TransactionId;

use super::{front::Listener, socket::LocalAddress};
use crate::Reach;

/// The longest answer over IPv4 in bytes. A link of 1,492 bytes (PPPoE) carries it whole, with space for a
/// tunnel.
pub const LONGEST_ANSWER_V4: usize = 1452;

/// The longest answer over IPv6 in bytes. It is below the 1,280 bytes that every link carries whole (RFC
/// 8200).
pub const LONGEST_ANSWER_V6: usize = 1200;

/// A buffer for any answer.
pub type AnswerBuffer = [u8; LONGEST_ANSWER_V4];

/// Requests that are received together, and their answers: the input and output of a
/// [`Handler`](super::Handler). The buffers of a batch take 110 KiB and are used again.
pub struct Batch {
    pub(super) packets: Box<[PacketBuffer; Batch::MOST]>,
    pub(super) answers: Box<[AnswerBuffer; Batch::MOST]>,
    pub(super) received: ArrayVec<ReceivedRequest, { Batch::MOST }>,
    /// The listener that received them.
    pub(super) listener: Listener,
    /// The time at which the first of them was received.
    pub(super) since: Instant,
}

pub(super) type PacketBuffer = [u8; Batch::LONGEST_REQUEST];

/// One request. Its bytes and its answer are at the same place in [`Batch::packets`] and [`Batch::answers`].
pub(super) struct ReceivedRequest {
    pub(super) source: SocketAddr,
    /// The destination address, if the socket has several.
    pub(super) asked: Option<LocalAddress>,
    pub(super) len: usize,
    pub(super) state: RequestState,
}

/// A request, and the place of its answer in the memory of a [`Front`](super::front::Front).
pub(crate) struct Exchange<'a> {
    pub(super) source: SocketAddr,
    /// The destination address, if there are several.
    pub(super) asked: Option<LocalAddress>,
    pub(super) listener: Listener,
    /// The time at which the first request of the batch was received.
    pub(super) since: Instant,
    pub(super) packet: &'a [u8],
    pub(super) answer: &'a mut AnswerBuffer,
    pub(super) state: &'a mut RequestState,
}

/// Requests that are received together.
pub(crate) type Exchanges<'a> = ArrayVec<Exchange<'a>, { Batch::MOST }>;

pub(crate) enum RequestState {
    Received,
    /// It gets no answer.
    Ignored,
    /// It is an announce that waits for the store.
    Announce(TransactionId, Announce),
    /// It is a scrape that waits for the store.
    Scrape(TransactionId),
    /// Its answer has this number of bytes.
    Answered(usize),
}

impl RequestState {
    /// Whether the store is needed.
    pub(super) const fn waits(&self) -> bool {
        matches!(self, Self::Announce(..) | Self::Scrape(_))
    }
}

impl Batch {
    /// The most requests per batch. They share the cost of system calls and cache misses, and their buffers
    /// fit into the second-level cache of a core.
    pub const MOST: usize = 32;

    /// The longest request that is read in full. A scrape of 74 info hashes fits, and so does an announce
    /// with options. The rest of a longer datagram is lost; only options can be there.
    pub const LONGEST_REQUEST: usize = 2048;

    /// An empty batch.
    pub fn new() -> Self {
        let listener = Listener { nth: 0, reach: Reach::Public };
        let (received, since) = (ArrayVec::new(), Instant::now());
        Self { packets: zeroed(), answers: zeroed(), received, listener, since }
    }

    /// Adds a request. Bytes after [`LONGEST_REQUEST`](Self::LONGEST_REQUEST) are dropped.
    ///
    /// # Panics
    /// If the batch already contains [`MOST`](Self::MOST) requests.
    pub fn push(&mut self, packet: &[u8], source: SocketAddr) {
        let received = packet.len().min(Self::LONGEST_REQUEST);
        self.packets[self.received.len()][..received].copy_from_slice(&packet[..received]);
        self.count(received, source, None);
    }

    /// Counts the bytes at the next place as a request. An IPv4-mapped source is the IPv4 one.
    pub(super) fn count(&mut self, len: usize, mut source: SocketAddr, asked: Option<LocalAddress>) {
        // An IPv6 source keeps its scope: a link-local address cannot be answered without it.
        if let IpAddr::V4(v4) = source.ip().to_canonical() {
            source.set_ip(v4.into());
        }
        self.received.push(ReceivedRequest { source, asked, len, state: RequestState::Received });
    }

    /// All requests, each with the place of its answer.
    pub(super) fn exchanges(&mut self) -> Exchanges<'_> {
        let Self { packets, answers, received, listener, since } = self;
        let places = received.iter_mut().zip(packets.iter()).zip(answers.iter_mut());
        let exchanges = places.map(|((received, packet), answer)| Exchange {
            source: received.source,
            asked: received.asked,
            listener: *listener,
            since: *since,
            packet: &packet[..received.len],
            answer,
            state: &mut received.state,
        });
        exchanges.collect()
    }

    /// Removes all requests and answers.
    pub fn clear(&mut self) {
        self.received.clear();
    }

    /// Whether no more requests fit.
    pub(super) fn is_full(&self) -> bool {
        self.received.is_full()
    }

    /// Keeps only requests without an answer.
    pub(super) fn forget_answered(&mut self) {
        for received in &mut self.received {
            if let RequestState::Answered(_) = received.state {
                received.state = RequestState::Ignored;
            }
        }
    }

    /// The answers, each with its destination.
    pub fn answers(&self) -> impl Iterator<Item = (&[u8], SocketAddr)> {
        self.answers_from().map(|(answer, to, _)| (answer, to))
    }

    /// The same, with the addresses that they leave from.
    pub(super) fn answers_from(&self) -> impl Iterator<Item = (&[u8], SocketAddr, Option<LocalAddress>)> {
        self.received.iter().zip(self.answers.iter()).filter_map(|(received, answer)| match received.state {
            RequestState::Answered(len) => Some((&answer[..len], received.source, received.asked)),
            _ => None,
        })
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Batch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Batch({} requests)", self.received.len())
    }
}

/// Buffers. The system allocates their pages at the first use.
fn zeroed<const LEN: usize, const COUNT: usize>() -> Box<[[u8; LEN]; COUNT]> {
    vec![[0; LEN]; COUNT].into_boxed_slice().try_into().expect("as many as there are")
}
