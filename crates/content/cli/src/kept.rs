//! The store of `fetch` and `seed`, and the files that lie in it before.

use std::{
    error::Error,
    path::{Path, PathBuf},
    sync::Arc,
};

use swarmkeep_content::{
    ContentConfig, ContentRepository, Error as StoreError, Library, Memory, NewTorrent, PieceBits,
    files::FileStore,
    in_place::{FoundPiece, Place},
};
use swarmkeep_metainfo::{Info, Metainfo};

use crate::store::{
    bar,
    opened::{For, Kind, Opened},
};

/// A store that keeps torrent files.
pub(crate) struct Kept {
    pub(crate) library: Arc<Library>,
    /// The store and its folder, if it is one of files.
    files: Option<(FileStore, PathBuf)>,
}

impl Kept {
    pub(crate) fn open(path: &Path, wanted: For) -> Result<Self, Box<dyn Error>> {
        if path.as_os_str() == "memory:" {
            let library = Arc::new(Library::open(Arc::new(Memory::new(&ContentConfig::new(""))))?);
            return Ok(Self { library, files: None });
        }
        let Opened { repository: library, kind, .. } = Opened::open(path, wanted)?;
        let files = match kind {
            Kind::Files(files) => Some((files, path.to_owned())),
            Kind::Block(_) => None,
        };
        Ok(Self { library, files })
    }

    /// Keeps a torrent file, and takes up files of the torrent that lie in its place already.
    pub(crate) fn add(&self, metainfo: &Metainfo, torrent: &[u8]) -> Result<(), Box<dyn Error>> {
        let info = metainfo.info();
        let is_new = matches!(self.library.open(&info.info_hash()), Err(StoreError::NotFound(_)));
        if is_new && let Some((files, folder)) = &self.files {
            take_up(files, folder, info)?;
        }
        match self.library.add(torrent) {
            Ok(_) | Err(StoreError::Exists(_)) => {}
            Err(error) => return Err(error.into()),
        }
        if is_new && let Some((files, folder)) = &self.files {
            let own = folder.join(info.name());
            let paths = files.paths(&info.info_hash())?;
            if let Some((_, path)) = paths.first().filter(|(_, path)| !is_below(path, &own)) {
                let place = path.ancestors().find(|path| path.file_name() == own.file_name()).unwrap_or(path);
                eprintln!(
                    "{}: {} is there already and is not its own; it goes to {}",
                    info.name().escape_debug(),
                    own.display(),
                    place.display()
                );
            }
        }
        Ok(())
    }
}

/// Whether a path is another, or lies below it, wherever links lead.
fn is_below(path: &Path, other: &Path) -> bool {
    other.canonicalize().is_ok_and(|other| path.canonicalize().is_ok_and(|path| path.starts_with(other)))
}

/// Verifies the files of a torrent that lie in the store's folder, and has the store take them up if any piece
/// of them is right.
fn take_up(files: &FileStore, folder: &Path, info: &Info) -> Result<(), Box<dyn Error>> {
    if !folder.join(info.name()).exists() {
        return Ok(());
    }
    let Some(place) = Place::find(info, folder) else { return Ok(()) };
    let new = NewTorrent::of(info)?;
    let mut right = PieceBits::none(new.geometry.pieces());
    let name = info.name().escape_debug();
    let bar = bar(info.length()).with_message(format!("verifying {name}"));
    let verified = place.verify(
        info,
        |_| true,
        |piece, found| {
            if matches!(found, FoundPiece::Right(_)) {
                right.insert(piece);
            }
            bar.inc(info.piece_len(piece).into());
            Ok(())
        },
    );
    bar.finish_and_clear();
    verified?;
    if right.count() > 0 && files.adopt(&new, &right)?.is_some() {
        files.flush()?;
        eprintln!("{name}: {} of {} pieces are there already", right.count(), right.pieces());
    }
    Ok(())
}
