//! `seedkeep store`: content on block devices, in images and in plain files, for people.

use std::{
    error::Error,
    fs::File,
    io::{self, BufWriter, Read, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Subcommand;
pub(crate) use swarmkeep_bittorrent::{counted, programs::bar, say};
use swarmkeep_content::files::HIDDEN;
use swarmkeep_metainfo::{Info, Metainfo};

mod add;
pub(crate) mod check;
mod export;
mod format;
mod list;
mod map;
#[cfg(feature = "mount")]
mod mount;
pub(crate) mod opened;
mod probe;
pub(crate) mod take_up;

/// The exit code if something in a store is wrong or missing.
const WRONG: u8 = 3;

const DETAILS: &str = "\
A store is a block device, an image of one in a file, or a folder with the torrents' files in it.

  seedkeep store format disk.image --size 100GiB     make an image (or: format /dev/sdX)
  seedkeep store add disk.image some.torrent ~/dir   add a torrent, and the files that exist already
  seedkeep store list disk.image                     show the torrents
  seedkeep store check disk.image                    read everything, and report damage
  seedkeep store repair disk.image                   mark wrong pieces, to fetch them again
  seedkeep store export disk.image NAME --to ~/dir   write ordinary files
  seedkeep store mount disk.image /mnt               or read the files without a copy

Torrent files are kept in a folder: `torrents` beside an image, /var/lib/seedkeep/torrents for a device.
Move it with the store: without it, nothing can be verified.

Exit codes:
  0  success
  1  the command failed
  2  the command line is wrong
  3  something in the store is wrong, or some of the requested content is missing; it is printed";

/// Keep torrents' content on a block device, in an image, or in plain files.
#[derive(Debug, clap::Args)]
#[command(after_long_help = DETAILS, after_help = "See --help for a tour and the exit codes.")]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Format(format::Args),
    /// Show the torrents of a store.
    List(list::Args),
    Add(add::Args),
    Export(export::Args),
    Remove(list::RemoveArgs),
    Check(check::Args),
    Repair(check::RepairArgs),
    /// Show the room and the state of the store.
    Stats(list::Args),
    Map(map::Args),
    #[cfg(feature = "mount")]
    Mount(mount::Args),
}

pub(crate) fn run(Args { command }: Args) -> Result<ExitCode, Box<dyn Error>> {
    match command {
        Command::Format(args) => format::run(args),
        Command::List(args) => list::run(&args),
        Command::Add(args) => add::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Remove(args) => list::remove(&args),
        Command::Check(args) => check::run(&args),
        Command::Repair(args) => check::repair(&args),
        Command::Stats(args) => list::stats(&args),
        Command::Map(args) => map::run(&args),
        #[cfg(feature = "mount")]
        Command::Mount(args) => mount::run(&args),
    }
}

/// The store that a command works on.
#[derive(Debug, clap::Args)]
struct StoreArg {
    /// The store: a block device, an image, or a folder.
    #[arg(value_name = "STORE")]
    path: PathBuf,

    #[command(flatten)]
    torrent_files: TorrentFiles,
}

/// Where torrent files are.
#[derive(Debug, clap::Args)]
pub(crate) struct TorrentFiles {
    /// The folder with the torrent files of the store. [default: `torrents` beside an image,
    /// /var/lib/seedkeep/torrents for a device, .swarmkeep/torrents in a folder]
    #[arg(id = "torrent_files", long = "torrents", value_name = "FOLDER")]
    folder: Option<PathBuf>,
}

impl TorrentFiles {
    /// The folder of the torrent files of a store. All devices have one, for all commands and users.
    pub(crate) fn of(&self, store: &Path) -> io::Result<PathBuf> {
        Ok(match &self.folder {
            Some(folder) => folder.clone(),
            None if store.is_dir() => store.join(HIDDEN).join("torrents"),
            None if store.is_file() => store.canonicalize()?.with_file_name("torrents"),
            None => "/var/lib/seedkeep/torrents".into(),
        })
    }
}

/// The limit of files: each costs time and a place in the store, and a small torrent file can list millions.
#[derive(Debug, clap::Args)]
pub(crate) struct ManyFiles {
    /// Take torrents of more than 100,000 files, too.
    #[arg(long)]
    many_files: bool,
}

impl ManyFiles {
    /// Leaves out the torrents of too many files. Returns why.
    pub(crate) fn leave_out(&self, torrents: &mut Vec<(Metainfo, Vec<u8>)>) -> Vec<String> {
        let mut refused = Vec::new();
        let check = |metainfo: &Metainfo| self.check(metainfo.info());
        torrents.retain(|(metainfo, _)| check(metainfo).map_err(|why| refused.push(why)).is_ok());
        refused
    }

    /// Refuses a torrent of too many files.
    pub(crate) fn check(&self, info: &Info) -> Result<(), String> {
        let files = info.files().iter().filter(|file| !file.is_padding()).count();
        if self.many_files || files <= 100_000 {
            return Ok(());
        }
        let name = info.name().escape_debug();
        Err(format!("{name}: it has {files} files; more than 100,000 are only taken with --many-files"))
    }
}

impl StoreArg {
    /// Opens the store. Prints its damage.
    fn open(&self, access: opened::Access) -> Result<opened::OpenStore, Box<dyn Error>> {
        opened::OpenStore::open(&self.path, &self.torrent_files, access)
    }
}

/// Reads a torrent file. Returns its metainfo and its bytes.
pub(crate) fn read_torrent(path: &Path) -> Result<(Metainfo, Vec<u8>), Box<dyn Error>> {
    let shown = path.display();
    let mut torrent = Vec::new();
    File::open(path)
        .and_then(|file| file.take(swarmkeep_metainfo::LONGEST as u64 + 1).read_to_end(&mut torrent))
        .map_err(|error| format!("{shown}: {error}"))?;
    let metainfo = Metainfo::parse(&torrent).map_err(|error| format!("{shown}: no torrent file: {error}"))?;
    Ok((metainfo, torrent))
}

/// Reads a torrent file, and refuses one from which pieces cannot be verified.
pub(crate) fn read_whole_torrent(path: &Path) -> Result<(Metainfo, Vec<u8>), Box<dyn Error>> {
    let (metainfo, torrent) = read_torrent(path)?;
    if metainfo.info().knows_hashes() {
        return Ok((metainfo, torrent));
    }
    let shown = path.display();
    let lack = "it has no hashes of some pieces (`piece layers`)";
    Err(format!("{shown}: {lack}; `seedkeep fetch {shown}` learns them from peers").into())
}

/// Prints which files of a torrent are written under other names, and how many links are left out.
pub(crate) fn tell_changes(info: &Info) {
    let (name, files) = (info.name().escape_debug(), info.files());
    let changed: Vec<_> = files
        .iter()
        .filter_map(|file| Some((file.original_path()?.join(&b'/'), file.path().join("/"))))
        .collect();
    let some = changed.iter().take(3).map(|(original, written)| {
        let original = String::from_utf8_lossy(original);
        format!("\n  {} as {}", original.escape_debug(), written.escape_debug())
    });
    if !changed.is_empty() {
        let count = counted(changed.len(), "file");
        let more = if changed.len() > 3 { "\n  and so on" } else { "" };
        eprintln!("{name}: {count} under another name:{}{more}", some.collect::<String>());
    }
    if files.links() > 0 {
        eprintln!("{name}: {} left out", counted(files.links(), "symbolic link"));
    }
}

/// Sorts paths of a command line: torrent files, and after the first of them the path of their content, if
/// there is one.
pub(crate) fn torrents_and_data(paths: &[PathBuf]) -> Result<(Vec<&Path>, Option<&Path>), String> {
    let is_torrent = |path: &Path| {
        path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("torrent")) && !path.is_dir()
    };
    let paths = paths.iter().enumerate().map(|(n, path)| (n == 0 || is_torrent(path), &**path));
    let (torrents, data): (Vec<_>, Vec<_>) = paths.partition(|(is_torrent, _)| *is_torrent);
    if let [_, (_, second), ..] = data[..] {
        return Err(format!("{}: one file or folder has the content of all torrents", second.display()));
    }
    Ok((torrents.into_iter().map(|(_, path)| path).collect(), data.first().map(|(_, path)| *path)))
}

/// Bytes of torrents. A damaged image may claim more than 2⁶⁴.
fn total(torrents: &[opened::StoredTorrent]) -> u64 {
    torrents.iter().fold(0, |sum: u64, torrent| sum.saturating_add(torrent.summary.geometry.len()))
}

/// Numbers in runs: `1, 4–7, 9`.
pub(crate) fn in_runs(numbers: &[u32]) -> String {
    let mut runs: Vec<[u32; 2]> = Vec::new();
    for &number in numbers {
        match runs.last_mut() {
            Some([_, last]) if last.checked_add(1) == Some(number) => *last = number,
            _ => runs.push([number, number]),
        }
    }
    let words = runs.into_iter().map(|[first, last]| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}–{last}"),
    });
    words.collect::<Vec<_>>().join(", ")
}

/// `0 of 1 piece`, `3 of 4 pieces`.
pub(crate) fn of_pieces(some: u32, pieces: u32) -> String {
    format!("{some} of {}", counted(pieces as usize, "piece"))
}

/// Prints the pieces in a state, if there are any.
fn say_pieces(state: &str, pieces: &[u32]) -> io::Result<()> {
    if !pieces.is_empty() {
        say!("  {state}: {}", in_runs(pieces));
    }
    Ok(())
}

pub(crate) fn print_json(value: &impl serde::Serialize) -> Result<(), Box<dyn Error>> {
    let mut out = BufWriter::new(io::stdout().lock());
    serde_json::to_writer_pretty(&mut out, value).map_err(io::Error::from)?;
    out.write_all(b"\n")?;
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_devices_have_one_folder_of_torrent_files() {
        let device = TorrentFiles { folder: None }.of(Path::new("/dev/null"));
        assert_eq!(device.unwrap(), Path::new("/var/lib/seedkeep/torrents"));
    }

    #[test]
    fn numbers_are_printed_in_runs() {
        assert_eq!(in_runs(&[]), "");
        assert_eq!(in_runs(&[1, 4, 5, 6, 7, 9, 10, u32::MAX]), "1, 4–7, 9, 10, 4294967295");
    }
}
