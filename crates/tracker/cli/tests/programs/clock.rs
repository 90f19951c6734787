//! A clock that jumps.

use std::fs;

use swarmkeep_store_tests::{
    programs::{FAKETIME, Trial, faketime},
    tests,
};

use crate::common::{Folder, Serve, load::under_load, swarmkeep};

/// The tests of this module.
pub(crate) fn tests() -> Vec<Trial> {
    tests! { [FAKETIME]: a_clock_that_jumps_forgets_nobody_and_turns_nobody_away }
}

fn a_clock_that_jumps_forgets_nobody_and_turns_nobody_away() {
    let library = faketime().expect("a need of this test");
    let folder = Folder::new();
    let offset = folder.write("offset", "+0");
    let mut command = swarmkeep(&["--udp=127.0.0.1:0", "--lifetime=30", "--interval=20", "--jitter=0"]);
    command
        .env("LD_PRELOAD", library)
        .env("FAKETIME_TIMESTAMP_FILE", &offset)
        .env("FAKETIME_NO_CACHE", "1")
        // A monotonic clock is one that nobody sets.
        .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    let mut serve = Serve::run(command);
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
