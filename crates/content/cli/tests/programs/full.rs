//! Stores where there is no room.

use std::{
    fs,
    path::Path,
    process::{Command, Output},
};

use swarmkeep_store_tests::{
    programs::{MOUNT, Trial},
    tests,
};

/// The tests of this module.
pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [MOUNT]: an_image_that_its_file_system_has_no_room_for_is_refused_in_numbers
    }
}

/// Runs a command of the shell in a folder, in which `small` is a file system of 1 MiB; `seedkeep` is the
/// program. What it prints to stderr, and how it ends.
fn in_small(folder: &Path, command: &str) -> (Option<i32>, String) {
    fs::create_dir_all(folder.join("small")).unwrap();
    let command = format!("mount -t tmpfs -o size=1M none small && {command}");
    let Output { status, stderr, .. } = Command::new("unshare")
        .args(["--mount", "sh", "-c", &command.replace("seedkeep", env!("CARGO_BIN_EXE_seedkeep"))])
        .current_dir(folder)
        .output()
        .unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

fn an_image_that_its_file_system_has_no_room_for_is_refused_in_numbers() {
    let folder = tempfile::tempdir().unwrap();
    for (size, told) in [("2MiB", "2.00 MiB"), ("5TiB", "5.00 TiB")] {
        let command =
            format!("seedkeep store format small/image --size {size}; code=$?; ls small >&2; exit $code");
        let (code, errors) = in_small(folder.path(), &command);
        let told = format!("seedkeep: small/image: there is no room for {told}: 1.00 MiB are free\n");
        assert_eq!((code, errors), (Some(1), told));
    }
    let (code, errors) = in_small(folder.path(), "seedkeep store format small/image --size 1MiB");
    assert_eq!(code, Some(0), "{errors}");
}
