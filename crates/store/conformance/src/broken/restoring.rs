//! Faults of restores.

use swarmkeep::{InfoHash, PeerRecord, Restored, SwarmSummary, Timestamp, TorrentRepository};

use super::{Broken, Fault};

impl Broken {
    pub(super) fn restore_wrongly(
        &self,
        swarm: &SwarmSummary,
        peers: &[PeerRecord],
        now: Timestamp,
    ) -> Restored {
        let mut peers = peers.to_vec();
        match self.fault {
            Fault::RestoreDisplaces => {
                let mut state = self.state();
                if let Some(&victim) = state.swarms.keys().next() {
                    state.remove(&victim);
                }
            }
            Fault::RestoreDisplacesEndpoints => {
                let mut state = self.state();
                let most = state.limits.endpoints_per_address;
                state.change(swarm.info_hash, |swarm| {
                    for record in &peers {
                        let left = most.filter(|_| !swarm.peers.contains_key(&record.endpoint));
                        swarm.drop_stalest_of_address_but(record.endpoint, left.map(|most| most - 1));
                    }
                });
            }
            Fault::RestoreOverwrites => {
                let mut state = self.state();
                state.change(swarm.info_hash, |swarm| {
                    for record in &peers {
                        swarm.remove(&record.endpoint);
                    }
                });
            }
            Fault::RestoreRoundsOlder => {
                peers
                    .iter_mut()
                    .for_each(|record| record.last_announce = record.last_announce.saturating_sub(2));
            }
            Fault::RestoreCreates => self.state().change(swarm.info_hash, |_| ()),
            Fault::RestoreWithoutDetails => peers.iter_mut().for_each(|record| record.details = None),
            Fault::RestoredNotSwept | Fault::RestoredSeederCompletes => {
                let places = peers.iter().map(|peer| ((swarm.info_hash, peer.endpoint), peer.last_announce));
                self.marked().extend(places);
            }
            Fault::RestoreRevives => {
                peers.iter_mut().for_each(|record| record.last_announce = now);
            }
            _ => {}
        }
        let before = self.scrape(&swarm.info_hash).downloaded;
        let known = self.state().swarms.contains_key(&swarm.info_hash);
        let limits = self.state().limits;
        match self.fault {
            Fault::RestoreIgnoresBytes => self.state().limits.bytes = None,
            Fault::RestoreIgnoresPeers => self.state().limits.peers_per_swarm = None,
            Fault::RestoreIgnoresEndpoints => self.state().limits.endpoints_per_address = None,
            _ => {}
        }
        let restored = self.model.restore(swarm, &peers, now);
        self.state().limits = limits;
        if self.is(Fault::RestoreAddsDownloads) {
            self.model.add_downloads(&swarm.info_hash, before);
        }
        let mut state = self.state();
        if state.swarms.contains_key(&swarm.info_hash) {
            let latest = state.latest;
            state.change(swarm.info_hash, |into| match self.fault {
                Fault::RestoredAhead | Fault::RestoreSetsRole => {
                    for record in &peers {
                        let Some(peer) = into.peers.get(&record.endpoint) else { continue };
                        let (role, last_announce) = (peer.role, peer.last_announce);
                        if self.is(Fault::RestoreSetsRole) {
                            into.alter(record.endpoint, record.role, last_announce);
                        } else if record.last_announce > latest {
                            into.alter(record.endpoint, role, record.last_announce);
                        }
                    }
                }
                Fault::RestoreOverwritesDownloads => into.downloaded = swarm.stats.downloaded,
                Fault::RestoredWorthNothing => into.populated &= known,
                _ => {}
            });
        }
        restored
    }

    pub(super) fn add_downloads_wrongly(&self, info_hash: &InfoHash, earlier: u32) -> bool {
        self.note_change();
        if self.is(Fault::AddDownloadsCreates) {
            self.state().change(*info_hash, |_| ());
        }
        self.model.add_downloads(info_hash, earlier)
    }
}
