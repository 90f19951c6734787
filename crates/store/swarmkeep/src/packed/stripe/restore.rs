//! Taking in what a snapshot holds.

use super::{At, Call, Stripe, evict::Full};
use crate::{
    PeerRecord, Restored,
    packed::{bounds::MOST_GROWTH, leaf::slot::Held, room::Room},
    report::NotRestored,
};

impl Stripe {
    /// Puts a swarm back, with some of its peers, as far as there is room.
    pub(in crate::packed) fn restore(
        &mut self,
        call: &Call<'_>,
        peers: &[PeerRecord],
        downloaded: u32,
        room: &mut Room<'_>,
        restored: &mut Restored,
    ) {
        let mut at = None;
        // Peer by peer, and once more for the download count.
        for peer in peers.iter().map(Some).chain((downloaded > 0).then_some(None)) {
            // What was is worth less than what is: nothing goes to make room for it.
            if room.reserve(MOST_GROWTH) && at.is_none() {
                at = self.admit(call, room).map(|(at, _)| at);
            }
            match (at.filter(|_| room.has_reserved(MOST_GROWTH)), peer) {
                (Some(at), Some(peer)) => restored.count(self.restore_peer(call, at, peer, room)),
                (None, Some(_)) => restored.count(Err(NotRestored::Full)),
                (Some(at), None) => self.change_downloaded(at, |current| current.max(downloaded)),
                (None, None) => {}
            }
            self.settle(room);
        }
    }

    fn restore_peer(
        &mut self,
        call: &Call<'_>,
        at: At,
        peer: &PeerRecord,
        room: &mut Room<'_>,
    ) -> Result<(), NotRestored> {
        let (family, tick) = (peer.endpoint.family(), call.shared.clock.tick(peer.last_announce));
        let full = self.population(at).peers() >= call.shared.most.peers_per_swarm;
        if let Held::Large(number) = self.held(at) {
            let most = call.shared.most;
            self.changing_large(number, |large| {
                large.restore(&call.shared.hash, peer, tick, call.now, most)
            })?;
        } else {
            if self.leaves[at.leaf].locate(at.slot, family, peer.endpoint.as_bytes()).is_some() {
                return Err(NotRestored::Known);
            }
            let most = call.shared.most.endpoints_per_address;
            if full || self.leaves[at.leaf].rival(at.slot, &peer.endpoint, most).is_some() {
                return Err(NotRestored::Full);
            }
            if self.add(call, at, peer.role, &peer.endpoint, tick).is_none() {
                return self.restore_peer(call, at, peer, room);
            }
            self.leaves[at.leaf].set_proven(at.slot);
        }
        room.count_peer(family, peer.role);
        Ok(())
    }

    /// Adds downloads that were counted earlier; whether there is such a swarm. `Err` if there is no room;
    /// nothing has changed then.
    pub(in crate::packed) fn add_downloads(
        &mut self,
        call: &Call<'_>,
        earlier: u32,
        room: &mut Room<'_>,
    ) -> Result<bool, Full> {
        if self.find(call).is_some() {
            self.make_room(call, room)?;
        }
        let at = self.find(call);
        Ok(at.inspect(|&at| self.change_downloaded(at, |now| now.saturating_add(earlier))).is_some())
    }
}
