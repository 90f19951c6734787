//! Real crashes: a process that works on a store on a real block device is killed many times, and the store
//! is checked.

use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use swarmkeep_content::{FileFolder, block::FileDevice};
use swarmkeep_content_tests::{device_of, scratch_folder};
use swarmkeep_store_tests::A_MINUTE;

use super::*;

/// The workplace and the seed of the writer, and the file of the earlier promises.
const WRITER: &str = "SWARMKEEP_KILLED_WRITER";

/// The folder of torrent files, beside the file of promises.
const TORRENTS: &str = "torrents";

/// The number of kills, unless `SWARMKEEP_KILLS` gives it: a thousand take a minute or two.
fn wanted() -> u32 {
    std::env::var("SWARMKEEP_KILLS").map_or(25, |wanted| wanted.parse().expect("a number of kills"))
}

#[test]
fn a_killed_writer_on_a_loop_device_keeps_its_promises() {
    let folder = scratch_folder();
    let (_device, path) = device_of(folder.path(), 32 << 20);
    let raw = FileDevice::open(&path, true).expect("it can be opened");
    BlockStore::format(&raw, blocks_of(16 << 10)).expect("it is large enough");
    drop(raw);
    let mut rng = SplitMix64::new(1);
    let (mut promises, mut told, mut durable) = (Promises::default(), 0, 0);
    for kill in 0..wanted() {
        let before = folder.path().join("promises");
        serde_json::to_writer(File::create(&before).expect("the folder takes a file"), &promises)
            .expect("it is written");
        let mut writer = Command::new(std::env::current_exe().expect("this is a program"))
            .args(["--exact", "crashes::kills::the_writer_that_is_killed", "--nocapture"])
            .env(WRITER, format!("{}\n{kill}\n{}", path.display(), before.display()))
            .stdout(Stdio::piped())
            .spawn()
            .expect("it runs already");
        let mut lines = BufReader::new(writer.stdout.take().expect("it is piped")).lines();
        let (say, promised) = mpsc::channel();
        let reading = thread::spawn(move || {
            let mut last = None;
            let mut count = 0_u64;
            while let Some(Ok(line)) = lines.next() {
                // A line that was cut off is no promise.
                if let Some(Ok(said)) = line.strip_prefix("promised ").map(serde_json::from_str::<Promises>) {
                    (last, count) = (Some(said), count + 1);
                    let _ = say.send(());
                }
            }
            (last, count)
        });
        // One in ten is killed while it boots, or even before.
        let wanted = if rng.next_u64().is_multiple_of(10) { 0 } else { 1 + rng.next_u64() % 20 };
        for _ in 0..wanted {
            promised.recv_timeout(A_MINUTE).expect("the writer works");
        }
        thread::sleep(Duration::from_micros(rng.next_u64() % 40_000));
        writer.kill().expect("it is ours");
        writer.wait().expect("it was ours");
        let (last, count) = reading.join().expect("it only reads");
        told += count;
        let last = last.unwrap_or_else(|| promises.clone());
        let store = reopen(&path);
        store.audit().unwrap_or_else(|what| panic!("kill {kill}: {what}"));
        let read = |name: &str| fs::read(folder.path().join(TORRENTS).join(name)).ok();
        promises =
            check(&store, read, &last, Fault::None).unwrap_or_else(|what| panic!("kill {kill}: {what}"));
        durable += promises
            .torrents
            .values()
            .map(|torrent| torrent.pieces.values().filter(|piece| piece.durable).count())
            .sum::<usize>();
    }
    println!(
        "{} kills: {told} promises made, {durable} complete pieces read after them, and every promise held",
        wanted()
    );
    assert!(durable > 0, "the writer never got far enough");
}

/// The lock of a process that was killed goes with it, though not at once.
pub(crate) fn reopen(path: &Path) -> BlockStore {
    let start = Instant::now();
    loop {
        match BlockStore::open(path, Allocation::Sequential) {
            Ok(store) => return store,
            Err(swarmkeep_content::Error::InUse { .. }) if start.elapsed() < A_MINUTE => {
                thread::sleep(Duration::from_millis(1));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

/// Not a test by itself: the test above starts it, and kills it.
#[test]
fn the_writer_that_is_killed() {
    let Ok(told) = std::env::var(WRITER) else { return };
    let [path, seed, before] = told.split('\n').collect::<Vec<_>>()[..] else { panic!("{told}") };
    let promises =
        serde_json::from_reader(File::open(before).expect("it was written")).expect("it was written whole");
    let store = reopen(Path::new(path));
    let note = |promises: &Promises| {
        let mut out = std::io::stdout().lock();
        let said = serde_json::to_string(promises).expect("it is plain data");
        // The reader may be gone.
        let _ = writeln!(out, "promised {said}");
    };
    let rng = SplitMix64::new(seed.parse().expect("a number"));
    let folder = FileFolder::new(Path::new(before).with_file_name(TORRENTS));
    StoreWorkload::new(&store, folder, &note, promises, rng)
        .run(usize::MAX >> 32)
        .expect("the store agrees with itself");
}
