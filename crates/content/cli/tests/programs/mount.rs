//! `seedkeep store mount` on a real mount, read by real programs.

use std::{
    fs,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use swarmkeep_content::{
    FileFolder, Library,
    block::{Allocation, BlockStore, FileDevice, FormatOptions},
};
use swarmkeep_content_tests::{scratch_folder, torrents};
use swarmkeep_store_tests::{
    programs::{FUSE, MOUNT, Trial},
    tests, until,
};

use crate::common::{Ended, Folder, done, ended, seedkeep};

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [FUSE]:
            programs_read_whole_torrents_where_they_are,
            missing_bytes_are_an_error_and_never_zeroes,
            wrong_bytes_are_an_error_and_are_reported_once,
            torrents_of_one_name_stand_apart,
            an_image_that_is_moved_without_its_folder_says_so_first,
            torrent_files_are_not_in_memory_all_at_once,
            a_folder_with_something_in_it_is_not_hidden,
            unmounting_ends_while_a_file_is_open;
        [FUSE, MOUNT]:
            unmounting_ends_though_a_namespace_has_a_copy
    }
}

/// Makes a store on an image, in a folder with torrents' files beside it.
fn image(folder: &Path, names: &[&str], skipped: impl Fn(&str, u32) -> bool) {
    let device = FileDevice::create_image(&folder.join("image"), 64 << 20).unwrap();
    BlockStore::format(&device, FormatOptions::new()).unwrap();
    let store = BlockStore::boot(device, Allocation::Sequential).unwrap();
    let library = Library::new(Arc::new(store), FileFolder::new(folder.join("torrents")));
    for name in names {
        library.add(&torrents::fixture(name)).unwrap();
        let metainfo = torrents::torrent(name);
        let info = metainfo.info();
        let content = library.store().open(&info.info_hash()).unwrap();
        for piece in (0..info.piece_count()).filter(|&piece| !skipped(name, piece)) {
            let range = content.geometry().piece(piece).unwrap();
            let mut bytes = torrents::piece(info, piece);
            bytes.resize((range.end - range.start) as usize, 0);
            content.write_at(range.start, &[std::io::IoSlice::new(&bytes)]).unwrap();
            content.mark_complete(piece).unwrap();
        }
    }
    library.store().flush().unwrap();
}

struct Mounted {
    process: Child,
    at: PathBuf,
    /// The lines that it has printed.
    told: Vec<String>,
}

impl Mounted {
    fn new(folder: &Path) -> Self {
        let at = folder.join("mounted");
        fs::create_dir(&at).unwrap();
        let mut process = seedkeep(folder, "store mount image mounted")
            .stdout(Stdio::piped())
            .stderr(fs::File::create(folder.join("errors")).unwrap())
            .spawn()
            .unwrap();
        let (mut told, mut lines) = (Vec::new(), BufReader::new(process.stdout.take().unwrap()).lines());
        while told.last().is_none_or(|line: &String| !line.contains(" at ")) {
            told.push(lines.next().expect("it is mounted").unwrap());
        }
        Self { process, at, told }
    }

    /// Sends it a signal, and waits until it ends.
    fn end(mut self) {
        tell(&self.process);
        let errors = || fs::read_to_string(self.at.with_file_name("errors")).unwrap();
        let code = ends(&mut self.process, 10).or_else(|| {
            // A process that another test starts has copies of open files for a moment: the mount is in use.
            assert!(errors().contains("; a second signal unmounts it lazily"), "it ignores a signal");
            tell(&self.process);
            ends(&mut self.process, 60)
        });
        assert_eq!(code, Some(0), "{}", errors());
        assert_eq!(fs::read_dir(&self.at).unwrap().count(), 0, "it is not mounted any more");
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.process.try_wait().unwrap().is_none() {
            let _ = Command::new("umount").arg(&self.at).status();
            let _ = self.process.kill();
            let _ = self.process.wait();
        }
    }
}

fn tell(process: &Child) {
    kill(Pid::from_raw(process.id().cast_signed()), Signal::SIGTERM).unwrap();
}

fn sh(folder: &Path, command: &str) -> Ended {
    ended(Command::new("sh").args(["-c", command]).current_dir(folder).env("LC_ALL", "C"))
}

fn lines(folder: &Path, command: &str) -> String {
    let Ended { code, out, errors } = sh(folder, command);
    assert_eq!(code, 0, "{command}: {errors}");
    out
}

fn refused(folder: &Path, command: &str, error: &str) {
    let Ended { code, errors, .. } = sh(folder, command);
    assert!(code != 0 && errors.contains(error), "{command}: {code}: {errors}");
}

fn programs_read_whole_torrents_where_they_are() {
    let folder: &Path = &Folder(scratch_folder());
    let names = ["many-v1", "some-hybrid", "one-v2"];
    image(folder, &names, |_, _| false);
    names.iter().for_each(|name| torrents::write_files(name, &folder.join("data")));
    let mounted = Mounted::new(folder);
    let sums = "find . -type f -print0 | sort -z | xargs -0 sha256sum";
    assert_eq!(lines(&mounted.at, sums), lines(&folder.join("data"), sums));
    lines(
        folder,
        "cp -r mounted copy && diff -r copy data && cp -r mounted/many again && diff -r again data/many",
    );
    // Names, sizes and modes of all files.
    let listed = |within: &Path| {
        let listed = lines(within, "ls -lR");
        let line = |line: &str| {
            let words: Vec<_> = line.split_whitespace().collect();
            match words[..] {
                [mode, _, _, _, size, .., name] if mode.starts_with('-') => {
                    format!("{} {size} {name}", &mode[3..4])
                }
                _ if line.starts_with("total") || line.starts_with('d') => String::new(),
                _ => line.to_owned(),
            }
        };
        listed.lines().map(line).collect::<Vec<_>>()
    };
    fs::set_permissions(folder.join("data/some/a/run"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .unwrap();
    assert_eq!(listed(&mounted.at), listed(&folder.join("data")));
    // Any part of a file, and nothing behind its end.
    let part = "dd if=one.bin bs=1000 skip=7 count=13 status=none | sha256sum; tail -c 3 one.bin | sha256sum; dd if=one.bin bs=1000003 skip=1 status=none | wc -c";
    assert_eq!(lines(&mounted.at, part), lines(&folder.join("data"), part));
    // It is read-only.
    let writes = "touch new || rm one.bin || echo 1 >> one.bin || mkdir folder";
    refused(&mounted.at, writes, "Read-only file system");
    refused(&mounted.at, "cat nothing", "No such file or directory\n");
    mounted.end();
}

fn missing_bytes_are_an_error_and_never_zeroes() {
    let folder: &Path = &Folder(scratch_folder());
    // Of the large one the fifth piece of 64 KiB is missing, of the others the one that has bytes of b.bin
    // and c.bin.
    image(folder, &["one-v2", "some-v1"], |name, piece| piece == if name == "one-v2" { 4 } else { 7 });
    ["one-v2", "some-v1"].into_iter().for_each(|name| torrents::write_files(name, &folder.join("data")));
    let mounted = Mounted::new(folder);
    refused(folder, "cp mounted/one.bin copy", "Input/output error");
    let (copy, whole) =
        (fs::read(folder.join("copy")).unwrap(), fs::read(folder.join("data/one.bin")).unwrap());
    assert!(copy.len() == 4 << 16 && whole.starts_with(&copy), "{} bytes", copy.len());
    assert_eq!(fs::metadata(mounted.at.join("one.bin")).unwrap().len(), 1_000_003);
    // Bytes behind the gap can be read.
    let behind = "tail -c 600000 one.bin | sha256sum";
    assert_eq!(lines(&mounted.at, behind), lines(&folder.join("data"), behind));
    for (file, whole) in [
        ("some/a/deep/er/nested.bin", true),
        ("some/b.bin", false),
        ("some/c.bin", false),
        ("some/e.bin", true),
    ] {
        let read = fs::read(mounted.at.join(file));
        assert_eq!(read.is_ok(), whole, "{file}");
        if let Ok(read) = read {
            assert!(read == fs::read(folder.join("data").join(file)).unwrap(), "{file}");
        }
    }
    mounted.end();
}

fn wrong_bytes_are_an_error_and_are_reported_once() {
    let folder: &Path = &Folder(scratch_folder());
    image(folder, &["one-v2", "some-hybrid"], |_, _| false);
    ["one-v2", "some-hybrid"].into_iter().for_each(|name| torrents::write_files(name, &folder.join("data")));
    // Of the large one a byte of the fifth piece of 64 KiB.
    let (path, mut bytes) = (folder.join("image"), fs::read(folder.join("image")).unwrap());
    let whole = fs::read(folder.join("data/one.bin")).unwrap();
    let part = &whole[(4 << 16) + 5000..][..64];
    let at = bytes.windows(64).position(|window| window == part).unwrap();
    bytes[at] ^= 1;
    fs::write(path, bytes).unwrap();
    let mounted = Mounted::new(folder);
    for _ in 0..2 {
        refused(folder, "cp mounted/one.bin copy", "Input/output error");
        let copy = fs::read(folder.join("copy")).unwrap();
        assert!(copy.len() <= 4 << 16 && whole.starts_with(&copy), "{} bytes", copy.len());
    }
    let behind = "tail -c 600000 one.bin | sha256sum";
    assert_eq!(lines(&mounted.at, behind), lines(&folder.join("data"), behind));
    lines(folder, "diff -r mounted/some data/some");
    mounted.end();
    let told = fs::read_to_string(folder.join("errors")).unwrap();
    assert_eq!(told, "seedkeep: one.bin: piece 4 is wrong; `seedkeep store repair` marks it as missing\n");
}

fn torrents_of_one_name_stand_apart() {
    let folder: &Path = &Folder(scratch_folder());
    image(folder, &["some-v1", "some-v2", "one-hybrid"], |_, _| false);
    let mut mounted = Mounted::new(folder);
    let hash = |name: &str| torrents::torrent(name).info().info_hash().to_string();
    let mut tops = vec!["one.bin".to_owned(), hash("some-v1"), hash("some-v2")];
    tops.sort_unstable();
    assert_eq!(lines(&mounted.at, "ls").lines().collect::<Vec<_>>(), tops);
    assert_eq!(fs::metadata(mounted.at.join(hash("some-v1")).join("some/b.bin")).unwrap().len(), 262_144);
    // Other readers are allowed; writers are refused.
    done(folder, "store check image");
    assert!(ended(&mut seedkeep(folder, "store repair image")).errors.contains("in use"));
    // Unmounted by another program, it ends.
    assert!(Command::new("umount").arg(&mounted.at).status().unwrap().success());
    assert_eq!(ends(&mut mounted.process, 60), Some(0));
}

fn an_image_that_is_moved_without_its_folder_says_so_first() {
    let folder: &Path = &Folder(scratch_folder());
    image(folder, &["one-v2"], |_, _| false);
    fs::rename(folder.join("torrents"), folder.join("elsewhere")).unwrap();
    let mounted = Mounted::new(folder);
    let told = "1 of 1 torrent cannot be verified: their torrent files are not in ";
    assert!(mounted.told[0].starts_with(told), "{:?}", mounted.told);
    mounted.end();
}

fn torrent_files_are_not_in_memory_all_at_once() {
    // Torrent files of 2 MB each.
    const PIECES: u64 = 100_000;
    let peak_kb = |torrents: u8| {
        let folder: &Path = &Folder(scratch_folder());
        image(folder, &[], |_, _| false);
        let store = BlockStore::open(&folder.join("image"), None).unwrap();
        let library = Library::new(Arc::new(store), FileFolder::new(folder.join("torrents")));
        for n in 0..torrents {
            let (length, hashes) = (PIECES << 14, PIECES * 20);
            let info = format!("d6:lengthi{length}e4:name1:{}12:piece lengthi16384e", char::from(b'a' + n));
            let hashes = [format!("6:pieces{hashes}:").as_bytes(), &vec![n; hashes as usize]].concat();
            library.add(&[b"d4:info", info.as_bytes(), &hashes, b"ee"].concat()).unwrap();
        }
        library.store().flush().unwrap();
        drop(library);
        let mounted = Mounted::new(folder);
        assert_eq!(fs::read_dir(&mounted.at).unwrap().count(), usize::from(torrents));
        let status = fs::read_to_string(format!("/proc/{}/status", mounted.process.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        mounted.end();
        peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    };
    let [few, many] = [2, 18].map(peak_kb);
    assert!(many < few + 16_000, "{many} kB for 18 torrents, {few} kB for 2");
}

fn a_folder_with_something_in_it_is_not_hidden() {
    let folder: &Path = &Folder(scratch_folder());
    image(folder, &["one-v2"], |_, _| false);
    let at = folder.join("mounted");
    fs::create_dir(&at).unwrap();
    fs::write(at.join(".hidden"), "precious").unwrap();
    let mount = ended(
        Command::new("timeout")
            .args(["--signal", "TERM", "60", env!("CARGO_BIN_EXE_seedkeep"), "store", "mount"])
            .args([folder.join("image"), at.clone()]),
    );
    assert_eq!(mount.code, 1, "{}", mount.errors);
    let told = format!("{} is not empty: its content would be hidden", at.display());
    assert!(mount.errors.contains(&told), "{}", mount.errors);
    assert_eq!(fs::read(at.join(".hidden")).unwrap(), b"precious");
}

fn unmounting_ends_while_a_file_is_open() {
    let folder: &Path = &Folder(scratch_folder());
    image(folder, &["one-v2"], |_, _| false);
    let mut mounted = Mounted::new(folder);
    let open = fs::File::open(mounted.at.join("one.bin")).unwrap();
    let read = |at| std::os::unix::fs::FileExt::read_exact_at(&open, &mut [0; 100], at).unwrap();
    tell(&mounted.process);
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(mounted.process.try_wait().unwrap(), None, "it is in use, and is not given up at once");
    assert_eq!(fs::read_dir(&mounted.at).unwrap().count(), 1);
    read(0);
    tell(&mounted.process);
    until("it is out of the way", || fs::read_dir(&mounted.at).is_ok_and(|entries| entries.count() == 0));
    std::thread::sleep(std::time::Duration::from_millis(300));
    // Beyond the read-ahead of the system.
    read(1_000_003 - 100);
    drop(open);
    let code = ends(&mut mounted.process, 60);
    assert_eq!(code, Some(0), "{}", fs::read_to_string(folder.join("errors")).unwrap());
}

/// Waits for the end of a process, for some seconds. Returns its exit code, `None` if it does not end.
fn ends(process: &mut Child, seconds: u32) -> Option<i32> {
    for _ in 0..seconds * 10 {
        if let Some(status) = process.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    None
}

fn unmounting_ends_though_a_namespace_has_a_copy() {
    let folder: &Path = &Folder(scratch_folder());
    image(folder, &["one-v2"], |_, _| false);
    let mut mounted = Mounted::new(folder);
    let mut other = Command::new("unshare")
        .args(["--mount", "sh", "-c", "echo there; exec sleep 600"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    BufReader::new(other.stdout.take().unwrap()).read_line(&mut String::new()).unwrap();
    lines(folder, "umount mounted");
    let code = ends(&mut mounted.process, 60);
    let repaired = ended(&mut seedkeep(folder, "store repair image"));
    other.kill().unwrap();
    other.wait().unwrap();
    assert_eq!(code, Some(0), "it goes on");
    assert_eq!(repaired.code, 0, "{}", repaired.errors);
}
