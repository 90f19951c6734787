//! The handshakes that a connection begins with.

use std::{io, sync::Arc, time::Duration};

use swarmkeep_bittorrent::InfoHash;
use swarmkeep_peer_wire::{Handshake, Limits, ReceiveBuffer, Reserved, SendQueue};
use tokio::net::TcpStream;

use super::{Ended, Socket, talk};
use crate::{blocks::Slice, torrent::Torrent};

/// How long a handshake may take.
pub(crate) const HANDSHAKE: Duration = Duration::from_secs(15);

/// Shakes hands as the one who calls.
pub(crate) async fn call(stream: TcpStream, torrent: Arc<Torrent>) -> Result<(), Ended> {
    let mut received = ReceiveBuffer::new(Limits::new());
    let shaken = async {
        send_handshake(&stream, &torrent, torrent.info_hash).await?;
        receive_handshake(&stream, &mut received).await
    };
    let theirs = tokio::time::timeout(HANDSHAKE, shaken).await.map_err(|_| Ended::Silent(HANDSHAKE))??;
    if theirs.info_hash != torrent.info_hash {
        return Err(Ended::Misbehaves("answers for another torrent"));
    }
    talk(stream, received, torrent, theirs, true).await
}

/// Shakes hands as the one who is called.
pub(crate) async fn answer(
    stream: TcpStream,
    find: impl Fn(&InfoHash) -> Option<Arc<Torrent>>,
) -> Result<(), Ended> {
    let mut received = ReceiveBuffer::new(Limits::new());
    let shaken = async {
        let theirs = receive_handshake(&stream, &mut received).await?;
        let torrent = find(&theirs.info_hash).ok_or(Ended::Misbehaves("wants a torrent that is not here"))?;
        send_handshake(&stream, &torrent, theirs.info_hash).await?;
        Ok::<_, Ended>((theirs, torrent))
    };
    let (theirs, torrent) =
        tokio::time::timeout(HANDSHAKE, shaken).await.map_err(|_| Ended::Silent(HANDSHAKE))??;
    talk(stream, received, torrent, theirs, false).await
}

/// `info_hash` is one of the torrent's.
async fn send_handshake(stream: &TcpStream, torrent: &Torrent, info_hash: InfoHash) -> Result<(), Ended> {
    let handshake = Handshake {
        reserved: Reserved::EXTENSIONS | Reserved::FAST,
        info_hash,
        peer_id: torrent.session.config.peer_id,
    };
    let mut queue = SendQueue::<Slice>::new(0, Handshake::LEN);
    queue.push(&handshake).map_err(|_| Ended::Stopped)?;
    while !queue.is_empty() {
        stream.writable().await?;
        match queue.write_to(&mut Socket(stream)) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error.into()),
            _ => {}
        }
    }
    Ok(())
}

async fn receive_handshake(stream: &TcpStream, received: &mut ReceiveBuffer) -> Result<Handshake, Ended> {
    loop {
        if let Some(handshake) = received.next_handshake()? {
            return Ok(handshake);
        }
        stream.readable().await?;
        match stream.try_read(received.space()) {
            Ok(0) => return Err(Ended::Closed),
            Ok(count) => received.filled(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error.into()),
        }
    }
}
