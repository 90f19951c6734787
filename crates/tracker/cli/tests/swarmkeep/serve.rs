//! `swarmkeep serve` as a program: its output, its exit codes, its errors.

use swarmkeep_tests::udp::Client;

use crate::common::{https::scrape, refused, start};

#[test]
fn serves_until_sigterm_or_sigint_and_then_ends() {
    for signal in ["TERM", "INT"] {
        let http = ["--http", "127.0.0.1:0", "--http", "[::1]:0"];
        let udp = ["--udp", "127.0.0.1:0", "--udp", "[::1]:0"];
        // Without the warning of running as root.
        let serve = start(&[&["--log", "error"][..], &udp, &http].concat());
        let [listening, before] = serve.listening();
        assert!(before.is_empty() && listening.contains("; repository packed, at most "), "{listening}");
        let [udp, http] = serve.addresses();
        assert_eq!((udp.len(), http.len()), (2, 2));
        udp.into_iter().for_each(|address| _ = Client::of(address).connect());
        http.into_iter().for_each(scrape);
        let (code, printed) = serve.stop(signal);
        assert_eq!(code, Some(0), "{printed}");
        assert_eq!(printed, "", "nothing to say about a normal end");
    }
}

#[test]
fn serves_every_repository_of_the_catalog() {
    for row in swarmkeep::catalog::ALL {
        let serve = start(&["--udp", "127.0.0.1:0", "--repository", row.name]);
        let [listening, _] = serve.listening();
        let named = listening.split_once("; repository ").and_then(|(_, named)| named.split(',').next());
        assert_eq!(named, Some(row.name), "{listening}");
        Client::of(serve.address("udp")).connect();
        assert_eq!(serve.stop("TERM").0, Some(0), "{}", row.name);
    }
}

#[test]
fn wrong_options_are_refused_with_the_allowed_values() {
    let says = |arguments: &[&str], reason: &str| {
        let message = refused(&[arguments, &["--http=127.0.0.1:0"]].concat());
        assert!(message.contains(reason), "{message}");
    };
    says(&["--udp", "localhost"], "expected an address and port, as 127.0.0.1:6970 or [::]:6970, or off");
    says(&["--http-proxy", "192.0.2.0/33"], "expected a network or address, such as 192.0.2.0/24 or ::1");
    says(&["--lifetime", "45x"], "such as 2700, 45m or 1h30m; units are s, m, h, d");
    says(&["--interval", "0"], "a time above 0");
    says(&["--interval", "30m", "--lifetime", "30m"], "give a longer lifetime, or a shorter interval");
    says(&["--lifetime", "4294967295"], "give whole seconds, from 1 to");
    says(&["--log", "loud"], "[possible values: off, error, warn, info, debug, trace]");
    let message = refused(&["--repository", "pakced"]);
    let mut names = swarmkeep::catalog::ALL.iter().map(|row| row.name).chain(["redis"]);
    assert!(names.all(|name| message.contains(name)), "{message}");
}
