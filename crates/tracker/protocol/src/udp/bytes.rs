//! Reads and writes the fields of a packet in their order.

use crate::Error;

/// Takes fields off the front of a packet, after one check of its length.
pub(super) struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// Starts on `packet`, which must have at least `least` bytes for this kind of message.
    pub(super) fn new(packet: &'a [u8], what: &'static str, least: usize) -> Result<Self, Error> {
        if packet.len() < least {
            return Err(Error::TooShort { what, least, got: packet.len() });
        }
        Ok(Self(packet))
    }

    /// The next `N` bytes. The `least` of `new` is the sum of all of them.
    pub(super) fn array<const N: usize>(&mut self) -> [u8; N] {
        let (field, rest) = self.0.split_first_chunk().expect("`new` has checked the length of all fields");
        self.0 = rest;
        *field
    }

    pub(super) fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.array())
    }

    pub(super) fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.array())
    }

    pub(super) fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.array())
    }

    pub(super) fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// Writes fields into a buffer that is long enough.
#[derive(Debug)]
pub(super) struct Writer<'a> {
    out: &'a mut [u8],
    used: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(out: &'a mut [u8]) -> Self {
        Self { out, used: 0 }
    }

    pub(super) fn bytes(&mut self, field: &[u8]) -> &mut Self {
        self.out[self.used..][..field.len()].copy_from_slice(field);
        self.used += field.len();
        self
    }

    pub(super) fn u16(&mut self, field: u16) -> &mut Self {
        self.bytes(&field.to_be_bytes())
    }

    pub(super) fn u32(&mut self, field: u32) -> &mut Self {
        self.bytes(&field.to_be_bytes())
    }

    pub(super) fn u64(&mut self, field: u64) -> &mut Self {
        self.bytes(&field.to_be_bytes())
    }

    /// Bytes that still fit.
    pub(super) fn room(&self) -> usize {
        self.out.len() - self.used
    }

    /// Bytes written.
    pub(super) fn len(&self) -> usize {
        self.used
    }
}
