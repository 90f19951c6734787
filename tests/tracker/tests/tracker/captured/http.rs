//! Requests and responses of HTTP, over either family.

use std::collections::BTreeMap;

use swarmkeep::{
    Family::{self, V4, V6},
    InfoHash,
};
use swarmkeep_tests::http::{Answer, Client};
use swarmkeep_tracker_protocol::http::{AnnounceRequest, AnnounceResponse, ScrapeRequest, ScrapeResponse};

use crate::captured::{CapturedExchange, FILE_LEN, INFO_HASH, Swarms, captured, tracker};

pub(super) const FOLDERS: [(Family, &str); 2] = [(V4, "http"), (V6, "http-ipv6")];

/// Sends each captured request, headers and all, to a tracker over a real connection.
#[test]
fn every_captured_request_is_answered() {
    for (family, folder) in FOLDERS {
        let tracker = tracker(family);
        let mut swarms = Swarms::default();
        for one in captured(folder) {
            let mut client = Client::of(tracker.http[0]);
            client.send(&one.request);
            let Answer { status, body, .. } = client.answer();
            assert_eq!(status, 200, "{}", one.what());
            if one.kind == "scrape" {
                let scraped = ScrapeResponse::parse(&body).expect("a response").expect("no failure");
                assert_eq!(scraped.swarms().count(), 1, "{}", one.what());
                continue;
            }
            let head = std::str::from_utf8(&one.request).expect("requests are ASCII");
            let sent = parameters(target_of(head).expect("a request").1);
            let text = |name| sent.get(name).and_then(|value| std::str::from_utf8(value).ok());
            let port = text("port").and_then(|port| port.parse().ok()).expect("a port");
            let left = text("left").and_then(|left| left.parse().ok());
            let event = text("event").unwrap_or_default();
            one.check_state(event, left);
            let expected = swarms.after(&sent["info_hash"], port, left, event == "stopped");
            let answered = AnnounceResponse::parse(&body).expect("a response");
            let answered = answered.unwrap_or_else(|failure| panic!("{}: {failure:?}", one.what()));
            assert_eq!((answered.head.complete, answered.head.incomplete), expected, "{}", one.what());
            assert_eq!(answered.head.external_ip, Some(tracker.http[0].ip()), "{}", one.what());
        }
    }
}

/// Each parameter is read with its meaning: that of the writer is tested in its crate.
pub(super) fn check_request(one: &CapturedExchange) {
    let what = one.what();
    let head = std::str::from_utf8(&one.request).expect("requests are ASCII");
    let (path, query) = target_of(head).unwrap_or_else(|| panic!("{what}: {head}"));
    let info_hash: InfoHash = INFO_HASH.parse().expect("a constant");
    if one.kind == "scrape" {
        assert_eq!(path, "/scrape", "{what}");
        let scrape = ScrapeRequest::parse(query.as_bytes()).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(scrape.info_hashes().eq([info_hash]), "{what}");
        return;
    }

    assert_eq!(path, "/announce", "{what}");
    let request = AnnounceRequest::parse(query.as_bytes()).unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!((one.kind.clone(), request.info_hash), (format!("announce-{}", request.event), info_hash));
    assert!(request.left.is_some_and(|left| left <= FILE_LEN), "{what}");
    let mut written = Vec::new();
    request.write(&mut written);
    assert_eq!(AnnounceRequest::parse(&written), Ok(request), "{what}");

    // The order differs, and an address has a port.
    let mut sent = parameters(query);
    for unread in ["corrupt", "redundant", "supportcrypto"] {
        sent.remove(unread);
    }
    if let Some(ip) = sent.get_mut("ipv6") {
        *ip = [&b"["[..], &ip[..], format!("]:{}", request.port).as_bytes()].concat();
    }
    let written = std::str::from_utf8(&written).expect("escaped");
    assert_eq!(parameters(written), sent, "{what} is written as it was read");
}

/// The path and the query of a request without a body.
fn target_of(head: &str) -> Option<(&str, &str)> {
    let line = head.strip_suffix("\r\n\r\n")?.split("\r\n").next()?;
    line.strip_prefix("GET ")?.strip_suffix(" HTTP/1.1")?.split_once('?')
}

/// Names and values, decoded without the tested code.
fn parameters(query: &str) -> BTreeMap<&str, Vec<u8>> {
    let decoded = |value: &str| {
        let mut pieces = value.split('%');
        let mut bytes = pieces.next().unwrap_or_default().as_bytes().to_vec();
        for piece in pieces {
            bytes.push(u8::from_str_radix(&piece[..2], 16).expect("hexadecimal digits"));
            bytes.extend_from_slice(&piece.as_bytes()[2..]);
        }
        bytes
    };
    query
        .split('&')
        .map(|parameter| parameter.split_once('=').expect("a value"))
        .map(|(name, value)| (name, decoded(value)))
        .collect()
}
