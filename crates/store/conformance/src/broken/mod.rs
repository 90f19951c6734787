//! Stores that are broken on purpose, each in exactly one way: they prove that the cases can fail.
//!
//! A broken store is the [`Model`] with one fault. Most of these faults were found in stores that are in use.
//! The module `faults` lists them; the module of each chapter of the contract implements its own.

mod announcing;
mod batches;
mod bounds;
mod exporting;
mod faults;
mod forgetting;
mod reading;
mod restoring;
mod selecting;

use std::{
    collections::BTreeMap,
    fmt,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use swarmkeep::{
    Announce, Announced, BoundedBy, Budget, Capabilities, ConfigError, Cursor, Endpoint, Export, InfoHash,
    MemoryUse, PeerBuffer, PeerRecord, Random, Records, Removed, RepositoryConfig, Request, Restored,
    Retention, SwarmStats, SwarmSummary, Swept, Timestamp, TorrentRepository, Totals,
};

pub use faults::Fault;

use crate::{
    Model,
    model::{LimitedNetwork, ModelState, NETWORKS, endpoint_as_network},
    threads::{let_others_in, let_others_in_until},
};

/// The [`Model`] with a fault.
pub struct Broken {
    model: Model,
    fault: Fault,
    /// The notes of a fault about a swarm: the number of leechers that stayed in the counts, or the tick to
    /// which its times are relative.
    notes: Mutex<BTreeMap<InfoHash, u32>>,
    /// Peers that a fault treats differently, with the time of an announce.
    marked: Mutex<BTreeMap<(InfoHash, Endpoint), Timestamp>>,
    /// The error of the totals, or another count of a fault.
    drift: AtomicU64,
    /// Scrapes that may be answered again, with the number of changes when they were kept.
    scraped: Mutex<BTreeMap<InfoHash, (u64, SwarmStats)>>,
}

impl Broken {
    /// Returns a store with one fault.
    ///
    /// # Errors
    /// Errors of the model.
    pub fn new(fault: Fault, config: &RepositoryConfig) -> Result<Self, ConfigError> {
        let without_limits = RepositoryConfig::new(config.hash_key());
        let built = match (fault, Model::new(config)) {
            (Fault::LimitNotRefused, _) if config.limits().bytes.is_some() => Model::new(&without_limits)?,
            (Fault::ResolutionOfAnotherLifetime, _) => Model::coarse(config)?,
            (Fault::LeastLimitRefused, Err(ConfigError::Limit { what, given, least })) => {
                return Err(ConfigError::Limit { what, given, least: least.max(2) - 1 });
            }
            (Fault::AnyLifetime, Err(ConfigError::Lifetime { given, .. })) => {
                Model::new(&without_limits.lifetime(Duration::from_secs(given.as_secs().max(1))))?
            }
            (_, built) => built?,
        };
        let mut state = built.state();
        match fault {
            Fault::ExpiresEarly => state.lifetime_secs -= 1,
            Fault::ExpiresLate => state.lifetime_secs += 10,
            Fault::LimitNotKept => state.limits.swarms = None,
            Fault::PeersLimitedByFamily => {
                state.limits.peers_per_swarm = state.limits.peers_per_swarm.map(|most| 2 * most);
            }
            Fault::TableDoesNotGrow => state.limits.swarms = state.limits.swarms.or(Some(256)),
            Fault::EndpointsAsNetworks => state.ranks.network_of = endpoint_as_network,
            Fault::NetworksOfTheFreshest => state.ranks.looked_at = 8,
            Fault::Each48AsNetwork => state.ranks.widths = &[],
            Fault::PopulousGoesForOne => state.whole = usize::MAX,
            Fault::ManyPeersAsAReturn => state.ranks.populated_from = 75,
            Fault::EndpointsNotLimited => state.limits.endpoints_per_address = None,
            Fault::EndpointsBy128Bits => {
                state.networks = &[LimitedNetwork { v4_bits: 32, v6_bits: 128, times: 1 }];
            }
            Fault::EndpointsByNetwork => {
                state.networks = &[LimitedNetwork { v4_bits: 24, v6_bits: 56, times: 1 }];
            }
            Fault::EndpointsBy64BitsOnly => state.networks = &NETWORKS[..1],
            Fault::EndpointsWidestFirst => {
                state.networks = const { &[NETWORKS[2], NETWORKS[1], NETWORKS[0]] };
            }
            Fault::BytesExceeded => state.limits.bytes = state.limits.bytes.map(|most| most + 32),
            _ => {}
        }
        drop(state);
        Ok(Self {
            model: built,
            fault,
            notes: Mutex::default(),
            marked: Mutex::default(),
            drift: AtomicU64::new(0),
            scraped: Mutex::default(),
        })
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// Makes scrapes from a cache read again.
    fn note_change(&self) {
        if self.is(Fault::ScrapeFromCache) {
            self.drift.fetch_add(1, SeqCst);
        }
    }

    fn state(&self) -> MutexGuard<'_, ModelState> {
        self.note_change();
        assert!(!(self.is(Fault::LockLeftPoisoned) && self.model.is_poisoned()), "the lock is poisoned");
        self.model.state()
    }

    fn marked(&self) -> MutexGuard<'_, BTreeMap<(InfoHash, Endpoint), Timestamp>> {
        self.marked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn notes(&self) -> MutexGuard<'_, BTreeMap<InfoHash, u32>> {
        self.notes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TorrentRepository for Broken {
    fn announce(
        &self,
        announce: &Announce,
        now: Timestamp,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> Announced {
        self.announce_wrongly(announce, now, rng, peers)
    }

    fn announce_batch(&self, batch: &mut [Request<'_>], now: Timestamp, rng: &mut dyn Random) {
        self.announce_batch_wrongly(batch, now, rng);
    }

    fn scrape(&self, info_hash: &InfoHash) -> SwarmStats {
        self.scrape_wrongly(info_hash)
    }

    fn scrape_batch(&self, swarms: &mut [SwarmSummary]) {
        for swarm in swarms {
            let stats = self.scrape(&swarm.info_hash);
            let skips = self.is(Fault::ScrapesSkipUnknown) && stats == SwarmStats::default();
            swarm.stats = if skips { swarm.stats } else { stats };
        }
    }

    fn totals(&self) -> Totals {
        self.totals_wrongly()
    }

    fn walk(&self, from: Cursor, limit: usize, out: &mut Vec<SwarmSummary>) -> Cursor {
        self.walk_wrongly(from, limit, out)
    }

    fn page(&self, after: Option<&InfoHash>, limit: usize, out: &mut Vec<SwarmSummary>) {
        self.page_wrongly(after, limit, out);
    }

    fn peers(&self, info_hash: &InfoHash, from: Cursor, limit: usize, out: &mut Vec<PeerRecord>) -> Cursor {
        self.peers_wrongly(info_hash, from, limit, out)
    }

    fn advance(&self, now: Timestamp) -> Timestamp {
        let mut state = self.state();
        let (before, latest) = (state.latest, state.advance(now));
        if self.is(Fault::AdvanceForgets) {
            state.latest = before;
        }
        if self.is(Fault::AdvanceReturnsItsArgument) { now } else { latest }
    }

    fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Swept {
        self.sweep_wrongly(now, policy, budget)
    }

    fn remove(&self, info_hash: &InfoHash) -> Option<SwarmStats> {
        self.remove_wrongly(info_hash)
    }

    fn remove_where(
        &self,
        forbidden: &(dyn Fn(&InfoHash) -> bool + Sync),
        from: Cursor,
        budget: Budget,
    ) -> Removed {
        self.remove_where_wrongly(forbidden, from, budget)
    }

    fn restore(&self, swarm: &SwarmSummary, peers: &[PeerRecord], now: Timestamp) -> Restored {
        self.restore_wrongly(swarm, peers, now)
    }

    fn export(&self, export: &mut Export, now: Timestamp, budget: Budget) {
        self.export_wrongly(export, now, budget);
    }

    fn import(&self, records: &[Records], now: Timestamp) -> Restored {
        self.import_wrongly(records, now)
    }

    fn add_downloads(&self, info_hash: &InfoHash, earlier: u32) -> bool {
        self.add_downloads_wrongly(info_hash, earlier)
    }

    fn capabilities(&self) -> Capabilities {
        let mut capabilities = self.model.capabilities();
        capabilities.keeps_peer_details &= !self.is(Fault::DetailsNotDeclared);
        match self.fault {
            Fault::LimitNotRefused => capabilities.bounded.remove(BoundedBy::BYTES),
            Fault::ClockOf8Bits => capabilities.clock_resolution_secs = 31,
            Fault::AgesRoundedOlder
            | Fault::TimesRoundedOlder
            | Fault::TimesInTheFuture
            | Fault::ResolutionOfAnotherLifetime => capabilities.clock_resolution_secs = TICK_SECS - 1,
            _ => {}
        }
        capabilities
    }

    fn memory(&self) -> MemoryUse {
        let mut memory = self.model.memory();
        match self.fault {
            Fault::MemoryNeverReturned => {
                memory.bytes = memory.bytes.max(self.drift.fetch_max(memory.bytes, SeqCst));
            }
            Fault::MemoryReturnedInPart => {
                memory.bytes = memory.bytes.max(self.drift.fetch_max(memory.bytes, SeqCst) / 4);
            }
            Fault::FreedBytesStayTaken | Fault::DownloadsExceedBytes => {
                memory.bytes += self.drift.load(SeqCst);
            }
            _ => {}
        }
        memory
    }
}

impl fmt::Debug for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Broken({:?})", self.fault)
    }
}

/// The tick of the coarse clocks of this module: a hundredth of a lifetime of half an hour.
const TICK_SECS: u64 = 18;

fn begin_of_tick(time: Timestamp) -> Timestamp {
    time.saturating_sub(time.as_secs() % TICK_SECS)
}

fn with_port(endpoint: Endpoint, port: u16) -> Endpoint {
    Endpoint::new(endpoint.ip(), port).expect("the port is not 0")
}
