//! The tracker over HTTPS, for clients of other projects.

use std::{fs, net::SocketAddr, path::PathBuf, process::Command};

use swarmkeep_store_tests::{
    programs::{ARIA2, CURL, Trial},
    tests,
};
use swarmkeep_tests::{Tracker, any_port, build, certificates};
use swarmkeep_tracker::{Config, Tls};
use tempfile::TempDir;

pub(crate) fn tests() -> Vec<Trial> {
    tests! { [ARIA2]: aria2_announces_over_https; [CURL]: curl_scrapes_over_https }
}

/// On two loopback listeners, IPv4 first, with the certificate of its authority in a folder.
fn tracker() -> (Tracker, TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder of ours");
    let files = ["certificate.pem", "key.pem", "root.pem"].map(|name| folder.path().join(name));
    for (file, text) in files.iter().zip(certificates()) {
        fs::write(file, text).expect("a folder of ours");
    }
    let [certificate, key, root] = files;
    let tls = Tls::load(&certificate, &key).expect("they belong together");
    let mut config = Config::new();
    (config.https, config.tls) = (vec![any_port("127.0.0.1"), any_port("::1")], Some(tls));
    config.rules.jitter_percent = 0;
    (Tracker::over(&config, build("packed", |config| config)), folder, root)
}

fn curl_scrapes_over_https() {
    let (tracker, _folder, root) = tracker();
    let curl = |address: SocketAddr| {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", "10"]);
        curl.arg(format!("https://{address}/scrape?info_hash={}", "a".repeat(20)));
        curl
    };
    for &address in &tracker.https {
        let output = curl(address).arg("--cacert").arg(&root).output().expect("it runs");
        let (body, errors) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && body.starts_with("d5:filesd20:aaaa"), "{body}{errors}");
        let output = curl(address).output().expect("it runs");
        assert_eq!(output.status.code(), Some(60), "no authority that curl knows has signed the certificate");
    }
}

fn aria2_announces_over_https() {
    let (tracker, folder, root) = tracker();
    let announce = format!("https://{}/announce", tracker.https[0]);
    let torrent = format!(
        "d8:announce{}:{announce}4:infod6:lengthi1e4:name1:x12:piece lengthi16384e6:pieces20:{}ee",
        announce.len(),
        "x".repeat(20)
    );
    let path = folder.path().join("x.torrent");
    fs::write(&path, torrent).expect("a folder of ours");
    let output = Command::new("aria2c")
        .args(["--stop=3", "--enable-dht=false", "--enable-dht6=false", "--no-conf"])
        .arg("--listen-port=20000-29999")
        .arg(format!("--ca-certificate={}", root.display()))
        .arg(format!("--dir={}", folder.path().display()))
        .arg(&path)
        .output()
        .expect("it runs");
    // It leaves when it ends.
    let counts = tracker.control.metrics.counts().http;
    assert_eq!((counts.joined, counts.left), (1, 1), "{}", String::from_utf8_lossy(&output.stdout));
}
