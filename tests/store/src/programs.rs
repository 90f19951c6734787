//! Tests that need programs or permissions that a machine may lack.
//!
//! Such a test is *ignored*, with the names of its missing needs; if the variable `CI` is set, it fails.
//! These tests are in separate binaries (`harness = false`), whose `main` calls [`run`] with the lists that
//! [`tests!`](crate::tests) makes.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    env,
    ffi::OsString,
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

/// A need of a test: a program, a package or a permission.
#[derive(Debug, Clone, Copy)]
pub struct Need {
    name: &'static str,
    remedy: Remedy,
    is_there: fn(&str) -> bool,
}

/// The way to satisfy a need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Remedy {
    /// A package of Debian to install.
    Package(&'static str),
    /// Another action, in words.
    Other(&'static str),
}

impl Need {
    /// Returns the need of a program, which is in a Debian package.
    pub const fn program(name: &'static str, package: &'static str) -> Self {
        Self::package(name, package, |name| find(name).is_some())
    }

    /// Returns the need of a part of a Debian package; `is_there` looks for it by its name.
    pub const fn package(name: &'static str, package: &'static str, is_there: fn(&str) -> bool) -> Self {
        Self { name, remedy: Remedy::Package(package), is_there }
    }

    /// Returns another need with its remedy; `is_there` looks for it by its name.
    pub const fn other(name: &'static str, remedy: &'static str, is_there: fn(&str) -> bool) -> Self {
        Self { name, remedy: Remedy::Other(remedy), is_there }
    }

    /// Returns whether the need is satisfied; looks once per process.
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
/// The driver of Chromium.
pub const CHROMEDRIVER: Need = Need::program("chromedriver", "chromium-driver");
/// A browser.
pub const CHROMIUM: Need = Need::program("chromium", "chromium");
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
/// The program that configures the addresses of a network.
pub const IP: Need = Need::program("ip", "iproute2");
/// The bindings of libtorrent for the distribution's own Python.
pub const LIBTORRENT: Need = Need::package("libtorrent for Python", "python3-libtorrent", |_| {
    succeeds(Command::new(PYTHON).args(["-c", "import libtorrent"]))
});
/// The program that makes an ext4 file system.
pub const MKFS_EXT4: Need = Need::program("mkfs.ext4", "e2fsprogs");
/// The program that makes swap space.
pub const MKSWAP: Need = Need::program("mkswap", "util-linux");
/// The permission to mount a file system.
pub const MOUNT: Need = Need::other("the right to mount", "install mount and run as root", |_| {
    succeeds(Command::new("unshare").args(["--mount", "mount", "-t", "tmpfs", "none"]).arg(env::temp_dir()))
});
/// The permission to create namespaces of networks and processes.
pub const NAMESPACES: Need =
    Need::other("the right to make namespaces", "run as root, or allow user namespaces", |_| {
        namespaces().is_some()
    });
/// Prometheus, with promtool.
pub const PROMETHEUS: Need = Need::program("prometheus", "prometheus");
/// qBittorrent without a window.
pub const QBITTORRENT: Need = Need::program("qbittorrent-nox", "qbittorrent-nox");
/// Redis, or the server that the environment names in its place.
pub const REDIS: Need =
    Need::package("redis-server, or the program that SWARMKEEP_REDIS_SERVER names", "redis-server", |_| {
        is_server(env::var_os("SWARMKEEP_REDIS_SERVER"))
    });
/// Root.
pub const ROOT: Need = Need::other("root", "run as root", |_| {
    Command::new("id").arg("-u").output().is_ok_and(|id| id.stdout == b"0\n")
});
/// rtorrent.
pub const RTORRENT: Need = Need::program("rtorrent", "rtorrent");
/// Transmission on the command line.
pub const TRANSMISSION: Need = Need::program("transmission-cli", "transmission-cli");
/// The reader of torrent files of Transmission.
pub const TRANSMISSION_SHOW: Need = Need::program("transmission-show", "transmission-cli");

/// The distribution's own Python, for which its bindings are built.
pub const PYTHON: &str = "/usr/bin/python3";

/// Returns the path of a program. Also looks in the directories of programs for root.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into()]);
    folders.map(|folder| folder.join(program)).find(|path| path.is_file())
}

/// Returns the path of the library that sets the clock of one process.
pub fn faketime() -> Option<PathBuf> {
    let folders = std::fs::read_dir("/usr/lib").ok()?.flatten().map(|folder| folder.path());
    folders.map(|folder| folder.join("faketime/libfaketime.so.1")).find(|library| library.is_file())
}

/// Returns the first words of a command that runs a program in its own namespaces, which end with it. `None`
/// without the permission.
pub fn namespaces() -> Option<Command> {
    // `--kill-child` and the namespace of processes: no process outlives the program in any case.
    let alone = ["--net", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let unshare = |rights: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(rights).args(alone);
        unshare
    };
    let rights = [&[][..], &["--user", "--map-root-user"]];
    rights.into_iter().find(|rights| succeeds(unshare(rights).arg("true"))).map(unshare)
}

/// Whether there is this program, a path or a name, or else `redis-server`.
fn is_server(named: Option<OsString>) -> bool {
    let program = PathBuf::from(named.unwrap_or_else(|| "redis-server".into()));
    match program.components().count() {
        1 => program.to_str().and_then(find).is_some(),
        _ => program.is_file(),
    }
}

fn succeeds(command: &mut Command) -> bool {
    let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    silent.status().is_ok_and(|status| status.success())
}

/// Makes a list of [`Trial`]s from functions, in groups with their needs: `tests! { [REDIS]: one, another;
/// [REDIS, ARIA2]: third }`.
///
/// The compiler warns of a function that is in no list, because it is dead code.
#[macro_export]
macro_rules! tests {
    ($($needs:tt: $($test:ident),+ $(,)?);+ $(;)?) => {
        vec![$($($crate::programs::trial(
            concat!(module_path!(), "::", stringify!($test)), &$needs, $test,
        )),+),+]
    };
}

/// Returns a test with its needs. Its name is the path without the path of the binary.
pub fn trial(path: &str, needs: &[Need], test: impl FnOnce() + Send + 'static) -> Trial {
    let name = path.split_once("::").map_or(path, |(_, name)| name).to_owned();
    let (running, needs) = (name.clone(), needs.to_vec());
    Trial::ignorable_test(name, move || {
        RUNNING.set(running);
        attempt(&needs, env::var_os("CI").is_some(), test)
    })
}

/// Runs a test if all needs are satisfied. A missing need is a reason to ignore it, or to fail.
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

/// The number of tests with missing needs.
static LACKING: AtomicUsize = AtomicUsize::new(0);

/// The remedies of the missing needs.
static MISSING: Mutex<BTreeSet<Remedy>> = Mutex::new(BTreeSet::new());

thread_local! {
    static RUNNING: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Returns the name of the test that this thread runs.
pub fn name() -> String {
    RUNNING.with_borrow(String::clone)
}

/// Returns the command line that runs only the test of this thread with this program.
pub fn again() -> [String; 4] {
    [name(), "--exact".into(), "--nocapture".into(), "--include-ignored".into()]
}

/// Prints a note of a test if `--nocapture` is given: this harness does not capture output.
pub fn note(text: impl Display) {
    if env::args().any(|argument| argument == "--nocapture") {
        println!("{text}");
    }
}

/// Runs tests by the options of the command line, `threads` at a time unless it or `RUST_TEST_THREADS` gives
/// another number. The last line of the output lists the missing needs.
pub fn run(threads: usize, tests: impl IntoIterator<Item = Vec<Trial>>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    let threads = env::var("RUST_TEST_THREADS").map_or(threads, |threads| threads.parse().expect("a number"));
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

/// Returns the packages to install, and other actions.
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

    #[test]
    fn a_server_that_is_named_and_not_there_is_missing() {
        for (named, is_there) in
            [("/no/such/server", false), ("no-such-server", false), ("/bin/sh", true), ("sh", true)]
        {
            assert_eq!(is_server(Some(named.into())), is_there, "{named}");
        }
    }
}
