//! Content that is wrong, or becomes so while it is seeded.

use std::{fs, os::unix::fs::FileExt as _};

use crate::peers::{Seeder, done, interrupted, last, prepared, seconds_later};

#[test]
fn wrong_bytes_of_a_store_are_not_seeded_and_a_fetch_gets_them_again() {
    let folder = prepared();
    let at = folder.path();
    done(at, "store add image data.torrent data");
    let bytes = fs::read(at.join("data")).unwrap();
    // The tenth piece of 16 KiB; in the folder, another one.
    let image = fs::read(at.join("image")).unwrap();
    let part = &bytes[(9 << 14) + 100..][..64];
    let place = image.windows(64).position(|window| window == part).unwrap();
    for (path, at) in [(at.join("image"), place), (at.join("full/data"), 20 << 14)] {
        fs::File::options().write(true).open(path).unwrap().write_all_at(b"rotten", at as u64).unwrap();
    }
    for store in ["image", "full"] {
        let (seeder, told) = Seeder::of(at, &format!("--store {store}"));
        assert!(told.is_empty(), "{told:?}");
        let line =
            format!("fetch data.torrent --store memory: --listen 127.0.0.1:0 --peer {} --json", seeder.1);
        let (told, code) = interrupted(at, &line, seconds_later());
        let stopped = &told.last().unwrap()["torrents"][0];
        assert_eq!((code, &stopped["complete"]), (Some(3), &511.into()), "{told:?}");
        assert_eq!((&stopped["wasted"], &stopped["banned"]), (&0.into(), &0.into()), "{told:?}");
        let lost: Vec<_> = seeder.2.try_iter().filter(|told| told.contains(r#""event":"lost""#)).collect();
        assert!(matches!(&lost[..], [one] if one.contains(r#""pieces":1"#)), "{lost:?}");
        drop(seeder);
        // It is missing from then on.
        fs::create_dir(at.join("whole")).unwrap();
        done(at, "store add whole data.torrent data");
        let (whole, _) = Seeder::of(at, "--store whole");
        let line =
            format!("fetch data.torrent --store {store} --listen 127.0.0.1:0 --peer {} --json", whole.1);
        let told = last(&done(at, &line));
        assert_eq!((&told["left"], &told["downloaded"]), (&0.into(), &(16 << 10).into()));
        done(at, &format!("store check {store}"));
        drop(whole);
        fs::remove_dir_all(at.join("whole")).unwrap();
    }
}

#[test]
fn a_file_that_changes_while_it_is_seeded_is_no_longer_offered() {
    let folder = prepared();
    let at = folder.path();
    // One piece is missing from the start: neither it nor a lost piece is fetched.
    let mut bytes = fs::read(at.join("data")).unwrap();
    bytes[100_000] ^= 1;
    fs::create_dir(at.join("some")).unwrap();
    fs::write(at.join("some/data"), &bytes).unwrap();
    let (part, _) = Seeder::of(at, "data.torrent some");
    bytes[0] ^= 1;
    fs::write(at.join("some/data"), &bytes).unwrap();
    let line = format!("fetch data.torrent --store memory: --listen 127.0.0.1:0 --peer {} --json", part.1);
    let (told, _) = interrupted(at, &line, seconds_later());
    assert_eq!(told.last().unwrap()["torrents"][0]["complete"], 0, "{told:?}");
    // It received requests for pieces that it could not read any more.
    let seeds: Vec<_> = part.2.try_iter().collect();
    assert!(seeds.iter().any(|told| told.contains(r#""event":"lost""#)), "{seeds:?}");
    // Dropping it asserts that it ends with 0.
}
