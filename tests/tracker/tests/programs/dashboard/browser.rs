//! A browser without a window, driven over WebDriver (W3C) and the additions of Chromium.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    net::SocketAddr,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use data_encoding::BASE64;
use serde_json::{Value, json};

use swarmkeep_store_tests::{A_MINUTE, programs::find};
use swarmkeep_tests::{admin::client::ask_with, serve::signal};

/// The longest wait for an answer of the driver: on a busy machine, a page takes minutes.
const PATIENCE: Duration = Duration::from_secs(240);

/// A browser with one page, and a profile of its own. Both are gone when this is dropped.
pub(crate) struct Browser {
    driver: Child,
    address: SocketAddr,
    session: String,
    profile: PathBuf,
}

impl Browser {
    pub(crate) fn start() -> Self {
        let binary = find("chromium").expect("a need of these tests");
        // A driver ends if its IPv4 port is in use over IPv6.
        let deadline = Instant::now() + A_MINUTE;
        let (driver, port) = loop {
            match start_driver() {
                Ok(started) => break started,
                Err(said) => assert!(Instant::now() < deadline, "no driver that gives its port: {said}"),
            }
        };
        let profile = env::temp_dir().join(format!("swarmkeep-dashboard-{}-{port}", std::process::id()));
        fs::create_dir(&profile).expect("a folder of our own");
        let mut browser =
            Self { driver, address: ([127, 0, 0, 1], port).into(), session: String::new(), profile };
        let mut args = vec![
            "--headless=new".to_owned(),
            "--window-size=1280,900".to_owned(),
            "--disable-dev-shm-usage".to_owned(),
            "--disable-gpu".to_owned(),
            "--no-first-run".to_owned(),
            "--hide-scrollbars".to_owned(),
            format!("--user-data-dir={}", browser.profile.display()),
        ];
        // Chromium's sandbox refuses to work for root.
        if fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0) {
            args.push("--no-sandbox".to_owned());
        }
        let options = json!({ "binary": binary, "args": args });
        let patience = PATIENCE.as_secs() * 1000;
        let wanted = json!({
            "browserName": "chrome",
            "timeouts": { "script": patience, "pageLoad": patience },
            "goog:chromeOptions": options,
            "goog:loggingPrefs": { "browser": "ALL", "performance": "ALL" },
        });
        let session = browser.post("/session", &json!({ "capabilities": { "alwaysMatch": wanted } }));
        browser.session = format!("/session/{}", session["sessionId"].as_str().expect("a session"));
        browser
    }

    fn request(&self, method: &str, path: &str, body: &str, patience: Duration) -> Value {
        let lines = format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len());
        let mut driver = ask_with(self.address, method, path, &lines, body);
        driver.stream().set_read_timeout(Some(patience)).expect("above zero");
        let answer = driver.answer();
        assert_eq!(answer.status, 200, "{method} {path} {body}: {}", answer.text());
        answer.json()["value"].take()
    }

    fn post(&self, path: &str, body: &Value) -> Value {
        self.request("POST", path, &body.to_string(), PATIENCE)
    }

    pub(crate) fn go(&self, url: &str) {
        self.post(&format!("{}/url", self.session), &json!({ "url": url }));
    }

    /// The result of a script.
    pub(crate) fn run(&self, script: &str) -> Value {
        self.post(&format!("{}/execute/sync", self.session), &json!({ "script": script, "args": [] }))
    }

    /// The text of the element with this id.
    pub(crate) fn text(&self, id: &str) -> String {
        let text = self.run(&format!("return document.getElementById('{id}').innerText"));
        text.as_str().unwrap_or_else(|| panic!("no element {id}")).to_owned()
    }

    /// Waits until a script returns a true value.
    pub(crate) fn wait(&self, what: &str, script: &str) {
        let deadline = Instant::now() + A_MINUTE;
        while self.run(script) != Value::Bool(true) {
            assert!(
                Instant::now() < deadline,
                "in vain for: {what}\n{}",
                self.run("return document.body.innerText")
            );
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Presses and releases a key: a character, or one of WebDriver's own.
    pub(crate) fn press(&self, key: &str) {
        let actions = json!([{ "type": "keyDown", "value": key }, { "type": "keyUp", "value": key }]);
        let body = json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": actions }] });
        self.post(&format!("{}/actions", self.session), &body);
    }

    /// A command of Chromium's own protocol.
    pub(crate) fn command(&self, name: &str, params: &Value) -> Value {
        self.post(&format!("{}/goog/cdp/execute", self.session), &json!({ "cmd": name, "params": params }))
    }

    /// Sets the size of the screen.
    pub(crate) fn screen(&self, width: u32, height: u32, mobile: bool) {
        let params = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": mobile });
        self.command("Emulation.setDeviceMetricsOverride", &params);
    }

    /// Sets the user's preference: `light` or `dark`.
    pub(crate) fn prefer(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }, { "name": "prefers-reduced-motion", "value": "reduce" }]);
        self.command("Emulation.setEmulatedMedia", &json!({ "features": features }));
    }

    /// Saves a picture of the page.
    pub(crate) fn screenshot(&self, path: &Path) {
        let image = self.command("Page.captureScreenshot", &json!({ "format": "png" }));
        let image = BASE64.decode(image["data"].as_str().expect("an image").as_bytes()).expect("base 64");
        fs::write(path, image).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }

    /// New messages of the console, by pages or by Chromium.
    pub(crate) fn console(&self) -> Vec<String> {
        let said = self.post(&format!("{}/se/log", self.session), &json!({ "type": "browser" }));
        let entry = |entry: &Value| format!("{}: {}", entry["level"], entry["message"]);
        said.as_array().expect("a list").iter().map(entry).collect()
    }

    /// The URLs of new requests.
    pub(crate) fn requested(&self) -> Vec<String> {
        let log = self.post(&format!("{}/se/log", self.session), &json!({ "type": "performance" }));
        let url = |entry: &Value| {
            let event: Value = serde_json::from_str(entry["message"].as_str()?).ok()?;
            let event = &event["message"];
            let sent = event["method"] == "Network.requestWillBeSent";
            sent.then(|| event["params"]["request"]["url"].as_str().map(str::to_owned))?
        };
        log.as_array().expect("a list").iter().filter_map(url).collect()
    }
}

impl Browser {
    /// Ends a browser that the driver has left behind: it does so if it ends before there is a session.
    fn end_what_is_left(&self) {
        let profile = format!("--user-data-dir={}", self.profile.display());
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        for process in processes {
            let line = fs::read(process.path().join("cmdline")).unwrap_or_default();
            if line.split(|&byte| byte == 0).any(|word| word == profile.as_bytes()) {
                let pid = process.file_name().to_str().and_then(|pid| pid.parse().ok());
                let _ = signal(pid.expect("a process has a number"), "TERM");
            }
        }
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() {
            // The driver ends the browser, and waits for it.
            let ended = std::panic::catch_unwind(|| self.request("DELETE", &self.session, "", A_MINUTE));
            drop(ended);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        self.end_what_is_left();
        for _ in 0..20 {
            if fs::remove_dir_all(&self.profile).is_ok() {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }
}

/// A chromedriver and its port, or its last output.
fn start_driver() -> Result<(Child, u16), String> {
    let driver = find("chromedriver").expect("a need of these tests");
    let mut driver = Command::new(driver)
        .arg("--port=0")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    let mut lines = BufReader::new(driver.stdout.take().expect("piped")).lines();
    let mut said = String::new();
    let port = lines.find_map(|line| {
        said += &line.expect("text");
        let (_, port) = said.split_once("started successfully on port ")?;
        port.trim_end_matches('.').parse().ok()
    });
    let Some(port) = port else {
        driver.wait().expect("it has ended");
        return Err(said);
    };
    // The driver writes more lines.
    std::thread::spawn(move || lines.for_each(drop));
    Ok((driver, port))
}
