//! A client that reports 0 bytes left while it has only a link, and a tracker with one seeder. Debian has no
//! package of that client, so `.ci/long` runs the test.

use swarmkeep_store_tests::{
    programs::{IP, MOUNT, NAMESPACES},
    tests, with,
};
use swarmkeep_tests::listening;

use super::{
    clients::{RQBIT, RQBIT_PROGRAM},
    *,
};

pub(crate) fn tests() -> Vec<Trial> {
    let tests = tests! {
        [RQBIT_PROGRAM, IP, MOUNT, NAMESPACES]: rqbit_downloads_by_a_link_where_seeders_are_given_to_it
    };
    tests.into_iter().map(|test| test.with_ignored_flag(true)).collect()
}

fn rqbit_downloads_by_a_link_where_seeders_are_given_to_it() {
    if !in_a_network_of_its_own() {
        return;
    }
    let row = ClientTest {
        kind: TorrentKind::Public,
        by_link: true,
        // Over UDP it sends no event.
        protocol: Protocol::Http,
        family: V4,
        passkey: None,
        repository: "packed",
        seeder: &OURS,
        others: vec![&RQBIT],
    };
    let (content, work) = (content(), Path::new(env!("CARGO_TARGET_TMPDIR")).join("links"));
    let _ = fs::remove_dir_all(&work);
    let torrent = row.torrent(&content);
    let metainfo = Metainfo::parse(&torrent).expect("it was made just now");
    let info_hash = metainfo.info().info_hash();
    let seeder = ClientSetup::new(&work, &OURS, V4, &torrent, None);
    fs::write(seeder.download.join(FILE), &content).expect("room for 2 MiB");
    let other = ClientSetup::new(&work, &RQBIT, V4, &torrent, Some(Magnet::from(&metainfo).to_string()));
    let has_file = || fs::read(other.download.join(FILE)).is_ok_and(|file| file == content);

    let mut config = listening(&[], &[row.tracker()]);
    (config.rules.interval_secs, config.rules.jitter_percent) = (2, 0);
    let tracker = Tracker::over(&config, build(row.repository, |config| config));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let stats = || runtime.block_on(tracker.control.repository.scrape(&info_hash)).expect("it is here");
    let seeds = |complete| SwarmStats { complete, ..SwarmStats::default() };
    let so_far = || fs::read_to_string(other.home.join("log")).unwrap_or_default();

    let _seeder = Running::start(&OURS, &seeder);
    wait_until("the seeder announces", || stats() == seeds(1), so_far);
    let waiting = Running::start(&RQBIT, &other);
    wait_until("it says that nothing is left", || stats() == seeds(2), so_far);
    thread::sleep(Duration::from_secs(7));
    assert!(!has_file() && stats() == seeds(2), "it receives no peers");
    drop(waiting);

    tracker.control.rules.replace(with(config.rules, |rules| rules.seeders_for_links = true));
    let _other = Running::start(&RQBIT, &other);
    wait_until("it downloads", has_file, so_far);
}
