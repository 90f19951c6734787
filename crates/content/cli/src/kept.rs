//! The store of `fetch` and `seed`.

use std::{
    error::Error,
    path::{Path, PathBuf},
    sync::Arc,
};

use swarmkeep_content::{ContentConfig, Error as StoreError, Library, Memory, files::FileStore};
use swarmkeep_metainfo::{Info, Metainfo};

use crate::store::{
    TorrentFiles,
    check::verify_unknown,
    of_pieces,
    opened::{Access, Kind, OpenStore},
    take_up::{FileCheck, take_up, tell_place, top},
    tell_changes,
};

#[derive(Clone)]
pub(crate) struct TorrentStore {
    pub(crate) torrents: Arc<Library>,
    /// The store and its folder, if the store is a folder of files.
    files: Option<(FileStore, PathBuf)>,
}

impl TorrentStore {
    /// Opens a store. Prints a warning if torrent files are missing.
    pub(crate) fn open(
        path: &Path,
        torrent_files: &TorrentFiles,
        access: Access,
    ) -> Result<Self, Box<dyn Error>> {
        if path.as_os_str() == "memory:" {
            let torrents = Library::without_files(Arc::new(Memory::new(&ContentConfig::new(""))));
            return Ok(Self { torrents: Arc::new(torrents), files: None });
        }
        let opened = OpenStore::open(path, torrent_files, access)?;
        let missing = opened.missing_torrent_files()?;
        missing.into_iter().for_each(|missing| eprintln!("seedkeep: {missing}"));
        let OpenStore { torrents, kind, .. } = opened;
        let files = match kind {
            Kind::Files(files) => Some((files, path.to_owned())),
            Kind::Block(_) => None,
        };
        Ok(Self { torrents, files })
    }

    /// Takes up the files of a torrent that lie in its place already, if the store does not have it. If that
    /// fails, prints the error, and the torrent gets another place.
    pub(crate) fn take_up(&self, metainfo: &Metainfo, torrent: &[u8]) {
        if let Err(error) = self.try_take_up(metainfo.info(), torrent) {
            eprintln!("seedkeep: {}: {error}", metainfo.info().name().escape_debug());
        }
    }

    fn try_take_up(&self, info: &Arc<Info>, torrent: &[u8]) -> Result<(), Box<dyn Error>> {
        let (Some((files, folder)), Err(StoreError::NotFound(_))) =
            (&self.files, self.torrents.store().open(&info.info_hash()))
        else {
            return Ok(());
        };
        if let Some(FileCheck { right, .. }) = take_up(&self.torrents, torrent, files, folder, info)? {
            tell_changes(info);
            let (name, place) = (info.name().escape_debug(), folder.join(top(info)));
            let (place, pieces) = (place.display(), right.pieces());
            match right.count() {
                all if all == pieces => eprintln!("{name}: all of it is there already, in {place}"),
                some => eprintln!(
                    "{name}: {} are there already, in {place}; the rest is fetched into it",
                    of_pieces(some, pieces)
                ),
            }
        }
        Ok(())
    }

    /// Keeps a torrent file. Prints a warning if the torrent cannot get its own name.
    pub(crate) fn add(&self, metainfo: &Metainfo, torrent: &[u8]) -> Result<(), Box<dyn Error>> {
        let info = metainfo.info();
        verify_unknown(&self.torrents, info)?;
        let is_new = matches!(self.torrents.store().open(&info.info_hash()), Err(StoreError::NotFound(_)));
        match self.torrents.add(torrent) {
            Ok(_) if is_new => tell_changes(info),
            Ok(_) | Err(StoreError::Exists(_)) => {}
            Err(error) => return Err(error.into()),
        }
        match &self.files {
            Some((files, folder)) if is_new => tell_place(files, folder, info),
            _ => Ok(()),
        }
    }
}
