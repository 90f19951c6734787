//! The content that a device has before it is overwritten.

use std::{io, sync::Arc};

use swarmkeep_content::{
    ContentRepository, Error as StoreError,
    block::{BlockDevice, BlockStore, FileDevice, SECTOR, sectors},
};

/// Sectors at the beginning and at the end, 1 MiB, in which most users of a device leave a trace.
const EDGE: u64 = 256;

/// Signatures of known owners of devices: offset, bytes, owner. Checked in this order. From the documentation
/// of each.
const SIGNATURES: &[(usize, &[u8], &str)] = &[
    (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    (0x438, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (0, b"XFSB", "an XFS file system"),
    (0x1_0040, b"_BHRfS_M", "a btrfs file system"),
    (0x400, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    (0, b"hsqs", "a squashfs file system"),
    (0x8001, b"CD001", "an ISO 9660 file system"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (0x52, b"FAT32   ", "a FAT file system"),
    (0x36, b"FAT1", "a FAT file system"),
    (0xff6, b"SWAPSPACE2", "swap space"),
    (0x218, b"LVM2 001", "a physical volume of LVM"),
    (0x1000, b"\xfc\x4e\x2b\xa9", "a member of a Linux RAID"),
    (0x200, b"EFI PART", "a partition table (GPT)"),
    (0x1fe, b"\x55\xaa", "a partition table or a boot sector (MBR)"),
];

/// Sectors between the edges that are read.
const SAMPLES: u64 = 64;

/// The content of a device; `None` if all bytes that were read are zero.
pub(super) fn content_of(device: &Arc<FileDevice>) -> io::Result<Option<String>> {
    let store = BlockStore::boot_read_only(Arc::clone(device));
    if let Ok(store) = &store {
        let torrents = store.list().map_or(0, |torrents| torrents.len());
        return Ok(Some(format!("a content store with {}", super::counted(torrents, "torrent"))));
    }
    let edge = EDGE.min(device.sectors());
    let start = read(device, 0, edge)?;
    if let Some(owner) = signer(&start) {
        return Ok(Some(owner.to_owned()));
    }
    if let Err(StoreError::NotAStore { what, .. }) = store
        && !what.starts_with("no content store")
    {
        return Ok(Some(format!("a content store that does not open ({what})")));
    }
    let something = |first: u64, bytes: &[u8]| {
        bytes.iter().position(|&byte| byte != 0).map(|byte| first * SECTOR as u64 + byte as u64)
    };
    let mut first = something(0, &start);
    // A file system may begin behind a partition table that was wiped.
    let places = (1..SAMPLES).map(|sample| (device.sectors() / SAMPLES * sample, 1));
    for (at, count) in places.chain([(device.sectors() - edge, edge)]) {
        if first.is_none() && count <= device.sectors() {
            first = something(at, &read(device, at, count)?);
        }
    }
    Ok(first.map(|byte| format!("something this program does not know, at byte {byte}")))
}

/// The owner of a device by its signature, if this program knows it.
pub(super) fn owner_of(device: &FileDevice) -> io::Result<Option<&'static str>> {
    Ok(signer(&read(device, 0, EDGE.min(device.sectors()))?))
}

fn signer(start: &[u8]) -> Option<&'static str> {
    let signed = |&&(at, signature, _): &&(usize, &[u8], _)| {
        start.get(at..at + signature.len()).is_some_and(|found| found == signature)
    };
    SIGNATURES.iter().find(signed).map(|&(.., owner)| owner)
}

fn read(device: &FileDevice, first: u64, count: u64) -> io::Result<Vec<u8>> {
    let mut read = sectors(count as usize);
    device.read(first, &mut read)?;
    Ok(read.iter().flat_map(|sector| sector.0).collect())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_content_of_a_device_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device");
        let on = |bytes: &[u8]| {
            fs::write(&path, bytes).unwrap();
            content_of(&Arc::new(FileDevice::open(&path, true).unwrap())).unwrap()
        };
        assert_eq!(on(&[0; 3 << 20]), None);
        assert_eq!(on(&[]), None);
        let mut bytes = vec![0; 3 << 20];
        bytes[(3 << 20) - 5] = 1;
        assert_eq!(on(&bytes).unwrap(), "something this program does not know, at byte 3145723");
        // As after wiping a partition table, but not its partitions.
        let mut bytes = vec![0; 64 << 20];
        bytes[5 << 20] = 1;
        assert_eq!(on(&bytes).unwrap(), "something this program does not know, at byte 5242880");
        for &(at, signature, owner) in SIGNATURES {
            let mut bytes = vec![0; 3 << 20];
            bytes[at..at + signature.len()].copy_from_slice(signature);
            assert_eq!(on(&bytes).unwrap(), owner);
        }
    }
}
