//! The files of a torrent that lie in the folder of a store before the torrent is added.

use std::{error::Error, io, path::Path, sync::Arc};

use swarmkeep_content::{
    ContentRepository, Error as StoreError, Geometry, Library, NewTorrent, PieceBits,
    files::FileStore,
    in_place::{FoundPiece, Place},
};
use swarmkeep_metainfo::Info;

use super::bar;

/// The name at the top of the torrent's paths.
pub(crate) fn top(info: &Info) -> &str {
    let mut paths = info.files().iter().filter(|file| !file.is_padding()).map(|file| file.path());
    paths.next().map_or("", |path| path[0])
}

/// Prints a warning if a new torrent could not get its own name in a folder.
pub(crate) fn tell_place(files: &FileStore, folder: &Path, info: &Info) -> Result<(), Box<dyn Error>> {
    let (root, own) = (folder.canonicalize()?, folder.join(top(info)));
    let paths = files.paths(&info.info_hash())?;
    let below = paths.first().and_then(|(_, path)| path.strip_prefix(&root).ok()?.iter().next());
    if let Some(place) = below.map(|name| folder.join(name)).filter(|place| *place != own) {
        let name = info.name().escape_debug();
        let (own, place) = (own.display(), place.display());
        eprintln!("{name}: {own} is not this torrent: it stays, and the torrent goes to {place}");
    }
    Ok(())
}

/// The pieces of a torrent whose files were verified where they lie.
pub(crate) struct FileCheck {
    pub(crate) right: PieceBits,
    /// Right pieces that are not all zeroes, which any file may have; `other`: such wrong pieces.
    content: PieceBits,
    other: PieceBits,
    /// Pieces with other bytes.
    pub(crate) wrong: Vec<u32>,
    /// Pieces of which a file is missing or unreadable.
    pub(crate) missing: Vec<u32>,
    pub(crate) why: Option<io::Error>,
}

/// Reads and verifies every piece, behind a bar.
pub(crate) fn check(info: &Info, place: &Place) -> Result<FileCheck, StoreError> {
    let none = PieceBits::none(Geometry::new(info.files().length(), info.piece_length())?.pieces());
    let [right, content, other] = [none.clone(), none.clone(), none];
    let mut checked = FileCheck { right, content, other, wrong: Vec::new(), missing: Vec::new(), why: None };
    let has_bytes = |bytes: &[u8]| bytes.iter().any(|byte| *byte != 0);
    let bar = bar(info.length()).with_message(format!("verifying {}", info.name().escape_debug()));
    place.verify(
        |_| true,
        |piece, found| {
            match found {
                FoundPiece::Right(bytes) => {
                    checked.right.insert(piece);
                    if has_bytes(bytes) {
                        checked.content.insert(piece);
                    }
                }
                FoundPiece::Wrong(bytes) => {
                    checked.wrong.push(piece);
                    if has_bytes(bytes) {
                        checked.other.insert(piece);
                    }
                }
                FoundPiece::Missing(error) => {
                    checked.missing.push(piece);
                    checked.why.get_or_insert(error);
                }
            }
            bar.inc(info.piece_len(piece).into());
            Ok(())
        },
    )?;
    bar.finish_and_clear();
    Ok(checked)
}

/// Verifies the files of a torrent that lie in the store's folder, keeps the torrent file, and lets the store
/// take up the files with at least as many right pieces as wrong ones: a beginning, or a damaged copy, and
/// not another file with a piece in common. `None` if there are none.
pub(crate) fn take_up(
    torrents: &Library,
    torrent: &[u8],
    files: &FileStore,
    folder: &Path,
    info: &Arc<Info>,
) -> Result<Option<FileCheck>, Box<dyn Error>> {
    let Ok(new) = NewTorrent::of(info) else { return Ok(None) };
    if files.torrent_at(top(info)).is_some() || !folder.join(top(info)).exists() {
        return Ok(None);
    }
    let mut checked = check(info, &Place::below(info, folder))?;
    let has_content = |index| {
        let range = info.files().get(index).expect("it comes from the list").range();
        let count =
            |bits: &PieceBits| new.geometry.pieces_of(&range).filter(|&piece| bits.contains(piece)).count();
        let content = count(&checked.content);
        content > 0 && content >= count(&checked.other)
    };
    let adopt = || files.adopt(&new, &checked.right, has_content);
    let Some(renamed) = torrents.add_with(info, torrent, adopt)? else { return Ok(None) };
    for path in renamed {
        let name = info.name().escape_debug();
        eprintln!("{name}: a file in the place of one of its files was renamed to {}", path.display());
    }
    let kept = files.open(&info.info_hash())?.pieces()?;
    checked.missing.extend((0..kept.pieces()).filter(|&it| checked.right.contains(it) && !kept.contains(it)));
    checked.missing.sort_unstable();
    checked.right = kept;
    Ok(Some(checked))
}
