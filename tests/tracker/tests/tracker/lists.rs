//! The files of lists: their lines, and edits.

use std::{
    fs::{self, File, OpenOptions},
    io::Write,
    net::IpAddr,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, SystemTime},
};

use swarmkeep::{HashKey, InfoHash, Timestamp};
use swarmkeep_tests::Folder;
use swarmkeep_tracker::access::{
    Access, AccessError, InfoHashList, Networks, Passkeys, add_line, parse_info_hash, remove_line,
};
use tempfile::TempDir;

const HEX: &str = "0123456789abcdef0123456789abcdef01234567";
const BASE32: &str = "AERUKZ4JVPG66AJDIVTYTK6N54ASGRLH";
const OTHER: &str = "89abcdef0123456789abcdef0123456789abcdef";

struct List(TempDir);

impl List {
    fn new(text: &str) -> Self {
        let list = Self(tempfile::tempdir().unwrap());
        fs::write(list.path(), text).unwrap();
        list
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("list")
    }

    /// The text of the file, which is the only one in its folder.
    fn text(&self) -> String {
        assert_eq!(fs::read_dir(self.0.path()).unwrap().count(), 1, "nothing is left behind");
        fs::read_to_string(self.path()).unwrap()
    }

    fn add(&self) -> Result<bool, AccessError> {
        add_line(self.path(), &HEX.parse().unwrap())
    }

    fn remove(&self) -> Result<bool, AccessError> {
        remove_line(self.path(), &HEX.parse().unwrap())
    }
}

/// Three notations of [`HEX`], one with a comment.
fn notations() -> [String; 3] {
    [
        HEX.to_uppercase(),
        "AERUKZ4JVPG66AJDIVTYTK6N54ASGRLH # old".to_owned(),
        format!("  {HEX}{}\t", "0".repeat(24)),
    ]
}

#[test]
fn an_added_entry_is_a_line_of_its_own() {
    for (before, after) in [
        ("", ""),
        ("\n", "\n"),
        ("# a comment", "# a comment\n"),
        ("# a comment\n", "# a comment\n"),
        ("\u{feff}", "\u{feff}\n"),
        (OTHER, &format!("{OTHER}\n")),
        (&format!("{OTHER}\r\n"), &format!("{OTHER}\r\n")),
    ] {
        let list = List::new(before);
        assert!(list.add().unwrap());
        assert_eq!(list.text(), format!("{after}{HEX}\n"));
        let entries = before.contains(OTHER) as usize + 1;
        assert_eq!(InfoHashList::load(list.path()).unwrap().len(), entries);
    }
}

#[test]
fn an_entry_in_any_notation_is_not_added_again() {
    for notation in notations() {
        let list = List::new(&notation);
        assert!(!list.add().unwrap());
        assert_eq!(list.text(), notation);
    }
}

#[test]
fn removing_an_entry_removes_all_its_notations_and_no_other_byte() {
    let [upper, base32, v2] = notations();
    for (before, after) in [
        (format!("{HEX}\n"), String::new()),
        (HEX.to_owned(), String::new()),
        (format!("\u{feff}{HEX}\n{OTHER}"), format!("\u{feff}{OTHER}")),
        (
            format!(
                "# one \u{e9}\r\n{upper}\r\n\n {OTHER} # {HEX}\n{base32}\n#{HEX}\n{v2}\n\t\n{OTHER}\n{HEX}"
            ),
            format!("# one \u{e9}\r\n\n {OTHER} # {HEX}\n#{HEX}\n\t\n{OTHER}\n"),
        ),
    ] {
        let list = List::new(&before);
        assert!(list.remove().unwrap());
        assert_eq!(list.text(), after);
        assert!(!list.remove().unwrap());
    }
}

#[test]
fn a_new_file_that_a_crash_has_left_is_removed() {
    let list = List::new(HEX);
    let [old, young] = ["old", "young"].map(|name| list.0.path().join(format!(".swarmkeep-{name}.new")));
    fs::write(&young, "").unwrap();
    File::create(&old).unwrap().set_modified(SystemTime::UNIX_EPOCH).unwrap();
    assert!(list.remove().unwrap());
    assert_eq!([old, young].map(|path| path.exists()), [false, true]);
}

#[test]
fn removing_a_missing_entry_leaves_the_file_in_place() {
    let list = List::new(&format!("{OTHER}\n#{HEX}"));
    let seen =
        || fs::metadata(list.path()).map(|file| (file.ino(), file.ctime(), file.ctime_nsec())).unwrap();
    let before = seen();
    assert!(!list.remove().unwrap());
    assert_eq!(seen(), before);
}

#[test]
fn the_new_file_has_the_permissions_of_the_old() {
    for mode in [0o600, 0o640, 0o604, 0o444] {
        let list = List::new(HEX);
        fs::set_permissions(list.path(), fs::Permissions::from_mode(mode)).unwrap();
        assert!(list.remove().unwrap());
        assert_eq!(fs::metadata(list.path()).unwrap().permissions().mode() & 0o7777, mode);
    }
}

#[test]
fn a_link_stays_a_link_to_the_file_that_is_edited() {
    let list = List::new(HEX);
    let elsewhere = tempfile::tempdir().unwrap();
    let link = elsewhere.path().join("link");
    symlink(list.path(), &link).unwrap();
    assert!(remove_line(&link, &HEX.parse().unwrap()).unwrap());
    assert_eq!(list.text(), "");
    assert!(add_line(&link, &HEX.parse().unwrap()).unwrap());
    assert_eq!(list.text(), format!("{HEX}\n"));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
}

#[test]
fn a_file_that_could_not_be_loaded_is_left_as_it_is_and_a_missing_one_is_not_made() {
    let text = format!("{HEX}\nnonsense\n");
    let list = List::new(&text);
    for error in [list.add().unwrap_err(), list.remove().unwrap_err()] {
        assert!(matches!(error, AccessError::InfoHash { line: 2, .. }), "{error}");
    }
    assert_eq!(list.text(), text);
    fs::remove_file(list.path()).unwrap();
    for error in [list.add().unwrap_err(), list.remove().unwrap_err()] {
        assert!(matches!(error, AccessError::Read { .. }), "{error}");
    }
    assert!(!list.path().exists());
}

/// Another process appends to the file during a long copy.
#[test]
fn a_line_of_another_process_is_not_lost() {
    let text = format!("{OTHER}\n").repeat(100_000) + HEX + "\n";
    for _ in 0..20 {
        let list = List::new(&text);
        let done = AtomicBool::new(false);
        let (removed, appended) = thread::scope(|scope| {
            let other = scope.spawn(|| {
                let mut file = OpenOptions::new().append(true).open(list.path()).unwrap();
                let mut appended = String::new();
                while !done.load(Relaxed) {
                    file.write_all(b"# a comment\n").unwrap();
                    appended += "# a comment\n";
                    thread::sleep(Duration::from_millis(1));
                }
                appended
            });
            let removed = list.remove();
            done.store(true, Relaxed);
            (removed, other.join().unwrap())
        });
        if let Err(error) = removed {
            assert!(matches!(error, AccessError::WrittenMeanwhile { .. }), "{error}");
            assert!(list.text() == text + &appended, "the file is as the other has left it");
            return;
        }
    }
    panic!("never seen");
}

fn load(text: &str) -> Result<Passkeys, AccessError> {
    Passkeys::load(Folder::empty().write("passkeys", text), HashKey::from_bytes([1; 16]))
}

#[test]
fn a_passkey_may_have_a_name_and_a_date() {
    let longest = "x".repeat(128);
    let passkeys = load(&format!(
        "# ours\r\nAlice-1_\r\n\nbobbobbob # since 2019\n{longest}\nAlice-1_\n\
         carol-345 until=2027-12-31 name=carol@example.org # paid\n\
         dave-6789\tname=dave\ndave-6789 until=2027-12-31T23:59:59Z\ndave-6789\n\
         erin-1234 name=\u{e9}rin_2.\u{540d}+x"
    ))
    .unwrap();
    assert_eq!((passkeys.len(), passkeys.is_empty()), (6, false));
    for (passkey, name, until) in [
        ("Alice-1_", None, None),
        ("bobbobbob", None, None),
        (&*longest, None, None),
        ("carol-345", Some("carol@example.org"), Some(1_830_211_200)),
        ("dave-6789", None, Some(1_830_297_599)),
        ("erin-1234", Some("\u{e9}rin_2.\u{540d}+x"), None),
    ] {
        let member = passkeys.find(passkey.as_bytes()).expect(passkey);
        assert_eq!((member.name.as_deref(), member.until.map(Timestamp::as_secs)), (name, until));
    }
    for stranger in ["", "alice-1_", "Alice-1_\r", "Alice-1", "bobbobbobb", &longest[1..], "# ours", "dave"] {
        assert!(passkeys.find(stranger.as_bytes()).is_none(), "{stranger}");
    }
    assert!(passkeys.find(&[b'x'; 129]).is_none() && passkeys.find(&[0xff; 8]).is_none());
    assert!(load("").unwrap().is_empty());
}

#[test]
fn neither_a_set_nor_an_error_shows_a_passkey() {
    assert_eq!(format!("{:?}", load("SecretSecret name=Secret\n").unwrap()), "Passkeys(1 secret)");
    let (long, name) = ("Secret".repeat(30_000), format!("SecretSecret name={}", "n".repeat(65)));
    let wrong = "announce|Secret|Secret Secret|SecretSecret SecretSecret|SecretS\u{e9}cret|Secret\0Secret|\
        SecretSecret name=|SecretSecret name=a name=b|SecretSecret name=a\u{202e}b|SecretSecret Name=a|\
        SecretSecret until=|SecretSecret until=2027|SecretSecret until=2027-02-29|SecretSecret until=31.12.2027|\
        SecretSecret until=2027-12-31T00:00:00+01:00|SecretSecret until=1830211200|name=a SecretSecret";
    for wrong in wrong.split('|').chain([&long[..129], &long, &name]) {
        let error = load(&format!("SecretSecret\n{wrong}\n")).unwrap_err();
        for text in [format!("{error:?}"), error.to_string()] {
            assert!(!text.contains("Secret"), "{text}");
            assert!(text.contains("line 2") || text.contains("line: 2"), "{text}");
        }
    }
    let error = load("SecretSecret\nSecret/Secret\n").unwrap_err().to_string();
    let expected = "give KEY or KEY name=alice until=2027-12-31; a key is 8 to 128 of A-Z, a-z, 0-9, _ and -, \
        other than `announce`";
    assert!(error.ends_with(expected), "{error}");
}

fn networks(text: &str) -> Result<Networks, AccessError> {
    Networks::load(Folder::empty().write("networks", text))
}

#[test]
fn an_address_is_in_a_network_a_range_or_by_itself() {
    let text = "192.0.2.0/25 # all\n\n::ffff:192.0.2.128/121\n198.51.100.7\n203.0.113.5 - 203.0.113.9\n2001:db8::/32\n::1";
    let loaded = networks(text).unwrap();
    assert_eq!(format!("{loaded:?}"), "Networks(5 ranges)", "neighbours are one");
    let inside = "192.0.2.0 192.0.2.255 ::ffff:192.0.2.3 198.51.100.7 203.0.113.9 2001:db8:ffff::1 ::1";
    let outside = "192.0.1.255 192.0.3.0 198.51.100.8 203.0.113.4 203.0.113.10 2001:db9:: ::";
    for (ips, expected) in [(inside, true), (outside, false)] {
        for ip in ips.split(' ') {
            assert_eq!(loaded.contains(ip.parse().unwrap()), expected, "{ip}");
        }
    }
    assert!(!networks("").unwrap().contains(IpAddr::from([0; 4])));
    let [v4, v6] = ["0.0.0.0/0", "::/0"].map(|all| networks(all).unwrap());
    for ip in ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1"].map(|ip| ip.parse::<IpAddr>().unwrap()) {
        let is_of_family = [v4.contains(ip), v6.contains(ip)].map(|it| it == ip.to_canonical().is_ipv4());
        assert_eq!(is_of_family, [true, false]);
    }
}

#[test]
fn lines_of_no_network_are_named() {
    let wrong = "192.0.2.0/33 192.0.2 example.org 192.0.2.9-192.0.2.5 192.0.2.1-::1 - ::fffe:0:0/95";
    for wrong in wrong.split(' ') {
        let error = networks(&format!("::1\n{wrong}\n")).unwrap_err().to_string();
        assert!(error.contains(&format!("line 2: \"{wrong}\" is not a network")), "{error}");
    }
}

fn info_hashes(text: &str) -> Result<InfoHashList, String> {
    let folder = Folder::empty();
    let path = folder.write("list", text);
    InfoHashList::load(&path).map_err(|error| error.to_string().replace(&path, "FILE"))
}

#[test]
fn an_info_hash_is_the_same_in_every_notation() {
    let info_hash = HEX.parse().unwrap();
    let v2 = format!("{HEX}{}", "89abcdef".repeat(3));
    for text in [HEX, BASE32, &v2] {
        assert_eq!(parse_info_hash(text), Some(info_hash), "{text}");
        assert_eq!(parse_info_hash(&text.to_uppercase()), Some(info_hash), "{text}");
        assert_eq!(parse_info_hash(&text.to_lowercase()), Some(info_hash), "{text}");
    }
    assert_eq!(parse_info_hash(&"7".repeat(32)), Some(InfoHash::new([0xff; 20])));
    assert_eq!(parse_info_hash(&"a".repeat(32)), Some(InfoHash::new([0; 20])));
}

#[test]
fn other_text_is_no_info_hash() {
    let v2 = HEX.repeat(2);
    let cut = ["", "a", &HEX[1..], &BASE32[1..], &v2[..63], &v2[..65]].map(str::to_owned);
    let spoilt = [(HEX, 'f', "g"), (BASE32, 'Z', "1"), (BASE32, 'Z', "="), (&v2[..64], 'f', "g")];
    let spoilt = spoilt.map(|(text, from, to)| text.replace(from, to));
    let grown = [format!("{HEX}0"), format!("{}g", &v2[..63]), format!("{}é{}", &HEX[..39], &HEX[..23])];
    let letters = [16, 20, 32].map(|letters| "é".repeat(letters));
    for text in cut.iter().chain(&spoilt).chain(&grown).chain(&letters) {
        assert_eq!(parse_info_hash(text), None, "{text}");
    }
}

#[test]
fn a_list_holds_each_info_hash_once() {
    let list =
        info_hashes(&format!("\u{feff}# ours\r\n{HEX}\r\n\n{BASE32} # again\n{HEX}{}\n", "0".repeat(24)));
    let list = list.unwrap();
    assert_eq!((list.len(), list.is_empty()), (1, false));
    assert!(list.contains(&HEX.parse().unwrap()));
    assert!(!list.contains(&InfoHash::default()));
    assert_eq!(format!("{list:?}"), "InfoHashList(1 torrent)");
    let empty = info_hashes("# none\n").unwrap();
    assert_eq!((empty.len(), empty.is_empty()), (0, true));
}

#[test]
fn an_error_names_the_line_and_the_expected_form() {
    assert_eq!(
        info_hashes(&format!("{HEX}\n\n# a comment\n{HEX} and more # x\n")).unwrap_err(),
        format!(
            "access list FILE, line 4: \"{HEX} and more\" is not an info hash: \
             give 40 hex digits, 64 hex digits (v2) or 32 base32 characters"
        )
    );
}

#[test]
fn of_a_wrong_line_80_characters_are_shown_and_nothing_that_a_terminal_would_act_on() {
    let error = info_hashes(&format!("{}\n", "x".repeat(5000))).unwrap_err();
    assert!(error.contains(&format!("\"{}…\"", "x".repeat(80))), "{error}");
    let error = info_hashes(&"\u{1b}[2J\u{202e}\"".repeat(100)).unwrap_err();
    assert!(error.contains(r#": "\u{1b}[2J\u{202e}\"\u{1b}"#), "{error}");
    assert!(error.len() < 250 && !error.contains(['\u{1b}', '\u{202e}']), "{error}");
}

#[test]
fn an_allow_list_admits_its_entries_and_a_deny_list_all_others() {
    let [on, off] = [1, 2].map(|byte| InfoHash::new([byte; 20]));
    let list = || InfoHashList::from_iter([on]);
    for (access, admitted) in [
        (Access::default(), [true, true]),
        (Access::Allow(list()), [true, false]),
        (Access::Deny(list()), [false, true]),
        (Access::Allow(InfoHashList::default()), [false, false]),
        (Access::Deny(InfoHashList::default()), [true, true]),
    ] {
        assert_eq!([on, off].map(|info_hash| access.admits(&info_hash)), admitted, "{access:?}");
    }
}
