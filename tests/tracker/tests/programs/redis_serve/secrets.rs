//! TLS, passwords and users: the rights of a tracker, and the secrets that it never shows.

use swarmkeep::AnnounceEvent::{Completed, Started, Stopped};
use swarmkeep_servers::{Server, Value};
use swarmkeep_store_tests::{
    programs::{REDIS, Trial},
    tests, until,
};
use swarmkeep_tests::{
    admin::client::ask,
    https::CertificateAuthority,
    serve::{PROGRAM, Serve},
    udp::HASH,
};

use crate::{
    redis::{FUNCTIONS, calls, server_with_module, started},
    redis_serve::trackers::{TrackerSetup, at, escaped},
};

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [REDIS, PROGRAM]:
            redis_over_tls_is_reached_only_with_its_authority,
            redis_user_of_the_module_has_the_rights_of_a_tracker_and_no_more,
            redis_with_a_wrong_password_is_not_reached_and_no_password_is_shown,
            redis_password_file_is_read_again_at_a_reconnection_and_at_a_signal,
            redis_that_evicts_or_takes_all_memory_is_warned_of_at_the_start;
        [REDIS, PROGRAM, FUNCTIONS]:
            redis_user_of_the_documentation_has_the_rights_of_a_tracker_and_no_more,
    }
}

const PASSWORD: &str = "p@ss:w/ord%secret";

/// The password in a URL.
const ESCAPED: &str = "p%40ss%3Aw%2Ford%25secret";

fn redis_over_tls_is_reached_only_with_its_authority() {
    let setup = TrackerSetup::new();
    let [authority, other] = [(); 2].map(|()| CertificateAuthority::new());
    let (certificate, key) = (authority.certificate(), authority.key());
    let server = started(Server::start_with_tls(&certificate, &key, &[("requirepass", PASSWORD)]));
    let urls = [format!("rediss://127.0.0.1:{}", server.tls_port())];
    let password = setup.folder.write_secret("password", &format!("{PASSWORD}\n"));
    let password = format!("--redis-password-file={password}");
    let [ca, other] =
        [&authority, &other].map(|authority| format!("--redis-ca={}", authority.root().display()));
    let tracker = setup.tracker(&urls, &["--interval=600", &password, &ca]);
    assert_eq!(tracker.announce(HASH, 1, 0, Started), Ok((600, vec![])));
    assert_eq!(tracker.announce_by_udp(2), Ok((600, vec![at(1)])));

    for arguments in [&[&*password, &*other][..], &[&*password]] {
        let (code, said) = Serve::refused(setup.serve(&urls, arguments));
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains("cannot reach the store on Redis") && said.contains("certificate"), "{said}");
    }
    let (code, said) = Serve::refused(setup.serve(&[server.url()], &[&ca]));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("redis-ca is of no use without TLS"), "{said}");
    let nothing = format!("--redis-ca={}", setup.folder.write_secret("nothing.pem", "nothing"));
    let (code, said) = Serve::refused(setup.serve(&urls, &[&password, &nothing]));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("redis-ca") && said.contains("nothing.pem"), "{said}");
}

/// The rule of the documentation, word by word, allows all commands of a tracker, and no others.
fn redis_user_of_the_documentation_has_the_rights_of_a_tracker_and_no_more() {
    let server = started(Server::start());
    // Of an earlier version, which is deleted.
    let code = "#!lua name=swarmkeep_00000000\nredis.register_function('earlier', function() end)";
    server.command(&["FUNCTION", "LOAD", code]).expect("it is taken");
    may_do_what_a_tracker_does(&server, include_str!("../../../../../docs/operate/two-trackers.md"));
}

/// The page, followed: the files where the package puts them, and the lines for the server's settings. That
/// Debian's server takes them there is tested with the package.
fn redis_user_of_the_module_has_the_rights_of_a_tracker_and_no_more() {
    const PAGE: &str = include_str!("../../../../../docs/operate/module.md");
    const INCLUDED: &str = include_str!("../../../../../crates/tracker/server/packaging/module.conf");
    const PACKAGE: &str = include_str!("../../../../../crates/tracker/module/Cargo.toml");

    let line =
        |of: &'static str, name: &str| of.lines().find_map(|line| line.strip_prefix(name)).expect(name);
    for path in [line(PAGE, "include "), line(INCLUDED, "loadmodule ")] {
        let (folder, file) = path[1..].rsplit_once('/').expect("an absolute path");
        assert!(PACKAGE.contains(&format!("/{file}\", \"{folder}/\"")), "{path}");
    }
    // The test has no right to put a file there.
    let server = server_with_module(&[("user", line(PAGE, "user "))]);
    may_do_what_a_tracker_does(&server, PAGE);
}

fn may_do_what_a_tracker_does(server: &Server, document: &str) {
    const OF_CLUSTERS: [&str; 2] = ["asking", "cluster|slots"];

    let setup = TrackerSetup::new();
    let rule = document.lines().find_map(|line| line.strip_prefix("user tracker "));
    let rule = rule.expect("there is one").replace("PASSWORD", "given");
    let words: Vec<_> =
        ["ACL", "SETUSER", "tracker", "reset"].into_iter().chain(rule.split_whitespace()).collect();
    server.command(&words).expect("it is understood");
    let urls = [format!("redis://tracker:given@127.0.0.1:{}", server.port())];
    let arguments = ["--interval=1", "--lifetime=2", "--redis-node=one", "--redis-prefix=swarmkeep:"];

    // To the store, the second tracker is the first one again, and keeps its lease.
    for _ in 0..2 {
        let mut tracker = setup.tracker(&urls, &arguments);
        assert!(matches!(tracker.announce(HASH, 1, 9, Started), Ok((1, _))));
        assert!(matches!(tracker.announce(HASH, 1, 0, Completed), Ok((1, _))));
        assert!(matches!(tracker.announce(HASH, 2, 9, Started), Ok((1, _))));
        assert!(matches!(tracker.announce(HASH, 2, 9, Stopped), Ok((1, _))));
        let scrape = format!("/scrape?info_hash={}", escaped(&HASH));
        assert_eq!(ask(tracker.http, "GET", &scrape, "").answer().status, 200);
        until("it serves", || tracker.is_ready());
        for path in
            ["torrents", "torrents?sort=info_hash", &format!("torrents/{HASH}/peers"), "busiest", "scrape"]
        {
            assert_eq!(tracker.get(&format!("/api/v1/{path}")).status, 200, "{path}");
        }
        assert_eq!(tracker.delete(&format!("/api/v1/torrents/{HASH}")).status, 200);
        assert!(matches!(tracker.announce(HASH, 3, 9, Started), Ok((1, _))));
        until("a sweep forgets", || tracker.metric("swarmkeep_expired_peers_total") == Some(1.0));
        assert!(!tracker.serve.log().contains("NOPERM"), "{}", tracker.serve.log());
        tracker.serve.kill();
    }
    let denied: Vec<Value> = server.query(&["ACL", "LOG"]).expect("it answers");
    assert_eq!(denied, [], "it uses denied commands, and goes on");
    for command in
        words.iter().filter_map(|word| word.strip_prefix('+')).filter(|word| !OF_CLUSTERS.contains(word))
    {
        assert!(calls(server, command) > 0, "{command} is allowed for nothing");
    }
    let mut tracker = server.connect().expect("it listens");
    tracker.command(&["AUTH", "tracker", "given"]).expect("its password");
    for refused in [&["FLUSHALL"][..], &["DEL", "swarmkeep:store"], &["HGET", "other", "m"], &["KEYS", "*"]] {
        let error = tracker.command(refused).expect_err("not allowed").to_string();
        assert!(error.contains("NOPERM"), "{refused:?}: {error}");
    }
}

fn redis_with_a_wrong_password_is_not_reached_and_no_password_is_shown() {
    let setup = TrackerSetup::new();
    let server = started(Server::start_with(&[("requirepass", PASSWORD)]));
    let address = format!("127.0.0.1:{}", server.port());
    for (url, what) in [
        (format!("redis://:wrong-{ESCAPED}@{address}"), "it refuses the user and the password"),
        (format!("redis://{address}"), "it asks for a password"),
    ] {
        let (code, said) = Serve::refused(setup.serve(&[url], &["--redis-patience=100ms"]));
        assert_eq!(code, Some(1), "{said}");
        assert!(said.contains(what) && said.contains(&address), "{said}");
        assert!(!said.contains("secret"), "{said}");
    }

    let url = format!("redis://:{ESCAPED}@{address}");
    let file = setup
        .folder
        .write_secret("settings.toml", &format!("redis-url = \"{url}\"\nrepository = \"redis\"\n"));
    let from_file = format!("--config={file}");
    let tracker = setup.tracker(&[], &["--log=trace", &from_file, "--interval=600"]);
    assert_eq!(tracker.announce(HASH, 1, 0, Started), Ok((600, vec![])));
    server.client_kill_all().expect("it answers");
    assert_eq!(tracker.announce(HASH, 1, 0, Started), Ok((600, vec![])));
    setup.folder.write_secret("settings.toml", &format!("redis-url = \"redis://:secret@{address}\"\n"));
    tracker.serve.signal("HUP");
    until("it reads them again", || tracker.serve.log().contains("settings read again"));
    let log = tracker.serve.log();
    assert!(log.contains(&format!("from=\"redis://:***@{address}\"")), "{log}");
    let (metrics, stats) = (tracker.get("/metrics"), tracker.get("/api/v1/stats"));
    for shown in [&*log, metrics.text(), stats.text()] {
        assert!(
            !shown.contains(PASSWORD) && !shown.contains(ESCAPED) && !shown.contains(":secret@"),
            "{shown}"
        );
    }

    setup.folder.write_secret("settings.toml", &format!("redis-url = \"{url}\"\nrepository = \"redis\"\n"));
    let printed = setup.config(&[&from_file]).output().expect("it starts").stdout;
    let printed = String::from_utf8(printed).expect("text");
    let masked = format!("redis-url = [\"redis://:***@{address}\"] # from {file}:1");
    assert!(printed.contains(&masked), "{printed}");
    assert!(!printed.contains(PASSWORD) && !printed.contains(ESCAPED), "{printed}");
    let again = format!("--config={}", setup.folder.write_secret("again.toml", &printed));
    let (code, said) = Serve::refused(setup.serve(&[], &[&again]));
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("its password was left out where it was printed"), "{said}");
}

fn redis_password_file_is_read_again_at_a_reconnection_and_at_a_signal() {
    let setup = TrackerSetup::new();
    let server = started(Server::start());
    let changes = |password: &str| {
        let rule = ["ACL", "SETUSER", "tracker", "reset", "on", password, "~*", "+@all"];
        server.command(&rule).expect("it is understood");
    };
    let reconnects = || server.command(&["CLIENT", "KILL", "USER", "tracker"]).expect("it answers");
    changes(">first");
    let file = setup.folder.write_secret("password", "first\n");
    let urls = [format!("redis://tracker@127.0.0.1:{}", server.port())];
    let password = format!("--redis-password-file={file}");
    let tracker = setup.tracker(&urls, &["--interval=600", &password]);
    let mut port = 0;
    let mut is_served = || {
        port += 1;
        matches!(tracker.announce(HASH, port, 9, Started), Ok((600, _)))
    };
    assert!(is_served());

    changes(">second");
    setup.folder.write_secret("password", "second\n");
    reconnects();
    assert!(is_served(), "the new password is in the file: {}", tracker.serve.log());

    setup.folder.write_secret("password", "\n");
    tracker.serve.signal("HUP");
    until("it tells that it is empty", || {
        let log = tracker.serve.log();
        log.contains("the settings stay as they were") && log.contains("redis-password-file")
    });
    reconnects();
    assert!(is_served(), "the password of before is still right: {}", tracker.serve.log());
    setup.folder.write_secret("password", "second\n");
    tracker.serve.signal("HUP");
    until("it is content", || tracker.serve.log().contains("settings read again"));
    assert!(!tracker.serve.log().contains("second"), "{}", tracker.serve.log());
}

fn redis_that_evicts_or_takes_all_memory_is_warned_of_at_the_start() {
    let setup = TrackerSetup::new();
    let server = started(Server::start());
    let may_not_look = ["ACL", "SETUSER", "blind", "on", ">given", "~*", "+@all", "-info"];
    server.command(&may_not_look).expect("it is understood");
    let blind = format!("redis://blind:given@127.0.0.1:{}", server.port());
    for (most, policy, url, warning) in [
        ("1gb", "allkeys-lru", server.url(), Some("the server evicts keys")),
        ("1gb", "volatile-lru", server.url(), None),
        ("1gb", "noeviction", server.url(), None),
        ("1gb", "noeviction", blind, Some("whether the server evicts keys is not known")),
        ("0", "noeviction", server.url(), Some("the server has no limit of its memory")),
    ] {
        server.command(&["CONFIG", "SET", "maxmemory", most]).expect("it answers");
        server.command(&["CONFIG", "SET", "maxmemory-policy", policy]).expect("it answers");
        let tracker = setup.tracker(&[url], &[]);
        let log = tracker.serve.log();
        match warning {
            Some(warning) => assert!(log.contains(warning) && log.contains("noeviction"), "{policy}: {log}"),
            None => assert!(!log.contains("maxmemory"), "{policy}: {log}"),
        }
    }

    server.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]).expect("it answers");
    let tracker = setup.tracker(&[server.url()], &[]);
    let evicted = || tracker.metric("swarmkeep_store_evicted_shards_total");
    until("they are counted", || evicted() == Some(0.0));
    assert!(tracker.announce(HASH, 1, 9, Started).is_ok());
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).expect("it answers");
    until("a key is evicted, and counted", || evicted().is_some_and(|evicted| evicted >= 1.0));
}
