//! The search for a store's root, in two copies, and the reasons why there is none.

use std::{collections::BTreeSet, path::Path};

use super::{
    BlockDevice, Damage, MOST_TORRENTS, Sector,
    format::{ENTRIES, LOGICAL_PER_SECTOR, RootEntry, RootHeader, VERSION},
    mutant::{Mutant, Mutation},
    root::{HEAD, RootCopy, first_sector},
    root_blocks,
};
use crate::{Error, Result};

/// The smallest block and the largest: 16 KiB and 64 MiB.
pub(super) const BLOCK_SHIFTS: std::ops::RangeInclusive<u8> = 14..=26;

/// Why there is no store.
#[derive(Debug)]
pub(super) enum BootRefusal {
    /// The device has none that can be used.
    Because(String),
    Rootless(&'static str),
    /// The device could not be written to.
    Error(Error),
}

impl BootRefusal {
    pub(super) fn into_error(self, path: &Path) -> Error {
        let what = match self {
            Self::Because(what) => what,
            Self::Rootless(what) => what.to_owned(),
            Self::Error(error) => return error,
        };
        Error::NotAStore { path: path.to_owned(), what }
    }
}

impl From<Error> for BootRefusal {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

pub(super) struct ChosenRoot {
    pub(super) header: RootHeader,
    pub(super) entries: Vec<RootEntry>,
    /// The sectors in which the other copy has other entries, if they are known.
    pub(super) differing: Option<BTreeSet<u64>>,
    pub(super) damage: Vec<Damage>,
}

pub(super) fn find_root(device: &dyn BlockDevice, mutation: Mutation) -> Result<ChosenRoot, BootRefusal> {
    let headers = find_headers(device)?;
    let mut copies: Vec<_> = headers.into_iter().map(|header| RootCopy::read(device, header)).collect();
    copies.sort_by_key(|copy| std::cmp::Reverse(copy.header.generation.get()));
    let whole = copies.iter().position(|copy| copy.whole || mutation.is(Mutant::TornRoot));
    match whole {
        Some(at) => {
            // A copy that was being written when the power failed is not damage: its generation was never
            // reported. Only sectors without a valid checksum, which no unfinished write leaves, show that
            // something was lost.
            let newer_is_damaged = copies[..at].iter().any(|copy| copy.sectors.contains(&None));
            let chosen = &copies[at];
            let (header, other) = (chosen.header, copies.get(1 - at));
            let alike = match other {
                // The same entries have the same checksums in both copies.
                Some(other) => other.header.entries_checksum == header.entries_checksum,
                None => {
                    let lost = RootHeader { copy: 1 - header.copy, entry_sectors: u32::MAX.into(), ..header };
                    RootCopy::read(device, lost).entries() == chosen.entries()
                }
            };
            let damage = Damage::OlderRoot { generation: header.generation.get(), alike };
            let damage = (newer_is_damaged || other.is_none()).then_some(damage).into_iter().collect();
            let differing = other.and_then(|other| chosen.differing(other));
            let entries = chosen.sectors.iter().flatten().flat_map(|sector| **sector).collect();
            Ok(ChosenRoot { header, entries, differing, damage })
        }
        None => {
            // A copy that is not whole though all of it can be read was being written, and never reported: it
            // but fills the gaps of one that was. Then each sector from the latest copy that has it.
            let generation = copies[0].header.generation;
            copies.sort_by_key(|copy| !copy.sectors.contains(&None));
            let header = RootHeader { generation, ..copies[0].header };
            let most = copies.iter().map(|copy| copy.sectors.len()).max().unwrap_or(0);
            let mut lost = 0;
            let entries = (0..most)
                .flat_map(|at| {
                    let found = copies.iter().find_map(|copy| copy.sectors.get(at)?.as_deref());
                    lost += u64::from(found.is_none()) * ENTRIES as u64;
                    *found.unwrap_or(&[RootEntry::NONE; ENTRIES])
                })
                .collect();
            Ok(ChosenRoot { header, entries, differing: None, damage: vec![Damage::Root { entries: lost }] })
        }
    }
}

/// The headers of the copies, at least one.
fn find_headers(device: &dyn BlockDevice) -> Result<Vec<RootHeader>, BootRefusal> {
    let (mut newer, mut unreadable, mut damaged) = (None, None, false);
    let mut read = |first: u64, copy: u8| {
        let mut sector = [Sector::ZERO];
        if first >= device.sectors() {
            return None;
        }
        if let Err(error) = device.read(first, &mut sector) {
            unreadable = Some(error);
            return None;
        }
        damaged |= RootHeader::is_like(&sector[0]);
        match RootHeader::parse(&sector[0], copy) {
            Ok(header) => header.filter(|header| {
                BLOCK_SHIFTS.contains(&header.block_shift)
                    && first_sector(header) == first
                    && (1..=root_blocks(MOST_TORRENTS, header.block_shift))
                        .contains(&header.root_blocks.get())
                    && header.generation.get() < u64::MAX / 2
                    && header.root_blocks.get().checked_mul(2).is_some_and(|root| root < header.blocks.get())
            }),
            Err(version) => {
                newer = Some(version);
                None
            }
        }
    };
    let mut headers: Vec<RootHeader> = read(0, 0).into_iter().collect();
    if headers.iter().any(|first| first.generation.get() == 0) {
        return Err(BootRefusal::Because("its format was interrupted: format it again".to_owned()));
    }
    // The place of the second copy depends on the size of the blocks, which is only in the copies.
    let mut seconds = BLOCK_SHIFTS.filter_map(|shift| read(1 << (shift - 12), 1));
    match headers.first().copied() {
        Some(first) => headers.extend(seconds.filter(|second| {
            (second.uuid, second.block_shift, second.root_blocks, second.blocks)
                == (first.uuid, first.block_shift, first.root_blocks, first.blocks)
        })),
        None => headers.extend(seconds.find(|second| is_of_first(device, second))),
    }
    if headers.is_empty() {
        if let Some(source) = unreadable {
            return Err(BootRefusal::Error(Error::Io { what: "reading the root", source }));
        }
        return Err(match newer {
            Some(version) => BootRefusal::Because(format!(
                "its format has version {version}, and this program knows none after {VERSION}: use a later one"
            )),
            None if damaged => BootRefusal::Rootless("both copies of its root are damaged; repair it"),
            None => BootRefusal::Rootless(
                "no content store is found on it; format it, or repair it if there was one",
            ),
        });
    }
    // Not before it is known that it is no content.
    match headers[0].version.get() {
        VERSION => Ok(headers),
        version => Err(BootRefusal::Because(format!(
            "its format has version {version}, and commit 7132e1d is the last that reads it"
        ))),
    }
}

/// Whether the first copy, whose header is damaged, has entries of the same root as `second`. Content may
/// look like a second copy, but cannot be where the first copy is.
fn is_of_first(device: &dyn BlockDevice, second: &RootHeader) -> bool {
    // In blocks of any size, content begins in sector 8 or behind it.
    let sectors = 8.min(1 << (second.block_shift - 12)) - HEAD as u32;
    let entry_sectors = (sectors * LOGICAL_PER_SECTOR as u32).into();
    let first = RootHeader { copy: 0, entry_sectors, ..*second };
    RootCopy::read(device, first).sectors.iter().any(Option::is_some)
}
