//! The program `seedkeep`, run on real files.

use std::{
    fs,
    ops::Deref,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    process::{Command, Output, Stdio},
};

use swarmkeep::{Random as _, SplitMix64};
use swarmkeep_metainfo::Metainfo;
use tempfile::TempDir;

pub(crate) const FORMATS: [&str; 3] = ["--v1", "--v2", "--hybrid"];

/// A folder, until it is dropped.
pub(crate) struct Folder(pub(crate) TempDir);

impl Deref for Folder {
    type Target = Path;

    fn deref(&self) -> &Path {
        self.0.path()
    }
}

/// A folder to work in, with a folder `some` of files in it.
pub(crate) fn scratch() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    put(&folder.path().join("some"));
    folder
}

/// Files of all kinds: hidden, executable, empty, of whole pieces and not, with names that sort otherwise by
/// another rule.
pub(crate) fn put(some: &Path) {
    for (nth, (path, length)) in [
        ("sub/z", 5),
        ("sub.x", 5),
        ("a/deep/er/nested.bin", 100_001),
        ("a/empty", 0),
        (".hidden", 40_000),
        ("B", 32_768),
        ("é.bin", 49_153),
        ("a.b", 200_000),
        ("run", 300),
        ("copy", 100_000),
        ("copy too", 100_000),
        (".a/.b", 16_384),
    ]
    .into_iter()
    .enumerate()
    {
        let path = some.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        let seed = if length == 100_000 { 99 } else { nth as u64 + 1 };
        fs::write(path, random_bytes(seed, length)).unwrap();
    }
    fs::set_permissions(some.join("run"), fs::Permissions::from_mode(0o755)).unwrap();
}

pub(crate) fn random_bytes(seed: u64, length: usize) -> Vec<u8> {
    let mut numbers = SplitMix64::new(seed);
    let mut bytes: Vec<u8> = (0..length / 8 + 1).flat_map(|_| numbers.next_u64().to_le_bytes()).collect();
    bytes.truncate(length);
    bytes
}

pub(crate) struct Ended {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) errors: String,
}

/// The program in a folder. Blanks separate the words of `line`.
pub(crate) fn seedkeep(folder: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_seedkeep"));
    command.current_dir(folder).args(line.split_whitespace()).stdin(Stdio::null());
    command
}

pub(crate) fn ended(command: &mut Command) -> Ended {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ended { code: status.code().unwrap(), out: text(stdout), errors: text(stderr) }
}

/// Runs the program in a folder, where it has to succeed.
pub(crate) fn done(folder: &Path, line: &str) -> Ended {
    let ended = ended(&mut seedkeep(folder, line));
    assert_eq!(ended.code, 0, "{line}: {}{}", ended.out, ended.errors);
    ended
}

pub(crate) fn read(path: &Path) -> Metainfo {
    Metainfo::parse(&fs::read(path).unwrap()).unwrap()
}
