//! The bytes of a shard in a file: parts, each with its length outside of it.
//!
//! The first part has the version of this format, and the settings of the shard's callers. Each of the others
//! has a time, and the [`Records`] of some swarms, with ages relative to it.

use swarmkeep::{Budget, Export, Malformed, Records, Timestamp, TorrentRepository as _};

use crate::{
    request::{self, Reader, Terms},
    shard::Shard,
};

pub(crate) const VERSION: u8 = 1;

/// Peers and swarms per part, about.
const PART: usize = 4096;

/// Why a shard was not read.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unreadable {
    #[error("the shard is of version {0}, and this module knows versions up to {VERSION}: load a newer one")]
    Version(u8),
    #[error("the shard is not whole")]
    Parts,
    #[error("the shard is damaged: {0}")]
    Records(#[from] Malformed),
}

impl From<request::Malformed> for Unreadable {
    fn from(_: request::Malformed) -> Self {
        Self::Parts
    }
}

impl Shard {
    /// Passes all parts to `write`.
    pub(crate) fn write(&self, mut write: impl FnMut(&[u8])) {
        let mut head = vec![VERSION];
        head.extend(self.identity);
        head.extend(self.newest.to_le_bytes());
        head.extend(self.terms.lifetime.to_le_bytes());
        head.extend(self.terms.limit.to_le_bytes());
        head.extend(self.evicted().to_le_bytes());
        write(&head);
        let mut part = Vec::new();
        self.export(|records| {
            part.clear();
            part.extend(records.until().as_secs().to_le_bytes());
            part.extend(records.as_bytes());
            write(&part);
        });
    }

    /// The inverse of [`write`](Self::write). `next` returns one part after another, and then `None`.
    pub(crate) fn read<P: AsRef<[u8]>>(
        mut next: impl FnMut() -> Result<Option<P>, Unreadable>,
    ) -> Result<Self, Unreadable> {
        let head = next()?.ok_or(Unreadable::Parts)?;
        let mut head = Reader(head.as_ref());
        let version = head.u8()?;
        if version != VERSION {
            return Err(Unreadable::Version(version));
        }
        let (identity, newest) = (head.array()?, head.u32()?);
        let terms = Terms { lifetime: head.u32()?, limit: head.u16()? };
        let evicted = head.u64()?;
        let mut shard = head.end(Self::new(identity, terms).ok_or(Unreadable::Parts)?)?;
        (shard.newest, shard.evicted_before) = (newest, evicted);
        let mut records = Records::new(Timestamp::default());
        while let Some(part) = next()? {
            let mut part = Reader(part.as_ref());
            let until = Timestamp::from_secs(part.u64()?);
            records.read::<Unreadable>(until, |bytes| {
                bytes.extend(part.0);
                Ok(())
            })?;
            shard.import(&records);
        }
        Ok(shard)
    }

    /// Passes all swarms to `show`, in parts.
    pub(crate) fn export(&self, mut show: impl FnMut(&Records)) {
        let mut export = Export::new();
        while !export.is_complete() {
            self.store.export(&mut export, self.now(), Budget::peers(PART));
            if !export.records().is_empty() {
                show(export.records());
            }
        }
    }
}
