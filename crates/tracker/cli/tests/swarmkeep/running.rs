//! `swarmkeep serve` in operation: certificates that are renewed, a user other than root, a service manager.

use std::{
    env, fs,
    io::{self, Read as _, Write as _},
    net::{SocketAddr, TcpListener, UdpSocket},
    os::{fd::OwnedFd, unix::net::UnixDatagram},
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use crate::common::{
    Folder, Serve,
    https::{ask, scrape, scrape_over_https},
    manager::Manager,
    not_as_root, refused, start, swarmkeep, until,
};
use socket2::{Domain, Socket, Type};
use swarmkeep_tests::{
    admin::client::get_with,
    http,
    https::{self, CertificateAuthority},
    udp::{Client, announce},
};

#[test]
fn https_is_served_and_sighup_shows_a_renewed_certificate() {
    let old = CertificateAuthority::new();
    let [certificate, key] = old.options();
    let mut serve = start(&["--https=127.0.0.1:0", &certificate, &key]);
    let address = serve.addresses_of("https")[0];
    let shown = r#"localhost" expires="2100-02-28T00:00:00Z""#;
    serve.printed_until(shown);
    let mut open = scrape_over_https(address, &old);

    let new = old.renewed();
    serve.signal("HUP");
    serve.printed_until(shown);
    serve.printed_until("settings read again");
    scrape_over_https(address, &new);
    ask(&mut open);
    let (code, printed) = serve.stop("TERM");
    assert_eq!(code, Some(0), "{printed}");
}

#[test]
fn a_user_that_is_unknown_is_refused_and_so_is_any_user_without_root() {
    let message = refused(&["--user=no-such-user"]);
    assert!(message.contains("no such user on this machine") && message.contains("--user"), "{message}");
    let command = swarmkeep(&["--udp=127.0.0.1:0", "--user=nobody"]);
    let folder = Folder::empty();
    let command = not_as_root(&folder, &command);
    let (code, message) = Serve::refused(command);
    assert_eq!(code, Some(1), "{message}");
    assert!(message.contains("only root can; start as root, or leave --user out"), "{message}");
}

#[test]
fn sockets_that_are_handed_over_stand_in_for_the_addresses_of_their_protocol() {
    // One socket for both families and all threads.
    let udp = Socket::new(Domain::IPV6, Type::DGRAM, None).expect("a socket");
    udp.set_only_v6(false).expect("not bound yet");
    udp.bind(&SocketAddr::from(([0_u16; 8], 0)).into()).expect("a free port");
    let udp = UdpSocket::from(udp);
    let http = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let (udp_port, http_at) = (udp.local_addr().expect("bound").port(), http.local_addr().expect("bound"));
    let authority = CertificateAuthority::new();
    let [certificate, key] = authority.options();
    let replaced = ["--udp=192.0.2.1:1", "--http=192.0.2.1:1"];
    let arguments = [&replaced[..], &["--https=127.0.0.1:0", "--workers=3", &certificate, &key]].concat();
    let serve = Serve::start(handed([udp.into(), http.into()], "swarmkeep.socket:tracker", &arguments));
    let [listening, _] = serve.listening();
    assert_eq!(serve.addresses_of("udp"), [SocketAddr::from(([0_u16; 8], udp_port))], "{listening}");
    assert!(listening.contains("(both families)"), "{listening}");
    assert_eq!(serve.addresses_of("http"), [http_at]);
    assert_eq!(serve.addresses_of("https").len(), 1, "as configured");
    for _ in 0..50 {
        Client::of(SocketAddr::from(([127, 0, 0, 1], udp_port))).connect();
        Client::of(SocketAddr::from(([0, 0, 0, 0, 0, 0, 0, 1], udp_port))).connect();
    }
    scrape(http_at);
    assert_eq!(serve.stop("TERM").0, Some(0));
}

#[test]
fn a_stream_named_https_is_for_https() {
    let authority = CertificateAuthority::new();
    let [certificate, key] = authority.options();
    let [one, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").expect("loopback"));
    let (https_at, http_at) = (one.local_addr().expect("bound"), other.local_addr().expect("bound"));
    let serve = Serve::start(handed([one.into(), other.into()], "https:http", &[&certificate, &key]));
    assert_eq!(serve.addresses_of("udp"), [], "not configured");
    assert_eq!((serve.addresses_of("http"), serve.addresses_of("https")), (vec![http_at], vec![https_at]));
    scrape(http_at);
    scrape_over_https(https_at, &authority);
}

#[test]
fn completions_and_manual_pages_have_every_command_and_setting() {
    let run = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_swarmkeep")).args(arguments).output().expect("the program starts")
    };
    for shell in ["bash", "zsh", "fish"] {
        let printed = String::from_utf8(run(&["completions", shell]).stdout).expect("text");
        assert!(printed.contains("http-connections") && printed.contains("import"), "{shell}: {printed}");
    }
    let folder = Folder::empty();
    let path = folder.path().to_str().expect("text");
    assert!(run(&["man", path]).status.success());
    let page = std::fs::read_to_string(folder.join("swarmkeep-serve.1")).expect("a page");
    assert!(page.starts_with(".ie") && page.contains("http\\-connections"), "{page}");
    let synopsis = page.split_once(".SH SYNOPSIS\n").and_then(|(_, page)| page.lines().next());
    assert_eq!(synopsis, Some(r"\fBswarmkeep serve\fR [OPTIONS]"));
    assert!(folder.join("swarmkeep-state.1").exists());
    assert_eq!(run(&["man", "/nowhere"]).status.code(), Some(1));
}

#[test]
fn a_printed_token_opens_the_api_and_a_stop_is_logged_with_the_totals() {
    let token = |rights: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_swarmkeep"));
        command.arg("token").args(rights).output().expect("the program starts")
    };
    let printed = String::from_utf8(token(&[]).stdout).expect("text");
    let (secret, rights) = printed.split_once(' ').expect("a secret and rights");
    assert_eq!((secret.len(), rights), (32, "read,write\n"));
    assert_eq!(token(&["all"]).status.code(), Some(2));
    let folder = Folder::empty();
    let tokens = folder.write_secret("tokens", &printed);
    let serve = start(&["--udp=127.0.0.1:0", "--admin=127.0.0.1:0", "--admin-tokens", &tokens]);
    Client::of(serve.address("udp")).connect();
    let admin = serve.address("dashboard");
    assert_eq!(get_with(admin, "/api/v1/stats", secret).status, 200);
    assert_eq!(get_with(admin, "/api/v1/stats", &secret[1..]).status, 401);
    let (code, printed) = serve.stop("TERM");
    assert_eq!(code, Some(0), "{printed}");
    assert!(printed.contains(r#"stopped reason="SIGTERM" requests=1 torrents=0 peers=0"#), "{printed}");
}

#[test]
fn the_admin_server_is_reached_over_https_if_it_should_and_through_a_socket_that_is_handed_over() {
    let authority = CertificateAuthority::new();
    let [certificate, key] = authority.options();
    let arguments = [&*certificate, &key, "--admin-tls", "--admin=127.0.0.1:0"];
    let is_live = |serve: &mut Serve| {
        let printed = serve.printed_until("dashboard at ");
        let (_, address) = printed.split_once("dashboard at https://").expect("an address");
        let (address, token) = address.split_once("/").expect("a path");
        let address: SocketAddr = address.parse().expect("an address");
        let live = https::Client::over_tls(address, &authority.client()).get("/health/live");
        assert_eq!((live.status, live.text()), (200, r#"{"status":"live"}"#));
        let how = " (`swarmkeep token >> FILE` and --admin-tokens FILE let you in)\n";
        assert_eq!(token, how, "no token in a log");
        let mut plain = http::Client::of(address);
        plain.send(&http::request("/health/live"));
        assert!(!plain.rest().starts_with(b"HTTP"));
        address
    };
    is_live(&mut start(&[&arguments[..], &["--udp=127.0.0.1:0"]].concat()));

    let udp = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    let admin = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let address = admin.local_addr().expect("bound");
    let mut serve = Serve::start(handed([udp.into(), admin.into()], "udp:admin", &arguments));
    assert_eq!(is_live(&mut serve), address);
    assert_eq!(serve.stop("TERM").0, Some(0));
}

#[test]
fn unusable_sockets_of_the_manager_are_refused() {
    let tcp = || TcpListener::bind("127.0.0.1:0").expect("loopback").into();
    let unix: OwnedFd = UnixDatagram::unbound().expect("a socket").into();
    let not_listening = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    not_listening.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("loopback");
    for (sockets, names, message) in [
        (
            [tcp(), unix],
            "http:strange",
            "the 2. socket that was handed over, `strange`, is neither of UDP nor of TCP",
        ),
        (
            [tcp(), not_listening.into()],
            "http:http",
            "cannot use a socket that was handed over for http: it does not",
        ),
        ([tcp(), tcp()], "admin:admin", "several sockets that were handed over are named `admin`"),
        ([tcp(), tcp()], "http:https", "there is no certificate for HTTPS"),
    ] {
        let (code, printed) = Serve::refused(handed(sockets, names, &[]));
        assert!(code == Some(1) && printed.contains(message), "{printed}");
    }
}

#[test]
fn sockets_for_another_process_are_not_taken() {
    let mut command = swarmkeep(&["--udp=127.0.0.1:0"]);
    command.env("LISTEN_FDS", "2").env("LISTEN_PID", "1");
    let serve = Serve::start(command);
    Client::of(serve.address("udp")).connect();
}

#[test]
fn the_service_manager_is_notified_of_readiness_reloading_health_and_stopping_in_their_order() {
    let (manager, began) = (Manager::new(), Instant::now());
    let mut serve = manager.run(&["--udp=127.0.0.1:0", "--http=127.0.0.1:0"], Duration::from_secs(1));
    assert_eq!(manager.next(), "READY=1\n", "first of all");
    Client::of(serve.address("udp")).connect();
    scrape(serve.addresses()[1][0]);
    let mut pings = 0;
    while pings < 5 {
        let told = manager.next();
        if told == "WATCHDOG=1\n" {
            pings += 1;
        } else {
            let numbers = told.strip_prefix("STATUS=").and_then(|told| told.strip_suffix(" torrents\n"));
            assert!(numbers.is_some_and(|numbers| numbers.contains(" requests per second; ")), "{told}");
        }
    }
    assert!(began.elapsed() > Duration::from_secs(2), "5 in {:?}", began.elapsed());

    serve.signal("HUP");
    let reloading = manager.next_but_health();
    let at = reloading.strip_prefix("RELOADING=1\nMONOTONIC_USEC=").expect(&reloading);
    let at: u64 = at.trim_end().parse().expect("a number");
    let uptime = fs::read_to_string("/proc/uptime").expect("Linux");
    let uptime: f64 = uptime.split(' ').next().expect("two numbers").parse().expect("a number");
    let apart = (uptime - at as f64 / 1e6).abs();
    assert!(apart < 60.0, "{at} µs after the start of a machine that is up {uptime} s");
    assert_eq!(manager.next_but_health(), "READY=1\n");
    serve.printed_until("settings read again");

    serve.signal("TERM");
    assert_eq!(manager.next_but_health(), "STOPPING=1\n");
    assert_eq!(serve.stop("TERM").0, Some(0));
    assert_eq!(manager.try_next(Duration::from_millis(100)), None, "the last word");
}

/// The exit code and the output of a check.
fn check(arguments: &[&str]) -> (Option<i32>, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_swarmkeep")).arg("check").args(arguments).output();
    let output = output.expect("the program starts");
    (output.status.code(), String::from_utf8(output.stderr).expect("text"))
}

#[test]
fn a_check_over_https_accepts_the_given_certificate() {
    let other = CertificateAuthority::new();
    for authority in [CertificateAuthority::new(), CertificateAuthority::self_signed()] {
        let [certificate, key] = authority.options();
        let serve = start(&["--https=127.0.0.1:0", &certificate, &key]);
        let [ca, another] =
            [&authority, &other].map(|authority| format!("--ca={}", authority.root().display()));
        let target = format!("https://{}/announce", serve.addresses_of("https")[0]);
        assert_eq!(check(&[&ca, &target]), (Some(0), String::new()));
        assert_eq!(check(&["--insecure", &target]), (Some(0), String::new()));
        for arguments in [&[&*target][..], &[&another, &target]] {
            let (code, message) = check(arguments);
            let is_named = message.contains(&format!("{target}: the authority of its certificate is"));
            assert!(code == Some(1) && is_named, "{message}");
        }
        assert_eq!(serve.stop("TERM").0, Some(0));
        assert_eq!(check(&["--insecure", &target]).0, Some(1));
    }
}

#[test]
fn a_check_ends_with_0_if_the_tracker_answers_and_otherwise_with_1_and_the_reason() {
    let check = |target: &str| check(&[target]);
    let serve = start(&["--udp=127.0.0.1:0", "--udp=[::1]:0", "--http=127.0.0.1:0", "--admin=127.0.0.1:0"]);
    let [udp, http] = serve.addresses();
    let admin = serve.address("dashboard");
    let ready = format!("http://{admin}/health/ready");
    // It is ready after its first sample.
    until("it is ready", || check(&ready).0 == Some(0));
    for target in [
        udp[0].to_string(),
        format!("udp://{}", udp[1]),
        format!("http://{}/announce", http[0]),
        ready.clone(),
    ] {
        assert_eq!(check(&target), (Some(0), String::new()), "{target}");
    }
    let (code, message) = check(&format!("http://{admin}/nowhere"));
    assert!(code == Some(1) && message.contains(" 404 Not Found: "), "{message}");
    assert_eq!(serve.stop("TERM").0, Some(0));
    for target in [udp[0].to_string(), ready] {
        let (code, message) = check(&target);
        assert_eq!(code, Some(1));
        assert!(message.contains(&format!("{target}: Connection refused")), "{message}");
    }
    let silent = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    let without_answers = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let http = format!("http://{}", without_answers.local_addr().expect("bound"));
    for target in [silent.local_addr().expect("bound").to_string(), http] {
        let (code, message) = check(&target);
        assert!(code == Some(1) && message.ends_with(": no answer in 2 s\n"), "{message}");
    }
    let refusing = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    let target = refusing.local_addr().expect("bound").to_string();
    let answered = thread::spawn(move || {
        let mut packet = [0; 16];
        let (_, from) = refusing.recv_from(&mut packet).expect("a request");
        let refusal = [&[0, 0, 0, 3][..], &packet[12..], b"not today"].concat();
        refusing.send_to(&refusal, from).expect("loopback")
    });
    let (code, message) = check(&target);
    assert!(code == Some(1) && message.ends_with(": not today\n"), "{message}");
    answered.join().expect("it does not panic");
}

#[test]
fn the_first_refused_peer_of_a_local_network_is_a_warning_for_the_operator() {
    let serve = start(&["--udp=[::]:0"]);
    assert!(serve.listening()[0].contains("(both families)"));
    let port = serve.addresses()[0][0].port();
    let mut client = Client::of(([127, 0, 0, 1], port).into());
    for _ in 0..3 {
        let id = client.connect();
        client.refusal(announce(id));
    }
    let (code, log) = serve.stop("TERM");
    let warnings = log.lines().filter(|line| line.contains("WARN") && line.contains("private or loopback"));
    assert_eq!(warnings.count(), 1, "{log}");
    assert_eq!(code, Some(0));
}

/// A server that gives every request this answer, or its bytes one by one for ever.
fn answering(answer: &'static [u8], is_slow: bool) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback");
    let url = format!("http://{}/announce?info_hash=1", listener.local_addr().expect("bound"));
    thread::spawn(move || -> io::Result<()> {
        let (mut client, _) = listener.accept()?;
        _ = client.read(&mut [0; 1000])?;
        client.write_all(answer)?;
        if !is_slow {
            return Ok(());
        }
        loop {
            thread::sleep(Duration::from_millis(50));
            client.write_all(b"x")?;
        }
    });
    url
}

#[test]
fn a_check_waits_no_longer_obeys_no_answer_and_notices_a_failed_announce() {
    for (answer, is_slow, said) in [
        (&b"HTTP/1.1 200 OK\r\n\r\n"[..], true, "no answer in 2 s"),
        (
            b"HTTP/1.1 503 \x1b[2J\r\n\r\n\x1b]0;x\x07\xe2\x80\xae",
            false,
            r"HTTP/1.1 503 \u{1b}[2J: \u{1b}]0;x\u{7}\u{202e}",
        ),
        (b"HTTP/1.1 200 OK\r\n\r\n<html>", false, "its answer to this announce is none"),
    ] {
        let (code, message) = check(&[&answering(answer, is_slow)]);
        assert!(code == Some(1) && message.trim_end().ends_with(said), "{message}");
    }
    let failed = b"HTTP/1.1 200 OK\r\n\r\nd14:failure reason9:not todaye";
    for page in ["announce", "announce.php", "scrape", "scrape.php", "announce/KEY12345"] {
        let (code, message) = check(&[&answering(failed, false).replace("announce", page)]);
        assert!(code == Some(1) && message.trim_end().ends_with("not today"), "{page}: {message}");
    }
    let (_, message) = check(&[&answering(&[b'x'; 9000], false)]);
    assert!(message.len() < 1000, "{message}");
    let (code, message) = check(&[&answering(b"HTTP/1.1 200 OK\r\n\r\nd8:intervali60ee", false)]);
    assert_eq!((code, &*message), (Some(0), ""));
}

#[test]
fn the_packaged_settings_are_the_printed_ones() {
    let packaged = Path::new(env!("CARGO_MANIFEST_DIR")).join("../server/packaging/swarmkeep.toml");
    let mut config = Command::new(env!("CARGO_BIN_EXE_swarmkeep"));
    // Defaults, in any environment.
    let output = config.args(["config", "--default"]).env("SWARMKEEP_JITTER", "5").output();
    let printed = String::from_utf8(output.expect("the program starts").stdout).expect("text");
    let same = fs::read_to_string(&packaged).is_ok_and(|text| text == printed);
    let anew = "swarmkeep config --default > crates/tracker/server/packaging/swarmkeep.toml";
    assert!(same, "write it anew: {anew}");
}

/// The program with two sockets from a service manager: its third and fourth file.
fn handed(sockets: [OwnedFd; 2], names: &str, arguments: &[&str]) -> Command {
    let [third, fourth] = sockets;
    let mut command = Command::new("sh");
    command
        .args(["-c", "exec 3<&0 4<&1 </dev/null >/dev/null; LISTEN_PID=$$ exec \"$0\" serve \"$@\""])
        .arg(env!("CARGO_BIN_EXE_swarmkeep"))
        .args(arguments)
        .envs([("LISTEN_FDS", "2"), ("LISTEN_FDNAMES", names), ("SWARMKEEP_ADMIN", "off")])
        .stdin(Stdio::from(third))
        .stdout(Stdio::from(fourth));
    command
}
