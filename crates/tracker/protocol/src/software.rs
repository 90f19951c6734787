//! The client programs that peer ids name.

use swarmkeep_bittorrent::query::parameters;

macro_rules! software {
    ($($name:ident $text:literal $($begins:literal)+,)+) => {
        /// A client program, by the beginning of its peer id (BEP 20).
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Software {
            /// Any other program, or none.
            Other,
            $(#[doc = $text] $name,)+
        }

        impl Software {
            /// Every value.
            pub const ALL: [Self; 1 + [$($text),+].len()] = [Self::Other, $(Self::$name),+];

            /// Its name in metrics.
            pub const fn name(self) -> &'static str {
                match self { Self::Other => "other", $(Self::$name => $text,)+ }
            }

            /// The program of this peer id, of which nine bytes are enough.
            pub fn of(peer_id: &[u8]) -> Self {
                let begin = match *peer_id {
                    // Shadow's style: a letter, five places for the version, and dashes.
                    [letter @ b'A'..=b'Z', _, _, _, _, _, b'-', b'-', b'-', ..] => [letter, b'-', b'-'],
                    [a, b, c, ..] => [a, b, c],
                    _ => return Self::Other,
                };
                match &begin { $($(| $begins)+ => Self::$name,)+ _ => Self::Other }
            }
        }
    };
}

// From the lists of Transmission (libtransmission/clients.cc), libtorrent (src/identify_client.cpp) and
// WebTorrent (bittorrent-peerid), without most old programs; anacrolix and rqbit as in `fixtures`.
software! {
    Anacrolix "anacrolix" b"-GT", Ares "ares" b"-AG" b"-A~", Aria2 "aria2" b"A2-", Baidu "baidu" b"-BN",
    BiglyBt "biglybt" b"-BI", BitComet "bitcomet" b"-BC", BitLord "bitlord" b"-BL",
    BitSpirit "bitspirit" b"-SP", BitTorrent "bittorrent" b"-BT", BitTornado "bittornado" b"T--",
    Deluge "deluge" b"-DE", FlashGet "flashget" b"-FG", Folx "folx" b"-FL", Freebox "freebox" b"-FX",
    FreeDownloadManager "freedownloadmanager" b"-FD", FrostWire "frostwire" b"-FW",
    KTorrent "ktorrent" b"-KT", Libtorrent "libtorrent" b"-LT", MediaGet "mediaget" b"-MG",
    MlDonkey "mldonkey" b"-ML", MonoTorrent "monotorrent" b"-MO", PicoTorrent "picotorrent" b"-PI",
    QBittorrent "qbittorrent" b"-qB", QqDownload "qqdownload" b"-QD", Rqbit "rqbit" b"-rQ",
    RTorrent "rtorrent" b"-lt", Seedkeep "seedkeep" b"-KP", Shareaza "shareaza" b"-SZ" b"-S~",
    Tixati "tixati" b"TIX", Transmission "transmission" b"-TR", Tribler "tribler" b"-TL" b"R--",
    UTorrent "utorrent" b"-UT" b"-UE", UTorrentMac "utorrent_mac" b"-UM", UTorrentWeb "utorrent_web" b"-UW",
    Vuze "vuze" b"-AZ", WebTorrent "webtorrent" b"-WW" b"-WD", Xfplay "xfplay" b"-XF",
    Xunlei "xunlei" b"-XL" b"-SD", Zona "zona" b"-ZO",
}

impl Software {
    /// The program in the query of an announce, which need not be a valid one.
    pub fn of_query(query: &[u8]) -> Self {
        let (mut begin, named) = ([0; 9], parameters(query).find(|(name, _)| *name == b"peer_id"));
        let bytes = named.into_iter().flat_map(|(_, value)| value.bytes());
        begin.iter_mut().zip(bytes).for_each(|(to, byte)| *to = byte.unwrap_or_default());
        Self::of(&begin)
    }

    /// The program in a packet, if it is an announce (BEP 15).
    pub fn of_packet(packet: &[u8]) -> Self {
        let announce = packet.get(8..12).is_some_and(|action| action == [0, 0, 0, 1]);
        Self::of(packet.get(36..56).filter(|_| announce).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_have_one_of_forty_names_and_anything_else_has_none() {
        assert_eq!(Software::ALL.len(), 40);
        for (peer_id, name) in [
            ("-TR4060-abcdefghijkl", "transmission"),
            ("-SD0100-abcdefghijkl", "xunlei"),
            ("T03I-----abcdefghijk", "bittornado"),
            ("TIX0299-abcdefghijkl", "tixati"),
            ("-tR4060-abcdefghijkl", "other"),
            ("M7-10-5--bcdefghijkl", "other"),
            ("-T", "other"),
        ] {
            assert_eq!(Software::of(peer_id.as_bytes()).name(), name, "{peer_id}");
        }
        assert_eq!(Software::of_query(b"info_hash=x&peer_id=%2dqB5-&port=1"), Software::QBittorrent);
        assert_eq!([&b"peer_id=%2"[..], b"peer_id", b""].map(Software::of_query), [Software::Other; 3]);
    }
}
