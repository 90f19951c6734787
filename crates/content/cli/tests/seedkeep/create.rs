//! `seedkeep create` on real files.

use std::{
    os::unix::{fs::symlink, net::UnixListener},
    process::Output,
};

use swarmkeep_metainfo::Info;

use super::{peers::names, *};

fn create(folder: &Path, words: &str) -> Ended {
    ended(&mut seedkeep(folder, &format!("create {words}")))
}

fn refused(folder: &Path, words: &str, code: i32) -> String {
    let ended = create(folder, words);
    assert_eq!((ended.code, &*ended.out), (code, ""), "{words}: {}", ended.errors);
    ended.errors
}

/// Verifies every piece of the files in `folder`.
fn assert_verifies(info: &Info, folder: &Path) {
    for piece in 0..info.piece_count() {
        let mut check = info.check(piece).unwrap();
        for segment in info.files().segments(info.piece_range(piece).unwrap()) {
            let file = info.files().get(segment.file).unwrap();
            let bytes = match file.is_padding() {
                true => vec![0; file.length() as usize],
                false => fs::read(folder.join(PathBuf::from_iter(file.path()))).unwrap(),
            };
            check.update(&bytes[segment.offset as usize..][..segment.length as usize]);
        }
        assert!(check.holds(), "piece {piece}");
    }
}

#[test]
fn each_format_describes_its_files() {
    let folder: &Path = &Folder(scratch());
    for format in FORMATS {
        let words =
            format!("create some {format} -o made{format}.torrent --json --piece-length 32KiB --comment x");
        let told: Value = serde_json::from_str(&done(folder, &words).out).unwrap();
        let metainfo = read(&folder.join(format!("made{format}.torrent")));
        let info = metainfo.info();
        assert_verifies(info, folder);
        let files: Vec<_> = info.files().iter().filter(|file| !file.is_padding()).collect();
        let paths: Vec<_> = files.iter().map(|file| file.path()[1..].join("/")).collect();
        let expected = ".a/.b|.hidden|B|a/deep/er/nested.bin|a/empty|a.b|copy|copy too|run|sub/z|sub.x|é.bin";
        assert_eq!(paths.join("|"), expected, "{format}");
        let programs: Vec<_> =
            files.iter().filter(|file| file.is_executable()).map(|file| file.path()[1]).collect();
        assert_eq!(programs, ["run"]);
        assert_eq!(info.has_v1(), format != "--v2");
        assert_eq!(told["info_hash"], info.info_hash().to_string());
        assert_eq!(told["info_hash_v2"].is_string(), format != "--v1");
        assert_eq!((&told["bytes"], &told["files"]), (&638_616.into(), &12.into()));
        assert_eq!((&told["piece_length"], &told["pieces"]), (&32_768.into(), &info.piece_count().into()));
        let magnet: Magnet = told["magnet"].as_str().unwrap().parse().unwrap();
        assert!(magnet.names(info) && magnet.name() == Some("some"));
    }
}

#[test]
fn the_same_files_give_the_same_torrent_whenever_wherever_and_by_however_many_threads() {
    let (one, other) = (scratch(), tempfile::tempdir().unwrap());
    // Made in another order, at another time.
    put(&other.path().join("elsewhere/some"));
    fs::rename(other.path().join("elsewhere/some/a"), other.path().join("a")).unwrap();
    fs::rename(other.path().join("a"), other.path().join("elsewhere/some/a")).unwrap();
    symlink("elsewhere/some", other.path().join("some")).unwrap();
    for format in FORMATS {
        done(one.path(), &format!("create some {format} --force --threads 1"));
        let expected = fs::read(one.path().join("some.torrent")).unwrap();
        for words in ["some --threads 7", "elsewhere/some/ --threads 2", "./elsewhere/../some"] {
            done(other.path(), &format!("create {words} {format} --force"));
            assert!(fs::read(other.path().join("some.torrent")).unwrap() == expected, "{words} {format}");
        }
        let inside = other.path().join("elsewhere/some");
        done(&inside, &format!("create . {format} -o ../../some.torrent --force"));
        assert!(fs::read(other.path().join("some.torrent")).unwrap() == expected, "from within");
    }
    let dated = done(one.path(), "create some --date 1700000000 -o dated.torrent --json");
    let plain = done(one.path(), "create some --v1 -o plain.torrent --json");
    let hash = |told: &Ended| serde_json::from_str::<Value>(&told.out).unwrap()["info_hash"].clone();
    assert_eq!(hash(&dated), hash(&plain));
    let dated = fs::read(one.path().join("dated.torrent")).unwrap();
    assert!(dated.windows(28).any(|part| part == b"13:creation datei1700000000e"));
}

#[test]
fn options_stand_in_the_torrent_and_the_magnet_link_is_printed() {
    let folder: &Path = &Folder(scratch());
    let words = "create some/a.b --tracker udp://a.example:1,http://b.example/announce --tracker https://c.example/x?y=z --private --source S --magnet";
    let told = done(folder, words).out;
    let metainfo = read(&folder.join("a.b.torrent"));
    let tiers = [vec!["udp://a.example:1", "http://b.example/announce"], vec!["https://c.example/x?y=z"]];
    assert_eq!(metainfo.tiers(), tiers);
    let info = metainfo.info();
    assert!(info.is_private());
    assert_eq!((info.files().count(), info.files().get(0).unwrap().path()), (1, vec!["a.b"]));
    assert_verifies(info, &folder.join("some"));
    let lines: Vec<_> = told.lines().collect();
    assert_eq!(lines[0], "a.b.torrent: 1 file, 195.31 KiB in 13 pieces of 16.00 KiB");
    assert_eq!(lines[1], format!("  info hash: {}", info.info_hash()));
    assert_eq!(lines[2].parse(), Ok(Magnet::from(&metainfo)));
    let alone = create(folder, "some --private");
    assert!(alone.code == 0 && alone.errors.contains("no peer will be found"), "{}", alone.errors);
}

#[test]
fn files_that_torrents_cannot_have_are_refused_by_name() {
    let folder: &Path = &Folder(scratch());
    let some = folder.join("some");
    symlink("nowhere", some.join("link")).unwrap();
    symlink(".", some.join("a/around")).unwrap();
    let socket = UnixListener::bind(some.join("socket")).unwrap();
    let said = refused(folder, "some", 1);
    for expected in [
        "some/link is a symbolic link",
        "some/a/around is a symbolic link",
        "some/socket is a socket, a device or a pipe",
    ] {
        assert!(said.contains(expected), "{said}");
    }
    drop(socket);
    assert!(refused(folder, "some/socket", 1).contains("some/socket is a socket, a device or a pipe"));
    (0..20).for_each(|nth| symlink("x", some.join(format!("link{nth}"))).unwrap());
    let said = refused(folder, "some", 1);
    assert!(said.contains("and 13 more") && said.lines().count() == 12, "{said}");

    let folder = tempfile::tempdir().unwrap();
    fs::create_dir_all(folder.path().join("some/within")).unwrap();
    assert!(refused(folder.path(), "some", 1).contains("some: no files"));
    assert!(refused(folder.path(), "nowhere", 1).contains("nowhere: No such file"));
    assert!(refused(folder.path(), "/", 1).contains("no name"));
    fs::write(folder.path().join("some/file"), "x").unwrap();
    fs::write(folder.path().join("some/README"), "x").unwrap();
    let empty = create(folder.path(), "some");
    assert!(empty.errors.contains("1 empty folder left out"), "{}", empty.errors);
    fs::write(folder.path().join("empty"), "").unwrap();
    assert!(refused(folder.path(), "empty", 2).contains("nothing to share"));
}

#[test]
fn any_name_that_a_file_can_have_goes_in_byte_for_byte() {
    let long = [b'x'; 255];
    let names: [&[u8]; 8] = [b"NUL.txt", b"README", b"a\nb", b"a:b", b"end.", b"readme", &long, b"\xff"];
    for (format, own) in FORMATS.iter().zip([&b"some"[..], b"so\\me", b"some\xff"]) {
        let folder: &Path = &Folder(tempfile::tempdir().unwrap());
        let some = folder.join(OsStr::from_bytes(own));
        fs::create_dir(&some).unwrap();
        names.iter().for_each(|name| fs::write(some.join(OsStr::from_bytes(name)), "x").unwrap());
        let line = format!("create {format} -o t.torrent");
        let made = ended(seedkeep(folder, &line).arg(OsStr::from_bytes(own)));
        assert_eq!(made.code, 0, "{}", made.errors);
        let metainfo = read(&folder.join("t.torrent"));
        let files = metainfo.info().files().iter().filter(|file| !file.is_padding());
        let paths = files.map(|file| match file.original_path() {
            Some(path) => path.concat(),
            None => file.path().concat().into_bytes(),
        });
        assert_eq!(paths.collect::<Vec<_>>(), names.map(|name| [own, name].concat()), "{format}");
    }
}

#[test]
fn a_command_line_that_is_wrong_ends_with_2_before_anything_is_read() {
    let folder: &Path = &Folder(scratch());
    for (words, expected) in [
        ("some --v1 --v2", "cannot be used with"),
        ("some --v2 --piece-length 8KiB", "power of two from 16 KiB"),
        ("some --hybrid --piece-length 48KiB", "power of two from 16 KiB"),
        ("some --piece-length 2GiB", "more than 1GiB"),
        ("some --piece-length 0", "expected bytes above 0"),
        ("some --tracker tracker.example", "not the URL of a tracker"),
        ("some --tracker ftp://tracker.example", "not the URL of a tracker"),
        ("some --tracker udp://a.example:1,", "not the URL of a tracker"),
        ("some --tracker http:///announce", "not the URL of a tracker"),
        ("some --threads 0", "expected a whole number above 0"),
        ("some --date soon", "expected a whole number\n"),
    ] {
        let said = refused(folder, words, 2);
        assert!(said.contains(expected), "{words}: {said}");
    }
    assert!(!folder.join("some.torrent").exists());
    done(folder, "create some --v1 --piece-length 1000");
}

#[test]
fn a_torrent_file_is_written_whole_and_over_nothing_that_is_there() {
    let folder: &Path = &Folder(scratch());
    fs::write(folder.join("some.torrent"), "mine").unwrap();
    assert!(refused(folder, "some", 1).contains("some.torrent is there already: --force overwrites it"));
    assert_eq!(fs::read(folder.join("some.torrent")).unwrap(), b"mine");
    let umask = String::from_utf8(Command::new("sh").args(["-c", "umask"]).output().unwrap().stdout).unwrap();
    let umask = u32::from_str_radix(umask.trim(), 8).unwrap();
    done(folder, "create some --force");
    let mode = fs::metadata(folder.join("some.torrent")).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666 & !umask);
    read(&folder.join("some.torrent"));

    for output in ["some/some.torrent", "some/a/x.torrent", "./some/../some/x"] {
        let said = refused(folder, &format!("some -o {output}"), 1);
        assert!(said.contains("would lie in the folder that is shared"), "{said}");
    }
    let command = &mut seedkeep(folder, "create some -o -");
    assert_eq!(command.output().unwrap().stdout, fs::read(folder.join("some.torrent")).unwrap());
    assert!(refused(folder, "some -o - --json", 2).contains("-o - prints the torrent file"));
    let before = fs::read(folder.join("some/B")).unwrap();
    assert!(refused(folder, "some/B -o some/B --force", 1).contains("some/B is part of the content"));
    assert_eq!(fs::read(folder.join("some/B")).unwrap(), before);
    fs::create_dir(folder.join("taken")).unwrap();
    assert!(refused(folder, "some -o taken --force", 1).contains("is no file"));
    assert!(refused(folder, "some -o nowhere/x", 1).contains("the folder of nowhere/x"));
    assert!(refused(folder, "some -o /dev/full --force", 1).contains("/dev/full is there, and is no file"));
    assert_eq!(names(folder), ["some", "some.torrent", "taken"], "nothing else is left behind");
}

/// Runs `create` and waits until it has a file open.
fn reading(folder: &Path, words: &str, file: &Path) -> Child {
    let command = &mut seedkeep(folder, &format!("create {words}"));
    let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    let open = || {
        let files = fs::read_dir(format!("/proc/{}/fd", child.id())).into_iter().flatten();
        files.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|link| link == file))
    };
    while !open() {
        assert!(began.elapsed() < Duration::from_secs(60), "it never opened {}", file.display());
        thread::sleep(Duration::from_millis(1));
    }
    child
}

#[test]
fn a_file_that_changes_while_it_is_read_is_an_error() {
    let changes: [fn(&Path); 4] = [
        |path| File::options().append(true).open(path).unwrap().write_all(b"x").unwrap(),
        |path| File::options().write(true).open(path).unwrap().set_len(5).unwrap(),
        |path| File::options().write(true).open(path).unwrap().write_all(b"x").unwrap(),
        |path| {
            fs::write(path.with_extension("new"), "").unwrap();
            fs::rename(path.with_extension("new"), path).unwrap();
        },
    ];
    for (nth, change) in changes.into_iter().enumerate() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().canonicalize().unwrap();
        let large = folder.join("some/large");
        fs::create_dir(folder.join("some")).unwrap();
        // Reading it takes about a second. It is all hole, and so takes no space on the disk.
        File::create(&large).unwrap().set_len(1 << 30).unwrap();
        let child = reading(&folder, "some --hybrid", &large);
        change(&large);
        let Output { status, stderr, .. } = child.wait_with_output().unwrap();
        let said = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(1), "change {nth}: {said}");
        assert!(said.contains("some/large changed while it was read"), "change {nth}: {said}");
        assert!(!folder.join("some.torrent").exists());
    }
}

#[test]
fn files_larger_than_the_memory_it_has_are_hashed() {
    let folder: &Path = &Folder(tempfile::tempdir().unwrap());
    File::create(folder.join("large")).unwrap().set_len(1 << 29).unwrap();
    let command = format!(
        "ulimit -v 400000 && exec {} create large --hybrid --threads 2 --piece-length 256MiB",
        env!("CARGO_BIN_EXE_seedkeep")
    );
    let ended = ended(Command::new("sh").args(["-c", &command]).current_dir(folder));
    assert_eq!(ended.code, 0, "{}", ended.errors);
    assert!(ended.out.contains("512.00 MiB in 2 pieces of 256.00 MiB"), "{}", ended.out);
}
