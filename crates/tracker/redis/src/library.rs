//! The functions that run inside the servers.

use std::sync::LazyLock;

use data_encoding::HEXLOWER;
use sha1::{Digest, Sha1};

/// The library in the form that a server takes, and the names of its functions. Each name contains a hash of
/// the code, so that trackers of two versions can use one server during an upgrade.
#[derive(Debug)]
pub(crate) struct Library {
    pub(crate) name: String,
    pub(crate) code: String,
    pub(crate) announce: String,
    pub(crate) leave: String,
    pub(crate) restore: String,
    pub(crate) add_downloads: String,
    pub(crate) remove: String,
    pub(crate) sweep: String,
    pub(crate) scrape: String,
    pub(crate) names: String,
    pub(crate) walk: String,
    pub(crate) list: String,
}

pub(crate) static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    const CODE: &str = include_str!("library.lua");
    const PLACEHOLDER: &str = "swarmkeep_LIBRARY";
    let version = HEXLOWER.encode(&Sha1::digest(CODE)[..4]);
    let name = format!("swarmkeep_{version}");
    let function = |function: &str| format!("{name}_{function}");
    Library {
        code: CODE.replace(PLACEHOLDER, &name),
        announce: function("announce"),
        leave: function("leave"),
        restore: function("restore"),
        add_downloads: function("add_downloads"),
        remove: function("remove"),
        sweep: function("sweep"),
        scrape: function("scrape"),
        names: function("names"),
        walk: function("walk"),
        list: function("list"),
        name,
    }
});

/// Whether this is the name of any version of the library.
pub(crate) fn is_of_a_version(name: &str) -> bool {
    let version = name.strip_prefix("swarmkeep_");
    version.is_some_and(|version| version.len() == 8 && HEXLOWER.decode(version.as_bytes()).is_ok())
}
