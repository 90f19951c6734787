//! Files that are seeded where they are: changes of them, and many of them.

use super::*;

/// Radarr, Sonarr and the like make a hard link of each finished download, and users touch, chmod and move
/// files. Transmission also hashes a piece before it sends it if the file has another time than when it was
/// verified (`ensure_piece_is_checked` in its `peer-msgs.cc`); libtorrent looks at no time while it seeds.
#[test]
fn files_that_change_while_they_are_seeded_are_verified_again_and_offered_again() {
    let at: &Path = &Folder(prepared());
    fs::create_dir(at.join("some")).unwrap();
    let (data, aside) = (at.join("some/data"), at.join("aside"));
    fs::copy(at.join("data"), &data).unwrap();
    let (seeder, _) = Seeder::of(at, "data.torrent some --cache 1");
    let line = format!("fetch data.torrent --store memory: --listen 127.0.0.1:0 --peer {} --json", seeder.1);
    let fetched = || assert_eq!(last(&done(at, &line))["left"], 0);
    fs::hard_link(&data, at.join("link")).unwrap();
    fetched();
    fs::set_permissions(&data, fs::Permissions::from_mode(0o600)).unwrap();
    fetched();
    assert!(seeder.2.try_iter().all(|told| !told.contains(r#""event":"lost""#)));

    let written = |bytes: &[u8]| fs::write(&data, bytes).unwrap();
    let bytes = fs::read(&data).unwrap();
    let changes: [[&dyn Fn(); 2]; 4] = [
        [&|| File::open(&data).unwrap().set_modified(SystemTime::now()).unwrap(), &|| {}],
        [&|| fs::rename(&data, &aside).unwrap(), &|| fs::rename(&aside, &data).unwrap()],
        [&|| written(&bytes[..1 << 20]), &|| written(&bytes)],
        [&|| fs::rename(at.join("data"), &data).unwrap(), &|| {}],
    ];
    for [change, undo] in changes {
        change();
        let mut asks = seedkeep(at, &line).stdout(Stdio::null()).spawn().unwrap();
        assert_eq!(seeder.next("lost")["pieces"], 512, "all at once");
        asks.kill().unwrap();
        asks.wait().unwrap();
        undo();
        let mut back = 0;
        while back < 512 {
            back += seeder.next("back")["pieces"].as_u64().unwrap();
        }
        fetched();
    }
}

/// Torrents of a file of one piece each: `00000.torrent` and so on.
fn small_torrents(folder: &Path, count: u32) {
    fs::write(folder.join("00000"), "bytes").unwrap();
    done(folder, "create 00000");
    let mut torrent = fs::read(folder.join("00000.torrent")).unwrap();
    let at = torrent.windows(5).position(|name| name == b"00000").unwrap();
    for name in (1..count).map(|n| format!("{n:05}")) {
        torrent[at..at + 5].copy_from_slice(name.as_bytes());
        fs::hard_link(folder.join("00000"), folder.join(&name)).unwrap();
        fs::write(folder.join(&name).with_extension("torrent"), &torrent).unwrap();
    }
}

/// A command of the shell with a limit of descriptors; `seedkeep` is the program.
fn limited(folder: &Path, descriptors: u32, command: &str) -> Command {
    let command = command.replace("seedkeep", env!("CARGO_BIN_EXE_seedkeep"));
    let mut shell = Command::new("sh");
    shell.current_dir(folder).arg("-c").arg(format!("ulimit -n {descriptors}; exec {command}"));
    shell
}

#[test]
fn any_number_of_torrents_is_seeded_and_added_with_the_usual_limit_of_descriptors() {
    let at: &Path = &Folder(scratch_folder());
    small_torrents(at, 2_000);
    let mut seed = limited(at, 1024, "seedkeep seed *.torrent . --listen 127.0.0.1:0");
    let mut seed = seed.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(seed.stderr.take().unwrap()).lines().map(Result::unwrap);
    let peer = lines.find_map(|line| line.strip_prefix("Peers can call at ").map(str::to_owned)).unwrap();
    // It prints a line per torrent: more than a pipe holds.
    thread::spawn(move || lines.for_each(drop));
    let fetch = format!("fetch 00000.torrent --store memory: --listen 127.0.0.1:0 --peer {peer} --json");
    assert_eq!(last(&done(at, &fetch))["left"], 0);
    kill(Pid::from_raw(seed.id() as i32), Signal::SIGINT).unwrap();
    let seeded = seed.wait_with_output().unwrap();
    assert!(seeded.status.success());
    assert_eq!(String::from_utf8(seeded.stdout).unwrap().matches(": 1 of 1 piece,").count(), 2_000);

    fs::create_dir(at.join("store")).unwrap();
    let added = ended(&mut limited(at, 256, "seedkeep store add store 00[0-2]*.torrent ."));
    assert_eq!((added.code, added.out.lines().count()), (0, 300), "{}", added.errors);
}
