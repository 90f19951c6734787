//! A device in memory that keeps everything but zeroes: stores of any size whose content is zeroes take next
//! to nothing.

use std::{collections::BTreeMap, io};

use parking_lot::RwLock;
use swarmkeep_content::block::{Barrier, BlockDevice, SECTOR, Sector};

/// As a device of so many sectors, all of them zeroes.
#[derive(Debug)]
pub(crate) struct ZeroDevice {
    sectors: u64,
    others: RwLock<BTreeMap<u64, Box<Sector>>>,
}

impl ZeroDevice {
    pub(crate) fn new(bytes: u64) -> Self {
        Self { sectors: bytes / SECTOR as u64, others: RwLock::default() }
    }
}

impl BlockDevice for ZeroDevice {
    fn sectors(&self) -> u64 {
        self.sectors
    }

    fn read(&self, first: u64, into: &mut [Sector]) -> io::Result<()> {
        let end = first + into.len() as u64;
        into.fill(Sector::ZERO);
        for (at, other) in self.others.read().range(first..end) {
            into[(at - first) as usize] = **other;
        }
        Ok(())
    }

    fn write(&self, first: u64, parts: &[&[Sector]]) -> io::Result<()> {
        let mut others = self.others.write();
        for (at, sector) in (first..).zip(parts.iter().copied().flatten()) {
            if sector == &Sector::ZERO {
                others.remove(&at);
            } else {
                others.insert(at, Box::new(*sector));
            }
        }
        Ok(())
    }

    fn flush(&self, _: Barrier) -> io::Result<()> {
        Ok(())
    }
}
