//! A store that verifies pieces when they are first read.

use std::{
    fmt,
    io::{self, IoSliceMut},
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
};

use swarmkeep_content::{
    Content, ContentConfig, ContentExt, ContentRepository, Error, InfoHash, Memory, NewTorrent, Result,
    Verified, forward,
    stripe_cache::{StripeCache, StripeCacheOptions},
};
use swarmkeep_content_tests::torrents;
use swarmkeep_metainfo::Info;
use swarmkeep_store_tests::with;

#[derive(Debug)]
struct CountingStore(Memory, Arc<ReadProbe>);

#[derive(Debug)]
struct CountingContent(Arc<dyn Content>, Arc<ReadProbe>);

#[derive(Default)]
struct ReadProbe {
    read: AtomicU64,
    /// A byte that cannot be read.
    bad: Mutex<Option<u64>>,
    meanwhile: Mutex<Option<Box<dyn FnOnce() + Send>>>,
}

impl fmt::Debug for ReadProbe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadProbe").finish_non_exhaustive()
    }
}

impl ContentRepository for CountingStore {
    forward! { it, it.0; list, delete, flush, statistics, capabilities }

    fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>> {
        Ok(Arc::new(CountingContent(self.0.create(torrent)?, Arc::clone(&self.1))))
    }

    fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>> {
        Ok(Arc::new(CountingContent(self.0.open(info_hash)?, Arc::clone(&self.1))))
    }
}

impl Content for CountingContent {
    forward! { it, it.0; geometry, write_at, mark_complete, mark_incomplete, pieces }

    fn read_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<()> {
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        self.1.read.fetch_add(len, Relaxed);
        if self.1.bad.lock().unwrap().is_some_and(|bad| (offset..offset + len).contains(&bad)) {
            return Err(Error::Io { what: "reading", source: io::Error::from_raw_os_error(5) });
        }
        self.0.read_at(offset, buffers)?;
        let meanwhile = self.1.meanwhile.lock().unwrap().take();
        meanwhile.into_iter().for_each(|meanwhile| meanwhile());
        Ok(())
    }
}

/// A torrent in a store, with other bytes in some of its complete pieces.
struct StoredTorrent {
    info: Arc<Info>,
    inner: Arc<CountingStore>,
    probe: Arc<ReadProbe>,
}

impl StoredTorrent {
    fn new(name: &str, wrong: &[u32]) -> Self {
        let info = torrents::torrent(name).into_info();
        let probe = Arc::<ReadProbe>::default();
        let inner = Arc::new(CountingStore(Memory::new(&ContentConfig::new("")), Arc::clone(&probe)));
        inner.create(&NewTorrent::of(&info).unwrap()).unwrap();
        let torrent = Self { info, inner, probe };
        (0..torrent.info.piece_count()).for_each(|piece| torrent.put(piece, wrong.contains(&piece)));
        torrent
    }

    /// Writes past the store that verifies.
    fn put(&self, piece: u32, wrong: bool) {
        let content = self.inner.open(&self.info.info_hash()).unwrap();
        content.mark_incomplete(piece).unwrap();
        let range = self.range(piece);
        let mut bytes = torrents::piece(&self.info, piece);
        let last = bytes.len() - 1;
        bytes[last] ^= u8::from(wrong);
        // After the last file of a v2 piece, any bytes may follow.
        bytes.resize((range.end - range.start) as usize, 0xee);
        content.write(range.start, &bytes).unwrap();
        content.mark_complete(piece).unwrap();
    }

    fn range(&self, piece: u32) -> Range<u64> {
        NewTorrent::of(&self.info).unwrap().geometry.piece(piece).unwrap()
    }

    fn verified(&self, knows_hashes: bool) -> Arc<Verified> {
        let info = knows_hashes.then(|| Arc::clone(&self.info));
        Arc::new(Verified::new(Arc::clone(&self.inner) as _, move |info_hash| {
            Ok(info.clone().filter(|info| info.info_hash() == *info_hash))
        }))
    }

    fn open(&self, store: &dyn ContentRepository) -> Arc<dyn Content> {
        store.open(&self.info.info_hash()).unwrap()
    }
}

fn wrong_piece(read: Result<Vec<u8>>) -> Option<u32> {
    match read {
        Ok(_) => None,
        Err(Error::Wrong { piece }) => Some(piece),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn wrong_pieces_are_errors_and_all_others_are_read_once() {
    for name in ["some-v1", "some-v2", "some-hybrid", "one-v2", "one-hybrid", "many-v1"] {
        let last = StoredTorrent::new(name, &[]).info.piece_count() - 1;
        let torrent = StoredTorrent::new(name, &[3, 4, last]);
        // Straight, and behind a cache that reads ahead whole stripes of several pieces.
        let stripe = (4 * torrent.info.piece_length()).next_power_of_two();
        let options = with(StripeCacheOptions::new(), |options| options.stripe = Some(stripe));
        let cache = StripeCache::new(torrent.verified(true), options).unwrap();
        for store in [&*torrent.verified(true) as &dyn ContentRepository, &cache] {
            let content = torrent.open(store);
            for piece in 0..=last {
                let wrong = wrong_piece(content.read_piece(piece));
                assert_eq!(wrong, [3, 4, last].contains(&piece).then_some(piece), "{name}");
            }
            assert_eq!(content.pieces().unwrap().count(), last + 1, "nothing is done about it");
        }
        let whole = StoredTorrent::new(name, &[]);
        let content = whole.open(&*whole.verified(true));
        (0..=last).for_each(|piece| _ = content.read_piece(piece).unwrap());
        assert_eq!(whole.probe.read.load(Relaxed), content.geometry().len(), "{name}");
    }
}

#[test]
fn a_read_of_a_part_verifies_all_of_its_pieces_and_reads_nothing_twice() {
    let torrent = StoredTorrent::new("some-v1", &[5]);
    let content = torrent.open(&*torrent.verified(true));
    let read = |range: Range<u64>| {
        let mut bytes = vec![0; (range.end - range.start) as usize];
        wrong_piece(content.read(range.start, &mut bytes).map(|()| bytes))
    };
    let [two, three, four, five] = [2, 3, 4, 5].map(|piece| torrent.range(piece));
    assert_eq!(read(two.start + 7..four.start + 9), None);
    assert_eq!(torrent.probe.read.load(Relaxed), four.end - two.start);
    // They are known from now on.
    assert_eq!(read(two.start..four.end), None);
    assert_eq!(read(three.end - 1..three.end), None);
    assert_eq!(torrent.probe.read.load(Relaxed), 2 * (four.end - two.start) + 1);
    // A correct byte of a wrong piece is not returned, and a second read of it costs nothing.
    assert_eq!(read(five.start..five.start + 1), Some(5));
    let before = torrent.probe.read.load(Relaxed);
    assert_eq!(read(four.start..five.start + 1), Some(5));
    assert_eq!(torrent.probe.read.load(Relaxed), before);
    assert_eq!(read(four.start..four.end), None);
}

#[test]
fn pieces_that_were_verified_or_fetched_again_are_not_verified_again() {
    let torrent = StoredTorrent::new("some-hybrid", &[1]);
    let content = torrent.open(&*torrent.verified(true));
    assert_eq!(wrong_piece(content.read_piece(0)), None);
    assert_eq!(wrong_piece(content.read_piece(1)), Some(1));
    assert!(content.mark_incomplete(1).unwrap());
    let range = torrent.range(1);
    // Any bytes: no hash has verified the piece yet.
    content.write(range.start, &[7; 100]).unwrap();
    content.read(range.start, &mut [0; 100]).unwrap();
    torrent.put(1, false);
    assert_eq!(wrong_piece(content.read_piece(1)), None);
    torrent.put(0, true);
    assert_eq!(wrong_piece(content.read_piece(0)), None, "each piece is verified once");
    assert_eq!(wrong_piece(torrent.open(&*torrent.verified(true)).read_piece(0)), Some(0));
}

#[test]
fn without_hashes_everything_is_read_as_it_is() {
    let torrent = StoredTorrent::new("one-v2", &[0]);
    assert_eq!(wrong_piece(torrent.open(&*torrent.verified(false)).read_piece(0)), None);
}

#[test]
fn a_piece_that_cannot_be_read_to_its_end_is_not_read_again_for_each_of_its_parts() {
    let torrent = StoredTorrent::new("one-v2", &[]);
    let content = torrent.open(&*torrent.verified(true));
    let piece = torrent.range(2);
    let length = piece.end - piece.start;
    let set_bad = |bad| *torrent.probe.bad.lock().unwrap() = bad;
    set_bad(Some(piece.end - 1));
    for part in 0..16 {
        let read = content.read(piece.start + part * length / 32, &mut [0; 512]);
        assert!(matches!(read, Err(Error::Io { .. })), "{read:?}");
    }
    let read = torrent.probe.read.load(Relaxed);
    assert!(read <= 2 * length, "{read} bytes were read of a piece of {length}");
    assert_eq!(wrong_piece(content.read_piece(1)), None, "all others are read");
    // It comes again.
    set_bad(None);
    content.mark_incomplete(2).unwrap();
    torrent.put(2, false);
    assert_eq!(wrong_piece(content.read_piece(2)), None);
}

#[test]
fn a_piece_that_comes_again_while_its_wrong_bytes_are_verified_is_believed() {
    let torrent = Arc::new(StoredTorrent::new("some-v1", &[1]));
    let content = torrent.open(&*torrent.verified(true));
    let (again, same) = (Arc::clone(&content), Arc::clone(&torrent));
    *torrent.probe.meanwhile.lock().unwrap() = Some(Box::new(move || {
        assert!(again.mark_incomplete(1).unwrap());
        same.put(1, false);
    }));
    assert_eq!(wrong_piece(content.read_piece(1)), Some(1), "these bytes were wrong");
    assert_eq!(wrong_piece(content.read_piece(1)), None);
}

#[test]
fn while_hashes_cannot_be_read_nothing_is() {
    let torrent = StoredTorrent::new("some-v1", &[1]);
    let (info, fails) = (Arc::clone(&torrent.info), Arc::new(AtomicBool::new(true)));
    let failing = Arc::clone(&fails);
    let verified = Verified::new(Arc::clone(&torrent.inner) as _, move |_| {
        if failing.load(Relaxed) {
            Err(Error::Unsupported("read hashes"))
        } else {
            Ok(Some(Arc::clone(&info)))
        }
    });
    let content = torrent.open(&verified);
    for _ in 0..2 {
        assert!(matches!(content.read_piece(0), Err(Error::Unsupported("read hashes"))));
    }
    fails.store(false, Relaxed);
    assert_eq!(wrong_piece(content.read_piece(0)), None);
    assert_eq!(wrong_piece(content.read_piece(1)), Some(1));
}
