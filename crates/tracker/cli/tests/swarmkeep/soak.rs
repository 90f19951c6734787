//! The tracker at full load with everything on, for as long as you like: `SWARMKEEP_SOAK_SECS=600 cargo test
//! --release -p swarmkeep-cli --test swarmkeep soak -- --ignored --nocapture`.

use std::{
    env, fs,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use crate::common::{Folder, Serve, swarmkeep};
use swarmkeep_load::{Config, Mix, Report, Swarms, Target, run};
use swarmkeep_store_tests::resident_kb_of;
use swarmkeep_tests::{
    admin::client::{ask, bearing, get},
    serve::signal,
};

/// Until the population has announced, and memory has stopped to grow.
const WARM_UP: Duration = Duration::from_secs(30);

const TOKEN: &str = "a-secret-of-this-test";

#[test]
#[ignore = "takes minutes: run it alone, as its first lines say"]
fn at_full_load_with_everything_on_memory_stays_as_it_is_and_nothing_fails() {
    let secs = env::var("SWARMKEEP_SOAK_SECS").map_or(120, |secs| secs.parse().expect("a number of seconds"));
    let folder = Folder::empty();
    let denied = |from: u32| (from..from + 1000).map(|n| format!("{n:040x}\n")).collect::<String>();
    let list = folder.write("denied", &denied(0));
    let tokens = folder.write_secret("tokens", &format!("{TOKEN} read\n"));
    let arguments = format!(
        "--udp=127.0.0.1:0 --http=127.0.0.1:0 --admin=127.0.0.1:0 --requests=1000000 --requests-at-once=100000000 \
         --unlimited=192.0.2.1 --longest-interval=35m --max-swarms=1000000 --max-bytes=1GiB \
         --endpoints-per-address=65536 --admin-tokens={tokens} --deny-list={list}"
    );
    let mut command = swarmkeep(&arguments.split(' ').collect::<Vec<_>>());
    command.env_remove("SWARMKEEP_ADMIN").env_remove("SWARMKEEP_SOAK_SECS");
    let serve = Serve::start(command);
    let [udp, http] = serve.addresses();
    let admin = serve.address("dashboard");
    let (pid, enough) = (serve.pid(), AtomicBool::new(false));

    let (report, over_http, resident) = thread::scope(|scope| {
        let loads = [
            (Target::Udp(udp[0]), 8, 32),
            (format!("http://{}/announce", http[0]).parse().expect("a URL"), 2, 1),
        ];
        let loads =
            loads.map(|(target, workers, window)| scope.spawn(move || load(target, workers, window, secs)));
        // One client has the dashboard open, another one scrapes metrics and edits the list.
        scope.spawn(|| {
            let mut events = ask(admin, "GET", "/api/v1/events", &bearing(TOKEN));
            events.head();
            while !enough.load(Relaxed) {
                events.event().expect("an event a second");
            }
        });
        scope.spawn(|| {
            for n in 0.. {
                if enough.load(Relaxed) {
                    break;
                }
                let metrics = get(admin, "/metrics");
                assert!(metrics.text().contains("swarmkeep_requests_total"), "{}", metrics.text());
                if n % 3 == 0 {
                    fs::write(&list, denied(n)).expect("ours");
                    signal(pid, "HUP").expect("it runs");
                }
                thread::sleep(Duration::from_secs(5));
            }
        });
        let (mut resident, began) = (Vec::new(), Instant::now());
        let all_ended =
            |loads: &[thread::ScopedJoinHandle<'_, Report>]| loads.iter().all(|load| load.is_finished());
        while !all_ended(&loads) {
            if began.elapsed() > WARM_UP {
                resident.push(resident_kb_of(pid));
            }
            thread::sleep(Duration::from_secs(1));
        }
        enough.store(true, Relaxed);
        let [report, over_http] = loads.map(|load| load.join().expect("the load ends"));
        (report, over_http, resident)
    });
    let (least, most) = (*resident.iter().min().expect("samples"), *resident.iter().max().expect("samples"));
    println!(
        "{} answers over UDP ({:.0}/s), {} over HTTP; failed {}, wrong {}; RSS {least} to {most} KiB over {} samples",
        report.succeeded,
        report.requests_per_second,
        over_http.succeeded,
        report.failed + over_http.failed,
        report.wrong + over_http.wrong,
        resident.len(),
    );
    println!("UDP: {:?}; HTTP: {:?}", report.latency.all, over_http.latency.all);
    for report in [&report, &over_http] {
        assert_eq!((report.failed, report.wrong), (0, 0), "{:?} {:?}", report.failures, report.wrong_answers);
    }
    assert!((most - least) as f64 <= 0.04 * least as f64, "{resident:?}");
    let (code, printed) = serve.stop("TERM");
    assert_eq!(code, Some(0));
    assert!(!printed.contains("ERROR"), "{printed}");
}

fn load(target: Target, workers: usize, window: usize, secs: u64) -> Report {
    let mut config = Config::new([target]);
    config.strict = true;
    (config.workers, config.window, config.threads) = (workers, Some(window), Some(1));
    config.duration = Duration::from_secs(secs);
    let is_http = matches!(config.targets[0], Target::Http { .. });
    config.mix = Mix { connect: if is_http { 0 } else { 5 }, announce: 90, scrape: 5 };
    // Other torrents than the other load, so that each can check its answers.
    config.seed += u64::from(is_http);
    let (torrents, peers) = if is_http { (5_000, 20_000) } else { (100_000, 300_000) };
    (config.swarms, config.peers) = (Swarms::Zipf(torrents), peers);
    run(&config, &mut |_| {}).expect("a report")
}
