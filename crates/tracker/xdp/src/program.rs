//! The program that reads each frame before the kernel does. A whole UDP datagram with an address of the map
//! goes to the socket of its queue; the program may answer connects of BitTorrent trackers (BEP 15) itself.
//! All other frames pass to the kernel: ARP, VLAN tags, IP options, fragments, extension headers, other
//! addresses and ports.

use crate::assembler::{
    Assembler,
    If::{Above, Below, Equal, NotEqual},
    Instruction, Label, R0, R1, R2, R3, R4, R5, R6, R7, R8, R9, Register, STACK, Width,
    Width::{Byte, Eight, Four, Two},
};
use crate::queue::FRAME as FRAME_PLACE;

/// The maps of a program, by their file descriptors.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Maps {
    /// A hash with a key for each address and port; [`key`](crate::attach::key) makes them.
    pub(crate) addresses: i32,
    /// The sockets, by queue.
    pub(crate) sockets: i32,
    /// For connects: an array of one value, with the time and the keys as 5 words, and the counts by family
    /// for each processor.
    pub(crate) connects: Option<(i32, i32)>,
}

/// The variant of a program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Options {
    pub(crate) maps: Maps,
    /// Whether the map has the sources of datagrams, as in a client, instead of their destinations.
    pub(crate) is_client: bool,
    /// Whether the kernel's routes decide the way back, over IPv4 and over IPv6. Otherwise an answer goes to
    /// the hardware address of the request's sender.
    pub(crate) routes: [bool; 2],
}

// Offsets in the program's context (`struct xdp_md`).
const DATA: i16 = 0;
const DATA_END: i16 = 4;
const INTERFACE: i16 = 12;
const QUEUE: i16 = 16;

// Numbers of the kernel's functions.
const LOOK_UP: i32 = 1;
const REDIRECT: i32 = 51;
const LOOK_UP_ROUTE: i32 = 69;
const LENGTH: i32 = 188;

// Verdicts.
pub(crate) const PASS: i32 = 2;
pub(crate) const SEND_BACK: i32 = 3;

// Registers that calls preserve.
const CONTEXT: Register = R6;
const FRAME: Register = R7;
const END: Register = R8;

/// The longest frame that a socket takes: in each place the kernel leaves 256 bytes free before the frame.
const LONGEST: i32 = FRAME_PLACE as i32 - 256;

/// Connection ids count time in steps of 8 seconds.
const TICKS_PER_HOUR: i32 = 450;

/// The magic number of connects.
const MAGIC: u64 = 0x0417_2710_1980;

/// The offsets in frames of one family.
struct Family {
    ethertype: u16,
    source: i16,
    destination: i16,
    udp: i16,
    is_v4: bool,
}

const FAMILIES: [Family; 2] = [
    Family { ethertype: 0x0800, source: 26, destination: 30, udp: 34, is_v4: true },
    Family { ethertype: 0x86dd, source: 22, destination: 38, udp: 54, is_v4: false },
];

/// Returns the result of a load of a number in network order.
const fn wire(number: u16) -> i32 {
    number.to_be() as i32
}

/// Returns the instructions of a program.
pub(crate) fn build(options: &Options) -> Vec<Instruction> {
    let mut code = Assembler::default();
    let (pass, redirect) = (code.label(), code.label());
    code.set(CONTEXT, R1);
    code.load(Four, FRAME, CONTEXT, DATA);
    code.load(Four, END, CONTEXT, DATA_END);
    within(&mut code, 14, pass);
    // Neither the receiver nor the sender, which an answer would go to, is a group.
    code.load(Byte, R1, FRAME, 0);
    code.load(Byte, R2, FRAME, 6);
    code.or(R1, R2);
    code.and(R1, 1);
    code.jump_if(R1, NotEqual, 0, pass);
    for (family, routes) in FAMILIES.iter().zip(options.routes) {
        let other = code.label();
        code.load(Two, R1, FRAME, 12);
        code.jump_if(R1, NotEqual, wire(family.ethertype), other);
        family.is_whole(&mut code, pass);
        family.can_be_answered(&mut code, pass);
        family.is_ours(&mut code, options, pass);
        if routes {
            family.route(&mut code, pass);
        }
        // The kernel refuses instructions that are never reached.
        match options.maps.connects {
            Some((array, counts)) => family.answer_connect(&mut code, array, counts, redirect),
            None => code.jump(redirect),
        }
        code.here(other);
    }
    code.here(pass);
    code.set(R0, PASS);
    code.exit();
    code.here(redirect);
    code.load(Four, R2, CONTEXT, QUEUE);
    code.set_map(R1, options.maps.sockets);
    // The verdict if the queue has no socket.
    code.set(R3, PASS);
    code.call(REDIRECT);
    code.exit();
    code.finish()
}

/// Passes a frame that is shorter than `bytes`.
fn within(code: &mut Assembler, bytes: i32, pass: Label) {
    code.set(R1, FRAME);
    code.add(R1, bytes);
    code.jump_if(R1, Above, END, pass);
}

impl Family {
    /// Passes everything except a whole datagram with headers that agree on its length.
    fn is_whole(&self, code: &mut Assembler, pass: Label) {
        let udp = i32::from(self.udp);
        within(code, udp + 8, pass);
        code.load(Byte, R1, FRAME, 14);
        if self.is_v4 {
            // Version 4, and no options.
            code.jump_if(R1, NotEqual, 0x45, pass);
            code.load(Two, R1, FRAME, 20);
            code.and(R1, wire(0x3fff));
            code.jump_if(R1, NotEqual, 0, pass);
        } else {
            code.and(R1, 0xf0);
            code.jump_if(R1, NotEqual, 0x60, pass);
        }
        // Lengths are compared as numbers: a pointer plus a number takes CAP_PERFMON.
        code.set(R1, CONTEXT);
        code.call(LENGTH);
        code.jump_if(R0, Above, LONGEST, pass);
        let (protocol, length, header) = if self.is_v4 { (23, 16, 20) } else { (20, 18, 0) };
        code.load(Byte, R1, FRAME, protocol);
        code.jump_if(R1, NotEqual, 17, pass);
        code.load(Two, R1, FRAME, self.udp + 4);
        code.swap(R1, 16);
        code.jump_if(R1, Below, 8, pass);
        code.load(Two, R2, FRAME, length);
        code.swap(R2, 16);
        code.set(R3, R1);
        code.add(R3, header);
        code.jump_if(R3, NotEqual, R2, pass);
        code.add(R1, udp);
        code.jump_if(R1, Above, R0, pass);
    }

    /// Passes datagrams that have an address of a group, of loopback or of no host, or the source port 0:
    /// such a sender cannot be answered. Also passes IPv4-mapped addresses over IPv6, as the map has IPv4
    /// addresses in this form, and datagrams over IPv6 without the UDP checksum, which is required there.
    fn can_be_answered(&self, code: &mut Assembler, pass: Label) {
        for address in [self.source, self.destination] {
            code.load(Byte, R1, FRAME, address);
            if self.is_v4 {
                for first in [0, 127] {
                    code.jump_if(R1, Equal, first, pass);
                }
                code.jump_if(R1, Above, 223, pass);
            } else {
                code.jump_if(R1, Equal, 0xff, pass);
                code.load(Eight, R1, FRAME, address);
                code.set(R2, 0);
                code.jump_if(R1, Equal, R2, pass);
            }
        }
        let needed: &[i16] = if self.is_v4 { &[self.udp] } else { &[self.udp, self.udp + 6] };
        for field in needed {
            code.load(Two, R1, FRAME, *field);
            code.jump_if(R1, Equal, 0, pass);
        }
    }

    /// Passes datagrams if their destination (for a client: their source) is not in the map.
    fn is_ours(&self, code: &mut Assembler, options: &Options, pass: Label) {
        let (address, port) =
            if options.is_client { (self.source, self.udp) } else { (self.destination, self.udp + 2) };
        const KEY: i16 = -24;
        if self.is_v4 {
            code.set(R1, 0);
            code.store(Eight, STACK, KEY, R1);
            code.set_wide(R1, u64::from(0xffff_u32.to_be()));
            code.store(Four, STACK, KEY + 8, R1);
            code.load(Four, R1, FRAME, address);
            code.store(Four, STACK, KEY + 12, R1);
        } else {
            for word in (0..16).step_by(4) {
                code.load(Four, R1, FRAME, address + word);
                code.store(Four, STACK, KEY + word, R1);
            }
        }
        code.load(Two, R1, FRAME, port);
        code.store(Four, STACK, KEY + 16, R1);
        code.set_map(R1, options.maps.addresses);
        code.set(R2, STACK);
        code.add(R2, i32::from(KEY));
        code.call(LOOK_UP);
        code.jump_if_none(R0, pass);
    }

    /// Replaces the sender's hardware address with the address of the next hop towards the source, by the
    /// kernel's routes and neighbours.
    fn route(&self, code: &mut Assembler, pass: Label) {
        // `struct bpf_fib_lookup`.
        const ROUTE: i16 = -88;
        const BYTES: i16 = 64;
        const LOOPBACK: i32 = 1;
        code.set(R1, 0);
        for word in (0..BYTES).step_by(8) {
            code.store(Eight, STACK, ROUTE + word, R1);
        }
        code.set(R1, if self.is_v4 { libc::AF_INET } else { libc::AF_INET6 });
        code.store(Byte, STACK, ROUTE, R1);
        // The kernel looks up routes only for an interface that forwards, which is harmless on loopback.
        code.set(R1, LOOPBACK);
        code.store(Four, STACK, ROUTE + 8, R1);
        let len = if self.is_v4 { 4 } else { 16 };
        for word in (0..len).step_by(4) {
            code.load(Four, R1, FRAME, self.destination + word);
            code.store(Four, STACK, ROUTE + 16 + word, R1);
            code.load(Four, R1, FRAME, self.source + word);
            code.store(Four, STACK, ROUTE + 32 + word, R1);
        }
        code.set(R1, CONTEXT);
        code.set(R2, STACK);
        code.add(R2, i32::from(ROUTE));
        code.set(R3, i32::from(BYTES));
        code.set(R4, 0);
        code.call(LOOK_UP_ROUTE);
        // There is no route or no neighbour yet, or the way back is by another interface.
        code.jump_if(R0, NotEqual, 0, pass);
        code.load(Four, R1, STACK, ROUTE + 8);
        code.load(Four, R2, CONTEXT, INTERFACE);
        code.jump_if(R1, NotEqual, R2, pass);
        for two in (0..6).step_by(2) {
            code.load(Two, R1, STACK, ROUTE + 58 + two);
            code.store(Two, FRAME, 6 + two, R1);
        }
    }

    /// Turns a connect into its answer and sends it back. The bytes are the same as from
    /// [`Path::write`](crate::Path::write). Jumps to `other` with any other datagram, unchanged.
    fn answer_connect(&self, code: &mut Assembler, array: i32, counts: i32, other: Label) {
        let payload = self.udp + 8;
        within(code, i32::from(payload) + 16, other);
        code.load(Two, R1, FRAME, self.udp + 4);
        code.jump_if(R1, NotEqual, wire(24), other);
        code.load(Eight, R1, FRAME, payload);
        code.set_wide(R2, MAGIC.to_be());
        code.jump_if(R1, NotEqual, R2, other);
        code.load(Four, R1, FRAME, payload + 8);
        code.jump_if(R1, NotEqual, 0, other);
        // As long as the time is 0, there are no keys.
        code.set_value_of(R9, array);
        code.load(Eight, R1, R9, 0);
        code.jump_if(R1, Equal, 0, other);
        self.count(code, counts, other);
        self.connection_id(code);
        code.load(Four, R2, FRAME, payload + 12);
        code.store(Four, FRAME, payload + 4, R2);
        code.store(Eight, FRAME, payload + 8, R1);
        code.set(R1, 0);
        code.store(Four, FRAME, payload, R1);
        self.turn_back(code);
        code.set(R0, SEND_BACK);
        code.exit();
    }

    /// Counts a connect, for this processor and this family.
    fn count(&self, code: &mut Assembler, counts: i32, other: Label) {
        const KEY: i16 = -8;
        code.set(R1, i32::from(!self.is_v4));
        code.store(Four, STACK, KEY, R1);
        code.set_map(R1, counts);
        code.set(R2, STACK);
        code.add(R2, i32::from(KEY));
        code.call(LOOK_UP);
        code.jump_if_none(R0, other);
        code.load(Eight, R1, R0, 0);
        code.add(R1, 1);
        code.store(Eight, R0, 0, R1);
    }

    /// Leaves the connection id of the source in `R1`, in network order, by the time and the keys at `R9`:
    /// SipHash-1-3 (Aumasson and Bernstein, 2012) of the address and of the time in steps of 8 seconds, with
    /// the lowest byte of the time in place of the hash's lowest byte.
    fn connection_id(&self, code: &mut Assembler) {
        const TIME: i16 = -8;
        let (word, spare) = (R0, R5);
        code.load(Eight, R1, R9, 0);
        code.store(Eight, STACK, TIME, R1);
        // The second of two keys of 16 bytes is for odd hours.
        let is_even = code.label();
        code.divide(R1, TICKS_PER_HOUR);
        code.and(R1, 1);
        code.jump_if(R1, Equal, 0, is_even);
        code.add(R9, 16);
        code.here(is_even);
        for (state, half, constant) in [
            (R1, 8, 0x736f_6d65_7073_6575),
            (R2, 16, 0x646f_7261_6e64_6f6d),
            (R3, 8, 0x6c79_6765_6e65_7261),
            (R4, 16, 0x7465_6462_7974_6573),
        ] {
            code.set_wide(state, constant);
            code.load(Eight, spare, R9, half);
            code.xor(state, spare);
        }
        if self.is_v4 {
            code.load(Eight, spare, STACK, TIME);
            code.load(Four, word, FRAME, self.source);
            code.shift_left(spare, 32);
            code.or(word, spare);
            sip_word(code);
            code.load(Eight, word, STACK, TIME);
            code.shift_right(word, 32);
            code.set_wide(spare, 12 << 56);
            code.or(word, spare);
            sip_word(code);
        } else {
            for half in [0, 8] {
                code.load(Eight, word, FRAME, self.source + half);
                sip_word(code);
            }
            code.load(Eight, word, STACK, TIME);
            sip_word(code);
            code.set_wide(word, 24 << 56);
            sip_word(code);
        }
        code.xor(R3, 0xff);
        (0..3).for_each(|_| sip_round(code));
        for other in [R2, R3, R4] {
            code.xor(R1, other);
        }
        code.and(R1, !0xff);
        code.load(Eight, spare, STACK, TIME);
        code.and(spare, 0xff);
        code.or(R1, spare);
        code.swap(R1, 64);
    }

    /// Writes the headers of an answer to the source, with a payload of 16 bytes.
    fn turn_back(&self, code: &mut Assembler) {
        exchange(code, Four, 0, 6);
        exchange(code, Two, 4, 10);
        exchange(code, Two, self.udp, self.udp + 2);
        let mut put = |at: i16, bytes: [u8; 4]| {
            code.set(R1, i32::from_ne_bytes(bytes));
            code.store(Four, FRAME, at, R1);
        };
        if self.is_v4 {
            put(14, [0x45, 0, 0, 20 + 24]);
            put(18, [0, 0, 0x40, 0]);
            put(22, [64, 17, 0, 0]);
        } else {
            put(14, [0x60, 0, 0, 0]);
            put(18, [0, 24, 17, 64]);
        }
        put(self.udp + 4, [0, 24, 0, 0]);
        for word in (0..self.destination - self.source).step_by(4) {
            exchange(code, Four, self.source + word, self.destination + word);
        }
        if self.is_v4 {
            code.set(R0, 0);
            sum(code, 14, self.udp);
            code.store(Two, FRAME, 24, R0);
        }
        // The pseudo-header: the addresses, the protocol and the length.
        code.set(R0, wire(17) + wire(24));
        sum(code, self.source, self.udp + 8 + 16);
        let is_some = code.label();
        code.jump_if(R0, NotEqual, 0, is_some);
        code.set(R0, 0xffff);
        code.here(is_some);
        code.store(Two, FRAME, self.udp + 6, R0);
    }
}

/// Exchanges two fields of the frame.
fn exchange(code: &mut Assembler, width: Width, one: i16, other: i16) {
    code.load(width, R1, FRAME, one);
    code.load(width, R2, FRAME, other);
    code.store(width, FRAME, one, R2);
    code.store(width, FRAME, other, R1);
}

/// Adds a part of the frame to `R0`, and turns the sum into a checksum (RFC 1071).
fn sum(code: &mut Assembler, from: i16, to: i16) {
    for at in (from..to).step_by(4) {
        code.load(Four, R1, FRAME, at);
        code.add(R0, R1);
    }
    code.set(R1, R0);
    code.shift_right(R1, 32);
    code.shift_left(R0, 32);
    code.shift_right(R0, 32);
    code.add(R0, R1);
    // At most 0x1_0000_000e, then at most 0x1_fffe, then 16 bits.
    for _ in 0..2 {
        code.set(R1, R0);
        code.shift_right(R1, 16);
        code.and(R0, 0xffff);
        code.add(R0, R1);
    }
    code.xor(R0, 0xffff);
}

/// Adds the word in `R0` to the state of SipHash, which is in `R1` to `R4`.
fn sip_word(code: &mut Assembler) {
    code.xor(R4, R0);
    sip_round(code);
    code.xor(R1, R0);
}

/// Spoils `R5`.
fn sip_round(code: &mut Assembler) {
    let mut half = |a, b, turn_b, c, d, turn_d| {
        for (sum, other, turn) in [(a, b, turn_b), (c, d, turn_d)] {
            code.add(sum, other);
            code.rotate_left(other, turn, R5);
            code.xor(other, sum);
        }
        code.rotate_left(a, 32, R5);
    };
    half(R1, R2, 13, R3, R4, 16);
    half(R3, R2, 17, R1, R4, 21);
}
