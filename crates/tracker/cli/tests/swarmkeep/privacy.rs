//! The log about clients: nothing above `debug`, and no passkey and no peer id at any level.

use std::{
    fs::{self, Permissions},
    io::{Read, Write},
    net::{Ipv4Addr, SocketAddr},
    os::unix::{fs::PermissionsExt as _, process::ExitStatusExt as _},
    process::{Command, Stdio},
    time::Instant,
};

use swarmkeep::PeerId;
use swarmkeep_tests::{
    http::connect,
    https::CertificateAuthority,
    udp::{Client, announce},
};
use swarmkeep_tracker_protocol::udp::{AnnounceRequest, ConnectionId};

use crate::common::{Folder, Serve, start, swarmkeep, until};

const PASSKEY: &str = "alice-1234567890";
const PEER_ID: &str = "-XX0000-abcdefghijkl";

#[test]
fn secrets_that_others_may_read_are_warned_of_and_are_in_no_core_dump() {
    let folder = Folder::empty();
    let authority = CertificateAuthority::new();
    let passkeys = folder.write("passkeys", "0123456789abcdef\n");
    let file =
        folder.write("a.toml", "redis-url = \"redis://:secret@127.0.0.1:1\"\nredis-patience = \"1s\"\n");
    let [certificate, key] = authority.options();
    let says = |arguments: &[&str], secret: &str, path: &str| {
        for (mode, warns) in [(0o640, false), (0o644, true), (0o602, true)] {
            fs::set_permissions(path, Permissions::from_mode(mode)).expect("a file of ours");
            // A tracker whose store is not there ends.
            let printed = match arguments[0] {
                "--config" => Serve::refused(swarmkeep(arguments)).1,
                _ => start(arguments).log(),
            };
            let warning = format!("everybody can read or change {secret}");
            assert_eq!(printed.contains(&warning) && printed.contains(path), warns, "{mode:o}: {printed}");
            assert!(!printed.contains("0123456789abcdef"), "{printed}");
        }
    };
    let path = authority.key();
    let path = path.to_str().expect("text");
    says(&["--https=127.0.0.1:0", &certificate, &key], "the key of the certificate", path);
    says(&["--http=127.0.0.1:0", "--passkeys", &passkeys], "the passkeys", &passkeys);
    says(&["--config", &file, "--repository=redis", "--udp=127.0.0.1:0"], "the passwords", &file);

    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -c unlimited; exec \"$0\" serve --udp=127.0.0.1:0 --admin=off"]);
    let mut child = command
        .arg(env!("CARGO_BIN_EXE_swarmkeep"))
        .current_dir(folder.join("."))
        .stderr(Stdio::piped())
        .spawn()
        .expect("a shell");
    let mut listens = [0; 10];
    child.stderr.take().expect("piped").read_exact(&mut listens).expect("a line");
    swarmkeep_tests::serve::signal(child.id(), "ABRT").expect("it runs");
    let status = child.wait().expect("a child");
    assert_eq!((status.signal(), status.core_dumped()), (Some(6), false), "{status}");
}

#[test]
fn addresses_are_logged_at_debug_only_and_passkeys_and_peer_ids_never() {
    let folder = Folder::empty();
    let passkeys = folder.write_secret("passkeys", &format!("{PASSKEY}\n"));
    for level in ["info", "debug", "trace"] {
        let (log, passkeys) = (format!("--log={level}"), format!("--passkeys={passkeys}"));
        let listening = ["--udp=127.0.0.1:0", "--http=127.0.0.1:0"];
        let mut serve =
            start(&[&listening[..], &[&log, &passkeys, "--http-connections-per-address=5"]].concat());
        let [udp, http] = serve.addresses();
        // First, as the flood over UDP uses up the log lines per second.
        misbehave_over_http(http[0]);
        let (began, omitted) = (Instant::now(), "more of what strangers do was not logged");
        // The next second logs the number of omitted lines.
        let enough = || began.elapsed().as_secs() > 0 && (level == "info" || serve.log().contains(omitted));
        misbehave_over_udp(udp[0], enough);
        serve.signal("HUP");
        let printed = serve.printed_until("settings read again");
        let (_, rest) = serve.stop("TERM");
        let printed = printed + &rest;
        let tells = |what: &str| printed.contains(what);
        assert_eq!(tells("127.0.0.77"), level != "info", "{printed}");
        for secret in [PASSKEY, "mallory-12345678", PEER_ID, &PEER_ID.escape_debug().to_string()[8..]] {
            assert!(!tells(secret), "{secret} in {printed}");
        }
        let lines = printed.lines().count();
        assert!(lines < 1500, "{lines} lines for some 10,000 errors");
        assert_eq!(tells(omitted), level != "info");
    }
}

/// Sends requests of all kinds that a tracker refuses.
fn misbehave_over_udp(tracker: SocketAddr, enough: impl Fn() -> bool) {
    let mut client = Client::at(Ipv4Addr::new(127, 0, 0, 77).into(), tracker);
    let announce = AnnounceRequest {
        peer_id: PeerId::new(*PEER_ID.as_bytes().first_chunk().expect("20 bytes")),
        ..announce(client.connect())
    };
    let forged = AnnounceRequest { connection_id: ConnectionId(1), ..announce };
    let with_path = |path: &str| [&announce.to_vec()[..], &[2, path.len() as u8], path.as_bytes()].concat();
    let packets = [
        announce.to_vec(),
        forged.to_vec(),
        announce.to_vec()[..50].to_vec(),
        with_path(&format!("/{PASSKEY}/announce")),
        with_path("/mallory-12345678/announce"),
    ];
    until("enough lines", || {
        for _ in 0..100 {
            packets.iter().for_each(|packet| client.send(packet));
            // All but the cut packet are answered.
            (0..4).for_each(|_| drop(client.receive()));
        }
        enough()
    });
}

fn misbehave_over_http(tracker: SocketAddr) {
    let query = format!("info_hash=aaaaaaaaaaaaaaaaaaaa&peer_id={PEER_ID}&port=0&left=1");
    let stranger = Ipv4Addr::new(127, 0, 0, 77).into();
    let mut held: Vec<_> = (0..10).map(|_| connect(stranger, tracker).expect("loopback")).collect();
    let paths = [
        format!("/{PASSKEY}/announce?{query}"),
        format!("/mallory-12345678/announce?{query}"),
        format!("/announce?{query}"),
        format!("/{PASSKEY}/nothing?{query}"),
        format!("/{PASSKEY}/announce?{query} not HTTP"),
    ];
    for (connection, path) in held.iter_mut().zip(paths) {
        let _ = write!(connection, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        let _ = connection.read(&mut [0; 1024]);
    }
}
