//! The extended handshake: the extensions of a peer, and its client (BEP 10).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use swarmkeep_bittorrent::bencode::{Sink, Value, Writer};

use super::{Extension, ExtensionIds, Fields};
use crate::Error;

/// The extended handshake. It may come more than once: the fields of a later one replace those of an earlier
/// one.
///
/// Every field is optional. Unknown keys are ignored, in the dictionary and in its `m`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct ExtendedHandshake<'a> {
    /// `m`: the ids that the sender gives to extensions. 0 turns an extension off.
    pub ids: ExtensionIds,
    /// `v`: name and version of the client, usually UTF-8.
    pub client: Option<&'a [u8]>,
    /// `p`: the port at which the sender listens.
    pub port: Option<u16>,
    /// `yourip`: the address of the receiver, as the sender sees it.
    pub your_ip: Option<IpAddr>,
    /// `ipv4`: an address of the sender of that family.
    pub ipv4: Option<Ipv4Addr>,
    /// `ipv6`: an address of the sender of that family.
    pub ipv6: Option<Ipv6Addr>,
    /// `reqq`: how many requests the sender keeps without dropping any.
    pub request_queue: Option<u32>,
    /// `metadata_size`: bytes of the info dictionary (BEP 9). It is untrusted: check it before you allocate
    /// memory for it.
    pub metadata_size: Option<u32>,
    /// `upload_only`: the sender wants no pieces (BEP 21).
    pub upload_only: Option<bool>,
    /// `complete_ago`: seconds since the sender became a seeder, as in libtorrent; negative if it is not.
    pub complete_ago: Option<i64>,
}

impl<'a> ExtendedHandshake<'a> {
    /// A handshake with `ids` alone.
    pub fn new(ids: ExtensionIds) -> Self {
        Self { ids, ..Self::default() }
    }

    pub(super) fn parse(payload: &'a [u8]) -> Result<Self, Error> {
        let fields = Fields::of(Value::parse(payload)?, Extension::Handshake)?;
        let mut ids = ExtensionIds::NONE;
        if let Some(m) = fields.dict.get(b"m") {
            let m = Fields { dict: m.dict().ok_or_else(|| fields.wrong("m is no dictionary"))?, ..fields };
            for extension in Extension::NEGOTIATED {
                let id = m.number(extension.name(), "an id in m is no number from 0 to 255")?;
                ids = ids.with(extension, id.unwrap_or(0));
            }
        }
        let address = |key, what| fields.bytes(key, what);
        let your_ip = match address("yourip", "yourip is no byte string")? {
            None => None,
            Some(bytes) => Some(match (<[u8; 4]>::try_from(bytes), <[u8; 16]>::try_from(bytes)) {
                (Ok(v4), _) => IpAddr::from(v4),
                (_, Ok(v6)) => IpAddr::from(v6),
                _ => return Err(fields.wrong("yourip has 4 or 16 bytes")),
            }),
        };
        let fixed = |wrong| move |_| fields.wrong(wrong);
        let ipv4 = address("ipv4", "ipv4 is no byte string")?.map(<[u8; 4]>::try_from);
        let ipv6 = address("ipv6", "ipv6 is no byte string")?.map(<[u8; 16]>::try_from);
        Ok(Self {
            ids,
            client: fields.bytes("v", "v is no byte string")?,
            port: fields.number("p", "p is no port")?,
            your_ip,
            ipv4: ipv4.transpose().map_err(fixed("ipv4 has 4 bytes"))?.map(Ipv4Addr::from),
            ipv6: ipv6.transpose().map_err(fixed("ipv6 has 16 bytes"))?.map(Ipv6Addr::from),
            request_queue: fields.number("reqq", "reqq is no number of 32 bits")?,
            metadata_size: fields.number("metadata_size", "metadata_size is no number of 32 bits")?,
            upload_only: fields.number("upload_only", "upload_only is no number")?.map(|flag: i64| flag != 0),
            complete_ago: fields.number("complete_ago", "complete_ago is no number")?,
        })
    }

    pub(super) fn encode<S: Sink>(&self, out: &mut S) {
        let mut writer = Writer::new(out);
        writer.dict();
        let number = |writer: &mut Writer<'_, S>, key: &[u8], number: Option<i64>| {
            if let Some(number) = number {
                writer.bytes(key).integer(number);
            }
        };
        number(&mut writer, b"complete_ago", self.complete_ago);
        if let Some(ip) = self.ipv4 {
            writer.bytes(b"ipv4").bytes(&ip.octets());
        }
        if let Some(ip) = self.ipv6 {
            writer.bytes(b"ipv6").bytes(&ip.octets());
        }
        writer.bytes(b"m").dict();
        for (extension, id) in self.ids.iter() {
            writer.bytes(extension.name().as_bytes()).integer(id.into());
        }
        writer.end();
        number(&mut writer, b"metadata_size", self.metadata_size.map(i64::from));
        number(&mut writer, b"p", self.port.map(i64::from));
        number(&mut writer, b"reqq", self.request_queue.map(i64::from));
        number(&mut writer, b"upload_only", self.upload_only.map(i64::from));
        if let Some(client) = self.client {
            writer.bytes(b"v").bytes(client);
        }
        match self.your_ip {
            None => {}
            Some(IpAddr::V4(ip)) => drop(writer.bytes(b"yourip").bytes(&ip.octets())),
            Some(IpAddr::V6(ip)) => drop(writer.bytes(b"yourip").bytes(&ip.octets())),
        }
        writer.end();
    }
}
