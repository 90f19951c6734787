//! A clock that jumps.

use std::fs;

use swarmkeep_store_tests::{
    programs::{FAKETIME, Trial, faketime},
    tests,
};
use swarmkeep_tests::udp::{Client, announce};

use crate::common::{Folder, Serve, load::under_load, start, swarmkeep};

/// The tests of this module.
pub(crate) fn tests() -> Vec<Trial> {
    tests! { [FAKETIME]:
        a_clock_that_jumps_forgets_no_peer_and_refuses_no_client,
        a_clock_that_is_set_after_the_start_makes_ids_of_neighbours_good_and_leaves_its_own
    }
}

/// A tracker with a clock that is off by the offset in a file.
fn with_clock(offset: &str, arguments: &[&str]) -> Serve {
    let mut command = swarmkeep(arguments);
    command
        .env("LD_PRELOAD", faketime().expect("a need of these tests"))
        .env("FAKETIME_TIMESTAMP_FILE", offset)
        .env("FAKETIME_NO_CACHE", "1")
        // A monotonic clock is never set.
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    Serve::start(command)
}

fn a_clock_that_is_set_after_the_start_makes_ids_of_neighbours_good_and_leaves_its_own() {
    let folder = Folder::empty();
    let [offset, key] =
        ["-1h", "0123456789abcdef0123456789abcdef"].map(|text| folder.write_secret(text, text));
    let arguments = ["--udp=127.0.0.1:0", "--connection-key", &key];
    let (correct, mut serve) = (start(&arguments), with_clock(&offset, &arguments));
    let [mut neighbour, mut client] = [&correct, &serve].map(|serve| Client::of(serve.address("udp")));
    let (own, of_neighbour) = (client.connect(), neighbour.connect());
    assert_eq!(client.refusal(announce(of_neighbour)), "invalid connection id");
    fs::write(&offset, "+0").expect("ours");
    let printed = serve.printed_until("the machine's clock was set");
    assert!(["3599", "3600", "3601"].iter().any(|ahead| printed.contains(ahead)), "{printed}");
    for id in [of_neighbour, own, client.connect()] {
        client.announce(announce(id));
    }
    let id = client.connect();
    neighbour.announce(announce(id));

    let arguments = [&arguments[..], &["--connection-id-lifetime=16m"]].concat();
    let (correct, late) = (start(&arguments), with_clock(&folder.write("late", "+10m"), &arguments));
    let id = Client::of(correct.address("udp")).connect();
    Client::of(late.address("udp")).announce(announce(id));
}

fn a_clock_that_jumps_forgets_no_peer_and_refuses_no_client() {
    let folder = Folder::empty();
    let offset = folder.write("offset", "+0");
    let settings = ["--udp=127.0.0.1:0", "--lifetime=30", "--interval=20", "--jitter=0"];
    let mut serve = with_clock(&offset, &settings);
    let [udp, _] = serve.addresses();
    let report = under_load(udp[0], |second| {
        for jump in ["+5h", "-5h", "+400d", "+0"] {
            fs::write(&offset, jump).expect("ours");
            second();
            second();
        }
    });
    assert_eq!((report.failed, report.wrong), (0, 0), "{:?} {:?}", report.failures, report.wrong_answers);
    let year = |serve: &mut Serve, jump: &str| {
        fs::write(&offset, jump).expect("ours");
        serve.signal("HUP");
        let printed = serve.printed_until("settings read again");
        let line = printed.lines().find(|line| line.contains("settings read again")).expect("just read");
        line[..4].parse::<u32>().expect("a year")
    };
    let years = ["+0", "+3650d"].map(|jump| year(&mut serve, jump));
    assert!(years[1] >= years[0] + 9, "the clock did not jump, so this test shows nothing: {years:?}");
}
