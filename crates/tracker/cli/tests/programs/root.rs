//! `swarmkeep serve`, started by root.

use std::{fs, os::unix::fs::MetadataExt as _, process::Command};

use nix::unistd::User;
use swarmkeep_store_tests::{
    programs::{IP, NAMESPACES, ROOT, Trial, find, namespaces},
    tests,
};
use swarmkeep_tests::{https::CertificateAuthority, udp::Client};

use crate::common::{Serve, https::scrape_over_https, start};

/// The tests of this module.
pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [ROOT]:
            running_as_root_is_warned_of,
            a_start_as_root_with_a_user_becomes_that_user_in_all_threads_for_good;
        [NAMESPACES, IP]:
            a_start_on_a_machine_with_private_addresses_alone_is_warned_of
    }
}

fn a_start_as_root_with_a_user_becomes_that_user_in_all_threads_for_good() {
    let nobody = User::from_name("nobody").expect("looked up").expect("everywhere");
    // Root reads its key before the change of the user.
    let authority = CertificateAuthority::new();
    // With groups that the tracker has to leave.
    let mut command = Command::new("setpriv");
    command.args(["--groups=1,2", env!("CARGO_BIN_EXE_swarmkeep"), "serve", "--admin=off", "--user=nobody"]);
    command.args(["--udp=127.0.0.1:0", "--http=127.0.0.1:0", "--https=127.0.0.1:0"]);
    command.args(authority.options());
    let mut serve = Serve::start(command);
    Client::of(serve.address("udp")).connect();
    scrape_over_https(serve.addresses_of("https")[0], &authority);

    let (uid, gid) = (nobody.uid, nobody.gid);
    for (field, expected) in [
        ("Uid", format!("{uid} {uid} {uid} {uid}")),
        ("Gid", format!("{gid} {gid} {gid} {gid}")),
        ("Groups", String::new()),
        ("CapEff", "0000000000000000".into()),
        ("CapPrm", "0000000000000000".into()),
        ("CapAmb", "0000000000000000".into()),
        ("NoNewPrivs", "1".into()),
    ] {
        let of_threads = serve.statuses(field);
        let is_so = of_threads.len() > 2 && of_threads.iter().all(|of| *of == expected);
        assert!(is_so, "{field}: {of_threads:?}");
    }

    // It has secrets: it leaves no core dump, and only root can read its memory.
    let memory = fs::metadata(format!("/proc/{}/mem", serve.pid())).expect("it runs");
    assert_eq!(memory.uid(), 0);

    // Files that only root can read cannot be read again.
    serve.signal("HUP");
    let printed = serve.printed_until("the settings stay as they were");
    let problem = format!("cannot take the key from {}: Permission denied", authority.key().display());
    assert!(printed.contains(&problem), "{printed}");
    assert!(!printed.contains("running as root"), "{printed}");
    scrape_over_https(serve.addresses_of("https")[0], &authority);
    let (code, printed) = serve.stop("TERM");
    assert_eq!(code, Some(0), "{printed}");
}

fn a_start_on_a_machine_with_private_addresses_alone_is_warned_of() {
    let start =
        "$0 link set lo up && $0 address add 10.1.2.3/8 dev lo && exec $1 serve --admin=off --udp=0.0.0.0:0";
    let mut command = namespaces().expect("a need of these tests");
    command.args(["sh", "-c", start]).arg(find("ip").expect("a need")).arg(env!("CARGO_BIN_EXE_swarmkeep"));
    let [_, warned] = Serve::start(command).listening();
    assert!(warned.contains("this machine has private addresses alone"), "{warned}");
}

fn running_as_root_is_warned_of() {
    let mut serve = start(&["--udp=127.0.0.1:0"]);
    assert!(serve.printed_until("running as root").contains("WARN"));
}
