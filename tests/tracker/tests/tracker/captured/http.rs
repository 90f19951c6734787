//! Requests and responses of HTTP, over either family.

use std::{collections::BTreeMap, net::SocketAddrV6};

use swarmkeep::{
    AnnounceEvent,
    Family::{self, V4, V6},
    InfoHash,
};
use swarmkeep_tests::http::{Answer, Client};
use swarmkeep_tracker_protocol::http::{AnnounceRequest, AnnounceResponse, ScrapeRequest, ScrapeResponse};

use crate::captured::{
    CapturedExchange, FILE_LEN, INFO_HASH, Swarms, captured,
    habits::{ClientHabits, habits_of},
    tracker,
};

const FOLDERS: [(Family, &str); 2] = [(V4, "http"), (V6, "http-ipv6")];

#[test]
fn every_parameter_of_every_captured_request_is_read() {
    for (family, folder) in FOLDERS {
        for one in captured(folder).iter().filter(|one| !one.answer.is_empty()) {
            check_request(habits_of(&one.client), one, family);
        }
    }
}

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
            let expected = swarms.after(&sent["info_hash"], port, left, text("event") == Some("stopped"));
            let answered = AnnounceResponse::parse(&body).expect("a response");
            let answered = answered.unwrap_or_else(|failure| panic!("{}: {failure:?}", one.what()));
            assert_eq!((answered.head.complete, answered.head.incomplete), expected, "{}", one.what());
            assert_eq!(answered.head.external_ip, Some(tracker.http[0].ip()), "{}", one.what());
        }
    }
}

fn check_request(client: &ClientHabits, one: &CapturedExchange, family: Family) {
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
    let sent = parameters(query);
    let value = |name: &str| sent.get(name).map(|value| std::str::from_utf8(value).expect("text"));
    let number = |name: &str| value(name).and_then(|number| number.parse::<u64>().ok());
    let event = match value("event") {
        None | Some("") => AnnounceEvent::None,
        Some("started") => AnnounceEvent::Started,
        Some("completed") => AnnounceEvent::Completed,
        Some("stopped") => AnnounceEvent::Stopped,
        Some(event) => panic!("{what}: {event}"),
    };
    assert_eq!(one.kind, format!("announce-{event}"));
    let names_v6 = client.names_v6.iter().find(|(over, _)| *over == family).map(|(_, ip)| *ip);
    assert_eq!(value("ipv6"), names_v6, "{what}");
    let last = event == AnnounceEvent::Stopped && client.want.is_some();

    let request = AnnounceRequest::parse(query.as_bytes()).unwrap_or_else(|error| panic!("{what}: {error}"));
    let key = request.key.expect("all of them have one");
    assert_eq!(key.bytes().collect::<Option<Vec<_>>>().as_ref(), sent.get("key"), "{what}");
    let expected = AnnounceRequest {
        uploaded: number("uploaded").expect("it says"),
        downloaded: number("downloaded").expect("it says"),
        left: Some(number("left").expect("it says")),
        event,
        want: if last { Some(0) } else { client.want },
        compact: Some(true),
        no_peer_id: client.no_peer_id,
        ipv6: names_v6.map(|ip| SocketAddrV6::new(ip.parse().expect("an address"), client.port, 0, 0)),
        key: request.key,
        ..AnnounceRequest::new(
            info_hash,
            <[u8; 20]>::try_from(&sent["peer_id"][..]).expect("20 bytes").into(),
            client.port,
        )
    };
    assert_eq!(request, expected, "{what}");
    assert_eq!(number("numwant"), expected.want.map(u64::from), "{what}");
    assert!(request.left.is_some_and(|left| left <= FILE_LEN), "{what}");
    assert!(request.peer_id.as_bytes().starts_with(client.peer_id.as_bytes()), "{what}");
    let known = "info_hash peer_id port uploaded downloaded left event numwant compact no_peer_id key ipv6";
    let unknown: Vec<_> =
        sent.keys().copied().filter(|name| !known.split(' ').any(|known| known == *name)).collect();
    assert_eq!(unknown, client.unknown, "{what}");

    let mut written = Vec::new();
    request.write(&mut written);
    assert_eq!(AnnounceRequest::parse(&written), Ok(request), "{what}");
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
