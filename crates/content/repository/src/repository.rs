//! The traits: the contract of all stores of content, method by method.

use std::{
    fmt,
    io::{IoSlice, IoSliceMut},
    ops::Range,
    sync::Arc,
};

use crate::{Capabilities, Geometry, InfoHash, NewTorrent, PieceBits, Result, Statistics, Summary};

/// A store of torrents' bytes.
///
/// Each sentence of this contract is a case of the conformance suite in the project's `tests/kit`. For all
/// methods:
///
/// - Every method may be called from any number of threads, and blocks the thread that calls it: in an
///   asynchronous program, call from a pool of threads.
/// - No call panics because of data from a remote peer. An error changes nothing except the things it names.
/// - After an error of the medium while writing, each byte of that write either reads as it did before or
///   counts as never written.
/// - [`Full`](crate::Error::Full) means that there was no room. The store is as it was before the call. (A
///   write that was [held back](Content::write_at) is refused later if the store could not know that.)
pub trait ContentRepository: fmt::Debug + Send + Sync {
    /// Creates a torrent. None of its bytes is written, and none of its pieces is complete.
    ///
    /// A store takes room as bytes are written, or for the whole length at once; then no write is ever
    /// [`Full`](crate::Error::Full). When `create` returns, the torrent survives a crash, in a store that is
    /// [durable](Capabilities::durable).
    ///
    /// # Errors
    /// [`Exists`](crate::Error::Exists) if the store has a torrent of this info hash, which stays as it was;
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

    /// Deletes a torrent and its bytes; returns `false` if there is none.
    ///
    /// Waits for the calls in progress on the torrent. From then on its handles return
    /// [`Deleted`](crate::Error::Deleted), even if a torrent of the same info hash is created again; of that
    /// one nothing is written. The room of the torrent can be used again. When `delete` returns, no crash
    /// brings the torrent back.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io).
    fn delete(&self, info_hash: &InfoHash) -> Result<bool>;

    /// Makes earlier writes and marks durable.
    ///
    /// When `flush` returns, every write and every mark that had returned before `flush` began survives a
    /// crash of the process and of the machine, in a store that is [durable](Capabilities::durable): pieces
    /// that were complete are complete when the store is opened again, with the same bytes. Of later calls,
    /// any part may survive: each piece that is complete then had been marked complete, and has the bytes
    /// that it had when it was marked. A store that is not durable is empty when it is opened again.
    ///
    /// # Errors
    /// [`Io`](crate::Error::Io): some of it may not be durable. [`Refused`](crate::Error::Refused): the
    /// medium refused bytes of one torrent that were held back; everything else is durable. A flush reports
    /// one such torrent, and the next flush the next one. If two flushes run at once and both cover the
    /// refusal, both report it.
    fn flush(&self) -> Result<()>;

    /// Counts of calls, and the current contents of the store. Its time does not grow with the content.
    fn statistics(&self) -> Statistics;

    /// The abilities of this store beyond the requirements of the trait.
    fn capabilities(&self) -> Capabilities;

    /// The label of a torrent: a few bytes of its caller that the store keeps with it, and reads when it is
    /// opened. Empty until it is [set](Self::set_label), and in a store that keeps none. It is shared, not
    /// copied.
    ///
    /// # Errors
    /// [`NotFound`](crate::Error::NotFound).
    fn label(&self, info_hash: &InfoHash) -> Result<Arc<[u8]>> {
        self.open(info_hash).map(|_| Arc::default())
    }

    /// Replaces the label of a torrent. The next [flush](Self::flush) makes it durable; after a crash before
    /// that, it is the old label or the new one.
    ///
    /// # Errors
    /// [`Unsupported`](crate::Error::Unsupported) if `label` is longer than the store
    /// [keeps](Capabilities::label); [`NotFound`](crate::Error::NotFound);
    /// [`Deleted`](crate::Error::Deleted) if the torrent is deleted meanwhile;
    /// [`ReadOnly`](crate::Error::ReadOnly).
    fn set_label(&self, info_hash: &InfoHash, label: &[u8]) -> Result<()> {
        let _ = (info_hash, label);
        Err(crate::Error::Unsupported("keep labels"))
    }
}

/// The bytes of one torrent, in the order of its pieces.
pub trait Content: fmt::Debug + Send + Sync {
    /// The length of the torrent and of its pieces.
    fn geometry(&self) -> Geometry;

    /// Writes the buffers, one after another, from byte `offset` on.
    ///
    /// When `write_at` returns, the bytes can be read. Each byte reads as it was last written. Where two
    /// simultaneous writes overlap, each byte comes from one of them; all other bytes stay as they were. A
    /// write of no bytes does nothing, in a complete piece too.
    ///
    /// **Back-pressure.** A store may hold bytes back in memory, up to a [limit](Statistics::most_unwritten).
    /// A write that would exceed the limit waits until there is room; a single write that is larger than the
    /// limit succeeds all the same. If the medium later refuses bytes that were held back, they count as
    /// never written, and pieces that were marked complete with them are incomplete again. The next write to
    /// the torrent returns the error and writes nothing, and so does the next
    /// [flush](ContentRepository::flush). For a deleted torrent, nothing is reported.
    ///
    /// # Errors
    /// [`OutOfRange`](crate::Error::OutOfRange); [`Complete`](crate::Error::Complete) with the first complete
    /// piece in the range; both before anything is written. [`Full`](crate::Error::Full).
    fn write_at(&self, offset: u64, buffers: &[IoSlice<'_>]) -> Result<()>;

    /// Fills the buffers, one after another, from byte `offset` on.
    ///
    /// Every byte of a complete piece can be read, and every byte that was written since the store was
    /// opened. No other byte can be read: bytes of incomplete pieces do not outlive the store. A read of no
    /// bytes succeeds anywhere in the torrent.
    ///
    /// # Errors
    /// [`OutOfRange`](crate::Error::OutOfRange); [`NotWritten`](crate::Error::NotWritten) with the first byte
    /// that cannot be read. The buffers then hold any bytes, but never those of another torrent.
    fn read_at(&self, offset: u64, buffers: &mut [IoSliceMut<'_>]) -> Result<()>;

    /// Marks a piece complete, after the caller has verified its hash; returns `false` if it was complete
    /// already.
    ///
    /// Waits for the writes in progress on the torrent.
    ///
    /// # Errors
    /// [`NotWritten`](crate::Error::NotWritten) with the first byte of it that was not written; instead, the
    /// error of the medium if it refused bytes that were held back.
    /// [`NoSuchPiece`](crate::Error::NoSuchPiece).
    fn mark_complete(&self, piece: u32) -> Result<bool>;

    /// Marks a piece incomplete and forgets its bytes; returns `false` if it was incomplete, and then changes
    /// nothing.
    ///
    /// When `mark_incomplete` returns, no crash makes the piece complete again. It can be written again, even
    /// in a full store.
    ///
    /// # Errors
    /// [`NoSuchPiece`](crate::Error::NoSuchPiece), [`Io`](crate::Error::Io).
    fn mark_incomplete(&self, piece: u32) -> Result<bool>;

    /// The complete pieces. O(pieces).
    ///
    /// # Errors
    /// [`Deleted`](crate::Error::Deleted).
    fn pieces(&self) -> Result<PieceBits>;

    /// The place of a byte on the medium. Bytes with neighbouring places are best read or written one after
    /// another. `None` if the place is unknown or not decided yet, beyond the end, and for a deleted torrent.
    fn place(&self, offset: u64) -> Option<u64> {
        let _ = offset;
        None
    }

    /// Whether its missing pieces are never fetched, because nothing is written to it.
    fn is_read_only(&self) -> bool {
        false
    }

    /// How often other programs have changed complete pieces, as far as reads and
    /// [`verify_changes`](Self::verify_changes) have noticed. After a change, they are to be verified again.
    fn changes(&self) -> u64 {
        0
    }

    /// Verifies the content again that other programs have changed, which may take long. Ends early when
    /// `ends` returns `true`. Returns whether anything has [changed](Self::changes) since the last call:
    /// other pieces may be complete then.
    fn verify_changes(&self, ends: &dyn Fn() -> bool) -> bool {
        let _ = ends;
        false
    }

    /// An upper bound of the [free](Statistics::free) room that a write of `range`, which lies in the
    /// torrent, would take now. For a part of a range it is no more than for all of it, and for several
    /// writes no more than the sum.
    ///
    /// A cache that holds writes back uses it to know the room that they will need. A store overrides it if
    /// it takes more room than the bytes of a write, or if it has taken the room already.
    fn room_for(&self, range: Range<u64>) -> u64 {
        range.end - range.start
    }
}

/// Implements methods of [`ContentRepository`] or [`Content`] by those of another value: `forward! { it,
/// it.inner; list, flush }`.
#[doc(hidden)]
#[macro_export]
macro_rules! forward {
    ($it:ident, $inner:expr; $($method:ident),*) => { $($crate::forward! { @$method $it, $inner })* };
    (@ $it:ident, $inner:expr, $method:ident($($name:ident: $of:ty),*) -> $result:ty) => {
        fn $method(&self, $($name: $of),*) -> $result {
            let $it = self;
            $inner.$method($($name),*)
        }
    };
    (@create $($to:tt)*) => { $crate::forward! { @ $($to)*, create(torrent: &$crate::NewTorrent) -> $crate::Result<::std::sync::Arc<dyn $crate::Content>> } };
    (@open $($to:tt)*) => { $crate::forward! { @ $($to)*, open(info_hash: &$crate::InfoHash) -> $crate::Result<::std::sync::Arc<dyn $crate::Content>> } };
    (@list $($to:tt)*) => { $crate::forward! { @ $($to)*, list() -> $crate::Result<Vec<$crate::Summary>> } };
    (@delete $($to:tt)*) => { $crate::forward! { @ $($to)*, delete(info_hash: &$crate::InfoHash) -> $crate::Result<bool> } };
    (@flush $($to:tt)*) => { $crate::forward! { @ $($to)*, flush() -> $crate::Result<()> } };
    (@statistics $($to:tt)*) => { $crate::forward! { @ $($to)*, statistics() -> $crate::Statistics } };
    (@capabilities $($to:tt)*) => { $crate::forward! { @ $($to)*, capabilities() -> $crate::Capabilities } };
    (@label $($to:tt)*) => { $crate::forward! { @ $($to)*, label(info_hash: &$crate::InfoHash) -> $crate::Result<::std::sync::Arc<[u8]>> } };
    (@set_label $($to:tt)*) => { $crate::forward! { @ $($to)*, set_label(info_hash: &$crate::InfoHash, label: &[u8]) -> $crate::Result<()> } };
    (@geometry $($to:tt)*) => { $crate::forward! { @ $($to)*, geometry() -> $crate::Geometry } };
    (@write_at $($to:tt)*) => { $crate::forward! { @ $($to)*, write_at(offset: u64, buffers: &[::std::io::IoSlice<'_>]) -> $crate::Result<()> } };
    (@mark_complete $($to:tt)*) => { $crate::forward! { @ $($to)*, mark_complete(piece: u32) -> $crate::Result<bool> } };
    (@mark_incomplete $($to:tt)*) => { $crate::forward! { @ $($to)*, mark_incomplete(piece: u32) -> $crate::Result<bool> } };
    (@pieces $($to:tt)*) => { $crate::forward! { @ $($to)*, pieces() -> $crate::Result<$crate::PieceBits> } };
    (@place $($to:tt)*) => { $crate::forward! { @ $($to)*, place(offset: u64) -> Option<u64> } };
    (@is_read_only $($to:tt)*) => { $crate::forward! { @ $($to)*, is_read_only() -> bool } };
    (@changes $($to:tt)*) => { $crate::forward! { @ $($to)*, changes() -> u64 } };
    (@verify_changes $($to:tt)*) => { $crate::forward! { @ $($to)*, verify_changes(ends: &dyn Fn() -> bool) -> bool } };
    (@room_for $($to:tt)*) => { $crate::forward! { @ $($to)*, room_for(range: ::std::ops::Range<u64>) -> u64 } };
}

impl<R: ContentRepository + ?Sized> ContentRepository for Arc<R> {
    forward! { it, **it; create, open, list, delete, flush, statistics, capabilities, label, set_label }
}

/// Shorter forms of the methods of [`Content`].
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
