//! Any query and any body: nothing panics, parsed messages are the same after writing, and bencoded values
//! have the length that they declare.
#![no_main]

use libfuzzer_sys::fuzz_target;
use swarmkeep_tracker_protocol::{
    Fields,
    bittorrent::bencode::Value,
    http::{AnnounceRequest, AnnounceResponse, ScrapeRequest, ScrapeResponse},
};

fuzz_target!(|bytes: &[u8]| {
    let mut query = Vec::new();
    if let Ok(request) = AnnounceRequest::parse(bytes) {
        request.write(&mut query);
        assert_eq!(AnnounceRequest::parse(&query), Ok(AnnounceRequest { unread: Fields::NONE, ..request }));
        for value in [request.key, request.tracker_id].into_iter().flatten() {
            assert!(value.bytes().count() <= value.encoded().len());
        }
    }
    if let Ok(request) = ScrapeRequest::parse(bytes) {
        query.clear();
        ScrapeRequest::write(request.info_hashes(), &mut query);
        let again = ScrapeRequest::parse(&query).expect("was just written");
        assert!(request.info_hashes().eq(again.info_hashes()));
    }

    if let Ok((value, rest)) = Value::parse_first(bytes) {
        assert_eq!(value.encoded().len() + rest.len(), bytes.len());
        assert_eq!(Value::parse(value.encoded()), Ok(value));
        let _ = format!("{value:?}");
    }
    if let Ok(Ok(response)) = AnnounceResponse::parse(bytes) {
        assert!(response.endpoints().count() <= bytes.len() / 6);
    }
    if let Ok(Ok(response)) = ScrapeResponse::parse(bytes) {
        assert!(response.swarms().count() <= bytes.len() / 20);
    }
});
