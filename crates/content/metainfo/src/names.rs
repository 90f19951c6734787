//! The names by which files can be written.

use std::{borrow::Cow, str::Chars};

/// A name with case folded. Two names that are equal after folding may be the same name for a file system.
pub fn folded(name: &str) -> String {
    let mut folded = String::new();
    fold(name, &mut folded);
    folded
}

/// Longest name of a file or folder, in bytes: `NAME_MAX` of Linux. macOS and Windows count other units, of
/// which there are never more.
pub(super) const LONGEST_NAME: usize = 255;

/// The longest extension that is kept where a name is cut, in bytes, with its dot.
const LONGEST_EXTENSION: usize = 17;

/// Whether names that differ in case only may be the same for file systems of this system.
pub(super) const IGNORES_CASE: bool = cfg!(any(windows, target_vendor = "apple"));

/// Why a file cannot have a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathFault {
    /// No path, or one without names.
    #[error("has no path")]
    Missing,
    /// Not UTF-8.
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
    /// On Windows: one of `<>:"|?*`, which it does not allow.
    #[error("has one of <>:\"|?* in a name, which Windows does not allow")]
    Reserved,
    /// On Windows: one of its devices, with any extension: `CON`, `prn.txt`, `COM1`.
    #[error("has the name of a device of Windows in its path")]
    Device,
    /// On Windows: a dot or space at the end, which it drops.
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
    /// On Windows and macOS: the path of an earlier file, except for case.
    #[error(
        "has the path of file {0} but for upper and lower case: where that makes no difference, one would overwrite the other"
    )]
    CaseOnly(usize),
    /// The path is a folder of other files; on Windows and macOS without regard to case.
    #[error("is also the folder of another")]
    Folder,
}

/// The name, if a file or folder may be called so on this system.
pub(super) fn check(name: &[u8]) -> Result<&str, PathFault> {
    check_on(name, cfg!(windows))
}

/// The name of a file or folder on this system.
pub(super) fn written(name: &[u8]) -> Cow<'_, str> {
    written_on(name, cfg!(windows))
}

/// Makes sure that a file or folder may be called so on some system.
pub(super) fn check_possible(name: &[u8]) -> Result<(), PathFault> {
    match name {
        b"" => Err(PathFault::Empty),
        b"." | b".." => Err(PathFault::Dots),
        _ if name.contains(&b'/') => Err(PathFault::Separator),
        _ if name.contains(&0) => Err(PathFault::Control),
        _ => Ok(()),
    }
}

fn check_on(name: &[u8], windows: bool) -> Result<&str, PathFault> {
    let name = std::str::from_utf8(name).map_err(|_| PathFault::NotUtf8)?;
    match name {
        "" => Err(PathFault::Empty),
        "." | ".." => Err(PathFault::Dots),
        _ if let Some(fault) = name.chars().find_map(|letter| fault_of(letter, windows)) => Err(fault),
        _ if windows && name.ends_with(['.', ' ']) => Err(PathFault::Trailing),
        _ if windows && is_device(name) => Err(PathFault::Device),
        _ if name.len() > LONGEST_NAME => Err(PathFault::LongName),
        _ => Ok(name),
    }
}

/// Why a name may not contain this letter.
fn fault_of(letter: char, windows: bool) -> Option<PathFault> {
    match letter {
        '/' | '\\' => Some(PathFault::Separator),
        // Embeddings, overrides and isolates (UAX #9); joiners and marks, which some scripts need, are let
        // through.
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => Some(PathFault::Control),
        _ if letter.is_control() => Some(PathFault::Control),
        '<' | '>' | ':' | '"' | '|' | '?' | '*' if windows => Some(PathFault::Reserved),
        _ => None,
    }
}

fn written_on(name: &[u8], windows: bool) -> Cow<'_, str> {
    if let Ok(name) = check_on(name, windows) {
        return Cow::Borrowed(name);
    }
    let mut new = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        new.extend(chunk.valid().chars().map(|letter| fault_of(letter, windows).map_or(letter, |_| '_')));
        if !chunk.invalid().is_empty() {
            new.push('_');
        }
    }
    if windows {
        new.truncate(new.trim_end_matches(['.', ' ']).len());
    }
    if matches!(&*new, "" | "." | "..") {
        return Cow::Borrowed("_");
    }
    if windows && is_device(&new) {
        new.insert(0, '_');
    }
    Cow::Owned(with_number(&new, "", LONGEST_NAME))
}

/// A name with something before its extension, in no more than `room` bytes.
pub fn with_number(name: &str, number: &str, room: usize) -> String {
    let dot = name.rfind('.').filter(|&dot| dot > 0 && name.len() - dot <= LONGEST_EXTENSION);
    let (stem, extension) = name.split_at(dot.unwrap_or(name.len()));
    let stem = &stem[..stem.floor_char_boundary(room.saturating_sub(number.len() + extension.len()))];
    [stem, number, extension].concat()
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
/// which are different here and not on macOS.
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
    fn names_that_cannot_be_written_are_changed_no_more_than_needed() {
        for (name, fault, written) in [
            ("", PathFault::Empty, "_"),
            (".", PathFault::Dots, "_"),
            ("..", PathFault::Dots, "_"),
            ("/", PathFault::Separator, "_"),
            ("/etc", PathFault::Separator, "_etc"),
            ("a/b", PathFault::Separator, "a_b"),
            ("..\\b", PathFault::Separator, ".._b"),
            ("a\0", PathFault::Control, "a_"),
            ("a\nb", PathFault::Control, "a_b"),
            ("a\u{7f}", PathFault::Control, "a_"),
            ("a\u{85}", PathFault::Control, "a_"),
            ("photo\u{202e}gpj.exe", PathFault::Control, "photo_gpj.exe"),
            ("photo\u{2067}gpj.exe", PathFault::Control, "photo_gpj.exe"),
        ] {
            for windows in [false, true] {
                assert_eq!(check_on(name.as_bytes(), windows), Err(fault), "{name:?}");
                assert_eq!(written_on(name.as_bytes(), windows), written);
                assert_eq!(check_on(written.as_bytes(), windows), Ok(written));
            }
        }
        assert_eq!(check(b"a\xff\xfe.b"), Err(PathFault::NotUtf8));
        assert_eq!(written(b"a\xff\xfe.b"), "a__.b");
        for (long, cut) in [
            ("é".repeat(128), "é".repeat(127)),
            ("é".repeat(128) + ".flac", "é".repeat(125) + ".flac"),
            ("x".repeat(300) + "." + &"y".repeat(30), "x".repeat(255)),
        ] {
            assert_eq!(check(long.as_bytes()), Err(PathFault::LongName));
            assert_eq!(written(long.as_bytes()), cut);
        }
    }

    #[test]
    fn names_that_windows_dislikes_are_changed_only_there() {
        for (name, fault, written) in [
            ("C:", PathFault::Reserved, "C_"),
            ("What?.txt", PathFault::Reserved, "What_.txt"),
            ("<>\"|*", PathFault::Reserved, "_____"),
            ("...", PathFault::Trailing, "_"),
            ("Vol. 1.", PathFault::Trailing, "Vol. 1"),
            ("a ", PathFault::Trailing, "a"),
            ("CON", PathFault::Device, "_CON"),
            ("con", PathFault::Device, "_con"),
            ("Prn.txt", PathFault::Device, "_Prn.txt"),
            ("aux.tar.gz", PathFault::Device, "_aux.tar.gz"),
            ("nul .txt", PathFault::Device, "_nul .txt"),
            ("COM0", PathFault::Device, "_COM0"),
            ("com9.x", PathFault::Device, "_com9.x"),
            ("lpt1", PathFault::Device, "_lpt1"),
            ("LPT²", PathFault::Device, "_LPT²"),
            ("conin$", PathFault::Device, "_conin$"),
        ] {
            assert_eq!(check_on(name.as_bytes(), true), Err(fault), "{name:?}");
            assert_eq!(written_on(name.as_bytes(), true), written);
            assert_eq!(check_on(written.as_bytes(), true), Ok(written));
            assert_eq!(written_on(name.as_bytes(), false), name);
        }
    }

    #[test]
    fn ordinary_names_are_taken() {
        let long = "é".repeat(127) + "x";
        for name in
            ["a", ".hidden", "a..b", " a", "CONTENT", "com", "COM10", "LPT", "null", "été.txt", "日本", &long]
        {
            assert_eq!(check_on(name.as_bytes(), true), Ok(name));
        }
    }

    #[test]
    fn numbers_stand_before_the_extension() {
        for (name, room, numbered) in [
            ("bar.txt", 255, "bar.1.txt"),
            ("bar", 255, "bar.1"),
            (".bar", 255, ".bar.1"),
            ("bar.txt", 7, "b.1.txt"),
            ("été", 6, "ét.1"),
        ] {
            assert_eq!(with_number(name, ".1", room), numbered);
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
