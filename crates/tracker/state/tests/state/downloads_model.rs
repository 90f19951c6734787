//! Download counts beside a map in memory: whatever is done, both say the same.

use std::sync::Arc;

use crate::common::{Model, apply, counts, random_changes, small, world};
use proptest::prelude::*;
use swarmkeep::{Random, SplitMix64};
use swarmkeep_state::{Change, Directory, Downloads, Error, Folder, InfoHash, Options, simulated::Simulated};

#[derive(Debug, Clone)]
enum Step {
    Commit { seed: u64, most: usize },
    Import { seed: u64 },
    Maintain,
    Settle,
    Reopen,
    PowerCut { seed: u64 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => (any::<u64>(), prop_oneof![Just(3usize), Just(15), Just(100)])
            .prop_map(|(seed, most)| Step::Commit { seed, most }),
        1 => any::<u64>().prop_map(|seed| Step::Import { seed }),
        3 => Just(Step::Maintain),
        2 => Just(Step::Settle),
        2 => Just(Step::Reopen),
        1 => any::<u64>().prop_map(|seed| Step::PowerCut { seed }),
    ];
    prop::collection::vec(step, 1..60)
}

fn run(steps: &[Step], world: &[InfoHash], options: &Options) {
    let mut folder = Simulated::new(9);
    let open = |folder: &Simulated| Downloads::open_with(Arc::new(folder.clone()), options.clone()).unwrap();
    let mut downloads = open(&folder);
    let mut model = Model::new();
    for step in steps {
        match step {
            Step::Commit { seed, most } => {
                let changes = random_changes(&mut SplitMix64::new(*seed), world, *most);
                downloads.commit(changes.iter().copied()).unwrap();
                model = apply(&model, &changes);
            }
            Step::Import { seed } => {
                let mut rng = SplitMix64::new(*seed);
                let mut more: Vec<_> = world.iter().map(|&torrent| (torrent, rng.next_u64() >> 33)).collect();
                more.retain(|_| rng.next_u64() & 1 == 0);
                downloads.add_sorted(more.iter().copied().map(Ok)).unwrap();
                let changes = more.into_iter().map(|(torrent, add)| (torrent, Change { forget: false, add }));
                model = apply(&model, &changes.collect());
            }
            Step::Maintain => downloads.maintain().unwrap(),
            Step::Settle => {
                downloads.settle().unwrap();
                assert!(downloads.entries() * 3 <= 4 * world.len() as u64 + 3 * 60, "{downloads:?}");
            }
            Step::Reopen => {
                drop(downloads);
                downloads = open(&folder);
            }
            Step::PowerCut { seed } => {
                drop(downloads);
                folder = folder.after_power_cut(*seed);
                downloads = open(&folder);
            }
        }
        assert_eq!(counts(&downloads, world).unwrap(), model, "{step:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn counts_are_those_of_a_map(steps in steps()) {
        run(&steps, &world(60), &small());
    }
}

#[test]
fn counts_are_those_of_a_map_over_many_pages() {
    let mut rng: Box<dyn Random> = Box::new(SplitMix64::new(3));
    let steps: Vec<Step> = (0..60)
        .map(|n| match n % 10 {
            3 => Step::Maintain,
            6 => Step::Settle,
            9 => Step::Reopen,
            _ => Step::Commit { seed: rng.next_u64(), most: 1500 },
        })
        .collect();
    run(&steps, &world(3000), &Options::default().log_bytes(64 << 10).log_entries(2000));
}

#[test]
fn a_database_in_a_directory_is_there_again() {
    let path = tempfile::tempdir().unwrap();
    let world = world(200);
    let mut rng = SplitMix64::new(4);
    let mut model = Model::new();
    for _ in 0..5 {
        let folder: Arc<dyn Folder> = Arc::new(Directory::open(path.path()).unwrap());
        let mut downloads = Downloads::open_with(folder, small()).unwrap();
        assert_eq!(counts(&downloads, &world).unwrap(), model);
        for _ in 0..10 {
            let changes = random_changes(&mut rng, &world, 30);
            downloads.commit(changes.iter().copied()).unwrap();
            downloads.maintain().unwrap();
            model = apply(&model, &changes);
        }
        downloads.settle().unwrap();
        assert_eq!(counts(&downloads, &world).unwrap(), model);
    }
    let files = std::fs::read_dir(path.path()).unwrap().count();
    assert!(files < 8, "{files} files: what was merged is removed");
}

#[test]
fn a_database_can_be_moved_to_another_thread() {
    fn assert_send_and_sync<T: Send + Sync>() {}
    assert_send_and_sync::<Downloads>();
}

#[test]
fn nothing_is_made_before_the_first_commit() {
    let folder = Simulated::new(9);
    let mut downloads = crate::common::open(&folder).unwrap();
    let torrent = InfoHash::new([1; 20]);
    assert_eq!(downloads.get(&torrent).unwrap(), 0);
    downloads.settle().unwrap();
    downloads.commit([]).unwrap();
    downloads.commit([(torrent, Change { forget: false, add: 0 })]).unwrap();
    assert!(folder.names().unwrap().is_empty());
    assert_eq!((downloads.size_bytes(), downloads.entries(), downloads.runs()), (0, 0, 0));
}

#[test]
fn counts_saturate_in_the_log_and_in_runs() {
    let folder = Simulated::new(9);
    let mut downloads = crate::common::open(&folder).unwrap();
    let torrent = InfoHash::new([1; 20]);
    let add = |add| [(torrent, Change { forget: false, add })];
    downloads.commit(add(u64::MAX)).unwrap();
    downloads.commit(add(u64::MAX)).unwrap();
    assert_eq!(downloads.get(&torrent).unwrap(), u32::MAX);
    downloads.add_sorted([Ok((torrent, u64::MAX))]).unwrap();
    assert_eq!(downloads.runs(), 2);
    assert_eq!(downloads.get(&torrent).unwrap(), u32::MAX);
    downloads.settle().unwrap();
    assert_eq!(downloads.runs(), 1);
    assert_eq!(downloads.get(&torrent).unwrap(), u32::MAX);
    downloads.commit([(torrent, Change { forget: true, add: 2 })]).unwrap();
    assert_eq!(downloads.get(&torrent).unwrap(), 2);
}

#[test]
fn commits_alone_keep_the_log_small() {
    let world = world(200);
    let change = |&torrent: &InfoHash| (torrent, Change { forget: false, add: 1 });
    // By torrents, by bytes.
    for (entries, bytes) in [(20, 1 << 20), (1000, 4096)] {
        let folder = Simulated::new(9);
        let options = Options::default().log_entries(entries).log_bytes(bytes);
        let mut downloads = Downloads::open_with(Arc::new(folder.clone()), options).unwrap();
        for torrents in world.chunks(4) {
            downloads.commit(torrents.iter().map(change)).unwrap();
        }
        assert!((7..=10).contains(&downloads.runs()), "{downloads:?}");
        let sum: usize =
            folder.names().unwrap().iter().map(|name| folder.contents(name).unwrap().len()).sum();
        assert!(
            downloads.size_bytes() <= sum as u64 && sum as u64 <= downloads.size_bytes() + bytes,
            "{sum}"
        );
    }
    // One commit of more than a log usually holds.
    let mut downloads = crate::common::open(&Simulated::new(9)).unwrap();
    downloads.commit(world.iter().map(change)).unwrap();
    downloads.commit(world.iter().map(change)).unwrap();
    assert_eq!((downloads.runs(), downloads.entries()), (1, 400));
}

#[test]
fn what_is_forgotten_is_gone_from_the_disk() {
    let folder = Simulated::new(9);
    let mut downloads = crate::common::open(&folder).unwrap();
    let world = world(60);
    downloads.add_sorted(world.iter().map(|&torrent| Ok((torrent, 1)))).unwrap();
    downloads.commit(world.iter().map(|&torrent| (torrent, Change { forget: true, add: 0 }))).unwrap();
    downloads.settle().unwrap();
    assert_eq!((downloads.entries(), downloads.runs()), (0, 1), "{downloads:?}");
    assert!(counts(&downloads, &world).unwrap().is_empty());
}

/// Only in a database that has grown, and only what has not changed while it grew by a quarter.
#[test]
fn two_downloads_that_nobody_repeats_are_weeded() {
    let world = world(200);
    for (above, is_weeded) in [(100, true), (1000, false)] {
        let folder = Simulated::new(9);
        let options = Options::default().weed_above(above);
        let mut downloads = Downloads::open_with(Arc::new(folder.clone()), options).unwrap();
        let counts = |n: usize| [1, 2, 3, 4][n % 4];
        downloads.add_sorted(world.iter().enumerate().map(|(n, &torrent)| Ok((torrent, counts(n))))).unwrap();
        downloads.add_sorted(world[..100].iter().map(|&torrent| Ok((torrent, 1)))).unwrap();
        downloads.settle().unwrap();
        for (n, torrent) in world.iter().enumerate() {
            let count = counts(n) as u32 + u32::from(n < 100);
            let expected = if is_weeded && n >= 100 && count <= 2 { 0 } else { count };
            assert_eq!(downloads.get(torrent).unwrap(), expected, "{n}");
        }
        assert_eq!(downloads.entries(), if is_weeded { 150 } else { 200 });
    }
}

#[test]
fn what_is_out_of_order_is_refused_whole() {
    let folder = Simulated::new(9);
    let mut downloads = crate::common::open(&folder).unwrap();
    let world = world(20);
    downloads.commit([(world[0], Change { forget: false, add: 5 })]).unwrap();
    for wrong in [vec![world[1], world[0]], vec![world[1], world[1]]] {
        let error = downloads.add_sorted(wrong.iter().map(|&torrent| Ok((torrent, 1)))).unwrap_err();
        assert!(matches!(error, Error::NotAscending { info_hash } if info_hash == wrong[1]), "{error}");
    }
    let broken = [Ok((world[0], 1)), Err(std::io::ErrorKind::UnexpectedEof.into())];
    assert!(matches!(downloads.add_sorted(broken), Err(Error::Source(_))));
    assert_eq!(counts(&downloads, &world).unwrap(), Model::from([(world[0], 5)]));
    assert!(folder.names().unwrap().iter().all(|name| !name.ends_with(".partial")), "{folder:?}");

    let mut some = vec![7];
    let error = downloads.get_sorted(&[world[1], world[0]], &mut some).unwrap_err();
    assert!(matches!(error, Error::NotAscending { info_hash } if info_hash == world[0]), "{error}");
    assert!(some.is_empty());
    downloads.get_sorted(&[world[0], world[0]], &mut some).unwrap();
    assert_eq!(some, [5, 5]);
}

/// Info hashes that an attacker would choose: all alike but in the last bytes, with one far away at each end.
#[test]
fn a_lookup_reads_few_pages_however_info_hashes_were_chosen() {
    const COUNT: u64 = 100_000;
    let even = |n: u64| {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&(n.wrapping_mul(u64::MAX / COUNT)).to_be_bytes());
        InfoHash::new(bytes)
    };
    let alike = |n: u64| {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(
            &[if n == 0 {
                0
            } else if n == COUNT - 1 {
                0xff
            } else {
                7
            }; 8],
        );
        bytes[12..].copy_from_slice(&n.to_be_bytes());
        InfoHash::new(bytes)
    };
    let growing = |n: u64| {
        let mut bytes = [0; 20];
        bytes[..8].copy_from_slice(&((1.000_4_f64).powf(n as f64) as u64).to_be_bytes());
        bytes[12..].copy_from_slice(&n.to_be_bytes());
        InfoHash::new(bytes)
    };
    let pages = COUNT.div_ceil(163);
    let worst = u64::from(pages.ilog2()) + 1 + 4;
    let most_reads = |info_hash: &dyn Fn(u64) -> InfoHash| {
        let folder = Simulated::new(9);
        let mut downloads = crate::common::open(&folder).unwrap();
        downloads.add_sorted((0..COUNT).map(|n| Ok((info_hash(n), n + 1)))).unwrap();
        let mut most = 0;
        for n in (0..COUNT).step_by(997).chain([0, COUNT - 1]) {
            let before = folder.operations().len();
            assert_eq!(u64::from(downloads.get(&info_hash(n)).unwrap()), n + 1);
            most = most.max(folder.operations().len() - before);
        }
        let before = folder.operations().len();
        let all: Vec<_> = (0..COUNT).map(info_hash).collect();
        let mut counts = Vec::new();
        downloads.get_sorted(&all, &mut counts).unwrap();
        assert!(counts.iter().zip(1..).all(|(&count, n)| count == n));
        (most as u64, (folder.operations().len() - before) as u64)
    };
    let (most, all) = most_reads(&even);
    assert!(most <= 2, "{most} reads of evenly spread info hashes");
    assert!(all <= pages * 2, "{all} reads of {pages} pages");
    for chosen in [&alike as &dyn Fn(u64) -> InfoHash, &growing] {
        let (most, _) = most_reads(chosen);
        assert!(most <= worst, "{most} reads, {worst} at the worst");
    }
}

#[test]
fn a_merge_goes_on_beside_commits_and_ends_with_the_database() {
    let folder = Simulated::new(9);
    let mut downloads = crate::common::open(&folder).unwrap();
    let many = |add| {
        (0..200_000_u64).map(move |n| {
            let mut bytes = [0; 20];
            bytes[..8].copy_from_slice(&(n << 40).to_be_bytes());
            Ok((InfoHash::new(bytes), add))
        })
    };
    downloads.add_sorted(many(1)).unwrap();
    downloads.add_sorted(many(2)).unwrap();
    downloads.maintain().unwrap();
    assert!(downloads.is_merging());
    let torrent = InfoHash::new([0; 20]);
    downloads.commit([(torrent, Change { forget: false, add: 4 })]).unwrap();
    assert_eq!(downloads.get(&torrent).unwrap(), 7);
    drop(downloads);
    let mut downloads = crate::common::open(&folder).unwrap();
    assert_eq!(downloads.get(&torrent).unwrap(), 7);
    downloads.maintain().unwrap();
    downloads.commit([(torrent, Change { forget: false, add: 8 })]).unwrap();
    downloads.settle().unwrap();
    assert_eq!(downloads.get(&torrent).unwrap(), 15);
    assert_eq!((downloads.entries(), downloads.runs()), (200_001, 2));
}
