//! The differences between the announces of clients.

use swarmkeep::Family::{self, V4, V6};
use swarmkeep_tracker_protocol::udp::AnnounceOption;

/// The announces of a client whose responses were recorded too.
#[derive(Debug)]
pub(super) struct ClientHabits {
    client: &'static str,
    pub(super) peer_id: &'static str,
    pub(super) port: u16,
    /// The number of peers that it wants, and none when it stops. Without a number, it never gives one.
    pub(super) want: Option<u32>,
    /// The bytes behind its announces over UDP, and their meaning.
    pub(super) trailing: &'static [u8],
    pub(super) options: &'static [AnnounceOption<'static>],
    /// Over HTTP, like the rest.
    pub(super) no_peer_id: bool,
    /// The folders in which it names its IPv6 address (BEP 7), and the address: Transmission does so over any
    /// protocol.
    pub(super) names_v6: &'static [(Family, &'static str)],
    /// Parameters that the tracker does not read.
    pub(super) unknown: &'static [&'static str],
}

/// The habits of a client with recorded responses.
pub(super) fn habits_of(client: &str) -> &'static ClientHabits {
    CLIENTS.iter().find(|habits| habits.client == client).expect("habits that are known")
}

const PLAIN: ClientHabits = ClientHabits {
    client: "rtorrent-0.9.8",
    peer_id: "-lt0D80-",
    port: 6885,
    want: None,
    trailing: &[],
    options: &[],
    no_peer_id: false,
    names_v6: &[],
    unknown: &[],
};
const LIBTORRENT: ClientHabits = ClientHabits {
    client: "libtorrent-2.0.8.0",
    peer_id: "-LT2080-",
    port: 6883,
    want: Some(200),
    trailing: b"\x02\x09/announce",
    options: &[AnnounceOption::UrlData(b"/announce")],
    no_peer_id: true,
    names_v6: &[(V6, "2001:db8:77::4")],
    unknown: &["corrupt", "redundant", "supportcrypto"],
};
const QBITTORRENT: ClientHabits = ClientHabits {
    client: "qbittorrent-4.5.2",
    peer_id: "-qB4520-",
    port: 6884,
    names_v6: &[(V6, "2001:db8:77::5")],
    ..LIBTORRENT
};

static CLIENTS: [ClientHabits; 6] = [
    ClientHabits {
        client: "aria2-1.36.0",
        peer_id: "A2-1-36-0-",
        port: 6881,
        want: Some(50),
        trailing: &[0, 0],
        no_peer_id: true,
        unknown: &["supportcrypto"],
        ..PLAIN
    },
    LIBTORRENT,
    QBITTORRENT,
    ClientHabits { client: "qbittorrent-5.1.0", peer_id: "-qB5100-", ..QBITTORRENT },
    PLAIN,
    ClientHabits {
        client: "transmission-3.00",
        peer_id: "-TR3000-",
        port: 6882,
        want: Some(80),
        names_v6: &[(V4, "2001:db8:77::6"), (V6, "2001:db8:77::6")],
        unknown: &["supportcrypto"],
        ..PLAIN
    },
];
