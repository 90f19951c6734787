//! Snapshots while the disk refuses, the process is killed and the power fails: at every operation in turn.

use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc};

use swarmkeep::{
    Announce, Endpoint, HashKey, InfoHash, PeerBuffer, RepositoryConfig, SplitMix64, SwarmStats, Timestamp,
    TorrentRepository, TorrentRepositoryExt as _, catalog,
};
use swarmkeep_kit::folder::{Refusal, Simulated};
use swarmkeep_state::{Folder as _, Loaded, Pace, State, look_at_snapshots};

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
/// Snapshots of one run, each after `SWARMS` more swarms.
const SNAPSHOTS: u32 = 3;
const SWARMS: u32 = 300;

type Contents = BTreeMap<InfoHash, SwarmStats>;

struct OpenState {
    state: State,
    loaded: Loaded,
    folder: Simulated,
    now: Timestamp,
}

impl OpenState {
    fn new(folder: &Simulated) -> Option<Self> {
        Self::at(folder, NOW)
    }

    fn at(folder: &Simulated, now: Timestamp) -> Option<Self> {
        let config = RepositoryConfig::new(HashKey::from_bytes([7; 16]));
        let store = catalog::find("packed").unwrap().build(&config).unwrap();
        let state = State::new(store, Pace::default());
        let loaded = state.open(Arc::new(folder.clone()), None, Arc::new(move || now)).ok()?;
        Some(Self { state, loaded, folder: folder.clone(), now })
    }

    fn store(&self) -> Arc<dyn TorrentRepository> {
        self.state.repository().as_sync().cloned().expect("packed is synchronous")
    }

    fn grow(&self, from: u32) {
        let store = self.store();
        for n in from..from + SWARMS {
            let mut bytes = [0; 20];
            bytes[..4].copy_from_slice(&n.to_be_bytes());
            let endpoint = Endpoint::new(Ipv4Addr::from_bits(0x0a00_0000 + n).into(), 6881).unwrap();
            let announce = Announce::new(InfoHash::new(bytes), endpoint).want(0);
            store.announce(
                &announce,
                self.now,
                &mut SplitMix64::new(1),
                &mut PeerBuffer::new(&mut [], &mut []),
            );
        }
    }

    fn contents(&self) -> Contents {
        self.store().swarms().into_iter().map(|swarm| (swarm.info_hash, swarm.stats)).collect()
    }
}

/// Takes snapshots until one fails. Returns the contents of the acknowledged ones, and of the failed one.
fn run(opened: &OpenState) -> (Vec<Contents>, Option<Contents>) {
    let mut acknowledged = Vec::new();
    for nth in 0..SNAPSHOTS {
        opened.grow(nth * SWARMS);
        match opened.state.snapshot() {
            Ok(_) => acknowledged.push(opened.contents()),
            Err(_) => return (acknowledged, Some(opened.contents())),
        }
    }
    (acknowledged, None)
}

/// Asserts that another process finds the latest acknowledged snapshot, or the whole one that failed.
fn assert_latest(folder: &Simulated, acknowledged: &[Contents], begun: Option<&Contents>, story: &str) {
    let opened = OpenState::new(folder).unwrap_or_else(|| panic!("{story}: cannot be opened"));
    let found = opened.contents();
    let latest = acknowledged.last().cloned().unwrap_or_default();
    assert!(
        found == latest || begun == Some(&found),
        "{story}: {} swarms, where the latest snapshot has {}",
        found.len(),
        latest.len()
    );
}

fn operations() -> usize {
    let opened = OpenState::new(&Simulated::new(0)).unwrap();
    let (acknowledged, begun) = run(&opened);
    assert!(acknowledged.len() == SNAPSHOTS as usize && begun.is_none());
    opened.folder.operations().len()
}

#[test]
fn a_power_cut_or_a_kill_leaves_the_latest_snapshot_or_the_one_before_it() {
    for at in 0..operations() {
        for is_cut in [true, false] {
            let folder = Simulated::new(at as u64);
            if is_cut {
                folder.cut_power(at)
            } else {
                folder.kill(at)
            };
            let Some(opened) = OpenState::new(&folder) else { continue };
            let (acknowledged, begun) = run(&opened);
            let left = |seed| if is_cut { folder.after_power_cut(seed) } else { folder.after_kill() };
            for seed in 0..if is_cut { 12 } else { 1 } {
                let story = format!("cut or killed at {at}, power cut: {is_cut}, seed {seed}");
                assert_latest(&left(seed), &acknowledged, begun.as_ref(), &story);
            }
        }
    }
}

#[test]
fn a_disk_that_refuses_costs_the_snapshot_and_no_other() {
    for refusal in [Refusal::Full, Refusal::Device, Refusal::ReadOnly] {
        for at in 0..operations() {
            let folder = Simulated::new(at as u64);
            let Some(opened) = OpenState::new(&folder) else { panic!("nothing was refused yet") };
            let before = folder.operations().len();
            folder.refuse(before + at, 1, refusal);
            let mut latest = Contents::new();
            let mut begun = None;
            for nth in 0..SNAPSHOTS {
                opened.grow(nth * SWARMS);
                match opened.state.snapshot() {
                    Ok(_) => (latest, begun) = (opened.contents(), None),
                    Err(_) => begun = Some(opened.contents()),
                }
            }
            folder.heal();
            let story = format!("{refusal:?} at {at}");
            assert_latest(&folder.after_kill(), &[latest], begun.as_ref(), &story);
            opened.state.snapshot().unwrap_or_else(|error| panic!("{story}, and healed: {error}"));
            assert_latest(&folder.after_power_cut(0), &[opened.contents()], None, &story);
        }
    }
}

#[test]
fn a_snapshot_that_a_wrong_clock_has_expired_is_kept_after_further_snapshots() {
    const DAY: u64 = 86_400;
    let folder = Simulated::new(0);
    let open = |later| OpenState::at(&folder, Timestamp::from_secs(NOW.as_secs() + later)).unwrap();
    let first = open(0);
    first.grow(0);
    first.state.close().unwrap();
    let good = folder.contents("swarms.snapshot").unwrap();
    let wrong = open(DAY);
    assert_eq!(wrong.loaded.restored.expired, SWARMS.into());
    (0..5).for_each(|_| _ = wrong.state.snapshot().unwrap());
    wrong.state.close().unwrap();
    assert!(folder.contents("swarms.snapshot.kept-1").expect("kept under a name of its own") == good);
    assert_eq!(wrong.loaded.kept.as_deref(), Some("swarms.snapshot.kept-1"));
    // As the warning says.
    folder.rename("swarms.snapshot.kept-1", "swarms.snapshot").unwrap();
    let right = open(60);
    assert_eq!((right.loaded.restored.added, right.loaded.restored.expired), (SWARMS.into(), 0));
    assert!(right.loaded.kept.is_none());
    right.state.close().unwrap();
    // Each time anew, but not for ever.
    for day in 1..=4 {
        let wrong = open(day * DAY);
        wrong.grow(0);
        wrong.state.close().unwrap();
    }
    let kept = (1..10).filter(|n| folder.contents(&format!("swarms.snapshot.kept-{n}")).is_some());
    assert_eq!(kept.collect::<Vec<_>>(), [3, 4]);
    let looked_at = look_at_snapshots(&folder).unwrap();
    assert_eq!(looked_at.last().map(|(name, _)| name.as_str()), Some("swarms.snapshot.kept-4"));
}
