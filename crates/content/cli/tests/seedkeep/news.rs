//! What `seedkeep fetch` and `seed` say of trackers, peers and ports, and when nothing comes.

use std::net::{SocketAddr, TcpStream};

use super::{
    peers::{Seeder, after, interrupted, prepared, tracker_at},
    *,
};

const ANSWER: &str = "d8:completei3e10:incompletei1e8:intervali1800e5:peers0:e";

/// The events of a kind while `seedkeep` runs, until there are `count`; the others, and the lines for people.
fn events_of(folder: &Path, line: &str, event: &str, count: usize) -> (Vec<Value>, Vec<Value>, String) {
    let (told, _, said) = interrupted(folder, line, after(count as u32, event));
    let (events, others) = told.into_iter().partition(|told| told["event"] == event);
    (events, others, said)
}

#[test]
fn a_seeder_says_which_trackers_it_cannot_use_and_trusts_one_that_is_typed() {
    let at: &Path = &Folder(prepared());
    // A passkey in the query, on this machine.
    let [own, other] = ["a", "b"].map(|key| format!("{}?passkey={key}", tracker_at("127.0.0.1", ANSWER).0));
    let refused = [
        (Some("wss://t.example/announce"), "\"wss\" is no way to ask a tracker"),
        (Some("udp://t.example/announce"), "the port is missing"),
        (Some("http://me:secret@t.example/announce"), "a user name or password is not supported"),
        (None, "it names no usable tracker, and no --peer is given"),
    ];
    let tiers =
        refused.map(|(url, _)| url.map_or_else(String::new, |url| format!("--tracker {url}"))).join(" ");
    done(at, &format!("create data -o none.torrent {tiers}"));
    done(at, &format!("create data -o own.torrent --tracker {own} --tracker {other}"));
    for (line, expected) in [
        ("none.torrent".to_owned(), refused.to_vec()),
        ("own.torrent".to_owned(), vec![(Some(&*own), "--tracker"), (Some(&*other), "--tracker")]),
        (format!("own.torrent --tracker {own}"), vec![(Some(&*own), ""), (Some(&*other), "--tracker")]),
    ] {
        let line = format!("seed {line} --listen 127.0.0.1:0 --json");
        let (trackers, _, said) = events_of(at, &line, "tracker", expected.len());
        for (url, why) in expected {
            let tracker = trackers.iter().find(|told| told["url"].as_str() == url).unwrap();
            let is_told = tracker["error"].as_str().is_some_and(|told| told.contains(why));
            assert!(is_told != why.is_empty(), "{tracker}");
            assert!(said.contains(&format!("data: {}", url.unwrap_or(why))) && said.contains(why), "{said}");
        }
    }
}

#[test]
fn a_private_torrent_is_announced_to_its_own_trackers_alone() {
    let at: &Path = &Folder(prepared());
    let [own, users] = ["127.0.0.1"; 2].map(|ip| tracker_at(ip, ANSWER));
    for (option, is_private) in [("", false), ("--private", true)] {
        done(at, &format!("create data -o t.torrent --force {option} --tracker {}", own.0));
        let line = format!("seed t.torrent --tracker {} --listen 127.0.0.1:0 --json", users.0);
        events_of(at, &line, "tracker", if is_private { 1 } else { 2 });
        assert_eq!(users.1.try_iter().count() == 0, is_private);
    }
}

/// A peer with a wrong piece for `info_hash`. For other torrents it requires encryption: it closes
/// connections that begin with the plain handshake, as Transmission does (`tr_handshake::read_handshake`).
fn stranger(info_hash: [u8; 20]) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    thread::spawn(move || {
        let mut kept = Vec::new();
        for stream in listener.incoming() {
            let (mut stream, mut head) = (stream.unwrap(), [0; 68]);
            if stream.read_exact(&mut head).is_ok() && head[28..48] == info_hash {
                // Without extensions. It has the only piece, unchokes, and gets `interested` and the request.
                head[20..28].fill(0);
                head[48..].fill(b'x');
                stream.write_all(&[&head[..], b"\0\0\0\x02\x05\x80\0\0\0\x01\x01"].concat()).unwrap();
                stream.read_exact(&mut [0; 5 + 17]).unwrap();
                stream.write_all(&[&b"\0\0\x40\x09\x07"[..], &[0; 8 + (16 << 10)]].concat()).unwrap();
                kept.push(stream);
            }
        }
    });
    at
}

#[test]
fn after_half_a_minute_without_progress_the_reasons_are_said() {
    let at: &Path = &Folder(prepared());
    fs::create_dir(at.join("some")).unwrap();
    fs::write(at.join("some/data"), &fs::read(at.join("data")).unwrap()[..5 << 20]).unwrap();
    let (part, _) = Seeder::of(at, "data.torrent some");
    fs::write(at.join("lie"), [7; 16 << 10]).unwrap();
    done(at, "create lie --piece-length 16KiB");
    let lie = read(&at.join("lie.torrent")).info().info_hash();
    let (link, peer) = ("c12fe1c06bba254a9dc9f519b335aa7c1367a88a", stranger(*lie.as_bytes()).to_string());
    let line = format!(
        "fetch magnet:?xt=urn:btih:{link}&so=0,2 data.torrent lie.torrent --store memory: --json \
         --listen 127.0.0.1:0 --peer {peer} --peer {}",
        part.1
    );
    let waiting = after(3, "waits");
    let (told, code, said) = interrupted(at, &line, |told| {
        if told["event"] == "listening" {
            // A caller that begins with the key of message stream encryption.
            let address = told["addresses"][0].as_str().unwrap();
            TcpStream::connect(address).unwrap().write_all(&[0xa5; 96]).unwrap();
        }
        waiting(told)
    });
    assert_eq!(code, Some(3));
    let of = |event: &str| told.iter().filter(|told| told["event"] == event).collect::<Vec<_>>();
    let notes = of("note");
    let [selects, calls] = &notes[..] else { panic!("{notes:?}") };
    assert!(selects["note"].as_str().unwrap().contains("(BEP 53), and is ignored"), "{selects}");
    assert!(calls["note"].as_str().unwrap().starts_with("127.0.0.1 called without the handshake"), "{calls}");
    let data = read(&at.join("data.torrent")).info().info_hash().to_string();
    let wrong =
        "sent wrong bytes of piece 0: it is banned, and asked for other pieces only without another source";
    for (info_hash, pieces, lacks, why) in [
        (link, 0, "metadata", " and 1 more: the handshake was not answered".to_owned()),
        (&*data, 192, "192 pieces", format!("peer {}: has none of them", part.1)),
        (&*lie.to_string(), 1, "1 piece", format!("peer {peer}: {wrong}")),
    ] {
        let waits = of("waits").into_iter().find(|told| told["info_hash"] == info_hash).unwrap();
        let reasons = waits["why"].as_array().unwrap().iter().map(|why| why.as_str().unwrap());
        assert!(waits["pieces"] == pieces && reasons.into_iter().any(|told| told.contains(&why)), "{waits}");
        assert!(said.contains(&format!(": nothing has come for 30 s, and it lacks {lacks}: ")), "{said}");
    }
    let says = |error: &str| {
        of("peer").iter().any(|told| {
            told["address"] == peer && told["error"].as_str().is_some_and(|told| told.contains(error))
        })
    };
    assert!(says(wrong) && says("require encryption"), "{told:?}");
    assert!(said.contains(&format!("lie: peer {peer}: {wrong}\n")), "{said}");
    assert!(said.contains("seedkeep: `so` of a link "), "{said}");
}

#[test]
fn each_family_falls_back_by_itself_and_announces_its_own_port() {
    let at: &Path = &Folder(prepared());
    // Of both families. Another program may have it, too.
    let _taken = TcpListener::bind("[::]:6881");
    let [v4, v6] = ["127.0.0.1", "::1"].map(|ip| tracker_at(ip, ANSWER));
    done(at, &format!("create data -o t.torrent --tracker {} --tracker {}", v4.0, v6.0));
    let (_, told, said) = events_of(at, "seed t.torrent --json", "tracker", 2);
    for ip in ["0.0.0.0", "[::]"] {
        let words = format!("cannot listen at {ip}:6881: ");
        let is_note = |told: &Value| told["note"].as_str().is_some_and(|note| note.starts_with(&words));
        assert!(told.iter().any(is_note) && said.contains(&format!("seedkeep: {words}")), "{said}");
    }
    let listening = told.iter().find(|told| told["event"] == "listening").unwrap();
    let ports =
        [0, 1].map(|nth| listening["addresses"][nth].as_str().unwrap().parse::<SocketAddr>().unwrap());
    let is_right = ports[0].is_ipv4() && ports[1].is_ipv6() && ports.iter().all(|at| at.port() != 6881);
    assert!(is_right, "{listening}");
    for ((_, asked), address) in [v4, v6].into_iter().zip(ports) {
        let asked = asked.recv().unwrap();
        assert!(asked.contains(&format!("&port={}&", address.port())), "{asked}, at {address}");
    }
}

#[test]
fn after_success_no_further_call_is_announced() {
    let folder: &Path = &Folder(prepared());
    let seeder = Seeder::start(folder);
    let line = "fetch data.torrent --seed --store memory: --listen 127.0.0.1:0 --json --peer";
    let left = Cell::new(false);
    let (told, code, _) = interrupted(folder, &format!("{line} {}", seeder.1), |told| {
        left.replace(left.get() || told["connected"] == false) && told["event"] == "progress"
    });
    assert!(told.iter().all(|told| told["event"] != "peer" || told["error"].is_null()), "{told:?}");
    assert_eq!(code, Some(0));
}
