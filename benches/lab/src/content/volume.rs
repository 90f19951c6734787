//! The parts that need root: a loop device for a row, the requests that reach it, and a limit of memory.
//!
//! Nothing of it remains after the process. Mounts are in a namespace of the thread, the last user of the
//! device removes it, its image has no name, and the next process removes folders of the kernel that a killed
//! process left.

use std::{
    fs::{self, File},
    io::{self, BufRead, BufReader},
    path::{Path, PathBuf},
    process::{self, Command},
    sync::OnceLock,
};

use nix::{
    mount::{MntFlags, MsFlags, mount, umount2},
    sched::{CloneFlags, unshare},
};

use crate::content::disk::Access;

/// Where tracefs is mounted, everywhere.
const TRACING: &str = "/sys/kernel/tracing";
/// Bytes of the kernel's record of a request, rounded up.
const RECORD: u64 = 80;
/// A folder of the kernel has this name and the number of its process.
const OURS: &str = "swarmkeep-store-bench-";

/// A loop device, and the kernel's record of the requests that it gets.
#[derive(Debug)]
pub(crate) struct Volume {
    pub(crate) device: PathBuf,
    /// The device goes when this is closed.
    _open: File,
    instance: PathBuf,
    mounted: OnceLock<PathBuf>,
}

impl Volume {
    /// A device of `bytes` bytes, the image of which lies in `folder`.
    pub(crate) fn new(folder: &Path, bytes: u64) -> io::Result<Self> {
        unshare(CloneFlags::CLONE_NEWNS)?;
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)?;
        let instances = Path::new(TRACING).join("instances");
        if !instances.is_dir() {
            mount(Some("tracefs"), TRACING, Some("tracefs"), MsFlags::empty(), None::<&str>)?;
        }
        let image = folder.join("volume");
        File::create_new(&image)?.set_len(bytes)?;
        let attach = ["--find", "--show", "--direct-io=on"];
        let device = PathBuf::from(output_of(Command::new("losetup").args(attach).arg(&image))?);
        let open = File::open(&device)?;
        // It is in use, so it goes later.
        output_of(Command::new("losetup").arg("--detach").arg(&device))?;
        fs::remove_file(&image)?;

        let instance = ours(&instances)?;
        let volume = Self { device, _open: open, instance, mounted: OnceLock::new() };
        let number = volume.number()?;
        fs::write(volume.event("filter"), format!("dev == {number}"))?;
        // Each processor has a part. All together they have room for the bytes in requests of 4 KiB; no row
        // needed half of that.
        let processors = std::thread::available_parallelism()?.get() as u64;
        let kib = (bytes / 4096 * RECORD / processors).div_ceil(1024) + 4096;
        fs::write(volume.instance.join("buffer_size_kb"), kib.to_string())?;
        Ok(volume)
    }

    /// Its number in the events of the kernel.
    fn number(&self) -> io::Result<u64> {
        let name = self.device.file_name().unwrap_or_default();
        let text = fs::read_to_string(Path::new("/sys/block").join(name).join("dev"))?;
        let number = text
            .trim()
            .split_once(':')
            .and_then(|(major, minor)| Some(major.parse::<u64>().ok()? << 20 | minor.parse::<u64>().ok()?));
        number.ok_or_else(|| io::Error::other(format!("a device with the number {text}")))
    }

    fn event(&self, file: &str) -> PathBuf {
        self.instance.join("events/block/block_rq_issue").join(file)
    }

    /// An ext4 file system on the device, as `mkfs.ext4` makes it, with all delayed work done.
    pub(crate) fn ext4(&self, at: &Path) -> io::Result<()> {
        let options = ["-q", "-F", "-b", "4096", "-E", "lazy_itable_init=0,lazy_journal_init=0,nodiscard"];
        output_of(Command::new("mkfs.ext4").args(options).arg(&self.device))?;
        fs::create_dir(at)?;
        mount(Some(&self.device), at, Some("ext4"), MsFlags::empty(), None::<&str>)?;
        self.mounted.get_or_init(|| at.to_owned());
        Ok(())
    }

    /// Writes everything that the file system still holds.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.mounted.get().map_or(Ok(()), |at| Ok(rustix::fs::syncfs(File::open(at)?)?))
    }

    /// Starts or stops the record of requests.
    pub(crate) fn record(&self, on: bool) -> io::Result<()> {
        fs::write(self.event("enable"), if on { "1" } else { "0" })
    }

    /// Takes the recorded requests, in the order in which the device received them.
    pub(crate) fn requests(&self) -> io::Result<Vec<Access>> {
        for cpu in fs::read_dir(self.instance.join("per_cpu"))? {
            let stats = fs::read_to_string(cpu?.path().join("stats"))?;
            let lost = stats.lines().find(|line| line.starts_with("overrun") && !line.ends_with(" 0"));
            if let Some(lost) = lost {
                return Err(io::Error::other(format!(
                    "the kernel's record of requests is too short: {lost}"
                )));
            }
        }
        let trace = self.instance.join("trace");
        let mut requests = Vec::new();
        for line in BufReader::new(File::open(&trace)?).lines() {
            requests.extend(request(&line?));
        }
        fs::write(trace, "")?;
        Ok(requests)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if let Some(at) = self.mounted.get() {
            let _ = umount2(at, MntFlags::MNT_DETACH);
        }
        let _ = fs::remove_dir(&self.instance);
    }
}

/// `... block_rq_issue: 7,0 WS 4096 () 2048 + 8 be,0,4 [dd]`: device, kind, bytes, command, first sector.
fn request(line: &str) -> Option<Access> {
    let mut words = line.split_once(" block_rq_issue: ")?.1.split_whitespace().skip(1);
    let (kind, len, sector) = (words.next()?, words.next()?.parse::<u64>().ok()?, words.nth(1)?);
    if len == 0 || !kind.trim_start_matches('F').starts_with(['R', 'W']) {
        return None;
    }
    Some(Access { at: sector.parse::<u64>().ok()? * 512, len })
}

/// A limit of memory of processes, with their page cache.
#[derive(Debug)]
pub(crate) struct Limit {
    folder: PathBuf,
    file: &'static str,
    /// The earlier group of this process.
    home: PathBuf,
}

impl Limit {
    pub(crate) fn new() -> io::Result<Self> {
        // Version 1 of control groups, if it controls memory, then version 2.
        const KINDS: [(&str, &str, &str); 2] = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", ":memory:"),
            ("/sys/fs/cgroup", "memory.max", "0::"),
        ];
        let mine = fs::read_to_string("/proc/self/cgroup")?;
        for (root, file, mark) in KINDS {
            let Some((_, path)) = mine.lines().find_map(|line| line.split_once(mark)) else { continue };
            let Ok(folder) = ours(Path::new(root)) else { continue };
            let limit = Self { folder, file, home: Path::new(root).join(path.trim_start_matches('/')) };
            if limit.folder.join(file).is_file() {
                return Ok(limit);
            }
        }
        Err(io::Error::other("no control group can limit memory"))
    }

    /// Allows these processes `bytes` bytes more than they have.
    pub(crate) fn enter(&self, bytes: u64, pids: &[u32]) -> io::Result<()> {
        fs::write(self.folder.join(self.file), bytes.to_string())?;
        // With swap, a row would have more memory than another.
        let _ = fs::write(self.folder.join("memory.swap.max"), "0");
        let _ = fs::write(self.folder.join("memory.swappiness"), "0");
        pids.iter().try_for_each(|pid| fs::write(self.folder.join("cgroup.procs"), pid.to_string()))
    }
}

impl Drop for Limit {
    fn drop(&mut self) {
        for pid in fs::read_to_string(self.folder.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = fs::write(self.home.join("cgroup.procs"), pid);
        }
        let _ = fs::remove_dir(&self.folder);
    }
}

/// Checks that all of it works in `folder`.
pub(crate) fn probe(folder: &Path) -> io::Result<()> {
    let probe = || {
        let folder = tempfile::tempdir_in(folder)?;
        Volume::new(folder.path(), 32 << 20)?.ext4(&folder.path().join("ext4"))?;
        Limit::new().map(drop)
    };
    // In a thread of its own, whose namespace ends with it.
    std::thread::scope(|scope| scope.spawn(probe).join().expect("it does not panic"))
}

/// A new folder for this process among those of the kernel; removes those of processes that are gone.
fn ours(all: &Path) -> io::Result<PathBuf> {
    for entry in fs::read_dir(all)?.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(OURS));
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
    let folder = all.join(format!("{OURS}{}", process::id()));
    fs::create_dir(&folder)?;
    Ok(folder)
}

fn output_of(command: &mut Command) -> io::Result<String> {
    let output = command.output();
    let failed = |why: String| io::Error::other(format!("{}: {why}", command.get_program().display()));
    let output = output.map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_as_the_kernel_writes_them() {
        let read = |text: &str| request(&format!("  kworker/u8:1-33  [001] .....  503.891954: {text}"));
        for (text, expected) in [
            ("block_rq_issue: 7,0 W 1310720 () 32770 + 2560 be,0,4 [a b]", Some((16_778_240, 1_310_720))),
            ("block_rq_issue: 7,0 RAM 2048 () 522 + 4 be,0,4 [dd]", Some((267_264, 2048))),
            ("block_rq_issue: 7,0 FWFS 4096 () 8 + 8 be,0,4 [jbd2]", Some((4096, 4096))),
            ("block_rq_issue: 7,0 FF 0 () 0 + 0 none,0,0 [kworker]", None),
            ("block_rq_issue: 7,0 DS 4096 () 8 + 8 be,0,4 [rm]", None),
            ("block_rq_complete: 7,0 W () 8 + 8 be,0,4 [0]", None),
            ("#  TASK-PID  CPU#", None),
        ] {
            assert_eq!(read(text), expected.map(|(at, len)| Access { at, len }), "{text}");
        }
    }
}
