//! Whether a store that crashed keeps what it promised.

use super::*;

/// The record from a crash until the store was open again, or a contradiction.
pub(super) fn judge(
    folder: &Path,
    promises: &Promises,
    recorder: &Arc<Recorder>,
    to_the_end: bool,
) -> Result<Vec<Op>, String> {
    let doing = promises.doing;
    let mut others = files_below(folder);
    others.retain(|path, _| path.starts_with("mine") || path.ends_with("own"));
    if let Some(Action::Create(name @ 0..2)) = doing
        && !folder.join(format!("t{name}")).exists()
    {
        // The store's user does not know of it yet: another file takes its place.
        let path = PathBuf::from(["t0/a", "t1/z"][usize::from(name)]);
        let bytes = vec![b'o'; [1500, 1300][usize::from(name)]];
        fs::create_dir(folder.join(path.parent().unwrap())).unwrap();
        fs::write(folder.join(&path), &bytes).unwrap();
        others.insert(path, bytes);
    }
    let is_stated = || folder.join(HIDDEN).join("torrents").join(hash(ADOPTED).to_string()).exists();
    if doing == Some(Action::Create(ADOPTED)) && promises.is_put && !is_stated() {
        // It was not adopted, and stays as it is.
        others.insert(SONG.into(), fs::read(folder.join(SONG)).unwrap());
    }
    let store = open(folder, recorder).map_err(|error| format!("it does not open: {error}"))?;
    let log = recorder.record.take_log();
    judge_open(&store, folder, promises, &others, to_the_end).map(|()| log)
}

fn judge_open(
    store: &FileStore,
    folder: &Path,
    promises: &Promises,
    others: &BTreeMap<PathBuf, Vec<u8>>,
    to_the_end: bool,
) -> Result<(), String> {
    let doing = promises.doing;
    let was_missed = |damage: &Damage| matches!((damage, doing), (Damage::File { info_hash, .. }, Some(Action::Miss(name))) if *info_hash == hash(name));
    if let Some(damage) = store.report().damage.iter().find(|damage| !was_missed(damage)) {
        return Err(format!("it reports: {damage}"));
    }
    let root = folder.canonicalize().unwrap();
    let mut known: BTreeSet<PathBuf> = others.keys().cloned().collect();
    for name in 0..TORRENTS {
        let promised = promises.torrents.get(&name);
        let Ok(content) = store.open(&hash(name)) else {
            if promised.is_some() && ![Action::Delete(name), Action::Create(name)].map(Some).contains(&doing)
            {
                return Err(format!("torrent {name} is gone"));
            }
            continue;
        };
        if promised.is_none() && doing != Some(Action::Create(name)) {
            return Err(format!("torrent {name} is back"));
        }
        for (_, path) in store.paths(&hash(name)).unwrap() {
            let path = path.strip_prefix(&root).unwrap().to_owned();
            if others.contains_key(&path) {
                return Err(format!("torrent {name} has another program's {}", path.display()));
            }
            known.insert(path);
        }
        let nothing = BTreeMap::new();
        let pieces = promised.map_or(&nothing, |torrent| &torrent.pieces);
        judge_pieces(&*content, promised.map_or(0, |torrent| torrent.number), pieces, |piece| {
            [Action::Unmark(name, piece), Action::Mark(name, piece)].map(Some).contains(&doing)
        })
        .map_err(|what| format!("torrent {name}: {what}"))?;
    }
    let there = files_below(folder);
    if let Some((path, _)) = others.iter().find(|(path, bytes)| there.get(*path) != Some(bytes)) {
        return Err(format!("another program's {} is not as it was", path.display()));
    }
    if let Some(path) = there.keys().find(|path| !known.contains(*path)) {
        return Err(format!("no torrent has {}; {:?}", path.display(), store.report()));
    }
    for (kept, most) in [("making", 0), ("torrents", store.list().unwrap().len())] {
        let count = fs::read_dir(folder.join(HIDDEN).join(kept)).unwrap().count();
        if count > most {
            return Err(format!("{count} in {kept}"));
        }
    }
    if to_the_end {
        for summary in store.list().unwrap() {
            let content = store.open(&summary.info_hash).unwrap();
            let rest: Vec<_> = (0..summary.geometry.pieces())
                .filter(|&piece| !content.pieces().unwrap().contains(piece))
                .collect();
            for piece in rest {
                let range = summary.geometry.piece(piece).unwrap();
                content.write(range.start, &bytes_of(99, piece, 1, range.end - range.start)).unwrap();
                assert!(content.mark_complete(piece).unwrap());
            }
            store.flush().unwrap();
            assert!(store.delete(&summary.info_hash).unwrap());
        }
        let left = files_below(folder);
        if left != *others || store.statistics().used != 0 {
            return Err(format!("when all is deleted, {:?} are left", left.keys()));
        }
    }
    Ok(())
}

fn judge_pieces(
    content: &dyn Content,
    number: u64,
    pieces: &BTreeMap<u32, Piece>,
    is_changing: impl Fn(u32) -> bool,
) -> Result<(), String> {
    let complete = content.pieces().unwrap();
    for piece in 0..complete.pieces() {
        let known = pieces.get(&piece).cloned().unwrap_or_default();
        match complete.contains(piece) {
            false if known.durable && !is_changing(piece) => return Err(format!("piece {piece} is lost")),
            false => {}
            true if !known.marked && !is_changing(piece) => {
                return Err(format!("piece {piece} is complete, and is not marked"));
            }
            true => {
                let read = content.read_piece(piece).map_err(|error| format!("piece {piece}: {error}"))?;
                if read != bytes_of(number, piece, known.version, read.len() as u64) {
                    return Err(format!("piece {piece} holds something else"));
                }
            }
        }
    }
    Ok(())
}

/// Every file below a folder, except the store's own, and its bytes.
fn files_below(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(now) = folders.pop() {
        for entry in fs::read_dir(now).unwrap() {
            let path = entry.unwrap().path();
            if !path.is_dir() {
                found.insert(path.strip_prefix(folder).unwrap().to_owned(), fs::read(&path).unwrap());
            } else if path.file_name().unwrap() != HIDDEN {
                folders.push(path);
            }
        }
    }
    found
}
