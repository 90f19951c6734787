//! A network for one test, and what it takes.

use std::{
    env, fs,
    io::{self, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
    process::{Command, Stdio},
};

use swarmkeep::Family;

/// How many addresses of each family there are: the tracker's and a client's each.
const ADDRESSES: u8 = 7;

/// A name of the first IPv6 address.
pub(crate) const TRACKER_V6: &str = "tracker.test";

/// The `n`th address of a family, counted from 1. Those of IPv6 are global ones (of documentation, RFC 3849): there is a client that
/// has no IPv6 without.
pub(crate) fn address(family: Family, n: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 77, 0, n).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0x77, 0, 0, 0, 0, n.into()).into(),
    }
}

/// Runs the test once more in a process with a network and processes of its own, where this answers `true`. Outside, where
/// it answers `false`, the test has passed if that one has.
pub(crate) fn in_a_network_of_its_own(test: &str) -> bool {
    const INSIDE: &str = "SWARMKEEP_TEST_INSIDE_NAMESPACE";
    if env::var_os(INSIDE).is_some() {
        let ip = |arguments: &[&str]| {
            assert!(
                Command::new("ip").args(arguments).status().expect("`ip` is there").success(),
                "{arguments:?}"
            );
        };
        ip(&["link", "set", "lo", "up"]);
        for n in 1..=ADDRESSES {
            ip(&["address", "add", &format!("{}/24", address(Family::V4, n)), "dev", "lo"]);
            ip(&["address", "add", &format!("{}/64", address(Family::V6, n)), "dev", "lo"]);
        }
        // Nobody is there, but who looks for a way out finds that this machine has IPv6.
        ip(&["-6", "route", "add", "default", "dev", "lo"]);
        let hosts = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{test}.hosts"));
        let named = format!("127.0.0.1 localhost\n{} {TRACKER_V6}\n", address(Family::V6, 1));
        fs::write(&hosts, named).expect("a folder of ours");
        let mount = Command::new("mount").arg("--bind").arg(&hosts).arg("/etc/hosts").status();
        assert!(mount.expect("`mount` is where `unshare` is").success(), "{hosts:?}");
        return true;
    }
    if !quietly(Command::new("ip").arg("-V")) {
        absent("iproute2 (`ip`)", "iproute2");
        return false;
    }
    // `--kill-child` and the namespace of processes: nothing outlives this, whatever happens.
    let alone = ["--net", "--pid", "--fork", "--kill-child", "--mount-proc"];
    let as_root = ["--user", "--map-root-user"];
    let unshare = |arguments: &[&str]| {
        let mut unshare = Command::new("unshare");
        unshare.args(arguments).args(alone);
        unshare
    };
    let mut unshare = match () {
        () if quietly(unshare(&[]).arg("true")) => unshare(&[]),
        () if quietly(unshare(&as_root).arg("true")) => unshare(&as_root),
        () => {
            absent("a network namespace (`unshare --net`, as root or with user namespaces)", "util-linux");
            return false;
        }
    };
    let this = env::current_exe().expect("a test is a program");
    let output = unshare
        .arg(this)
        .args([test, "--exact", "--nocapture"])
        .env(INSIDE, "1")
        .stdin(Stdio::null())
        .output()
        .expect("`unshare` has just run");
    let printed = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    print!("{}", printed(&output.stdout));
    assert!(output.status.success(), "{}\n{}", printed(&output.stdout), printed(&output.stderr));
    false
}

pub(crate) fn quietly(command: &mut Command) -> bool {
    let silent = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    silent.status().is_ok_and(|status| status.success())
}

/// Says that something is missing: in CI by failing, elsewhere so that it is seen.
pub(crate) fn absent(what: &str, package: &str) {
    let message = format!("{what} is missing: apt-get install {package}");
    assert!(env::var_os("CI").is_none(), "{message}");
    // Past the test harness, which shows nothing of a test that passes.
    let _ = writeln!(io::stderr(), "SKIPPED: {message}");
}
