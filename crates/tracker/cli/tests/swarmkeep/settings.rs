//! The settings of `swarmkeep serve`: the output of `config`, and changes by SIGHUP.

use std::process::{Command, Output};

use swarmkeep_tests::serve::Serve;

use crate::common::{Folder, interval, not_as_root, start, start_at_file, swarmkeep};

fn config(arguments: &[&str], environment: &[(&str, &str)]) -> (Option<i32>, String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_swarmkeep"));
    let Output { status, stdout, stderr } =
        command.arg("config").args(arguments).envs(environment.iter().copied()).output().expect("it starts");
    let text = |bytes| String::from_utf8(bytes).expect("text");
    (status.code(), text(stdout), text(stderr))
}

#[test]
fn the_effective_settings_are_printed_with_where_each_comes_from() {
    let folder = Folder::empty();
    let file = folder.write("a.toml", "interval = \"20m\"\nudp = [\"127.0.0.1:0\"]\n");
    let (code, printed, errors) = config(&["--config", &file, "--peers=30"], &[("SWARMKEEP_JITTER", "5")]);
    assert_eq!((code, &*errors), (Some(0), ""));
    let file_line = |line: u32| format!("# from {file}:{line}\n");
    for line in [
        &format!("\ninterval = \"20m\" {}", file_line(1)),
        &format!("\nudp = [\"127.0.0.1:0\"] {}", file_line(2)),
        "\npeers = 30 # from command line\n",
        "\njitter = 5 # from SWARMKEEP_JITTER\n",
        "\nlifetime = \"45m\"\n",
        "\n#max-bytes = BYTES\n",
    ] {
        assert!(printed.contains(line), "{line} in {printed}");
    }
    let again = folder.write("b.toml", &printed);
    let (code, reprinted, _) = config(&["--config", &again], &[]);
    let values = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
        lines.map(|line| line.split(" # ").next().unwrap_or_default().into()).collect()
    };
    assert_eq!((code, values(&reprinted)), (Some(0), values(&printed)));
}

#[test]
fn the_short_help_is_short_and_the_long_one_has_examples_and_exit_codes() {
    let help = |option| {
        let output = Command::new(env!("CARGO_BIN_EXE_swarmkeep")).args(["serve", option]).output();
        String::from_utf8(output.expect("it starts").stdout).expect("text")
    };
    let (short, long) = (help("-h"), help("--help"));
    for option in ["--http-connections-per-address", "--endpoints-per-address", "--http-ip-parameter"] {
        assert!(short.contains(option) && long.contains(option), "{option}");
    }
    let lines = |help: &str| help.lines().count();
    assert!(2 * lines(&short) < lines(&long), "{} {}", lines(&short), lines(&long));
    for part in ["\nExamples:\n  swarmkeep serve\n", "\nExit codes:\n"] {
        assert!(long.contains(part) && !short.contains(part), "{part}");
    }
    let words = long.split_whitespace().collect::<Vec<_>>().join(" ");
    for part in [
        "such as 2700, 45m, 1h30m or 1d (units s, m, h, d)",
        "- packed: Sharded, packed peers: the default. Limits: swarms, peers per swarm, bytes, endpoints per address",
        "- btreemap: A B-tree behind a lock, and a lock around each swarm. Limits: endpoints per address",
        "- redis: A server of Redis or Valkey, or a Cluster. Limits: endpoints per address",
    ] {
        assert!(words.contains(part), "{part} in {long}");
    }
}

#[test]
fn the_version_has_the_commit_of_a_checkout() {
    let said = Command::new(env!("CARGO_BIN_EXE_swarmkeep")).arg("--version").output().unwrap().stdout;
    let git = Command::new("git").args(["rev-parse", "--short=10", "HEAD"]).output();
    let commit =
        git.ok().filter(|git| git.status.success()).map(|git| String::from_utf8(git.stdout).unwrap());
    let commit = commit.map_or_else(String::new, |commit| format!(" ({})", commit.trim_end()));
    let expected = format!("swarmkeep {}{commit}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(String::from_utf8(said).unwrap(), expected);
}

/// As an operator of another tracker does: takes the file of its section, and looks up names of settings.
#[test]
fn settings_that_are_named_to_operators_of_other_trackers_exist() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/operate/coming-from.md");
    let page = std::fs::read_to_string(page).expect("a page of the repository");
    let (_, defaults, _) = config(&["--default"], &[]);
    let folder = Folder::empty();
    let mut trackers = Vec::new();
    for section in page.split("\n## ").skip(1) {
        let tracker = section.lines().next().expect("a title");
        let settings = section.split("```").nth(1).and_then(|block| block.strip_prefix("toml\n"));
        let Some(settings) = settings else { continue };
        let file = folder.write("swarmkeep.toml", settings);
        let (code, printed, errors) = config(&["--config", &file], &[]);
        assert_eq!((code, &*errors), (Some(0), ""), "{tracker}");
        assert!(printed.contains("swarmkeep.toml:1"), "{tracker}: {printed}");
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        let named =
            rows.filter_map(|row| row.split('|').nth(1)).flat_map(|cell| cell.split('`').skip(1).step_by(2));
        let named: Vec<_> = named.map(|setting| setting.split(" = ").next().unwrap_or(setting)).collect();
        assert!(named.len() > 10, "{tracker}: {named:?}");
        for setting in named {
            assert!(defaults.contains(&format!("\n#{setting} = ")), "{tracker}: there is no {setting}");
        }
        trackers.push(tracker);
    }
    assert_eq!(trackers, ["opentracker", "aquatic_udp", "chihaya", "torrust-tracker"]);
}

#[test]
fn a_relative_path_in_a_file_starts_at_its_folder() {
    let folder = Folder::empty();
    folder.write("denied", &format!("{}\n", "0".repeat(40)));
    let file = folder.write("a.toml", "deny-list = \"denied\"\nconnection-key = \"/nowhere/key\"\n");
    let (_, _, errors) = config(&["--config", &file], &[]);
    assert!(errors.contains("/nowhere/key") && !errors.contains("denied"), "{errors}");
    let file = folder.write("a.toml", "deny-list = \"denied\"\n");
    let (code, printed, errors) = config(&["--config", &file], &[]);
    assert_eq!((code, &*errors), (Some(0), ""));
    let shown = format!("\ndeny-list = \"{}\" # from", folder.join("denied").display());
    assert!(printed.contains(&shown), "{printed}");
    // A path on the command line is relative to the current folder.
    let errors = crate::common::refused(&["--udp=127.0.0.1:0", "--deny-list", "denied"]);
    assert!(errors.contains("denied"), "{errors}");
}

#[test]
fn a_listener_that_is_named_replaces_those_of_its_own_protocol() {
    let folder = Folder::empty();
    let everywhere = r#"["0.0.0.0:6969", "[::]:6969"]"#;
    let here = r#"["127.0.0.1:1"]"#;
    for (arguments, udp, http) in [
        (&[][..], everywhere, everywhere),
        (&["--udp=127.0.0.1:1"], here, everywhere),
        (&["--http=127.0.0.1:1"], everywhere, here),
        (&["--udp=127.0.0.1:1", "--http=off"], here, r#"["off"]"#),
    ] {
        let (code, printed, errors) = config(arguments, &[]);
        assert_eq!((code, &*errors), (Some(0), ""));
        for (name, addresses) in [("udp", udp), ("http", http)] {
            assert!(printed.contains(&format!("\n{name} = {addresses}")), "{arguments:?}: {printed}");
        }
    }
    let serve = start(&["--config", &folder.write("a.toml", ""), "--http=127.0.0.1:0"]);
    let [listening, _] = serve.listening();
    assert!(!listening.contains("udp"), "off in the environment: {listening}");
    assert_eq!(serve.stop("TERM").0, Some(0));
}

/// Wrong files, and a part of the message about each.
const WRONG: [(&str, &str); 55] = [
    ("interval = 1h", ":1: expected a value; text stands in quotes, such as \"30m\""),
    ("interval = \"1h\"", "forgotten after 2700 s: give a longer lifetime, or a shorter interval"),
    ("interval = 0", "a time above 0"),
    ("interval = \"1500ms\"", "a time above 0"),
    ("interval = \"4294967295h\"", "a time above 0"),
    ("lifetime = \"45x\"", "such as 2700, 45m or 1h30m; units are s, m, h, d"),
    ("udp = \"localhost\"", "expected an address and port, as 127.0.0.1:6970 or [::]:6970, or off"),
    ("log = \"loud\"", "allowed are off, error, warn, info, debug, trace"),
    ("repository = \"pakced\"", "`pakced` is not a value for it; allowed are "),
    ("lifetime = \"29m\"", "would be forgotten after 1740"),
    ("lifetime = 4294967295", "a lifetime of 4294967295s cannot be kept"),
    ("longest-interval = \"44m\"", "would be forgotten after 2700"),
    ("longest-interval = 60", "longest-interval is shorter than the interval"),
    ("min-interval = \"40m\"", "min-interval is longer than the interval"),
    ("max-bytes = 1", "bytes"),
    ("max-bytes = \"1XB\"", "units are kB, MB, GB, TB, KiB, MiB, GiB, TiB"),
    ("max-bytes = \"1MB\"\nrepository = \"btreemap\"", "bytes"),
    ("max-swarms = 0", "expected a whole number above 0"),
    ("most-peers = 65536", "the number is too large"),
    ("snapshot-every = \"1h30\"", "units are s, m, h, d"),
    ("udp = [\"127.0.0.1:7\", \"127.0.0.1:7\"]", "127.0.0.1:7 is given twice"),
    ("http = [\"[::ffff:127.0.0.1]:7\"]\nadmin = \"127.0.0.1:7\"", "127.0.0.1:7 is given twice"),
    ("http = \"0.0.0.0:7\"\nadmin = \"127.0.0.1:7\"", "127.0.0.1:7 is a part of 0.0.0.0:7: give one another"),
    ("http = \"[::1]:7\"\nadmin = \"[::]:7\"", "[::1]:7 is a part of [::]:7: give one another port"),
    ("udp = []", "udp has no address: give one, or off"),
    ("udp = [\"off\", \"127.0.0.1:7\"]", "udp is off and has an address: leave one of them out"),
    ("udp = \"off\"\nhttp = \"off\"", "udp, http and https are off: give one of them an address"),
    ("udp = \"off\"\nhttp = \"127.0.0.1:0\"\nxdp = \"lo\"", "xdp is given and udp is off"),
    ("https = \"127.0.0.1:0\"", "HTTPS needs both --tls-certificate and --tls-key"),
    ("admin = \"127.0.0.1:0\"\nadmin-tls = true", "HTTPS needs both"),
    ("tls-key = \"/nowhere/at/all\"", "HTTPS needs both"),
    ("tls-key = \"/nowhere\"\ntls-certificate = \"/nowhere\"", "cannot take the certificate from /nowhere"),
    ("admin = \"127.0.0.1:0\"\nadmin-tokens = \"/nowhere/at/all\"", "admin-tokens: /nowhere/at/all"),
    ("connection-key = \"/nowhere/at/all\"", "connection-key: /nowhere/at/all"),
    ("connection-key = \"/dev/zero\"", "it is not a regular file"),
    ("allow-list = \"/a\"\ndeny-list = \"/b\"", "allow-list and deny-list exclude each other"),
    ("deny-list = \"/nowhere/at/all\"", "cannot read /nowhere/at/all"),
    ("passkeys = \"/nowhere/at/all\"", "cannot read /nowhere/at/all"),
    ("report-to = \"/nowhere/at/all\"", "report-to records members, and there are no passkeys"),
    ("user = \"root\"", "root's user or group"),
    ("refused-networks = \"/nowhere/at/all\"", "cannot read /nowhere/at/all"),
    ("connection-id-lifetime = \"17m\"", "expected a time from 2m to 16m; units are s, m"),
    ("http-proxy-header = \"Via\"", "allowed are X-Forwarded-For, X-Real-IP, CF-Connecting-IP, Forwarded"),
    ("http-proxy = \"example.org\"", "expected a network or address, such as 192.0.2.0/24 or ::1"),
    ("jitter = 101", "expected a number from 0 to 100"),
    ("workers = 0", "expected a number from 1 to 256"),
    ("repository = \"redis\"", "the repository redis needs --redis-url"),
    ("redis-url = \"redis://192.0.2.1\"", "redis-url is given, and the repository is packed"),
    (
        "repository = \"redis\"\nredis-url = [\"redis://192.0.2.1\", \"me:secret@192.0.2.2\"]",
        "redis-url: ***@192.0.2.2: it begins with neither redis:// nor rediss://",
    ),
    (
        "repository = \"redis\"\nredis-url = \"redis://192.0.2.1\"\nstate = \"/nowhere/at/all\"",
        "state is of no use with the repository redis",
    ),
    (
        "repository = \"redis\"\nredis-url = \"redis://192.0.2.1\"\nredis-password-file = \"/nowhere/at/all\"",
        "redis-password-file: cannot read /nowhere/at/all",
    ),
    ("repository = \"redis\"\nredis-url = \"redis://192.0.2.1\"\nmax-swarms = 9", "swarms"),
    ("redis-patience = \"5s\"", "expected a time from 10ms to 4s; units are ms, s"),
    ("when-unavailable = \"maybe\"", "`maybe` is not a value for it; allowed are error, empty"),
    ("intervall = 5", "there is no setting `intervall`; `interval` is meant, perhaps"),
];

#[test]
fn config_the_start_and_a_reload_refuse_the_same_files_in_the_same_words() {
    let folder = Folder::empty();
    let (_, defaults, _) = config(&["--default"], &[]);
    let named = defaults.lines().filter_map(|line| line.strip_prefix('#')?.split_once(" = "));
    let named: Vec<_> = named.filter(|(name, _)| !name.contains(' ')).collect();
    let empty = named.iter().map(|(name, _)| (format!("{name} = \"\""), "it is empty: unset it"));
    let wrong: Vec<_> =
        WRONG.map(|(text, words)| (text.to_owned(), words)).into_iter().chain(empty).collect();
    assert!(wrong.len() >= 100, "{}", wrong.len());

    let write = |text: &str| {
        let others = [("udp", "127.0.0.1:0"), ("http", "off"), ("admin", "off")];
        let others = others.into_iter().filter(|(name, _)| !text.contains(&format!("{name} =")));
        let others = others.map(|(name, value)| format!("\n{name} = \"{value}\""));
        folder.write_secret("a.toml", &(text.to_owned() + &others.collect::<String>()))
    };
    let arguments = ["--config", &*write("")];
    let at_file = || {
        let mut command = swarmkeep(&arguments);
        ["UDP", "HTTP", "ADMIN"].iter().for_each(|name| _ = command.env_remove(format!("SWARMKEEP_{name}")));
        command
    };
    let mut serve = Serve::start(at_file());
    for (text, words) in wrong {
        write(&text);
        let (code, _, said) = config(&arguments, &[]);
        let said = said.strip_prefix("swarmkeep: ").expect("an error").trim_end();
        println!("{text:?}: {said}");
        assert!(code == Some(2) && said.contains(words) && !said.contains("me:secret"), "{text}: {said}");
        let (code, refused) = Serve::refused(at_file());
        assert!(code == Some(2) && refused.contains(said), "{text}: {refused}");
        serve.signal("HUP");
        let printed = serve.printed_until("the settings stay as they were");
        assert!(printed.contains(said), "{text}: {printed}");
    }
    for (name, _) in named {
        let variable = format!("SWARMKEEP_{}", name.to_ascii_uppercase().replace('-', "_"));
        let (code, _, said) = config(&[], &[(&variable, "")]);
        assert!(code == Some(2) && said.contains("it is empty: unset it"), "{variable}: {said}");
    }
    assert_eq!(serve.stop("TERM").0, Some(0));
}

/// Another tracker may have the port; an address of no interface is certain.
#[test]
fn config_warns_of_addresses_interfaces_and_folders_that_the_start_would_refuse() {
    let taken = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let udp = format!("--udp={}", taken.local_addr().unwrap());
    let all = udp.replace("127.0.0.1", "0.0.0.0");
    let (code, _, said) = config(&[&udp, &all, "--http=192.0.2.1:0", "--admin=off", "--xdp=nic-0"], &[]);
    let said: Vec<_> =
        said.lines().map(|line| line.strip_prefix("swarmkeep: on this machine, now: ")).collect();
    assert!(code == Some(0) && said.len() == 2, "{said:?}");
    assert!(said[0].is_some_and(|line| line.starts_with("cannot listen on http 192.0.2.1:0")), "{said:?}");
    assert!(said[1].is_some_and(|line| line.starts_with("there is no interface `nic-0`")), "{said:?}");
    let folder = Folder::empty();
    let passkeys = folder.write("passkeys", "");
    std::fs::set_permissions(&passkeys, std::os::unix::fs::PermissionsExt::from_mode(0o666)).expect("ours");
    for [report, state] in [["/dev/shm/nowhere/reports", "/nowhere/at/all"], ["/dev/shm", &passkeys]] {
        let mut command = Command::new("swarmkeep");
        command.args(["config", "--report-to", report, "--state", state, "--passkeys", &passkeys]);
        let output = not_as_root(&folder, &command).output().expect("it starts");
        let said = String::from_utf8(output.stderr).expect("text");
        for path in [report, state] {
            assert!(said.contains(&format!("cannot write to {path}\n")), "{said}");
        }
    }
    let (address, source) = (([0_u8; 4], 80).into(), std::io::ErrorKind::PermissionDenied.into());
    let said = swarmkeep_tracker::Error::Bind { protocol: "http", address, source }.to_string();
    assert!(said.contains("ports below 1024 are for root: start as root, and let --user"), "{said}");
    let (code, _, said) = config(&["--http-proxy=0.0.0.0/0"], &[]);
    assert!(code == Some(0) && said.contains("WARN") && said.contains("contains all addresses"), "{said}");
}

/// As a user other than root.
#[test]
fn config_judges_all_but_the_files_that_cannot_be_read() {
    let folder = Folder::empty();
    let tokens = folder.write("tokens", "");
    std::fs::set_permissions(&tokens, std::os::unix::fs::PermissionsExt::from_mode(0o0)).expect("ours");
    let mut config =
        not_as_root(&folder, Command::new("swarmkeep").args(["config", "--admin-tokens", &tokens]));
    for (variable, value, code, words) in [
        ("SWARMKEEP_JITTER", "0", 0, "tokens: only the start judges it"),
        ("SWARMKEEP_HTTP", "192.0.2.1:0", 0, "cannot listen on http 192.0.2.1:0"),
        ("SWARMKEEP_USER", "daemon", 0, "cannot become the user: only root can"),
        ("SWARMKEEP_LIFETIME", "29m", 2, "would be forgotten after 1740"),
        ("SWARMKEEP_UDP", "off,127.0.0.1:7", 2, "udp is off and has an address"),
        ("SWARMKEEP_HTTPS", "127.0.0.1:0", 2, "HTTPS needs both"),
        ("SWARMKEEP_MAX_BYTES", "1", 2, "bytes"),
        ("SWARMKEEP_REPOSITORY", "redis", 2, "the repository redis needs --redis-url"),
        ("SWARMKEEP_REPORT_TO", "reports", 2, "there are no passkeys"),
    ] {
        let output = config.env(variable, value).output().expect("it starts");
        config.env_remove(variable);
        let said = String::from_utf8(output.stderr).expect("text");
        assert!(output.status.code() == Some(code) && said.contains(words), "{variable}: {said}");
    }
}

#[test]
fn an_empty_value_on_the_command_line_is_an_error() {
    for option in ["--redis-prefix=", "--admin-host=", "--state= "] {
        let (code, _, said) = config(&[option], &[]);
        assert!(code == Some(2) && said.contains("it is empty: unset it"), "{option}: {said}");
    }
}

#[test]
fn sighup_changes_live_settings_and_names_others_that_need_a_restart() {
    let folder = Folder::empty();
    let first = "interval = 600\njitter = 0\nudp = [\"127.0.0.1:0\"]\n";
    let file = folder.write("a.toml", first);
    let mut serve = start_at_file(&["--config", &file]);
    let [udp, _] = serve.addresses();
    assert_eq!(interval(udp[0]), 600);

    folder.write("a.toml", "interval = 700\njitter = 0\nudp = [\"127.0.0.1:0\"]\nlifetime = \"2h\"\n");
    serve.signal("HUP");
    let printed = serve.printed_until("settings read again");
    assert!(printed.contains(r#"changed setting="interval" from="600" to="700""#), "{printed}");
    let unchanged = r#"not changed: this needs a restart setting="lifetime" from="45m" to="2h""#;
    assert!(printed.contains(unchanged), "{printed}");
    assert_eq!(interval(udp[0]), 700);

    folder.write("a.toml", "udp = [\"127.0.0.1:0\"]\ninterval = 3000\njitter = 0\nlifetime = \"2h\"");
    serve.signal("HUP");
    let printed = serve.printed_until("the settings stay as they were");
    assert!(!printed.contains("changed") && printed.contains("lifetime needs a restart"), "{printed}");
    assert_eq!(interval(udp[0]), 700, "the lifetime is still 45 minutes");

    folder.write("a.toml", first);
    serve.signal("HUP");
    let printed = serve.printed_until("settings read again");
    assert!(printed.contains("changed=1 need_restart=0"), "{printed}");
    assert_eq!(interval(udp[0]), 600);
    assert_eq!(serve.stop("TERM").0, Some(0));
}

#[test]
fn logs_can_be_json_objects() {
    let folder = Folder::empty();
    let file = folder.write("a.toml", "log-format = \"json\"\n");
    let mut serve = start(&["--udp", "127.0.0.1:0", "--config", &file]);
    serve.signal("HUP");
    let printed = serve.printed_until("settings read again");
    let line: serde_json::Value =
        serde_json::from_str(printed.lines().last().expect("a line")).expect("JSON");
    assert_eq!((&line["level"], &line["changed"]), (&"INFO".into(), &0.into()), "{line}");
}

#[test]
fn the_store_may_take_half_of_the_memory_unless_the_operator_says_otherwise() {
    let says = |arguments: &[&str]| {
        let serve = start(&[&["--udp=127.0.0.1:0"], arguments].concat());
        let [listening, _] = serve.listening();
        let (code, printed) = serve.stop("TERM");
        assert_eq!(code, Some(0));
        listening + "\n" + &printed
    };
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let machine: u64 = meminfo.split_whitespace().nth(1).and_then(|kib| kib.parse().ok()).expect("MemTotal");
    let limit = |printed: &str| {
        let (_, most) = printed.split_once("; repository packed, at most ")?;
        most.split_once(" MiB\n")?.0.parse::<u64>().ok()
    };
    let half = limit(&says(&[])).expect("a limit");
    assert!((1..=machine >> 11).contains(&half), "{half} MiB of {machine} KiB");
    assert_eq!(limit(&says(&["--max-bytes=64MiB"])), Some(64));
    let unlimited = says(&["--max-bytes=0"]);
    assert!(unlimited.contains("; repository packed\n"), "{unlimited}");
    let warning = "this store cannot limit its memory";
    assert!(!unlimited.contains(warning), "as the operator wants it: {unlimited}");
    let map = says(&["--repository=btreemap"]);
    assert!(map.contains(warning), "{map}");
    let map = says(&["--repository=btreemap", "--max-bytes=0"]);
    assert!(!map.contains(warning), "{map}");
}
