//! `seedkeep store format`.

use std::{
    error::Error,
    num::NonZero,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
};

use indicatif::BinaryBytes;
use swarmkeep_bittorrent::programs::bytes;
use swarmkeep_content::{
    ContentRepository,
    block::{Allocation, BlockStore, FileDevice, FormatOptions},
};

use super::{print_json, probe::content_of, say};
use crate::parsed;

/// Make an empty store on a block device, or in a new image.
///
/// Everything on the device is lost. If something is found on it, it is reported, and nothing is written
/// without --force.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The block device or image.
    #[arg(value_name = "DEVICE")]
    path: PathBuf,

    /// Make an image file of this size, such as 100GiB. All of its room is allocated at once.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    size: Option<NonZero<u64>>,

    /// The size of a block: a power of two from 16KiB to 64MiB [default: 4MiB, less on a device of less than
    /// 4GiB].
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    block_size: Option<NonZero<u64>>,

    /// The least number of torrents that there is room for [default: as many as fit in one block, 114,464
    /// with blocks of 4MiB].
    #[arg(long, value_name = "COUNT", value_parser = parsed::<u32>)]
    torrents: Option<u32>,

    /// Use the lowest free block for content and the highest for i-nodes, instead of the next free block
    /// after the last used one. This keeps content in front, where disks are fastest.
    #[arg(long)]
    ordered: bool,

    /// Overwrite the content of the device.
    #[arg(long)]
    force: bool,

    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: Args) -> Result<ExitCode, Box<dyn Error>> {
    let shown = args.path.display();
    let mut options = FormatOptions::new();
    options.block_size = args.block_size.map(|size| u32::try_from(size.get()).unwrap_or(u32::MAX));
    options.torrents = args.torrents;
    if args.ordered {
        options.allocation = Allocation::Ordered;
    }
    match (args.path.metadata(), args.size) {
        (Err(_), Some(size)) => {
            check_room(&args.path, size.get())?;
            let device = FileDevice::create_image(&args.path, size.get())?;
            if let Err(error) = BlockStore::format(&device, options) {
                let _ = std::fs::remove_file(&args.path);
                return Err(error.into());
            }
        }
        (Err(error), None) => {
            return Err(format!("{shown}: {error}; give --size to make an image there").into());
        }
        (Ok(there), _) if there.is_dir() => {
            let why = "is a folder, which needs no formatting: `seedkeep store add` begins a store there";
            return Err(format!("{shown} {why}").into());
        }
        (Ok(_), Some(_)) => {
            return Err(format!("{shown} is there already: --size is for an image that is to be made").into());
        }
        (Ok(_), None) => {
            // Open, and so locked, until it is formatted.
            let device = Arc::new(FileDevice::open(&args.path, true)?);
            match content_of(&device).map_err(|error| format!("{shown}: {error}"))? {
                Some(found) if !args.force => {
                    let why = "which would be lost; --force writes over it";
                    return Err(format!("{shown} holds {found}, {why}").into());
                }
                Some(found) => eprintln!("seedkeep: {shown} held {found}, which is written over"),
                None => {}
            }
            BlockStore::format(&*device, options)?;
        }
    }
    let store = BlockStore::open(&args.path, None)?;
    let free = store.statistics().free.unwrap_or(0);
    if args.json {
        let (block_size, blocks) = (store.block_size(), store.blocks());
        print_json(&serde_json::json!({ "block_size": block_size, "blocks": blocks, "free": free }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let [blocks, free] = [store.block_size().into(), free].map(BinaryBytes);
    say!("{shown}: an empty store in blocks of {blocks}, with room for {free}");
    Ok(ExitCode::SUCCESS)
}

/// Refuses an image for which its file system has no room, before allocating.
fn check_room(path: &Path, size: u64) -> Result<(), String> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    // If this fails, making the image will report why.
    let Ok(room) = rustix::fs::statvfs(folder) else { return Ok(()) };
    // Some blocks are reserved for root. A file system with a size of 0 has no limit.
    let blocks = if rustix::process::geteuid().is_root() { room.f_bfree } else { room.f_bavail };
    let free = blocks.saturating_mul(room.f_frsize);
    if room.f_blocks == 0 || size <= free {
        return Ok(());
    }
    let (shown, size, free) = (path.display(), BinaryBytes(size), BinaryBytes(free));
    Err(format!("{shown}: there is no room for {size}: {free} are free"))
}
