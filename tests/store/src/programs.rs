//! Tests that need programs, or rights, which a machine may lack.
//!
//! Such a test is *ignored*, with the names of what it lacks; where the variable `CI` is set, it fails. The
//! tests stand in binaries of their own (`harness = false`), whose `main` calls [`run`] with the lists that
//! [`tests!`](crate::tests) makes.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    env,
    fmt::Display,
    fs::OpenOptions,
    path::PathBuf,
    process::{Command, ExitCode, Stdio},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

pub use libtest_mimic::Trial;
use libtest_mimic::{Arguments, Completion, Failed};

/// Something that a test needs of the machine.
#[derive(Debug, Clone, Copy)]
pub struct Need {
    name: &'static str,
    remedy: Remedy,
    is_there: fn(&str) -> bool,
}

/// How a machine gets what it lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Remedy {
    /// By a package of Debian.
    Package(&'static str),
    /// By something else, in words.
    Other(&'static str),
}

impl Need {
    /// A program, and the Debian package that has it.
    pub const fn program(name: &'static str, package: &'static str) -> Self {
        Self::package(name, package, |name| find(name).is_some())
    }

    /// What a Debian package has, and a function that looks for it by its name.
    pub const fn package(name: &'static str, package: &'static str, is_there: fn(&str) -> bool) -> Self {
        Self { name, remedy: Remedy::Package(package), is_there }
    }

    /// Something else: what to do in order to have it, and a function that looks for it by its name.
    pub const fn other(name: &'static str, remedy: &'static str, is_there: fn(&str) -> bool) -> Self {
        Self { name, remedy: Remedy::Other(remedy), is_there }
    }

    /// Looks for it once in the life of this process.
    fn is_there(&self) -> bool {
        static FOUND: Mutex<BTreeMap<&str, bool>> = Mutex::new(BTreeMap::new());
        let found = || FOUND.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&known) = found().get(self.name) {
            return known;
        }
        let is_there = (self.is_there)(self.name);
        found().insert(self.name, is_there);
        is_there
    }
}

/// aria2.
pub const ARIA2: Need = Need::program("aria2c", "aria2");
/// What drives Chromium.
pub const CHROMEDRIVER: Need = Need::program("chromedriver", "chromium-driver");
/// A browser.
pub const CHROMIUM: Need = Need::program("chromium", "chromium");
/// curl.
pub const CURL: Need = Need::program("curl", "curl");
/// An ext4 file system in a file.
pub const EXT4: Need = Need::other(
    "an ext4 file system on a loop device",
    "install e2fsprogs and mount; run as root, with loop devices",
    |_| MKFS_EXT4.is_there() && MOUNT.is_there() && succeeds(Command::new("losetup").arg("--find")),
);
/// The library that sets the clock of one process.
pub const FAKETIME: Need = Need::package("libfaketime", "faketime", |_| faketime().is_some());
/// File systems in user space.
pub const FUSE: Need = Need::other(
    "/dev/fuse",
    "load the module `fuse`; run as root and install mount, or install fuse3",
    |path| {
        let opens = OpenOptions::new().read(true).write(true).open(path).is_ok();
        opens && (MOUNT.is_there() || find("fusermount3").is_some())
    },
);
/// The addresses of a network.
pub const IP: Need = Need::program("ip", "iproute2");
/// libtorrent's bindings, of the distribution's own Python.
pub const LIBTORRENT: Need = Need::package("libtorrent for Python", "python3-libtorrent", |_| {
    succeeds(Command::new(PYTHON).args(["-c", "import libtorrent"]))
});
/// Makes an ext4 file system.
pub const MKFS_EXT4: Need = Need::program("mkfs.ext4", "e2fsprogs");
/// Makes swap space.
pub const MKSWAP: Need = Need::program("mkswap", "util-linux");
/// The right to mount a file system.
pub const MOUNT: Need = Need::other("the right to mount", "install mount and run as root", |_| {
    succeeds(Command::new("unshare").args(["--mount", "mount", "-t", "tmpfs", "none"]).arg(env::temp_dir()))
});
/// The right to have a network and processes of one's own.
pub const NAMESPACES: Need =
    Need::other("the right to make namespaces", "run as root, or allow user namespaces", |_| {
        namespaces().is_some()
    });
/// qBittorrent without a window.
pub const QBITTORRENT: Need = Need::program("qbittorrent-nox", "qbittorrent-nox");
/// Redis, or the server that is named in its place.
pub const REDIS: Need = Need::package("redis-server", "redis-server", |name| {
    env::var_os("SWARMKEEP_REDIS_SERVER").is_some() || find(name).is_some()
});
/// A client of Redis.
pub const REDIS_CLI: Need = Need::program("redis-cli", "redis-tools");
/// All rights.
pub const ROOT: Need = Need::other("root", "run as root", |_| {
    Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n")
});
/// rtorrent.
pub const RTORRENT: Need = Need::program("rtorrent", "rtorrent");
/// Transmission on the command line.
pub const TRANSMISSION: Need = Need::program("transmission-cli", "transmission-cli");
/// Transmission's reader of torrent files.
pub const TRANSMISSION_SHOW: Need = Need::program("transmission-show", "transmission-cli");

/// The distribution's own Python, which is the one that has its bindings.
pub const PYTHON: &str = "/usr/bin/python3";

/// The path of a program. What root uses is looked for where it lies on every machine, too.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// The library that sets the clock of one process.
pub fn faketime() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten().map(|folder| folder.path());
    folders.map(|folder| folder.join("faketime/libfaketime.so.1")).find(|library| library.is_file())
}

/// Runs a program in namespaces of its own, which end with it: the first words of the command. `None` without
/// the right.
pub fn namespaces() -> Option<Command> {
    // `--kill-child` and the namespace of processes: nothing outlives it, whatever happens.
    let alone = ["--net", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let unshare = |rights: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(rights).args(alone);
        unshare
    };
    let rights = [&[][..], &["--user", "--map-root-user"]];
    rights.into_iter().find(|rights| succeeds(unshare(rights).arg("true"))).map(unshare)
}

fn succeeds(command: &mut Command) -> bool {
    let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    silent.status().is_ok_and(|status| status.success())
}

/// Makes a list of [`Trial`]s of functions, group by group with what the tests of the group need:
/// `tests! { [REDIS]: one, another; [REDIS, CURL]: third }`.
///
/// A function that is in no list is dead code, of which the compiler warns.
#[macro_export]
macro_rules! tests {
    ($($needs:tt: $($test:ident),+ $(,)?);+ $(;)?) => {
        vec![$($($crate::programs::trial(
            concat!(module_path!(), "::", stringify!($test)), &$needs, $test,
        )),+),+]
    };
}

/// A test and what it needs. Its name is the path without that of the binary.
pub fn trial(path: &str, needs: &[Need], test: impl FnOnce() + Send + 'static) -> Trial {
    let name = path.split_once("::").map_or(path, |(_, name)| name).to_owned();
    let (running, needs) = (name.clone(), needs.to_vec());
    Trial::ignorable_test(name, move || {
        RUNNING.set(running);
        attempt(&needs, env::var_os("CI").is_some(), test)
    })
}

/// Runs a test if nothing is missing. What is missing is a reason to ignore it, or to fail.
fn attempt(needs: &[Need], or_fail: bool, test: impl FnOnce()) -> Result<Completion, Failed> {
    let missing: Vec<_> = needs.iter().filter(|need| !need.is_there()).collect();
    if missing.is_empty() {
        test();
        return Ok(Completion::Completed);
    }
    LACKING.fetch_add(1, Relaxed);
    MISSING.lock().unwrap_or_else(PoisonError::into_inner).extend(missing.iter().map(|need| need.remedy));
    let names: Vec<_> = missing.iter().map(|need| need.name).collect();
    let reason = format!("needs {}", names.join(", "));
    if or_fail { Err(Failed::from(reason)) } else { Ok(Completion::ignored_with(reason)) }
}

/// How many tests lacked something.
static LACKING: AtomicUsize = AtomicUsize::new(0);

/// What they lacked.
static MISSING: Mutex<BTreeSet<Remedy>> = Mutex::new(BTreeSet::new());

thread_local! {
    static RUNNING: RefCell<String> = const { RefCell::new(String::new()) };
}

/// The name of the test that this thread runs.
pub fn name() -> String {
    RUNNING.with_borrow(String::clone)
}

/// This program once more, to run nothing but the test of this thread.
pub fn again() -> [String; 3] {
    [name(), "--exact".into(), "--nocapture".into()]
}

/// Prints what a test has to tell, where `--nocapture` asks for it: this harness holds nothing back by
/// itself.
pub fn note(text: impl Display) {
    if env::args().any(|argument| argument == "--nocapture") {
        println!("{text}");
    }
}

/// Runs tests as the command line says, `threads` at a time unless it says so. The last line says what was
/// missing.
pub fn run(threads: usize, tests: impl IntoIterator<Item = Vec<Trial>>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(threads);
    let conclusion = libtest_mimic::run(&arguments, tests.into_iter().flatten().collect());
    let missing = MISSING.lock().unwrap_or_else(PoisonError::into_inner);
    if !missing.is_empty() {
        println!(
            "{} tests ignored for want of programs or rights: {}\n",
            LACKING.load(Relaxed),
            remedies(&missing)
        );
    }
    conclusion.exit_code()
}

/// What to install, and what else to do.
fn remedies(missing: &BTreeSet<Remedy>) -> String {
    let (mut packages, mut others) = (Vec::new(), Vec::new());
    for &remedy in missing {
        match remedy {
            Remedy::Package(package) => packages.push(package),
            Remedy::Other(other) => others.push(other.to_owned()),
        }
    }
    let install = (!packages.is_empty()).then(|| format!("apt-get install {}", packages.join(" ")));
    install.into_iter().chain(others).collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_lacks_something_is_ignored_or_fails_and_is_not_run() {
        let needs = [Need::program("no-such-program", "some-package"), Need::program("sh", "dash")];
        let outcome = |or_fail| attempt(&needs, or_fail, || panic!("it is run"));
        let expected = "needs no-such-program";
        assert!(
            matches!(outcome(false), Ok(Completion::Ignored { reason: Some(reason) }) if reason == expected)
        );
        assert!(matches!(outcome(true), Err(failed) if failed.message() == Some(expected)));
        let missing = MISSING.lock().unwrap_or_else(PoisonError::into_inner);
        assert_eq!(remedies(&missing), "apt-get install some-package");
        assert!(matches!(attempt(&needs[1..], true, || {}), Ok(Completion::Completed)));
    }
}
