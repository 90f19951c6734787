//! The store of `fetch` and `seed`, and the files that lie in it before.

use std::{
    error::Error,
    path::{Path, PathBuf},
    sync::Arc,
};

use swarmkeep_content::{
    ContentConfig, ContentRepository, Error as StoreError, Library, Memory, NewTorrent,
    files::FileStore,
    in_place::{FoundPiece, Place},
};
use swarmkeep_metainfo::{Info, Metainfo};

use crate::store::{
    bar,
    opened::{For, Kind, Opened},
    tell_changes,
};

/// A store that keeps torrent files.
pub(crate) struct Kept {
    pub(crate) repository: Arc<Library>,
    /// The store and its folder, if it is one of files.
    files: Option<(FileStore, PathBuf)>,
}

impl Kept {
    pub(crate) fn open(path: &Path, wanted: For) -> Result<Self, Box<dyn Error>> {
        if path.as_os_str() == "memory:" {
            let repository = Arc::new(Library::open(Arc::new(Memory::new(&ContentConfig::new(""))))?);
            return Ok(Self { repository, files: None });
        }
        let Opened { repository, kind, .. } = Opened::open(path, wanted)?;
        let files = match kind {
            Kind::Files(files) => Some((files, path.to_owned())),
            Kind::Block(_) => None,
        };
        Ok(Self { repository, files })
    }

    /// Takes up the files of a torrent that lie in its place already, if the store does not have it.
    pub(crate) fn take_up(&self, info: &Info) -> Result<(), Box<dyn Error>> {
        match (&self.files, self.repository.open(&info.info_hash())) {
            (Some((files, folder)), Err(StoreError::NotFound(_))) => take_up(files, folder, info),
            _ => Ok(()),
        }
    }

    /// Keeps a torrent file. Says so if the torrent cannot go where it belongs.
    pub(crate) fn add(&self, metainfo: &Metainfo, torrent: &[u8]) -> Result<(), Box<dyn Error>> {
        let info = metainfo.info();
        let is_new = matches!(self.repository.open(&info.info_hash()), Err(StoreError::NotFound(_)));
        match self.repository.add(torrent) {
            Ok(_) if is_new => tell_changes(info),
            Ok(_) | Err(StoreError::Exists(_)) => {}
            Err(error) => return Err(error.into()),
        }
        if is_new && let Some((files, folder)) = &self.files {
            let paths = files.paths(&info.info_hash())?;
            let apart = folder.join(info.info_hash().to_string());
            let is_apart = |apart: PathBuf| paths.iter().any(|(_, path)| path.starts_with(&apart));
            if apart.canonicalize().is_ok_and(is_apart) {
                eprintln!(
                    "{}: {} is not this torrent, or not all of it: it stays, and the torrent goes to {}",
                    info.name().escape_debug(),
                    folder.join(info.name()).display(),
                    apart.join(info.name()).display()
                );
            }
        }
        Ok(())
    }
}

/// Verifies the files of a torrent that lie in the store's folder, and has the store take them up if all of them
/// are right. Other files stay as they are.
fn take_up(files: &FileStore, folder: &Path, info: &Info) -> Result<(), Box<dyn Error>> {
    let Ok(new) = NewTorrent::of(info) else { return Ok(()) };
    if !folder.join(info.name()).exists() {
        return Ok(());
    }
    let name = info.name().escape_debug();
    let bar = bar(info.length()).with_message(format!("verifying {name}"));
    let verified = Place::below(info, folder).verify(
        info,
        |_| true,
        |piece, found| {
            bar.inc(info.piece_len(piece).into());
            match found {
                FoundPiece::Right(_) => Ok(()),
                FoundPiece::Wrong | FoundPiece::Missing(_) => {
                    Err(StoreError::NotWritten { at: piece.into() })
                }
            }
        },
    );
    bar.finish_and_clear();
    if verified.is_ok() && files.adopt(&new)?.is_some() {
        files.flush()?;
        eprintln!("{name}: all of it is there already, in {}", folder.join(info.name()).display());
    }
    Ok(())
}
