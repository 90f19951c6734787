//! `seedkeep store` on real files, images and devices, with processes that are killed.

use std::os::unix::fs::{FileExt, MetadataExt};

use swarmkeep_content::{ContentRepository as _, block::BlockStore, files::HIDDEN};
use swarmkeep_content_tests::{device_of, image_of_version, torrents};
use tempfile::TempDir;

use super::{peers::tree, *};

mod torrent_files;

/// Runs a command in `folder`, for which `@` stands. Blanks separate `words`.
fn store(folder: &Path, words: &str) -> Ended {
    let line = format!("store {}", words.replace('@', folder.to_str().unwrap()));
    ended(&mut seedkeep(folder, &line))
}

/// As [`store`], for a command that has to succeed.
fn done(folder: &Path, words: &str) -> String {
    says(folder, words, 0, "").out
}

/// As [`store`], for a command that ends with `code` and prints `text`: as an error if it is refused.
fn says(folder: &Path, words: &str, code: i32, text: &str) -> Ended {
    let ended = store(folder, words);
    let Ended { code: its, out, errors } = &ended;
    let said = if code == 1 { errors } else { out };
    assert!(*its == code && said.contains(text), "{words}: {its}: {out}{errors}");
    ended
}

fn json(folder: &Path, words: &str) -> (i32, Value) {
    let Ended { code, out, errors } = store(folder, words);
    (code, serde_json::from_str(&out).unwrap_or_else(|error| panic!("{words}: {error}: {out}{errors}")))
}

/// A folder with an image that has torrents of the fixtures.
fn stored(names: &[&str]) -> TempDir {
    let folder = scratch_folder();
    done(folder.path(), "format @/image --size 32MiB");
    for name in names {
        fixture(folder.path(), name);
        done(folder.path(), &format!("add @/image @/{name}.torrent @/data"));
    }
    folder
}

/// Puts torrent files of the fixtures into a folder, and their files into the folder `data` there.
fn fixture(folder: &Path, names: &str) {
    for name in names.split(' ') {
        fs::write(folder.join(name).with_extension("torrent"), torrents::fixture(name)).unwrap();
        torrents::write_files(name, &folder.join("data"));
    }
}

fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let files = tree(folder).into_keys().filter(|path| !path.is_dir());
    files.map(|path| (path.strip_prefix(folder).unwrap().to_owned(), fs::read(&path).unwrap())).collect()
}

/// The offset of bytes in an image: the stripe cache writes from several threads, in an unknown order.
fn place_of(bytes: &[u8], image: &Path) -> u64 {
    let image = fs::read(image).unwrap();
    let mut places = image.windows(bytes.len()).enumerate().filter(|(_, window)| *window == bytes);
    let (place, _) = places.next().expect("they are there");
    assert!(places.next().is_none(), "they are there twice");
    place as u64
}

/// Flips a bit, as a failing disk does.
fn rot(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 4], at).unwrap();
}

#[test]
fn a_newcomers_path_from_an_image_to_files_and_back() {
    let folder: &Path = &Folder(scratch_folder());
    fixture(folder, "many-v1 some-v2 one-hybrid");
    says(folder, "format @/image --size 64MiB", 0, "an empty store");
    for name in ["many-v1", "some-v2", "one-hybrid"] {
        done(folder, &format!("add @/image @/{name}.torrent @/data"));
    }
    let listed = says(folder, "list @/image", 0, "| many ").out;
    assert!(listed.contains("230 of 230"), "{listed}");
    let (_, listed) = json(folder, "list @/image --json");
    assert_eq!(listed.as_array().unwrap().len(), 3);
    let some = &listed[2];
    assert_eq!((&some["name"], &some["files"], &some["complete"]), (&"some".into(), &8.into(), &23.into()));
    says(folder, "stats @/image", 0, "3, of which 3 are complete");
    says(folder, "map @/image --svg @/map.svg", 0, "many: ");
    assert!(fs::read_to_string(folder.join("map.svg")).unwrap().contains("<svg"));
    says(folder, "check @/image", 0, "All is well.");

    done(folder, "export @/image --all --to @/out");
    assert_eq!(files(&folder.join("out")), files(&folder.join("data")));
    let mode = fs::metadata(folder.join("out/some/a/run")).unwrap().permissions().mode();
    assert_eq!(mode & 0o111, (mode & 0o444) >> 2, "it is executable");

    done(folder, "remove @/image one.bin");
    let (_, stats) = json(folder, "stats @/image --json");
    assert_eq!((&stats["torrents"], &stats["complete_torrents"]), (&2.into(), &2.into()));
    assert_eq!(store(folder, "export @/image one.bin").code, 1);
}

#[test]
fn damage_is_found_named_repaired_and_fetched_again() {
    let folder: &Path = &Folder(stored(&["some-v1"]));
    // The fifth piece has bytes of one file alone.
    let piece = torrents::piece(torrents::torrent("some-v1").info(), 4);
    let image = folder.join("image");
    rot(&image, place_of(&piece[40_000..40_064], &image));
    let (code, checked) = json(folder, "check @/image --json");
    assert_eq!((code, &checked["ok"]), (3, &false.into()));
    let findings = &checked["torrents"][0];
    assert_eq!((&findings["wrong"], &findings["verified"]), (&serde_json::json!([4]), &true.into()));
    assert_eq!((&findings["files"][0], &findings["lost"]), (&"some/b.bin".into(), &(48 << 10).into()));
    let told = says(folder, "check @/image", 3, "wrong: 4\n").out;
    assert!(told.contains("some/b.bin"), "{told}");

    // Right pieces are exported, and wrong ones are not.
    let exported = says(folder, "export @/image some --to @/out", 3, "not whole: ").out;
    assert!(exported.contains("out/some/b.bin"), "{exported}");
    let out = files(&folder.join("out"));
    assert!(!out.contains_key(Path::new("some/b.bin")) && out.contains_key(Path::new("some/c.bin")));

    says(folder, "repair @/image", 0, "added again: 1 piece.");
    says(folder, "check @/image", 0, "12 of 13 pieces");
    assert_eq!(json(folder, "add @/image @/some-v1.torrent @/data --json").1["complete"], 13);
    let (code, exported) = json(folder, "export @/image some --to @/out --json");
    assert_eq!((code, &exported[0]["written"], &exported[0]["kept"]), (0, &1.into(), &12.into()));
    assert_eq!(files(&folder.join("out")), files(&folder.join("data")));
}

#[test]
fn damage_to_the_device_itself_is_named() {
    let folder: &Path = &Folder(stored(&["one-v2"]));
    // The second copy of the root begins with the second block.
    let (_, stats) = json(folder, "stats @/image --json");
    rot(&folder.join("image"), stats["block_size"].as_u64().unwrap() + 20);
    says(folder, "check @/image", 3, "a copy of the root is damaged");
    done(folder, "repair @/image");
    done(folder, "check @/image");
}

#[test]
fn an_add_that_is_killed_goes_on_where_it_was_durable() {
    let folder: &Path = &Folder(scratch_folder());
    fixture(folder, "large-v1");
    let (_device, device) = device_of(folder, 600 << 20);
    let path = device.to_str().unwrap();
    done(folder, &format!("format {path}"));
    let device = &format!("{path} --torrents @/kept");
    let complete = || json(folder, &format!("list {device} --json")).1[0]["complete"].as_u64().unwrap_or(0);
    let mut kill_after = 160 << 20;
    loop {
        let line = format!("store add {path} --torrents kept large-v1.torrent data");
        let mut add = seedkeep(folder, &line).stdout(Stdio::null()).spawn().unwrap();
        // By the number of bytes written: it makes them durable every 128 MiB.
        while written(add.id()) < kill_after {
            assert!(add.try_wait().unwrap().is_none(), "it ended before it was killed");
            thread::sleep(Duration::from_millis(1));
        }
        add.kill().unwrap();
        add.wait().unwrap();
        done(folder, &format!("check {device}"));
        let complete = complete();
        assert!(complete < 512, "it ended before it was killed");
        if complete > 0 {
            break;
        }
        kill_after += 32 << 20;
    }
    done(folder, &format!("add {device} @/large-v1.torrent @/data"));
    let all = "512 of 512 pieces marked complete, and verified";
    says(folder, &format!("check {device}"), 0, all);
}

/// Bytes that a process has written so far.
fn written(process: u32) -> u64 {
    let counts = fs::read_to_string(format!("/proc/{process}/io")).unwrap();
    counts.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap().parse().unwrap()
}

#[test]
fn an_export_that_is_killed_goes_on_where_it_was() {
    let folder: &Path = &Folder(scratch_folder());
    fixture(folder, "large-v1");
    done(folder, "format @/image --size 600MiB");
    done(folder, "add @/image @/large-v1.torrent @/data");
    let out = folder.join("out");
    let mut export = seedkeep(folder, "store export image --all --to out").spawn().unwrap();
    let hash = torrents::torrent("large-v1").info().info_hash();
    let part = out.join(format!(".{hash}.part/0"));
    // Half of it is written, by the blocks of the file.
    while !part.metadata().is_ok_and(|part| part.blocks() * 512 > 128 << 20) {
        assert!(export.try_wait().unwrap().is_none(), "it ended before it was killed");
        thread::sleep(Duration::from_millis(1));
    }
    export.kill().unwrap();
    export.wait().unwrap();
    assert!(part.exists() && !out.join("large.bin").exists());
    let (code, exported) = json(folder, "export @/image --all --to @/out --json");
    assert_eq!(code, 0);
    assert!(exported[0]["kept"].as_u64().unwrap() >= 100, "{exported}");
    assert_eq!(files(&out), files(&folder.join("data")));
}

#[test]
fn an_export_writes_over_nothing() {
    let folder: &Path = &Folder(stored(&["some-v1"]));
    fs::create_dir_all(folder.join("out/some")).unwrap();
    for length in [5, 262_144] {
        let mine = vec![7; length];
        fs::write(folder.join("out/some/b.bin"), &mine).unwrap();
        says(folder, "export @/image some --to @/out", 1, "some/b.bin is there already");
        assert!(fs::read(folder.join("out/some/b.bin")).unwrap() == mine);
    }
}

#[test]
fn a_device_that_holds_something_is_not_formatted() {
    let folder: &Path = &Folder(scratch_folder());
    let (_device, device) = device_of(folder, 32 << 20);
    let shown = device.to_str().unwrap();
    File::options().write(true).open(&device).unwrap().write_all_at(b"\x53\xef", 0x438).unwrap();
    says(folder, &format!("format {shown}"), 1, "an ext2, ext3 or ext4 file system");
    let forced = says(folder, &format!("format {shown} --force"), 0, "");
    assert!(forced.errors.contains("held an ext2, ext3 or ext4 file system"), "{}", forced.errors);
    says(folder, &format!("format {shown}"), 1, "a content store with 0 torrents");
    says(folder, &format!("format {shown} --size 1GiB"), 1, "is there already");
    let refused = store(folder, "format @/image --size 20KiB");
    assert!(refused.code == 1 && !folder.join("image").exists(), "{}", refused.errors);
}

#[test]
fn a_folder_of_files_is_a_store_as_well() {
    let folder: &Path = &Folder(scratch_folder());
    fixture(folder, "some-hybrid");
    fs::create_dir(folder.join("store")).unwrap();
    says(folder, "list @/store", 1, "holds no store");
    done(folder, "add @/store @/some-hybrid.torrent @/data");
    assert_eq!(files(&folder.join("store/some")), files(&folder.join("data/some")));
    rot(&folder.join("store/some/d.bin"), 100);
    let (code, checked) = json(folder, "check @/store --json");
    assert_eq!((code, &checked["torrents"][0]["files"][0]), (3, &"some/d.bin".into()));
    done(folder, "repair @/store");
    done(folder, "add @/store @/some-hybrid.torrent @/data");
    done(folder, "export @/store --all --to @/out");
    assert_eq!(files(&folder.join("out")), files(&folder.join("data")));
    assert_eq!(store(folder, "map @/store").code, 1);
}

#[test]
fn content_in_a_folder_is_taken_up_where_it_lies() {
    let folder: &Path = &Folder(scratch_folder());
    fixture(folder, "some-hybrid one-v2");
    let inode = || fs::metadata(folder.join("data/some/d.bin")).unwrap().ino();
    let content = || {
        let mut files = files(&folder.join("data"));
        files.retain(|path, _| !path.starts_with(HIDDEN));
        files
    };
    let (before, was) = (content(), inode());
    let both = "add @/data @/some-hybrid.torrent @/one-v2.torrent";
    says(folder, &format!("{both} --in-place @/data"), 1, "copies nothing");
    says(folder, &format!("{both} @/data"), 1, "/data; --in-place takes it up there, without a copy");
    done(folder, "format @/image --size 32MiB");
    let said = "only a folder can take up files that lie in it";
    says(folder, "add @/image @/one-v2.torrent --in-place", 1, said);
    let added = done(folder, &format!("{both} --in-place"));
    assert_eq!(added.lines().count(), 2, "{added}");
    assert!(added.contains("some: 23 of 23 pieces"), "{added}");
    assert!(content() == before && inode() == was);
    done(folder, "check @/data");
    assert_eq!(done(folder, &format!("{both} --in-place")), added);
    done(folder, "remove @/data some");
    assert!(!folder.join("data/some").exists(), "it is the store's");
    let said = "some: nothing of it that could be taken up lies in ";
    says(folder, "add @/data @/some-hybrid.torrent --in-place", 1, said);

    // A part of it, with an unrelated file.
    fixture(folder, "some-hybrid");
    rot(&folder.join("data/some/b.bin"), 200_000);
    fs::write(folder.join("data/some/d.bin"), "mine").unwrap();
    let ended = store(folder, "add @/data @/some-hybrid.torrent --in-place --json");
    let added: Value = serde_json::from_str(&ended.out).unwrap();
    assert_eq!((ended.code, &added["wrong"]), (3, &serde_json::json!([11])), "{}", ended.errors);
    let missing = added["missing"].as_array().unwrap().len() as u64;
    assert_eq!(added["complete"], 23 - 1 - missing);
    assert!(ended.errors.contains("d.bin.found"), "{}", ended.errors);
    assert_eq!(fs::read(folder.join("data/some/d.bin.found")).unwrap(), b"mine");

    // Another torrent of the same files gets a copy.
    fs::write(folder.join("other.torrent"), torrents::fixture("some-v1")).unwrap();
    says(folder, "add @/data @/other.torrent --in-place", 1, "data/some is of the torrent ");
    assert_eq!(store(folder, "add @/data @/other.torrent @/data/some").code, 3);
    assert!(folder.join("data/some (2)/d.bin").exists());
}

#[test]
fn wrong_data_is_reported() {
    let folder: &Path = &Folder(scratch_folder());
    fixture(folder, "some-v1");
    done(folder, "format @/image --size 32MiB");
    assert_eq!(store(folder, "add @/image @/some-v1.torrent @/nowhere").code, 1);
    fs::create_dir(folder.join("empty")).unwrap();
    says(folder, "add @/image @/some-v1.torrent @/empty", 1, "none of the files");
    assert!(done(folder, "list @/image").contains("no torrents"), "nothing was taken in");
    fs::remove_file(folder.join("data/some/e.bin")).unwrap();
    rot(&folder.join("data/some/b.bin"), 200_000);
    // The folder of the torrent itself works as well.
    let (code, added) = json(folder, "add @/image @/some-v1.torrent @/data/some --json");
    assert_eq!((code, &added["wrong"]), (3, &serde_json::json!([6])));
    assert!(!added["missing"].as_array().unwrap().is_empty());
    says(folder, "export @/image some --to @/out", 3, "not in the store");
    says(folder, "add @/image @/some-v1.torrent", 1, "in the store already");
    fs::write(folder.join("no.torrent"), "no").unwrap();
    assert_eq!(store(folder, "add @/image @/no.torrent").code, 1);
    assert_eq!(store(folder, "list @/nothing").code, 1);
    assert_eq!(store(folder, "list /dev/null").code, 1);
    assert_eq!(store(folder, "list").code, 2);
}

#[test]
fn a_torrent_of_one_file_is_added_from_that_file_and_by_its_own_hash() {
    let folder: &Path = &Folder(scratch_folder());
    fixture(folder, "one-v2 one-hybrid");
    done(folder, "format @/image --size 32MiB");
    done(folder, "add @/image @/one-v2.torrent @/data/one.bin");
    done(folder, "add @/image @/one-hybrid.torrent @/data");
    says(folder, "export @/image one.bin --to @/out", 1, "2 torrents are called one.bin");
    let hash = torrents::torrent("one-v2").info().info_hash().to_string();
    done(folder, &format!("export @/image {} --to @/out", &hash[..6]));
    assert_eq!(files(&folder.join("out")), files(&folder.join("data")));
    done(folder, &format!("remove @/image {hash}"));
    done(folder, "export @/image one.bin --to @/again");
}

#[test]
fn several_torrents_are_added_at_once_and_one_that_fails_ends_no_other() {
    let folder: &Path = &Folder(scratch_folder());
    let all = ["some-v1", "one-v2", "one-hybrid"].map(|name| {
        fixture(folder, name);
        format!("@/{name}.torrent")
    });
    done(folder, "format @/image --size 32MiB");
    done(folder, &format!("add @/image {}", all[1]));
    // Without the label, a list would read the torrent file.
    let added = BlockStore::open_read_only(&folder.join("image")).unwrap();
    let torrents = added.list().unwrap();
    assert!(torrents.iter().any(|torrent| !added.label(&torrent.info_hash).unwrap().is_empty()));
    drop(added);
    says(folder, &format!("add @/image {}", all.join(" ")), 1, "in the store already");
    let added = done(folder, &format!("add @/image {} @/data", all.join(" ")));
    assert_eq!(added.lines().count(), 3, "{added}");
    done(folder, "export @/image --all --to @/out");
}

#[test]
fn an_ordered_store_has_its_i_nodes_at_the_end() {
    for (option, at_the_end) in [("", false), (" --ordered", true)] {
        let folder: &Path = &Folder(scratch_folder());
        fixture(folder, "some-v1");
        done(folder, &format!("format @/image --size 32MiB{option}"));
        done(folder, "add @/image @/some-v1.torrent");
        let map = done(folder, "map @/image");
        assert_eq!(map.lines().any(|line| line.ends_with('%')), at_the_end, "{map}");
    }
}

#[test]
fn a_store_without_a_root_is_repaired() {
    let folder: &Path = &Folder(scratch_folder());
    let (image, size) = (folder.join("image"), 64 << 20);
    let image = &image;
    let damages: [(&str, &str, &dyn Fn()); 4] = [
        ("flipped bits", "both copies of its root are damaged", &|| {
            [20, (4 << 20) + 41].into_iter().for_each(|at| rot(image, at))
        }),
        ("flipped magic", "both copies of its root are damaged", &|| {
            [3, (4 << 20) + 5].into_iter().for_each(|at| rot(image, at))
        }),
        ("the first 8 MiB", "no content store is found on it", &|| {
            File::options().write(true).open(image).unwrap().write_all_at(&vec![0; 8 << 20], 0).unwrap();
        }),
        ("its end", "part of it is missing", &|| {
            File::options().write(true).open(image).unwrap().set_len(size - (8 << 20)).unwrap();
        }),
    ];
    fixture(folder, "some-v1 one-v2 many-v1");
    for (name, told, damage) in damages {
        let _ = fs::remove_file(image);
        done(folder, "format @/image --size 64MiB --block-size 4MiB");
        done(folder, "add @/image @/some-v1.torrent @/one-v2.torrent @/many-v1.torrent @/data");
        done(folder, "remove @/image many");
        damage();
        let listed = says(folder, "list @/image", 1, told);
        assert!(listed.errors.contains("repair"), "{name}: {}", listed.errors);
        let holds = says(folder, "format @/image", 1, "which would be lost").errors.contains(told);
        assert_eq!(holds, name != "the first 8 MiB");
        done(folder, "repair @/image");
        says(folder, "check @/image", 0, "All is well.");
        assert_eq!(json(folder, "list @/image --json").1.as_array().unwrap().len(), 2, "{name}");
        done(folder, "add @/image @/many-v1.torrent @/data");
        done(folder, "export @/image --all --to @/out");
        assert_eq!(files(&folder.join("out")), files(&folder.join("data")), "{name}");
        fs::remove_dir_all(folder.join("out")).unwrap();
    }
    // An earlier version is refused before the search for torrents.
    image_of_version(2, folder);
    let refused = says(folder, "repair @/v2.img", 1, "version 2");
    assert_eq!(refused.errors.lines().count(), 1, "{}", refused.errors);
    // Nor is a file system that was made there since.
    let file = File::options().write(true).open(image).unwrap();
    file.write_all_at(&vec![0; 8 << 20], 0).unwrap();
    file.write_all_at(b"\x53\xef", 0x438).unwrap();
    says(folder, "repair @/image", 1, "ext4 file system");
    done(folder, "repair @/image --force");
}

/// The content of a torrent are i-nodes of other images: of a torrent in nearly all blocks, and of each other
/// torrent of the store.
#[test]
fn content_that_looks_like_i_nodes_takes_nothing_from_a_store_without_a_root() {
    for option in ["", " --ordered"] {
        let folder: &Path = &Folder(scratch_folder());
        let create = |name: &str, bytes: &[u8]| {
            fs::write(folder.join(name), bytes).unwrap();
            assert_eq!(ended(&mut seedkeep(folder, &format!("create {name} --piece-length 16KiB"))).code, 0);
        };
        let stored = |image: &str, option: &str, names: &[&str]| {
            done(folder, &format!("format @/{image} --size 8MiB{option}"));
            names
                .iter()
                .for_each(|name| _ = done(folder, &format!("add @/{image} @/{name}.torrent @/{name}")));
            fs::read(folder.join(image)).unwrap()
        };
        let names = ["one", "two", "three", "four", "five"];
        for (name, seed) in names.into_iter().zip(1..) {
            create(name, &random_bytes(seed, 40_000));
        }
        create("all", &random_bytes(0, 509 << 14));
        let images = [stored("a", "", &["all"]), stored("b", "", &names)];
        create("hostile", &images.map(|image| image[2 << 14..3 << 14].to_vec()).concat());
        let image = stored("image", option, &["hostile", "five", "four", "three", "two", "one"]);
        let before = done(folder, "list @/image");
        for (torrents, code) in [("", 0), (" --torrents @/nowhere", 3)] {
            fs::write(folder.join("image"), [&[0; 2 << 14], &image[2 << 14..]].concat()).unwrap();
            let Ended { out, .. } =
                says(folder, &format!("repair @/image{torrents}"), code, "names 6 torrents");
            assert_eq!(out.contains("it had to choose, and left out 6 i-nodes: "), code == 3, "{out}");
            assert_eq!(done(folder, "list @/image"), before);
            done(folder, "check @/image");
        }
    }
}

#[test]
fn an_export_follows_no_link_and_takes_no_file_for_its_own() {
    let folder: &Path = &Folder(stored(&["one-v2"]));
    fs::create_dir(folder.join("out")).unwrap();
    fs::write(folder.join("out/one.bin.part"), "mine").unwrap();
    fs::write(folder.join("mine"), "mine").unwrap();
    let hash = torrents::torrent("one-v2").info().info_hash();
    let parts = folder.join(format!("out/.{hash}.part"));
    fs::create_dir(&parts).unwrap();
    std::os::unix::fs::symlink(folder.join("mine"), parts.join("0")).unwrap();
    assert_eq!(store(folder, "export @/image one.bin --to @/out").code, 1);
    fs::remove_file(parts.join("0")).unwrap();
    done(folder, "export @/image one.bin --to @/out");
    for mine in ["mine", "out/one.bin.part"] {
        assert_eq!(fs::read(folder.join(mine)).unwrap(), b"mine", "{mine}");
    }

    // Nor a link in place of a folder of the torrent, or of the folder of its parts.
    fixture(folder, "some-v1");
    done(folder, "add @/image @/some-v1.torrent @/data");
    let hash = torrents::torrent("some-v1").info().info_hash();
    fs::create_dir(folder.join("elsewhere")).unwrap();
    for planted in ["some".to_owned(), format!(".{hash}.part")] {
        let planted = folder.join("out").join(planted);
        std::os::unix::fs::symlink(folder.join("elsewhere"), &planted).unwrap();
        let why = format!("{} is no folder, and no link is followed", planted.display());
        says(folder, "export @/image some --to @/out", 1, &why);
        assert_eq!(fs::read_dir(folder.join("elsewhere")).unwrap().count(), 0, "{}", planted.display());
        fs::remove_file(planted).unwrap();
    }
    // A link on the command line is followed.
    std::os::unix::fs::symlink(folder.join("elsewhere"), folder.join("named")).unwrap();
    done(folder, "export @/image some --to @/named");
    assert!(folder.join("elsewhere/some/b.bin").exists());
}

#[test]
fn a_closed_pipe_is_no_error() {
    let folder: &Path = &Folder(stored(&[]));
    for words in ["list", "stats --json", "map", "check", "-o -"] {
        let command = if words == "-o -" { "create" } else { "store" };
        let mut command = seedkeep(folder, &format!("{command} {words} image"));
        let mut printing = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(printing.stdout.take());
        let ended = printing.wait_with_output().unwrap();
        assert_eq!((ended.status.code(), &*String::from_utf8_lossy(&ended.stderr)), (Some(0), ""));
    }
}
