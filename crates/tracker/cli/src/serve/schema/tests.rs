//! Each setting reaches its field, and each wrong value has a message.

use clap::FromArgMatches;
use swarmkeep_bittorrent::in_words;
use swarmkeep_store_tests::assert_plain;

use super::*;
use crate::settings::{SettingOrigin, check};

/// Options with other values than their defaults, and the fields that they set.
const FIELDS: [(&str, &str); 9] = [
    (
        "--udp=127.0.0.1:1 --http=127.0.0.1:2 --admin=127.0.0.1:3 --admin-host=tracker.example --workers=3",
        r#"udp: [127.0.0.1:1]|http: [127.0.0.1:2]|admin: Some(127.0.0.1:3)|admin_hosts: ["tracker.example"]|udp_workers: Some(3)"#,
    ),
    ("--xdp=nic0", r#"xdp: Some(Xdp { interface: "nic0", mode: ZeroCopy, connects: None }"#),
    ("--xdp=nic0 --xdp-mode=generic --xdp-connects=false", "mode: Generic, connects: Some(false)"),
    (
        "--http-connections=4097 --http-connections-per-address=65 --repository=btreemap-rwlock-std-mutex-std --connection-id-lifetime=3m",
        r#"connection_id_lifetime: 180s|http_connections: 4097|http_connections_per_address: 65|name: Some("btreemap-rwlock-std-mutex-std")"#,
    ),
    (
        "--lifetime=46m --max-swarms=6 --max-peers-per-swarm=7 --endpoints-per-address=9 --max-bytes=1MiB",
        "lifetime: 2760s|{ swarms: Some(6)|peers_per_swarm: Some(7)|endpoints_per_address: Some(9)|bytes: Some(1048576)",
    ),
    (
        "--repository=redis --redis-url=redis://h --redis-prefix=a: --redis-engine=functions --redis-node=n --redis-patience=11ms",
        r#"urls: ["redis://h"], prefix: "a:", engine: Some(Functions), node: "n", patience: 11ms, connections"#,
    ),
    (
        "--interval=29m --longest-interval=31m --jitter=11 --min-interval=61s --retry-interval=62s --requests=101",
        "{ interval_secs: 1740|longest_interval_secs: Some(1860)|jitter_percent: 11|min_interval_secs: Some(61)|\
         retry_interval_secs: 62|(101 a second, 2000 at once",
    ),
    (
        "--when-unavailable=empty --peers=51 --most-peers=201 --seeders-for-links --keep-downloads --local-peers=take",
        "when_unavailable: Empty|default_want: 51|most_want: 201|seeders_for_links: true|retention: KeepDownloaded|\
         local_peers: Take",
    ),
    (
        "--requests-at-once=2001 --unlimited=192.0.2.0/24 --http-proxy=198.51.100.0/24 --http-ip-parameter --http-proxy-header=Forwarded",
        "http_proxy_header: Forwarded|(100 a second, 2001 at once|unlimited: [192.0.2.0/24]|http_proxies: [198.51.100.0/24]|http_ip_parameter: true",
    ),
];

/// Options with files, and those that `serve` itself reads; its tests set them.
const OTHERS: &str = "https admin-tls admin-tokens tls-certificate tls-key connection-key redis-ca \
    redis-password-file state snapshot-every user log log-format report-to allow-list deny-list passkeys \
    refused-networks";

/// All configurations that these options make.
fn configured(options: &str) -> String {
    let schema = Settings::schema().no_binary_name(true);
    let matches = schema.try_get_matches_from(options.split_whitespace()).expect(options);
    let settings = Settings::from_arg_matches(&matches).expect(options);
    let mut kept = RunState::new(Unread::None).expect("randomness");
    let server = settings.judge(&mut kept, None).expect(options).server;
    let redis = settings.fixed.redis.servers(&kept);
    format!("{:?} {server:?} {redis:?}", settings.repository(HashKey::from_bytes([7; 16])))
}

#[test]
fn each_option_sets_its_own_field() {
    let default = configured("");
    for (options, fields) in FIELDS {
        let configured = configured(options);
        for field in fields.split('|') {
            assert!(!default.contains(field), "{field} is the default");
            assert!(configured.contains(field), "{options}: no `{field}` in {configured}");
        }
    }
    let set = FIELDS.map(|(options, _)| options).concat();
    let set: Vec<_> = set.split("--").map(|option| option.split(['=', ' ']).next()).collect();
    for option in Settings::schema().get_arguments().filter_map(|option| option.get_long()) {
        assert!(set.contains(&Some(option)) != OTHERS.split(' ').any(|other| other == option), "{option}");
    }
}

#[test]
fn messages_of_wrong_values_have_no_words_of_programmers() {
    let folder = tempfile::tempdir().expect("a folder");
    let binary = folder.path().join("binary");
    fs::write(&binary, [0xff; 99]).expect("a written file");
    let binary = binary.to_str().expect("UTF-8");
    let huge = "99999999999999999999";
    let values = ["", "0", "-1", "abc", huge, "1.5", "\u{e9}", "/nowhere/x", "1 2", "[::1", "/", binary];
    let mut refused = 0;
    let mut judge = |message: String| {
        assert_plain(&message.replace(binary, "FILE"));
        refused += 1;
    };
    for option in Settings::schema().get_arguments() {
        let name = option.get_long().expect("each has one");
        for value in values {
            // A certificate needs a key.
            let needed = name.replace("tls-certificate", "tls-key");
            let given =
                [&*format!("--{name}={value}"), &format!("--{needed}={value}"), "--redis-url=rediss://h"];
            let schema = Settings::schema().no_binary_name(true).args_override_self(true);
            match schema.try_get_matches_from(given) {
                Ok(matches) => {
                    let settings = Settings::from_arg_matches(&matches).expect("they match");
                    let mut kept = RunState::new(Unread::None).expect("randomness");
                    let server = settings.judge(&mut kept, None);
                    let redis = settings.fixed.redis.servers(&kept);
                    server.err().iter().for_each(|error| judge(in_words(error)));
                    redis.err().iter().for_each(|error| judge(in_words(error)));
                }
                Err(_) => {
                    let id = option.get_id().as_str();
                    let in_file = check(&Settings::schema(), id, &SettingOrigin::Default, &[value.into()]);
                    in_file.err().iter().for_each(|error| judge(error.to_string()));
                }
            }
        }
    }
    for command in crate::command().get_subcommands() {
        for name in command.get_arguments().filter_map(|option| option.get_long()) {
            // Parsing a target looks up its name.
            for value in values.into_iter().filter(|_| name != "target") {
                let command = command.clone().no_binary_name(true);
                let parsed = command.try_get_matches_from([format!("--{name}={value}")]);
                parsed.err().into_iter().for_each(|error| judge(crate::plain(error).to_string()));
            }
        }
    }
    assert!(refused > 500, "{refused}");
}

#[test]
fn no_setting_is_both_fixed_and_live_and_each_has_help_and_a_heading() {
    Settings::schema().debug_assert();
    for option in Settings::schema().get_arguments() {
        assert!(option.get_help().is_some() && option.get_help_heading().is_some(), "{option}");
    }
}

#[test]
fn sockets_of_a_service_manager_replace_default_addresses_before_addresses_are_compared() {
    let matches = Settings::schema().no_binary_name(true).try_get_matches_from(["--admin=127.0.0.1:6969"]);
    let settings = Settings::from_arg_matches(&matches.expect("valid")).expect("they match");
    let refused = settings.judge_without_files(false).expect_err("http has all addresses of the port");
    assert!(refused.to_string().starts_with("127.0.0.1:6969 is a part of 0.0.0.0:6969: "), "{refused}");
    settings.judge_without_files(true).expect("http has other addresses");
}
