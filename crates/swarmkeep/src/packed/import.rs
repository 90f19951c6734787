//! Taking in what a snapshot holds: as in a batch of announces, the places of several swarms are asked for before any is waited for.

use super::{
    Packed,
    batch::{GROUP, Locked},
    place::Placed,
    prefetch::prefetch,
    room::Room,
    stripe::Way,
};
use crate::{PeerRecord, Records, Restored, SwarmRecord, Timestamp, sweep::VISITS_A_HOLD};

/// A swarm of a group, and what is known of its place before its turn.
struct Probe<'a> {
    record: SwarmRecord<'a>,
    at: Placed,
    way: Way,
}

impl Packed {
    pub(super) fn import_records(&self, records: &Records, now: Timestamp) -> Restored {
        let tick = self.shared.clock.tick(now);
        let (mut restored, mut peers, mut group) =
            (Restored::default(), Vec::new(), Vec::with_capacity(GROUP));
        let mut records = records.iter();
        let mut locked = Locked::none(self);
        loop {
            group.extend(records.by_ref().take(GROUP).map(|record| {
                let at = self.shared.placement.place(&record.info_hash);
                prefetch(&self.stripes[at.stripe]);
                Probe { record, at, way: Way::default() }
            }));
            if group.is_empty() {
                return restored;
            }
            for probe in &mut group {
                probe.way = locked.stripe(probe.at.stripe).prefetch_leaf(&self.call_at(&probe.at, tick));
            }
            for Probe { at, way, .. } in &group {
                locked.stripe(at.stripe).prefetch_slots(&self.call_at(at, tick), way);
            }
            for Probe { record, at, .. } in group.drain(..) {
                self.living(record.peers(), now, &mut peers, &mut restored);
                let call = self.call_at(&at, tick);
                for hold in holds(&peers, record.downloaded) {
                    let mut room = Room::new(&self.shared);
                    locked.stripe(at.stripe).restore(
                        &call,
                        hold,
                        record.downloaded,
                        &mut room,
                        &mut restored,
                    );
                    if hold.len() == VISITS_A_HOLD {
                        locked.let_go();
                    }
                }
            }
            locked.let_go();
        }
    }

    /// Those who have not outlived their lifetime, and none later than now.
    pub(super) fn living(
        &self,
        peers: impl Iterator<Item = PeerRecord>,
        now: Timestamp,
        living: &mut Vec<PeerRecord>,
        restored: &mut Restored,
    ) {
        let oldest = now.saturating_sub(self.lifetime_secs);
        living.clear();
        for peer in peers {
            if peer.last_announce < oldest {
                restored.expired += 1;
            } else {
                living.push(PeerRecord { last_announce: peer.last_announce.min(now), ..peer });
            }
        }
    }
}

/// A bounded number of peers for each hold of a lock. An empty hold still brings the download count.
pub(super) fn holds(peers: &[PeerRecord], downloaded: u32) -> impl Iterator<Item = &[PeerRecord]> {
    peers.chunks(VISITS_A_HOLD).chain((peers.is_empty() && downloaded > 0).then_some(peers))
}
