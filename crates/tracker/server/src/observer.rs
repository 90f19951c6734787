//! Observation of members' announces.

use std::fmt;

use swarmkeep::{Announce, AnnounceEvent, Endpoint, InfoHash, PeerId, Timestamp};
use swarmkeep_tracker_protocol::Field;

use crate::{Rules, clock::today};

/// Receives each announce of a member, such as to sum up uploads and downloads per member.
pub trait Observer: fmt::Debug + Send + Sync {
    /// The rules have accepted the announce of a member; the store may still be out of reach. Threads that
    /// answer requests call this before they answer, several at once: it must not wait.
    fn announced(&self, announce: MemberAnnounce);

    /// The number of announces that were lost here, for the metrics.
    fn dropped(&self) -> u64 {
        0
    }
}

/// An announce of a member.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemberAnnounce {
    /// When it was received, by the machine's clock.
    pub time: Timestamp,
    /// The name of the member, or the fingerprint of a passkey without a name: the first 16 hexadecimal
    /// digits of the SHA-256 of `swarmkeep passkey `, with a blank at its end, and the passkey.
    pub member: String,
    /// The peer id of the client.
    pub peer_id: PeerId,
    /// The torrent.
    pub info_hash: InfoHash,
    /// The bytes that the client says it has uploaded; `None` if it does not say, or not readably.
    pub uploaded: Option<u64>,
    /// The bytes that the client says it has downloaded, likewise.
    pub downloaded: Option<u64>,
    /// The bytes that the client says it lacks, likewise.
    pub left: Option<u64>,
    /// The event.
    pub event: AnnounceEvent,
    /// The endpoint of the peer.
    pub endpoint: Endpoint,
}

impl Rules {
    /// Passes the announce of a member to the observer. `is_read` is whether a field was given and could be
    /// read.
    pub(crate) fn observe(
        &self,
        member: Option<String>,
        announce: &Announce,
        is_read: impl Fn(Field) -> bool,
    ) {
        let (Some(observer), Some(member)) = (&self.observer, member) else { return };
        let &Announce { peer_id, info_hash, event, endpoint, .. } = announce;
        let read = |field, number| is_read(field).then_some(number);
        observer.announced(MemberAnnounce {
            time: today(),
            member,
            peer_id,
            info_hash,
            uploaded: read(Field::Uploaded, announce.uploaded),
            downloaded: read(Field::Downloaded, announce.downloaded),
            left: read(Field::Left, announce.left),
            event,
            endpoint,
        });
    }
}
