//! `seedkeep store export`: torrents back to ordinary files, each piece verified.

use std::{
    collections::BTreeSet,
    error::Error,
    fs::{self, File, OpenOptions},
    io,
    ops::Range,
    os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
    process::ExitCode,
};

use indicatif::{BinaryBytes, ProgressBar};
use rustix::{
    fs::{OFlags, RenameFlags},
    io::Errno,
};
use serde::Serialize;
use swarmkeep_content::{Content, ContentExt, ContentRepository};
use swarmkeep_metainfo::Info;

use super::{
    StoreArg, WRONG, bar, in_runs,
    opened::{For, Opened, Torrent},
    print_json, say, total,
};

/// Write torrents back to ordinary files, each piece verified.
///
/// Files that are not complete are in a folder `.INFO-HASH.part`, numbered as in the torrent. A second call
/// writes only what is missing there. An existing file that is not the torrent's is never written to.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(flatten)]
    store: StoreArg,

    /// The torrents: by name, info hash, or the beginning of an info hash.
    #[arg(value_name = "TORRENT", required_unless_present = "all")]
    torrents: Vec<String>,

    /// Every torrent.
    #[arg(long, conflicts_with = "torrents")]
    all: bool,

    /// The folder to write to.
    #[arg(long, value_name = "FOLDER", default_value = ".")]
    to: PathBuf,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Exported {
    info_hash: String,
    name: String,
    bytes: u64,
    pieces: u32,
    /// Pieces that were there already.
    kept: u32,
    /// Pieces that were written.
    written: u32,
    /// Pieces that the store does not have.
    missing: Vec<u32>,
    /// Pieces that the store has, and whose bytes are not those of the torrent or cannot be read.
    wrong: Vec<u32>,
    /// Files that are not whole.
    partial: Vec<String>,
    /// Why the torrent could not be exported.
    error: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let store = Opened::open(&args.store.path, For::Reading)?;
    let torrents = store.named(&args.torrents)?;
    let bar = bar(total(&torrents));
    let mut all = Vec::new();
    for torrent in &torrents {
        bar.set_message(torrent.title());
        let mut exported = Exported::none_of(torrent);
        let done = match &torrent.metainfo {
            Some(metainfo) => {
                let content = store.repository.open(&torrent.info_hash())?;
                export(&*content, metainfo.info(), &args.to, &bar, &mut exported)
            }
            None => Err(format!(
                "the store has no torrent file of it; `seedkeep store add {} FILE.torrent` keeps one",
                args.store.path.display()
            )
            .into()),
        };
        exported.error = done.err().map(|error| error.to_string());
        all.push(exported);
    }
    bar.finish_and_clear();
    if args.json {
        print_json(&all)?;
    } else {
        all.iter().try_for_each(Exported::print)?;
    }
    let failed = all.iter().filter(|exported| exported.error.is_some()).count();
    let whole = all.iter().all(|exported| exported.missing.is_empty() && exported.wrong.is_empty());
    Ok(match failed {
        0 if whole => ExitCode::SUCCESS,
        failed if failed == all.len() => ExitCode::FAILURE,
        _ => ExitCode::from(WRONG),
    })
}

fn export(
    content: &dyn Content,
    info: &Info,
    to: &Path,
    bar: &ProgressBar,
    exported: &mut Exported,
) -> Result<(), Box<dyn Error>> {
    let mut files = Files::open(info, to)?;
    let complete = content.pieces()?;
    let right = |piece, bytes: &[u8]| info.verify(piece, &bytes[..info.piece_len(piece) as usize]);
    let mut lacking = BTreeSet::new();
    let mut bytes = Vec::new();
    for piece in 0..info.piece_count() {
        let range = content.geometry().piece(piece)?;
        bar.inc(range.end - range.start);
        // Zeroes, also where padding is, which is read from nowhere.
        bytes.clear();
        bytes.resize((range.end - range.start) as usize, 0);
        if files.were_there(range.clone()) {
            files.read(range.start, &mut bytes)?;
            if right(piece, &bytes) {
                exported.kept += 1;
                continue;
            }
        }
        if !complete.contains(piece) {
            exported.missing.push(piece);
        } else if content.read(range.start, &mut bytes).is_ok() && right(piece, &bytes) {
            files.write(range.start, &bytes)?;
            exported.written += 1;
            continue;
        } else {
            exported.wrong.push(piece);
        }
        lacking.extend(info.files().segments(range).map(|segment| segment.file));
    }
    exported.partial = files.finish(&lacking)?;
    Ok(())
}

impl Exported {
    fn none_of(torrent: &Torrent) -> Self {
        Self {
            info_hash: torrent.info_hash().to_string(),
            name: torrent.title(),
            bytes: torrent.summary.geometry.len(),
            pieces: torrent.summary.geometry.pieces(),
            kept: 0,
            written: 0,
            missing: Vec::new(),
            wrong: Vec::new(),
            partial: Vec::new(),
            error: None,
        }
    }

    fn print(&self) -> Result<(), Box<dyn Error>> {
        if let Some(error) = &self.error {
            eprintln!("seedkeep: {} ({}): {error}", self.name, self.info_hash);
            return Ok(());
        }
        say!(
            "{}: {} of {} pieces were written and {} were there, {} in all",
            self.name,
            self.written,
            self.pieces,
            self.kept,
            BinaryBytes(self.bytes)
        );
        for (pieces, what) in [
            (&self.missing, "not in the store"),
            (&self.wrong, "wrong in the store (see `seedkeep store check`)"),
        ] {
            if !pieces.is_empty() {
                say!("  {what}: {}", in_runs(pieces));
            }
        }
        for file in &self.partial {
            say!("  not whole: {file}");
        }
        Ok(())
    }
}

/// The files that a torrent is written to. A piece has bytes of several, and each is opened once for a run of
/// pieces.
struct Files<'a> {
    info: &'a Info,
    /// The folder of files that are not whole. No torrent has its own info hash in a name, so nothing that is
    /// exported can be called so.
    parts: PathBuf,
    /// For each file where it is to be; `None` for padding.
    paths: Vec<Option<PathBuf>>,
    states: Vec<FileState>,
    open: Option<(usize, File)>,
}

/// What was found of a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FileState {
    /// It is there, and as long as it should be.
    Whole,
    /// Part of it is, of an earlier call.
    Begun,
    /// Nothing.
    New,
}

impl<'a> Files<'a> {
    /// Looks for all files before anything is made.
    fn open(info: &'a Info, to: &Path) -> Result<Self, Box<dyn Error>> {
        let parts = to.join(format!(".{}.part", info.info_hash()));
        let (mut paths, mut states) = (Vec::new(), Vec::new());
        for file in info.files().iter() {
            let path = (!file.is_padding()).then(|| to.join(PathBuf::from_iter(file.path())));
            let there = path.as_ref().and_then(|path| path.symlink_metadata().ok());
            let begun = parts.join(file.index().to_string());
            states.push(match there {
                Some(there) if there.is_file() && there.len() == file.length() => FileState::Whole,
                Some(_) => return Err(another(path.as_deref().expect("it was looked for"))),
                None if begun.symlink_metadata().is_ok_and(|begun| begun.is_file()) => FileState::Begun,
                None => FileState::New,
            });
            paths.push(path);
        }
        let files = Self { info, parts, paths, states, open: None };
        fs::create_dir_all(&files.parts).map_err(told(&files.parts))?;
        for file in info.files().iter() {
            let Some(path) = &files.paths[file.index()] else { continue };
            let folder = path.parent().expect("it is in a folder");
            fs::create_dir_all(folder).map_err(told(folder))?;
            if files.states[file.index()] != FileState::Whole {
                let part = files.part(file.index());
                let opened = opening().create(true).open(&part);
                opened.and_then(|opened| opened.set_len(file.length())).map_err(told(&part))?;
            }
        }
        Ok(files)
    }

    /// Where a file is until it is whole.
    fn part(&self, file: usize) -> PathBuf {
        self.parts.join(file.to_string())
    }

    /// Whether something of all files of a range was there before.
    fn were_there(&self, range: Range<u64>) -> bool {
        self.info
            .files()
            .segments(range)
            .all(|segment| self.paths[segment.file].is_none() || self.states[segment.file] != FileState::New)
    }

    /// Does something to each part of a range that lies in a file, given the file, where in it, and whether
    /// it is whole already. It says whether the file is the torrent's.
    fn each<B: AsRef<[u8]>>(
        &mut self,
        offset: u64,
        mut rest: B,
        split: impl Fn(B, usize) -> (B, B),
        act: impl Fn(&File, u64, B, bool) -> io::Result<bool>,
    ) -> Result<(), Box<dyn Error>> {
        for segment in self.info.files().segments(offset..offset + rest.as_ref().len() as u64) {
            let (now, later) = split(rest, segment.length as usize);
            rest = later;
            let Some(path) = &self.paths[segment.file] else { continue };
            let whole = self.states[segment.file] == FileState::Whole;
            let named = if whole { path.clone() } else { self.part(segment.file) };
            if self.open.as_ref().is_none_or(|(open, _)| *open != segment.file) {
                let opened = if whole { File::open(&named) } else { opening().open(&named) };
                self.open = Some((segment.file, opened.map_err(told(&named))?));
            }
            let (_, open) = self.open.as_ref().expect("it was opened");
            if !act(open, segment.offset, now, whole).map_err(told(&named))? {
                return Err(another(path));
            }
        }
        Ok(())
    }

    fn read(&mut self, offset: u64, into: &mut [u8]) -> Result<(), Box<dyn Error>> {
        self.each(offset, into, <[u8]>::split_at_mut, |file, at, now, _| {
            file.read_exact_at(now, at).map(|()| true)
        })
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> Result<(), Box<dyn Error>> {
        self.each(offset, bytes, <[u8]>::split_at, |file, at, now, whole| {
            if !whole {
                return file.write_all_at(now, at).map(|()| true);
            }
            let mut has = vec![0; now.len()];
            file.read_exact_at(&mut has, at)?;
            Ok(has == now)
        })
    }

    /// Gives files that are whole their names. The others.
    fn finish(self, lacking: &BTreeSet<usize>) -> Result<Vec<String>, Box<dyn Error>> {
        let mut partial = Vec::new();
        for file in self.info.files().iter() {
            let Some(path) = &self.paths[file.index()] else { continue };
            if self.states[file.index()] == FileState::Whole {
                continue;
            }
            let part = self.part(file.index());
            let written = File::open(&part).map_err(told(&part))?;
            if file.is_executable() {
                let mode = written.metadata().map_err(told(&part))?.permissions().mode();
                let mode = fs::Permissions::from_mode(mode | (mode & 0o444) >> 2);
                written.set_permissions(mode).map_err(told(&part))?;
            }
            written.sync_all().map_err(told(&part))?;
            if lacking.contains(&file.index()) {
                partial.push(path.display().to_string());
            } else {
                name(&part, path).map_err(told(path))?;
            }
        }
        // It stays as long as something is in it.
        let _ = fs::remove_dir(&self.parts);
        Ok(partial)
    }
}

/// A file to be written to, which is no link to another.
fn opening() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(OFlags::NOFOLLOW.bits() as i32);
    options
}

/// Gives a file a name that nothing has.
fn name(part: &Path, path: &Path) -> io::Result<()> {
    let cwd = rustix::fs::CWD;
    match rustix::fs::renameat_with(cwd, part, cwd, path, RenameFlags::NOREPLACE) {
        // Network file systems do not know it.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            fs::hard_link(part, path)?;
            fs::remove_file(part)
        }
        done => Ok(done?),
    }
}

fn told(path: &Path) -> impl FnOnce(io::Error) -> Box<dyn Error> {
    let path = path.display().to_string();
    move |error| format!("{path}: {error}").into()
}

fn another(path: &Path) -> Box<dyn Error> {
    format!(
        "{} is there already, and is not what the torrent has: move it away, or export elsewhere",
        path.display()
    )
    .into()
}
