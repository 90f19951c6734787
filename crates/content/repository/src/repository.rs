//! The traits: what every store of content does, method by method.

use std::{
    fmt,
    io::{IoSlice, IoSliceMut},
    ops::Range,
    sync::Arc,
};

use crate::{Capabilities, Geometry, InfoHash, NewTorrent, PieceBits, Result, Statistics, Summary};

/// A store of torrents' bytes.
///
/// Each sentence of these contracts is a case of the conformance suite (feature `conformance`). What holds
/// for all methods:
///
/// - Every method may be called from any number of threads, and blocks the thread that calls it: in an
///   asynchronous program, call from a pool of threads.
/// - No call panics for what a stranger sent, and an error leaves everything that it does not name as it was.
/// - After an error of the medium while writing, each byte of that write either reads as it did before or
///   counts as never written.
/// - [`Full`](crate::Error::Full) says that there was no room, and leaves nothing half-done: what was there
///   stays, what was to come did not. (What was [held back](Content::write_at) is refused later, by a store
///   that could not know better.)
pub trait ContentRepository: fmt::Debug + Send + Sync {
    /// Takes in a torrent, of which nothing is written and no piece complete.
    ///
    /// Room is taken by what is written, or set aside for the whole length, and then no write is ever
    /// [`Full`](crate::Error::Full). When it returns, the torrent is there whatever happens next, in a store
    /// that is [durable](Capabilities::durable).
    ///
    /// # Errors
    /// [`Exists`](crate::Error::Exists) if a torrent of this info hash is there, which stays as it was;
    /// [`Full`](crate::Error::Full).
    fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>>;

    /// The content of a torrent. Any number of handles may be open; they show the same bytes and pieces.
    ///
    /// # Errors
    /// [`NotFound`](crate::Error::NotFound).
    fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>>;

    /// Every torrent, once, in ascending order of info hash. O(n log n).
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io).
    fn list(&self) -> Result<Vec<Summary>>;

    /// Forgets a torrent and its bytes; `false` if there is none.
    ///
    /// Waits for the calls that are under way in it. From then on its handles answer
    /// [`Deleted`](crate::Error::Deleted), also when a torrent of the same info hash is created anew, of
    /// which nothing is written. Its room can be used again. When it returns, the torrent is gone whatever
    /// happens next.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io).
    fn delete(&self, info_hash: &InfoHash) -> Result<bool>;

    /// Makes durable what was done.
    ///
    /// When it returns, every write and every mark whose call had returned before this one began survives the
    /// end of the process and of the machine, in a store that is [durable](Capabilities::durable): pieces
    /// that were complete are complete when the store is opened again, and read as they did. Of what was done
    /// later, any part may survive: a piece then complete had been marked so, and reads as it did when it was
    /// marked. A store that is not durable is empty when it is opened again.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io): some of it may not be durable. [`Refused`](crate::Error::Refused): what was
    /// held back of a torrent was refused; everything else is as durable as without it. A flush tells of one
    /// torrent, and leaves others to the next; a flush that had begun when another one told of what it covers
    /// tells as well.
    fn flush(&self) -> Result<()>;

    /// Counts, and what the store holds. Takes no time that grows with the content.
    fn statistics(&self) -> Statistics;

    /// What this store can do beyond the rest of this trait.
    fn capabilities(&self) -> Capabilities;
}

/// The bytes of one torrent, in the order of its pieces.
pub trait Content: fmt::Debug + Send + Sync {
    /// Its measures.
    fn geometry(&self) -> Geometry;

    /// Writes the buffers, one after another, from byte `offset` on.
    ///
    /// When it returns, they can be read. Written again, a byte reads as it was written last; of two writes
    /// at once that share bytes, each byte is that of one of them, and bytes of neither stay as they were. A
    /// write of nothing does nothing, in a complete piece too.
    ///
    /// **Back-pressure.** A store may hold bytes in memory, up to a [limit](Statistics::most_unwritten): a
    /// write that would exceed it waits until there is room, and one that is larger goes through all the
    /// same. If the medium later refuses bytes that were held back, they count as never written, and pieces
    /// that were marked complete with them are incomplete again. The next write to the torrent says why and
    /// writes nothing; so does the next [flush](ContentRepository::flush). A torrent that is deleted has
    /// nothing to say.
    ///
    /// # Errors
    /// [`OutOfRange`](crate::Error::OutOfRange); [`Complete`](crate::Error::Complete) with the first complete
    /// piece that a byte belongs to; both before anything is written. [`Full`](crate::Error::Full).
    fn write_at(&self, offset: u64, buffers: &[IoSlice<'_>]) -> Result<()>;

    /// Fills the buffers, one after another, from byte `offset` on.
    ///
    /// What can be read is every byte of a complete piece and every byte that was written since the store was
    /// opened, and nothing else: bytes of incomplete pieces do not outlive the store. A read of nothing fills
    /// nothing, wherever it lies in the torrent.
    ///
    /// # Errors
    /// [`OutOfRange`](crate::Error::OutOfRange); [`NotWritten`](crate::Error::NotWritten) with the first byte
    /// that cannot be read. What the buffers hold then is of no meaning, but never another torrent's bytes.
    fn read_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<()>;

    /// Vouches for a piece, whose hash the caller has found right; `false` if it was complete already.
    ///
    /// Waits for the writes that are under way in the torrent.
    ///
    /// # Errors
    /// [`NotWritten`](crate::Error::NotWritten) with the first byte of it that was not written,
    /// [`NoSuchPiece`](crate::Error::NoSuchPiece).
    fn mark_complete(&self, piece: u32) -> Result<bool>;

    /// Takes back what was vouched for, and forgets the bytes of the piece; `false` if it was incomplete and
    /// stays as it was.
    ///
    /// When it returns, the piece is incomplete whatever happens next, and may be written again, in a store
    /// that is full too.
    ///
    /// # Errors
    /// [`NoSuchPiece`](crate::Error::NoSuchPiece), [`Io`](crate::Error::Io).
    fn mark_incomplete(&self, piece: u32) -> Result<bool>;

    /// Which pieces are complete. Takes time with their number.
    ///
    /// # Errors
    /// [`Deleted`](crate::Error::Deleted).
    fn pieces(&self) -> Result<PieceBits>;

    /// Where on the medium a byte lies: bytes with neighbouring places are best used one after another.
    /// `None` where that is unknown, or not decided yet, beyond the end, and of a torrent that was deleted.
    fn place(&self, offset: u64) -> Option<u64> {
        let _ = offset;
        None
    }

    /// What a write of a range, which lies in the torrent, would take of what is [free](Statistics::free)
    /// now: an upper bound. For a part of a range it is no more than for all of it, and for several writes no
    /// more than the sum.
    ///
    /// Who holds writes back asks for it, to know what they will need; a store that takes more than the bytes
    /// it is given, or knows that it has taken them already, says so.
    fn room_for(&self, range: Range<u64>) -> u64 {
        range.end - range.start
    }
}

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        impl<R: ContentRepository + ?Sized> ContentRepository for $pointer {
            fn create(&self, torrent: &NewTorrent) -> Result<Arc<dyn Content>> {
                (**self).create(torrent)
            }

            fn open(&self, info_hash: &InfoHash) -> Result<Arc<dyn Content>> {
                (**self).open(info_hash)
            }

            fn list(&self) -> Result<Vec<Summary>> {
                (**self).list()
            }

            fn delete(&self, info_hash: &InfoHash) -> Result<bool> {
                (**self).delete(info_hash)
            }

            fn flush(&self) -> Result<()> {
                (**self).flush()
            }

            fn statistics(&self) -> Statistics {
                (**self).statistics()
            }

            fn capabilities(&self) -> Capabilities {
                (**self).capabilities()
            }
        }
    )*};
}

forward!(&R, Box<R>, Arc<R>);

/// Conveniences over the content of any torrent.
pub trait ContentExt: Content {
    /// Writes one buffer.
    ///
    /// # Errors
    /// As [`Content::write_at`].
    fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.write_at(offset, &[IoSlice::new(bytes)])
    }

    /// Fills one buffer.
    ///
    /// # Errors
    /// As [`Content::read_at`].
    fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.read_at(offset, &mut [IoSliceMut::new(bytes)])
    }

    /// The bytes of a piece.
    ///
    /// # Errors
    /// As [`Content::read_at`], and [`NoSuchPiece`](crate::Error::NoSuchPiece).
    fn read_piece(&self, piece: u32) -> Result<Vec<u8>> {
        let range = self.geometry().piece(piece)?;
        let mut bytes = vec![0; (range.end - range.start) as usize];
        self.read(range.start, &mut bytes)?;
        Ok(bytes)
    }
}

impl<C: Content + ?Sized> ContentExt for C {}
