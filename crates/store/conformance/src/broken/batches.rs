//! Faults of batches.

use std::{
    collections::{BTreeMap, HashSet},
    panic::{self, AssertUnwindSafe},
};

use swarmkeep::{
    AnnounceEvent, Announced, Changes, Limits, PeerBuffer, Random, Request, SplitMix64, Timestamp,
    TorrentRepository,
};

use super::{Broken, Fault, let_others_in, selecting::eligible};

impl Broken {
    pub(super) fn announce_batch_wrongly(
        &self,
        batch: &mut [Request<'_>],
        now: Timestamp,
        rng: &mut dyn Random,
    ) {
        match self.fault {
            Fault::BatchKeepsAnswers | Fault::BatchKeepsPeers | Fault::BatchKeepsAnswersBehindAPanic => {}
            _ => batch.iter_mut().for_each(Request::clear),
        }
        let mut again = AsksAgain(rng);
        let rng: &mut dyn Random = if self.is(Fault::BatchSwallowsPanics) { &mut again } else { again.0 };
        let mut all: Vec<_> = batch.iter_mut().collect();
        let mut done = HashSet::new();
        let (mut first, mut seeders_too) = (BTreeMap::new(), false);
        match self.fault {
            Fault::BatchStoppedFirst => {
                all.sort_by_key(|request| request.announce.event != AnnounceEvent::Stopped);
            }
            Fault::BatchOvertakesItself => {
                if let Some(Request { announce, .. }) = all.last() {
                    let mut state = self.state();
                    let swarm = state.swarms.get(&announce.info_hash);
                    let is_newcomer =
                        swarm.is_some_and(|swarm| !swarm.peers.contains_key(&announce.endpoint));
                    if is_newcomer && announce.event == AnnounceEvent::None {
                        state.update(announce, now);
                        drop(state);
                        let_others_in();
                        self.state().change(announce.info_hash, |swarm| swarm.remove(&announce.endpoint));
                    }
                }
            }
            Fault::BatchInTwoSteps => {
                let unknown = |request: &&mut Request<'_>| {
                    let missing = !self.state().swarms.contains_key(&request.announce.info_hash);
                    (missing && request.announce.event != AnnounceEvent::Stopped)
                        .then_some(request.announce.info_hash)
                };
                let mut missing: HashSet<_> = all.iter().filter_map(unknown).collect();
                let_others_in();
                for request in &mut all {
                    if missing.remove(&request.announce.info_hash) {
                        self.state().remove(&request.announce.info_hash);
                    }
                    request.answer = Some(self.announce(&request.announce, now, rng, &mut request.peers));
                }
                return;
            }
            Fault::BatchDrawsFirst => {
                let draws = |request: &&mut Request<'_>| {
                    let state = self.state();
                    let swarm = state.swarms.get(&request.announce.info_hash);
                    let eligible = swarm.map_or(0, |swarm| eligible(swarm, &request.announce).len());
                    request.announce.want > 0 && eligible > request.announce.want
                };
                let seed = all.iter().filter(|request| draws(request)).fold(0, |_, _| rng.next_u64());
                let mut drawn = SplitMix64::new(seed);
                for request in all {
                    request.answer =
                        Some(self.announce(&request.announce, now, &mut drawn, &mut request.peers));
                }
                return;
            }
            Fault::BatchMakesRoomOnce | Fault::BatchLimitsAddressesOnce => {
                let limits = self.state().limits;
                for request in all {
                    request.answer = Some(self.announce(&request.announce, now, rng, &mut request.peers));
                    self.state().limits = Limits::default();
                }
                self.state().limits = limits;
                return;
            }
            _ => {}
        }
        for (place, request) in all.iter_mut().enumerate() {
            let mut same = SplitMix64::new(1);
            let repeats = self.is(Fault::BatchRepeatsADraw) && place == 127;
            let rng: &mut dyn Random = if repeats { &mut same } else { rng };
            let mut announce = request.announce;
            if self.is(Fault::SeedersTooStays) {
                (announce.seeders_too, seeders_too) =
                    (announce.seeders_too || seeders_too, announce.seeders_too);
            }
            let earlier =
                *first.entry(announce.info_hash).or_insert_with(|| self.model.scrape(&announce.info_hash));
            let repeated = !done.insert((announce.info_hash, announce.endpoint));
            if self.is(Fault::BatchSkipsRepeats) && repeated {
                let (stats, state) = (self.scrape(&announce.info_hash), self.state());
                request.peers.clear();
                if state.swarms.contains_key(&announce.info_hash) {
                    state.select(&announce, rng, &mut request.peers);
                }
                request.answer = Some(Announced::new(stats, Changes::REFRESHED));
                continue;
            }
            let (mut nobody, answered) = (PeerBuffer::new(&mut [], &mut []), request.answer);
            let leave = self.is(Fault::BatchKeepsPeers) && announce.want == 0;
            let peers = if leave { &mut nobody } else { &mut request.peers };
            request.answer = Some(self.announce(&announce, now, rng, peers));
            if self.is(Fault::BatchKeepsAnswers) && answered.is_some() {
                request.answer = answered;
            }
            if let Some(answer) = request.answer.as_mut().filter(|_| self.is(Fault::BatchCountsBefore)) {
                answer.stats = if answer.changes.contains(Changes::CREATED) { answer.stats } else { earlier };
            }
        }
        for request in all {
            let answer = request.answer.as_mut().expect("answered above");
            match self.fault {
                Fault::BatchAnswersWithTheEnd => answer.stats = self.scrape(&request.announce.info_hash),
                Fault::BatchSelectsAtTheEnd => {
                    let state = self.state();
                    if state.swarms.contains_key(&request.announce.info_hash) {
                        state.select(&request.announce, rng, &mut request.peers);
                    }
                }
                _ => {}
            }
        }
    }
}

/// Randomness that is drawn again after a panic.
struct AsksAgain<'a>(&'a mut dyn Random);

impl Random for AsksAgain<'_> {
    fn next_u64(&mut self) -> u64 {
        loop {
            if let Ok(word) = panic::catch_unwind(AssertUnwindSafe(|| self.0.next_u64())) {
                return word;
            }
        }
    }
}
