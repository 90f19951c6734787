//! The seeds of the fuzz target `peer_wire` pass its assertions, and have messages of every kind.

use std::{collections::BTreeSet, fs, path::Path};

use crate::peer_wire::check;

#[test]
fn every_seed_of_the_fuzz_target_runs_and_all_kinds_of_messages_are_among_them() {
    let (mut seeds, mut kinds) = (0, BTreeSet::new());
    for file in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/peer_wire")).unwrap()
    {
        let path = file.unwrap().path();
        if path.file_name().unwrap().to_string_lossy().starts_with("seed-") {
            let checked = check::stream(&fs::read(&path).unwrap());
            assert!(!checked.is_empty(), "{} is no message", path.display());
            (seeds, kinds) = (seeds + 1, kinds.union(&checked).cloned().collect());
        }
    }
    assert!(seeds >= 10, "{seeds} seeds");
    let expected = "handshake, keep-alive, choke, unchoke, interested, not interested, have, bitfield, request, \
         piece, cancel, port, suggest piece, have all, have none, reject request, allowed fast, \
         extended, extended handshake, ut_metadata, ut_pex, lt_donthave, upload_only, ut_holepunch, \
         hash request, hashes, hash reject, unknown";
    for kind in expected.split(", ") {
        assert!(kinds.contains(kind), "no seed has {kind}: {kinds:?}");
    }
}
