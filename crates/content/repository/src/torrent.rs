//! The data of a torrent that a store needs before any of its bytes: its length and its pieces.

use std::{num::NonZeroU32, ops::Range, sync::Arc};

use swarmkeep_metainfo::{FileList, Info};

use crate::{Error, InfoHash, Result};

/// The length of a torrent and of its pieces.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Geometry {
    length: u64,
    piece_length: NonZeroU32,
}

impl Geometry {
    /// A torrent of `length` bytes, in pieces of `piece_length` bytes of which the last may be shorter.
    ///
    /// # Errors
    /// [`Error::Geometry`] if either is 0, or if there are more than 2³² − 1 pieces, which the peer protocol
    /// cannot name.
    pub fn new(length: u64, piece_length: u32) -> Result<Self> {
        let wrong = |what| Error::Geometry { length, piece_length, what };
        let piece_length = NonZeroU32::new(piece_length).ok_or(wrong("pieces have no length"))?;
        if length == 0 {
            return Err(wrong("there is nothing to hold"));
        }
        if u32::try_from(length.div_ceil(piece_length.get().into())).is_err() {
            return Err(wrong("there are more pieces than 32 bits can count"));
        }
        Ok(Self { length, piece_length })
    }

    /// Bytes in all.
    #[expect(clippy::len_without_is_empty, reason = "no torrent is empty")]
    pub const fn len(&self) -> u64 {
        self.length
    }

    /// Bytes of a piece, except the last.
    pub const fn piece_length(&self) -> u32 {
        self.piece_length.get()
    }

    /// The number of pieces.
    pub const fn pieces(&self) -> u32 {
        self.length.div_ceil(self.piece_length.get() as u64) as u32
    }

    /// The bytes of a piece.
    ///
    /// # Errors
    /// [`Error::NoSuchPiece`].
    pub fn piece(&self, piece: u32) -> Result<Range<u64>> {
        if piece >= self.pieces() {
            return Err(Error::NoSuchPiece { piece, pieces: self.pieces() });
        }
        let start = u64::from(piece) * u64::from(self.piece_length.get());
        Ok(start..self.length.min(start + u64::from(self.piece_length.get())))
    }

    /// The pieces that have bytes in `range`, which lies in the torrent.
    pub fn pieces_of(&self, range: &Range<u64>) -> Range<u32> {
        if range.is_empty() {
            return 0..0;
        }
        let piece_of = |byte: u64| (byte / u64::from(self.piece_length.get())) as u32;
        piece_of(range.start)..piece_of(range.end - 1) + 1
    }

    /// The range of `len` bytes from `offset` on.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] if it does not lie in the torrent.
    pub fn range(&self, offset: u64, len: u64) -> Result<Range<u64>> {
        match offset.checked_add(len) {
            Some(end) if end <= self.length => Ok(offset..end),
            _ => Err(Error::OutOfRange { offset, len, length: self.length }),
        }
    }
}

/// A torrent that a store is to create.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct NewTorrent {
    /// Its name in the store.
    pub info_hash: InfoHash,
    /// Its length, and the length of its pieces.
    pub geometry: Geometry,
    /// Its files, if they are known; together they are as long as the torrent. A store that keeps one range
    /// of bytes per torrent ignores them.
    pub files: Option<Arc<FileList>>,
}

impl NewTorrent {
    /// A torrent without a list of files.
    ///
    /// # Errors
    /// [`Error::Geometry`], as [`Geometry::new`] says.
    pub fn new(info_hash: InfoHash, length: u64, piece_length: u32) -> Result<Self> {
        Ok(Self { info_hash, geometry: Geometry::new(length, piece_length)?, files: None })
    }

    /// A torrent of `files`. Its length is the sum of all files, padding included.
    ///
    /// # Errors
    /// [`Error::Geometry`], as [`Geometry::new`] says.
    pub fn with_files(
        info_hash: InfoHash,
        piece_length: u32,
        files: impl Into<Arc<FileList>>,
    ) -> Result<Self> {
        let files = files.into();
        Ok(Self { info_hash, geometry: Geometry::new(files.length(), piece_length)?, files: Some(files) })
    }

    /// The torrent that an info dictionary describes. Copies the list of its files.
    ///
    /// # Errors
    /// [`Error::Geometry`] if its files are empty.
    pub fn of(info: &Info) -> Result<Self> {
        Self::with_files(info.info_hash(), info.piece_length(), info.files().clone())
    }
}
