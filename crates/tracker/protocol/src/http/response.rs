//! The responses of trackers: bencoded bodies.

use std::net::IpAddr;

use swarmkeep_bittorrent::{
    CompactV4, CompactV6, Endpoint, InfoHash,
    bencode::{Dict, Value, Writer},
};

use crate::{Error, udp::ScrapeStats, whole};

/// An announce response without its peers. The default has counts and an interval of 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AnnounceHead<'a> {
    /// Seeders.
    pub complete: u32,
    /// Leechers.
    pub incomplete: u32,
    /// The number of finished downloads, if the tracker gives it.
    pub downloaded: Option<u32>,
    /// Seconds until the next announce.
    pub interval: u32,
    /// Seconds before which the client must not announce again.
    pub min_interval: Option<u32>,
    /// The address at which the tracker sees the client (BEP 24).
    pub external_ip: Option<IpAddr>,
    /// The id that the client must send in its next announce.
    pub tracker_id: Option<&'a [u8]>,
    /// A message for the user of the client.
    pub warning: Option<&'a str>,
}

/// Writes the response to an announce around its peers, which the store writes first, directly to their final
/// place.
#[derive(Debug)]
pub struct AnnounceResponseWriter<'b> {
    out: &'b mut Vec<u8>,
    v6: usize,
}

impl<'b> AnnounceResponseWriter<'b> {
    /// Room for all fields before the peers, and for the key and the length of IPv6 peers: more than the
    /// longest take.
    const HEAD: usize = 224;
    const BETWEEN: usize = 32;

    /// Reserves space for `v4` and `v6` peers in `out`, and overwrites its contents.
    pub fn new(out: &'b mut Vec<u8>, v4: usize, v6: usize) -> Self {
        let between = Self::HEAD + v4 * CompactV4::LEN + Self::BETWEEN;
        out.clear();
        out.resize(between + v6 * CompactV6::LEN, 0);
        Self { out, v6: between }
    }

    /// The buffers for the peers in compact form: IPv4 and IPv6.
    pub fn rooms(&mut self) -> (&mut [u8], &mut [u8]) {
        let (v4, v6) = self.out.split_at_mut(self.v6);
        (&mut v4[Self::HEAD..self.v6 - Self::BETWEEN], v6)
    }

    /// Writes the rest around `v4` and `v6` bytes of peers, and returns the whole body. With `None`, the body
    /// contains no field for IPv6 peers.
    pub fn finish(self, head: &AnnounceHead<'_>, v4: usize, v6: Option<usize>) -> &'b [u8] {
        let Self { out, v6: v6_room } = self;
        let start = Self::HEAD
            - Self::moved(out, Self::HEAD, false, |writer| {
                head.write_before(writer);
                writer.length(v4);
            });
        let mut end = Self::HEAD + v4;
        if let Some(v6) = v6 {
            end += Self::moved(out, end, true, |writer| {
                writer.bytes(b"peers6").length(v6);
            });
            out.copy_within(v6_room..v6_room + v6, end);
            end += v6;
        }
        out.truncate(end);
        head.write_behind(&mut Writer::new(out));
        &out[start..]
    }

    /// Writes at the end, and moves the bytes to begin or end at `to`. Returns their number.
    fn moved(out: &mut Vec<u8>, to: usize, begins: bool, write: impl FnOnce(&mut Writer<'_>)) -> usize {
        let end = out.len();
        write(&mut Writer::new(out));
        let len = out.len() - end;
        out.copy_within(end.., if begins { to } else { to - len });
        out.truncate(end);
        len
    }

    /// As [`finish`](Self::finish), in the long form of BEP 3: a list of dictionaries, without peer ids.
    pub fn finish_long(self, head: &AnnounceHead<'_>, v4: usize, v6: usize) -> &'b [u8] {
        let Self { out, v6: v6_room } = self;
        let start = out.len();
        let mut writer = Writer::new(out);
        head.write_before(&mut writer);
        writer.list();
        for (room, len, width) in [(Self::HEAD, v4, CompactV4::LEN), (v6_room, v6, CompactV6::LEN)] {
            for at in (room..room + len).step_by(width) {
                if let Some(peer) = endpoint(&out[at..at + width]) {
                    let mut writer = Writer::new(out);
                    writer.dict().bytes(b"ip").bytes(peer.ip().to_string().as_bytes());
                    writer.bytes(b"port").integer(peer.port().into()).end();
                }
            }
        }
        let mut writer = Writer::new(out);
        writer.end();
        head.write_behind(&mut writer);
        &out[start..]
    }
}

impl AnnounceHead<'_> {
    /// The fields with keys before `peers`, and that key.
    fn write_before(&self, writer: &mut Writer<'_>) {
        let ip = |writer: &mut Writer<'_>, ip: &[u8]| {
            writer.bytes(b"external ip").bytes(ip);
        };
        writer.dict();
        field(writer, b"complete", Some(self.complete));
        field(writer, b"downloaded", self.downloaded);
        match self.external_ip {
            Some(IpAddr::V4(v4)) => ip(writer, &v4.octets()),
            Some(IpAddr::V6(v6)) => ip(writer, &v6.octets()),
            None => {}
        }
        field(writer, b"incomplete", Some(self.incomplete));
        field(writer, b"interval", Some(self.interval));
        field(writer, b"min interval", self.min_interval);
        writer.bytes(b"peers");
    }

    /// The fields with keys after `peers6`, and the end.
    fn write_behind(&self, writer: &mut Writer<'_>) {
        if let Some(tracker_id) = self.tracker_id {
            writer.bytes(b"tracker id").bytes(tracker_id);
        }
        if let Some(warning) = self.warning {
            writer.bytes(b"warning message").bytes(warning.as_bytes());
        }
        writer.end();
    }
}

/// The response to an announce, borrowed from its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnounceResponse<'a> {
    /// Everything except the peers.
    pub head: AnnounceHead<'a>,
    peers: Peers<'a>,
    peers6: &'a [u8],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Peers<'a> {
    Compact(&'a [u8]),
    Long(Value<'a>),
}

impl<'a> AnnounceResponse<'a> {
    /// Parses a body. The inner error is the tracker's own. A number may be text; one that is missing or
    /// invalid has a default, as in libtorrent's `parse_tracker_response`: 1800 for the interval.
    ///
    /// # Errors
    /// [`Error::Bencode`], [`Error::Parameter`] if there is no dictionary or `peers` is wrong,
    /// [`Error::List`] if peers are no list of endpoints.
    pub fn parse(body: &'a [u8]) -> Result<Result<Self, FailureResponse<'a>>, Error> {
        let fields = match answered(body)? {
            Ok(fields) => fields,
            Err(failure) => return Ok(Err(failure)),
        };
        let number = |key: &[u8]| {
            let value = fields.get(key)?;
            value.integer().or_else(|| value.text()?.trim().parse().ok())?.try_into().ok()
        };
        let peers = match fields.get(b"peers") {
            None => Peers::Compact(&[]),
            Some(value) => match (value.bytes(), value.list()) {
                (Some(compact), _) => Peers::Compact(whole(compact, CompactV4::LEN)?),
                (_, Some(_)) => Peers::Long(value),
                _ => {
                    return Err(Error::Parameter { name: "peers", what: "expected a byte string or a list" });
                }
            },
        };
        let peers6 = fields.get(b"peers6").and_then(Value::bytes).unwrap_or_default();
        let ip = |bytes: &[u8]| match bytes.len() {
            4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
            _ => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        };
        let head = AnnounceHead {
            complete: number(b"complete").unwrap_or_default(),
            incomplete: number(b"incomplete").unwrap_or_default(),
            downloaded: number(b"downloaded"),
            interval: number(b"interval").unwrap_or(1800),
            min_interval: number(b"min interval"),
            external_ip: fields.get(b"external ip").and_then(Value::bytes).and_then(ip),
            tracker_id: fields.get(b"tracker id").and_then(Value::bytes),
            warning: fields.get(b"warning message").and_then(Value::text),
        };
        Ok(Ok(Self { head, peers, peers6: whole(peers6, CompactV6::LEN)? }))
    }

    /// The peers, IPv4 first in the compact form. Invalid endpoints and host names are left out.
    pub fn endpoints(&self) -> impl Iterator<Item = Endpoint> + use<'a> {
        let (compact, long) = match self.peers {
            Peers::Compact(compact) => (compact, None),
            Peers::Long(list) => (&[][..], list.list()),
        };
        let long = long.into_iter().flat_map(|list| list.iter()).filter_map(|peer| {
            let fields = peer.dict()?;
            let ip = fields.get(b"ip")?.text()?.parse().ok()?;
            Endpoint::new(ip, u16::try_from(fields.get(b"port")?.integer()?).ok()?).ok()
        });
        let compact = compact.chunks(CompactV4::LEN).chain(self.peers6.chunks(CompactV6::LEN));
        compact.filter_map(endpoint).chain(long)
    }
}

/// The reason why a tracker refused a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FailureResponse<'a> {
    /// A message for the user of the client.
    pub reason: &'a [u8],
    /// When to ask again (BEP 31).
    pub retry_in: Option<RetryIn>,
}

/// When a client that was refused should ask again (BEP 31).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryIn {
    /// After this number of minutes.
    Minutes(u32),
    /// Never.
    Never,
}

impl FailureResponse<'_> {
    /// Appends the body.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut writer = Writer::new(out);
        writer.dict().bytes(b"failure reason").bytes(self.reason);
        match self.retry_in {
            Some(RetryIn::Minutes(minutes)) => field(&mut writer, b"retry in", Some(minutes)),
            Some(RetryIn::Never) => {
                writer.bytes(b"retry in").bytes(b"never");
            }
            None => {}
        }
        writer.end();
    }
}

/// Writes the response to a scrape.
#[derive(Debug)]
pub struct ScrapeResponseWriter<'b> {
    writer: Writer<'b>,
    latest: Option<InfoHash>,
}

impl<'b> ScrapeResponseWriter<'b> {
    /// Appends to `out`.
    pub fn new(out: &'b mut Vec<u8>) -> Self {
        let mut writer = Writer::new(out);
        writer.dict().bytes(b"files").dict();
        Self { writer, latest: None }
    }

    /// Writes the counts of a swarm.
    ///
    /// # Panics
    /// If the info hashes are not in ascending order, as the keys of a dictionary must be.
    pub fn push(&mut self, info_hash: &InfoHash, stats: ScrapeStats) {
        assert!(self.latest.is_none_or(|latest| latest < *info_hash), "info hashes must ascend");
        self.latest = Some(*info_hash);
        let ScrapeStats { seeders, completed, leechers } = stats;
        self.writer.bytes(info_hash.as_bytes()).dict();
        field(&mut self.writer, b"complete", Some(seeders));
        field(&mut self.writer, b"downloaded", Some(completed));
        field(&mut self.writer, b"incomplete", Some(leechers));
        self.writer.end();
    }

    /// Writes the end, and the seconds to wait before the next scrape if there are any.
    pub fn finish(mut self, min_request_interval: Option<u32>) {
        self.writer.end();
        if min_request_interval.is_some() {
            self.writer.bytes(b"flags").dict();
            field(&mut self.writer, b"min_request_interval", min_request_interval);
            self.writer.end();
        }
        self.writer.end();
    }
}

/// The response to a scrape, borrowed from its body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrapeResponse<'a> {
    files: Dict<'a>,
}

impl<'a> ScrapeResponse<'a> {
    /// Parses a body. The inner error is the tracker's own.
    ///
    /// # Errors
    /// [`Error::Bencode`], and [`Error::Parameter`] if there are no `files`.
    pub fn parse(body: &'a [u8]) -> Result<Result<Self, FailureResponse<'a>>, Error> {
        Ok(match answered(body)? {
            Err(failure) => Err(failure),
            Ok(fields) => {
                let files = fields.get(b"files").and_then(Value::dict);
                Ok(Self { files: files.ok_or(Error::Parameter { name: "files", what: "is missing" })? })
            }
        })
    }

    /// The requested swarms that the tracker knows. Invalid info hashes are left out; a missing count is 0.
    pub fn swarms(&self) -> impl Iterator<Item = (InfoHash, ScrapeStats)> + use<'a> {
        self.files.iter().filter_map(|(info_hash, counts)| {
            let counts = counts.dict()?;
            let count = |key: &[u8]| {
                let number = counts.get(key).and_then(Value::integer);
                number.and_then(|number| u32::try_from(number).ok()).unwrap_or_default()
            };
            let stats = ScrapeStats {
                seeders: count(b"complete"),
                completed: count(b"downloaded"),
                leechers: count(b"incomplete"),
            };
            Some((InfoHash::new(info_hash.try_into().ok()?), stats))
        })
    }
}

/// The fields of a body, or its failure. Bytes behind the dictionary are ignored, as in libtorrent: some
/// trackers send a newline.
fn answered(body: &[u8]) -> Result<Result<Dict<'_>, FailureResponse<'_>>, Error> {
    let expected = Error::Parameter { name: "the response", what: "expected a dictionary" };
    let fields = Value::parse_first(body)?.0.dict().ok_or(expected)?;
    let Some(reason) = fields.get(b"failure reason") else { return Ok(Ok(fields)) };
    let retry_in = fields.get(b"retry in").and_then(|value| match (value.integer(), value.bytes()) {
        (Some(minutes), _) => u32::try_from(minutes).ok().map(RetryIn::Minutes),
        (_, Some(b"never")) => Some(RetryIn::Never),
        // Seen as text too.
        (_, text) => std::str::from_utf8(text?).ok()?.parse().ok().map(RetryIn::Minutes),
    });
    Ok(Err(FailureResponse { reason: reason.bytes().unwrap_or_default(), retry_in }))
}

fn endpoint(compact: &[u8]) -> Option<Endpoint> {
    match compact.len() {
        CompactV4::LEN => Endpoint::try_from(*compact.first_chunk::<{ CompactV4::LEN }>()?).ok(),
        _ => Endpoint::try_from(*compact.first_chunk::<{ CompactV6::LEN }>()?).ok(),
    }
}

/// A key and its number, if there is one.
fn field(writer: &mut Writer<'_>, key: &[u8], number: Option<u32>) {
    if let Some(number) = number {
        writer.bytes(key).integer(number.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V4: [u8; 12] = [192, 0, 2, 1, 0x1a, 0xe1, 192, 0, 2, 2, 0x1a, 0xe1];
    const V6: [u8; 18] = [0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7, 0x1a, 0xe1];

    fn head() -> AnnounceHead<'static> {
        AnnounceHead {
            complete: 3,
            incomplete: 4_294_967_295,
            downloaded: Some(7),
            interval: 1800,
            min_interval: Some(900),
            external_ip: Some([198, 51, 100, 9].into()),
            tracker_id: Some(b"here"),
            warning: Some("slow down"),
        }
    }

    fn written(finish: impl for<'b> FnOnce(AnnounceResponseWriter<'b>) -> &'b [u8]) -> Vec<u8> {
        let mut out = b"earlier contents".to_vec();
        let mut writer = AnnounceResponseWriter::new(&mut out, 2, 1);
        let (v4, v6) = writer.rooms();
        assert_eq!((v4.len(), v6.len()), (12, 18));
        v4.copy_from_slice(&V4);
        v6.copy_from_slice(&V6);
        finish(writer).to_vec()
    }

    fn peers(body: &[u8]) -> Vec<String> {
        let response = AnnounceResponse::parse(body).unwrap().unwrap();
        response.endpoints().map(|peer| peer.to_string()).collect()
    }

    const ALL: [&str; 3] = ["192.0.2.1:6881", "192.0.2.2:6881", "[2001:db8::7]:6881"];

    #[test]
    fn an_announce_response_is_bencoded_byte_for_byte() {
        let body =
            written(|writer| writer.finish(&AnnounceHead { interval: 60, ..Default::default() }, 6, None));
        assert_eq!(body, b"d8:completei0e10:incompletei0e8:intervali60e5:peers6:\xc0\x00\x02\x01\x1a\xe1e");

        let body = written(|writer| writer.finish(&head(), 12, Some(18)));
        let expected = [
            &b"d8:completei3e10:downloadedi7e11:external ip4:\xc6\x33\x64\x0910:incompletei4294967295e8:intervali1800e"[..],
            b"12:min intervali900e5:peers12:",
            &V4,
            b"6:peers618:",
            &V6,
            b"10:tracker id4:here15:warning message9:slow downe",
        ];
        assert_eq!(body, expected.concat());
        let response = AnnounceResponse::parse(&body).unwrap().unwrap();
        assert_eq!(response.head, head());
        assert_eq!(peers(&body), ALL);
    }

    #[test]
    fn a_long_response_lists_the_same_peers() {
        let body = written(|writer| writer.finish_long(&head(), 12, 18));
        assert!(Value::parse(&body).unwrap().dict().unwrap().get(b"peers").unwrap().list().is_some());
        assert_eq!(peers(&body), ALL);
        let body = written(|writer| writer.finish_long(&AnnounceHead::default(), 6, 0));
        let expected = b"d8:completei0e10:incompletei0e8:intervali0e5:peersld2:ip9:192.0.2.14:porti6881eeee";
        assert_eq!(body, expected);
    }

    #[test]
    fn the_longest_head_fits() {
        let ip = Some(IpAddr::from([0xff; 16]));
        let most = AnnounceHead {
            complete: u32::MAX,
            incomplete: u32::MAX,
            downloaded: Some(u32::MAX),
            interval: u32::MAX,
            min_interval: Some(u32::MAX),
            external_ip: ip,
            ..AnnounceHead::default()
        };
        let mut out = Vec::new();
        let body =
            AnnounceResponseWriter::new(&mut out, 100_000, 100_000).finish(&most, 600_000, Some(1_800_000));
        assert_eq!(AnnounceResponse::parse(body).unwrap().unwrap().head, most);
    }

    #[test]
    fn a_failure_says_when_to_come_back() {
        for retry_in in [None, Some(RetryIn::Minutes(5)), Some(RetryIn::Never)] {
            let failure = FailureResponse { reason: b"not here", retry_in };
            let mut body = Vec::new();
            failure.write(&mut body);
            assert_eq!(AnnounceResponse::parse(&body), Ok(Err(failure)));
            assert_eq!(ScrapeResponse::parse(&body), Ok(Err(failure)));
        }
    }

    #[test]
    fn a_scrape_response_has_each_swarm() {
        let stats = |n| ScrapeStats { seeders: n, completed: n + 1, leechers: n + 2 };
        let swarms = [1_u8, 2, 0xff].map(|n| (InfoHash::new([n; 20]), stats(n.into())));
        for flags in [None, Some(900)] {
            let mut body = Vec::new();
            let mut writer = ScrapeResponseWriter::new(&mut body);
            swarms.iter().for_each(|(info_hash, stats)| writer.push(info_hash, *stats));
            writer.finish(flags);
            let response = ScrapeResponse::parse(&body).unwrap().unwrap();
            assert_eq!(response.swarms().collect::<Vec<_>>(), swarms);
            assert_eq!(Value::parse(&body).unwrap().dict().unwrap().get(b"flags").is_some(), flags.is_some());
        }
    }

    #[test]
    #[should_panic(expected = "must ascend")]
    fn an_info_hash_twice_is_a_mistake_of_the_caller() {
        let mut body = Vec::new();
        let mut writer = ScrapeResponseWriter::new(&mut body);
        (0..2).for_each(|_| writer.push(&InfoHash::default(), ScrapeStats::default()));
    }

    #[test]
    fn other_bytes_are_refused() {
        for (body, expected) in [
            (&b"le"[..], "the response: expected a dictionary"),
            (b"<html>", "not bencoded: a byte that no value begins with at byte 0"),
            (b"d8:intervali1e5:peers5:abcdee", "5 bytes are no list of 6-byte items"),
            (b"d8:intervali1e6:peers65:abcdee", "5 bytes are no list of 18-byte items"),
            (b"d8:intervali1e5:peersi1ee", "peers: expected a byte string or a list"),
        ] {
            assert_eq!(AnnounceResponse::parse(body).unwrap_err().to_string(), expected);
        }
        assert_eq!(ScrapeResponse::parse(b"de").unwrap_err().to_string(), "files: is missing");
    }

    #[test]
    fn invalid_endpoints_are_left_out() {
        let body = b"d8:intervali1e5:peersld2:ip7:1.2.3.44:porti0eed2:ip4:host4:porti1eei3ed2:ip7:1.2.3.44:porti5eeee";
        assert_eq!(peers(body), ["1.2.3.4:5"]);
        assert_eq!(peers(b"d8:intervali1e5:peers6:\x01\x02\x03\x04\x00\x00e"), [""; 0]);
    }
}
