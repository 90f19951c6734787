//! Files of lists that change.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::symlink,
    thread,
    time::Duration,
};

use swarmkeep_tests::Folder;
use swarmkeep_tracker::access::{
    Change::{self, *},
    Watched,
};

/// Writes in place. Two times of writing differ only where the kernel's clock has ticked between them.
fn write(folder: &Folder, name: &str, text: &str) {
    thread::sleep(Duration::from_millis(12));
    folder.write(name, text);
}

fn rename(folder: &Folder, from: &str, to: &str) {
    fs::rename(folder.join(from), folder.join(to)).unwrap();
}

fn watch(folder: &Folder) -> Watched {
    write(folder, "list", "first\n");
    let mut watched = Watched::new(folder.join("list"));
    assert_eq!(looks(&mut watched, 2), [Same, Same]);
    watched
}

fn looks(watched: &mut Watched, times: usize) -> Vec<Change> {
    (0..times).map(|_| watched.look()).collect()
}

/// The second look at a new file returns `Changed`; later looks do not.
const TOLD: [Change; 4] = [Changing, Changed, Same, Same];

#[test]
fn a_file_written_in_place_has_changed_be_its_length_the_same_or_not() {
    let folder = Folder::empty();
    let mut watched = watch(&folder);
    for text in ["longer than before\n", "longer than beyond\n", ""] {
        write(&folder, "list", text);
        assert_eq!(looks(&mut watched, 4), TOLD, "{text:?}");
    }
}

#[test]
fn a_file_written_or_renamed_over_another_has_changed_though_it_is_as_long_and_as_old() {
    for name in ["list", "new"] {
        let folder = Folder::empty();
        let mut watched = watch(&folder);
        let written = fs::metadata(folder.join("list")).unwrap().modified().unwrap();
        write(&folder, name, "other\n");
        File::options().write(true).open(folder.join(name)).unwrap().set_modified(written).unwrap();
        rename(&folder, name, "list");
        assert_eq!(looks(&mut watched, 4), TOLD, "{name}");
    }
}

#[test]
fn a_link_that_points_elsewhere_is_a_file_that_has_changed() {
    let folder = Folder::empty();
    write(&folder, "one", "first\n");
    write(&folder, "two", "other\n");
    symlink("one", folder.join("list")).unwrap();
    let mut watched = Watched::new(folder.join("list"));
    assert_eq!(watched.look(), Same);
    symlink("two", folder.join("new")).unwrap();
    rename(&folder, "new", "list");
    assert_eq!(looks(&mut watched, 4), TOLD);
}

#[test]
fn a_file_is_left_alone_while_it_is_written() {
    let folder = Folder::empty();
    let mut watched = watch(&folder);
    let mut file = File::options().append(true).open(folder.join("list")).unwrap();
    for _ in 0..5 {
        file.write_all(b"half a li").unwrap();
        assert_eq!(watched.look(), Changing);
    }
    assert_eq!(looks(&mut watched, 3), [Changed, Same, Same]);
}

#[test]
fn a_file_that_is_deleted_is_gone_once_and_has_changed_when_it_is_there_again() {
    let folder = Folder::empty();
    let mut watched = watch(&folder);
    rename(&folder, "list", "away");
    let gone = Gone(io::ErrorKind::NotFound);
    assert_eq!(looks(&mut watched, 4), [Changing, gone, Same, Same]);
    write(&folder, "list", "back\n");
    assert_eq!(looks(&mut watched, 4), TOLD);
    fs::remove_file(folder.join("list")).unwrap();
    assert_eq!(looks(&mut watched, 3), [Changing, gone, Same]);
    rename(&folder, "away", "list");
    assert_eq!(looks(&mut watched, 4), TOLD);
}

#[test]
fn a_file_that_is_away_for_one_look_is_not_gone() {
    let folder = Folder::empty();
    let mut watched = watch(&folder);
    rename(&folder, "list", "list~");
    assert_eq!(watched.look(), Changing);
    write(&folder, "list", "edited\n");
    assert_eq!(looks(&mut watched, 4), TOLD);
}

#[test]
fn a_file_that_comes_later_has_changed_when_it_comes() {
    let folder = Folder::empty();
    let mut watched = Watched::new(folder.join("list"));
    assert_eq!(looks(&mut watched, 2), [Same, Same]);
    write(&folder, "list", "first\n");
    assert_eq!(looks(&mut watched, 4), TOLD);
}
