//! `seedkeep seed` and `seedkeep fetch`, each a process, on loopback.

use std::{
    io, iter,
    sync::mpsc::{self, Receiver},
};

use super::*;

mod files;

/// A folder with a torrent of 8 MiB in 512 pieces, and a store of each kind, of which `full` has all of it.
pub(crate) fn prepared() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("data"), random_bytes(7, 8 << 20)).unwrap();
    for store in ["full", "files"] {
        fs::create_dir(folder.path().join(store)).unwrap();
    }
    done(folder.path(), "create data -o data.torrent --piece-length 16KiB");
    done(folder.path(), "store add full data.torrent data");
    done(folder.path(), "store format image --size 64MiB --block-size 256KiB");
    folder
}

/// A seeder, until it is dropped; the address at which it listens, and its events.
pub(crate) struct Seeder(Child, pub(crate) String, Receiver<String>);

impl Seeder {
    pub(crate) fn start(folder: &Path) -> Self {
        let (seeder, told) = Self::of(folder, "--store full");
        assert_eq!(told, Vec::<Value>::new());
        seeder
    }

    /// Also returns the events before it listens.
    pub(crate) fn of(folder: &Path, paths: &str) -> (Self, Vec<Value>) {
        let mut command = seedkeep(folder, &format!("seed {paths} --listen 127.0.0.1:0 --json"));
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut told = Vec::new();
        let at = loop {
            let event: Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
            if event["event"] == "listening" {
                break event["addresses"][0].as_str().unwrap().to_owned();
            }
            told.push(event);
        };
        let (tell, later) = mpsc::channel();
        thread::spawn(move || lines.try_for_each(|line| tell.send(line.unwrap())));
        (Self(child, at, later), told)
    }

    /// The next event of a kind, within some minutes.
    fn next(&self, event: &str) -> Value {
        let events = iter::repeat_with(|| serde_json::from_str::<Value>(&self.2.recv().unwrap()).unwrap());
        events.take(300).find(|told| told["event"] == event).unwrap()
    }
}

impl Drop for Seeder {
    fn drop(&mut self) {
        kill(Pid::from_raw(self.0.id() as i32), Signal::SIGINT).unwrap();
        assert!(self.0.wait().unwrap().success() || thread::panicking());
    }
}

/// All events of a program that is interrupted after a certain event, its exit code, and its stderr.
pub(crate) fn interrupted(
    folder: &Path,
    line: &str,
    when: impl Fn(&Value) -> bool,
) -> (Vec<Value>, Option<i32>, String) {
    let mut command = seedkeep(folder, line);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let errors = child.stderr.take().unwrap();
    let said = thread::spawn(|| io::read_to_string(errors).unwrap());
    let began = Instant::now();
    let (mut told, mut asked) = (Vec::new(), false);
    for line in BufReader::new(child.stdout.take().unwrap()).lines() {
        told.push(serde_json::from_str(&line.unwrap()).unwrap());
        let late = began.elapsed() > Duration::from_secs(60);
        if !asked && (late || when(told.last().unwrap())) {
            kill(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
            asked = true;
        }
        assert!(!late, "it has told of something else for a minute: {told:?}");
    }
    let code = child.wait().unwrap().code();
    assert!(asked, "{told:?}");
    (told, code, said.join().unwrap())
}

/// Is true from the `nth` event of a kind on.
pub(crate) fn after(nth: u32, event: &str) -> impl Fn(&Value) -> bool {
    let seen = Cell::new(0);
    move |told| {
        seen.set(seen.get() + u32::from(told["event"] == event));
        seen.get() >= nth
    }
}

/// Runs a command that ends with 1 and says why.
fn refused(folder: &Path, line: &str, said: &str) -> Ended {
    let ended = ended(&mut seedkeep(folder, line));
    assert!(ended.code == 1 && ended.errors.contains(said), "{line}: {}: {}", ended.code, ended.errors);
    ended
}

/// The last event of the torrent.
fn last(ended: &Ended) -> Value {
    let event: Value = serde_json::from_str(ended.out.lines().last().unwrap()).unwrap();
    assert_eq!(event["event"], "stopped");
    event["torrents"][0].clone()
}

#[test]
fn a_seeded_torrent_is_fetched_into_a_store_of_each_kind() {
    let folder: &Path = &Folder(prepared());
    let seeder = Seeder::start(folder);
    for store in ["files", "image", "memory:"] {
        let at = &seeder.1;
        let line = format!("fetch data.torrent --store {store} --listen 127.0.0.1:0 --peer {at} --json");
        let told = last(&done(folder, &line));
        assert_eq!((&told["left"], &told["complete"], &told["wasted"]), (&0.into(), &512.into(), &0.into()));
        assert_eq!(told["downloaded"], 8 << 20);
    }
    done(folder, "store export image data --to out");
    let expected = fs::read(folder.join("data")).unwrap();
    for path in ["files/data", "out/data"] {
        assert!(fs::read(folder.join(path)).unwrap() == expected, "{path}");
    }
}

/// Paths of all files and folders below a folder, and when each was changed.
pub(crate) fn tree(folder: &Path) -> BTreeMap<PathBuf, SystemTime> {
    let mut tree = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let metadata = entry.metadata().unwrap();
        if metadata.is_dir() {
            tree.extend(self::tree(&entry.path()));
        }
        tree.insert(entry.path(), metadata.modified().unwrap());
    }
    tree
}

#[test]
fn seed_reads_the_content_where_create_found_it() {
    for format in ["", "--v2", "--hybrid"] {
        let folder: &Path = &Folder(tempfile::tempdir().unwrap());
        let work = folder.join("work");
        put(&work.join("album"));
        done(&work, &format!("create album {format} --piece-length 16KiB"));
        let before = tree(&work);
        let elsewhere = tempfile::tempdir().unwrap();
        fs::copy(work.join("album.torrent"), elsewhere.path().join("a.torrent")).unwrap();
        let there = work.display();
        for (at, paths) in [
            (&*work, "album.torrent".to_owned()),
            (folder, "work/album.torrent".to_owned()),
            (&work, format!("{}/a.torrent", elsewhere.path().display())),
            (elsewhere.path(), format!("a.torrent {there}")),
            (elsewhere.path(), format!("a.torrent {there}/album")),
        ] {
            let (seeder, told) = Seeder::of(at, &paths);
            assert_eq!((&told[0]["event"], &told[0]["complete"]), (&"verified".into(), &told[0]["pieces"]));
            let store = tempfile::tempdir().unwrap();
            let out = store.path().display();
            let torrent = work.join("album.torrent");
            let line =
                format!("fetch {} --store {out} --listen 127.0.0.1:0 --peer {}", torrent.display(), seeder.1);
            done(at, &line);
            drop(seeder);
            for (path, _) in
                before.iter().filter(|(path, _)| path.is_file() && path.extension() != torrent.extension())
            {
                let fetched = store.path().join(path.strip_prefix(&work).unwrap());
                assert!(fs::read(fetched).unwrap() == fs::read(path).unwrap(), "{path:?}");
            }
            assert_eq!(tree(&work), before, "seeding {paths} changes no file and makes none");
        }
    }
}

#[test]
fn right_pieces_of_files_are_seeded_and_nothing_is_fetched_into_them() {
    let at: &Path = &Folder(prepared());
    let mut bytes = fs::read(at.join("data")).unwrap();
    bytes[100_000] ^= 1;
    fs::create_dir(at.join("some")).unwrap();
    fs::write(at.join("some/data"), &bytes[..5 << 20]).unwrap();
    let (part, told) = Seeder::of(at, "data.torrent some");
    assert_eq!(told[0]["complete"], 319);
    assert_eq!((&told[0]["wrong"], told[0]["missing"].as_array().unwrap().len()), (&vec![6].into(), 192));
    let whole = Seeder::start(at);
    let line = format!(
        "fetch data.torrent --store memory: --listen 127.0.0.1:0 --peer {} --peer {} --json",
        part.1, whole.1
    );
    assert_eq!(last(&done(at, &line))["left"], 0);
    drop(part);
    let line = format!("seed data.torrent some --listen 127.0.0.1:0 --peer {} --json", whole.1);
    let (told, code, _) = interrupted(at, &line, after(5, "progress"));
    assert!(told.iter().any(|told| told["event"] == "peer" && told["connected"] == true), "{told:?}");
    let stopped = &told.last().unwrap()["torrents"][0];
    assert_eq!((code, &stopped["downloaded"], &stopped["complete"]), (Some(0), &0.into(), &319.into()));
    assert!(fs::read(at.join("some/data")).unwrap() == bytes[..5 << 20]);
}

#[test]
fn a_store_in_the_current_folder_seeds_its_own_torrents_and_fetches_the_rest() {
    let at: &Path = &Folder(prepared());
    let whole = Seeder::start(at);
    let line = format!("fetch ../data.torrent --listen 127.0.0.1:0 --peer {} --json --down 2MiB", whole.1);
    let some = |told: &Value| told["torrents"][0]["complete"].as_u64() >= Some(64);
    assert_eq!(interrupted(&at.join("files"), &line, some).1, Some(3));
    let line = format!("seed ../data.torrent --listen 127.0.0.1:0 --peer {} --json", whole.1);
    let all = |told: &Value| told["torrents"][0]["complete"] == 512;
    let (told, code, _) = interrupted(&at.join("files"), &line, all);
    assert_eq!(code, Some(0));
    assert!(told.iter().all(|told| told["event"] != "verified"), "{told:?}");
}

#[test]
fn a_fetch_takes_up_a_torrent_that_is_there_and_leaves_all_else_alone() {
    let at: &Path = &Folder(prepared());
    let right = fs::read(at.join("data")).unwrap();
    // All of it is there: no peer is needed.
    let fetched = done(at, "fetch data.torrent --listen 127.0.0.1:0 --json");
    assert!(fetched.errors.contains("data: all of it is there already, in ./data"), "{}", fetched.errors);
    assert_eq!((&last(&fetched)["complete"], &last(&fetched)["downloaded"]), (&512.into(), &0.into()));
    assert!(fs::read(at.join("data")).unwrap() == right);

    let whole = Seeder::start(at);
    let line = format!("fetch ../data.torrent --listen 127.0.0.1:0 --peer {} --json", whole.1);
    let mut wrong = right.clone();
    wrong[8_000_000] ^= 1;
    let rest_is_fetched = "pieces are there already, in ./data; the rest is fetched into it";
    let (tail, longer) = (right.len() - (5 << 20), [&right[..], b"more"].concat());
    let place = "is not this torrent: it stays, and the torrent goes to ./data (2)";
    for (mine, downloaded, said) in [
        (&wrong[..], 16 << 10, format!("data: 511 of 512 {rest_is_fetched}")),
        (&right[..5 << 20], tail, format!("data: 320 of 512 {rest_is_fetched}")),
        (b"mine", right.len(), format!("data: ./data {place}")),
        // It is cut, as by `initialize` of libtorrent's storages and by Transmission's `open-files.cc`.
        (&longer, 0, "data: all of it is there already, in ./data".to_owned()),
    ] {
        let other = tempfile::tempdir_in(at).unwrap();
        let other = other.path();
        fs::write(other.join("data"), mine).unwrap();
        let fetched = done(other, &line);
        assert!(fetched.errors.contains(&said), "{}", fetched.errors);
        assert_eq!(last(&fetched)["downloaded"], downloaded, "{said}");
        let is_elsewhere = said.ends_with("(2)");
        let mut there = vec![".swarmkeep", "data"];
        there.extend(is_elsewhere.then_some("data (2)"));
        assert_eq!(names(other), there);
        assert!(fs::read(other.join(there.last().unwrap())).unwrap() == right, "{said}");
        assert!(!is_elsewhere || fs::read(other.join("data")).unwrap() == mine);
    }
}

pub(crate) fn names(folder: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

/// A part of a torrent, as other clients leave it in a folder, with unrelated files.
#[test]
fn a_fetch_takes_up_files_of_another_client() {
    let at: &Path = &Folder(prepared());
    let album = at.join("album");
    fs::create_dir(&album).unwrap();
    let tracks = ["1", "2", "3", "4", "5"];
    let late = |byte| [vec![0; 100_000], vec![byte; 100_000]].concat();
    for (n, track) in tracks.iter().enumerate() {
        fs::write(album.join(track), vec![n as u8 + 1; 200_000]).unwrap();
    }
    fs::write(album.join("5"), late(5)).unwrap();
    done(at, "create album --piece-length 16KiB");
    let whole = Seeder::of(at, "album.torrent").0;
    let other = tempfile::tempdir_in(at).unwrap();
    let mine = other.path().join("album");
    fs::create_dir(&mine).unwrap();
    // Whole; begun, in a file of its whole length; not begun, likewise; another file; and one that has some
    // zeroes in common.
    fs::write(mine.join("1"), vec![1; 200_000]).unwrap();
    fs::write(mine.join("2"), vec![2; 100_000]).unwrap();
    fs::OpenOptions::new().write(true).open(mine.join("2")).unwrap().set_len(200_000).unwrap();
    fs::File::create(mine.join("3")).unwrap().set_len(200_000).unwrap();
    fs::write(mine.join("4"), "mine").unwrap();
    fs::write(mine.join("5"), late(7)).unwrap();
    fs::write(mine.join("cover"), "mine").unwrap();
    let line = format!("fetch ../album.torrent --listen 127.0.0.1:0 --peer {} --json", whole.1);
    let told = done(other.path(), &line).errors;
    assert!(told.contains("album: 18 of 62 pieces are there already, in ./album"), "{told}");
    for track in ["4", "5"] {
        assert!(told.contains(&format!("/album/{track}.found")), "{told}");
    }
    assert_eq!(names(&mine), ["1", "2", "3", "4", "4.found", "5", "5.found", "cover"]);
    for track in tracks {
        assert!(fs::read(mine.join(track)).unwrap() == fs::read(album.join(track)).unwrap(), "{track}");
    }
    assert_eq!(fs::read(mine.join("4.found")).unwrap(), b"mine");
    assert!(fs::read(mine.join("5.found")).unwrap() == late(7));
}

#[test]
fn a_torrent_that_cannot_be_seeded_ends_no_other() {
    let at: &Path = &Folder(prepared());
    fs::write(at.join("gone"), [7; 100_000]).unwrap();
    done(at, "create gone");
    fs::remove_file(at.join("gone")).unwrap();
    let line = "seed gone.torrent data.torrent --listen 127.0.0.1:0 --json";
    let (told, code, _) = interrupted(at, line, |told| told["event"] == "progress");
    let stopped = told.last().unwrap()["torrents"].as_array().unwrap();
    assert_eq!((code, stopped.len(), &stopped[0]["complete"]), (Some(1), 1, &512.into()));
}

#[test]
fn errors_name_the_cause_and_the_remedy() {
    let at: &Path = &Folder(prepared());
    for (line, said) in [
        ("fetch data --store files", "data: "),
        ("fetch data.torrent --store nowhere", "seedkeep store format"),
        ("seed --store files", "holds no store; `seedkeep store add` begins one"),
        ("seed --store image", "`seedkeep store add` puts them there"),
        ("fetch magnet:?xt=urn:btih:12 --store files", "40 digits of hex"),
        ("fetch data.torrent --store files --listen 192.0.2.1:1", "cannot listen at 192.0.2.1:1"),
    ] {
        refused(at, line, said);
    }
    fs::create_dir_all(at.join("empty")).unwrap();
    fs::write(at.join("other"), vec![0; 8 << 20]).unwrap();
    for (line, said) in [
        ("seed ../data.torrent .", "data: none of its files is in ."),
        ("seed ../data.torrent ../other", "no piece of it is right: other bytes are there"),
        ("seed ../data.torrent --store .", "holds no store"),
        ("seed ../data.torrent --store memory:", "it is not in memory:; `seedkeep store add"),
        ("seed", "holds no store"),
        ("seed ../data.torrent . ..", "..: one file or folder has the content of all torrents"),
    ] {
        refused(&at.join("empty"), line, said);
    }
    done(at, "store add image data.torrent data");
    fs::remove_dir_all(at.join("torrents")).unwrap();
    let said = "image has no torrent file of its torrents; `seedkeep store add` keeps them";
    refused(at, "seed --store image", said);
    fs::rename(at.join("data"), at.join("moved")).unwrap();
    let said = "it is neither beside its torrent file nor in the current folder; `seedkeep seed";
    refused(at, "seed data.torrent", said);
    assert_eq!(fs::read_dir(at.join("empty")).unwrap().count(), 0, "nothing is made");
}

/// A tracker that answers each announce with these bytes; its URL, and the announces.
pub(crate) fn tracker_at(ip: &str, answer: &'static str) -> (String, Receiver<String>) {
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let url = format!("http://{}/announce", listener.local_addr().unwrap());
    let (tell, asked) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, mut request) = (stream.unwrap(), [0; 2048]);
            let read = stream.read(&mut request).unwrap_or(0);
            let _ = tell.send(String::from_utf8_lossy(&request[..read]).into_owned());
            let head =
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", answer.len());
            let _ = stream.write_all((head + answer).as_bytes());
        }
    });
    (url, asked)
}

#[test]
fn results_of_trackers_and_named_peers_are_reported_once() {
    let at: &Path = &Folder(prepared());
    let refuses = tracker_at("127.0.0.1", "d14:failure reason12:no such lucke").0;
    let answers = tracker_at("127.0.0.1", "d8:completei3e10:incompletei1e8:intervali1800e5:peers0:e").0;
    let dead = "http://127.0.0.1:9/announce";
    // The trackers of one tier receive announces in turn, until one answers.
    done(at, &format!("create data -o t.torrent --tracker {dead} --tracker {refuses} --tracker {answers}"));
    done(at, "create data -o none.torrent");
    let line = "fetch t.torrent --store memory: --listen 127.0.0.1:0 --peer 127.0.0.1:9";
    let is = |told: &Value, event: &str| told["event"] == event;
    let (told, code, said) = interrupted(at, &format!("{line} --json"), after(5, "progress"));
    assert_eq!(code, Some(3));
    let of = |event: &str| told.iter().filter(|told| is(told, event)).collect::<Vec<_>>();
    let trackers: BTreeMap<_, _> =
        of("tracker").into_iter().map(|told| (told["url"].as_str().unwrap(), told)).collect();
    assert_eq!((trackers.len(), of("tracker").len()), (3, 3), "{told:?}");
    let dead_is = trackers[dead];
    assert!(dead_is["error"].as_str().unwrap().contains("refused") && dead_is["again"].is_u64());
    assert_eq!(trackers[&*refuses]["error"], "refused: no such luck");
    assert_eq!((&trackers[&*answers]["seeders"], &trackers[&*answers]["leechers"]), (&3.into(), &1.into()));
    let [peer] = of("peer")[..] else { panic!("{told:?}") };
    let error = peer["error"].as_str().unwrap();
    assert!(peer["address"] == "127.0.0.1:9" && error.contains("refused"), "{peer}");
    for (url, result) in
        [(dead, "refused"), (&refuses, "refused: no such luck"), (&answers, "3 seeders, 1 leecher")]
    {
        let lines: Vec<_> = said.lines().filter(|line| line.contains(&format!("data: {url}: "))).collect();
        assert!(lines.len() == 1 && lines[0].contains(result), "{said}");
        assert_eq!(lines[0].contains("; tried again in "), url != answers, "{said}");
    }
    assert!(said.contains("data: peer 127.0.0.1:9: ") && said.contains("; called again in "), "{said}");
    let line = "fetch none.torrent --store memory: --listen 127.0.0.1:0 --json";
    let (.., said) = interrupted(at, line, after(1, "tracker"));
    assert!(said.contains("data: it names no tracker, and no --peer is given"), "{said}");
}

#[test]
fn a_fetch_that_is_interrupted_says_so_and_goes_on_where_it_was() {
    let folder: &Path = &Folder(prepared());
    let seeder = Seeder::start(folder);
    let line = |more: &str| {
        let at = &seeder.1;
        format!("fetch data.torrent --store image --listen 127.0.0.1:0 --peer {at} --json {more}")
    };
    let some = |told: &Value| told["torrents"][0]["complete"].as_u64() >= Some(64);
    let (told, code, _) = interrupted(folder, &line("--down 2MiB"), some);
    assert_eq!(code, Some(3));
    let stopped = told.last().unwrap();
    assert_eq!(stopped["event"], "stopped");
    let before = &stopped["torrents"][0];
    let (complete, left) = (before["complete"].as_u64().unwrap(), before["left"].as_u64().unwrap());
    assert!((64..512).contains(&complete), "{complete} pieces, of which 128 are 2 MiB");
    let after = last(&done(folder, &line("")));
    assert_eq!((&after["left"], after["downloaded"].as_u64()), (&0.into(), Some(left)));
}

#[test]
fn a_magnet_link_is_enough_and_its_torrent_file_is_kept() {
    let folder: &Path = &Folder(prepared());
    done(folder, "create data -o v2.torrent --v2 --piece-length 16KiB");
    done(folder, "store add full v2.torrent data");
    let seeder = Seeder::start(folder);
    for torrent in ["data.torrent", "v2.torrent"] {
        let metainfo = read(&folder.join(torrent));
        let link = Magnet::from(&metainfo).with_peer(seeder.1.parse().unwrap());
        let fetch = format!("fetch {link} --store image --listen 127.0.0.1:0 --json");
        let told = last(&done(folder, &fetch));
        assert_eq!((&told["left"], &told["downloaded"]), (&0.into(), &(8 << 20).into()), "{torrent}");
        let info_hash = metainfo.info().info_hash();
        done(folder, &format!("store export image {info_hash} --to {torrent}.out"));
        let exported = fs::read(folder.join(format!("{torrent}.out/data"))).unwrap();
        assert!(exported == fs::read(folder.join("data")).unwrap(), "{torrent}");
        // All of it is in the store: no peer is needed.
        let link = Magnet::from(&metainfo);
        let fetch = format!("fetch {link} --store image --listen 127.0.0.1:0 --json");
        assert_eq!(last(&done(folder, &fetch))["downloaded"], 0, "{torrent}");
    }
}

#[test]
fn no_torrent_waits_for_a_link_without_peers() {
    let folder: &Path = &Folder(prepared());
    done(folder, "create data -o v2.torrent --v2 --piece-length 16KiB");
    done(folder, "store add full v2.torrent data");
    let seeder = Seeder::start(folder);
    let metainfo = read(&folder.join("v2.torrent"));
    let (link, at) = (Magnet::from(&metainfo), &seeder.1);
    let line = format!(
        "fetch magnet:?xt=urn:btih:c12fe1c06bba254a9dc9f519b335aa7c1367a88a&dn=it data.torrent {link} --store image \
         --listen 127.0.0.1:0 --peer {at} --json"
    );
    let lefts = |told: &Value| -> Vec<_> {
        let torrents = told["torrents"].as_array().into_iter().flatten();
        torrents.filter_map(|torrent| torrent["left"].as_u64()).collect()
    };
    let (told, code, _) = interrupted(folder, &line, |told| lefts(told) == [0, 0]);
    assert_eq!(code, Some(3), "there is one that is not complete");
    assert_eq!(told.last().unwrap()["event"], "stopped");
    let links = told.iter().rfind(|told| told["event"] == "learning").unwrap()["torrents"].clone();
    assert_eq!(links.as_array().unwrap().len(), 1, "{links}");
    assert_eq!((&links[0]["name"], &links[0]["peers"]), (&"it".into(), &0.into()));
}

#[test]
fn a_failed_torrent_ends_no_other() {
    let folder: &Path = &Folder(prepared());
    let seeder = Seeder::start(folder);
    let metainfo = read(&folder.join("data.torrent"));
    // The same torrent twice. The second cannot be added; the first goes on.
    let (link, at) = (Magnet::from(&metainfo), &seeder.1);
    let line = format!("fetch data.torrent {link} --store files --listen 127.0.0.1:0 --peer {at} --json");
    let fetched = refused(folder, &line, "");
    assert_eq!(fetched.errors.lines().count(), 1, "{}", fetched.errors);
    assert_eq!(last(&fetched)["left"], 0);
    assert!(fs::read(folder.join("files/data")).unwrap() == fs::read(folder.join("data")).unwrap());
}

#[test]
fn a_torrent_of_too_many_files_is_refused_before_anything_is_made() {
    let at: &Path = &Folder(tempfile::tempdir().unwrap());
    // All of its files are empty but the first, of one byte.
    let mut torrent = b"d4:infod5:filesl".to_vec();
    for n in 0..100_005 {
        let (length, name) = (u8::from(n == 0), n.to_string());
        write!(torrent, "d6:lengthi{length}e4:pathl{}:{name}ee", name.len()).unwrap();
    }
    torrent.extend(b"e4:name4:many12:piece lengthi16384e6:pieces20:");
    torrent.extend(b"\x11\xf6\xad\x8e\xc5\x2a\x29\x84\xab\xaa\xfd\x7c\x3b\x51\x65\x03\x78\x5c\x20\x72ee");
    fs::write(at.join("many.torrent"), torrent).unwrap();
    ["many", "store"].into_iter().for_each(|folder| fs::create_dir(at.join(folder)).unwrap());
    fs::write(at.join("many/0"), "x").unwrap();
    // Of v2, without the hashes of its first file.
    let mut lacking = b"d4:infod9:file tree".to_vec();
    (0..100_005).for_each(|n| {
        let file =
            if n == 0 { format!("i32768e11:pieces root32:{}", "x".repeat(32)) } else { "i0e".to_owned() };
        write!(lacking, "{}6:{n:06}d0:d6:length{file}ee", if n == 0 { "d" } else { "" }).unwrap();
    });
    lacking.extend(b"e12:meta versioni2e4:name4:many12:piece lengthi16384eee");
    fs::write(at.join("lacking.torrent"), lacking).unwrap();
    let said = "many: it has 100005 files; more than 100,000 are only taken with --many-files";
    for line in ["fetch many", "fetch lacking", "store add store many", "seed many"] {
        let store = if line.starts_with("fetch") { " --store store" } else { "" };
        refused(at, &format!("{line}.torrent{store}"), said);
    }
    assert_eq!(fs::read_dir(at.join("store")).unwrap().count(), 0, "nothing is made");
    let (seeder, _) = Seeder::of(at, "many.torrent --many-files");
    let link = Magnet::from(&read(&at.join("many.torrent")));
    // Others go on.
    fs::write(at.join("one"), "x").unwrap();
    done(at, "create one");
    let one = "one.torrent --listen 127.0.0.1:0 --json";
    let line = format!("fetch {link} --store store {one} --peer {}", seeder.1);
    let forgotten = || {
        seeder.2.try_iter().for_each(drop);
        (0..30).any(|_| seeder.next("progress")["torrents"][0]["peers"] == 0)
    };
    let (_, code, errors) = interrupted(at, &line, |told| told["event"] == "error" && forgotten());
    assert!(code == Some(1) && !at.join("store/many").exists() && errors.contains(said), "{errors}");
    let (told, code, errors) = interrupted(at, &format!("seed many.torrent {one}"), after(1, "progress"));
    let seeded = &told.last().unwrap()["torrents"][0]["name"];
    assert!(code == Some(1) && errors.contains(said) && seeded == "one", "{told:?}");
    let added = refused(at, "store add store many.torrent one.torrent one", said);
    assert!(added.out.starts_with("one: 1 of 1 piece, "), "{}", added.out);
    assert_eq!(last(&refused(at, &format!("fetch --store store many.torrent {one}"), said))["left"], 0);
    done(at, "store format image --size 64MiB");
    done(at, "store add image many.torrent --many-files");
}

#[test]
fn completions_and_manual_pages_have_every_command() {
    let folder: &Path = &Folder(tempfile::tempdir().unwrap());
    let printed = done(folder, "completions bash").out;
    assert!(printed.contains("--many-files") && printed.contains("repair"), "{printed}");
    done(folder, "man .");
    assert!(folder.join("seedkeep-seed.1").exists());
    let page = fs::read_to_string(folder.join("seedkeep-store-add.1")).unwrap();
    let synopsis = page.split_once(".SH SYNOPSIS\n").and_then(|(_, page)| page.lines().next());
    let usage = r"\fBseedkeep store add\fR [OPTIONS]";
    assert!(synopsis.is_some_and(|synopsis| synopsis.starts_with(usage)), "{synopsis:?}");
}

/// Names that only some systems, or none, can write.
#[test]
fn torrents_of_any_names_are_seeded_in_place_and_fetched_under_names_that_can_be_written() {
    let folder: &Path = &Folder(tempfile::tempdir().unwrap());
    let names: [(&[u8], &str); 8] = [
        (b"A", "A"),
        (b"Re: x", "Re: x"),
        (b"Vol. 1.", "Vol. 1."),
        (b"What?.txt", "What?.txt"),
        (b"a", "a"),
        (b"aux.txt", "aux.txt"),
        (b"back\\slash", "back_slash"),
        (b"\xff", "_"),
    ];
    fs::create_dir(folder.join("album")).unwrap();
    for (name, written) in names {
        fs::write(folder.join("album").join(OsStr::from_bytes(name)), written.repeat(5000)).unwrap();
    }
    done(folder, "create album -o plain.torrent");
    // And a symbolic link that leads out of the torrent.
    let torrent = fs::read(folder.join("plain.torrent")).unwrap();
    let at = torrent.windows(8).position(|window| window == b"5:filesl").unwrap() + 8;
    let link = b"d4:attr1:l6:lengthi0e4:pathl4:linke12:symlink pathl2:..6:secretee";
    fs::write(folder.join("album.torrent"), [&torrent[..at], link, &torrent[at..]].concat()).unwrap();

    let (seeder, told) = Seeder::of(folder, "album.torrent");
    assert_eq!((&told[0]["complete"], &told[0]["pieces"]), (&told[0]["pieces"], &told[0]["complete"]));
    done(folder, "store format image --size 64MiB --block-size 256KiB");
    for (store, to) in [("files", "files"), ("image", "exported")] {
        fs::create_dir(folder.join(to)).unwrap();
        let line = format!("fetch album.torrent --store {store} --peer {} --listen 127.0.0.1:0", seeder.1);
        let said = done(folder, &line).errors;
        for expected in [
            "album: 2 files under another name:",
            "album/back\\\\slash as album/back_slash",
            "1 symbolic link left out",
        ] {
            assert!(said.contains(expected), "{expected}: {said}");
        }
        if store == "image" {
            done(folder, &format!("store export image --all --to {to}"));
        }
        let album = folder.join(to).join("album");
        assert_eq!(fs::read_dir(&album).unwrap().count(), names.len());
        for (_, written) in names {
            assert_eq!(fs::read_to_string(album.join(written)).unwrap(), written.repeat(5000), "{written}");
        }
    }
    done(folder, "store format other --size 64MiB --block-size 256KiB");
    let said = done(folder, "store add other album.torrent album").out;
    assert!(said.starts_with("album: 13 of 13 pieces"), "{said}");
}

#[test]
fn missing_hashes_of_a_v2_torrent_are_fetched_from_peers() {
    let folder: &Path = &Folder(prepared());
    done(folder, "create data --v2 -o whole.torrent --piece-length 16KiB");
    let torrent = fs::read(folder.join("whole.torrent")).unwrap();
    let layers = torrent.windows(14).position(|window| window == b"12:piece layer").unwrap();
    fs::write(folder.join("lacking.torrent"), [&torrent[..layers], b"e"].concat()).unwrap();
    for command in ["seed lacking.torrent data", "store add full lacking.torrent data"] {
        refused(folder, command, "`seedkeep fetch lacking.torrent` learns them");
    }
    let (seeder, _) = Seeder::of(folder, "whole.torrent data");
    fs::create_dir(folder.join("fetched")).unwrap();
    done(folder, &format!("fetch lacking.torrent --store fetched --peer {} --listen 127.0.0.1:0", seeder.1));
    assert!(fs::read(folder.join("fetched/data")).unwrap() == fs::read(folder.join("data")).unwrap());
}
