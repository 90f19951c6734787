//! `seedkeep store export`: torrents back to ordinary files, each piece verified.

use std::{
    collections::BTreeSet,
    error::Error,
    fs::{self, File},
    io,
    ops::Range,
    os::{
        fd::OwnedFd,
        unix::fs::{FileExt, PermissionsExt},
    },
    path::{Path, PathBuf},
    process::ExitCode,
};

use indicatif::{BinaryBytes, ProgressBar};
use rustix::{
    fs::{AtFlags, Mode, OFlags, RenameFlags, Stat, mkdirat},
    io::Errno,
};
use serde::Serialize;
use swarmkeep_content::{Content, ContentExt, ContentRepository, files::folder};
use swarmkeep_metainfo::Info;

use super::{
    StoreArg, WRONG, bar, of_pieces,
    opened::{Access, StoredTorrent},
    print_json, say, say_pieces, tell_changes, total,
};

/// Write torrents back to ordinary files, each piece verified.
///
/// Files that are not complete are in a folder `.INFO-HASH.part`, numbered as in the torrent. A second call
/// writes only the missing pieces. An existing file that is not the torrent's is never written to.
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

#[derive(Default, Serialize)]
struct Exported {
    info_hash: String,
    name: String,
    bytes: u64,
    pieces: u32,
    /// Pieces that were there already.
    kept: u32,
    written: u32,
    /// Pieces that the store does not have.
    missing: Vec<u32>,
    /// Pieces that the store has, but with other bytes than the torrent has, or unreadable.
    wrong: Vec<u32>,
    /// Files that are not whole.
    partial: Vec<String>,
    /// Why the torrent could not be exported.
    error: Option<String>,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    let store = args.store.open(Access::Reading)?;
    let torrents = store.named(&args.torrents)?;
    let bar = bar(total(&torrents));
    let mut all = Vec::new();
    for torrent in &torrents {
        bar.set_message(torrent.title());
        let mut exported = Exported::none_of(torrent);
        let done = match store.torrents.metainfo(&torrent.info_hash()) {
            Ok(Some(metainfo)) => {
                let content = store.repository.open(&torrent.info_hash())?;
                export(&*content, metainfo.info(), &args.to, &bar, &mut exported)
            }
            Err(error) => Err(error.into()),
            Ok(None) => Err(format!(
                "its torrent file is not in {}; `seedkeep store add {} FILE.torrent` keeps it",
                store.torrent_files.display(),
                args.store.path.display()
            )
            .into()),
        };
        exported.error = done.err().map(|error| swarmkeep_bittorrent::in_words(&error));
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
    tell_changes(info);
    let complete = content.pieces()?;
    let right = |piece, bytes: &[u8]| info.verify(piece, &bytes[..info.piece_len(piece) as usize]);
    let mut lacking = BTreeSet::new();
    let mut bytes = Vec::new();
    for piece in 0..info.piece_count() {
        let range = content.geometry().piece(piece)?;
        bar.inc(range.end - range.start);
        // Zeroes: padding is not read.
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
    fn none_of(torrent: &StoredTorrent) -> Self {
        Self {
            info_hash: torrent.info_hash().to_string(),
            name: torrent.title(),
            bytes: torrent.summary.geometry.len(),
            pieces: torrent.summary.geometry.pieces(),
            ..Self::default()
        }
    }

    fn print(&self) -> Result<(), Box<dyn Error>> {
        if let Some(error) = &self.error {
            eprintln!("seedkeep: {} ({}): {error}", self.name, self.info_hash);
            return Ok(());
        }
        let (written, bytes) = (of_pieces(self.written, self.pieces), BinaryBytes(self.bytes));
        say!("{}: {written} were written and {} were there, {bytes} in all", self.name, self.kept);
        say_pieces("not in the store", &self.missing)?;
        say_pieces("wrong in the store (see `seedkeep store check`)", &self.wrong)?;
        for file in &self.partial {
            say!("  not whole: {file}");
        }
        Ok(())
    }
}

/// The files of an exported torrent. Each is opened once for a run of pieces.
struct Files<'a> {
    info: &'a Info,
    to: ExportFolder<'a>,
    /// The name of the folder of files that are not whole. No torrent has its own info hash in a name, so no
    /// exported file can have this name.
    parts_name: String,
    parts: OwnedFd,
    states: Vec<FileState>,
    open: Option<(usize, File)>,
}

/// The state of a file before the export.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FileState {
    /// It exists, in its full length.
    Whole,
    /// An earlier call has written part of it.
    Begun,
    New,
}

impl<'a> Files<'a> {
    /// Looks for all files before it makes one.
    fn open(info: &'a Info, to: &'a Path) -> Result<Self, Box<dyn Error>> {
        let to = ExportFolder::open(to)?;
        let parts_name = format!(".{}.part", info.info_hash());
        let parts = to.enter(&[&parts_name])?;
        let mut states = Vec::new();
        for file in info.files().iter() {
            let names = file.path();
            let is_begun = |parts| {
                folder::stat(parts, &file.index().to_string()).is_ok_and(|begun| folder::is_file(&begun))
            };
            states.push(match to.stat(&names)? {
                Some(there) if folder::is_file(&there) && there.st_size as u64 == file.length() => {
                    FileState::Whole
                }
                Some(_) => return Err(another(&to.path(&names))),
                None if parts.as_ref().is_some_and(is_begun) => FileState::Begun,
                None => FileState::New,
            });
        }
        let parts = to.make(&[&parts_name])?;
        let files = Self { info, to, parts_name, parts, states, open: None };
        for file in info.files().iter() {
            let names = file.path();
            let Some((_, folders)) = names.split_last() else { continue };
            files.to.make(folders)?;
            let made = match files.states[file.index()] {
                FileState::Whole => continue,
                FileState::Begun => OFlags::empty(),
                FileState::New => OFlags::CREATE | OFlags::EXCL,
            };
            let opened = files.open_part(file.index(), OFlags::RDWR | made);
            opened
                .and_then(|opened| opened.set_len(file.length()))
                .map_err(at_path(&files.part(file.index())))?;
        }
        Ok(files)
    }

    /// Where a file is until it is whole.
    fn part(&self, file: usize) -> PathBuf {
        self.to.path(&[&self.parts_name, &file.to_string()])
    }

    fn open_part(&self, file: usize, flags: OFlags) -> io::Result<File> {
        folder::open(&self.parts, &file.to_string(), flags, 0o666)
    }

    /// Whether all files of a range existed before, in part at least.
    fn were_there(&self, range: Range<u64>) -> bool {
        self.info
            .files()
            .segments(range)
            .all(|segment| self.names(segment.file).is_empty() || self.states[segment.file] != FileState::New)
    }

    /// Calls `act` for each part of a range that lies in a file, with the file, the offset in it, and whether
    /// it is whole already. `act` returns whether the file is the torrent's.
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
            let names = self.names(segment.file);
            let Some((name, folders)) = names.split_last() else { continue };
            let whole = self.states[segment.file] == FileState::Whole;
            let named = if whole { self.to.path(&names) } else { self.part(segment.file) };
            if self.open.as_ref().is_none_or(|(open, _)| *open != segment.file) {
                let opened = match whole {
                    true => folder::open(self.to.make(folders)?, name, OFlags::RDONLY, 0),
                    false => self.open_part(segment.file, OFlags::RDWR),
                };
                self.open = Some((segment.file, opened.map_err(at_path(&named))?));
            }
            let (_, open) = self.open.as_ref().expect("it was opened");
            if !act(open, segment.offset, now, whole).map_err(at_path(&named))? {
                return Err(another(&named));
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

    /// Gives files that are whole their names. Returns the others.
    fn finish(self, lacking: &BTreeSet<usize>) -> Result<Vec<String>, Box<dyn Error>> {
        let mut partial = Vec::new();
        for file in self.info.files().iter() {
            let names = file.path();
            let Some((name, folders)) = names.split_last() else { continue };
            if self.states[file.index()] == FileState::Whole {
                continue;
            }
            let part = self.part(file.index());
            let written = self.open_part(file.index(), OFlags::RDONLY).map_err(at_path(&part))?;
            if file.is_executable() {
                let mode = written.metadata().map_err(at_path(&part))?.permissions().mode();
                let mode = fs::Permissions::from_mode(mode | (mode & 0o444) >> 2);
                written.set_permissions(mode).map_err(at_path(&part))?;
            }
            written.sync_all().map_err(at_path(&part))?;
            let path = self.to.path(&names);
            if lacking.contains(&file.index()) {
                partial.push(path.display().to_string());
            } else {
                let folder = self.to.make(folders)?;
                give_name(&self.parts, &file.index().to_string(), &folder, name).map_err(at_path(&path))?;
            }
        }
        // Fails while the folder contains files.
        let _ = rustix::fs::unlinkat(&self.to.top, &self.parts_name, AtFlags::REMOVEDIR);
        Ok(partial)
    }

    /// Folders and name of a file; none for padding.
    fn names(&self, file: usize) -> Vec<&'a str> {
        self.info.files().get(file).map(|file| file.path()).unwrap_or_default()
    }
}

/// The folder of the command line. Files below it are reached name by name, through no symbolic link.
struct ExportFolder<'a> {
    path: &'a Path,
    top: OwnedFd,
}

impl<'a> ExportFolder<'a> {
    fn open(path: &'a Path) -> Result<Self, Box<dyn Error>> {
        fs::create_dir_all(path).map_err(at_path(path))?;
        Ok(Self { path, top: File::open(path).map_err(at_path(path))?.into() })
    }

    fn path(&self, names: &[&str]) -> PathBuf {
        self.path.join(PathBuf::from_iter(names))
    }

    fn stat(&self, names: &[&str]) -> Result<Option<Stat>, Box<dyn Error>> {
        let Some((name, folders)) = names.split_last() else { return Ok(None) };
        let Some(folder) = self.enter(folders)? else { return Ok(None) };
        match folder::stat(folder, name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            stat => Ok(Some(stat.map_err(at_path(&self.path(names)))?)),
        }
    }

    /// The folder to which these names lead.
    fn enter(&self, names: &[&str]) -> Result<Option<OwnedFd>, Box<dyn Error>> {
        match self.walk(names, |_, _| Ok(())) {
            Err((_, error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            entered => Ok(Some(entered.map_err(not_entered)?)),
        }
    }

    /// The same, but makes missing folders.
    fn make(&self, names: &[&str]) -> Result<OwnedFd, Box<dyn Error>> {
        let make = |folder: &OwnedFd, name: &str| match mkdirat(folder, name, Mode::from_raw_mode(0o777)) {
            Err(Errno::EXIST) => Ok(()),
            made => Ok(made?),
        };
        self.walk(names, make).map_err(not_entered)
    }

    /// The folder to which these names lead, or the path of the first that cannot be entered.
    fn walk(
        &self,
        names: &[&str],
        before: impl Fn(&OwnedFd, &str) -> io::Result<()>,
    ) -> Result<OwnedFd, (PathBuf, io::Error)> {
        let top = self.top.try_clone().map_err(|error| (self.path.to_owned(), error))?;
        names.iter().enumerate().try_fold(top, |folder, (at, name)| {
            let entered = before(&folder, name).and_then(|()| folder::enter(&folder, name));
            entered.map_err(|error| (self.path(&names[..=at]), error))
        })
    }
}

fn not_entered((path, error): (PathBuf, io::Error)) -> Box<dyn Error> {
    match Errno::from_io_error(&error) {
        Some(Errno::NOTDIR | Errno::LOOP) => {
            let path = path.display();
            format!("{path} is no folder, and no link is followed: move it away, or export elsewhere").into()
        }
        _ => at_path(&path)(error),
    }
}

/// Gives a file a name, which must be free.
fn give_name(parts: &OwnedFd, part: &str, folder: &OwnedFd, name: &str) -> io::Result<()> {
    match rustix::fs::renameat_with(parts, part, folder, name, RenameFlags::NOREPLACE) {
        // Network file systems do not have this call.
        Err(Errno::INVAL | Errno::NOSYS | Errno::OPNOTSUPP) => {
            rustix::fs::linkat(parts, part, folder, name, AtFlags::empty())?;
            Ok(rustix::fs::unlinkat(parts, part, AtFlags::empty())?)
        }
        done => Ok(done?),
    }
}

fn at_path(path: &Path) -> impl FnOnce(io::Error) -> Box<dyn Error> {
    let path = path.display().to_string();
    move |error| format!("{path}: {error}").into()
}

fn another(path: &Path) -> Box<dyn Error> {
    let path = path.display();
    format!("{path} is there already, and is not the torrent's: move it away, or export elsewhere").into()
}
