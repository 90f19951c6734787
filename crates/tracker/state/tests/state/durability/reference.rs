//! The reference store of the durability suite, written as simply as possible.

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error,
    fmt::{self, Write as _},
    fs::{self, File},
    io,
    net::SocketAddr,
    ops::Range,
    panic::{self, AssertUnwindSafe},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use swarmkeep::{
    Announce, Announced, Budget, ConfigError, Cursor, Endpoint, Export, InfoHash, PeerBuffer, PeerRecord,
    Random, Removed, RepositoryConfig, Request, Restored, Retention, Role, SwarmStats, SwarmSummary, Swept,
    Timestamp, TorrentRepository, TorrentRepositoryExt, implement::forward_repository,
};
use swarmkeep_conformance::{Model, threads::let_others_in_until};

use super::{Fault, Persistent, PersistentSubject};

/// A persistent store that is correct rather than fast: the [`Model`] in memory, and two text files with all
/// swarms and all download counts, each written as a whole every time.
///
/// It keeps all counts in memory too, which a real store should not; only live swarms are in the model. It
/// survives killed processes but not power cuts: nothing is synced.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reference {
    model: fn(&RepositoryConfig) -> Result<Model, ConfigError>,
    /// Whether stored counts are loaded some calls later.
    is_lazy: bool,
    fault: Option<Fault>,
}

impl Reference {
    /// Returns a store whose stored counts are loaded at once.
    pub(crate) const fn new() -> Self {
        Self { model: Model::new, is_lazy: false, fault: None }
    }

    /// Returns a store whose stored counts are loaded some calls after they were requested, and with a coarse
    /// clock. The suite must accept both from a store that reads its disk and packs its times.
    pub(crate) const fn lazy() -> Self {
        Self { model: Model::coarse, is_lazy: true, fault: None }
    }

    /// Returns the store with a fault.
    pub(crate) const fn broken(self, fault: Fault) -> Self {
        Self { fault: Some(fault), ..self }
    }
}

impl PersistentSubject for Reference {
    fn open(
        &self,
        folder: &Path,
        config: &RepositoryConfig,
        now: Timestamp,
    ) -> Result<Box<dyn Persistent>, Box<dyn Error>> {
        Ok(Box::new(OpenReference::new(*self, folder, config, now)?))
    }

    fn latest_snapshot(&self, folder: &Path) -> Option<PathBuf> {
        Some(folder.join(SNAPSHOT)).filter(|file| file.exists())
    }

    fn leave_unfinished_snapshot(&self, folder: &Path, bytes: &[u8]) -> io::Result<()> {
        fs::write(folder.join(NEW), bytes)
    }

    /// The blocks are lines.
    fn blocks(&self, snapshot: &[u8]) -> Vec<Range<usize>> {
        let mut at = 0;
        let line = |line: &[u8]| {
            at += line.len();
            at - line.len()..at
        };
        snapshot.split_inclusive(|&byte| byte == b'\n').map(line).collect()
    }
}

const SNAPSHOT: &str = "snapshot";
const PREVIOUS: &str = "snapshot.previous";
/// The name of a snapshot until it is complete.
const NEW: &str = "snapshot.new";
const DAMAGED: &str = "snapshot.damaged";
const COUNTS: &str = "counts";
const LOCK: &str = "lock";

struct OpenReference {
    kind: Reference,
    model: Model,
    folder: PathBuf,
    lifetime_secs: u64,
    counts: Mutex<Counts>,
    opened: Instant,
    /// Locked by the operating system while the store is open: a killed process leaves no lock.
    _lock: File,
}

#[derive(Default)]
struct Counts {
    /// The download counts of every torrent that ever existed.
    all: BTreeMap<InfoHash, u32>,
    /// The stored counts that are still to be added to a swarm.
    awaited: BTreeMap<InfoHash, u32>,
    calls: u64,
    /// The counts that have changed since the file was written, for a fault.
    changed: BTreeMap<InfoHash, u32>,
    /// The counts that were held back when a stored count was loaded, for a fault.
    kept_back: BTreeMap<InfoHash, u32>,
    /// The swarms of the snapshot without an announce so far, for a fault.
    loaded: BTreeSet<InfoHash>,
    snapshots: u32,
}

impl OpenReference {
    fn new(
        kind: Reference,
        folder: &Path,
        config: &RepositoryConfig,
        now: Timestamp,
    ) -> Result<Self, Box<dyn Error>> {
        let lock = File::options().create(true).append(true).open(folder.join(LOCK))?;
        if kind.fault != Some(Fault::OpenTwice) {
            lock.try_lock()?;
        }
        let (model, counts, lifetime_secs) =
            ((kind.model)(config)?, Mutex::default(), config.lifetime_secs(u64::MAX)?);
        let (folder, opened) = (folder.to_owned(), Instant::now());
        let open = Self { kind, model, folder, lifetime_secs, counts, opened, _lock: lock };
        open.read_counts()?;
        open.read_snapshot(now)?;
        if open.is(Fault::EverythingInMemory) {
            for (&info_hash, &downloaded) in &open.counts().all {
                open.model.restore(&summary(info_hash, downloaded), &[], now);
            }
        }
        Ok(open)
    }

    fn is(&self, fault: Fault) -> bool {
        self.kind.fault == Some(fault)
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read_counts(&self) -> Result<(), Box<dyn Error>> {
        let Ok(text) = fs::read_to_string(self.folder.join(COUNTS)) else { return Ok(()) };
        let mut counts = self.counts();
        for line in text.lines() {
            let (info_hash, count) = line.split_once(' ').ok_or("a count without a number")?;
            counts.all.insert(info_hash.parse()?, count.parse()?);
        }
        Ok(())
    }

    fn write_counts(&self, counts: &mut Counts) {
        let written = if self.is(Fault::SettlesChangesOnly) { &counts.changed } else { &counts.all };
        let text: String =
            written.iter().map(|(info_hash, count)| format!("{info_hash} {count}\n")).collect();
        counts.changed.clear();
        let new = self.folder.join("counts.new");
        fs::write(&new, text)
            .and_then(|()| fs::rename(new, self.folder.join(COUNTS)))
            .expect("it can be written");
    }

    /// Loads the latest valid snapshot.
    fn read_snapshot(&self, now: Timestamp) -> Result<(), Box<dyn Error>> {
        let path = |name| self.folder.join(name);
        if self.is(Fault::UnfinishedIsLoaded) && path(NEW).exists() {
            fs::rename(path(NEW), path(SNAPSHOT))?;
        }
        if self.is(Fault::UnfinishedIsRefused) && path(NEW).exists() {
            return Err("somebody is just writing a snapshot".into());
        }
        let Ok(text) = fs::read(path(SNAPSHOT)) else { return self.read_previous(now) };
        match self.parse(&text) {
            Ok(swarms) => self.load(swarms, now),
            Err(Damaged(half)) => {
                match self.kind.fault {
                    Some(Fault::HalfIsLoaded) => return self.load_and_ok(half, now),
                    Some(Fault::DamagedIsRefused) => return Err("the snapshot is damaged".into()),
                    Some(Fault::CountsGoWithSnapshot) => self.counts().all.clear(),
                    _ => {}
                }
                if !self.is(Fault::DamagedBecomesPrevious) {
                    // It must not become the previous snapshot, in place of the valid one, when the next
                    // snapshot is written.
                    fs::rename(path(SNAPSHOT), path(DAMAGED))?;
                }
                self.read_previous(now)?;
            }
        }
        Ok(())
    }

    fn read_previous(&self, now: Timestamp) -> Result<(), Box<dyn Error>> {
        let Ok(text) = fs::read(self.folder.join(PREVIOUS)) else { return Ok(()) };
        match self.parse(&text) {
            Ok(swarms) => self.load(swarms, now),
            Err(Damaged(half)) if self.is(Fault::HalfOfPreviousIsLoaded) => self.load(half, now),
            Err(_) => {}
        }
        Ok(())
    }

    fn load_and_ok(&self, swarms: Vec<Loaded>, now: Timestamp) -> Result<(), Box<dyn Error>> {
        self.load(swarms, now);
        Ok(())
    }

    fn load(&self, swarms: Vec<Loaded>, now: Timestamp) {
        for (swarm, mut peers) in swarms {
            for peer in &mut peers {
                let last_announce = &mut peer.last_announce;
                match self.kind.fault {
                    Some(Fault::AgesBeginAnew) => *last_announce = now,
                    Some(Fault::AgesRoundedOlder) => *last_announce = last_announce.saturating_sub(2),
                    Some(Fault::ExpiredAreLoaded) => {
                        *last_announce = (*last_announce).max(now.saturating_sub(self.lifetime_secs));
                    }
                    _ => {}
                }
            }
            self.restore(&swarm, &peers, now);
            if self.is(Fault::LoadedSwarmMadeAnew) {
                self.counts().loaded.insert(swarm.info_hash);
            }
            if self.is(Fault::SnapshotAddsCounts) {
                let stored = self.counts().all.get(&swarm.info_hash).copied().unwrap_or_default();
                self.model.add_downloads(&swarm.info_hash, stored.min(swarm.stats.downloaded));
            }
        }
    }

    /// Writes all swarms as text, with a checksum at the end.
    fn write_snapshot(&self, now: Timestamp) -> io::Result<()> {
        let mut text = String::from("snapshot of swarms\n");
        let held = self.is(Fault::SnapshotHoldsLock).then(|| self.counts());
        if held.is_some() {
            thread::sleep(Duration::from_millis(30));
        }
        let mut before = BTreeMap::new();
        if self.is(Fault::DownloadsBeforePeers) {
            before.extend(self.downloads());
            thread::sleep(Duration::from_micros(300));
        }
        let mut export = Export::new();
        while !export.is_complete() {
            self.model.export(&mut export, now, Budget::peers(500));
            for swarm in export.records().iter() {
                if self.is(Fault::SnapshotSkipsBusy) {
                    // Other threads run in between, on one core too.
                    thread::sleep(Duration::from_micros(50));
                    if self.counts.try_lock().is_err() {
                        continue;
                    }
                }
                let downloaded = before.get(&swarm.info_hash).copied().unwrap_or(swarm.downloaded);
                let _ = writeln!(text, "swarm {} {downloaded}", swarm.info_hash);
                for peer in swarm.peers() {
                    let role = if peer.role.is_seeder() { "seeder" } else { "leecher" };
                    let _ = writeln!(text, "{role} {} {}", peer.endpoint, peer.last_announce.as_secs());
                }
            }
        }
        let checksum = self.checksum(&text);
        let _ = writeln!(text, "end {checksum:016x}");
        let path = |name| self.folder.join(name);
        fs::write(path(NEW), text)?;
        if path(SNAPSHOT).exists() && !self.is(Fault::PreviousIsLost) {
            fs::rename(path(SNAPSHOT), path(PREVIOUS))?;
        }
        fs::rename(path(NEW), path(SNAPSHOT))
    }

    fn checksum(&self, text: &str) -> u64 {
        let fnv = |text: &str| {
            text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
            })
        };
        match self.is(Fault::ChecksumOfLines) {
            true => text.lines().map(fnv).fold(0, u64::wrapping_add),
            false => fnv(text),
        }
    }

    /// Returns the swarms of a snapshot; if it is damaged, returns the swarms before the damage as the error.
    fn parse(&self, bytes: &[u8]) -> Result<Vec<Loaded>, Damaged> {
        let (mut swarms, mut read, mut ended) = (Vec::new(), 0, false);
        let text = String::from_utf8_lossy(bytes);
        for line in text.split_inclusive('\n') {
            let words: Vec<_> = line.trim_end().split(' ').collect();
            let good = line.ends_with('\n')
                && match words[..] {
                    ["snapshot", "of", "swarms"] => read == 0,
                    _ if read == 0 || ended => false,
                    ["swarm", info_hash, downloaded] => parse_swarm(&mut swarms, info_hash, downloaded),
                    [role @ ("seeder" | "leecher"), endpoint, time] => {
                        parse_peer(&mut swarms, role, endpoint, time)
                    }
                    ["end", checksum] => {
                        ended = true;
                        self.is(Fault::ChecksumIgnored)
                            || checksum == format!("{:016x}", self.checksum(&text[..read]))
                    }
                    _ => false,
                };
            if !good {
                return if ended && self.is(Fault::EndIgnored) { Ok(swarms) } else { Err(Damaged(swarms)) };
            }
            read += line.len();
        }
        if ended { Ok(swarms) } else { Err(Damaged(swarms)) }
    }

    /// Returns the counts of the swarms in memory.
    fn downloads(&self) -> impl Iterator<Item = (InfoHash, u32)> {
        self.model.swarms().into_iter().map(|swarm| (swarm.info_hash, swarm.stats.downloaded))
    }

    /// Returns the count of a swarm in memory; `None` if there is no such swarm.
    fn live(&self, info_hash: &InfoHash) -> Option<u32> {
        // A page that begins behind the info hash before it.
        let mut before = *info_hash.as_bytes();
        let last = before.iter().rposition(|&byte| byte > 0)?;
        before[last] -= 1;
        before[last + 1..].fill(u8::MAX);
        let mut page = Vec::new();
        self.model.page(Some(&InfoHash::new(before)), 1, &mut page);
        page.first().filter(|swarm| swarm.info_hash == *info_hash).map(|swarm| swarm.stats.downloaded)
    }

    /// Adds the downloads counted in memory to the stored counts, and requests the stored count of a new
    /// swarm.
    fn note(&self, counts: &mut Counts, info_hash: InfoHash, before: Option<u32>) {
        let Some(after) = self.live(&info_hash) else { return };
        let stored = counts.all.get(&info_hash).copied().unwrap_or_default();
        if before.is_none() {
            if stored > 0 && !self.is(Fault::CountsComeAtOpenOnly) {
                counts.awaited.insert(info_hash, stored);
            } else if !self.is(Fault::AwaitedAfterRemoval) {
                counts.awaited.remove(&info_hash);
            }
        }
        let counted = after - before.unwrap_or_default();
        if counted > 0 && !self.is(Fault::CountsOfLiveSwarms) {
            let sum = match self.is(Fault::CountsWrap) {
                true => stored.wrapping_add(counted),
                false => stored.saturating_add(counted),
            };
            counts.all.insert(info_hash, sum);
            counts.changed.insert(info_hash, sum);
        }
        if !self.kind.is_lazy && !self.is(Fault::CountsFall) {
            self.deliver(counts, &info_hash);
        }
    }

    /// Adds the stored count of a swarm to the downloads since it was created.
    fn deliver(&self, counts: &mut Counts, info_hash: &InfoHash) {
        let Some(stored) = counts.awaited.remove(info_hash) else { return };
        match self.kind.fault {
            Some(Fault::StoredReplacesNewer) => self.replace(info_hash, stored),
            Some(Fault::CountsFall) => {
                counts.kept_back.insert(*info_hash, self.live(info_hash).unwrap_or_default());
                self.replace(info_hash, stored);
            }
            _ => drop(self.model.add_downloads(info_hash, stored)),
        }
        if self.is(Fault::CountsComeTwice) && counts.calls.is_multiple_of(5) {
            counts.awaited.insert(*info_hash, stored);
        }
    }

    fn replace(&self, info_hash: &InfoHash, downloaded: u32) {
        let peers = self.model.all_peers(info_hash);
        if self.model.remove(info_hash).is_some() {
            self.model.restore(&summary(*info_hash, downloaded), &peers, Timestamp::from_secs(0));
        }
    }

    /// Loads one requested count at every third call.
    fn deliver_one(&self, counts: &mut Counts) {
        counts.calls += 1;
        if counts.calls.is_multiple_of(3)
            && !self.is(Fault::CountsFall)
            && let Some(&info_hash) = counts.awaited.keys().next()
        {
            self.deliver(counts, &info_hash);
        }
    }

    fn forget(&self, counts: &mut Counts, info_hash: &InfoHash) {
        counts.all.remove(info_hash);
        counts.changed.remove(info_hash);
        if !self.is(Fault::AwaitedAfterRemoval) {
            counts.awaited.remove(info_hash);
        }
    }

    fn has_all(&self, info_hash: &InfoHash) -> bool {
        self.live(info_hash).is_some()
    }
}

/// A swarm of a snapshot, with its peers.
type Loaded = (SwarmSummary, Vec<PeerRecord>);

/// A damaged snapshot, and the swarms before the damage.
struct Damaged(Vec<Loaded>);

fn parse_swarm(swarms: &mut Vec<Loaded>, info_hash: &str, downloaded: &str) -> bool {
    let (Ok(info_hash), Ok(downloaded)) = (info_hash.parse(), downloaded.parse()) else { return false };
    swarms.push((summary(info_hash, downloaded), Vec::new()));
    true
}

fn summary(info_hash: InfoHash, downloaded: u32) -> SwarmSummary {
    SwarmSummary { info_hash, stats: SwarmStats { downloaded, ..SwarmStats::default() } }
}

fn parse_peer(swarms: &mut [Loaded], role: &str, endpoint: &str, time: &str) -> bool {
    let (Ok(address), Ok(time)) = (endpoint.parse::<SocketAddr>(), time.parse()) else { return false };
    let (Ok(endpoint), Some((_, peers))) = (Endpoint::new(address.ip(), address.port()), swarms.last_mut())
    else {
        return false;
    };
    let role = if role == "seeder" { Role::Seeder } else { Role::Leecher };
    peers.push(PeerRecord { endpoint, role, last_announce: Timestamp::from_secs(time), details: None });
    true
}

impl Persistent for OpenReference {
    fn store(&self) -> &dyn TorrentRepository {
        self
    }

    fn snapshot(&self, now: Timestamp) -> Result<(), Box<dyn Error>> {
        let number = {
            let mut counts = self.counts();
            counts.snapshots += 1;
            counts.snapshots
        };
        if self.is(Fault::SecondSnapshotIsLeftOut) && number % 2 == 0 {
            return Ok(());
        }
        Ok(self.write_snapshot(now)?)
    }

    fn settle(&self) {
        let mut counts = self.counts();
        while let Some(&info_hash) = counts.awaited.keys().next() {
            counts.calls = 1;
            self.deliver(&mut counts, &info_hash);
        }
        if self.is(Fault::CountsFall) {
            // Another thread reads the counts of a thousand torrents in between, if it wants to.
            let enough = counts.calls + 1000;
            drop(counts);
            (0..1000).any(|_| {
                thread::sleep(Duration::from_millis(1));
                self.counts().calls >= enough
            });
            counts = self.counts();
        }
        for (info_hash, kept_back) in std::mem::take(&mut counts.kept_back) {
            self.model.add_downloads(&info_hash, kept_back);
        }
        if self.is(Fault::CountsOfLiveSwarms) {
            counts.all.extend(self.downloads().filter(|(_, downloaded)| *downloaded > 0));
        }
        if !self.is(Fault::SettlesInMemory) {
            self.write_counts(&mut counts);
        }
    }

    fn stop(self: Box<Self>, now: Timestamp) {
        if !self.is(Fault::StopForgetsCounts) {
            self.settle();
            self.write_counts(&mut self.counts());
        }
        if !self.is(Fault::StopWithoutSnapshot) {
            self.write_snapshot(now).expect("it can be written");
        }
    }

    fn kill(self: Box<Self>) {
        if self.is(Fault::KillLosesSnapshot) {
            let _ = fs::remove_file(self.folder.join(SNAPSHOT));
        }
    }
}

impl TorrentRepository for OpenReference {
    fn announce(
        &self,
        announce: &Announce,
        now: Timestamp,
        rng: &mut dyn Random,
        peers: &mut PeerBuffer<'_>,
    ) -> Announced {
        let mut counts = self.counts();
        self.deliver_one(&mut counts);
        if counts.loaded.remove(&announce.info_hash) {
            self.model.remove(&announce.info_hash);
        }
        let before = self.live(&announce.info_hash);
        let done = panic::catch_unwind(AssertUnwindSafe(|| self.model.announce(announce, now, rng, peers)));
        if done.is_ok() || !self.is(Fault::PanicLosesCount) {
            self.note(&mut counts, announce.info_hash, before);
        }
        if self.is(Fault::EvictionForgets) && done.as_ref().is_ok_and(|done| done.evicted.swarms > 0) {
            counts.all.retain(|info_hash, _| self.has_all(info_hash));
        }
        if self.is(Fault::AnnounceWaitsForCounts) && 2 * counts.awaited.len() >= counts.all.len().max(10_000)
        {
            // The disk is busy with the other counts, for longer than all announces have taken.
            while let Some(&info_hash) = counts.awaited.keys().next() {
                self.deliver(&mut counts, &info_hash);
            }
            thread::sleep(2 * self.opened.elapsed());
        }
        done.unwrap_or_else(|panicked| panic::resume_unwind(panicked))
    }

    fn announce_batch(&self, batch: &mut [Request<'_>], now: Timestamp, rng: &mut dyn Random) {
        if self.is(Fault::BatchesNotCounted) {
            return self.model.announce_batch(batch, now, rng);
        }
        for request in batch {
            request.answer = Some(self.announce(&request.announce, now, rng, &mut request.peers));
        }
    }

    fn scrape(&self, info_hash: &InfoHash) -> SwarmStats {
        self.deliver_one(&mut self.counts());
        self.model.scrape(info_hash)
    }

    fn sweep(&self, now: Timestamp, policy: Retention, budget: Budget) -> Swept {
        if self.is(Fault::SweepWritesStaleCounts) {
            let read = || -> Vec<_> {
                let (counts, swarms) = (self.counts(), self.model.swarms());
                let empty = swarms.iter().filter(|swarm| swarm.stats.complete + swarm.stats.incomplete == 0);
                empty.map(|swarm| (swarm.info_hash, counts.all.get(&swarm.info_hash).copied())).collect()
            };
            let_others_in_until(|| !read().is_empty());
            let noted = read();
            let_others_in_until(|| {
                let counts = self.counts();
                noted.iter().any(|(info_hash, noted)| counts.all.get(info_hash) != noted.as_ref())
            });
            let (mut counts, swept) = (self.counts(), self.model.sweep(now, policy, budget));
            for (info_hash, noted) in noted {
                counts.all.insert(info_hash, noted.unwrap_or_default());
            }
            return swept;
        }
        let (mut counts, swept) = (self.counts(), self.model.sweep(now, policy, budget));
        if self.is(Fault::SweepForgets) {
            counts.all.retain(|info_hash, _| self.has_all(info_hash));
        }
        swept
    }

    fn remove(&self, info_hash: &InfoHash) -> Option<SwarmStats> {
        let mut counts = self.counts();
        if !self.is(Fault::RemoveKeepsCount) {
            self.forget(&mut counts, info_hash);
        }
        self.model.remove(info_hash)
    }

    fn remove_where(
        &self,
        forbidden: &(dyn Fn(&InfoHash) -> bool + Sync),
        from: Cursor,
        budget: Budget,
    ) -> Removed {
        if self.is(Fault::RemoveWhereKeepsCounts) {
            return self.model.remove_where(forbidden, from, budget);
        }
        let mut asked = Vec::new();
        let next = self.walk(from, budget.get(), &mut asked);
        let named = asked.iter().map(|swarm| swarm.info_hash).filter(|info_hash| forbidden(info_hash));
        let removed =
            named.filter_map(|info_hash| Some(SwarmSummary { info_hash, stats: self.remove(&info_hash)? }));
        Removed::new(removed.collect(), next)
    }

    fn restore(&self, swarm: &SwarmSummary, peers: &[PeerRecord], now: Timestamp) -> Restored {
        let (mut counts, info_hash) = (self.counts(), swarm.info_hash);
        self.deliver(&mut counts, &info_hash);
        let before = self.live(&info_hash);
        let restored = self.model.restore(swarm, peers, now);
        let Some(live) = self.live(&info_hash) else { return restored };
        let stored = counts.all.get(&info_hash).copied().unwrap_or_default();
        if self.is(Fault::RestoreAddsUp) && before.is_none() {
            counts.awaited.insert(info_hash, stored);
        } else if before.is_none() {
            self.model.add_downloads(&info_hash, stored.saturating_sub(live));
        }
        let known = stored.max(live);
        if known > 0 && !self.is(Fault::RestoredNotStored) && !self.is(Fault::CountsOfLiveSwarms) {
            counts.all.insert(info_hash, known);
            counts.changed.insert(info_hash, known);
        }
        restored
    }

    fn add_downloads(&self, info_hash: &InfoHash, earlier: u32) -> bool {
        let mut counts = self.counts();
        self.deliver(&mut counts, info_hash);
        let before = self.live(info_hash);
        let added = self.model.add_downloads(info_hash, earlier);
        if added && !self.is(Fault::AddedNotStored) {
            self.note(&mut counts, *info_hash, before);
        }
        added
    }

    forward_repository! {
        |open| open.model, except announce, announce_batch, scrape, sweep, remove, remove_where, restore,
        export, import, add_downloads
    }
}

impl fmt::Debug for OpenReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OpenReference")
            .field("folder", &self.folder)
            .field("model", &self.model)
            .finish_non_exhaustive()
    }
}
