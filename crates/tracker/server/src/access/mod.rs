//! Access to the tracker: [the torrents](Access) that it serves, [the members](Passkeys) of a private one,
//! and [the networks](Networks) that it refuses.
//!
//! All are text files with one entry per line, which people and programs may edit while the tracker runs.
//! [`Watched`] tells when a file has changed; the caller then loads it again and replaces the old list. A
//! list itself never changes, so a lookup takes no lock. [`add_line`] and [`remove_line`] edit a file for an
//! operator without a shell.
//!
//! A line contains one entry; a passkey may have a name and a date behind it. Empty lines, comments that
//! begin with `#`, CRLF, blanks around an entry, the byte order mark of UTF-8 and repeated entries are
//! allowed. A line has at most 65,535 bytes.
//!
//! ```
//! use swarmkeep_tracker::access::{Access, Change, InfoHashList, Watched};
//!
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("allowed");
//! # std::fs::write(&path, "0123456789abcdef0123456789abcdef01234567 # a good one\n")?;
//! // Before the file is read, so that no change can fall between the two.
//! let mut watched = Watched::new(&path);
//! let mut access = Access::Allow(InfoHashList::load(&path)?);
//! assert!(access.admits(&"0123456789abcdef0123456789abcdef01234567".parse()?));
//!
//! // About once per second:
//! match watched.look() {
//!     Change::Changed => access = Access::Allow(InfoHashList::load(&path)?),
//!     Change::Gone(reason) => eprintln!("{}: {reason}; the list stays as it was", path.display()),
//!     _ => {}
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod edit;
mod lines;
mod list;
mod networks;
mod passkeys;
mod set;
mod watch;

use std::{io, path::PathBuf};

use swarmkeep::{InfoHash, bittorrent::in_words};

pub use edit::{add_line, remove_line};
pub(crate) use edit::{add_passkey, edit_passkey, list_passkeys};
pub use list::{InfoHashList, parse_info_hash};
pub use networks::Networks;
pub use passkeys::{Member, Passkeys};
pub(crate) use passkeys::{date, fingerprint, parse_date, parse_name};
pub use watch::{Change, Watched};

/// The torrents that the tracker serves.
#[derive(Debug, Default)]
pub enum Access {
    /// All torrents.
    #[default]
    Open,
    /// Only the torrents of a list. An empty list closes the tracker.
    Allow(InfoHashList),
    /// All torrents, except those of a list.
    Deny(InfoHashList),
}

impl Access {
    /// Whether this torrent may be announced. It costs as much as [`InfoHashList::contains`].
    pub fn admits(&self, info_hash: &InfoHash) -> bool {
        match self {
            Self::Open => true,
            Self::Allow(list) => list.contains(info_hash),
            Self::Deny(list) => !list.contains(info_hash),
        }
    }
}

/// Why a list could not be loaded or edited. The error never contains a passkey or a part of one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AccessError {
    /// The file cannot be opened, or reading it failed.
    #[error("cannot read {}: {}", path.display(), in_words(source))]
    Read {
        /// The list.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The path is a directory, a pipe or a device, which cannot be watched and read again.
    #[error("{} is not a regular file: give a text file with one entry a line", path.display())]
    NotAFile {
        /// The given path.
        path: PathBuf,
    },
    /// An entry is not text.
    #[error("{}, line {line}: not text in UTF-8: give a text file with one entry a line", path.display())]
    NotText {
        /// The list.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
    },
    /// A line is too long for the read buffer.
    #[error("{}, line {line}: longer than {most} bytes: give one entry a line", path.display())]
    LongLine {
        /// The list.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// The most bytes in a line.
        most: usize,
    },
    /// An entry is not an info hash.
    #[error(
        "access list {}, line {line}: \"{text}\" is not an info hash: give 40 hex digits, 64 hex digits (v2) or 32 base32 characters",
        path.display()
    )]
    InfoHash {
        /// The list.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// The entry, escaped, no more than about 80 characters of it.
        text: String,
    },
    /// An entry is not a network.
    #[error(
        "network list {}, line {line}: \"{text}\" is not a network: give such as 192.0.2.0/24, 2001:db8::1 or 192.0.2.5-192.0.2.9",
        path.display()
    )]
    Network {
        /// The list.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
        /// The entry, escaped, no more than about 80 characters of it.
        text: String,
    },
    /// An entry is not a passkey, or its name or date is invalid.
    #[error(
        "passkey list {}, line {line}: not a passkey with its name and date: give KEY or KEY name=alice until=2027-12-31; a key is 8 to 128 of A-Z, a-z, 0-9, _ and -, other than `announce`",
        path.display()
    )]
    Passkey {
        /// The list.
        path: PathBuf,
        /// The line, counted from 1.
        line: u64,
    },
    /// The entries do not fit into memory, or there are more than 2^32 - 1.
    #[error("{} has room for {entries} entries, which is more than fits: split it up or add memory", path.display())]
    TooLong {
        /// The list.
        path: PathBuf,
        /// Their number, or the most by the length of the file.
        entries: usize,
    },
    /// The file could not be edited.
    #[error("cannot write {}: {}", path.display(), in_words(source))]
    Write {
        /// The list.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// Another process wrote to the file during the edit. The file stays as that process left it.
    #[error("another process wrote to {} during the edit: try again", path.display())]
    WrittenMeanwhile {
        /// The list.
        path: PathBuf,
    },
}
