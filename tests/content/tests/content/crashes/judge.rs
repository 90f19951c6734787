//! Whether a store may be in this state after a crash.

use std::fmt::Debug;

use swarmkeep_content::Content;

use super::{
    workload::{Action, PromisedTorrent, content, torrent_file},
    *,
};

/// A fault of the medium, beside the crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    None,
    /// A logical sector of this sector holds garbage.
    Garbage(u64),
    /// A sector held garbage, which the store reported. It may still hold it, or again its old bytes.
    Healed(u64),
}

/// Boots the store and checks it. Returns the writes of the boot, which may crash as well.
pub(crate) fn judge(
    image: Image,
    promises: &Promises,
    fault: Fault,
    mutant: Option<Mutant>,
) -> Result<Vec<Entry<Arc<Promises>>>, String> {
    let boot = |image: Image| {
        let device = Arc::new(Recorder::new(image, None));
        let store = BlockStore::boot_mutant(Arc::clone(&device), Allocation::Sequential, mutant);
        store.map(|store| (store, device)).map_err(|error| format!("it does not boot: {error}"))
    };
    let (store, device) = boot(image)?;
    check(&store, |name| torrent_file_in(&device.image(), name), promises, fault)?;
    let state = state_of(&store);
    drop(store);
    let mended = device.disk.take_log();
    let (again, second) = boot(device.image())?;
    if second.disk.take_log().iter().any(|entry| matches!(entry, Entry::Change(_))) {
        return Err("the second boot writes after the repair of the first".to_owned());
    }
    if state_of(&again) != state {
        return Err(format!("booted twice, it is another: {state:?} and {:?}", state_of(&again)));
    }
    Ok(mended)
}

/// Compares a store with its promises. Returns its new promises.
pub(crate) fn check(
    store: &BlockStore,
    read: impl Fn(&str) -> Option<Vec<u8>>,
    promises: &Promises,
    fault: Fault,
) -> Result<Promises, String> {
    store.audit()?;
    if fault == Fault::None && !store.report().damage.is_empty() {
        return Err(format!("a crash alone is reported as damage: {:?}", store.report().damage));
    }
    let of_roots = |damage: &Damage| matches!(damage, Damage::Root { .. } | Damage::OlderRoot { .. });
    if matches!(fault, Fault::Garbage(..8)) && !store.report().damage.iter().all(of_roots) {
        return Err(format!("a bad sector of a root is more than that: {:?}", store.report().damage));
    }
    // Whatever else is lost: where there is an i-node, there is its torrent file.
    for name in (0..6).chain(100..300).filter(|&name| store.open(&hash(name)).is_ok()) {
        if read(&format!("{}.torrent", hash(name))) != Some(torrent_file(name)) {
            return Err(format!("torrent {name} is there without its torrent file"));
        }
    }
    let mut broken = BTreeMap::new();
    let mut kept = promises.clone();
    kept.torrents.clear();
    for name in (0..6).chain(promises.torrents.keys().copied().filter(|&name| name >= 6)) {
        match check_torrent(store, name, promises, fault) {
            Ok(torrent) => kept.torrents.extend(torrent.map(|torrent| (name, torrent))),
            Err(Violation::Lie(lie)) => return Err(lie),
            Err(Violation::Loss(loss, torrent)) => {
                broken.insert(name, loss);
                kept.torrents.extend(torrent.map(|torrent| (name, torrent)));
            }
        }
    }
    if !broken.is_empty() {
        if fault == Fault::None {
            return Err(format!("{broken:?}"));
        }
        // A bad sector may lose content of one torrent only, and the store must report it.
        let said = matches!(fault, Fault::Healed(_)) || !store.report().damage.is_empty();
        if broken.len() > 1 || !said {
            return Err(format!(
                "one bad sector costs {broken:?}, and the report is {:?}",
                store.report().damage
            ));
        }
    }
    kept.doing = None;
    Ok(kept)
}

fn state_of(store: &BlockStore) -> impl PartialEq + Debug + use<> {
    let torrents: Vec<_> = store
        .list()
        .expect("it answers from memory")
        .into_iter()
        .map(|summary| {
            let content = store.open(&summary.info_hash).expect("it is listed");
            let pieces: Vec<_> = content.pieces().expect("it is there").iter().collect();
            (summary.info_hash, pieces)
        })
        .collect();
    (torrents, store.owners(), store.statistics().free, store.report().lost.clone())
}

enum Violation {
    /// An answer that a store must never give, whatever the state of the medium.
    Lie(String),
    /// The missing promise, and the torrent that is there instead.
    Loss(String, Option<PromisedTorrent>),
}

/// Compares a torrent with the promises. Returns its new state.
fn check_torrent(
    store: &BlockStore,
    name: u64,
    promises: &Promises,
    fault: Fault,
) -> Result<Option<PromisedTorrent>, Violation> {
    let promised = promises.torrents.get(&name);
    let found = match store.open(&hash(name)) {
        Ok(found) => found,
        Err(Error::NotFound(_)) => {
            return match promised {
                Some(_) if promises.doing != Some(Action::Delete(name)) => {
                    Err(Violation::Loss(format!("torrent {name} is gone"), None))
                }
                _ => Ok(None),
            };
        }
        Err(error) => return Err(Violation::Lie(format!("torrent {name}: {error}"))),
    };
    let geometry = found.geometry();
    let complete: Vec<_> = found.pieces().expect("it is there").iter().collect();
    let Some(promised) = promised else {
        let empty = complete.is_empty();
        let (length, piece_length) = (geometry.len(), geometry.piece_length());
        // Its number does not matter: none of its content was written.
        let torrent = PromisedTorrent::new(1 << 40 | name, length, piece_length);
        return match promises.doing {
            Some(Action::Create(creating)) if creating == name && empty => Ok(Some(torrent)),
            _ if fault == Fault::None || !empty => {
                undeleted(&*found, &complete, fault).map_err(Violation::Lie)?;
                Err(Violation::Loss(format!("torrent {name} is there again"), None))
            }
            _ => Err(Violation::Loss(format!("torrent {name} is there again"), Some(torrent))),
        };
    };
    if (geometry.len(), geometry.piece_length()) != (promised.length, promised.piece_length) {
        return Err(Violation::Lie(format!("torrent {name} is of another size: {geometry:?}")));
    }
    let mut torrent = promised.clone();
    let label = store.label(&hash(name)).expect("it is there");
    let (number, version) = label.split_first_chunk().map_or(([0; 8], &label[..]), |(a, b)| (*a, b));
    torrent.label = <[u8; 8]>::try_from(version).map_or(0, u64::from_le_bytes);
    if torrent.label > promised.label || (torrent.label > 0 && u64::from_le_bytes(number) != torrent.number) {
        return Err(Violation::Lie(format!("torrent {name} has a label that it was never given: {label:?}")));
    }
    torrent.label_durable = torrent.label;
    for &piece in &complete {
        let known = torrent.pieces.get(&piece).filter(|known| {
            known.marked || matches!(promises.doing, Some(Action::Mark(of, at)) if (of, at) == (name, piece))
        });
        let Some(known) = known else {
            return Err(Violation::Lie(format!(
                "piece {piece} of torrent {name} was not marked, and is complete"
            )));
        };
        let read = found
            .read_piece(piece)
            .map_err(|error| Violation::Lie(format!("complete and not read: {error}")))?;
        let right = read == content(promised.number, piece, known.version, read.len());
        if !right && !hit(&*found, piece, fault) {
            let what = format!("piece {piece} of torrent {name} is complete and wrong");
            return Err(Violation::Lie(what));
        }
    }
    let mut missing = Vec::new();
    for (&piece, known) in &mut torrent.pieces {
        let is = complete.binary_search(&piece).is_ok();
        if known.durable && !is && promises.doing != Some(Action::Unmark(name, piece)) {
            missing.push(piece);
        }
        if !is && found.read_piece(piece).is_ok() {
            return Err(Violation::Lie(format!(
                "piece {piece} of torrent {name} is incomplete, and can be read"
            )));
        }
        // After a crash, all content that is there is durable.
        (known.marked, known.durable) = (is, is);
    }
    if torrent.label < promised.label_durable {
        Err(Violation::Loss(format!("the label of torrent {name} was flushed and is gone"), Some(torrent)))
    } else if missing.is_empty() {
        Ok(Some(torrent))
    } else {
        Err(Violation::Loss(
            format!("pieces {missing:?} of torrent {name} were flushed and are gone"),
            Some(torrent),
        ))
    }
}

/// Whether a fault of the medium lies in a piece: a check of its hash finds it then.
fn hit(found: &dyn Content, piece: u32, fault: Fault) -> bool {
    let (Fault::Garbage(sector) | Fault::Healed(sector)) = fault else { return false };
    let range = found.geometry().piece(piece).expect("it is complete");
    let sector_of = |at: u64| found.place(at).map(|place| place / SECTOR as u64);
    range.clone().step_by(512).chain([range.end - 1]).any(|at| sector_of(at) == Some(sector))
}

/// A torrent that returns with an older root must read as before: its blocks were not used again.
fn undeleted(found: &dyn Content, complete: &[u32], fault: Fault) -> Result<(), String> {
    for &piece in complete.iter().filter(|piece| !hit(found, **piece, fault)) {
        let read = found.read_piece(piece).map_err(|error| error.to_string())?;
        let right = (0..400).any(|number| (1..8).any(|version| starts_with(&read, number, piece, version)));
        if !right {
            return Err(format!("piece {piece} of a torrent that is there again holds something else"));
        }
    }
    Ok(())
}

fn starts_with(read: &[u8], number: u64, piece: u32, version: u64) -> bool {
    let front = read.len().min(16);
    content(number, piece, version, front) == read[..front]
        && content(number, piece, version, read.len()) == read
}
