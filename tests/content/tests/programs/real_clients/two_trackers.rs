//! Clients on two trackers that share a store on Redis: `swarmkeep serve --repository redis`, the program
//! itself.

use swarmkeep_servers::Server;
use swarmkeep_store_tests::{
    programs::{ARIA2, IP, LIBTORRENT, NAMESPACES, REDIS, TRANSMISSION},
    tests,
};
use swarmkeep_tests::serve::{PROGRAM, program, swarmkeep};

use super::*;

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [PROGRAM, REDIS, TRANSMISSION, ARIA2, LIBTORRENT, IP, NAMESPACES]:
            clients_meet_over_two_trackers_on_redis_of_which_one_is_killed
    }
}

/// The first has the file and knows one tracker, the second knows the other one only, and they meet. The
/// first tracker is killed while the second client downloads, which goes on; the third client knows both
/// trackers, asks the remaining one, and finds both peers.
fn clients_meet_over_two_trackers_on_redis_of_which_one_is_killed() {
    if !in_a_network_of_its_own() {
        return;
    }
    let clients = [&clients::TRANSMISSION, &clients::ARIA2, &clients::LIBTORRENT];
    let server = Server::start().unwrap_or_else(|error| panic!("this test needs a real server: {error:?}"));
    let [first, second] = [6969, 7969].map(|port| SocketAddr::new(address(V4, 1), port));
    let start = |at| {
        let mut command = swarmkeep(&program(), "serve");
        command.args(["--interval=1m", "--admin=off", "--repository=redis", "--redis-url", &server.url()]);
        ServedTracker::start(command, at)
    };
    let (mut one, two) = (start(first), start(second));

    let work = Path::new(env!("CARGO_TARGET_TMPDIR")).join("two-trackers");
    let _ = fs::remove_dir_all(&work);
    let udp = format!("udp://{first}/announce");
    let http = [first, second].map(|tracker| format!("http://{tracker}/announce"));
    let [seeder, other, new] = clients;
    let place = |client: &Client, urls: &[&str]| ClientSetup::new(&work, client, V4, &torrent(urls), None);
    let [seeding, fetching, coming] =
        [place(seeder, &[&udp]), place(other, &[&http[1]]), place(new, &[&http[0], &http[1]])];
    let info_hash = Metainfo::parse(&torrent(&[&udp])).expect("it was made just now").info().info_hash();
    let content = content();
    fs::write(seeding.download.join(FILE), &content).expect("room for 2 MiB");
    let has_file =
        |place: &ClientSetup| fs::read(place.download.join(FILE)).is_ok_and(|file| file == content);
    let so_far = || format!("{:?}\n{}", two.scrape(&info_hash), two.serve.log());
    let counts = |complete, incomplete, downloaded| SwarmStats { complete, incomplete, downloaded };

    // Slowly, so that it takes seconds.
    let _seeder = Running::start_with(seeder, &seeding, &["--uplimit", "400"]);
    wait_until("the seeder announces to the one", || one.scrape(&info_hash) == counts(1, 0, 0), so_far);
    assert_eq!(two.scrape(&info_hash), counts(1, 0, 0), "the other tracker knows it at once");
    let _other = Running::start(other, &fetching);
    let meet = || one.scrape(&info_hash) == counts(1, 1, 0);
    wait_until("the other announces to the other tracker, which tells the first one", meet, so_far);
    let has_some = || fs::metadata(fetching.download.join(FILE)).is_ok_and(|file| file.len() > 0);
    wait_until("they have met, and it has some of it", has_some, so_far);
    one.serve.kill();
    assert!(!has_file(&fetching), "it is not the middle of the download any more");

    wait_until("the download is complete all the same", || has_file(&fetching), so_far);
    wait_until("it says so", || two.scrape(&info_hash) == counts(2, 0, 1), so_far);
    let _new = Running::start(new, &coming);
    wait_until("a client of both trackers finds them through the one left", || has_file(&coming), so_far);
    wait_until("it says so", || two.scrape(&info_hash) == counts(3, 0, 2), so_far);
}

/// The private torrent of the fixtures, which names trackers in tiers of one.
fn torrent(urls: &[&str]) -> Vec<u8> {
    let string = |text: &str| format!("{}:{text}", text.len());
    let tiers: String = urls.iter().map(|url| format!("l{}e", string(url))).collect();
    let head = format!("d8:announce{}13:announce-listl{tiers}e4:info", string(urls[0]));
    [head.as_bytes(), INFO, b"e"].concat()
}
