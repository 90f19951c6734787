//! Faults of selection: the selected peers and their form.

use std::{cmp::Reverse, hint, ops::Range, thread, time::Duration};

use swarmkeep::{Announce, AnnounceEvent, Endpoint, Families, Family, PeerBuffer, Random};

use super::{Broken, Fault, with_port};
use crate::model::{ModelState, Swarm, hand_out, share};

impl Broken {
    /// Selects peers if the fault is in the selection; returns `false` if the model should select.
    pub(super) fn select_wrongly(
        &self,
        state: &ModelState,
        told: &Announce,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> bool {
        let Some(swarm) = state.swarms.get(&told.info_hash).filter(|_| told.want > 0) else { return false };
        let row = |families: Families, seeders: bool| {
            let as_asked = told.families(families).left(seeders.into()).seeders_too(false);
            eligible(swarm, &as_asked)
        };
        let seeders = told.takes_seeders();
        let mut own = row(told.families, seeders);
        let want = told.want;
        match self.fault {
            Fault::StoppedIsHandedPeers => hand_out_window(&own, want, 0, peers),
            _ if told.event == AnnounceEvent::Stopped => return false,
            Fault::FirstPeers => hand_out_window(&own, want, 0, peers),
            Fault::SelectionByInfoHash => {
                hand_out_window(&own, want, usize::from(told.info_hash.as_bytes()[0]), peers);
            }
            Fault::WithReplacement => {
                peers.clear();
                for _ in 0..want.min(own.len()) {
                    put(own[rng.below(own.len())], peers);
                }
            }
            Fault::DrawsForEver => {
                let (mut chosen, mut drawn) = (Vec::new(), 0);
                while chosen.len() < want.min(own.len()) {
                    let one = own[rng.below(own.len())];
                    if !chosen.contains(&one) {
                        chosen.push(one);
                    }
                    drawn += 1;
                    if drawn > 100_000 {
                        // This never ends, but leaves the processor to other threads.
                        thread::sleep(Duration::from_secs(1));
                    }
                }
                hand_out_window(&chosen, want, 0, peers);
            }
            Fault::WantIgnored => hand_out_window(&own, usize::MAX, 0, peers),
            Fault::SharedBeforeRoom => {
                let starts = [(); 2].map(|()| rng.next_u64() as usize);
                hand_out_of_both(&own, want, starts, peers);
            }
            Fault::SweptHandedOut => {
                let gone = self.marked();
                let gone = gone.keys().filter(|(torrent, _)| *torrent == told.info_hash);
                let gone: Vec<_> = gone.map(|(_, gone)| *gone).filter(|gone| !own.contains(gone)).collect();
                own.extend(gone);
                hand_out_window(&own, want, rng.below(own.len().max(1)), peers);
            }
            Fault::OneTooFew if own.len() > want => {
                hand_out_window(&own, want.saturating_sub(1), rng.below(own.len()), peers)
            }
            Fault::SeedersAreNotAskedFor if told.role().is_seeder() && told.seeders_too => {
                let leechers = row(told.families, false);
                hand_out_window(&leechers, want, rng.below(leechers.len().max(1)), peers);
            }
            Fault::SeedersToSeeders => hand_out_window(&row(told.families, true), want, 0, peers),
            Fault::AnnouncerToItself => {
                own.insert(0, told.endpoint);
                hand_out_window(&own, want, 0, peers);
            }
            Fault::WindowBeforeAnnouncer => {
                own.insert(own.len() / 2, told.endpoint);
                let start = rng.below(own.len());
                own.rotate_left(start);
                own.retain(|&endpoint| endpoint != told.endpoint);
                hand_out_window(&own, want, 0, peers);
            }
            Fault::RolesNotWeighted => {
                let (mut leechers, mut seeders) = (row(told.families, false), own);
                seeders.retain(|endpoint| !leechers.contains(endpoint));
                let (leecher, seeder) = (rng.below(leechers.len().max(1)), rng.below(seeders.len().max(1)));
                leechers.rotate_left(leecher);
                seeders.rotate_left(seeder);
                leechers.truncate(want / 2);
                leechers.append(&mut seeders);
                hand_out_window(&leechers, want, 0, peers);
            }
            Fault::SelectionByAddress => {
                own.sort_by_key(|endpoint| endpoint.ip());
                let firsts: Vec<_> =
                    (0..own.len()).filter(|&n| n == 0 || own[n].ip() != own[n - 1].ip()).collect();
                let start = if own.len() > want { firsts[rng.below(firsts.len())] } else { 0 };
                hand_out_window(&own, want, start, peers);
            }
            Fault::FamiliesMixed => hand_out_window(&row(Families::all(), seeders), want, 0, peers),
            Fault::LimitBeforeFilter => {
                let mut all = row(Families::all(), seeders);
                if told.endpoint.family() == Family::V4 {
                    all.reverse();
                }
                all.truncate(want);
                all.retain(|endpoint| told.families.contains(Families::of(endpoint.family())));
                hand_out_window(&all, want, 0, peers);
            }
            Fault::OneFamilyTakesAll => {
                hand_out_window(&own, want, rng.below(own.len().max(1)) / 1000, peers)
            }
            Fault::CrashesOnOtherFamily => {
                let others = swarm.peers.keys().filter(|&&endpoint| endpoint != told.endpoint);
                let family = told.endpoint.family();
                assert!(
                    others.clone().count() == 0 || others.clone().any(|other| other.family() == family),
                    "no such peers"
                );
                return false;
            }
            Fault::PortsLowByteFirst => {
                let turned: Vec<_> = own
                    .iter()
                    .map(|&endpoint| with_port(endpoint, endpoint.port().swap_bytes().max(1)))
                    .collect();
                hand_out_window(&turned, want, 0, peers);
            }
            Fault::BufferNotCleared => {
                let room = peers.v4.room() + peers.v6.room();
                own.iter().take(want.min(room)).for_each(|&endpoint| put(endpoint, peers));
            }
            Fault::SelectionByWalking => {
                hint::black_box(swarm.peers.values().map(|peer| peer.last_announce).max());
                return false;
            }
            Fault::MovedNotSelected => {
                let marked = self.marked();
                own.retain(|endpoint| !marked.contains_key(&(told.info_hash, *endpoint)));
                hand_out_window(&own, want, rng.below(own.len().max(1)), peers);
            }
            Fault::OddWantOneLess if want % 2 == 1 && told.families == Families::all() => {
                let starts = [(); 2].map(|()| rng.next_u64() as usize);
                hand_out_of_both(&own, want - 1, starts, peers);
            }
            Fault::SmallRoomInOrder if peers.v4.room() + peers.v6.room() < want => {
                hand_out_of_both(&own, want, [0, 0], peers);
            }
            _ if own.len() <= want => return false,
            Fault::LastOf200NotSelected if own.len() > 200 => {
                own.pop();
                hand_out_window(&own, want, rng.below(own.len()), peers);
            }
            Fault::HalfIsNewest if (200..=900).contains(&own.len()) => {
                let start = rng.below(own.len());
                own.rotate_left(start);
                own.sort_by_key(|endpoint| Reverse(swarm.peers[endpoint].last_announce));
                let newest: Vec<_> = own.drain(..want / 2).collect();
                let start = rng.below(own.len());
                own.rotate_left(start);
                hand_out_window(&[newest, own].concat(), want, 0, peers);
            }
            Fault::FreshPreferred => {
                let start = rng.below(own.len());
                own.rotate_left(start);
                own.sort_by_key(|endpoint| Reverse(swarm.peers[endpoint].last_announce));
                hand_out_window(&own, want, 0, peers);
            }
            Fault::OneIsASeeder if want != 1 => return false,
            Fault::FewSeedersFirst | Fault::OneIsASeeder => {
                let (mut all, leechers) = (own.clone(), row(told.families, false));
                all.retain(|endpoint| swarm.peers[endpoint].role.is_seeder());
                let is_meant = self.is(Fault::OneIsASeeder) || all.len() * 10 < own.len();
                if all.is_empty() || !is_meant {
                    return false;
                }
                let (seeder, leecher) = (rng.below(all.len()), rng.below(leechers.len().max(1)));
                all.rotate_left(seeder);
                all.extend(leechers.iter().cycle().skip(leecher).take(leechers.len()));
                hand_out_window(&all, want, 0, peers);
            }
            Fault::SmallInOrder if own.len() <= 8 => hand_out_window(&own, want, 0, peers),
            Fault::SegmentsNotWeighted => {
                let segments = (0..).map(|n| 128 * ((1 << n) - 1)..128 * ((2 << n) - 1));
                let segments: Vec<_> = segments.take_while(|segment| segment.start < own.len()).collect();
                let Range { start, end } = segments[rng.below(segments.len())].clone();
                hand_out_window(&own, want, start + rng.below(end.min(own.len()) - start), peers);
            }
            Fault::DrawOf16Bits => hand_out_window(&own, want, rng.below(own.len().min(1 << 16)), peers),
            Fault::SeederGoesOn if told.role().is_seeder() => {
                let drawn = rng.below(row(told.families, true).len());
                hand_out_window(&own, want, if drawn < own.len() { drawn } else { 0 }, peers);
            }
            Fault::OneDrawForBoth => {
                let (drawn, v4) = (rng.below(own.len()), count_v4(&own));
                let starts = if drawn < v4 { [drawn, 0] } else { [0, drawn - v4] };
                hand_out_of_both(&own, want, starts, peers);
            }
            _ => return false,
        }
        true
    }
}

/// Returns the eligible peers of all requested families, IPv4 first.
pub(super) fn eligible(swarm: &Swarm, announce: &Announce) -> Vec<Endpoint> {
    let (v4, v6) = (swarm.eligible(announce, Family::V4), swarm.eligible(announce, Family::V6));
    (0..v4.len()).map(|n| v4.get(n)).chain((0..v6.len()).map(|n| v6.get(n))).collect()
}

/// Selects up to `count` peers from `start` on; all if there are no more.
fn hand_out_window(row: &[Endpoint], count: usize, start: usize, peers: &mut PeerBuffer<'_>) {
    peers.clear();
    for offset in 0..count.min(row.len()) {
        put(row[(start + offset) % row.len()], peers);
    }
}

/// Selects the share of each family, from its place in `starts` on.
fn hand_out_of_both(own: &[Endpoint], want: usize, starts: [usize; 2], peers: &mut PeerBuffer<'_>) {
    let (v4, v6) = own.split_at(count_v4(own));
    let (v4_count, v6_count) = share(want, v4.len(), v6.len());
    peers.clear();
    for (row, count, start) in [(v4, v4_count, starts[0]), (v6, v6_count, starts[1])] {
        row.iter().cycle().skip(start % row.len().max(1)).take(count).for_each(|&peer| put(peer, peers));
    }
}

/// Returns the index of the first IPv6 peer of a row.
fn count_v4(row: &[Endpoint]) -> usize {
    row.iter().take_while(|peer| peer.family() == Family::V4).count()
}

/// Writes a peer if there is room.
fn put(endpoint: Endpoint, peers: &mut PeerBuffer<'_>) {
    let room = match endpoint.family() {
        Family::V4 => peers.v4.room(),
        Family::V6 => peers.v6.room(),
    };
    if room > 0 {
        hand_out(endpoint, peers);
    }
}
