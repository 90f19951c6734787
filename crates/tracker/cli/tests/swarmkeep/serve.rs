//! `swarmkeep serve` as a program: its output, its exit codes, its errors.

use swarmkeep_tests::{http, udp::Client};

use crate::common::{https::scrape, start};

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
fn a_proxy_that_names_no_client_is_warned_of_once() {
    let serve = start(&["--http=127.0.0.1:0", "--http-proxy=127.0.0.1", "--http-proxy-header=X-Real-IP"]);
    let mut proxy = http::Client::of(serve.address("http"));
    (0..2).for_each(|_| assert!(proxy.get("/announce").text().contains("does not name the client")));
    let log = serve.log();
    assert_eq!(log.matches("no client was read from its X-Real-IP").count(), 1, "{log}");
}
