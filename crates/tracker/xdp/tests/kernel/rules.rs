//! Frames that are answered, redirected, or passed, as far as `any_frame` does not have them.

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
            a_datagram_passes_where_the_queue_has_no_socket,
            a_client_takes_datagrams_from_its_addresses,
            all_variants_load,
            the_kernel_shows_the_name_of_the_program,
            senders_that_cannot_be_answered_pass,
            a_checksum_may_be_missing_over_ipv4_only
    }
}

/// A datagram for each family that is redirected as it is.
fn plain() -> [Vec<u8>; 2] {
    PATHS.map(|(from, to)| datagram(from, to, b"a payload of some bytes"))
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

fn a_checksum_may_be_missing_over_ipv4_only() {
    let fixture = Fixture::new(false);
    let [v4, v6] = plain();
    for (mut frame, checksum, verdict) in [(v4, 40, Redirect), (v6, 60, Pass)] {
        for (case, value, verdict) in [("none", [0, 0], verdict), ("a wrong one", [0, 1], Redirect)] {
            frame[checksum..checksum + 2].copy_from_slice(&value);
            fixture.assert(case, verdict, &frame);
        }
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
