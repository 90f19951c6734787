//! Every content repository of the catalog: blocks, pieces and stripes written and read, flushes, and a
//! thousand torrents.
//!
//! Stores lie in temporary folders (`TMPDIR` says where), without a limit. Each bench checks every byte that
//! it read or wrote, outside of the clock.

use std::{
    hint::black_box,
    io::{IoSlice, IoSliceMut},
    sync::Arc,
    time::{Duration, Instant},
};

use criterion::{
    BenchmarkGroup, Criterion, Throughput, criterion_group, criterion_main, measurement::WallTime,
};
use swarmkeep::{Random, SplitMix64};
use swarmkeep_benches::shrunk;
use swarmkeep_content::{
    Content, ContentConfig, ContentExt, ContentRepository, InfoHash, NewTorrent,
    catalog::{self, Implementation},
};
use tempfile::TempDir;

/// What peers ask for at once.
const BLOCK: usize = 1 << 14;
const PIECE: usize = 1 << 20;

/// A store in a folder of its own.
struct Store {
    repository: Arc<dyn ContentRepository>,
    _folder: TempDir,
}

impl Store {
    fn new(implementation: &Implementation) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let repository = implementation.open(&ContentConfig::new(folder.path())).expect("a store in it");
        Self { repository, _folder: folder }
    }

    /// A torrent that is new, in place of an earlier one.
    fn fresh(&self, length: usize) -> Arc<dyn Content> {
        let torrent =
            NewTorrent::new(info_hash(0), length as u64, PIECE as u32).expect("such torrents exist");
        self.repository.delete(&torrent.info_hash).expect("it is deleted");
        self.repository.create(&torrent).expect("there is room")
    }

    /// A torrent whose pieces are all complete.
    fn complete(&self, bytes: &[u8]) -> Arc<dyn Content> {
        let content = self.fresh(bytes.len());
        content.write(0, bytes).expect("there is room");
        (0..content.geometry().pieces())
            .for_each(|piece| assert!(content.mark_complete(piece).expect("it was written")));
        self.repository.flush().expect("it is flushed");
        content
    }
}

fn info_hash(n: u64) -> InfoHash {
    let mut bytes = [0; 20];
    bytes[..8].copy_from_slice(&SplitMix64::new(n).next_u64().to_le_bytes());
    InfoHash::new(bytes)
}

/// Bytes of which no block is like another.
fn bytes(length: usize) -> Vec<u8> {
    let mut rng = SplitMix64::new(7);
    (0..length / 8).flat_map(|_| rng.next_u64().to_le_bytes()).collect()
}

/// The numbers below `count`, in an order that is the same in every run.
fn shuffled(count: usize) -> Vec<usize> {
    let mut rng = SplitMix64::new(9);
    let mut numbers: Vec<_> = (0..count).collect();
    for left in (1..count).rev() {
        numbers.swap(left, (rng.next_u64() % (left as u64 + 1)) as usize);
    }
    numbers
}

fn assert_holds(content: &dyn Content, bytes: &[u8]) {
    let mut read = vec![0; bytes.len()];
    content.read(0, &mut read).expect("all of it was written");
    assert!(read == bytes, "what was read is not what was written");
}

/// Measures `work` on what `prepare` makes anew for each iteration; `check` then sees what is left.
fn measure<T>(
    group: &mut BenchmarkGroup<'_, WallTime>,
    name: &str,
    mut prepare: impl FnMut() -> T,
    mut work: impl FnMut(&mut T),
    mut check: impl FnMut(T),
) {
    group.bench_function(name, |bencher| {
        bencher.iter_custom(|iterations| {
            let mut taken = Duration::ZERO;
            for _ in 0..iterations {
                let mut prepared = prepare();
                let start = Instant::now();
                work(&mut prepared);
                taken += start.elapsed();
                check(prepared);
            }
            taken
        });
    });
}

fn writes(criterion: &mut Criterion) {
    let all = bytes(shrunk(64, 2) * PIECE);
    for implementation in catalog::ALL {
        let store = Store::new(implementation);
        let stripe = store.repository.capabilities().stripe as usize;
        let order = shuffled(all.len() / PIECE);
        let mut bench = |name: &str, work: &dyn Fn(&dyn Content)| {
            let mut group = criterion.benchmark_group(format!("content/{name}"));
            group.sample_size(10).throughput(Throughput::Bytes(all.len() as u64));
            let (prepare, check) =
                (|| store.fresh(all.len()), |content: Arc<dyn Content>| assert_holds(&*content, &all));
            measure(&mut group, implementation.name, prepare, |content| work(&**content), check);
        };
        bench("write-blocks", &|content| {
            for (n, block) in all.chunks(BLOCK).enumerate() {
                content.write((n * BLOCK) as u64, block).expect("there is room");
            }
        });
        bench("write-pieces-random", &|content| {
            for &n in &order {
                content.write((n * PIECE) as u64, &all[n * PIECE..(n + 1) * PIECE]).expect("there is room");
            }
        });
        bench("write-stripes-vectored", &|content| {
            for (n, whole) in all.chunks(stripe).enumerate() {
                let blocks: Vec<_> = whole.chunks(BLOCK).map(IoSlice::new).collect();
                content.write_at((n * stripe) as u64, &blocks).expect("there is room");
            }
        });
        bench("write-mark-flush", &|content| {
            // As often as a fetcher does, not for every piece.
            for (n, piece) in all.chunks(PIECE).enumerate() {
                content.write((n * PIECE) as u64, piece).expect("there is room");
                assert!(content.mark_complete(n as u32).expect("it was written"));
                if n % 16 == 15 {
                    store.repository.flush().expect("it is flushed");
                }
            }
            store.repository.flush().expect("it is flushed");
        });
    }
}

fn reads(criterion: &mut Criterion) {
    let all = bytes(shrunk(64, 2) * PIECE);
    for implementation in catalog::ALL {
        let store = Store::new(implementation);
        let stripe = store.repository.capabilities().stripe as usize;
        let content = store.complete(&all);
        let mut bench = |name: &str, size: usize, order: Vec<usize>| {
            let mut group = criterion.benchmark_group(format!("content/{name}"));
            group.sample_size(10).throughput(Throughput::Bytes(all.len() as u64));
            let work = |read: &mut Vec<u8>| {
                for &n in &order {
                    let range = n * size..((n + 1) * size).min(all.len());
                    content
                        .read_at(range.start as u64, &mut [IoSliceMut::new(&mut read[range])])
                        .expect("it is complete");
                }
            };
            let check = |read: Vec<u8>| assert!(read == all, "what was read is not what was written");
            measure(&mut group, implementation.name, || vec![0; all.len()], work, check);
        };
        bench("read-blocks-random", BLOCK, shuffled(all.len() / BLOCK));
        bench("read-stripes", stripe, (0..all.len().div_ceil(stripe)).collect());
    }
}

fn torrents(criterion: &mut Criterion) {
    let count = shrunk(1000, 20) as u64;
    let torrent = |n: u64| NewTorrent::new(info_hash(n), 1 << 20, 1 << 14).expect("such torrents exist");
    let create_all = |store: &Store| {
        for n in 0..count {
            black_box(store.repository.create(&torrent(n)).expect("there is room"));
        }
    };
    let check_all = |store: Store| {
        let list = store.repository.list().expect("they are listed");
        assert_eq!(list.len() as u64, count);
        assert!(list.iter().all(|summary| summary.geometry == torrent(0).geometry));
    };
    for implementation in catalog::ALL {
        let filled = || {
            let store = Store::new(implementation);
            create_all(&store);
            store
        };
        let mut group = criterion.benchmark_group("content/create-1000");
        group.sample_size(10).throughput(Throughput::Elements(count));
        measure(
            &mut group,
            implementation.name,
            || Store::new(implementation),
            |store| create_all(store),
            check_all,
        );
        drop(group);

        let store = filled();
        let mut group = criterion.benchmark_group("content/open-1000");
        group.throughput(Throughput::Elements(count));
        let open = |handles: &mut Vec<Arc<dyn Content>>| {
            handles.extend((0..count).map(|n| store.repository.open(&info_hash(n)).expect("it was created")));
        };
        let check = |handles: Vec<Arc<dyn Content>>| assert_eq!(handles.len() as u64, count);
        measure(&mut group, implementation.name, || Vec::with_capacity(count as usize), open, check);
        drop(group);

        let mut group = criterion.benchmark_group("content/list-1000");
        group.throughput(Throughput::Elements(count));
        let list = |list: &mut Vec<_>| *list = store.repository.list().expect("they are listed");
        measure(&mut group, implementation.name, Vec::new, list, |list| assert_eq!(list.len() as u64, count));
        drop(group);
        check_all(store);
    }
}

criterion_group!(benches, writes, reads, torrents);
criterion_main!(benches);
