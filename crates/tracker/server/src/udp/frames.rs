//! Queues of an interface that bypass the sockets of the system (AF_XDP).

use std::{
    io,
    net::{IpAddr, SocketAddr},
    ops::Range,
    os::fd::AsFd,
    sync::Arc,
    time::Instant,
};

use arrayvec::ArrayVec;
use swarmkeep::bittorrent::in_words;
use swarmkeep_tracker_protocol::Software;
use swarmkeep_xdp::{Frame, Path, Queue, listens};

use super::{
    Batch,
    batch::{Exchange, Exchanges, RequestState},
    front::{Front, Listener},
    socket::LocalAddress,
};
use crate::{
    metrics::{Counters, Reason},
    seldom::log_stranger,
};

/// A queue of an interface. Answers are written into the frames that are sent.
pub(crate) struct FrameFront {
    queue: Queue,
    /// The addresses that the tracker listens at.
    listening: Arc<[(SocketAddr, Listener)]>,
    /// The interface: addresses of the link are valid there only.
    interface: u32,
    received: ArrayVec<ReceivedFrame, { Batch::MOST }>,
    since: Instant,
    /// Requests for which no frame was free.
    turned_away: u64,
}

struct ReceivedFrame {
    path: Path,
    listener: Listener,
    request: Frame,
    /// Where it is in its frame.
    payload: Range<usize>,
    answer: Frame,
    state: RequestState,
}

impl FrameFront {
    pub(crate) fn new(queue: Queue, listening: Arc<[(SocketAddr, Listener)]>, interface: u32) -> Self {
        let (received, since) = (ArrayVec::new(), Instant::now());
        Self { queue, listening, interface, received, since, turned_away: 0 }
    }
}

/// The listener that datagrams to an address come to.
fn listener(listening: &[(SocketAddr, Listener)], to: SocketAddr) -> Option<Listener> {
    let exact = listening.iter().find(|(at, _)| *at == to);
    Some(exact.or_else(|| listening.iter().find(|(at, _)| listens(*at, to)))?.1)
}

impl Front for FrameFront {
    fn descriptor(&self) -> Arc<dyn AsFd> {
        self.queue.socket()
    }

    fn receive(&mut self, _: &mut Batch) -> io::Result<()> {
        let Self { queue, listening, interface, received, since, turned_away } = self;
        while !received.is_full()
            && let Some(request) = queue.receive()
        {
            // Another program passes more than datagrams, or the address was removed just now.
            let read = Path::read(queue.bytes(&request))
                .and_then(|(path, payload)| Some((path, payload, listener(listening, path.to)?)));
            let Some((mut path, payload, listener)) = read else {
                queue.give_back(request);
                continue;
            };
            if let SocketAddr::V6(from) = &mut path.from
                && from.ip().is_unicast_link_local()
            {
                from.set_scope_id(*interface);
            }
            let Some(answer) = queue.take() else {
                *turned_away += 1;
                queue.give_back(request);
                continue;
            };
            received.push(ReceivedFrame {
                path,
                listener,
                request,
                payload,
                answer,
                state: RequestState::Received,
            });
        }
        *since = Instant::now();
        if received.is_empty() {
            queue.flush()?;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok(())
    }

    fn exchanges<'a>(&'a mut self, _: &'a mut Batch) -> Exchanges<'a> {
        let Self { queue, received, interface, since, .. } = self;
        let exchanges = received.iter_mut().map(|received| {
            let ReceivedFrame { path, listener, request, payload, answer, state } = received;
            let answer = queue.bytes_mut(answer)[path.headers()..].first_chunk_mut();
            let asked = match path.to.ip() {
                IpAddr::V4(ip) => LocalAddress::V4(ip),
                IpAddr::V6(ip) => {
                    LocalAddress::V6(ip, if ip.is_unicast_link_local() { *interface } else { 0 })
                }
            };
            Exchange {
                source: path.from,
                asked: Some(asked),
                listener: *listener,
                since: *since,
                packet: &queue.bytes(request)[payload.clone()],
                answer: answer.expect("a frame has room for any answer"),
                state,
            }
        });
        exchanges.collect()
    }

    fn send(&mut self, _: &Batch, counters: &Counters) {
        let Self { queue, received, since, turned_away, .. } = self;
        let (mut count, mut bytes) = (0, 0);
        for ReceivedFrame { path, request, mut answer, state, .. } in received.drain(..) {
            queue.give_back(request);
            let RequestState::Answered(len) = state else {
                queue.give_back(answer);
                continue;
            };
            count += 1;
            bytes += len as u64;
            let whole = path.back().write(queue.bytes_mut(&mut answer), len);
            queue.send(answer, whole);
        }
        if let Err(error) = queue.flush() {
            log_stranger!(error = %in_words(&error), "cannot send");
        }
        if count > 0 {
            counters.answered(count, bytes, since.elapsed());
        }
        (0..std::mem::take(turned_away)).for_each(|_| counters.refused(Reason::Overloaded, Software::Other));
    }
}
