//! Messages of extensions (BEP 10).

mod handshake;
mod holepunch;
mod metadata;
mod pex;

use std::fmt;

use swarmkeep_bittorrent::bencode::{Dict, Length, Sink, Value};

pub use self::{
    handshake::ExtendedHandshake,
    holepunch::{Holepunch, HolepunchError},
    metadata::{METADATA_PIECE, MetadataMessage},
    pex::{Pex, PexFlags, PexPeer},
};
use crate::{Encode, Error, Message, PieceIndex};

/// A message of id 20 as it is in its frame. Its meaning depends on the ids of the receiver.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Extended<'a> {
    /// 0 for the extended handshake. Otherwise the id that the receiver gave to the extension in its own
    /// handshake.
    pub id: u8,
    /// The bytes after the id.
    pub payload: &'a [u8],
}

/// An extended message, read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtendedMessage<'a> {
    /// The extensions of the sender, and its client (BEP 10).
    Handshake(ExtendedHandshake<'a>),
    /// The info dictionary, piece by piece (BEP 9).
    Metadata(MetadataMessage<'a>),
    /// Other peers (BEP 11).
    Pex(Pex<'a>),
    /// The sender no longer has a piece (BEP 54).
    DontHave(PieceIndex),
    /// Whether the sender wants no pieces, complete or not (BEP 21).
    UploadOnly(bool),
    /// Help for two peers that cannot reach each other (BEP 55).
    Holepunch(Holepunch),
    /// A message of an unknown id.
    Unknown(Extended<'a>),
}

/// The extensions that this crate supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Extension {
    /// The extended handshake itself (BEP 10): always there, always 0.
    Handshake,
    /// `lt_donthave` (BEP 54).
    DontHave,
    /// `upload_only` (BEP 21).
    UploadOnly,
    /// `ut_holepunch` (BEP 55).
    Holepunch,
    /// `ut_metadata` (BEP 9).
    Metadata,
    /// `ut_pex` (BEP 11).
    Pex,
}

/// The ids that one side gives to extensions. It reads messages of these ids, and the other side writes them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct ExtensionIds {
    /// In the order of [`Extension::NEGOTIATED`]; 0 for missing ones.
    ids: [u8; 5],
}

/// An extended message with the id of its receiver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ToPeer<'a> {
    id: u8,
    message: ExtendedMessage<'a>,
}

impl<'a> Extended<'a> {
    /// Reads the message. `ours` are the ids of our own extended handshake.
    ///
    /// # Errors
    /// [`Error::Extension`], [`Error::Bencode`], [`Error::Endpoint`]: which field is wrong, and why. The
    /// frame was in order.
    pub fn read(&self, ours: &ExtensionIds) -> Result<ExtendedMessage<'a>, Error> {
        let Self { id, payload } = *self;
        let Some(extension) = ours.extension(id) else { return Ok(ExtendedMessage::Unknown(*self)) };
        let wrong = |what| Error::Extension { extension, what };
        Ok(match extension {
            Extension::Handshake => ExtendedMessage::Handshake(ExtendedHandshake::parse(payload)?),
            Extension::Metadata => ExtendedMessage::Metadata(MetadataMessage::parse(payload)?),
            Extension::Pex => ExtendedMessage::Pex(Pex::parse(payload)?),
            Extension::Holepunch => ExtendedMessage::Holepunch(Holepunch::parse(payload)?),
            Extension::DontHave => {
                let piece = payload.try_into().map_err(|_| wrong("the piece has 4 bytes"))?;
                ExtendedMessage::DontHave(PieceIndex(u32::from_be_bytes(piece)))
            }
            Extension::UploadOnly => match payload {
                [flag] => ExtendedMessage::UploadOnly(*flag != 0),
                _ => return Err(wrong("the flag has 1 byte")),
            },
        })
    }
}

impl<'a> ExtendedMessage<'a> {
    /// Its extension, if it is known.
    pub const fn extension(&self) -> Option<Extension> {
        Some(match self {
            Self::Handshake(_) => Extension::Handshake,
            Self::Metadata(_) => Extension::Metadata,
            Self::Pex(_) => Extension::Pex,
            Self::DontHave(_) => Extension::DontHave,
            Self::UploadOnly(_) => Extension::UploadOnly,
            Self::Holepunch(_) => Extension::Holepunch,
            Self::Unknown(_) => return None,
        })
    }

    /// The message for a peer with the ids `theirs` in its extended handshake; `None` if that peer does not
    /// support the extension.
    pub fn to_peer(self, theirs: &ExtensionIds) -> Option<ToPeer<'a>> {
        let id = match self {
            Self::Unknown(Extended { id, .. }) => id,
            _ => theirs.id(self.extension()?)?,
        };
        Some(ToPeer { id, message: self })
    }

    fn encode_payload<S: Sink>(&self, out: &mut S) {
        match *self {
            Self::Handshake(ref handshake) => handshake.encode(out),
            Self::Metadata(ref metadata) => metadata.encode(out),
            Self::Pex(ref pex) => pex.encode(out),
            Self::DontHave(piece) => out.put(&piece.0.to_be_bytes()),
            Self::UploadOnly(flag) => out.put(&[flag.into()]),
            Self::Holepunch(ref holepunch) => holepunch.encode(out),
            Self::Unknown(Extended { payload, .. }) => out.put(payload),
        }
    }
}

impl Encode for ToPeer<'_> {
    fn encode<S: Sink>(&self, out: &mut S) {
        let mut payload = Length::default();
        self.message.encode_payload(&mut payload);
        let [a, b, c, d] = crate::encode::prefix(1 + payload.0);
        out.put(&[a, b, c, d, crate::MessageId::EXTENDED.0, self.id]);
        self.message.encode_payload(out);
    }
}

impl Extension {
    /// The extensions with an id of their own, in the order of their names.
    pub const NEGOTIATED: [Self; 5] =
        [Self::DontHave, Self::UploadOnly, Self::Holepunch, Self::Metadata, Self::Pex];

    /// Its key in the dictionary `m` of the handshake.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Handshake => "extended handshake",
            Self::DontHave => "lt_donthave",
            Self::UploadOnly => "upload_only",
            Self::Holepunch => "ut_holepunch",
            Self::Metadata => "ut_metadata",
            Self::Pex => "ut_pex",
        }
    }
}

impl fmt::Display for Extension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ExtensionIds {
    /// None at all.
    pub const NONE: Self = Self { ids: [0; 5] };

    /// All extensions of this crate, with ids from 1 on.
    pub const ALL: Self = Self { ids: [1, 2, 3, 4, 5] };

    /// The same with `id` for `extension`; 0 removes it. The handshake stays 0.
    #[must_use]
    pub const fn with(mut self, extension: Extension, id: u8) -> Self {
        if let Some(nth) = (extension as usize).checked_sub(1) {
            self.ids[nth] = id;
        }
        self
    }

    /// The id of an extension, if it has one.
    pub const fn id(&self, extension: Extension) -> Option<u8> {
        match extension as usize {
            0 => Some(0),
            nth => match self.ids[nth - 1] {
                0 => None,
                id => Some(id),
            },
        }
    }

    /// The extension of an id; if several have the same, the first in the order of names.
    pub fn extension(&self, id: u8) -> Option<Extension> {
        match id {
            0 => Some(Extension::Handshake),
            id => self.iter().find_map(|(extension, known)| (known == id).then_some(extension)),
        }
    }

    /// All extensions with an id, in the order of names.
    pub fn iter(&self) -> impl Iterator<Item = (Extension, u8)> {
        Extension::NEGOTIATED.into_iter().zip(self.ids).filter(|(_, id)| *id != 0)
    }
}

impl fmt::Debug for ExtensionIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter().map(|(extension, id)| (extension.name(), id))).finish()
    }
}

impl fmt::Debug for Extended<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extended({}, {} bytes)", self.id, self.payload.len())
    }
}

impl<'a> From<Extended<'a>> for Message<'a> {
    fn from(extended: Extended<'a>) -> Self {
        Self::Extended(extended)
    }
}

/// The fields of a bencoded message.
#[derive(Clone, Copy)]
struct Fields<'a> {
    extension: Extension,
    dict: Dict<'a>,
}

impl<'a> Fields<'a> {
    fn of(value: Value<'a>, extension: Extension) -> Result<Self, Error> {
        let dict = value.dict().ok_or(Error::Extension { extension, what: "it is no dictionary" })?;
        Ok(Self { extension, dict })
    }

    fn wrong(&self, what: &'static str) -> Error {
        Error::Extension { extension: self.extension, what }
    }

    /// The number of an optional key. Fails with `what` if it does not fit.
    fn number<N: TryFrom<i64>>(&self, key: &str, what: &'static str) -> Result<Option<N>, Error> {
        let Some(value) = self.dict.get(key.as_bytes()) else { return Ok(None) };
        let number = value.integer().and_then(|number| number.try_into().ok());
        number.ok_or_else(|| self.wrong(what)).map(Some)
    }

    /// The byte string of an optional key. Fails with `what` if it is none.
    fn bytes(&self, key: &str, what: &'static str) -> Result<Option<&'a [u8]>, Error> {
        let Some(value) = self.dict.get(key.as_bytes()) else { return Ok(None) };
        value.bytes().ok_or_else(|| self.wrong(what)).map(Some)
    }
}
