//! Whether what was fetched is right: the stores are checked, and the plain files read as anybody would.

use std::{error::Error, fs::File, io::ErrorKind, os::unix::fs::FileExt, path::Path};

use serde::{Deserialize, Serialize};
use swarmkeep_metainfo::Info;

use super::{
    FETCHER_IMAGE, FILES_FOLDER, SEEDER_IMAGE, ask,
    part::Interruption,
    show::{Event, Show},
};
use seedkeep::{counted, in_runs};

/// What was found to be right.
#[derive(Debug, Serialize)]
pub(super) struct Verified {
    pub(super) part: &'static str,
    pub(super) how: &'static str,
    pub(super) pieces: u32,
}

/// What `seedkeep store check --json` prints.
#[derive(Deserialize)]
struct Checked {
    ok: bool,
    torrents: Vec<Findings>,
}

#[derive(Deserialize)]
struct Findings {
    pieces: u32,
    complete: u32,
    verified: bool,
}

/// Reads everything back.
///
/// # Errors
/// What is wrong, or missing.
pub(super) fn verify(
    folder: &Path,
    info: &Info,
    interruption: &Interruption,
    show: &mut Show,
) -> Result<Vec<Verified>, Box<dyn Error>> {
    let mut all = Vec::new();
    show.working("reading the plain files");
    let wrong = wrong_in_files(&folder.join(FILES_FOLDER), info, interruption)?;
    if !wrong.is_empty() {
        let pieces = counted(wrong.len(), "piece");
        return Err(
            format!("{pieces} of the plain files are not those of the torrent: {}", in_runs(&wrong)).into()
        );
    }
    all.push(Verified { part: "files", how: "as files, by v1 and v2", pieces: info.piece_count() });
    for (part, store) in [("files", FILES_FOLDER), ("blocks", FETCHER_IMAGE), ("seeder", SEEDER_IMAGE)] {
        show.working(&format!("checking {store}"));
        let printed = ask(folder, &format!("store check {store} --json"), interruption)?;
        let Checked { ok, torrents } = serde_json::from_str(&printed)?;
        let right = |found: &Findings| {
            found.verified && (found.pieces, found.complete) == (info.piece_count(), info.piece_count())
        };
        if !ok || torrents.len() != 1 || !torrents.iter().all(right) {
            return Err(format!(
                "`seedkeep store check {store}` does not find all of the torrent: {printed}"
            )
            .into());
        }
        all.push(Verified { part, how: "seedkeep store check", pieces: info.piece_count() });
    }
    for verified in &all {
        show.tell(&Event::Verified(verified))?;
    }
    Ok(all)
}

/// The pieces that are not those of the torrent, by what any program would read.
fn wrong_in_files(
    folder: &Path,
    info: &Info,
    interruption: &Interruption,
) -> Result<Vec<u32>, Box<dyn Error>> {
    let mut files = Vec::new();
    for file in info.files().iter() {
        let path = file.path().iter().fold(folder.to_owned(), |path, name| path.join(name));
        let opened = (!file.is_padding())
            .then(|| File::open(&path).map_err(|error| format!("{}: {error}", path.display())));
        files.push(opened.transpose()?);
    }
    let mut wrong = Vec::new();
    for piece in 0..info.piece_count() {
        interruption.check()?;
        let range = info.piece_range(piece).expect("there are as many");
        let mut bytes = vec![0; (range.end - range.start) as usize];
        let mut rest = &mut bytes[..];
        let mut short = false;
        for segment in info.files().segments(range) {
            let (now, later) = rest.split_at_mut(segment.length as usize);
            rest = later;
            // Padding is in no file, and zeroes.
            let Some(file) = &files[segment.file] else { continue };
            match file.read_exact_at(now, segment.offset) {
                Err(error) if error.kind() != ErrorKind::UnexpectedEof => return Err(error.into()),
                read => short |= read.is_err(),
            }
        }
        if short || !info.verify(piece, &bytes) {
            wrong.push(piece);
        }
    }
    Ok(wrong)
}
