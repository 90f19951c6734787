//! Restoring swarms from a snapshot.

use super::{Operation, Shard, SwarmLocation};
use crate::{
    PeerRecord, Restored,
    packed::{
        bounds::MAX_GROWTH,
        leaf::slot::SlotContent,
        reservation::{NoRoom, Reservation},
    },
    report::NotRestored,
    totals::Population,
};

impl Shard {
    /// Restores a swarm with some of its peers, as far as there is room.
    pub(in crate::packed) fn restore(
        &mut self,
        op: &Operation<'_>,
        peers: &[PeerRecord],
        downloaded: u32,
        reservation: &mut Reservation<'_>,
        restored: &mut Restored,
    ) {
        let mut at = None;
        // Each peer, and once more for the download count.
        for peer in peers.iter().map(Some).chain((downloaded > 0).then_some(None)) {
            // Restored state is worth less than current state: nothing is evicted for it.
            let has_room = reservation.reserve(MAX_GROWTH);
            if has_room && at.is_none() {
                at = self.admit(op, reservation).ok().map(|(at, _)| at);
            }
            match (at.filter(|_| has_room), peer) {
                (Some(at), Some(peer)) => restored.count(self.restore_peer(op, at, peer, reservation)),
                (None, Some(_)) => restored.count(Err(NotRestored::Full)),
                (Some(at), None) => {
                    reservation.count(self.raise_downloaded(at, |current| current.max(downloaded)));
                }
                (None, None) => {}
            }
            self.settle(reservation);
        }
    }

    fn restore_peer(
        &mut self,
        op: &Operation<'_>,
        at: SwarmLocation,
        peer: &PeerRecord,
        reservation: &mut Reservation<'_>,
    ) -> Result<(), NotRestored> {
        let tick = op.context.clock.tick(peer.last_announce);
        let full = self.population(at).peers() >= op.context.bounds.peers_per_swarm;
        if let SlotContent::Large(number) = self.content(at) {
            self.changing_large(number, |large| large.restore(op.context, peer, tick, op.now))?;
        } else {
            if self.leaves[at.leaf].locate(at.slot, &peer.endpoint).is_some() {
                return Err(NotRestored::Known);
            }
            let limit = op.context.bounds.endpoints_per_address;
            if full || self.leaves[at.leaf].displaced(at.slot, &peer.endpoint, limit).is_some() {
                return Err(NotRestored::Full);
            }
            if self.add(op, at, peer.role, &peer.endpoint, tick).is_none() {
                return self.restore_peer(op, at, peer, reservation);
            }
        }
        self.leaves[at.leaf].set_proven(at.slot);
        reservation.count(Population::one(peer.endpoint.family(), peer.role));
        Ok(())
    }

    /// Adds downloads that were counted earlier. Returns whether the swarm exists.
    pub(in crate::packed) fn add_downloads(
        &mut self,
        op: &Operation<'_>,
        earlier: u32,
        reservation: &mut Reservation<'_>,
    ) -> Result<bool, NoRoom> {
        let Some(at) = self.find(op) else { return Ok(false) };
        // In a large swarm, the number is a field.
        if self.large_at(at).is_none() && !reservation.reserve(MAX_GROWTH) {
            return Err(NoRoom::BYTES);
        }
        reservation.count(self.raise_downloaded(at, |now| now.saturating_add(earlier)));
        Ok(true)
    }
}
