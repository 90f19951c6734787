//! The handshakes that a connection begins with.

use std::{io, time::Duration};

use swarmkeep_bittorrent::InfoHash;
use swarmkeep_peer_wire::{Handshake, Limits, ReceiveBuffer, Reserved, SendQueue};
use tokio::{net::TcpStream, time::timeout};

use super::{EndReason, Socket, talk};
use crate::{
    blocks::Slice,
    torrent::{Torrent, seats::Seat},
};

/// How long a peer may take for its part of a handshake. An incoming connection has half of it to name the
/// torrent.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// Connects by an info hash of the torrent. A peer may answer with the other one of a hybrid (BEP 52).
pub(crate) async fn call(stream: TcpStream, info_hash: InfoHash, seat: Seat) -> Result<(), EndReason> {
    send_handshake(&stream, &seat.torrent, info_hash).await?;
    let mut received = ReceiveBuffer::new(Limits::new());
    let theirs = receive(&stream, &mut received, HANDSHAKE, ReceiveBuffer::next_handshake);
    let theirs = theirs.await.map_err(|why| EndReason::Unanswered(why.into()))?;
    if !seat.torrent.info_hashes().any(|ours| ours == theirs.info_hash) {
        return Err(EndReason::Misbehaves("answers for another torrent"));
    }
    Box::pin(talk(stream, received, &seat, theirs)).await
}

/// Receives the first part of an incoming handshake: the extensions, and the info hash of the torrent.
pub(crate) async fn peek(
    stream: &TcpStream,
    received: &mut ReceiveBuffer,
) -> Result<(Reserved, InfoHash), EndReason> {
    receive(stream, received, HANDSHAKE / 2, |received| Handshake::peek(received.unread())).await
}

/// Answers a [peeked](peek) handshake. The peer may wait for the answer before it sends its peer id.
pub(crate) async fn answer(
    stream: TcpStream,
    mut received: ReceiveBuffer,
    (can, named): (Reserved, InfoHash),
    seat: Seat,
) -> Result<(), EndReason> {
    let best = seat.torrent.ready().and_then(|ready| ready.info.info_hashes().last());
    let info_hash = best.filter(|_| can.contains(Reserved::V2)).unwrap_or(named);
    send_handshake(&stream, &seat.torrent, info_hash).await?;
    let theirs = receive(&stream, &mut received, HANDSHAKE, ReceiveBuffer::next_handshake).await?;
    Box::pin(talk(stream, received, &seat, theirs)).await
}

/// `info_hash` is one of the torrent's.
async fn send_handshake(stream: &TcpStream, torrent: &Torrent, info_hash: InfoHash) -> Result<(), EndReason> {
    let is_hybrid = torrent.info_hashes().count() > 1;
    let handshake = Handshake {
        reserved: Reserved::EXTENSIONS
            | Reserved::FAST
            | if is_hybrid { Reserved::V2 } else { Reserved::empty() },
        info_hash,
        peer_id: torrent.session.config.peer_id,
    };
    let mut queue = SendQueue::<Slice>::new(0, Handshake::LEN);
    queue.push(&handshake).map_err(|_| EndReason::Stopped)?;
    while !queue.is_empty() {
        stream.writable().await?;
        match queue.write_to(&mut Socket(stream)) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

/// Receives until `next` finds a value in the buffer.
async fn receive<T>(
    stream: &TcpStream,
    received: &mut ReceiveBuffer,
    within: Duration,
    next: impl Fn(&mut ReceiveBuffer) -> Result<Option<T>, swarmkeep_peer_wire::Error>,
) -> Result<T, EndReason> {
    let receiving = async {
        loop {
            if let Some(found) = next(received)? {
                return Ok(found);
            }
            stream.readable().await?;
            match stream.try_read(received.space()) {
                Ok(0) => return Err(EndReason::Closed),
                Ok(count) => received.filled(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error.into()),
            }
        }
    };
    timeout(within, receiving).await.map_err(|_| EndReason::Silent(within))?
}
