//! The operations that run inside the servers: functions in Lua, or commands of the module.

use std::sync::LazyLock;

use data_encoding::HEXLOWER;
use sha1::{Digest, Sha1};

use crate::place::Engine;

/// An operation on shards.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Operation {
    Announce,
    Leave,
    Restore,
    AddDownloads,
    Remove,
    Sweep,
    Scrape,
    /// Lists info hashes.
    Names,
    Walk,
    /// Lists peers.
    List,
}

impl Operation {
    const ALL: [(Self, &str, &str); 10] = [
        (Self::Announce, "announce", "swarmkeep.announce"),
        (Self::Leave, "leave", "swarmkeep.leave"),
        (Self::Restore, "restore", "swarmkeep.restore"),
        (Self::AddDownloads, "add_downloads", "swarmkeep.downloads"),
        (Self::Remove, "remove", "swarmkeep.remove"),
        (Self::Sweep, "sweep", "swarmkeep.sweep"),
        (Self::Scrape, "scrape", "swarmkeep.scrape"),
        (Self::Names, "names", "swarmkeep.page"),
        (Self::Walk, "walk", "swarmkeep.walk"),
        (Self::List, "list", "swarmkeep.peers"),
    ];

    /// The name of the function, or of the module's command.
    pub(crate) fn name(self, engine: Engine) -> &'static str {
        match engine {
            Engine::Functions => &LIBRARY.functions[self as usize],
            Engine::Module => Self::ALL[self as usize].2,
        }
    }
}

/// The library in the form that a server takes, and the names of its functions, in the order of
/// [`Operation::ALL`]. Each name contains a hash of the code, so that trackers of two versions can use one
/// server during an upgrade.
#[derive(Debug)]
pub(crate) struct Library {
    pub(crate) name: String,
    pub(crate) code: String,
    functions: [String; 10],
}

pub(crate) static LIBRARY: LazyLock<Library> = LazyLock::new(|| {
    // A local of Lua is known to what follows it.
    const CODE: &str = concat!(
        include_str!("library/shard.lua"),
        include_str!("library/tables.lua"),
        include_str!("library/directory.lua"),
        include_str!("library/swarms.lua"),
        include_str!("library/selection.lua"),
        include_str!("library/calls.lua"),
    );
    const PLACEHOLDER: &str = "swarmkeep_LIBRARY";
    let version = HEXLOWER.encode(&Sha1::digest(CODE)[..4]);
    let name = format!("swarmkeep_{version}");
    let functions = Operation::ALL.map(|(_, function, _)| format!("{name}_{function}"));
    Library { code: CODE.replace(PLACEHOLDER, &name), functions, name }
});

/// Whether this is the name of any version of the library.
pub(crate) fn is_of_a_version(name: &str) -> bool {
    let version = name.strip_prefix("swarmkeep_");
    version.is_some_and(|version| version.len() == 8 && HEXLOWER.decode(version.as_bytes()).is_ok())
}

#[cfg(test)]
#[test]
fn operations_are_in_order() {
    for (at, (operation, ..)) in Operation::ALL.into_iter().enumerate() {
        assert_eq!(operation as usize, at);
    }
}
