//! Files and states that others changed, removed or damaged.

use super::*;

#[test]
fn a_file_that_is_gone_or_of_another_length_costs_its_pieces_and_no_others() {
    let length = 5 * u64::from(PIECE) / 2;
    let files = [("t/a", length), ("t/b", length), ("t/c", length), ("t/d", length), ("t/e/f", length)];
    let folder = temporary();
    let (_, bytes) = fill(&open(folder.path()), &torrent(1, &files));
    let path = |name: &str| folder.path().canonicalize().unwrap().join(name);
    fs::remove_file(path("t/a")).unwrap();
    fs::OpenOptions::new().write(true).open(path("t/c")).unwrap().set_len(length - 1).unwrap();
    fs::OpenOptions::new().write(true).open(path("t/d")).unwrap().set_len(length + 1).unwrap();
    fs::remove_dir_all(path("t/e")).unwrap();
    for again in [false, true] {
        let store = open(folder.path());
        let damage = |name, pieces| Damage::File { info_hash: hash(1), path: path(name), pieces };
        // Piece 2 is of both a and b, 7 of c and d; the last half of it is in the first file that is looked
        // at.
        let expected = [damage("t/a", 3), damage("t/c", 3), damage("t/d", 2), damage("t/e/f", 3)];
        assert_eq!(store.report().damage, if again { &[] } else { &expected[..] });
        let content = store.open(&hash(1)).unwrap();
        assert_eq!(complete(&*content), [3, 4]);
        for at in [0, length, 2 * length, 5 * length - 1] {
            assert!(matches!(content.read(at, &mut [0]), Err(Error::NotWritten { .. })), "at {at}");
        }
    }
    let store = open(folder.path());
    let content = store.open(&hash(1)).unwrap();
    put(&*content, &bytes, (0..13).filter(|piece| ![3, 4].contains(piece)));
    for (nth, (name, _)) in files.iter().enumerate() {
        let range = nth * length as usize..(nth + 1) * length as usize;
        assert!(fs::read(path(name)).unwrap() == bytes[range], "{name}");
    }
}

#[test]
fn a_torrent_without_any_of_its_files_is_held_until_they_are_back() {
    let folder = temporary();
    let files = [("t/a", 100), ("t/b/c", u64::from(PIECE)), ("t/empty", 0)];
    fill(&open(folder.path()), &torrent(1, &files));
    let kept = fs::read(state(folder.path(), hash(1))).unwrap();
    for _ in 0..2 {
        fs::rename(folder.path().join("t"), folder.path().join("elsewhere")).unwrap();
        let store = open(folder.path());
        assert!(matches!(store.report().damage[..], [Damage::Unavailable { .. }]), "{:?}", store.report());
        assert!(store.list().unwrap().is_empty());
        for refused in [store.open(&hash(1)), store.create(&torrent(1, &files))] {
            assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        }
        // Nor does another get its place.
        fill(&store, &torrent(2, &[("t/a", 5)]));
        assert!(folder.path().join("t (2)").exists() && store.delete(&hash(2)).unwrap());
        assert_eq!(names(folder.path()), ["elsewhere"]);
        drop(store);
        assert_eq!(fs::read(state(folder.path(), hash(1))).unwrap(), kept);
        fs::rename(folder.path().join("elsewhere"), folder.path().join("t")).unwrap();
        let store = open(folder.path());
        assert_eq!(store.report().damage, []);
        assert_eq!(complete(&*store.open(&hash(1)).unwrap()), [0, 1]);
    }
    // They need not come back.
    fs::remove_dir_all(folder.path().join("t")).unwrap();
    let store = open(folder.path());
    assert!(store.delete(&hash(1)).unwrap() && !store.delete(&hash(1)).unwrap());
    fill(&store, &torrent(1, &files));
    assert!(folder.path().join("t/b/c").exists());
}

#[test]
fn a_state_that_cannot_be_read_or_understood_now_stays_and_keeps_its_name() {
    let folder = temporary();
    fill(&open(folder.path()), &torrent(1, &[("t/a", 100)]));
    let path = state(folder.path(), hash(1));
    let kept = fs::read(&path).unwrap();
    let mut later = kept.clone();
    later[8] = 3;
    later[60..].fill(0xee);
    let unreadable: [&dyn Fn(); 2] = [&|| fs::write(&path, &later).unwrap(), &|| {
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
    }];
    for make_so in unreadable {
        make_so();
        let store = open(folder.path());
        assert!(matches!(store.report().damage[..], [Damage::Unavailable { .. }]), "{:?}", store.report());
        assert!(matches!(store.open(&hash(1)), Err(Error::Unavailable { .. })));
        assert!(matches!(store.create(&torrent(1, &[("t/a", 100)])), Err(Error::Unavailable { .. })));
        assert!(matches!(store.delete(&hash(1)), Err(Error::Unavailable { .. })), "its files are unknown");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }
    fs::remove_dir(&path).unwrap();
    fs::write(&path, kept).unwrap();
    assert_eq!(complete(&*open(folder.path()).open(&hash(1)).unwrap()), [0]);
}

#[test]
fn files_that_cannot_be_examined_or_removed_are_not_gone() {
    let deep = (0..40).map(|n| n.to_string()).collect::<Vec<_>>().join("/");
    let name = format!("t/{deep}/a");
    let files = [(&*name, u64::from(PIECE)), ("t/b", 10)];
    if let Some(folder) = env::var_os(FEW_DESCRIPTORS) {
        let store = open(Path::new(&folder));
        if let Ok(content) = store.open(&hash(1)) {
            panic!("{content:?}, {:?}", store.report());
        }
        assert!(matches!(store.open(&hash(1)), Err(Error::Unavailable { .. })));
        let removed = store.delete(&hash(1));
        assert!(matches!(removed, Err(Error::Io { .. })), "{removed:?}");
        return;
    }
    let folder = temporary();
    fill(&open(folder.path()), &torrent(1, &files));
    let path = state(folder.path(), hash(1));
    let kept = fs::read(&path).unwrap();
    let test = "files::damage::files_that_cannot_be_examined_or_removed_are_not_gone";
    let child = Command::new("sh")
        .args(["-c", "ulimit -n 24; exec \"$0\" \"$1\" --exact --nocapture"])
        .args([env::current_exe().unwrap().as_os_str(), test.as_ref()])
        .env(FEW_DESCRIPTORS, folder.path())
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
    // It was deleted in the end, of which nothing could be removed.
    assert_eq!(fs::read(path.with_extension("gone")).unwrap(), kept, "its bits stay");
    assert!(folder.path().join(&name).exists());
    let store = open(folder.path());
    assert_eq!((store.report().damage.len(), names(folder.path())), (0, Vec::new()));
}

#[test]
fn a_file_in_the_place_of_the_torrents_own_is_kept_by_another_name() {
    let folder = temporary();
    let long = "n".repeat(255);
    let files = [("t/a", 100), ("t/b", 100), (&*format!("t/{long}"), 100), ("t/blank", 100)];
    fill(&open(folder.path()), &torrent(1, &files));
    for round in 1..=2 {
        fs::write(folder.path().join("t/a"), "mine").unwrap();
        fs::remove_file(folder.path().join("t/b")).unwrap();
        fs::hard_link(folder.path().join("t/a"), folder.path().join("t/b")).unwrap();
        fs::write(folder.path().join("t").join(&long), "mine").unwrap();
        // As a crash may leave it.
        fs::write(folder.path().join("t/blank"), "").unwrap();
        let store = open(folder.path());
        let content = store.open(&hash(1)).unwrap();
        content.write(0, &[7; 400]).unwrap();
        assert!(content.mark_complete(0).unwrap());
        store.flush().unwrap();
        let suffix = if round == 1 { ".found" } else { ".found-2" };
        for name in ["a", "b", &long[..240]] {
            let kept = folder.path().join("t").join(format!("{name}{suffix}"));
            assert_eq!(fs::read(&kept).unwrap(), b"mine", "{kept:?}");
        }
        assert_eq!(names(&folder.path().join("t")).len(), 4 + 3 * round);
    }
}

#[test]
fn two_states_that_claim_the_same_files_are_not_both_used() {
    let (folder, other) = (temporary(), temporary());
    let (_, bytes) = fill(&open(folder.path()), &torrent(1, &[("t/a", 100)]));
    fill(&open(other.path()), &torrent(2, &[("T/a", 100), ("T/b", 10)]));
    fs::copy(state(other.path(), hash(2)), state(folder.path(), hash(2))).unwrap();
    let store = open(folder.path());
    assert!(
        matches!(store.report().damage[..], [Damage::Unavailable { info_hash, .. }] if info_hash == hash(2)),
        "{:?}",
        store.report()
    );
    assert!(matches!(store.delete(&hash(2)), Err(Error::Unavailable { .. })));
    assert!(store.open(&hash(1)).unwrap().read_piece(0).unwrap() == bytes);
    assert_eq!(names(folder.path()), ["t"]);
}

#[test]
fn bytes_lost_while_the_store_is_open_are_never_read_as_zeroes() {
    let folder = temporary();
    let store = open(folder.path());
    let (content, bytes) = fill(&store, &torrent(1, &[("a", 4 * u64::from(PIECE))]));
    assert!(content.mark_incomplete(3).unwrap());
    content.write(3 * u64::from(PIECE), &bytes[3 * PIECE as usize..]).unwrap();
    let file = fs::OpenOptions::new().write(true).open(folder.path().join("a")).unwrap();
    file.set_len(100).unwrap();
    // Neither now nor after a write that would give the file its length again.
    for _ in 0..2 {
        assert!(matches!(content.read(u64::from(PIECE), &mut [1; 10]), Err(Error::Io { .. })));
        assert!(content.write(3 * u64::from(PIECE), &bytes[3 * PIECE as usize..]).is_err());
    }
    drop((content, store));
    let store = open(folder.path());
    assert_eq!(complete(&*store.open(&hash(1)).unwrap()), []);
    let (content, _) = fill(&store, &torrent(2, &[("b", u64::from(PIECE) + 1)]));
    assert!(content.mark_incomplete(0).unwrap());
    fs::remove_file(folder.path().join("b")).unwrap();
    assert!(content.write(0, &[1; 10]).is_err(), "bytes written to a file without a name are lost");
}

#[test]
fn files_that_were_written_since_a_delete_was_cut_off_stay() {
    let folder = temporary();
    fill(&open(folder.path()), &torrent(3, &[("t3/a/b", 10), ("t3/c", 10)]));
    fs::rename(state(folder.path(), hash(3)), state(folder.path(), hash(3)).with_extension("gone")).unwrap();
    fs::remove_file(folder.path().join("t3/a/b")).unwrap();
    thread::sleep(Duration::from_millis(20));
    for (name, bytes) in [("mine", "mine"), ("a/b", "0123456789")] {
        fs::write(folder.path().join("t3").join(name), bytes).unwrap();
    }
    let store = open(folder.path());
    assert_eq!((store.report().damage.len(), store.list().unwrap().len()), (0, 0));
    assert_eq!(files_below(&folder.path().join("t3")), BTreeSet::from(["mine", "a/b"].map(PathBuf::from)));
    assert_eq!(fs::read_dir(folder.path().join(HIDDEN).join("torrents")).unwrap().count(), 0);
}

#[test]
fn a_damaged_state_costs_its_torrent_and_never_the_store() {
    let folder = temporary();
    let store = open(folder.path());
    for n in 1..=2 {
        fill(&store, &torrent(n, &[(&format!("t{n}/a"), 100), (&format!("t{n}/b/c"), u64::from(PIECE))]));
    }
    drop(store);
    let path = state(folder.path(), hash(1));
    let good = fs::read(&path).unwrap();
    assert_eq!(good.len(), 1024);
    let list_ends = 60 + 4 * 9 - 9 * 2 + 2 * 2 + (3 + 2) + (2 + 2) - 2;
    let mut costs = [0; 3];
    let cases = (0..good.len()).map(|at| {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        (at, bad)
    });
    let shorter = [0, 1, 59, 60, 100, 512, 1023].map(|len| (len, good[..len].to_vec()));
    for (at, bad) in cases.chain(shorter) {
        fs::write(&path, &bad).unwrap();
        let store = open(folder.path());
        assert_eq!(complete(&*store.open(&hash(2)).unwrap()), [0, 1], "byte {at}");
        match &store.report().damage[..] {
            [] => {
                assert!((list_ends..512).contains(&at) && bad.len() == 1024, "byte {at} means something");
                costs[0] += 1;
            }
            [Damage::HaveBits { pieces, .. }] => {
                assert_eq!((pieces.clone(), at >= 512), (0..2, true));
                assert_eq!(complete(&*store.open(&hash(1)).unwrap()), []);
                drop(store);
                // However it reads the next time, it is not believed.
                let now = fs::read(&path).unwrap();
                assert!(now[..512] == good[..512] && now[512..1020].iter().all(|byte| *byte == 0));
                let store = open(folder.path());
                assert_eq!(store.report().damage, []);
                assert_eq!(complete(&*store.open(&hash(1)).unwrap()), []);
                costs[1] += 1;
            }
            // It may be a later version.
            [Damage::Unavailable { .. }] => {
                assert!((8..12).contains(&at), "byte {at}");
                assert!(matches!(store.open(&hash(1)), Err(Error::Unavailable { .. })));
                assert_eq!(fs::read(&path).unwrap(), bad);
            }
            [Damage::State { path: aside, .. }] => {
                assert!(matches!(store.open(&hash(1)), Err(Error::NotFound(_))));
                assert_eq!(fs::read(aside).unwrap(), bad);
                fs::remove_file(aside).unwrap();
                costs[2] += 1;
            }
            other => panic!("byte {at}: {other:?}"),
        }
        assert!(folder.path().join("t1/b/c").exists());
    }
    assert!(costs[0] > 400 && costs[1] == 512 && costs[2] > 80, "{costs:?}");
    // The state of another torrent.
    fs::copy(state(folder.path(), hash(2)), &path).unwrap();
    let store = open(folder.path());
    assert!(matches!(store.report().damage[..], [Damage::State { .. }]), "{:?}", store.report());
    assert_eq!(store.list().unwrap().len(), 1);
    // One that was set aside before stays as well.
    drop(store);
    fs::write(&path, "no state").unwrap();
    let store = open(folder.path());
    let [Damage::State { path: aside, .. }] = &store.report().damage[..] else {
        panic!("{:?}", store.report())
    };
    assert!(aside.to_str().unwrap().ends_with(".damaged-2"), "{aside:?}");
    // And the torrent can come again, away from the files that are there.
    fill(&store, &torrent(1, &[("t1/a", 100)]));
    assert!(folder.path().join("t1 (2)/a").exists());
}
