//! `swarmkeep serve` as a program: what it prints, how it ends, what it refuses.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream, UdpSocket},
    process::{Child, ChildStderr, Command, Output, Stdio},
    time::{Duration, Instant},
};

use swarmkeep_tracker_protocol::{
    bittorrent::Family,
    udp::{ConnectRequest, Response, TransactionId},
};

/// A running tracker; killed if a test fails before it has ended.
struct Serve {
    child: Child,
    stderr: BufReader<ChildStderr>,
    first_line: String,
}

impl Serve {
    fn start(arguments: &[&str]) -> Self {
        let mut child = swarmkeep(arguments).stderr(Stdio::piped()).spawn().expect("the program starts");
        let mut stderr = BufReader::new(child.stderr.take().expect("piped"));
        let mut first_line = String::new();
        stderr.read_line(&mut first_line).expect("a line of text");
        Self { child, stderr, first_line }
    }

    /// The addresses that it says it listens on over UDP, and over HTTP.
    fn addresses(&self) -> [Vec<SocketAddr>; 2] {
        let (listening, _) = self.first_line.split_once(';').expect("addresses; repository");
        let listening = listening.strip_prefix("listening on ").expect("it listens");
        let (udp, http) = listening.split_once("http ").unwrap_or((listening, ""));
        [udp.trim_start_matches("udp "), http].map(|addresses| {
            let addresses = addresses.split(", ").filter(|address| !address.is_empty());
            addresses.map(|address| address.parse().expect("an address")).collect()
        })
    }

    /// Sends a signal by its name and waits for the end; answers the exit code, how long it took and what was printed.
    fn stop(mut self, signal: &str) -> (Option<i32>, Duration, String) {
        let asked = Instant::now();
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", signal, &pid]).status().expect("`kill` is there").success());
        let status = self.child.wait().expect("it ends");
        let took = asked.elapsed();
        let mut printed = String::new();
        self.stderr.read_to_string(&mut printed).expect("text");
        (status.code(), took, printed)
    }
}

impl Drop for Serve {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn swarmkeep(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_swarmkeep"));
    command.arg("serve").args(arguments);
    command
}

fn refused(arguments: &[&str]) -> String {
    let Output { status, stderr, .. } = swarmkeep(arguments).output().expect("the program starts");
    assert_eq!(status.code(), Some(2), "{arguments:?}");
    String::from_utf8(stderr).expect("text")
}

fn connect(to: SocketAddr) {
    let socket = UdpSocket::bind((to.ip(), 0)).expect("loopback");
    socket.set_read_timeout(Some(Duration::from_secs(5))).expect("above zero");
    let mut packet = [0; ConnectRequest::LEN];
    ConnectRequest { transaction_id: TransactionId(5) }.write(&mut packet);
    socket.send_to(&packet, to).expect("sent");
    let len = socket.recv(&mut packet).expect("an answer within 5 seconds");
    let answer = Response::parse(&packet[..len], Family::V4).expect("a response");
    assert!(matches!(answer, Response::Connect(response) if response.transaction_id == TransactionId(5)));
}

fn scrape(at: SocketAddr) {
    let mut connection = TcpStream::connect(at).expect("loopback");
    connection.set_read_timeout(Some(Duration::from_secs(5))).expect("above zero");
    let request = format!(
        "GET /scrape?info_hash={} HTTP/1.1\r\nHost: {at}\r\nConnection: close\r\n\r\n",
        "a".repeat(20)
    );
    connection.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    connection.read_to_string(&mut answer).expect("an answer within 5 seconds");
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("d5:filesd20:aaaa"), "{answer}");
}

#[test]
fn one_protocol_alone_is_served_where_only_it_is_asked_for() {
    for (arguments, counts) in [(["--udp", "127.0.0.1:0"], (1, 0)), (["--http", "127.0.0.1:0"], (0, 1))] {
        let serve = Serve::start(&arguments);
        let [udp, http] = serve.addresses();
        assert_eq!((udp.len(), http.len()), counts, "{}", serve.first_line);
        assert_eq!(serve.stop("TERM").0, Some(0));
    }
}

#[test]
fn serves_until_sigterm_or_sigint_and_then_ends_within_a_second() {
    for signal in ["TERM", "INT"] {
        let http = ["--http", "127.0.0.1:0", "--http", "[::1]:0"];
        let serve = Serve::start(&[&["--udp", "127.0.0.1:0", "--udp", "[::1]:0"], &http[..]].concat());
        assert!(serve.first_line.ends_with("; repository packed\n"), "{}", serve.first_line);
        let [udp, http] = serve.addresses();
        assert_eq!((udp.len(), http.len()), (2, 2));
        udp.into_iter().for_each(connect);
        http.into_iter().for_each(scrape);
        let (code, took, printed) = serve.stop(signal);
        assert_eq!(code, Some(0), "{printed}");
        assert!(took < Duration::from_secs(1), "SIG{signal} took {took:?}");
        assert_eq!(printed, "", "nothing to say about a normal end");
    }
}

#[test]
fn serves_every_repository_of_the_catalog() {
    for row in swarmkeep::catalog::ALL {
        let serve = Serve::start(&["--udp", "127.0.0.1:0", "--repository", row.name]);
        assert!(serve.first_line.ends_with(&format!("; repository {}\n", row.name)), "{}", serve.first_line);
        connect(serve.addresses()[0][0]);
        assert_eq!(serve.stop("TERM").0, Some(0), "{}", row.name);
    }
}

#[test]
fn a_wrong_repository_is_refused_with_the_names_there_are() {
    let message = refused(&["--repository", "pakced"]);
    for row in swarmkeep::catalog::ALL {
        assert!(message.contains(row.name), "{message}");
    }
}

#[test]
fn wrong_options_are_refused_with_what_is_allowed() {
    let says = |arguments: &[&str], what: &str| {
        let message = refused(arguments);
        assert!(message.contains(what), "{message}");
    };
    says(&["--udp", "localhost"], "invalid socket address");
    says(&["--http-proxy", "192.0.2.0/33"], "expected a network or address, such as 192.0.2.0/24 or ::1");
    says(&["--lifetime", "45d"], "such as 2700, 2700s, 45m or 1h");
    says(&["--interval", "0"], "a time above 0");
    says(&["--interval", "30m", "--lifetime", "30m"], "give a --lifetime longer than the --interval");
    says(&["--lifetime", "4294967295"], "give whole seconds, from 1 to");
    says(&["--log", "loud"], "[possible values: off, error, warn, info, debug, trace]");
}

#[test]
fn an_address_in_use_is_an_error_that_says_which() {
    let taken = UdpSocket::bind("127.0.0.1:0").expect("loopback");
    let address = taken.local_addr().expect("bound").to_string();
    let Output { status, stderr, .. } = swarmkeep(&["--udp", &address]).output().expect("the program starts");
    let message = String::from_utf8(stderr).expect("text");
    assert_eq!(status.code(), Some(1), "{message}");
    assert!(message.contains(&format!("cannot listen on udp {address}")), "{message}");
}
