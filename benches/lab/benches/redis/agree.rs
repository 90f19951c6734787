//! Checks before the measurements that all designs give the same answers: a design that did less would be
//! faster for no good reason.

use std::collections::BTreeSet;

use swarmkeep::{Announce, AnnounceEvent, CompactV4, Endpoint, PeerBuffer, SplitMix64, SwarmStats};
use swarmkeep_workload::{PeerIndex, Workload};

use crate::{
    Bench, Result,
    drive::{Design, Stores, WANT},
};

/// More peers than fit into an answer; seeders alone are too few.
const SWARMS: u64 = 2;
const PEERS: u32 = 70;

pub(crate) fn check(bench: &Bench) -> Result<()> {
    let announces = announces();
    for way in [Design::Published, Design::Naive, Design::Random, Design::One, Design::ModuleOne] {
        let stores = Stores::start(&bench.runtime, Some(4))?;
        let mut swarms = vec![Members::default(); SWARMS as usize];
        for (swarm, announce) in &announces {
            let mut room = [0; WANT * CompactV4::LEN];
            let mut peers = PeerBuffer::new(&mut room, &mut []);
            let mut rng = SplitMix64::new(1);
            let asked = stores.ask(way, 0, announce, &mut rng, &mut peers);
            let said = bench.runtime.block_on(asked)?;
            let members = &mut swarms[*swarm as usize];
            let told: BTreeSet<_> = peers.endpoints().collect();
            if !members.would_say(announce, said, &told) || told.len() != peers.len() {
                let expected = (members.seeders.len(), members.leechers.len());
                return Err(format!(
                    "{way} says of {announce:?} {said:?} and tells {told:?}; there are {expected:?}"
                )
                .into());
            }
        }
        if matches!(way, Design::Published | Design::Naive | Design::Random) {
            let all = |of: fn(&Members) -> usize| swarms.iter().map(of).sum::<usize>();
            let hashes = all(|members| usize::from(members.had_seeder) + usize::from(members.had_leecher));
            for (count, expected) in [
                ("IPv4_S_count", all(|members| members.seeders.len())),
                ("IPv4_L_count", all(|members| members.leechers.len())),
                ("IPv4_infohash_count", hashes),
            ] {
                let found: Option<usize> = stores.server.query(&["GET", count])?;
                if found != Some(expected) {
                    return Err(format!("{way}: {count} is {found:?} and should be {expected}").into());
                }
            }
        }
    }
    Ok(())
}

/// Every peer joins and announces again; some finish, some leave.
fn announces() -> Vec<(u64, Announce)> {
    let workload = Workload::uniform(9, SWARMS, PEERS).with_profile(|profile| profile.ipv6 = 0.0);
    let mut announces = Vec::new();
    for round in 0..4 {
        for peer in 0..PEERS {
            for swarm in 0..SWARMS {
                let announce = workload.announce(PeerIndex { swarm, peer });
                let finishes = peer % 3 == 0;
                let left = if finishes && round >= 2 { 0 } else { announce.left };
                let event = match round {
                    0 => AnnounceEvent::Started,
                    2 if finishes && announce.left > 0 => AnnounceEvent::Completed,
                    3 if peer % 4 == 0 => AnnounceEvent::Stopped,
                    _ => AnnounceEvent::None,
                };
                announces.push((swarm, announce.left(left).event(event)));
            }
        }
    }
    announces
}

/// The members of a swarm.
#[derive(Clone, Default)]
struct Members {
    seeders: BTreeSet<Endpoint>,
    leechers: BTreeSet<Endpoint>,
    had_seeder: bool,
    had_leecher: bool,
}

impl Members {
    fn would_say(&mut self, announce: &Announce, said: SwarmStats, told: &BTreeSet<Endpoint>) -> bool {
        let peer = announce.endpoint;
        self.seeders.remove(&peer);
        self.leechers.remove(&peer);
        let (seeder, stopped) = (announce.left == 0, announce.event == AnnounceEvent::Stopped);
        let mut others: BTreeSet<_> = self.leechers.clone();
        if !seeder {
            others.extend(&self.seeders);
        }
        let count = if stopped { 0 } else { others.len().min(announce.want) };
        if !stopped {
            let own = if seeder { &mut self.seeders } else { &mut self.leechers };
            own.insert(peer);
        }
        self.had_seeder |= !self.seeders.is_empty();
        self.had_leecher |= !self.leechers.is_empty();
        let counts = (said.complete as usize, said.incomplete as usize);
        told.len() == count && told.is_subset(&others) && counts == (self.seeders.len(), self.leechers.len())
    }
}
