//! A store in front of another whose complete pieces are verified when they are first read.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io::{self, IoSliceMut},
    ops::Range,
    sync::Arc,
    time::{Duration, Instant},
};

use parking_lot::Mutex;
use swarmkeep_metainfo::Info;

use crate::{
    Capabilities, Content, ContentExt, ContentRepository, Error, InfoHash, NewTorrent, PieceBits, Result,
    buffers::Parts, forward,
};

/// Bytes that are read at once to verify the rest of a piece.
const CHUNK: u64 = 1 << 20;

/// A piece that could not be verified, because its medium has an error, is not read again for this time.
const PAUSE: Duration = Duration::from_secs(60);

/// Whether a complete piece has the bytes of its torrent. If its hash is not known, it is only read. `chunk`
/// is memory to read into, which callers use again.
///
/// # Errors
/// As [`Content::read_at`], and [`Error::NoSuchPiece`].
pub fn verify(content: &dyn Content, info: Option<&Info>, piece: u32, chunk: &mut Vec<u8>) -> Result<bool> {
    verify_rest(content, info, piece, &ReadPart { range: 0..0, bytes: Vec::new() }, chunk)
}

/// A part of a piece that was read already.
struct ReadPart<'a> {
    range: Range<u64>,
    bytes: Vec<&'a [u8]>,
}

fn verify_rest(
    content: &dyn Content,
    info: Option<&Info>,
    piece: u32,
    part: &ReadPart<'_>,
    chunk: &mut Vec<u8>,
) -> Result<bool> {
    let range = content.geometry().piece(piece)?;
    let mut check = info.and_then(|info| info.check(piece));
    // Bytes behind the last file of a piece of v2 have no hash.
    let end = range.start + info.map_or(range.end - range.start, |info| info.piece_len(piece).into());
    let mut at = range.start;
    let mut next = |bytes: &[u8]| {
        let counted = end.saturating_sub(at).min(bytes.len() as u64) as usize;
        check.iter_mut().for_each(|check| check.update(&bytes[..counted]));
        at += bytes.len() as u64;
    };
    for (unread, read) in [
        (range.start..part.range.start, &part.bytes[..]),
        (part.range.end.max(range.start)..range.end, &[][..]),
    ] {
        for from in unread.clone().step_by(CHUNK as usize) {
            chunk.resize((unread.end - from).min(CHUNK) as usize, 0);
            content.read(from, chunk)?;
            next(chunk);
        }
        read.iter().for_each(|bytes| next(bytes));
    }
    Ok(check.is_none_or(|check| check.holds()))
}

/// A store in front of another: of the torrents whose hashes are known, each piece that is complete when the
/// torrent is first read is verified when it is first read. A read of wrong bytes is [`Error::Wrong`]. Mark
/// such a piece [incomplete](Content::mark_incomplete) to have it again.
///
/// Later marks are not checked: the caller that marks a piece has verified it. After each
/// [change](Content::changes) by another program, all complete pieces are verified again.
///
/// If a read covers a piece, the bytes that were read are verified. Otherwise the rest of the piece is read
/// too; if that fails, reads of the piece fail at once for a minute. So put it behind a
/// [`StripeCache`](crate::stripe_cache::StripeCache), which reads whole stripes. It keeps a bit per piece,
/// and the hashes of a torrent that was read until all of its pieces are verified.
pub struct Verified {
    inner: Arc<dyn ContentRepository>,
    hashes: Arc<Hashes>,
    torrents: Mutex<HashMap<InfoHash, Arc<State>>>,
}

/// With the count of [changes](Content::changes) to which it belongs.
type State = Mutex<(u64, Verification)>;

type Hashes = dyn Fn(&InfoHash) -> Result<Option<Arc<Info>>> + Send + Sync;

#[derive(Default)]
enum Verification {
    /// Not read yet.
    #[default]
    Unknown,
    /// All but these.
    Except {
        info: Arc<Info>,
        unverified: PieceBits,
        wrong: BTreeSet<u32>,
        /// Pieces that could not be read: when, and why.
        unread: BTreeMap<u32, (Instant, String)>,
    },
    /// All, or as much as can be.
    All,
}

impl Verified {
    /// Verifies the content of `inner`. `hashes` gives the info dictionary of a torrent when it is first
    /// read; `None` if it is not known: then the torrent is not verified.
    pub fn new(
        inner: Arc<dyn ContentRepository>,
        hashes: impl Fn(&InfoHash) -> Result<Option<Arc<Info>>> + Send + Sync + 'static,
    ) -> Self {
        Self { inner, hashes: Arc::new(hashes), torrents: Mutex::default() }
    }
}

impl ContentRepository for Verified {
    forward! { it, it.inner; list, flush, statistics }

    fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>> {
        let inner = self.inner.create(torrent)?;
        let state = Arc::new(Mutex::new((0, Verification::All)));
        self.torrents.lock().insert(torrent.info_hash, Arc::clone(&state));
        let (info_hash, hashes) = (torrent.info_hash, Arc::clone(&self.hashes));
        Ok(Arc::new(Handle { inner, info_hash, hashes, state }))
    }

    fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>> {
        let inner = self.inner.open(info_hash)?;
        let state = Arc::clone(self.torrents.lock().entry(*info_hash).or_default());
        Ok(Arc::new(Handle { inner, info_hash: *info_hash, hashes: Arc::clone(&self.hashes), state }))
    }

    fn delete(&self, info_hash: &InfoHash) -> Result<bool> {
        let deleted = self.inner.delete(info_hash)?;
        self.torrents.lock().remove(info_hash);
        Ok(deleted)
    }

    /// The capabilities of the store below, without labels.
    fn capabilities(&self) -> Capabilities {
        Capabilities { label: 0, ..self.inner.capabilities() }
    }
}

debug_as!(Verified, it, "Verified {{ inner: {:?}, .. }}", it.inner);

struct Handle {
    inner: Arc<dyn Content>,
    info_hash: InfoHash,
    hashes: Arc<Hashes>,
    state: Arc<State>,
}

impl Handle {
    /// The unverified pieces of a range after `changes`, with the hashes; `None` if there are none.
    fn unverified(&self, range: &Range<u64>, changes: u64) -> Result<Option<(Arc<Info>, Vec<u32>)>> {
        let (since, state) = &mut *self.state.lock();
        if matches!(*state, Verification::Unknown) || *since != changes {
            let known = (self.hashes)(&self.info_hash)?;
            *since = changes;
            *state = match known.filter(|info| info.knows_hashes()) {
                Some(info) => Verification::Except {
                    info,
                    unverified: self.inner.pieces()?,
                    wrong: BTreeSet::new(),
                    unread: BTreeMap::new(),
                },
                None => Verification::All,
            };
        }
        let Verification::Except { info, unverified, wrong, unread } = state else { return Ok(None) };
        let pieces = self.inner.geometry().pieces_of(range);
        if let Some(&piece) = wrong.range(pieces.clone()).next() {
            return Err(Error::Wrong { piece });
        }
        let mut unread = unread.range(pieces.clone());
        if let Some((_, (_, why))) = unread.find(|(_, (since, _))| since.elapsed() < PAUSE) {
            return Err(Error::Io { what: "verifying a piece", source: io::Error::other(why.clone()) });
        }
        let pieces: Vec<_> = pieces.filter(|&piece| unverified.contains(piece)).collect();
        Ok((!pieces.is_empty()).then(|| (Arc::clone(info), pieces)))
    }

    /// Notes the result for a piece after `changes`, unless there was another change.
    fn note(&self, piece: u32, is_right: &Result<bool>, changes: u64) {
        let (since, state) = &mut *self.state.lock();
        let Verification::Except { unverified, wrong, unread, .. } = state else { return };
        if *since != changes {
            return;
        }
        // It may have been marked incomplete meanwhile.
        let counts = unverified.contains(piece);
        match is_right {
            Ok(false) if counts => _ = wrong.insert(piece),
            Err(error @ Error::Io { .. }) if counts => {
                unread.insert(piece, (Instant::now(), error.to_string()));
            }
            Err(_) => {}
            Ok(_) => {
                unverified.remove(piece);
                wrong.remove(&piece);
                unread.remove(&piece);
            }
        }
        if unverified.count() == 0 {
            *state = Verification::All;
        }
    }
}

impl Content for Handle {
    forward! {
        it, it.inner;
        geometry, write_at, mark_complete, pieces, place, is_read_only, changes, verify_changes, room_for
    }

    fn read_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<()> {
        let geometry = self.inner.geometry();
        let len = buffers.iter().map(|buffer| buffer.len() as u64).sum();
        let range = geometry.range(offset, len)?;
        let (unverified, changes) = loop {
            let changes = self.inner.changes();
            let unverified = self.unverified(&range, changes)?;
            self.inner.read_at(offset, buffers)?;
            if self.inner.changes() == changes {
                break (unverified, changes);
            }
        };
        let Some((info, pieces)) = unverified else { return Ok(()) };
        let (mut rest, mut at) = (Parts::new(buffers.iter().map(|buffer| &**buffer)), offset);
        let (mut chunk, mut wrong) = (Vec::new(), None);
        for piece in pieces {
            let whole = geometry.piece(piece)?;
            let range = whole.start.max(range.start)..whole.end.min(range.end);
            rest.take(range.start - at);
            at = range.end;
            let part = ReadPart { bytes: rest.take(range.end - range.start), range };
            let is_right = verify_rest(&*self.inner, Some(&info), piece, &part, &mut chunk);
            self.note(piece, &is_right, changes);
            if !is_right? {
                wrong.get_or_insert(piece);
            }
        }
        wrong.map_or(Ok(()), |piece| Err(Error::Wrong { piece }))
    }

    fn mark_incomplete(&self, piece: u32) -> Result<bool> {
        let was = self.inner.mark_incomplete(piece)?;
        self.note(piece, &Ok(true), self.inner.changes());
        Ok(was)
    }
}

debug_as!(Handle, it, "Handle {{ inner: {:?}, .. }}", it.inner);
