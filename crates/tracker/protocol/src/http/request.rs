//! The requests of clients: the query of a URL.

use std::{
    io::Write,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6},
    str::FromStr,
};

use swarmkeep_bittorrent::{
    AnnounceEvent, InfoHash, PeerId,
    query::{Escaped, escape, parameters},
};

use crate::{Error, Field, Fields};

/// Announces a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnnounceRequest<'a> {
    /// The torrent.
    pub info_hash: InfoHash,
    /// The peer id of the client.
    pub peer_id: PeerId,
    /// The port at which it listens. 0 is invalid.
    pub port: u16,
    /// Bytes that it says it has uploaded.
    pub uploaded: u64,
    /// Bytes that it says it has downloaded.
    pub downloaded: u64,
    /// Bytes that it still has to download. 0 makes it a seeder; `None` is unknown.
    pub left: Option<u64>,
    /// The event of the announce.
    pub event: AnnounceEvent,
    /// Whether it has stopped downloading before the torrent is complete (BEP 21). Its event is
    /// [`AnnounceEvent::None`].
    pub paused: bool,
    /// The number of peers that it wants. `None` leaves it to the tracker.
    pub want: Option<u32>,
    /// Whether it wants the compact form of peers (BEP 23) or the long one. `None` leaves it to the tracker.
    pub compact: Option<bool>,
    /// Whether it needs no peer ids in the long form.
    pub no_peer_id: bool,
    /// The address that it claims. Any client can claim any address.
    pub ip: Option<IpAddr>,
    /// The IPv4 endpoint that it claims (BEP 7), with [`port`](Self::port) if it gives none.
    pub ipv4: Option<SocketAddrV4>,
    /// The IPv6 endpoint that it claims (BEP 7), with [`port`](Self::port) if it gives none.
    pub ipv6: Option<SocketAddrV6>,
    /// A secret by which a client can prove that it is the same one at another address.
    pub key: Option<Escaped<'a>>,
    /// The `tracker id` of an earlier response.
    pub tracker_id: Option<Escaped<'a>>,
    /// The fields that cannot be read, and count as not given.
    pub unread: Fields,
}

impl<'a> AnnounceRequest<'a> {
    /// An announce with the required fields only.
    pub const fn new(info_hash: InfoHash, peer_id: PeerId, port: u16) -> Self {
        Self {
            info_hash,
            peer_id,
            port,
            uploaded: 0,
            downloaded: 0,
            left: None,
            event: AnnounceEvent::None,
            paused: false,
            want: None,
            compact: None,
            no_peer_id: false,
            ip: None,
            ipv4: None,
            ipv6: None,
            key: None,
            tracker_id: None,
            unread: Fields::NONE,
        }
    }

    /// Parses the query of an announce, after the `?`. Unknown parameters are ignored. If a parameter is
    /// repeated, the last one counts; a repeated info hash is an error.
    ///
    /// # Errors
    /// [`Error::Parameter`] names the first of `info_hash`, `peer_id` and `port` that is missing or wrong.
    pub fn parse(query: &'a [u8]) -> Result<Self, Error> {
        let (mut info_hash, mut peer_id, mut port) = (None, None, None);
        let (mut ipv4, mut ipv6) = (None, None);
        let mut request = Self::new(InfoHash::default(), PeerId::default(), 0);
        let mut unread = Fields::NONE;
        for (name, value) in parameters(query) {
            match name {
                b"info_hash" if info_hash.is_some() => {
                    return Err(Error::Parameter {
                        name: "info_hash",
                        what: "an announce is about one torrent",
                    });
                }
                b"info_hash" => info_hash = Some(InfoHash::new(twenty("info_hash", value)?)),
                b"peer_id" => peer_id = Some(PeerId::new(twenty("peer_id", value)?)),
                b"port" => {
                    let number = number(value).and_then(|number| u16::try_from(number).ok());
                    port =
                        Some(number.ok_or(Error::Parameter { name: "port", what: "expected 0 to 65535" })?);
                }
                b"uploaded" => {
                    request.uploaded = unread.bytes(Field::Uploaded, number(value)).unwrap_or_default();
                }
                b"downloaded" => {
                    request.downloaded = unread.bytes(Field::Downloaded, number(value)).unwrap_or_default();
                }
                b"left" => request.left = unread.bytes(Field::Left, number(value)),
                b"event" => {
                    request.paused = value.exactly() == Some(*b"paused");
                    request.event = unread.event(value.parse::<16, _>(AnnounceEvent::of_word));
                }
                b"numwant" => request.want = unread.want(number(value)),
                b"compact" => request.compact = unread.value(Field::Compact, flag(value)),
                b"no_peer_id" => {
                    request.no_peer_id = unread.value(Field::NoPeerId, flag(value)).unwrap_or_default();
                }
                // BEP 3 allows names of hosts here. None is looked up.
                b"ip" => request.ip = unread.value(Field::Ip, value.parse::<64, _>(|ip| ip.parse().ok())),
                b"ipv4" => {
                    let at = value.parse::<64, _>(listens::<Ipv4Addr, SocketAddrV4>);
                    ipv4 = unread.value(Field::Ipv4, at);
                }
                b"ipv6" => {
                    let at = value.parse::<64, _>(listens::<Ipv6Addr, SocketAddrV6>);
                    ipv6 = unread.value(Field::Ipv6, at);
                }
                b"key" => request.key = Some(value),
                b"trackerid" => request.tracker_id = Some(value),
                _ => {}
            }
        }
        let missing = |name| Error::Parameter { name, what: "is missing" };
        request.info_hash = info_hash.ok_or(missing("info_hash"))?;
        request.peer_id = peer_id.ok_or(missing("peer_id"))?;
        request.port = port.ok_or(missing("port"))?;
        request.unread = unread;
        let port = request.port;
        request.ipv4 = ipv4.map(|at| at.unwrap_or_else(|ip| SocketAddrV4::new(ip, port)));
        request.ipv6 = ipv6.map(|at| at.unwrap_or_else(|ip| SocketAddrV6::new(ip, port, 0, 0)));
        Ok(request)
    }

    /// Appends the query, without a `?`.
    pub fn write(&self, out: &mut Vec<u8>) {
        let mut parameter = |name: &str, value: &[u8]| {
            out.extend_from_slice(name.as_bytes());
            escape(value, out);
        };
        parameter("info_hash=", self.info_hash.as_bytes());
        parameter("&peer_id=", self.peer_id.as_bytes());
        let text = |out: &mut Vec<u8>, arguments: std::fmt::Arguments<'_>| {
            out.write_fmt(arguments).expect("a vector takes whatever is written");
        };
        let Self { port, uploaded, downloaded, .. } = self;
        text(out, format_args!("&port={port}&uploaded={uploaded}&downloaded={downloaded}"));
        if let Some(left) = self.left {
            text(out, format_args!("&left={left}"));
        }
        match self.event {
            AnnounceEvent::None if self.paused => text(out, format_args!("&event=paused")),
            AnnounceEvent::None => {}
            event => text(out, format_args!("&event={event}")),
        }
        if let Some(want) = self.want {
            text(out, format_args!("&numwant={want}"));
        }
        if let Some(compact) = self.compact {
            text(out, format_args!("&compact={}", u8::from(compact)));
        }
        if self.no_peer_id {
            text(out, format_args!("&no_peer_id=1"));
        }
        if let Some(ip) = self.ip {
            text(out, format_args!("&ip={ip}"));
        }
        if let Some(ipv4) = self.ipv4 {
            text(out, format_args!("&ipv4={ipv4}"));
        }
        if let Some(ipv6) = self.ipv6 {
            text(out, format_args!("&ipv6={ipv6}"));
        }
        for (name, value) in [("&key=", self.key), ("&trackerid=", self.tracker_id)] {
            if let Some(value) = value {
                out.extend_from_slice(name.as_bytes());
                out.extend_from_slice(value.encoded());
            }
        }
    }
}

/// Requests the counts of swarms (BEP 48).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScrapeRequest<'a> {
    query: &'a [u8],
}

impl<'a> ScrapeRequest<'a> {
    /// Parses the query of a scrape, after the `?`. A query without info hashes requests all torrents.
    ///
    /// # Errors
    /// [`Error::Parameter`] if an info hash is not 20 bytes long.
    pub fn parse(query: &'a [u8]) -> Result<Self, Error> {
        for (_, value) in parameters(query).filter(|(name, _)| *name == b"info_hash") {
            twenty("info_hash", value)?;
        }
        Ok(Self { query })
    }

    /// The torrents in the order of the query.
    pub fn info_hashes(self) -> impl Iterator<Item = InfoHash> {
        let hashes = parameters(self.query).filter(|(name, _)| *name == b"info_hash");
        hashes.filter_map(|(_, value)| value.exactly().map(InfoHash::new))
    }

    /// Appends the query of a scrape of these torrents, without a `?`.
    pub fn write(info_hashes: impl IntoIterator<Item = InfoHash>, out: &mut Vec<u8>) {
        for (nth, info_hash) in info_hashes.into_iter().enumerate() {
            out.extend_from_slice(if nth > 0 { b"&info_hash=" } else { b"info_hash=" });
            escape(info_hash.as_bytes(), out);
        }
    }
}

fn twenty(name: &'static str, value: Escaped<'_>) -> Result<[u8; 20], Error> {
    value.exactly().ok_or(Error::Parameter { name, what: "expected 20 percent-encoded bytes" })
}

fn number(value: Escaped<'_>) -> Option<i64> {
    value.parse::<20, _>(|digits| digits.parse().ok().filter(|_| !digits.starts_with('+')))
}

fn flag(value: Escaped<'_>) -> Option<bool> {
    match value.exactly()? {
        [b'0'] => Some(false),
        [b'1'] => Some(true),
        _ => None,
    }
}

/// An address with a port, or without.
fn listens<A: FromStr, S: FromStr>(text: &str) -> Option<Result<S, A>> {
    text.parse().map(Ok).ok().or_else(|| text.parse().map(Err).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HASH: &str = "info_hash=%124Vx%9A%BC%DE%F1%23Eg%89%AB%CD%EF%124Vx%9A";
    const LEAST: &str = "peer_id=-TR2940-5ert69muw5t8&port=6881";

    fn parse(query: &str) -> Result<AnnounceRequest<'_>, Error> {
        AnnounceRequest::parse(query.as_bytes())
    }

    fn with(rest: &str) -> String {
        format!("{HASH}&{LEAST}{rest}")
    }

    #[test]
    fn an_announce_needs_a_torrent_an_id_and_a_port() {
        let query = with("");
        let request = parse(&query).unwrap();
        assert_eq!(request.info_hash.to_string(), "123456789abcdef123456789abcdef123456789a");
        assert_eq!(request.peer_id.as_bytes(), b"-TR2940-5ert69muw5t8");
        let least = AnnounceRequest::new(request.info_hash, request.peer_id, 6881);
        assert_eq!(request, least);
        for (without, name) in [
            (LEAST.to_owned(), "info_hash"),
            (format!("{HASH}&port=1"), "peer_id"),
            (HASH.to_owned() + "&peer_id=-TR2940-5ert69muw5t8", "port"),
        ] {
            assert_eq!(parse(&without), Err(Error::Parameter { name, what: "is missing" }));
        }
    }

    #[test]
    fn every_parameter_is_read() {
        let query = with(
            "&uploaded=1&downloaded=2&left=3&event=started&numwant=80&compact=1&no_peer_id=1&ip=192.0.2.7\
             &ipv4=198.51.100.1%3A99&ipv6=2001%3Adb8%3A%3A1&key=a%20b&trackerid=t&supportcrypto=1&unknown",
        );
        let request = parse(&query).unwrap();
        assert_eq!((request.uploaded, request.downloaded, request.left), (1, 2, Some(3)));
        assert_eq!((request.event, request.paused, request.want), (AnnounceEvent::Started, false, Some(80)));
        assert_eq!((request.compact, request.no_peer_id), (Some(true), true));
        assert_eq!(request.ip, Some([192, 0, 2, 7].into()));
        assert_eq!(request.ipv4, "198.51.100.1:99".parse().ok());
        assert_eq!(request.ipv6, "[2001:db8::1]:6881".parse().ok());
        assert_eq!(request.key.unwrap().bytes().collect::<Option<Vec<_>>>().unwrap(), b"a b");
        assert_eq!(request.tracker_id.unwrap().encoded(), b"t");
    }

    /// WebTorrent 1.9 sends `left=` while it has only a link; trackers refused qBittorrent 4.3 for
    /// `event=paused` (qbittorrent/qBittorrent#8164, #14224). chihaya refuses such announces; aquatic ignores
    /// an unknown event, and opentracker a `left` that is no number.
    #[test]
    fn values_that_cannot_be_read_count_as_not_given() {
        let whole = with("&uploaded=5&downloaded=6&left=7&numwant=8&event=started&compact=1&no_peer_id=1");
        let whole = whole + "&ip=192.0.2.7&ipv4=192.0.2.7&ipv6=2001:db8::1";
        assert_eq!(parse_all(&whole).1, []);
        for (field, values) in [
            (
                Field::Uploaded,
                &["", "-", "-1", "+1", "x", "1x", "0x10", " 1", "1e3", "9223372036854775808"][..],
            ),
            (Field::Downloaded, &["", "-1", "x", "18446744073709551615", "%zz", "%ff"]),
            (Field::Left, &["", "-1", "NaN", "undefined", "18446744073709551616", "99999999999999999999999"]),
            (Field::Want, &["", "x", "-2", "2147483648", "4294967295", "99999999999"]),
            (Field::Event, &["gone", "Started", "started ", "a-word-longer-than-sixteen"]),
            (Field::Compact, &["", "yes", "2", "01", "-1", "true"]),
            (Field::NoPeerId, &["", "yes", "2"]),
            (
                Field::Ip,
                &["", "somewhere.example", "[2001:db8::1]:6881", "192.0.2.7,192.0.2.8", "192.0.2.7:1"],
            ),
            (Field::Ipv4, &["", "nowhere", "2001:db8::1", "192.0.2.7, 10.0.0.1", "192.0.2.7:65536"]),
            (Field::Ipv6, &["", "nowhere", "192.0.2.7", "2001:db8::1,2001:db8::2", "fe80::1%251"]),
        ] {
            let (absent, _) =
                parse_all(&whole.split('&').filter(|one| !is_of(one, field)).collect::<Vec<_>>().join("&"));
            for value in values {
                let read = parse_all(&format!("{whole}&{0}=x&{0}={value}", field.name()));
                assert_eq!(read, (absent, vec![field]), "{field:?} {value}");
            }
        }
    }

    fn is_of(parameter: &str, field: Field) -> bool {
        parameter.split('=').next() == Some(field.name())
    }

    /// The request without its borrowed fields, and the fields that count as not given.
    fn parse_all(query: &str) -> (AnnounceRequest<'static>, Vec<Field>) {
        let request = AnnounceRequest::parse(query.as_bytes()).unwrap();
        let read = AnnounceRequest { key: None, tracker_id: None, unread: Fields::NONE, ..request };
        (read, request.unread.iter().collect())
    }

    #[test]
    fn a_value_with_a_meaning_is_not_unread() {
        let (request, unread) = parse_all(&with("&numwant=-1&event=paused&compact=0"));
        assert_eq!((request.want, request.event, request.paused), (None, AnnounceEvent::None, true));
        assert_eq!((request.compact, unread), (Some(false), vec![]));
        assert_eq!(parse_all(&with("&event=&left=&left=1")).1, []);
        let (last, _) = parse_all(&with("&event=paused&event=stopped"));
        assert_eq!((last.event, last.paused), (AnnounceEvent::Stopped, false));
    }

    #[test]
    fn every_value_is_read_after_decoding() {
        let query =
            format!("{HASH}&peer_id=-TR2940-5ert69muw5t8&port=%36881&left=%30&event=%73topped&compact=%31");
        let request = parse(&query).unwrap();
        assert_eq!((request.port, request.left, request.event), (6881, Some(0), AnnounceEvent::Stopped));
        assert_eq!(request.compact, Some(true));
    }

    #[test]
    fn wrong_parameters_are_named() {
        for (rest, name) in [
            ("&port=65536", "port"),
            ("&port=-1", "port"),
            ("&port=+1", "port"),
            ("&port=x", "port"),
            ("&port=", "port"),
            ("&peer_id=short", "peer_id"),
            ("&peer_id=%", "peer_id"),
            ("&info_hash=aaaaaaaaaaaaaaaaaaaa", "info_hash"),
        ] {
            let query = with(rest);
            let Err(Error::Parameter { name: named, .. }) = parse(&query) else { panic!("{rest} passed") };
            assert_eq!(named, name, "{rest}");
        }
        assert!(parse(&format!("info_hash=%12&{LEAST}")).is_err());
    }

    #[test]
    fn requests_are_read_as_they_were_written() {
        let full = AnnounceRequest {
            uploaded: i64::MAX as u64,
            downloaded: 1,
            left: Some(0),
            event: AnnounceEvent::Completed,
            want: Some(0),
            compact: Some(false),
            no_peer_id: true,
            ip: Some([0, 0, 0, 0, 0, 0, 0, 1].into()),
            ipv4: "192.0.2.1:1".parse().ok(),
            ipv6: "[2001:db8::1]:2".parse().ok(),
            ..AnnounceRequest::new(InfoHash::new(*b"&=%+ #\x00\xff/?abcdefghij"), PeerId::new([b'&'; 20]), 80)
        };
        let least = AnnounceRequest::new(InfoHash::default(), PeerId::default(), 1);
        let most = AnnounceRequest { want: Some(i32::MAX as u32), ..least };
        for request in [full, least, most, AnnounceRequest { paused: true, ..least }] {
            let mut query = Vec::new();
            request.write(&mut query);
            assert_eq!(AnnounceRequest::parse(&query), Ok(request));
        }
    }

    #[test]
    fn a_scrape_is_about_many_torrents_or_all() {
        let hashes = [1, 2, 0xff].map(|n| InfoHash::new([n; 20]));
        let mut query = Vec::new();
        ScrapeRequest::write(hashes, &mut query);
        assert_eq!(ScrapeRequest::parse(&query).unwrap().info_hashes().collect::<Vec<_>>(), hashes);
        assert_eq!(ScrapeRequest::parse(b"").unwrap().info_hashes().count(), 0);
        assert!(ScrapeRequest::parse(b"info_hash=short").is_err());
    }
}
