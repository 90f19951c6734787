//! The dashboard in a browser, on a tracker under load. `SWARMKEEP_SCREENSHOTS=DIR` saves pictures of the
//! page there.

mod browser;

use std::{collections::BTreeSet, env, path::Path, sync::Arc, thread, time::Duration};

use browser::Browser;
use swarmkeep::{
    AnnounceEvent::{Completed, Started},
    HashKey, RepositoryConfig,
    catalog::Repository,
};
use swarmkeep_kit::folder::{Refusal, Simulated};
use swarmkeep_redis::{RedisConfig, RedisRepository};
use swarmkeep_servers::Server;
use swarmkeep_store_tests::{
    programs::{CHROMEDRIVER, CHROMIUM, REDIS, Trial},
    tests, with,
};
use swarmkeep_tests::admin::{
    client,
    tracker::{ALL, AnnounceLoad, READ, Tracker, config, hash, packed, state},
};

pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [CHROMIUM, CHROMEDRIVER]:
            the_numbers_move_in_either_theme_and_at_any_width,
            a_torrent_is_found_its_peers_are_listed_and_it_is_removed,
            everything_is_reached_with_the_keyboard,
            a_lost_connection_is_shown_and_comes_back,
            snapshots_that_fail_are_shown_until_one_succeeds;
        [CHROMIUM, CHROMEDRIVER, REDIS]:
            the_name_in_a_shared_store_is_shown_and_the_time_since_it_answered,
    }
}

const TAB: &str = "\u{e004}";
const ENTER: &str = "\u{e007}";
const LEFT: &str = "\u{e012}";
const RIGHT: &str = "\u{e014}";

fn open(tracker: &Tracker, secret: &str) -> Browser {
    let browser = Browser::start();
    browser.prefer("light");
    browser.go("about:blank");
    // The requests of its first page.
    drop(browser.requested());
    browser.go(&format!("http://{}/#token={secret}", tracker.admin));
    browser.wait("numbers", "return document.getElementById('state').innerText === 'Live'");
    browser
}

fn screenshot(browser: &Browser, name: &str) {
    if let Some(folder) = env::var_os("SWARMKEEP_SCREENSHOTS") {
        browser.screenshot(&Path::new(&folder).join(name));
    }
}

fn the_numbers_move_in_either_theme_and_at_any_width() {
    let tracker = Tracker::over(packed());
    let load = AnnounceLoad::on(&tracker, 400);
    let browser = open(&tracker, ALL);
    assert_eq!(browser.run("return location.hash"), "", "the token is no longer to be seen");

    let requests = "document.querySelector('#requests tbody td:last-child').innerText";
    browser.wait(
        "announces",
        "return Number(document.getElementById('tile-requests').innerText.replace(/[^0-9.]/g, '')) > 50",
    );
    let earlier = browser.run(&format!("return {requests}"));
    browser.wait("more requests", &format!("return {requests} !== {earlier}"));
    browser.wait("busy torrents", "return document.querySelectorAll('#busiest tbody tr').length === 12");
    browser.wait("lines in charts", "return document.querySelectorAll('#charts .line').length >= 4");
    if env::var_os("SWARMKEEP_SCREENSHOTS").is_some() {
        thread::sleep(Duration::from_secs(100));
    }

    let background = || browser.run("return getComputedStyle(document.body).backgroundColor");
    for (width, height, name) in
        [(1280, 1240, "desktop"), (768, 1000, "tablet"), (360, 740, "phone"), (320, 640, "narrow")]
    {
        browser.screen(width, height, width < 400);
        for scheme in ["light", "dark"] {
            browser.prefer(scheme);
            assert_readable(&browser, scheme);
            screenshot(&browser, &format!("dashboard-{name}-{scheme}.png"));
        }
    }
    browser.screen(1280, 900, false);
    let dark = background();
    browser.prefer("light");
    let light = background();
    assert_ne!(light, dark);
    // Auto, light, dark.
    for expected in [&light, &dark, &light] {
        browser.run("document.getElementById('theme').click()");
        assert_eq!(background(), *expected);
    }

    for range in ["1 hour", "6 hours"] {
        browser.run(&format!("[...document.querySelectorAll('#ranges label')].find(label => label.innerText === '{range}').click()"));
        browser.wait("a line", "return document.querySelectorAll('#charts .line').length >= 4");
    }
    drop(load);
    check_requests_and_messages(&browser, &tracker);
}

/// Waits until the page has this scheme, nothing that sticks out and no faint text.
fn assert_readable(browser: &Browser, scheme: &str) {
    browser.wait(scheme, &format!("return matchMedia('(prefers-color-scheme: {scheme})').matches"));
    for unreadable in [WIDER, FAINT] {
        browser.wait(unreadable, &format!("return (() => {{ {unreadable} }})().length === 0"));
    }
}

/// Elements that stick out of the page to the right.
const WIDER: &str = "
    const width = document.documentElement.clientWidth, root = document.scrollingElement;
    if (root.scrollWidth <= width && innerWidth <= width + 1) return [];
    return [...document.querySelectorAll('body *')].filter(e => e.getBoundingClientRect().right > width + 1)
        .map(e => e.tagName + '#' + e.id + '.' + e.className).concat([root.scrollWidth, innerWidth, width]).map(String)";

/// Finds texts with a contrast below 4.5 to 1 (WCAG 2.2, 1.4.3).
const FAINT: &str = "
    const parts = color => color.match(/[0-9.]+/g).map(Number);
    const channel = c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
    const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
    const behind = e => { for (; e; e = e.parentElement) { const c = parts(getComputedStyle(e).backgroundColor); if (c.length < 4 || c[3] === 1) return c; } return [255, 255, 255]; };
    const faint = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const e = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || !e.checkVisibility() || ['SCRIPT', 'STYLE'].includes(e.tagName)) continue;
        const style = getComputedStyle(e), color = parts(e.namespaceURI.endsWith('svg') ? style.fill : style.color);
        const [a, b] = [luminance(color), luminance(behind(e))].sort((a, b) => b - a);
        const contrast = (a + 0.05) / (b + 0.05);
        if (contrast < 4.5) faint.push(`${walker.currentNode.data.trim()}: ${contrast.toFixed(2)}`);
    }
    return faint";

fn a_torrent_is_found_its_peers_are_listed_and_it_is_removed() {
    let tracker = Tracker::over(packed());
    let announcer = tracker.announcer();
    for port in 1..=120 {
        announcer.announce(hash(7), port, u64::from(port > 40), if port == 1 { Completed } else { Started });
    }
    let browser = open(&tracker, ALL);
    browser.wait(
        "the torrent among the busiest",
        "return document.querySelectorAll('#busiest tbody tr').length === 1",
    );
    browser.run("document.querySelector('#hash').focus()");
    browser.command("Input.insertText", &serde_json::json!({ "text": hash(7).to_string() }));
    browser.press(ENTER);
    browser.wait("its counts", "return document.querySelectorAll('#found .counts dd').length === 3");
    let counts =
        browser.run("return [...document.querySelectorAll('#found .counts dd')].map(dd => dd.innerText)");
    assert_eq!(counts, serde_json::json!(["40", "80", "1"]));
    screenshot(&browser, "found.png");

    browser.run("document.getElementById('show-peers').click()");
    browser.wait("some peers", "return document.querySelectorAll('#found .peers tbody tr').length === 50");
    browser.run("document.querySelector('#found .peers > button').click()");
    browser.wait("more peers", "return document.querySelectorAll('#found .peers tbody tr').length === 100");

    browser.run("document.getElementById('remove').click()");
    assert_eq!(
        browser.run("return document.activeElement.innerText"),
        "Keep it",
        "nothing is gone by a second click"
    );
    assert_eq!(client::get_with(tracker.admin, &format!("/api/v1/torrents/{}", hash(7)), READ).status, 200);
    browser.run("document.getElementById('remove-yes').click()");
    browser.wait(
        "that it is gone",
        "return document.getElementById('found').innerText.startsWith('Removed, with 120 peers')",
    );
    assert_eq!(client::get_with(tracker.admin, &format!("/api/v1/torrents/{}", hash(7)), READ).status, 404);
    check_requests_and_messages(&browser, &tracker);

    announcer.announce(hash(7), 1, 0, Started);
    browser.go(&format!("http://{}/?again#token={READ}", tracker.admin));
    browser.wait("numbers", "return document.getElementById('state').innerText === 'Live'");
    browser.run(&format!(
        "document.getElementById('hash').value = '{}'; document.getElementById('search').requestSubmit()",
        hash(7)
    ));
    browser.wait("its counts", "return document.querySelectorAll('#found .counts dd').length === 3");
    assert_eq!(
        browser.run("return document.querySelectorAll('#found button').length"),
        0,
        "this token is for reading"
    );
}

fn everything_is_reached_with_the_keyboard() {
    let tracker = Tracker::over(packed());
    let _load = AnnounceLoad::on(&tracker, 5);
    let browser = open(&tracker, ALL);
    browser.wait("busy torrents", "return document.querySelectorAll('#busiest tbody tr').length === 5");
    browser.wait("charts", "return document.querySelectorAll('#charts .line').length >= 4");
    // The checked one of a group of radio buttons.
    let expected = browser.run(
        "window.named = e => e.id || e.dataset.key || e.getAttribute('aria-label')?.split(',')[0] || e.innerText || e.type;
         return [...document.querySelectorAll('a[href], button, input, summary, [tabindex=\"0\"]')]
            .filter(e => e.checkVisibility() && (e.type !== 'radio' || e.checked)).map(e => window.named(e))",
    );
    let expected: BTreeSet<_> = expected.as_array().expect("names").iter().map(ToString::to_string).collect();
    assert!(expected.len() >= 18, "{expected:?}");
    let mut reached = BTreeSet::new();
    browser.run("document.activeElement.blur()");
    for _ in 0..expected.len() + 5 {
        browser.press(TAB);
        let at = browser.run(
            "const e = document.activeElement, style = getComputedStyle(e.type === 'radio' ? e.nextElementSibling : e);
             return [window.named(e), e === document.body || style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2]",
        );
        assert_eq!(at[1], true, "{} shows that it has the focus", at[0]);
        reached.insert(at[0].to_string());
    }
    assert!(expected.is_subset(&reached), "not reached: {:?}", expected.difference(&reached));

    browser.run("document.querySelector('.plot').focus()");
    let mut read = BTreeSet::new();
    let mut press = |key| {
        browser.press(key);
        read.insert(browser.run("return document.querySelector('figure [aria-live]').innerText").to_string());
        read.len()
    };
    (0..3).for_each(|_| _ = press(LEFT));
    // On a slow machine, the chart may have fewer than three seconds at first.
    for _ in 0..300 {
        if press(RIGHT) >= 3 {
            break;
        }
        thread::sleep(Duration::from_millis(200));
    }
    assert!(read.len() >= 3 && read.iter().all(|read| read.contains("UDP")), "{read:?}");
    check_requests_and_messages(&browser, &tracker);
}

fn a_lost_connection_is_shown_and_comes_back() {
    let mut tracker = Tracker::over(packed());
    let admin = tracker.admin;
    let browser = open(&tracker, ALL);
    check_requests_and_messages(&browser, &tracker);
    tracker.stop();
    browser.wait(
        "that it is disconnected",
        "return document.getElementById('state').innerText === 'Disconnected'",
    );
    browser.wait(
        "words about it",
        "return document.getElementById('lost').innerText.startsWith('Disconnected from the tracker')",
    );
    let _again = Tracker::with(&with(config(), |config| config.admin = Some(admin)), packed());
    browser.wait("that it is back", "return document.getElementById('state').innerText === 'Live' && document.getElementById('lost').hidden");
    browser.run("document.getElementById('leave').click()");
    browser.wait("the form", "return document.getElementById('sign').checkVisibility() && sessionStorage.getItem('token') === null");
    for (secret, says) in [
        ("a-token-that-is-none", "this token is not known here"),
        ("secret-for-writing-only", "scope `read`"),
    ] {
        browser.run(&format!("document.getElementById('token').value = '{secret}'; document.getElementById('sign-form').requestSubmit()"));
        browser.wait(
            says,
            &format!("return document.getElementById('sign-error').innerText.includes('{says}')"),
        );
    }
    assert_eq!(browser.text("state"), "Not connected");
    screenshot(&browser, "sign.png");
}

fn snapshots_that_fail_are_shown_until_one_succeeds() {
    let disk = Simulated::new(1);
    let state = state(&disk);
    let tracker = Tracker::keeping(&state);
    let browser = open(&tracker, READ);
    let row = "[...document.querySelectorAll('#tracker tr')].find(row => row.cells[0].innerText === 'Latest snapshot')";
    browser.wait("how old the latest is", &format!("return {row}?.cells[1].innerText.endsWith(' ago')"));
    assert_eq!(browser.run("return document.getElementById('unkept').checkVisibility()"), false);
    disk.refuse(0, usize::MAX, Refusal::Full);
    for _ in 0..2 {
        state.snapshot().expect_err("no room");
    }
    let shown = "document.getElementById('unkept').innerText";
    let words = "The latest 2 snapshots failed: No space left on device.";
    browser.wait("that they fail", &format!("return {shown}.startsWith('{words}')"));
    assert_eq!(browser.text("state"), "Live, with a fault");
    browser.screen(320, 640, true);
    for scheme in ["light", "dark"] {
        browser.prefer(scheme);
        assert_readable(&browser, scheme);
    }
    disk.heal();
    state.snapshot().expect("room");
    browser.wait("that they do not", "return document.getElementById('unkept').hidden");
    assert_eq!(browser.text("state"), "Live");
    check_requests_and_messages(&browser, &tracker);
}

fn the_name_in_a_shared_store_is_shown_and_the_time_since_it_answered() {
    let server = Server::start().unwrap_or_else(|error| panic!("this test needs a real server: {error:?}"));
    let connections = swarmkeep_tests::runtime();
    let mut settings = RedisConfig::new([server.url()]);
    settings.patience = Duration::from_millis(300);
    let key = HashKey::from_os().expect("entropy");
    let store = connections.block_on(RedisRepository::connect(&settings, &RepositoryConfig::new(key)));
    let store = Repository::Async(Arc::new(store.expect("it has just started")));
    let mut config = config();
    (config.repository_name, config.node) = (Some("redis".into()), Some("tracker-one".into()));
    let tracker = Tracker::with(&config, store);
    let browser = open(&tracker, ALL);
    assert!(browser.text("about").contains("redis, as tracker-one"), "{}", browser.text("about"));
    let store = "[...document.querySelectorAll('#tracker tr')].find(row => row.cells[0].innerText === 'Store').cells[1].innerText";
    browser.wait("that it answers", &format!("return {store} === 'answers'"));
    check_requests_and_messages(&browser, &tracker);
    server.kill();
    browser.wait("for how long it has not", &format!("return {store}.startsWith('silent for ')"));
    assert_eq!(browser.text("tile-torrents-more"), "store out of reach");
    assert_eq!(browser.text("state"), "Live, with a fault");
    server.restart().expect("it starts");
    browser.wait("that it answers again", &format!("return {store} === 'answers'"));
    assert_eq!(browser.text("state"), "Live");
}

/// Asserts that the console is empty, and that no request went to another host.
fn check_requests_and_messages(browser: &Browser, tracker: &Tracker) {
    assert_eq!(browser.console(), Vec::<String>::new());
    let here = format!("http://{}/", tracker.admin);
    let requested = browser.requested();
    let ours = |url: &String| url.starts_with(&here);
    assert!(requested.iter().any(ours), "{requested:?}");
    let foreign: Vec<_> = requested.iter().filter(|url| !ours(url) && !url.starts_with("data:")).collect();
    assert!(foreign.is_empty(), "{foreign:?}");
}
