//! The tracker over HTTPS, for clients of other projects.

use std::{fs, net::SocketAddr, process::Command};

use swarmkeep_store_tests::{
    programs::{ARIA2, CURL, Trial},
    tests,
};
use swarmkeep_tests::{Tracker, any_port, build, https::CertificateAuthority};
use swarmkeep_tracker::Config;

pub(crate) fn tests() -> Vec<Trial> {
    tests! { [ARIA2]: aria2_announces_over_https; [CURL]: curl_scrapes_over_https }
}

/// On two loopback listeners, IPv4 first.
fn tracker(authority: &CertificateAuthority) -> Tracker {
    let mut config = Config::new();
    config.https = vec![any_port("127.0.0.1"), any_port("::1")];
    (config.tls, config.rules.jitter_percent) = (Some(authority.tls()), 0);
    Tracker::over(&config, build("packed", |config| config))
}

fn curl_scrapes_over_https() {
    let authority = CertificateAuthority::new();
    let tracker = tracker(&authority);
    let curl = |address: SocketAddr| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", "10"]);
        curl.arg(format!("https://{address}/scrape?info_hash={}", "a".repeat(20)));
        curl
    };
    for &address in &tracker.https {
        let output = curl(address).arg("--cacert").arg(authority.root()).output().expect("it runs");
        let (body, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && body.starts_with("d5:filesd20:aaaa"), "{body}{errors}");
        let output = curl(address).output().expect("it runs");
        assert_eq!(output.status.code(), Some(60), "no authority that curl knows has signed the certificate");
    }
}

fn aria2_announces_over_https() {
    let authority = CertificateAuthority::new();
    let tracker = tracker(&authority);
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
