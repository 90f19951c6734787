//! The tracker over HTTPS, for clients of other projects.

use std::{fs, process::Command};

use swarmkeep_store_tests::{
    programs::{ARIA2, Trial},
    tests,
};
use swarmkeep_tests::{Tracker, any_port, build, https::CertificateAuthority};
use swarmkeep_tracker::Config;

pub(crate) fn tests() -> Vec<Trial> {
    tests! { [ARIA2]: aria2_announces_over_https }
}

fn aria2_announces_over_https() {
    let authority = CertificateAuthority::new();
    let mut config = Config::new();
    config.https = vec![any_port("127.0.0.1")];
    (config.tls, config.rules.jitter_percent) = (Some(authority.tls()), 0);
    let tracker = Tracker::over(&config, build("packed", |config| config));
    let announce = format!("https://{}/announce", tracker.https[0]);
    let torrent = format!(
        "d8:announce{}:{announce}4:infod6:lengthi1e4:name1:x12:piece lengthi16384e6:pieces20:{}ee",
        announce.len(),
        "x".repeat(20)
    );
    let path = authority.file("x.torrent");
    fs::write(&path, torrent).expect("a folder of ours");
    let output = Command::new("aria2c")
        .args(["--stop=3", "--enable-dht=false", "--enable-dht6=false", "--no-conf"])
        .arg("--listen-port=20000-29999")
        .arg(format!("--ca-certificate={}", authority.root().display()))
        .arg(format!("--dir={}", authority.file(".").display()))
        .arg(&path)
        .output()
        .expect("it runs");
    // It leaves when it ends.
    let counts = tracker.control.metrics.counts().http;
    assert_eq!((counts.joined, counts.left), (1, 1), "{}", String::from_utf8_lossy(&output.stdout));
}
