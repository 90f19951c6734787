//! Tests that need programs which a machine may lack.
//!
//! Such a test is *ignored*, with the names of what it lacks; where the variable `CI` is set, it fails. They stand in binaries of their
//! own (`harness = false`), whose `main` calls [`run`] with the lists that [`tests!`](crate::tests) makes.

use std::{
    collections::BTreeSet,
    env,
    path::Path,
    process::{Command, ExitCode},
    sync::{Mutex, PoisonError},
};

pub use libtest_mimic::Trial;
use libtest_mimic::{Arguments, Completion, Failed};

/// Something that a test needs of the machine.
#[derive(Debug, Clone, Copy)]
pub struct Need {
    /// What it is called, and what Debian calls the package that has it.
    name: &'static str,
    package: &'static str,
    is_there: fn(&str) -> bool,
}

impl Need {
    /// A program on the search path.
    pub const fn program(name: &'static str, package: &'static str) -> Self {
        Self { name, package, is_there: is_on_the_path }
    }

    /// Something else, and how to look for it.
    pub const fn other(name: &'static str, package: &'static str, is_there: fn(&str) -> bool) -> Self {
        Self { name, package, is_there }
    }
}

/// aria2.
pub const ARIA2: Need = Need::program("aria2c", "aria2");
/// A browser without a window.
pub const CHROMIUM: Need = Need::program("chromedriver", "chromium chromium-driver");
/// Another clock for a program.
pub const FAKETIME: Need = Need::program("faketime", "faketime");
/// File systems in user space.
pub const FUSE: Need = Need::other("/dev/fuse", "fuse3", |path| Path::new(path).exists());
/// libtorrent's bindings for Python.
pub const LIBTORRENT: Need = Need::other("libtorrent", "python3-libtorrent", |module| {
    let import = Command::new("/usr/bin/python3").args(["-c", &format!("import {module}")]).output();
    import.is_ok_and(|import| import.status.success())
});
/// Network namespaces, which take root.
pub const NETWORK_OF_ITS_OWN: Need = Need::other("a network namespace", "iproute2, and run as root", |_| {
    Command::new("unshare").args(["--net", "ip", "link"]).output().is_ok_and(|run| run.status.success())
});
/// qBittorrent without a window.
pub const QBITTORRENT: Need = Need::program("qbittorrent-nox", "qbittorrent-nox");
/// Redis.
pub const REDIS: Need = Need::program("redis-server", "redis-server");
/// Mounting, which takes root.
pub const ROOT: Need = Need::other("mounting a file system", "mount, and run as root", |_| {
    Command::new("unshare").args(["--mount", "true"]).output().is_ok_and(|run| run.status.success())
});
/// rtorrent.
pub const RTORRENT: Need = Need::program("rtorrent", "rtorrent");
/// Transmission on the command line.
pub const TRANSMISSION: Need = Need::program("transmission-cli", "transmission-cli");

fn is_on_the_path(program: &str) -> bool {
    env::split_paths(&env::var_os("PATH").unwrap_or_default()).any(|folder| folder.join(program).is_file())
}

/// Makes a list of [`Trial`]s of functions and what all of them need: `tests!([REDIS, ARIA2]: one, another)`. A function that is in no
/// list is dead code, of which the compiler tells.
#[macro_export]
macro_rules! tests {
    ([$($need:expr),* $(,)?]: $($test:ident),+ $(,)?) => {
        vec![$($crate::programs::trial(
            concat!(module_path!(), "::", stringify!($test)), &[$($need),*], $test,
        )),+]
    };
}

/// A test and what it needs.
pub fn trial(path: &str, needs: &[Need], test: impl FnOnce() + Send + 'static) -> Trial {
    let name = path.split_once("::").map_or(path, |(_, name)| name).to_owned();
    let needs = needs.to_vec();
    Trial::ignorable_test(name, move || {
        let missing: Vec<_> = needs.into_iter().filter(|need| !(need.is_there)(need.name)).collect();
        if missing.is_empty() {
            test();
            return Ok(Completion::Completed);
        }
        let names = missing.iter().map(|need| need.name).collect::<Vec<_>>().join(", ");
        if env::var_os("CI").is_some() {
            return Err(Failed::from(format!("needs {names}")));
        }
        let mut packages = PACKAGES.lock().unwrap_or_else(PoisonError::into_inner);
        packages.extend(missing.iter().map(|need| need.package));
        Ok(Completion::ignored_with(format!("needs {names}")))
    })
}

/// What was missing.
static PACKAGES: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());

/// Runs tests as the command line says, `threads` at a time unless it says so; the last line says what was missing.
pub fn run(threads: usize, tests: impl IntoIterator<Item = Vec<Trial>>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads.get_or_insert(threads);
    let conclusion = libtest_mimic::run(&arguments, tests.into_iter().flatten().collect());
    let packages = PACKAGES.lock().unwrap_or_else(PoisonError::into_inner);
    if !packages.is_empty() {
        let packages = packages.iter().copied().collect::<Vec<_>>().join(", ");
        println!("{} tests ignored for want of: {packages}", conclusion.num_ignored);
    }
    conclusion.exit_code()
}
