//! The actions of a store before it crashes, and its promises by then.

use serde::{Deserialize, Serialize};
use swarmkeep_content::{InfoHash, Library};

use super::*;

/// The promises of a store: the torrents that must be there, and those which may be.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Promises {
    pub(crate) torrents: BTreeMap<u64, PromisedTorrent>,
    /// The action under way: done, or not.
    pub(crate) doing: Option<Action>,
    /// The number of torrents ever created, so that each has its own content.
    created: u64,
}

/// A torrent that was created and not deleted.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PromisedTorrent {
    /// The seed of its content.
    pub(crate) number: u64,
    pub(crate) length: u64,
    pub(crate) piece_length: u32,
    pub(crate) pieces: BTreeMap<u32, Piece>,
    /// The number of its labels so far: it must have one that is not older than `label_durable`.
    pub(crate) label: u64,
    pub(crate) label_durable: u64,
}

#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Piece {
    /// It was flushed: it has to be complete.
    pub(crate) durable: bool,
    /// It was marked: it may be complete.
    pub(crate) marked: bool,
    /// The number of writes, each with other bytes.
    pub(crate) version: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Action {
    Create(u64),
    Delete(u64),
    Write(u64, u32),
    Mark(u64, u32),
    Unmark(u64, u32),
    Label(u64),
    Flush,
}

pub(crate) fn hash(name: u64) -> InfoHash {
    let mut bytes = [0xc4; 20];
    bytes[..8].copy_from_slice(&name.to_le_bytes());
    InfoHash::new(bytes)
}

/// The torrent file of each torrent of a name: a library treats all files with its info hash as the same.
pub(crate) fn torrent_file(name: u64) -> Vec<u8> {
    content(name, u32::MAX, 0, 300 + 50 * (name % 6) as usize)
}

/// The correct content of a piece of a torrent: a number of its own in each 512 bytes, the least that a crash
/// tears.
pub(crate) fn content(number: u64, piece: u32, version: u64, len: usize) -> Vec<u8> {
    let seed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (u64::from(piece) << 20) ^ version;
    let mut rng = SplitMix64::new(seed);
    let mut bytes = vec![0; len];
    for sector in bytes.chunks_mut(512) {
        let numbers = rng.next_u64().to_le_bytes().repeat(sector.len().div_ceil(8));
        sector.copy_from_slice(&numbers[..sector.len()]);
    }
    bytes
}

impl PromisedTorrent {
    /// A torrent without written pieces.
    pub(crate) fn new(number: u64, length: u64, piece_length: u32) -> Self {
        Self { number, length, piece_length, pieces: BTreeMap::new(), label: 0, label_durable: 0 }
    }

    pub(crate) fn piece_len(&self, piece: u32) -> usize {
        let start = u64::from(piece) * u64::from(self.piece_length);
        (self.length - start).min(self.piece_length.into()) as usize
    }

    fn count(&self) -> u32 {
        self.length.div_ceil(self.piece_length.into()) as u32
    }
}

pub(crate) struct StoreWorkload<'a> {
    pub(crate) store: &'a BlockStore,
    pub(crate) torrents: Library,
    /// Receives the promises before and after each action.
    pub(crate) note: &'a dyn Fn(&Promises),
    pub(crate) promises: Promises,
    pub(crate) rng: SplitMix64,
}

impl<'a> StoreWorkload<'a> {
    pub(crate) fn new(
        store: &'a BlockStore,
        folder: impl TorrentFolder + 'static,
        note: &'a dyn Fn(&Promises),
        promises: Promises,
        rng: SplitMix64,
    ) -> Self {
        Self { store, torrents: Library::new(Arc::new(store.clone()), folder), note, promises, rng }
    }

    fn draw(&mut self, below: u64) -> u64 {
        self.rng.next_u64() % below
    }

    /// Does `actions` random actions. Fails if the store contradicts itself.
    pub(crate) fn run(&mut self, actions: usize) -> Result<(), String> {
        self.say(None);
        for _ in 0..actions {
            self.act();
            self.store.audit()?;
        }
        Ok(())
    }

    /// Adds `torrents` empty torrents: the entries of the root take more than a sector.
    pub(crate) fn crowd(&mut self, torrents: u64) {
        for name in (100..).take(torrents as usize) {
            self.create(name, 1, 1);
        }
    }

    fn say(&mut self, doing: Option<Action>) {
        self.promises.doing = doing;
        (self.note)(&self.promises);
    }

    fn act(&mut self) {
        let name = self.draw(6);
        let Some(torrent) = self.promises.torrents.get(&name) else {
            let piece_length = [4096, 5000, 16 << 10, 40_000][self.draw(4) as usize];
            // One in eight has a map that does not fit into an i-node of 16 KiB, the largest there is in such
            // blocks.
            let length = if self.draw(8) == 0 { 70 << 20 } else { 1 + self.draw(300_000) };
            self.create(name, length, piece_length);
            return;
        };
        let pieces = torrent.count();
        // Mostly near the front, so that the same pieces return.
        let piece =
            if self.draw(4) == 0 { self.draw(pieces.into()) } else { self.draw(u64::from(pieces.min(12))) }
                as u32;
        match self.draw(16) {
            0 => self.delete(name),
            1 | 2 => self.unmark(name, piece),
            3 | 4 => self.flush(),
            5 | 6 => self.part_of_a_piece(name, piece),
            7 => self.label(name),
            _ => self.write_and_mark(name, piece),
        }
    }

    fn create(&mut self, name: u64, length: u64, piece_length: u32) {
        self.say(Some(Action::Create(name)));
        let new = NewTorrent::new(hash(name), length, piece_length).unwrap();
        match self.torrents.create(&new, &torrent_file(name)) {
            Ok(_) => {
                self.promises.created += 1;
                let number = self.promises.created;
                self.promises.torrents.insert(name, PromisedTorrent::new(number, length, piece_length));
            }
            Err(Error::Full { .. }) => {}
            Err(error) => panic!("create: {error}"),
        }
        self.say(None);
    }

    fn delete(&mut self, name: u64) {
        self.say(Some(Action::Delete(name)));
        assert!(self.store.delete(&hash(name)).unwrap());
        self.promises.torrents.remove(&name);
        self.say(None);
    }

    fn write_and_mark(&mut self, name: u64, piece: u32) {
        let Some(bytes) = self.begin(name, piece) else { return };
        let content = self.store.open(&hash(name)).unwrap();
        let start = content.geometry().piece(piece).unwrap().start;
        match content.write(start, &bytes) {
            Ok(()) => {}
            Err(Error::Full { .. }) => return,
            Err(error) => panic!("write: {error}"),
        }
        self.say(Some(Action::Mark(name, piece)));
        assert!(content.mark_complete(piece).unwrap());
        self.promises.torrents.get_mut(&name).unwrap().pieces.get_mut(&piece).unwrap().marked = true;
        self.say(None);
    }

    fn part_of_a_piece(&mut self, name: u64, piece: u32) {
        let Some(bytes) = self.begin(name, piece) else { return };
        let content = self.store.open(&hash(name)).unwrap();
        let start = content.geometry().piece(piece).unwrap().start;
        match content.write(start, &bytes[..bytes.len() / 2]) {
            Ok(()) | Err(Error::Full { .. }) => self.say(None),
            Err(error) => panic!("write: {error}"),
        }
    }

    /// The bytes of a new version of a piece, unless it is complete.
    fn begin(&mut self, name: u64, piece: u32) -> Option<Vec<u8>> {
        let torrent = self.promises.torrents.get_mut(&name).unwrap();
        let (number, len) = (torrent.number, torrent.piece_len(piece));
        let known = torrent.pieces.entry(piece).or_default();
        if known.marked {
            return None;
        }
        known.version += 1;
        let bytes = content(number, piece, known.version, len);
        self.say(Some(Action::Write(name, piece)));
        Some(bytes)
    }

    fn unmark(&mut self, name: u64, piece: u32) {
        self.say(Some(Action::Unmark(name, piece)));
        let content = self.store.open(&hash(name)).unwrap();
        let was = content.mark_incomplete(piece).unwrap();
        if let Some(known) = self.promises.torrents.get_mut(&name).unwrap().pieces.get_mut(&piece) {
            assert_eq!(known.marked, was);
            (known.marked, known.durable) = (false, false);
        }
        self.say(None);
    }

    fn label(&mut self, name: u64) {
        let torrent = self.promises.torrents.get_mut(&name).unwrap();
        torrent.label += 1;
        let label = [torrent.number, torrent.label].map(u64::to_le_bytes).concat();
        self.say(Some(Action::Label(name)));
        self.store.set_label(&hash(name), &label).unwrap();
        self.say(None);
    }

    fn flush(&mut self) {
        self.say(Some(Action::Flush));
        self.store.flush().unwrap();
        for torrent in self.promises.torrents.values_mut() {
            torrent.pieces.values_mut().for_each(|piece| piece.durable = piece.marked);
            torrent.label_durable = torrent.label;
        }
        self.say(None);
    }
}
