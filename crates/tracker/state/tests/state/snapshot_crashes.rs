//! Snapshots while the disk refuses, the process is killed and the power fails: at every operation in turn.

use std::{collections::BTreeMap, net::Ipv4Addr, sync::Arc};

use swarmkeep::{
    Announce, Endpoint, HashKey, InfoHash, PeerBuffer, RepositoryConfig, SplitMix64, SwarmStats, Timestamp,
    TorrentRepository, TorrentRepositoryExt as _, catalog,
};
use swarmkeep_state::{
    Pace, State,
    simulated::{Refusal, Simulated},
};

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
/// Snapshots of one run, each after so many more swarms have come.
const SNAPSHOTS: u32 = 3;
const SWARMS: u32 = 300;

type Contents = BTreeMap<InfoHash, SwarmStats>;

struct Opened {
    state: State,
    folder: Simulated,
}

impl Opened {
    fn new(folder: &Simulated) -> Option<Self> {
        let config = RepositoryConfig::new(HashKey::from_bytes([7; 16]));
        let store = catalog::find("packed").unwrap().build(&config).unwrap();
        let state = State::new(store, Pace::default());
        state.open(Arc::new(folder.clone()), None, Arc::new(|| NOW)).ok()?;
        Some(Self { state, folder: folder.clone() })
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
            store.announce(&announce, NOW, &mut SplitMix64::new(1), &mut PeerBuffer::new(&mut [], &mut []));
        }
    }

    fn contents(&self) -> Contents {
        self.store().swarms().into_iter().map(|swarm| (swarm.info_hash, swarm.stats)).collect()
    }
}

/// Takes snapshots as far as it gets; what each that was acknowledged holds, and what the one holds that was
/// not.
fn run(opened: &Opened) -> (Vec<Contents>, Option<Contents>) {
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

/// What another process finds: the latest that was acknowledged, or the one that was not, whole.
fn assert_latest(folder: &Simulated, acknowledged: &[Contents], begun: Option<&Contents>, story: &str) {
    let opened = Opened::new(folder).unwrap_or_else(|| panic!("{story}: cannot be opened"));
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
    let opened = Opened::new(&Simulated::new(0)).unwrap();
    let (acknowledged, begun) = run(&opened);
    assert!(acknowledged.len() == SNAPSHOTS as usize && begun.is_none());
    opened.folder.operations().len()
}

#[test]
fn a_power_cut_leaves_the_latest_snapshot_or_the_one_before_it() {
    for at in 0..operations() {
        let folder = Simulated::new(at as u64);
        folder.cut_power(at);
        let Some(opened) = Opened::new(&folder) else { continue };
        let (acknowledged, begun) = run(&opened);
        for seed in 0..12 {
            let story = format!("power cut at {at}, seed {seed}");
            assert_latest(&folder.after_power_cut(seed), &acknowledged, begun.as_ref(), &story);
        }
    }
}

#[test]
fn a_killed_process_leaves_the_latest_snapshot_or_the_one_before_it() {
    for at in 0..operations() {
        let folder = Simulated::new(at as u64);
        folder.kill(at);
        let Some(opened) = Opened::new(&folder) else { continue };
        let (acknowledged, begun) = run(&opened);
        assert_latest(&folder.after_kill(), &acknowledged, begun.as_ref(), &format!("killed at {at}"));
    }
}

#[test]
fn a_disk_that_refuses_costs_the_snapshot_and_no_other() {
    for refusal in [Refusal::Full, Refusal::Device, Refusal::ReadOnly] {
        for at in 0..operations() {
            let folder = Simulated::new(at as u64);
            let Some(opened) = Opened::new(&folder) else { panic!("nothing was refused yet") };
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
