//! Magnet links (BEP 9): the info hash of a torrent, and trackers and peers to ask for the rest.

use std::{fmt, net::SocketAddr, str::FromStr};

use data_encoding::{BASE32, HEXLOWER, HEXLOWER_PERMISSIVE};

use super::{Error, Info, MOST_TRACKERS, Metainfo, hash_tree::Hash, info_hashes::truncated, may_be_tracker};
use swarmkeep_bittorrent::{
    InfoHash,
    query::{escape, parameters},
};

/// A magnet link: `magnet:?xt=urn:btih:…&dn=…&tr=…`.
///
/// Every link has an info hash: of v1, of v2, or both for a hybrid. Everything else helps to find the
/// torrent.
///
/// ```
/// use swarmkeep_metainfo::Magnet;
///
/// let hash = "c12fe1c06bba254a9dc9f519b335aa7c1367a88a";
/// let link = format!("magnet:?xt=urn:btih:{hash}&dn=a%20name&tr=udp%3a%2f%2ft.example%3a6969");
/// let magnet: Magnet = link.parse()?;
/// assert_eq!(magnet.info_hash().to_string(), hash);
/// assert_eq!(magnet.name(), Some("a name"));
/// assert_eq!(magnet.trackers(), ["udp://t.example:6969"]);
/// assert_eq!(magnet.to_string(), link);
/// # Ok::<(), swarmkeep_metainfo::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Magnet {
    /// At least one of the two is there.
    v1: Option<InfoHash>,
    v2: Option<Hash>,
    name: Option<String>,
    trackers: Vec<String>,
    peers: Vec<String>,
}

impl Magnet {
    /// The longest link that is read or written, in bytes.
    pub const LONGEST: usize = 2 << 20;

    /// The longest name that is read, in bytes.
    pub const LONGEST_NAME: usize = 1024;

    /// The most peers that are read; further ones are ignored.
    pub const MOST_PEERS: usize = 256;

    /// The info hash that trackers and peers use, as [`Info::info_hash`]: the one of v1, or the first 20
    /// bytes of the one of v2.
    pub fn info_hash(&self) -> InfoHash {
        self.info_hashes().next().expect("one of the two is there")
    }

    /// All info hashes of the link that trackers and peers use, as [`Info::info_hashes`].
    pub fn info_hashes(&self) -> impl Iterator<Item = InfoHash> + Clone {
        self.v1.into_iter().chain(self.v2.map(truncated))
    }

    /// The info hash of v1 (`urn:btih`); `None` for v2 only.
    pub const fn info_hash_v1(&self) -> Option<InfoHash> {
        self.v1
    }

    /// The info hash of v2 (`urn:btmh`), if there is one: the SHA-256 of the info dictionary.
    pub const fn info_hash_v2(&self) -> Option<[u8; 32]> {
        self.v2
    }

    /// Whether `info` matches all hashes of the link.
    pub fn names(&self, info: &Info) -> bool {
        let v1 = self.v1.is_none_or(|hash| info.has_v1() && info.info_hash() == hash);
        v1 && self.v2.is_none_or(|hash| info.info_hash_v2() == Some(hash))
    }

    /// The name to show while the torrent's own name is not known (`dn`). Do not use it as a file name: it
    /// may contain separators.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// URLs of trackers (`tr`), at most [`MOST_TRACKERS`]. A link has no tiers.
    pub fn trackers(&self) -> &[String] {
        &self.trackers
    }

    /// Peers to ask (`x.pe`): a host and a port that is not 0, as `std::net::ToSocketAddrs` takes them. The
    /// host is an address, IPv6 in brackets, or a name. [`MOST_PEERS`](Self::MOST_PEERS) at most.
    pub fn peers(&self) -> &[String] {
        &self.peers
    }

    /// Adds a peer to ask. A peer beyond [`MOST_PEERS`](Self::MOST_PEERS) is ignored, and so is port 0.
    #[must_use]
    pub fn with_peer(mut self, peer: SocketAddr) -> Self {
        let peer = match peer {
            // Without the scope, which means nothing elsewhere.
            SocketAddr::V6(peer) => format!("[{}]:{}", peer.ip(), peer.port()),
            SocketAddr::V4(peer) => peer.to_string(),
        };
        self.add_peer(peer);
        self
    }

    fn add_peer(&mut self, peer: String) {
        if self.peers.len() < Self::MOST_PEERS && may_be_peer(&peer) {
            self.peers.push(peer);
        }
    }

    /// Takes the value of `xt`, if it is about BitTorrent: links may also have the names of other networks
    /// for the same content.
    fn topic(&mut self, topic: &str) -> Result<(), Error> {
        if let Some(hash) = urn(topic, "urn:btih:") {
            let hash = v1_hash(hash)
                .ok_or(Error::Magnet("`urn:btih:` is not followed by 40 digits of hex or 32 of base32"))?;
            if *self.v1.get_or_insert(hash) != hash {
                return Err(Error::Magnet("it has several `urn:btih:`, and names several torrents"));
            }
        } else if let Some(hash) = urn(topic, "urn:btmh:") {
            let hash = v2_hash(hash).ok_or(Error::Magnet(
                "`urn:btmh:` is not followed by 1220 and 64 digits of hex: a SHA-256",
            ))?;
            if *self.v2.get_or_insert(hash) != hash {
                return Err(Error::Magnet("it has several `urn:btmh:`, and names several torrents"));
            }
        }
        Ok(())
    }
}

/// Reads a link.
///
/// An invalid name, tracker or peer is ignored, and so are unknown parameters, such as `so` (BEP 53). `+`
/// means a space in a name, and itself anywhere else.
impl FromStr for Magnet {
    type Err = Error;

    fn from_str(link: &str) -> Result<Self, Error> {
        if link.len() > Self::LONGEST {
            return Err(Error::Magnet("it is longer than 2 MiB"));
        }
        let query = link.split_once('?').filter(|(scheme, _)| scheme.eq_ignore_ascii_case("magnet:"));
        let (_, query) = query.ok_or(Error::Magnet("it does not begin with `magnet:?`"))?;
        let mut magnet = Self { v1: None, v2: None, name: None, trackers: Vec::new(), peers: Vec::new() };
        for (name, value) in parameters(query.as_bytes()) {
            match &unnumbered(name).to_ascii_lowercase()[..] {
                b"xt" => {
                    let topic = value.text().ok_or(Error::Magnet("`xt` is wrongly escaped"))?;
                    magnet.topic(&topic)?;
                }
                b"dn" => {
                    let name = value.text_of_form().filter(|name| may_be_shown(name));
                    magnet.name = magnet.name.or(name);
                }
                b"tr" if magnet.trackers.len() < MOST_TRACKERS => {
                    magnet.trackers.extend(value.text().filter(|url| may_be_tracker(url)));
                }
                b"x.pe" => value.text().into_iter().for_each(|peer| magnet.add_peer(peer)),
                _ => {}
            }
        }
        if magnet.v1.is_none() && magnet.v2.is_none() {
            return Err(Error::Magnet(
                "it has no `xt` with `urn:btih:` or `urn:btmh:`, and names no torrent",
            ));
        }
        Ok(magnet)
    }
}

/// The link of a torrent file, with its trackers in the order of their tiers.
impl From<&Metainfo> for Magnet {
    fn from(metainfo: &Metainfo) -> Self {
        let info = metainfo.info();
        Self {
            v1: info.has_v1().then_some(info.info_hash()),
            v2: info.info_hash_v2(),
            name: Some(info.name().to_owned()),
            trackers: metainfo.tiers().iter().flatten().cloned().collect(),
            peers: Vec::new(),
        }
    }
}

/// The link.
impl fmt::Display for Magnet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("magnet:?")?;
        if let Some(hash) = self.v1 {
            write!(f, "xt=urn:btih:{hash}")?;
        }
        if let Some(hash) = self.v2 {
            let and = if self.v1.is_some() { "&" } else { "" };
            write!(f, "{and}xt=urn:btmh:1220{}", HEXLOWER.encode(&hash))?;
        }
        for (key, values) in [("dn", self.name.as_slice()), ("tr", &self.trackers)] {
            for value in values {
                let mut escaped = Vec::new();
                escape(value.as_bytes(), &mut escaped);
                write!(f, "&{key}={}", String::from_utf8(escaped).expect("escaped is ASCII"))?;
            }
        }
        // As they are: libtorrent 2.0.8 does not unescape them.
        self.peers.iter().try_for_each(|peer| write!(f, "&x.pe={peer}"))
    }
}

/// A parameter's name without the number that links with several of a name may give them: `tr.1`.
fn unnumbered(name: &[u8]) -> &[u8] {
    let digits = name.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
    match name[..name.len() - digits].strip_suffix(b".") {
        Some(name_alone) if digits > 0 => name_alone,
        _ => name,
    }
}

/// The rest after `prefix`, which is the same in upper and lower case (RFC 8141).
fn urn<'a>(topic: &'a str, prefix: &str) -> Option<&'a str> {
    let (start, rest) = topic.split_at_checked(prefix.len())?;
    start.eq_ignore_ascii_case(prefix).then_some(rest)
}

fn v1_hash(text: &str) -> Option<InfoHash> {
    match text.len() {
        40 => text.parse().ok(),
        32 => BASE32.decode(text.to_ascii_uppercase().as_bytes()).ok()?.try_into().ok().map(<[u8; 20]>::into),
        _ => None,
    }
}

/// A multihash: 0x12 is SHA-256, 0x20 its length.
fn v2_hash(text: &str) -> Option<Hash> {
    let hash = HEXLOWER_PERMISSIVE.decode(text.strip_prefix("1220")?.as_bytes()).ok()?;
    hash.try_into().ok()
}

/// Whether it can be shown to people: as with names of files, no control characters, and none that make text
/// run the other way.
fn may_be_shown(name: &str) -> bool {
    let turns = |letter| matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    !name.is_empty()
        && name.len() <= Magnet::LONGEST_NAME
        && !name.contains(|letter: char| letter.is_control() || turns(letter))
}

fn may_be_peer(peer: &str) -> bool {
    if let Ok(address) = peer.parse::<SocketAddr>() {
        return address.port() != 0 && !peer.contains('%');
    }
    let Some((host, port)) = peer.rsplit_once(':') else { return false };
    let letters =
        |host: &str| host.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._".contains(&byte));
    let digits = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit());
    // The longest name of DNS.
    (1..=253).contains(&host.len())
        && letters(host)
        && digits(port)
        && port.parse().is_ok_and(|port: u16| port != 0)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const V1: &str = "631a31dd0a46257d5078c0dee4e66e26f73e42ac";
    const V2: &str = "d8dd32ac93357c368556af3ac1d95c9d76bd0dff6fa9833ecdac3d53134efabb";

    fn read(link: &str) -> Magnet {
        link.parse().unwrap_or_else(|error| panic!("{link}: {error}"))
    }

    fn refused(link: &str) -> String {
        link.parse::<Magnet>().unwrap_err().to_string()
    }

    #[test]
    fn links_as_the_beps_have_them_are_read() {
        // BEP 9: hex, and base32 as older links have it.
        let magnet = read(&format!("magnet:?xt=urn:btih:{V1}&dn=name&tr=udp%3A%2F%2Ft&x.pe=192.0.2.1:6881"));
        assert_eq!(magnet.info_hash().to_string(), V1);
        assert_eq!((magnet.info_hash_v1(), magnet.info_hash_v2()), (Some(magnet.info_hash()), None));
        assert_eq!(
            (magnet.name(), magnet.trackers(), magnet.peers()),
            (Some("name"), &["udp://t".into()][..], &["192.0.2.1:6881".into()][..])
        );
        let base32 = BASE32.encode(magnet.info_hash().as_bytes());
        for text in [base32.clone(), base32.to_lowercase(), V1.to_uppercase()] {
            assert_eq!(read(&format!("magnet:?xt=urn:btih:{text}")).info_hash(), magnet.info_hash());
        }
        // BEP 52: both hashes of a hybrid, one of v2.
        let magnet =
            read(&format!("magnet:?xt=urn:btih:{V1}&xt=urn:btmh:1220{V2}&dn=bittorrent-v1-v2-hybrid-test"));
        assert_eq!(
            (magnet.info_hash().to_string(), HEXLOWER.encode(&magnet.info_hash_v2().unwrap())),
            (V1.into(), V2.into())
        );
        let magnet = read(&format!("magnet:?xt=urn:btmh:1220{V2}"));
        assert_eq!((magnet.info_hash().to_string(), magnet.info_hash_v1()), (V2[..40].into(), None));
        // BEP 53, and the parameters of other networks.
        let magnet = read(&format!("MAGNET:?so=0,2,4-7&xt=urn:sha1:YNCK&XT.1=URN:BTIH:{V1}&DN=n&xl=5&&x"));
        assert_eq!((magnet.info_hash().to_string(), magnet.name()), (V1.into(), Some("n")));
    }

    #[test]
    fn optional_parameters_are_taken_if_they_can_be_used() {
        let magnet = read(&format!(
            "magnet:?dn=%ff&dn=a%0ab&dn=p%e2%80%aeq&dn=&dn=a+b%2Bc%20%C3%A9&dn=other&xt=urn:btih:{V1}\
             &tr=&tr=a%00&tr.1=http://x/?a=b+c&tr.12=udp%3A%2F%2Fb&tr.x=no&tr=%zz"
        ));
        assert_eq!(magnet.name(), Some("a b+c \u{e9}"));
        assert_eq!(magnet.trackers(), ["http://x/?a=b+c", "udp://b"]);
        let peers = ["[2001:db8::1]:80", "host.example:6881", "a_b-c:1", "%5B::1%5D%3A2"];
        let none = "1.2.3.4:0,host:0,1.2.3.4,::1:80,[::1],a:99999,a:+8,:80,a b:80,[fe80::1%251]:80,a/b:80,a:";
        let link =
            peers.into_iter().chain(none.split(',')).map(|peer| format!("&x.pe={peer}")).collect::<String>();
        let magnet = read(&format!("magnet:?xt=urn:btih:{V1}{link}"));
        assert_eq!(magnet.peers(), ["[2001:db8::1]:80", "host.example:6881", "a_b-c:1", "[::1]:2"]);
        let many = "&tr=a&x.pe=b:1".repeat(1000);
        let magnet = read(&format!("magnet:?xt=urn:btih:{V1}{many}"));
        assert_eq!((magnet.trackers().len(), magnet.peers().len()), (MOST_TRACKERS, Magnet::MOST_PEERS));
        let scoped = "[fe80::1%7]:80".parse().unwrap();
        assert_eq!(read(&format!("magnet:?xt=urn:btih:{V1}")).with_peer(scoped).peers(), ["[fe80::1]:80"]);
    }

    #[test]
    fn a_text_that_names_no_torrent_says_why() {
        let begins = "not a magnet link: it does not begin with `magnet:?`";
        for text in ["", "magnet:", "http://x?xt=urn:btih:", "xt=urn:btih:", "\u{e9}?"] {
            assert_eq!(refused(text), begins, "{text}");
        }
        for query in
            ["", "dn=x", "xt=", "xt=urn:btih", "xt=urn:sha1:x", "yt=urn:btih:x", "xt=\u{e9}rn:btih:x"]
        {
            let said = refused(&format!("magnet:?{query}"));
            assert!(said.ends_with("names no torrent"), "{query}: {said}");
        }
        for hash in
            ["", &V1[1..], &format!("{V1}0"), &V1.replace('a', "g"), &"1".repeat(32), &"\u{e9}".repeat(20)]
        {
            let said = refused(&format!("magnet:?xt=urn:btih:{hash}"));
            assert!(said.contains("40 digits of hex"), "{hash}: {said}");
        }
        for hash in [
            "",
            V2,
            &format!("1114{V1}"),
            &format!("1220{}", &V2[1..]),
            &format!("1220{V2}00"),
            &format!("1220{}", V2.replace('d', "x")),
        ] {
            let said = refused(&format!("magnet:?xt=urn:btmh:{hash}"));
            assert!(said.contains("followed by 1220"), "{hash}: {said}");
        }
        assert!(refused("magnet:?xt=urn%zz").contains("wrongly escaped"));
        let two = format!("magnet:?xt=urn:btih:{V1}&xt=urn:btih:{}", V1.replace('6', "7"));
        assert!(refused(&two).ends_with("names several torrents"));
        assert!(two.replace('7', "6").parse::<Magnet>().is_ok(), "the same twice");
        let long = format!("magnet:?xt=urn:btih:{V1}&x={}", "x".repeat(Magnet::LONGEST));
        assert!(refused(&long).ends_with("longer than 2 MiB"));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn a_read_link_is_written_so_that_it_is_read_again(
            hashes in (prop::option::of(any::<[u8; 20]>()), any::<[u8; 32]>()),
            name in prop::option::of("\\PC{1,40}"),
            trackers in prop::collection::vec("\\PC{1,40}", 0..4),
            peers in prop::collection::vec(any::<std::net::SocketAddr>(), 0..4),
        ) {
            let (v1, v2) = hashes;
            let name = name.filter(|name| may_be_shown(name));
            let trackers = trackers.into_iter().filter(|url| may_be_tracker(url)).collect();
            let v2 = (v1.is_none() || v2[0] % 2 == 0).then_some(v2);
            let magnet = Magnet { v1: v1.map(InfoHash::new), v2, name, trackers, peers: Vec::new() };
            let magnet = peers.into_iter().fold(magnet, Magnet::with_peer);
            let link = magnet.to_string();
            prop_assert!(link.is_ascii());
            prop_assert_eq!(link.parse(), Ok(magnet));
        }

        #[test]
        fn no_text_does_harm(text in "(magnet:\\?)?(xt=urn:bt[im]h:(1220)?[0-9a-f]{0,64}|[&=%+.a-z0-9:\\[\\]]|\\PC){0,20}") {
            if let Ok(magnet) = text.parse::<Magnet>() {
                prop_assert_eq!(magnet.to_string().parse(), Ok(magnet));
            }
        }
    }
}
