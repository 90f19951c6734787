//! `seedkeep store` and the folder of its torrent files.

use super::*;

/// The path of a fixture's torrent file in the folder of torrent files.
fn kept(folder: &Path, name: &str) -> PathBuf {
    folder.join(format!("{}.torrent", torrents::torrent(name).info().info_hash()))
}

#[test]
fn torrent_files_are_in_a_folder_beside_an_image_or_in_the_one_that_is_named() {
    let folder: &Path = &Folder(scratch_folder());
    fixture(folder, "some-v1");
    done(folder, "format @/image --size 32MiB");
    let places = [
        ("add @/image @/some-v1.torrent", "torrents"),
        ("add @/image @/some-v1.torrent --torrents @/a/b", "a/b"),
        ("add @/data @/some-v1.torrent --in-place", "data/.swarmkeep/torrents"),
    ];
    for (words, place) in places {
        done(folder, words);
        assert!(fs::read(kept(&folder.join(place), "some-v1")).unwrap() == torrents::fixture("some-v1"));
    }
    // Another image may share the folder of torrent files. A store in a folder has its own.
    done(folder, "remove @/image some");
    assert!(kept(&folder.join("torrents"), "some-v1").exists());
    done(folder, "remove @/data some");
    assert!(!kept(&folder.join("data/.swarmkeep/torrents"), "some-v1").exists());
}

#[test]
fn an_image_that_is_moved_without_its_folder_says_so_and_is_verified_once_its_torrents_are_added() {
    let folder: &Path = &Folder(stored(&["some-v1", "one-v2"]));
    fs::create_dir(folder.join("moved")).unwrap();
    fs::rename(folder.join("image"), folder.join("moved/image")).unwrap();
    let told =
        format!("2 of 2 torrents cannot be verified: their torrent files are not in {}", folder.display());
    for (words, code) in [("list @/moved/image", 0), ("check @/moved/image", 3), ("stats @/moved/image", 0)] {
        let out = says(folder, words, code, &told).out;
        assert!(words.starts_with("stats") || out.starts_with(&told), "{words}: {out}");
    }
    let (code, checked) = json(folder, "check @/moved/image --json");
    let verified = &checked["torrents"][0]["verified"];
    assert_eq!((code, &checked["ok"], verified), (3, &false.into(), &false.into()));
    let (_, listed) = json(folder, "list @/moved/image --json");
    assert_eq!((&listed[1]["name"], &listed[1]["torrent_file"]), (&"some".into(), &false.into()));
    assert_eq!(json(folder, "list @/moved/image --torrents @/torrents --json").1[1]["torrent_file"], true);
    done(folder, "check @/moved/image --torrents @/torrents");
    done(folder, "add @/moved/image @/some-v1.torrent @/one-v2.torrent");
    done(folder, "check @/moved/image");
    done(folder, "export @/moved/image --all --to @/out");
    assert_eq!(files(&folder.join("out")), files(&folder.join("data")));
}

#[test]
fn a_damaged_torrent_file_is_reported_and_kept_again() {
    let folder: &Path = &Folder(stored(&["some-v1", "one-v2"]));
    let file = kept(&folder.join("torrents"), "some-v1");
    rot(&file, torrents::fixture("some-v1").len() as u64 - 64);
    let damaged = fs::read(&file).unwrap();
    for words in ["check @/image", "repair @/image"] {
        says(folder, words, 3, "its torrent file is damaged");
    }
    assert!(fs::read(&file).unwrap() == damaged, "a repair changes no torrent file");
    // The other is exported all the same.
    let exported = says(folder, "export @/image --all --to @/out", 3, "");
    assert!(exported.errors.contains("its torrent file is not in"), "{}", exported.errors);
    assert!(folder.join("out/one.bin").exists());
    done(folder, "add @/image @/some-v1.torrent");
    done(folder, "check @/image");
    done(folder, "export @/image --all --to @/out");
    assert_eq!(files(&folder.join("out")), files(&folder.join("data")));
}

#[test]
fn unverified_pieces_are_not_trusted() {
    let folder: &Path = &Folder(stored(&["some-v1"]));
    let image = folder.join("image");
    let piece = torrents::piece(torrents::torrent("some-v1").info(), 4);
    rot(&image, place_of(&piece[40_000..40_064], &image));
    fs::remove_file(kept(&folder.join("torrents"), "some-v1")).unwrap();
    for words in ["check @/image", "repair @/image"] {
        says(folder, words, 3, "and not verified: the store has no torrent file");
    }
    let added = says(folder, "add @/image @/some-v1.torrent", 0, "12 of 13 pieces");
    assert!(added.errors.contains("not those of the torrent, and are missing now: 4"), "{}", added.errors);
    done(folder, "check @/image");
    says(folder, "add @/image @/some-v1.torrent @/data", 0, "13 of 13");
}

#[test]
fn content_is_not_taken_up_if_its_torrent_file_cannot_be_kept() {
    let folder: &Path = &Folder(scratch_folder());
    fixture(folder, "some-v1");
    let words = "add @/data @/some-v1.torrent --in-place --torrents @/some-v1.torrent/no";
    says(folder, words, 1, "a torrent file: ");
    assert_eq!(done(folder, "list @/data"), "There are no torrents in the store.\n");
    // Nor is a torrent file kept if nothing is taken up.
    fs::remove_dir_all(folder.join("data/some")).unwrap();
    fs::create_dir(folder.join("data/some")).unwrap();
    says(folder, "add @/data @/some-v1.torrent --in-place", 1, "nothing of it");
    assert!(!kept(&folder.join("data/.swarmkeep/torrents"), "some-v1").exists());
}

#[test]
fn a_folder_that_cannot_be_read_is_reported_first_and_ends_no_command() {
    let folder: &Path = &Folder(stored(&["some-v1"]));
    done(folder, "add @/data @/some-v1.torrent --in-place");
    for (words, code) in [("list", 0), ("stats", 0), ("check", 3)] {
        for place in ["image", "data"] {
            let words = format!("{words} @/{place} --torrents @/some-v1.torrent");
            let out = says(folder, &words, code, "").out;
            let first = out.lines().next().unwrap_or_default();
            let is_told = first.contains("its torrent files are not known: ")
                && first.contains("/some-v1.torrent: Not a directory");
            assert!(is_told, "{words}: {out}");
        }
    }
}
