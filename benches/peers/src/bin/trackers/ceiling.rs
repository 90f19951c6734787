//! The most that the system allows any tracker: answers of constant content, received and sent in batches.

use std::{
    io::{self, IoSlice, IoSliceMut, Read as _, Write as _},
    net::{SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsRawFd,
    slice,
};

use nix::sys::{
    epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
    socket::{MsgFlags, MultiHeaders, SockaddrIn, recvmmsg, setsockopt, sockopt},
};
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

/// The same over HTTP: connections are accepted, requests read, and constants written.
pub(crate) fn serve_http(address: SocketAddr) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    // Accepted sockets inherit it.
    setsockopt(&listener, sockopt::TcpNoDelay, &true)?;
    let epoll = Epoll::new(EpollCreateFlags::empty())?;
    epoll.add(&listener, EpollEvent::new(EpollFlags::EPOLLIN, u64::MAX))?;
    let (mut events, mut requests) = ([EpollEvent::empty(); 64], [0; 16_384]);
    let mut streams: Vec<Option<TcpStream>> = Vec::new();
    // Eight peers, as over UDP.
    let body = "d8:completei256e10:incompletei256e8:intervali1800e5:peers48:";
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len() + 49);
    let peers = (0..8).flat_map(|n| [10, 0, 0, n, 1, 1]);
    let answer: Vec<u8> = head.bytes().chain(peers).chain(*b"e").collect();
    let answers = answer.repeat(64);
    loop {
        let woken = epoll.wait(&mut events, EpollTimeout::NONE)?;
        for number in events[..woken].iter().map(EpollEvent::data) {
            let Some(stream) = streams.get_mut(number as usize).and_then(Option::as_mut) else {
                while let Ok((stream, _)) = listener.accept() {
                    let number = stream.as_raw_fd() as usize;
                    epoll.add(&stream, EpollEvent::new(EpollFlags::EPOLLIN, number as u64))?;
                    streams.resize_with(streams.len().max(number + 1), || None);
                    streams[number] = Some(stream);
                }
                continue;
            };
            let read = stream.read(&mut requests).map_or(&[][..], |len| &requests[..len]);
            // A whole number of requests, which are longer than 256 bytes. To search them all takes time.
            let count = match read.len() {
                ..512 => usize::from(read.ends_with(b"\r\n\r\n")),
                _ => read.windows(4).filter(|bytes| *bytes == b"\r\n\r\n").count(),
            };
            let is_written = stream.write_all(&answers[..answer.len() * count]).is_ok();
            if read.is_empty() || !is_written || read.ends_with(b"Connection: close\r\n\r\n") {
                streams[number as usize] = None;
            }
        }
    }
}
