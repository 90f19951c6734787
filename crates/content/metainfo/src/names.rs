//! Which names a file may have on every system.

use std::str::Chars;

/// A name with case folded. Two names that are equal after folding may be the same name for a file system.
pub fn folded(name: &str) -> String {
    let mut folded = String::new();
    fold(name, &mut folded);
    folded
}

/// Longest name of a file or folder, in bytes: `NAME_MAX` of Linux. macOS and Windows count other units, of
/// which there are never more.
const LONGEST_NAME: usize = 255;

/// What is wrong with the path of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathFault {
    /// No path, or one without names.
    #[error("has no path")]
    Missing,
    /// Not UTF-8, and there is no `path.utf-8` or `name.utf-8`.
    #[error("is not UTF-8")]
    NotUtf8,
    /// An empty name.
    #[error("has an empty name in its path")]
    Empty,
    /// The folder itself or the one above: `.` or `..`.
    #[error("has . or .. in its path, and would lie elsewhere")]
    Dots,
    /// `/` or `\` within a name, which could lead out of the folder.
    #[error("has a / or \\ within a name, and would lie elsewhere")]
    Separator,
    /// A control character, NUL among them, or one that makes text run the other way, so that it reads as
    /// another name.
    #[error("has a control character in a name")]
    Control,
    /// One of `<>:"|?*`, which Windows does not allow.
    #[error("has one of <>:\"|?* in a name, which Windows does not allow")]
    Reserved,
    /// A device of Windows, with any extension: `CON`, `prn.txt`, `COM1`.
    #[error("has the name of a device of Windows in its path")]
    Device,
    /// A dot or space at the end, which Windows drops.
    #[error("has a name that ends with a dot or a space, which Windows drops")]
    Trailing,
    /// A name that is too long for file systems.
    #[error("has a name of more than {LONGEST_NAME} bytes")]
    LongName,
    /// More than [`FileList::MOST_NAMES`](super::FileList::MOST_NAMES).
    #[error("lies in too many folders: {} names are allowed in a path", super::FileList::MOST_NAMES)]
    Deep,
    /// More than [`FileList::LONGEST_PATH`](super::FileList::LONGEST_PATH).
    #[error("has a path of more than {} bytes", super::FileList::LONGEST_PATH)]
    Long,
    /// The same path as an earlier file.
    #[error("has the path of file {0}")]
    Twice(usize),
    /// The path of an earlier file, except for case.
    #[error(
        "has the path of file {0} but for upper and lower case: where that makes no difference, one would overwrite the other"
    )]
    CaseOnly(usize),
    /// The path is that of a folder of other files, with or without regard to case.
    #[error("is also the folder of another")]
    Folder,
    /// A symbolic link (BEP 47): where it leads cannot be known from the torrent alone.
    #[error("is a symbolic link, which is not supported")]
    Link,
}

/// Whether a file or folder may have this name.
pub(super) fn check(name: &[u8]) -> Result<&str, PathFault> {
    let name = std::str::from_utf8(name).map_err(|_| PathFault::NotUtf8)?;
    let has = |forbidden: fn(char) -> bool| name.contains(forbidden);
    match name {
        "" => Err(PathFault::Empty),
        "." | ".." => Err(PathFault::Dots),
        _ if has(|letter| matches!(letter, '/' | '\\')) => Err(PathFault::Separator),
        _ if has(char::is_control) => Err(PathFault::Control),
        // Embeddings, overrides and isolates (UAX #9); joiners and marks, which some scripts need, are let
        // through.
        _ if has(|letter| matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')) => {
            Err(PathFault::Control)
        }
        _ if has(|letter| matches!(letter, '<' | '>' | ':' | '"' | '|' | '?' | '*')) => {
            Err(PathFault::Reserved)
        }
        _ if name.ends_with(['.', ' ']) => Err(PathFault::Trailing),
        _ if is_device(name) => Err(PathFault::Device),
        _ if name.len() > LONGEST_NAME => Err(PathFault::LongName),
        _ => Ok(name),
    }
}

/// Whether Windows opens a device by that name, in whatever folder.
fn is_device(name: &str) -> bool {
    let stem = name.split('.').next().unwrap_or(name).trim_end_matches(' ');
    let numbered = |word: &[u8]| {
        stem.as_bytes().split_first_chunk::<3>().is_some_and(|(start, number)| {
            // Latin-1's superscripts count as digits there.
            start.eq_ignore_ascii_case(word) && matches!(number, [b'0'..=b'9'] | [0xc2, 0xb9 | 0xb2 | 0xb3])
        })
    };
    ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$"].iter().any(|device| stem.eq_ignore_ascii_case(device))
        || numbered(b"COM")
        || numbered(b"LPT")
}

/// The letters of a name as file systems compare them that take upper and lower case for the same. No less
/// than any of them takes for the same, but for composed and decomposed letters (Unicode normalization),
/// which are told apart here and not on macOS.
pub(super) fn fold(name: &str, out: &mut String) {
    if name.is_ascii() {
        out.extend(name.bytes().map(|byte| byte.to_ascii_lowercase() as char));
    } else {
        let letters: Chars<'_> = name.chars();
        out.extend(letters.flat_map(char::to_uppercase).flat_map(char::to_lowercase));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_folder_or_mean_something_else_somewhere_are_refused() {
        for (name, fault) in [
            ("", PathFault::Empty),
            (".", PathFault::Dots),
            ("..", PathFault::Dots),
            ("/etc", PathFault::Separator),
            ("a/b", PathFault::Separator),
            ("..\\b", PathFault::Separator),
            ("a\0", PathFault::Control),
            ("a\nb", PathFault::Control),
            ("a\u{7f}", PathFault::Control),
            ("a\u{85}", PathFault::Control),
            ("photo\u{202e}gpj.exe", PathFault::Control),
            ("photo\u{2067}gpj.exe", PathFault::Control),
            ("C:", PathFault::Reserved),
            ("a?", PathFault::Reserved),
            ("a<", PathFault::Reserved),
            ("a>", PathFault::Reserved),
            ("a\"", PathFault::Reserved),
            ("a|", PathFault::Reserved),
            ("a*", PathFault::Reserved),
            ("...", PathFault::Trailing),
            ("a.", PathFault::Trailing),
            ("a ", PathFault::Trailing),
            ("CON", PathFault::Device),
            ("con", PathFault::Device),
            ("Prn.txt", PathFault::Device),
            ("aux.tar.gz", PathFault::Device),
            ("nul .txt", PathFault::Device),
            ("COM0", PathFault::Device),
            ("com9.x", PathFault::Device),
            ("lpt1", PathFault::Device),
            ("LPT²", PathFault::Device),
            ("conin$", PathFault::Device),
        ] {
            assert_eq!(check(name.as_bytes()), Err(fault), "{name:?}");
        }
        assert_eq!(check(b"\xff"), Err(PathFault::NotUtf8));
        assert_eq!(check("é".repeat(128).as_bytes()), Err(PathFault::LongName));
    }

    #[test]
    fn ordinary_names_are_taken() {
        let long = "é".repeat(127) + "x";
        for name in
            ["a", ".hidden", "a..b", " a", "CONTENT", "com", "COM10", "LPT", "null", "été.txt", "日本", &long]
        {
            assert_eq!(check(name.as_bytes()), Ok(name));
        }
    }

    #[test]
    fn case_is_folded_beyond_ascii() {
        let folded = |name| {
            let mut out = String::new();
            fold(name, &mut out);
            out
        };
        for (one, other) in [("README", "readme"), ("ÉTÉ", "été"), ("ΣΊΣΥΦΟΣ", "σίσυφος"), ("ſ", "S")]
        {
            assert_eq!(folded(one), folded(other));
        }
        assert_ne!(folded("e"), folded("é"));
    }
}
