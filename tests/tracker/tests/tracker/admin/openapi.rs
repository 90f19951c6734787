//! The document and the server agree.

use std::{collections::BTreeSet, fs};

use serde_json::{Value, json};
use swarmkeep::{AnnounceEvent, HashKey, InfoHash};
use swarmkeep_kit::folder::Simulated;
use swarmkeep_store_tests::with;
use swarmkeep_tracker::{AccessList, ListKind, PasskeyList};

use swarmkeep_tests::admin::{
    client::{Answer, ask, bearing, get},
    tracker::{ALL, READ, Tracker, WRITE, config, hash, packed, state},
};

use crate::admin::out_of_reach;

const METHODS: [&str; 5] = ["get", "put", "post", "delete", "patch"];

#[test]
fn every_documented_answer_of_every_operation_is_given_and_is_as_documented() {
    let trackers = DocumentedTrackers::new();
    let document = get(trackers.tracker.admin, "/api/v1/openapi.json");
    assert_eq!((document.status, document.header("content-type")), (200, Some("application/json")));
    let document = document.json();
    assert!(document["openapi"].as_str().is_some_and(|version| version.starts_with("3.1")));

    let (mut operations, mut answers) = (0, 0);
    for (path, item) in document["paths"].as_object().expect("paths") {
        let methods: BTreeSet<_> = item.as_object().expect("operations").keys().map(String::as_str).collect();
        for method in METHODS {
            let Some(operation) = item.get(method) else {
                let answer =
                    ask(trackers.tracker.admin, &method.to_uppercase(), &trackers.path(path), &bearing(ALL))
                        .answer();
                assert_eq!(answer.status, 405, "{method} {path} is not documented");
                continue;
            };
            operations += 1;
            assert!(operation["summary"].is_string(), "{method} {path}");
            for (status, response) in operation["responses"].as_object().expect("responses") {
                let answer = trackers.answer(method, path, status.parse().expect("a status"));
                assert_eq!(answer.status.to_string(), *status, "{method} {path}: {answer:?}");
                check(&document, response, &answer, &format!("{method} {path} {status}"));
                answers += 1;
            }
        }
        assert!(methods.iter().all(|method| METHODS.contains(method)), "{methods:?}");
    }
    println!("{operations} operations and {answers} answers are as documented");
    assert!(operations >= 15 && answers >= 75, "{operations} {answers}");
    for path in ["/api/v1", "/api/v1/", "/api/v1/nothing", "/api/v1/torrents/", "/api/v2/stats"] {
        assert_eq!(ask(trackers.tracker.admin, "GET", path, &bearing(ALL)).answer().status, 404, "{path}");
    }
}

/// Whether an answer has the media type and the form that the document gives it.
fn check(document: &Value, response: &Value, answer: &Answer, what: &str) {
    let content = response["content"].as_object().unwrap_or_else(|| panic!("{what} has no content"));
    let given = answer.header("content-type").unwrap_or_default();
    let (_, media) =
        content.iter().find(|(name, _)| *name == given).unwrap_or_else(|| panic!("{what}: {given}"));
    let value = match given {
        "application/octet-stream" => return,
        "text/event-stream" => serde_json::from_slice(&answer.body).expect("JSON in each event"),
        _ => answer.json(),
    };
    let mut schema = media["schema"].clone();
    schema["components"] = document["components"].clone();
    schema["unevaluatedProperties"] = json!(false);
    let validator = jsonschema::draft202012::new(&schema).unwrap_or_else(|error| panic!("{what}: {error}"));
    let errors: Vec<_> =
        validator.iter_errors(&value).map(|error| format!("{error} at {}", error.instance_path())).collect();
    assert!(errors.is_empty(), "{what}: {errors:?}\n{value}");
}

/// Together they give every documented answer.
struct DocumentedTrackers {
    tracker: Tracker,
    broken: Tracker,
    listed: Tracker,
    gone: Tracker,
    _folder: tempfile::TempDir,
}

const KNOWN: u32 = 1;
const UNKNOWN: u32 = 2;

impl DocumentedTrackers {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let [listed, gone] = ["listed", "gone"].map(|name| {
            let path = folder.path().join(name);
            fs::write(&path, "").expect("a file");
            let list = AccessList::load(ListKind::Deny, &path).expect("a list");
            let keys = path.with_extension("keys");
            fs::write(&keys, "").expect("a file");
            let passkeys = PasskeyList::load(HashKey::from_bytes([1; 16]), &keys).expect("a list");
            let config = with(config(), |config| {
                (config.rules.access, config.rules.passkeys) = (Some(list), Some(passkeys));
            });
            Tracker::with(&config, packed())
        });
        for gone in ["gone", "gone.keys"] {
            fs::remove_file(folder.path().join(gone)).expect("there");
        }
        let tracker = Tracker::keeping(&state(&Simulated::new(1)));
        let broken = Tracker::over(out_of_reach::repository());
        let trackers = Self { tracker, broken, listed, gone, _folder: folder };
        trackers.put_back();
        trackers
    }

    fn put_back(&self) {
        self.tracker.announcer().announce(hash(KNOWN), 1000, 0, AnnounceEvent::Completed);
    }

    fn path(&self, template: &str) -> String {
        template.replace("{info_hash}", &hash(KNOWN).to_string()).replace("{fingerprint}", &"0".repeat(16))
    }

    fn answer(&self, method: &str, template: &str, status: u16) -> Answer {
        let (method, path, address) = (&*method.to_uppercase(), self.path(template), self.tracker.admin);
        let all = bearing(ALL);
        match (status, template) {
            (200, "/api/v1/events") => {
                let mut asked = ask(address, method, &path, &all);
                let (status, head) = asked.head();
                Answer { status, head, body: asked.event().expect("an event").into() }
            }
            (200, "/api/v1/access/{info_hash}" | "/api/v1/passkeys") => {
                ask(self.listed.admin, method, &path, &all).answer()
            }
            (200, "/api/v1/passkeys/{fingerprint}") => {
                let made = ask(self.listed.admin, "POST", "/api/v1/passkeys?name=a", &all).answer().json();
                let made = made["fingerprint"].as_str().expect("of a passkey");
                ask(self.listed.admin, method, &template.replace("{fingerprint}", made), &all).answer()
            }
            (404, "/api/v1/passkeys/{fingerprint}") => ask(self.listed.admin, method, &path, &all).answer(),
            (503, "/api/v1/access/{info_hash}" | "/api/v1/passkeys" | "/api/v1/passkeys/{fingerprint}") => {
                ask(self.gone.admin, method, &path, &all).answer()
            }
            (200, _) => {
                let answer = ask(address, method, &path, &all).answer();
                self.put_back();
                answer
            }
            (400, _) => ask(address, method, &format!("{path}?nonsense=1"), &all).answer(),
            (401, _) => ask(address, method, &path, "").answer(),
            (403, _) => {
                let other = if method == "GET" && !path.ends_with("/peers") { WRITE } else { READ };
                ask(address, method, &path, &bearing(other)).answer()
            }
            (404, _) => {
                let unknown: InfoHash = hash(UNKNOWN);
                ask(address, method, &template.replace("{info_hash}", &unknown.to_string()), &all).answer()
            }
            (409, _) => ask(address, method, &path, &all).answer(),
            (429, _) => {
                let wrong = || ask(address, method, &path, &bearing("a-secret-that-is-none")).answer();
                let refused = (0..40).map(|_| wrong()).find(|answer| answer.status != 401);
                let refused = refused.expect("that is too many");
                assert_eq!(refused.header("retry-after"), Some("1"));
                refused
            }
            (503, "/api/v1/events") => {
                let listening: Vec<_> = (0..16)
                    .map(|_| {
                        let mut asked = ask(address, method, &path, &all);
                        assert_eq!(asked.head().0, 200);
                        asked
                    })
                    .collect();
                let answer = ask(address, method, &path, &all).answer();
                drop(listening);
                answer
            }
            (503, _) => ask(self.broken.admin, method, &path, &all).answer(),
            (status, _) => panic!("{method} {path} documents {status}, which no test here causes"),
        }
    }
}
