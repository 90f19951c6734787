//! Torrent files beside the store that has their content, for the processes that open it later.

use std::{collections::HashSet, io, sync::Arc};

use parking_lot::Mutex;
use swarmkeep_metainfo::{Info, Metainfo};

use crate::{Content, ContentRepository, Error, Geometry, InfoHash, NewTorrent, Result, random::random};
pub use folder::{FileFolder, TorrentFolder};
pub use label::Description;

mod folder;
mod label;

/// The torrent files of the torrents in a store.
///
/// They are `INFO-HASH.torrent`, in hexadecimal, in one folder. A file that is being written is called
/// `.INFO-HASH.RANDOM.new` until its bytes are durable. A torrent file is durable before its torrent is
/// created. It stays when the torrent is deleted, because another store may have the same folder.
///
/// A torrent's [label](ContentRepository::label) describes its torrent file, so that a list reads none. All
/// numbers are little-endian:
///
/// | at | bytes | |
/// |---|---|---|
/// | 0 | 1 | 2 |
/// | 1 | 4 | length of the torrent file |
/// | 5 | 4 | how many files the torrent has, without padding |
/// | 9 | 2 | length of its name, at most 255 |
/// | 11 | | its name, UTF-8 |
///
/// A torrent without this label is described by its torrent file: in a store that keeps no labels, and after
/// a crash before the label was durable.
pub struct Library {
    store: Arc<dyn ContentRepository>,
    folder: Option<Box<dyn TorrentFolder>>,
    /// Held by `add`.
    adding: Mutex<()>,
}

enum TorrentFile {
    Missing,
    /// It is not the torrent's, or lacks hashes of pieces.
    Damaged,
    Whole(Box<Metainfo>, Vec<u8>),
}

impl Library {
    /// A library over `store`, with torrent files in `folder`.
    pub fn new(store: Arc<dyn ContentRepository>, folder: impl TorrentFolder + 'static) -> Self {
        Self { store, folder: Some(Box::new(folder)), adding: Mutex::default() }
    }

    /// A library over `store` that keeps no torrent files: for a store that is lost with the process.
    pub fn without_files(store: Arc<dyn ContentRepository>) -> Self {
        Self { store, folder: None, adding: Mutex::default() }
    }

    /// The store.
    pub fn store(&self) -> &Arc<dyn ContentRepository> {
        &self.store
    }

    /// Keeps a torrent file, and creates the torrent that it describes. If the store has the torrent but not
    /// its file, the file is kept. A file without hashes of pieces takes the place of none that has them.
    /// Returns the metainfo that is kept.
    ///
    /// # Errors
    /// [`Error::Metainfo`]; [`Error::Exists`] if the store has the torrent and its file; [`Error::Geometry`]
    /// if the torrent has no bytes, or the store has it with other lengths; [`Error::Io`]; those of
    /// [`create`](ContentRepository::create).
    pub fn add(&self, torrent: &[u8]) -> Result<Metainfo> {
        let metainfo = Metainfo::parse(torrent).map_err(Error::Metainfo)?;
        let new = NewTorrent::of(metainfo.info())?;
        let _adding = self.adding.lock();
        match self.store.open(&new.info_hash) {
            Ok(content) if content.geometry() != new.geometry => {
                let (length, piece_length) = (new.geometry.len(), new.geometry.piece_length());
                let what = "the torrent is in the store with another length or piece length";
                return Err(Error::Geometry { length, piece_length, what });
            }
            Ok(_) => match self.find(&new.info_hash)? {
                TorrentFile::Whole(kept, bytes) => {
                    let _ = self.describe(&new.info_hash, &Description::of(&kept, bytes.len()));
                    return Err(Error::Exists(new.info_hash));
                }
                _ => self.keep(&new.info_hash, torrent)?,
            },
            Err(Error::NotFound(_)) => match self.look(&new.info_hash, new.geometry)? {
                TorrentFile::Whole(kept, bytes) if !metainfo.info().knows_hashes() => {
                    self.store.create(&new)?;
                    self.describe(&new.info_hash, &Description::of(&kept, bytes.len()))?;
                    return Ok(*kept);
                }
                _ => _ = self.create(&new, torrent)?,
            },
            Err(error) => return Err(error),
        }
        self.describe(&new.info_hash, &Description::of(&metainfo, torrent.len()))?;
        Ok(metainfo)
    }

    /// Keeps a torrent file, then creates its torrent with `create`. If `create` returns `None`, removes the
    /// file again, unless it existed before.
    ///
    /// # Errors
    /// [`Error::Geometry`] if the torrent has no bytes; [`Error::Io`]; those of `create`.
    pub fn add_with<T>(
        &self,
        info: &Info,
        torrent: &[u8],
        create: impl FnOnce() -> Result<Option<T>>,
    ) -> Result<Option<T>> {
        let new = NewTorrent::of(info)?;
        let _adding = self.adding.lock();
        let before = self.look(&new.info_hash, new.geometry)?;
        if !matches!(before, TorrentFile::Whole(..)) {
            self.keep(&new.info_hash, torrent)?;
        }
        let created = create()?;
        if created.is_none() && matches!(before, TorrentFile::Missing) {
            self.forget(&new.info_hash)?;
        }
        Ok(created)
    }

    /// [`add`](Self::add) without its checks: the torrents of crash tests have no hashes, and its order of
    /// writes is what these tests prove.
    #[doc(hidden)]
    pub fn create(&self, new: &NewTorrent, torrent: &[u8]) -> Result<Arc<dyn Content>> {
        self.keep(&new.info_hash, torrent)?;
        self.store.create(new)
    }

    /// The torrent file of a torrent that is in the store, if there is a whole one.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the torrent is not in the store; [`Error::Io`].
    pub fn torrent_file(&self, info_hash: &InfoHash) -> Result<Option<Vec<u8>>> {
        Ok(match self.find(info_hash)? {
            TorrentFile::Whole(_, torrent) => Some(torrent),
            _ => None,
        })
    }

    /// The metainfo of the torrent file of a torrent, if there is a whole one.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the torrent is not in the store; [`Error::Io`].
    pub fn metainfo(&self, info_hash: &InfoHash) -> Result<Option<Metainfo>> {
        Ok(match self.find(info_hash)? {
            TorrentFile::Whole(metainfo, _) => Some(*metainfo),
            _ => None,
        })
    }

    /// Whether there is a torrent file that is not the torrent's, or lacks hashes of pieces.
    /// [`add`](Self::add) replaces it.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the torrent is not in the store; [`Error::Io`].
    pub fn is_damaged(&self, info_hash: &InfoHash) -> Result<bool> {
        Ok(matches!(self.find(info_hash)?, TorrentFile::Damaged))
    }

    /// The name of a torrent and the number of its files, from its label, or else from its torrent file.
    ///
    /// # Errors
    /// [`Error::NotFound`] if the torrent is not in the store; [`Error::Io`].
    pub fn description(&self, info_hash: &InfoHash) -> Result<Option<Description>> {
        if let Some(description) = Description::parse(self.store.label(info_hash)?) {
            return Ok(Some(description));
        }
        Ok(match self.find(info_hash)? {
            TorrentFile::Whole(metainfo, torrent) => Some(Description::of(&metainfo, torrent.len())),
            _ => None,
        })
    }

    /// The info hashes of all torrent files in the folder, whether the store has their torrents or not. Reads
    /// the names of files, and no file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn kept(&self) -> Result<HashSet<InfoHash>> {
        let mut kept = HashSet::new();
        if let Some(folder) = &self.folder {
            let mut note = |name: &str| {
                let hash = name.strip_suffix(".torrent").and_then(|hash| hash.parse::<InfoHash>().ok());
                kept.extend(hash.filter(|hash| name_of(hash) == name));
            };
            folder.names(&mut note).map_err(Error::io("looking for torrent files"))?;
        }
        Ok(kept)
    }

    /// Removes the torrent file of a torrent that is no longer in the store, if there is one. No other store
    /// may have the folder.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn forget(&self, info_hash: &InfoHash) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        match folder.remove(&name_of(info_hash)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io("removing a torrent file")(error))
            }
            _ => Ok(()),
        }
    }

    fn find(&self, info_hash: &InfoHash) -> Result<TorrentFile> {
        let geometry = self.store.open(info_hash)?.geometry();
        self.look(info_hash, geometry)
    }

    /// Looks for the torrent file of a torrent that may not be in the store.
    fn look(&self, info_hash: &InfoHash, geometry: Geometry) -> Result<TorrentFile> {
        let Some(folder) = &self.folder else { return Ok(TorrentFile::Missing) };
        Ok(match folder.read(&name_of(info_hash)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => TorrentFile::Missing,
            // A folder is in its place.
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => TorrentFile::Damaged,
            Err(error) => return Err(Error::io("reading a torrent file")(error)),
            Ok(file) => match Metainfo::parse(&file) {
                Ok(metainfo)
                    if NewTorrent::of(metainfo.info())
                        .is_ok_and(|new| new.info_hash == *info_hash && new.geometry == geometry)
                        && metainfo.info().knows_hashes() =>
                {
                    TorrentFile::Whole(Box::new(metainfo), file)
                }
                _ => TorrentFile::Damaged,
            },
        })
    }

    /// Makes a torrent file durable, in the place of one that may be there.
    fn keep(&self, info_hash: &InfoHash, torrent: &[u8]) -> Result<()> {
        let Some(folder) = &self.folder else { return Ok(()) };
        let new = format!(".{info_hash}.{:016x}.new", u64::from_le_bytes(random()?));
        folder
            .write(&new, torrent)
            .and_then(|()| folder.flush_file(&new))
            .and_then(|()| folder.rename(&new, &name_of(info_hash)))
            .and_then(|()| folder.flush())
            .inspect_err(|_| _ = folder.remove(&new))
            // A full file system of the folder says nothing of the store's room.
            .map_err(|source| Error::Io { what: "keeping a torrent file", source })
    }

    /// Sets the label of a torrent, if it is another.
    fn describe(&self, info_hash: &InfoHash, description: &Description) -> Result<()> {
        let keeps_labels = self.store.capabilities().label > 0;
        if keeps_labels && *self.store.label(info_hash)? != *description.label() {
            self.store.set_label(info_hash, description.label())?;
        }
        Ok(())
    }
}

fn name_of(info_hash: &InfoHash) -> String {
    format!("{info_hash}.torrent")
}

debug_as!(Library, it, "Library {{ store: {:?}, folder: {:?}, .. }}", it.store, it.folder);
