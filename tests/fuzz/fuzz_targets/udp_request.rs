//! Any datagram: the tracker does not panic, its answers are within bounds and valid, and a client without a
//! good connection id gets no more bytes than it sent.
#![no_main]

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    sync::Arc,
};

use libfuzzer_sys::fuzz_target;
use swarmkeep::{Family, HashKey, Packed, RepositoryConfig, SplitMix64, Timestamp};
use swarmkeep_tracker::{
    Batch, ConnectionIds, ConnectionKey, Handler, IdsAt, LONGEST_ANSWER_V4, LONGEST_ANSWER_V6, LiveRules,
    Reach, Rules,
};
use swarmkeep_tracker_protocol::{
    Fields,
    udp::{AnnounceRequest, ConnectRequest, ConnectResponse, ConnectionId, Request, Response, TransactionId},
};

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
const SECRET: &[u8] = b"of every tracker here";

fuzz_target!(|packet: &[u8]| {
    let request = Request::parse(packet);
    if let Ok(request) = request {
        assert_survives_writing(request);
    }
    // The options are read leniently, but they end.
    if let Ok(Request::Announce(announce)) = request {
        assert!(announce.options().count() <= announce.trailing.len());
    }
    let _ = Response::parse(packet, Family::V4);
    let _ = Response::parse(packet, Family::V6);

    let v4 = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 4000);
    let v6 = SocketAddr::new(IpAddr::V6(Ipv6Addr::new(0x2001, 0xdb8, 0, 0, 0, 0, 0, 1)), 4000);
    for source in [v4, v6] {
        assert_answered(packet, source);
        if let Some((_, rest)) = packet.split_first_chunk::<8>()
            && !matches!(request, Ok(Request::Connect(_)))
        {
            let ConnectionId(good) = connection_ids().issue(source.ip());
            assert_answered(&[&good.to_be_bytes(), rest].concat(), source);
        }
    }
});

/// Sends the packet to a tracker without peers.
fn assert_answered(packet: &[u8], source: SocketAddr) {
    let config = RepositoryConfig::new(HashKey::from_bytes([9; 16])).shards(1);
    let store = Packed::new(&config).unwrap();
    let mut rng = SplitMix64::new(1);
    let ids = Arc::new(ConnectionIds::new(ConnectionKey::new(SECRET)));
    let handler = Handler::new(ids, LiveRules::new(Rules::new()));
    let mut batch = Batch::new();
    batch.push(packet, source);
    if handler.admit(&mut batch, Reach::Public, NOW) {
        handler.finish(&store, &mut batch, NOW, &mut rng);
    }
    let answer = batch.answers().next().map(|(answer, to)| {
        assert_eq!(to, source);
        answer
    });
    let request = Request::parse(packet);
    assert_eq!(answer.is_some(), request.is_ok(), "{request:?}");
    let Some(answer) = answer else { return };
    let len = answer.len();

    let id = ConnectionId(u64::from_be_bytes(*packet.first_chunk().expect("a request")));
    let connected = connection_ids().recognise(id, source.ip());

    let (family, longest) =
        if source.is_ipv4() { (Family::V4, LONGEST_ANSWER_V4) } else { (Family::V6, LONGEST_ANSWER_V6) };
    assert!(len <= longest);
    assert!(connected || len <= packet.len(), "a longer answer to an unverified address");
    let response = Response::parse(answer, family).expect("a response");
    assert_eq!(
        response.transaction_id(),
        TransactionId(u32::from_be_bytes(*packet[12..].first_chunk().unwrap()))
    );
    match (request, response) {
        (Ok(Request::Connect(_)), Response::Connect(_)) => assert_eq!(len, ConnectResponse::LEN),
        (Ok(Request::Announce(_)), Response::Announce(announce)) => {
            assert!(connected && announce.peers().next().is_none(), "there is no other peer");
        }
        (Ok(Request::Scrape(request)), Response::Scrape(response)) => {
            assert!(connected && response.swarms().len() == request.info_hashes().len());
        }
        (Ok(Request::Announce(request)), Response::Error(_)) => assert!(!connected || request.port == 0),
        (Ok(Request::Scrape(_)), Response::Error(_)) => assert!(!connected),
        mismatch => panic!("{mismatch:?}"),
    }
}

/// The connection ids of every tracker here.
fn connection_ids() -> IdsAt {
    ConnectionIds::new(ConnectionKey::new(SECRET)).at(NOW)
}

/// Parsed requests are the same after writing.
fn assert_survives_writing(request: Request<'_>) {
    let mut out = vec![0; 1 << 20];
    let len = match request {
        Request::Connect(request) => {
            out[..ConnectRequest::LEN].copy_from_slice(&request.to_bytes());
            ConnectRequest::LEN
        }
        Request::Announce(request) => request.write(&mut out),
        Request::Scrape(request) => request.write(&mut out),
    };
    let without_unread = |request| match request {
        Request::Announce(request) => Request::Announce(AnnounceRequest { unread: Fields::NONE, ..request }),
        other => other,
    };
    assert_eq!(Request::parse(&out[..len]).map(without_unread), Ok(without_unread(request)));
}
