//! A network for one test, and its needs.

use std::{
    env, fs,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::Path,
    process::{Command, Output, Stdio},
};

use swarmkeep::Family;
use swarmkeep_store_tests::programs::{IP, NAMESPACES, Need, again, find, name, namespaces, note};

/// The number of addresses of each family: the tracker's, and one per client.
const ADDRESSES: u8 = 8;

/// A name of the first IPv6 address.
pub(crate) const TRACKER_V6: &str = "tracker.test";

/// The `n`th address of a family, counted from 1. Those of IPv6 are global ones (of documentation, RFC 3849):
/// one client has no IPv6 without them.
pub(crate) fn address(family: Family, n: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(10, 77, 0, n).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0x77, 0, 0, 0, 0, n.into()).into(),
    }
}

/// The needs of a network of one's own.
pub(crate) const A_NETWORK: [Need; 3] = [IP, Need::program("mount", "mount"), NAMESPACES];

/// Runs the test of this thread once more in a process with its own network and processes, and returns `true`
/// there. Outside it returns `false`, and the test has passed if the inner one has. Needs [`A_NETWORK`].
pub(crate) fn in_a_network_of_its_own() -> bool {
    const INSIDE: &str = "SWARMKEEP_TEST_INSIDE_NAMESPACE";
    if env::var_os(INSIDE).is_some() {
        set_up();
        return true;
    }
    let this = env::current_exe().expect("a test is a program");
    let mut alone = namespaces().expect("a need of this test");
    let output = alone.arg(this).args(again()).env(INSIDE, "1").stdin(Stdio::null()).output();
    let Output { status, stdout, stderr } = output.expect("it has run before");
    let [stdout, stderr] = [stdout, stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(status.success() && stdout.contains("1 passed"), "{stdout}\n{stderr}");
    note(stdout);
    false
}

/// The addresses, and a name of one.
fn set_up() {
    let program = find("ip").expect("a need of this test");
    let ip = |arguments: &[&str]| {
        let done = Command::new(&program).args(arguments).status().expect("a need of this test");
        assert!(done.success(), "{arguments:?}");
    };
    ip(&["link", "set", "lo", "up"]);
    for n in 1..=ADDRESSES {
        ip(&["address", "add", &format!("{}/24", address(Family::V4, n)), "dev", "lo"]);
        ip(&["address", "add", &format!("{}/64", address(Family::V6, n)), "dev", "lo"]);
    }
    // No router is there, but a search for a route finds that this machine has IPv6.
    ip(&["-6", "route", "add", "default", "dev", "lo"]);
    let hosts = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}.hosts", file_name()));
    let named = format!("127.0.0.1 localhost\n{} {TRACKER_V6}\n", address(Family::V6, 1));
    fs::write(&hosts, named).expect("a folder of ours");
    let mount = Command::new("mount").arg("--bind").arg(&hosts).arg("/etc/hosts").status();
    assert!(mount.expect("a need of this test").success(), "{hosts:?}");
}

/// The name of the test of this thread, for files.
pub(crate) fn file_name() -> String {
    name().replace("::", "-")
}
