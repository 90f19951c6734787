//! `seedkeep store check` and `repair`: every complete piece is read, and its hash compared.

use std::{
    collections::BTreeSet,
    error::Error,
    process::ExitCode,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    thread,
};

use indicatif::{BinaryBytes, ProgressBar};
use serde::Serialize;
use swarmkeep_content::{
    Content, ContentRepository, Error as StoreError, InfoHash, Library, NewTorrent,
    block::{BlockStore, FileDevice},
    verify,
};
use swarmkeep_metainfo::Info;

use super::{
    StoreArg, WRONG, bar, counted, in_runs, of_pieces,
    opened::{Access, OpenStore, StoredTorrent},
    print_json, probe, read_whole_torrent, say, say_pieces, total,
};

/// Read everything, and report damage and the pieces that it affects.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    store: StoreArg,

    /// Only these torrents: by name, info hash, or the beginning of an info hash.
    #[arg(value_name = "TORRENT")]
    torrents: Vec<String>,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

/// Check, and mark wrong pieces as missing, so that a fetch repairs them.
#[derive(Debug, clap::Args)]
pub(super) struct RepairArgs {
    #[command(flatten)]
    check: Args,

    /// Mark all pieces that cannot be read, however many. Without this option, none of them is marked if
    /// there are more than 16: the device or its cable may have failed, and they may be readable later. Also
    /// look for the torrents of a store on a device that has another use now.
    #[arg(long)]
    force: bool,
}

/// Up to this number, pieces that cannot be read are taken for bad sectors.
const MOST_UNREADABLE: usize = 16;

#[derive(Serialize)]
struct CheckReport {
    /// Of the store as a whole.
    damage: Vec<String>,
    torrents: Vec<Findings>,
    ok: bool,
    /// How many pieces were marked as missing.
    #[serde(skip_serializing_if = "Option::is_none")]
    marked: Option<usize>,
}

#[derive(Serialize)]
struct Findings {
    #[serde(skip)]
    of: InfoHash,
    info_hash: String,
    name: Option<String>,
    pieces: u32,
    complete: u32,
    /// Whether hashes were compared: the store needs the torrent file.
    verified: bool,
    /// Pieces with other bytes than the torrent has.
    wrong: Vec<u32>,
    unreadable: Vec<u32>,
    /// Bytes of wrong and unreadable pieces.
    lost: u64,
    /// Files with bytes of these pieces.
    files: Vec<String>,
}

fn check(store: &OpenStore, names: &[String]) -> Result<Vec<Findings>, Box<dyn Error>> {
    let torrents = store.named(names)?;
    let bar = bar(total(&torrents));
    let mut findings = Vec::new();
    for torrent in torrents {
        bar.set_message(torrent.title());
        let content = store.repository.open(&torrent.info_hash())?;
        let metainfo = store.metainfo(&torrent.info_hash())?;
        let info = metainfo.as_ref().map(|metainfo| &**metainfo.info());
        let (wrong, unreadable) = read_all(&*content, info, &bar)?;
        findings.push(Findings::of(&torrent, info, wrong, unreadable));
    }
    bar.finish_and_clear();
    Ok(findings)
}

/// Returns the wrong and the unreadable pieces.
fn read_all(
    content: &dyn Content,
    info: Option<&Info>,
    bar: &ProgressBar,
) -> Result<(Vec<u32>, Vec<u32>), StoreError> {
    let complete = content.pieces()?;
    let next = AtomicU64::new(0);
    let found = Mutex::new((BTreeSet::new(), BTreeSet::new()));
    // Hashing takes longer than reading, where the disk is fast.
    let threads = thread::available_parallelism().map_or(1, |cores| cores.get().min(4));
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut chunk = Vec::new();
                loop {
                    let piece = next.fetch_add(1, Relaxed);
                    if piece >= complete.pieces().into() {
                        return;
                    }
                    let piece = piece as u32;
                    let range = content.geometry().piece(piece).expect("there are as many");
                    if complete.contains(piece) {
                        match verify(content, info, piece, &mut chunk) {
                            Ok(true) => {}
                            Ok(false) => _ = found.lock().expect("no panics").0.insert(piece),
                            Err(_) => _ = found.lock().expect("no panics").1.insert(piece),
                        }
                    }
                    bar.inc(range.end - range.start);
                }
            });
        }
    });
    let (wrong, unreadable) = found.into_inner().expect("no panics");
    Ok((wrong.into_iter().collect(), unreadable.into_iter().collect()))
}

impl Findings {
    fn of(torrent: &StoredTorrent, info: Option<&Info>, wrong: Vec<u32>, unreadable: Vec<u32>) -> Self {
        let geometry = torrent.summary.geometry;
        let (mut lost, mut files) = (0, BTreeSet::new());
        for piece in wrong.iter().chain(&unreadable) {
            let range = geometry.piece(*piece).expect("it was read");
            lost += range.end - range.start;
            let list = info.map(|info| info.files());
            files.extend(
                list.into_iter().flat_map(|list| list.segments(range.clone())).map(|segment| segment.file),
            );
        }
        let path = |file| info.and_then(|info| info.files().get(file)).filter(|file| !file.is_padding());
        Self {
            of: torrent.info_hash(),
            info_hash: torrent.info_hash().to_string(),
            name: torrent.name().map(ToOwned::to_owned),
            pieces: geometry.pieces(),
            complete: torrent.summary.complete,
            verified: info.is_some_and(Info::knows_hashes),
            wrong,
            unreadable,
            lost,
            files: files.into_iter().filter_map(path).map(|file| file.path().join("/")).collect(),
        }
    }

    /// Whether all of its pieces were verified.
    const fn is_known(&self) -> bool {
        self.verified || self.complete == 0
    }

    const fn is_ok(&self) -> bool {
        self.wrong.is_empty() && self.unreadable.is_empty() && self.is_known()
    }

    fn print(&self) -> Result<(), Box<dyn Error>> {
        let name = self.name.as_deref().unwrap_or("a torrent");
        let how = if self.is_known() {
            "and verified"
        } else {
            "and not verified: the store has no torrent file with their hashes"
        };
        let complete = of_pieces(self.complete, self.pieces);
        say!("{name} ({}): {complete} marked complete, {how}", self.info_hash);
        say_pieces("wrong", &self.wrong)?;
        say_pieces("not readable", &self.unreadable)?;
        if self.lost > 0 {
            say!("  costs {} of", BinaryBytes(self.lost));
            for file in &self.files {
                say!("    {file}");
            }
        }
        Ok(())
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let store = OpenStore::open_quietly(&args.store.path, &args.store.torrent_files, Access::Reading)?;
    let checked = CheckReport::of(&store, &args.torrents)?;
    checked.print(args.json)?;
    Ok(if checked.ok { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
}

pub(super) fn repair(args: &RepairArgs) -> Result<ExitCode, Box<dyn Error>> {
    let at = &args.check.store;
    let (store, is_decided) = match OpenStore::open_quietly(&at.path, &at.torrent_files, Access::Writing) {
        // The error says so if a repair helps.
        Err(error)
            if !at.path.is_dir()
                && matches!(error.downcast_ref(), Some(StoreError::NotAStore { what, .. }) if what.contains("repair it")) =>
        {
            salvage(at, args.force, error)?
        }
        opened => (opened?, true),
    };
    let mut checked = CheckReport::of(&store, &args.check.torrents)?;
    if !args.check.json {
        checked.print(false)?;
    }
    let unreadable: usize = checked.torrents.iter().map(|findings| findings.unreadable.len()).sum();
    let give_up = args.force || unreadable <= MOST_UNREADABLE;
    let mut marked = 0;
    for findings in &checked.torrents {
        let content = store.repository.open(&findings.of)?;
        let info = store.metainfo(&findings.of)?;
        let info = info.as_ref().map(|metainfo| &**metainfo.info());
        let lost = if give_up { &findings.unreadable[..] } else { &[] };
        marked += mark(&*content, info, findings.wrong.iter().chain(lost))?;
    }
    store.repository.flush()?;
    checked.marked = Some(marked);
    if args.check.json {
        checked.print(true)?;
    } else {
        say!("Marked as missing, to be fetched or added again: {}.", counted(marked, "piece"));
    }
    if !give_up {
        return Err(format!(
            "{} cannot be read: that looks like a device or a cable that fails, so they were left as they are; \
             --force gives them up",
            counted(unreadable, "piece")
        )
        .into());
    }
    let is_known = is_decided
        && checked.torrents.iter().all(Findings::is_known)
        && store.missing_torrent_files()?.is_none()
        && store.damaged_torrent_files()?.is_empty();
    Ok(if is_known { ExitCode::SUCCESS } else { ExitCode::from(WRONG) })
}

/// Opens a store without a root, or without a part of its device. `why`: the error of opening it as usual.
/// Also returns whether it is proven which i-nodes are the store's.
fn salvage(at: &StoreArg, force: bool, why: Box<dyn Error>) -> Result<(OpenStore, bool), Box<dyn Error>> {
    let device = FileDevice::open(&at.path, true)?;
    if let Some(owner) = probe::owner_of(&device)?.filter(|_| !force) {
        return Err(format!("{why}; it holds {owner}, which repair overwrites only with --force").into());
    }
    eprintln!("seedkeep: {why}\nseedkeep: looking for its torrents: this may read all of it");
    let folder = at.torrent_files.of(&at.path)?;
    let torrent = |info_hash: &InfoHash| {
        read_whole_torrent(&folder.join(format!("{info_hash}.torrent"))).ok().map(|(metainfo, _)| metainfo)
    };
    let (torrents, undecided) = BlockStore::salvage(device, &torrent)?;
    if torrents == 0 {
        return Err(why);
    }
    let mut store = OpenStore::open_quietly(&at.path, &at.torrent_files, Access::Writing)?;
    let found = counted(store.repository.list()?.len(), "torrent");
    store.damage.insert(0, format!("the root was rewritten, and names {found} that were found"));
    if undecided > 0 {
        let others = counted(undecided as usize, "i-node");
        let told =
            "no piece that verifies proves that they are not the store's; torrents may be missing or forged";
        store.damage.insert(1, format!("it had to choose, and left out {others}: {told}"));
    }
    Ok((store, undecided == 0))
}

/// Marks pieces as missing, and returns their number. Verifies each of them again, since a marked piece is
/// lost.
fn mark<'a>(
    content: &dyn Content,
    info: Option<&Info>,
    pieces: impl Iterator<Item = &'a u32>,
) -> Result<usize, StoreError> {
    let (mut chunk, mut marked) = (Vec::new(), 0);
    for &piece in pieces {
        if !matches!(verify(content, info, piece, &mut chunk), Ok(true)) {
            marked += usize::from(content.mark_incomplete(piece)?);
        }
    }
    Ok(marked)
}

/// Verifies the pieces of a torrent in a store without its torrent file, before the store gets it. Wrong
/// pieces are marked as missing.
pub(crate) fn verify_unknown(library: &Library, info: &Info) -> Result<(), Box<dyn Error>> {
    let (info_hash, repository) = (info.info_hash(), library.store());
    let is_known = || Ok::<_, StoreError>(library.metainfo(&info_hash)?.is_some());
    if !info.knows_hashes() || repository.open(&info_hash).is_err() || is_known()? {
        return Ok(());
    }
    let (content, name) = (repository.open(&info_hash)?, info.name().escape_debug());
    let geometry = NewTorrent::of(info)?.geometry;
    if content.geometry() != geometry || content.pieces()?.count() == 0 {
        return Ok(());
    }
    let bar = bar(geometry.len()).with_message(format!("verifying {name}"));
    let (wrong, unreadable) = read_all(&*content, Some(info), &bar)?;
    bar.finish_and_clear();
    if unreadable.len() > MOST_UNREADABLE {
        let count = counted(unreadable.len(), "piece");
        return Err(
            format!("{name}: {count} cannot be read: `seedkeep store repair --force` gives them up").into()
        );
    }
    let mut lost: Vec<_> = wrong.into_iter().chain(unreadable).collect();
    lost.sort_unstable();
    if mark(&*content, Some(info), lost.iter())? > 0 {
        let pieces = in_runs(&lost);
        eprintln!("{name}: pieces in the store are not those of the torrent, and are missing now: {pieces}");
    }
    Ok(())
}

impl CheckReport {
    fn of(store: &OpenStore, names: &[String]) -> Result<Self, Box<dyn Error>> {
        let (mut damage, torrents) = (store.all_damage()?, check(store, names)?);
        damage.extend(store.damaged_torrent_files()?);
        let ok = damage.is_empty() && torrents.iter().all(Findings::is_ok);
        Ok(Self { damage, torrents, ok, marked: None })
    }

    fn print(&self, json: bool) -> Result<(), Box<dyn Error>> {
        if json {
            return print_json(self);
        }
        for damage in &self.damage {
            say!("{damage}");
        }
        self.torrents.iter().try_for_each(Findings::print)?;
        say!("{}", if self.ok { "All is well." } else { "Something is wrong." });
        Ok(())
    }
}
