//! The label of a torrent: its torrent file in short.

use std::sync::Arc;

use swarmkeep_metainfo::Metainfo;

/// A torrent file in short. It shares the memory of its label.
#[derive(Clone, PartialEq, Eq)]
pub struct Description {
    label: Arc<[u8]>,
}

impl Description {
    /// The first byte of a label. Labels of kind 1 named places of the torrent file in the store.
    const KIND: u8 = 2;
    /// Where the name begins.
    const NAME: usize = 11;

    pub(super) fn of(metainfo: &Metainfo, length: usize) -> Self {
        let info = metainfo.info();
        let files = info.files().iter().filter(|file| !file.is_padding()).count();
        Self::new(info.name(), length as u32, files as u32)
    }

    fn new(name: &str, length: u32, files: u32) -> Self {
        let name_length = (name.len() as u16).to_le_bytes();
        let parts: [&[u8]; 5] =
            [&[Self::KIND], &length.to_le_bytes(), &files.to_le_bytes(), &name_length, name.as_bytes()];
        Self { label: parts.concat().into() }
    }

    pub(super) fn parse(label: Arc<[u8]>) -> Option<Self> {
        let (head, name) = label.split_at_checked(Self::NAME)?;
        let is_one = head[0] == Self::KIND
            && usize::from(u16::from_le_bytes([head[9], head[10]])) == name.len()
            && std::str::from_utf8(name).is_ok();
        is_one.then_some(Self { label })
    }

    pub(super) fn label(&self) -> &[u8] {
        &self.label
    }

    /// The name of the torrent.
    pub fn name(&self) -> &str {
        std::str::from_utf8(&self.label[Self::NAME..]).expect("it was UTF-8 when it was made")
    }

    /// The length of the torrent file.
    pub fn length(&self) -> u32 {
        self.number(1)
    }

    /// How many files the torrent has, without padding.
    pub fn files(&self) -> u32 {
        self.number(5)
    }

    fn number(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.label[at..at + 4].try_into().expect("four bytes"))
    }
}

debug_as!(Description, it, "{:?}, {} files", it.name(), it.files());

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_reads_as_it_was_written_and_no_part_of_it_is_one() {
        let made = Description::new("a näme", 70_000, 7);
        assert_eq!((made.name(), made.length(), made.files()), ("a näme", 70_000, 7));
        assert_eq!(Description::parse(made.label().into()), Some(made.clone()));
        for cut in 0..made.label().len() {
            assert_eq!(Description::parse(made.label()[..cut].into()), None, "the first {cut} bytes");
        }
        for (at, byte) in [(0, 1), (9, 6), (13, 0xff)] {
            let mut label = made.label().to_vec();
            label[at] = byte;
            assert_eq!(Description::parse(label.into()), None, "{byte} in byte {at}");
        }
    }
}
