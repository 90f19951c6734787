//! The most that the system allows any tracker: answers of constant content, received and sent in batches.

use std::{
    io::{self, IoSlice, IoSliceMut},
    net::{SocketAddr, UdpSocket},
    os::fd::AsRawFd,
    slice,
};

use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrIn, recvmmsg};
use rustix::net::{MMsgHdr, SendAncillaryBuffer, SendFlags, SocketAddrAny, sendmmsg};

const BATCH: usize = 32;

/// The length of a typical answer to an announce.
const ANNOUNCED: usize = 20 + 8 * 6;

/// Answers for ever.
pub(crate) fn serve(address: SocketAddr) -> io::Result<()> {
    let socket = UdpSocket::bind(address)?;
    let mut headers = MultiHeaders::<SockaddrIn>::preallocate(BATCH, None);
    let mut packets = [[0; 2048]; BATCH];
    let mut answers = [[0; ANNOUNCED]; BATCH];
    let mut sources = Vec::with_capacity(BATCH);
    loop {
        sources.clear();
        {
            let mut buffers = packets.each_mut().map(|packet| [IoSliceMut::new(packet)]);
            let received =
                recvmmsg(socket.as_raw_fd(), &mut headers, &mut buffers, MsgFlags::MSG_WAITFORONE, None)?;
            sources.extend(received.filter_map(|message| message.address).map(SocketAddr::from));
        }
        let mut outgoing: Vec<_> = (sources.iter().zip(&packets).zip(&mut answers))
            .map(|((&source, packet), answer)| {
                let len = answer_to(packet, answer);
                (IoSlice::new(&answer[..len]), SocketAddrAny::from(source), SendAncillaryBuffer::default())
            })
            .collect();
        let mut messages: Vec<_> = outgoing
            .iter_mut()
            .map(|(answer, to, control)| MMsgHdr::new_with_addr(to, slice::from_ref(answer), control))
            .collect();
        sendmmsg(&socket, &mut messages, SendFlags::empty())?;
    }
}

/// The action and transaction id of the request, then content that a tracker could send.
fn answer_to(packet: &[u8; 2048], answer: &mut [u8; ANNOUNCED]) -> usize {
    answer[..8].copy_from_slice(&packet[8..16]);
    match packet[11] {
        0 => 16,
        // An interval, as many leechers as seeders, and eight peers, which no check finds wrong.
        1 => {
            answer[8..20].copy_from_slice(&[0, 0, 7, 8, 0, 0, 1, 0, 0, 0, 1, 0]);
            for (n, peer) in answer[20..].chunks_mut(6).enumerate() {
                peer.copy_from_slice(&[10, 0, 0, n as u8, 1, 1]);
            }
            ANNOUNCED
        }
        _ => 20,
    }
}
