//! Frames that are answered, redirected, or passed.

use swarmkeep_store_tests::{programs::Trial, tests};

use crate::{
    LOADING,
    fixture::{
        Fixture, OURS, PATHS, TICK,
        Verdict::{Answer, Pass, Redirect},
        answer, connect, datagram,
    },
    frame::Path,
};

/// The tests of this module.
pub(crate) fn tests() -> Vec<Trial> {
    tests! {
        [LOADING]:
            connects_are_answered_as_this_process_would,
            nothing_is_answered_before_there_are_keys_or_without_the_option,
            other_datagrams_are_redirected,
            a_datagram_passes_where_the_queue_has_no_socket,
            a_client_takes_datagrams_from_its_addresses,
            all_variants_load,
            the_kernel_shows_the_name_of_the_program,
            other_protocols_pass,
            options_fragments_and_extension_headers_pass,
            other_addresses_and_ports_pass,
            senders_that_cannot_be_answered_pass,
            lengths_that_do_not_agree_pass,
            a_frame_that_is_cut_anywhere_passes,
            a_frame_longer_than_a_place_passes,
            marks_of_routers_do_not_matter,
            a_checksum_may_be_missing_over_ipv4_only
    }
}

/// Offsets in a frame of one family.
struct Fields {
    is_v4: bool,
    protocol: usize,
    length: usize,
    udp: usize,
}

fn fields(frame: &[u8]) -> Fields {
    match frame[12] {
        8 => Fields { is_v4: true, protocol: 23, length: 16, udp: 34 },
        _ => Fields { is_v4: false, protocol: 20, length: 18, udp: 54 },
    }
}

/// A datagram for each family that is redirected as it is.
fn plain() -> [Vec<u8>; 2] {
    PATHS.map(|(from, to)| datagram(from, to, b"a payload of some bytes"))
}

fn with(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    frame[at..at + bytes.len()].copy_from_slice(bytes);
    frame
}

fn inserted(frame: &[u8], at: usize, bytes: &[u8]) -> Vec<u8> {
    [&frame[..at], bytes, &frame[at..]].concat()
}

/// Adds to a field of 16 bits.
fn plus(frame: &[u8], at: usize, more: i16) -> Vec<u8> {
    let field = u16::from_be_bytes([frame[at], frame[at + 1]]);
    with(frame, at, &field.wrapping_add_signed(more).to_be_bytes())
}

fn connects_are_answered_as_this_process_would() {
    let fixture = Fixture::new(true);
    let mut all = 0;
    // The first and the last steps of even and odd hours.
    for tick in
        [1, TICK - 1, TICK, TICK + 449, TICK + 450, TICK + 899, TICK + 900, TICK + 0xff, u64::MAX >> 8]
    {
        fixture.set_tick(tick);
        for (from, to) in [PATHS[0], PATHS[1], ("[fe80::7]:1", OURS[2])] {
            let request = datagram(from, to, &connect());
            let expected = answer(&request, tick);
            assert_eq!(fixture.run(&request), (Answer, expected), "{from} {tick}");
            // Links pad short frames.
            let padded = [&request[..], &[7; 9]].concat();
            assert_eq!(fixture.run(&padded), (Answer, answer(&padded, tick)), "{from} {tick}");
        }
        all += 2;
        assert_eq!(fixture.counted(), [all, 2 * all]);
    }
}

fn nothing_is_answered_before_there_are_keys_or_without_the_option() {
    let (with_option, without) = (Fixture::new(true), Fixture::new(false));
    for (from, to) in PATHS {
        let request = datagram(from, to, &connect());
        with_option.assert("no keys", Redirect, &request);
        without.assert("no option", Redirect, &request);
    }
    assert_eq!(with_option.counted(), [0; 2]);
}

fn other_datagrams_are_redirected() {
    let fixture = Fixture::new(true);
    fixture.set_tick(TICK);
    for (from, to) in PATHS {
        for bit in 0..96 {
            let mut payload = connect();
            payload[bit / 8] ^= 1 << (bit % 8);
            fixture.assert("another number or action", Redirect, &datagram(from, to, &payload));
        }
        for len in (0..=40).filter(|len| *len != 16) {
            let mut payload = [connect(), connect(), connect()].concat();
            payload.truncate(len);
            let frame = datagram(from, to, &payload);
            fixture.assert("another length", Redirect, &frame);
            fixture.assert("padding", Redirect, &[&frame[..], &connect()].concat());
        }
    }
    assert_eq!(fixture.counted(), [0; 2]);
}

fn a_datagram_passes_where_the_queue_has_no_socket() {
    let fixture = Fixture::new(false);
    let all = plain();
    all.iter().for_each(|frame| fixture.assert("a socket", Redirect, frame));
    fixture.remove_socket();
    all.iter().for_each(|frame| fixture.assert("no socket", Pass, frame));
}

fn a_client_takes_datagrams_from_its_addresses() {
    let (client, server) = (Fixture::with(false, true, [false; 2]), Fixture::new(false));
    for (remote, ours) in PATHS {
        for (fixture, from, to) in [(&client, ours, remote), (&server, remote, ours)] {
            fixture.assert("its way", Redirect, &datagram(from, to, b"payload"));
            fixture.assert("the other way", Pass, &datagram(to, from, b"payload"));
        }
        for group in ["224.0.0.1:7", "255.255.255.255:7", "[ff02::1]:7", "[::ffff:10.9.1.7]:7"] {
            if ours.contains('[') == group.contains('[') {
                client.assert(group, Pass, &datagram(ours, group, b"payload"));
            }
        }
    }
}

fn all_variants_load() {
    for connects in [false, true] {
        for routes in [[false, true], [true, false], [true, true]] {
            let fixture = Fixture::with(connects, false, routes);
            fixture.assert("ARP", Pass, &arp());
        }
    }
}

fn the_kernel_shows_the_name_of_the_program() {
    assert_eq!(Fixture::new(false).name(), "swarmkeep");
}

fn arp() -> Vec<u8> {
    let mut arp = vec![0xff; 6];
    arp.extend([2, 0, 0, 0, 0, 2, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1, 2, 0, 0, 0, 0, 2, 10, 9, 1, 7]);
    arp.extend([0, 0, 0, 0, 0, 0, 10, 9, 0, 1]);
    arp
}

fn other_protocols_pass() {
    let fixture = Fixture::new(true);
    fixture.set_tick(TICK);
    fixture.assert("ARP", Pass, &arp());
    fixture.assert("ARP to one", Pass, &with(&arp(), 0, &[2, 0, 0, 0, 0, 1]));
    for frame in plain().into_iter().chain(PATHS.map(|(from, to)| datagram(from, to, &connect()))) {
        let Fields { is_v4, protocol, udp, .. } = fields(&frame);
        for number in (0..=255).filter(|number| *number != 17) {
            fixture.assert("another protocol", Pass, &with(&frame, protocol, &[number]));
        }
        // A neighbour solicitation.
        if !is_v4 {
            fixture.assert("NDP", Pass, &with(&with(&frame, protocol, &[58, 255]), udp, &[135, 0]));
        }
        fixture.assert("a tag (802.1Q)", Pass, &inserted(&frame, 12, &[0x81, 0, 0, 5]));
        fixture.assert("two tags (802.1ad)", Pass, &inserted(&frame, 12, &[0x88, 0xa8, 0, 5, 0x81, 0, 0, 6]));
        fixture.assert(
            "the other family",
            Pass,
            &with(&frame, 12, if is_v4 { &[0x86, 0xdd] } else { &[8, 0] }),
        );
        for version in (0..16).filter(|version| *version != if is_v4 { 4 } else { 6 }) {
            fixture.assert("another version", Pass, &with(&frame, 14, &[version << 4 | frame[14] & 15]));
        }
    }
}

fn options_fragments_and_extension_headers_pass() {
    let fixture = Fixture::new(false);
    let [v4, v6] = plain();
    for words in 1..=10_u8 {
        let options = inserted(&v4, 34, &vec![1; usize::from(words) * 4]);
        let options = plus(&with(&options, 14, &[0x45 + words]), 16, i16::from(words) * 4);
        fixture.assert("options", Pass, &options);
    }
    fixture.assert("a short header", Pass, &with(&v4, 14, &[0x44]));
    fixture.assert("may be fragmented", Redirect, &with(&v4, 20, &[0, 0]));
    for (what, fragment) in
        [("first", [0x20, 0]), ("middle", [0x20, 9]), ("last", [0, 9]), ("far", [0x1f, 0])]
    {
        fixture.assert(what, Pass, &with(&v4, 20, &fragment));
    }
    // Hop by hop, routing, fragment, destination, none, and mobility.
    for kind in [0, 43, 44, 60, 59, 135] {
        let extended = inserted(&with(&v6, 20, &[kind]), 54, &[17, 0, 0, 0, 0, 0, 0, 0]);
        fixture.assert("an extension header", Pass, &plus(&extended, 18, 8));
    }
}

fn other_addresses_and_ports_pass() {
    let fixture = Fixture::new(false);
    for (from, to) in [
        (PATHS[0].0, "10.9.0.2:6969"),
        (PATHS[0].0, "11.9.0.1:6969"),
        (PATHS[0].0, "10.9.0.1:6970"),
        (PATHS[0].0, "10.9.0.1:14619"),
        (PATHS[1].0, "[fd09::2]:6969"),
        (PATHS[1].0, "[fd08::1]:6969"),
        (PATHS[1].0, "[fd09:0:0:1::1]:6969"),
        (PATHS[1].0, "[fd09::1]:6970"),
        // In the map this is 10.9.0.1.
        (PATHS[1].0, "[::ffff:10.9.0.1]:6969"),
    ] {
        fixture.assert(to, Pass, &datagram(from, to, b"payload"));
    }
    for frame in plain() {
        fixture.assert("of ours", Redirect, &frame);
        for group in [[0xff; 6], [1, 0, 0x5e, 1, 2, 3], [0x33, 0x33, 0, 0, 0, 1]] {
            fixture.assert("to a group", Pass, &with(&frame, 0, &group));
            fixture.assert("from a group", Pass, &with(&frame, 6, &group));
        }
    }
}

fn senders_that_cannot_be_answered_pass() {
    let fixture = Fixture::new(true);
    fixture.set_tick(TICK);
    let check = |verdict, from: &str, to: &str| {
        let request = datagram(from, to, &connect());
        let (given, after) = fixture.run(&request);
        assert_eq!(given, verdict, "{from}");
        assert_eq!(after, if verdict == Answer { answer(&request, TICK) } else { request }, "{from}");
        let other = if verdict == Answer { Redirect } else { verdict };
        fixture.assert(from, other, &datagram(from, to, b"no connect"));
    };
    for (verdict, ips) in [
        (Pass, "0.0.0.0 0.1.2.3 127.0.0.1 127.255.0.9 224.0.0.1 239.1.2.3 240.0.0.1 255.255.255.255"),
        (Answer, "1.0.0.0 126.255.255.255 128.0.0.1 223.255.255.255"),
    ] {
        ips.split(' ').for_each(|ip| check(verdict, &format!("{ip}:7"), OURS[0]));
    }
    for (verdict, ips) in [
        (Pass, ":: ::1 ::10.9.1.7 ::ffff:10.9.1.7 ff02::1 ff0e::9"),
        (Answer, "fe80::7 fd09::7 2001:db8:: 64:ff9b::10.9.1.7 0:0:0:1:: feff::1"),
    ] {
        ips.split(' ').for_each(|ip| check(verdict, &format!("[{ip}]:7"), OURS[1]));
    }
    check(Pass, "10.9.1.7:0", OURS[0]);
    check(Pass, "[fd09:1::7]:0", OURS[1]);
    check(Answer, "10.9.1.7:256", OURS[0]);
    check(Answer, "[fd09:1::7]:65535", OURS[1]);
}

fn lengths_that_do_not_agree_pass() {
    let fixture = Fixture::new(false);
    for frame in plain() {
        let Fields { is_v4, length, udp, .. } = fields(&frame);
        let len = (frame.len() - udp) as i16;
        for more in (-len - 50..=300).filter(|more| *more != 0) {
            fixture.assert("IP", Pass, &plus(&frame, length, more));
            fixture.assert("UDP", Pass, &plus(&frame, udp + 4, more));
            // Both agree: a datagram that is too long for the frame, padding, or less than a header.
            let both = plus(&plus(&frame, length, more), udp + 4, more);
            let is_whole = (8 - len..0).contains(&more);
            fixture.assert("both", if is_whole { Redirect } else { Pass }, &both);
        }
        let zero = with(&with(&frame, udp + 4, &[0, 0]), length, &[0, if is_v4 { 20 } else { 0 }]);
        fixture.assert("a jumbogram", Pass, &zero);
    }
}

fn a_frame_that_is_cut_anywhere_passes() {
    let fixture = Fixture::new(true);
    fixture.set_tick(TICK);
    for (from, to) in PATHS {
        for payload in [&connect()[..], b"", b"a payload of some bytes"] {
            let frame = datagram(from, to, payload);
            // The kernel takes nothing shorter than its header of Ethernet.
            for len in 14..frame.len() {
                fixture.assert("cut", Pass, &frame[..len]);
            }
        }
    }
}

fn a_frame_longer_than_a_place_passes() {
    let fixture = Fixture::new(false);
    for (from, to) in PATHS {
        let headers = datagram(from, to, b"").len();
        for (len, verdict) in [(1791, Redirect), (1792, Redirect), (1793, Pass), (2048, Pass), (3000, Pass)] {
            fixture.assert("payload", verdict, &datagram(from, to, &vec![7; len - headers]));
            let mut padded = datagram(from, to, b"payload");
            padded.resize(len, 0);
            fixture.assert("padding", verdict, &padded);
        }
    }
}

fn marks_of_routers_do_not_matter() {
    let fixture = Fixture::new(true);
    fixture.set_tick(TICK);
    for (from, to) in PATHS {
        let request = datagram(from, to, &connect());
        let Fields { is_v4, .. } = fields(&request);
        let marked = match is_v4 {
            // The type of service, the identification, and the hops.
            true => with(&with(&with(&request, 15, &[0xff]), 18, &[0xab, 0xcd]), 22, &[1]),
            // The traffic class, the flow label, and the hops.
            false => with(&with(&request, 14, &[0x6f, 0xff, 0xff, 0xff]), 21, &[1]),
        };
        assert_eq!(fixture.run(&marked), (Answer, answer(&request, TICK)), "{from}");
        let other = with(&marked, marked.len() - 16, &[1]);
        fixture.assert(from, Redirect, &other);
    }
}

fn a_checksum_may_be_missing_over_ipv4_only() {
    let fixture = Fixture::new(false);
    for (frame, verdict) in plain().into_iter().zip([Redirect, Pass]) {
        let Fields { udp, .. } = fields(&frame);
        fixture.assert("no checksum", verdict, &with(&frame, udp + 6, &[0, 0]));
        fixture.assert("a wrong checksum", Redirect, &with(&frame, udp + 6, &[0, 1]));
    }
    // A checksum that would be 0 is 0xffff: try many, so that some are.
    let fixture = Fixture::new(true);
    let mut largest = 0;
    for tick in TICK..TICK + 90_000 {
        fixture.set_tick(tick);
        for (from, to) in PATHS {
            let request = datagram(from, to, &connect());
            let expected = answer(&request, tick);
            let (_, payload) = Path::read(&expected).unwrap();
            if expected[payload.start - 2..payload.start] == [0xff; 2] {
                assert_eq!(fixture.run(&request), (Answer, expected));
                largest += 1;
            }
        }
    }
    assert!(largest > 0);
}
