//! The meaning of a packet, or the reason why it is refused.

use std::net::SocketAddr;

use arrayvec::ArrayVec;
use swarmkeep::{Announce, Family, Timestamp};
use swarmkeep_tracker_protocol::{
    Field, TrackerUrl,
    http::Escaped,
    udp::{AnnounceOption, AnnounceRequest, ConnectRequest, ConnectResponse, Request, TransactionId},
};

use super::IdsAt;
use crate::{
    Reach,
    metrics::{Counters, Kind},
    refusal::Refusal,
    rules::Rules,
    seldom::log_stranger,
};

/// The parameters that all requests of a batch share.
pub(super) struct BatchContext<'a> {
    pub(super) ids: IdsAt,
    pub(super) rules: &'a Rules,
    pub(super) now: Timestamp,
    pub(super) counters: &'a Counters,
}

impl BatchContext<'_> {
    /// The request in `packet`, if its connection id is valid; otherwise the refusal, if it gets an answer.
    /// `listener` is the reach of the socket that received it.
    pub(super) fn understand(&self, packet: &[u8], source: SocketAddr, listener: Reach) -> PacketOutcome {
        let family = if source.is_ipv4() { Family::V4 } else { Family::V6 };
        let (connection_id, transaction_id, hashes, asked) = match Request::parse(packet) {
            Ok(Request::Connect(ConnectRequest { transaction_id })) => {
                self.counters.request(Kind::Connect, family);
                if self.rules.refuses(source.ip()) {
                    return PacketOutcome::Refused(transaction_id, Refusal::RefusedAddress);
                }
                let connection_id = self.ids.issue(source.ip());
                return PacketOutcome::Connect(ConnectResponse { transaction_id, connection_id });
            }
            Ok(Request::Announce(request)) => {
                self.counters.request(Kind::Announce, family);
                (request.connection_id, request.transaction_id, 0, Some(request))
            }
            Ok(Request::Scrape(request)) => {
                self.counters.request(Kind::Scrape, family);
                (request.connection_id, request.transaction_id, request.info_hashes().len(), None)
            }
            Err(error) => {
                log_stranger!(%source, %error, "ignored");
                return PacketOutcome::Nothing;
            }
        };
        // A network that is refused gets no error either.
        if !self.ids.recognise(connection_id, source.ip()) && !self.rules.refuses(source.ip()) {
            // It does not count for the rate: the address may be forged.
            return PacketOutcome::Refused(transaction_id, Refusal::NotConnected);
        }
        let understood = self.rules.is_in_time(source.ip(), hashes, self.now).and_then(|()| match asked {
            Some(request) => {
                Ok(PacketOutcome::Announce(transaction_id, self.announce_of(&request, source, listener)?))
            }
            None => self.rules.member(None).map(|_| PacketOutcome::Scrape(transaction_id)),
        });
        understood.unwrap_or_else(|refusal| PacketOutcome::Refused(transaction_id, refusal))
    }

    /// The announce of a request. Its peer is at the source address of the packet, whatever the request
    /// claims.
    fn announce_of(
        &self,
        request: &AnnounceRequest<'_>,
        source: SocketAddr,
        listener: Reach,
    ) -> Result<Announce, Refusal> {
        let mut member = None;
        if self.rules.passkeys.is_some() {
            let mut url = ArrayVec::new();
            member = self.rules.member(passkey_of(request, &mut url))?;
        }
        self.rules.is_allowed(&request.info_hash)?;
        let endpoint = self.rules.endpoint(source.ip(), request.port, listener)?;
        self.counters.lenient(request.unread, request.peer_id);
        let announce = Announce::new(request.info_hash, endpoint)
            .event(request.event)
            .left(request.left)
            .transferred(request.downloaded, request.uploaded)
            .peer_id(request.peer_id)
            .want(self.rules.want(request.want))
            .seeders_too(self.rules.may_have_a_link(request.event, request.downloaded));
        let is_unread = |field: Field| request.unread.iter().any(|unread| unread == field);
        self.rules.observe(member, &announce, |field| !is_unread(field));
        Ok(announce)
    }
}

pub(super) enum PacketOutcome {
    Connect(ConnectResponse),
    Announce(TransactionId, Announce),
    Scrape(TransactionId),
    Refused(TransactionId, Refusal),
    Nothing,
}

/// The longest path and query that are looked at, and the longest that one option holds. libtorrent sends
/// one.
const LONGEST_URL: usize = 255;

/// The passkey in the URL that an announce names (BEP 41), which is put together in `url`.
fn passkey_of<'a>(
    request: &AnnounceRequest<'_>,
    url: &'a mut ArrayVec<u8, LONGEST_URL>,
) -> Option<Escaped<'a>> {
    for option in request.options() {
        if let AnnounceOption::UrlData(more) = option {
            let room = url.remaining_capacity().min(more.len());
            url.try_extend_from_slice(&more[..room]).expect("no more than there is room for");
        }
    }
    let mut parts = url.splitn(2, |&byte| byte == b'?');
    TrackerUrl::new(parts.next()?, parts.next().unwrap_or_default()).passkey
}
