//! The attributes of a file (BEP 47), from its `attr`.

#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Attributes {
    pub(super) padding: bool,
    pub(super) executable: bool,
    pub(super) link: bool,
}

pub(super) fn attributes(attr: Option<&[u8]>) -> Attributes {
    let has = |letter| attr.is_some_and(|attr| attr.contains(&letter));
    Attributes { padding: has(b'p'), executable: has(b'x'), link: has(b'l') }
}
