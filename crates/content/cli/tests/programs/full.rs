//! Stores without free space, on file systems that are read-only, and with two names.

use std::{
    fs::{self, File},
    path::Path,
    process::Command,
};

use swarmkeep_content_tests::device_of;
use swarmkeep_store_tests::{
    programs::{EXT4, MOUNT, Trial},
    tests,
};

use crate::common::{Ended, Folder, done, ended, seedkeep};

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [MOUNT]:
            an_image_that_its_file_system_has_no_room_for_is_refused_in_numbers,
            a_file_system_that_is_full_is_named_as_the_cause,
            a_folder_on_a_read_only_file_system_is_listed_checked_and_exported;
        [EXT4]: an_image_and_the_device_over_it_are_not_both_written
    }
}

/// Runs a command of the shell in a folder, in which `small` is a file system of 1 MiB; `seedkeep` is the
/// program. Returns its exit code and stderr; 124 if it does not end.
fn in_small(folder: &Path, command: &str) -> (i32, String) {
    fs::create_dir_all(folder.join("small")).unwrap();
    let command = format!("mount -t tmpfs -o size=1M none small && {command}");
    let command = command.replace("seedkeep", env!("CARGO_BIN_EXE_seedkeep"));
    let Ended { code, errors, .. } = ended(
        Command::new("timeout").args(["600", "unshare", "--mount", "sh", "-c", &command]).current_dir(folder),
    );
    (code, errors)
}

fn an_image_that_its_file_system_has_no_room_for_is_refused_in_numbers() {
    let folder: &Path = &Folder(tempfile::tempdir().unwrap());
    for (size, told) in [("2MiB", "2.00 MiB"), ("5TiB", "5.00 TiB")] {
        let command =
            format!("seedkeep store format small/image --size {size}; code=$?; ls small >&2; exit $code");
        let (code, errors) = in_small(folder, &command);
        let told = format!("seedkeep: small/image: there is no room for {told}: 1.00 MiB are free\n");
        assert_eq!((code, errors), (1, told));
    }
    let (code, errors) = in_small(folder, "seedkeep store format small/image --size 1MiB");
    assert_eq!(code, 0, "{errors}");
}

fn a_file_system_that_is_full_is_named_as_the_cause() {
    let folder: &Path = &Folder(tempfile::tempdir().unwrap());
    let bytes: Vec<u8> =
        (0..1_u32 << 20).flat_map(|word| word.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    fs::write(folder.join("data"), bytes).unwrap();
    let add = "seedkeep store add full data.torrent data";
    let prepare = format!("seedkeep create data --piece-length 512KiB >&2 && mkdir full && {add}");
    let (code, errors) = in_small(folder, &prepare);
    assert_eq!(code, 0, "{errors}");
    // An image with holes that cannot be filled, and a folder. A piece is written as many blocks, of which
    // one may fail before the others are requested.
    let image = "truncate -s 64M small/store && seedkeep store format small/store --block-size 16KiB";
    for make in [image, "mkdir small/store"] {
        let mut told =
            vec![in_small(folder, &format!("{make} && seedkeep store add small/store data.torrent data"))];
        let fetch = "rm -f events; seedkeep seed --store full --listen 127.0.0.1:0 --json > events & \
                     until at=$(grep -om1 '127.0.0.1:[0-9]*' events 2> /dev/null); do sleep 0.1; done; \
                     seedkeep fetch data.torrent --store small/store --listen 127.0.0.1:0 --peer $at; \
                     code=$?; kill $!; wait $!; exit $code";
        told.extend((0..3).map(|_| in_small(folder, &format!("{make}\n{fetch}"))));
        for (code, errors) in told {
            assert_eq!(code, 1, "{errors}");
            let is_told = errors.contains("the store is full");
            assert!(is_told && !errors.contains("nothing has been written"), "{errors}");
        }
    }
}

fn a_folder_on_a_read_only_file_system_is_listed_checked_and_exported() {
    let folder: &Path = &Folder(tempfile::tempdir().unwrap());
    fs::create_dir(folder.join("both")).unwrap();
    ["kept", "lost"]
        .into_iter()
        .for_each(|name| fs::write(folder.join("both").join(name), [7; 96 << 10]).unwrap());
    done(folder, "create both --piece-length 32KiB");
    let prepare = "mkdir small/store && seedkeep store add small/store both.torrent . && \
                   rm small/store/both/lost && mount -o remount,ro small";
    let list = "seedkeep store list small/store >&2";
    let check = "{ seedkeep store check small/store >&2; [ $? = 3 ]; }";
    let export =
        "{ seedkeep store export small/store both --to out; [ $? = 3 ]; } && cmp both/kept out/both/kept";
    let (code, errors) = in_small(folder, &format!("{prepare} && {list} && {check} && {export}"));
    assert!(code == 0 && errors.contains("3 of 6 pieces marked complete"), "{errors}");
}

fn an_image_and_the_device_over_it_are_not_both_written() {
    let folder: &Path = &Folder(tempfile::tempdir().unwrap());
    let (_device, device) = device_of(folder, 32 << 20);
    let device = device.to_str().unwrap();
    done(folder, &format!("store format {device}"));
    let refused = |path: &str, said: &str| {
        let refused = ended(&mut seedkeep(folder, &format!("store remove {path} it")));
        assert!(refused.code == 1 && refused.errors.contains(said), "{path}: {}", refused.errors);
    };
    refused("device", &format!("device: it is {device}: use that, or detach it with `losetup --detach"));
    done(folder, "store list device");
    refused(device, "no torrent in the store is called it");
    // Another process writes to the image.
    let image = File::open(folder.join("device")).unwrap();
    image.lock().unwrap();
    refused(device, &format!("{device} is in use by another process"));
}
