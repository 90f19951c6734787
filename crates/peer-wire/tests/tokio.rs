//! With tokio: the codec of `tokio_util`, and the queue as a `Buf`.
#![cfg(feature = "tokio-util")]

use std::io::IoSlice;

use bytes::{Buf, BytesMut};
use futures_util::{SinkExt, StreamExt};
use swarmkeep_peer_wire::{
    Encode, Error, Limits, Message, Piece, PieceIndex, SendQueue,
    codec::{Codec, CodecError},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::codec::{Decoder, Encoder, Framed};

fn limits() -> Limits {
    Limits::for_torrent(10 << 16, 1 << 16).unwrap()
}

#[tokio::test]
async fn messages_go_through_framed_streams_and_keep_their_bytes() {
    let (ours, theirs) = tokio::io::duplex(100);
    let mut ours = Framed::new(ours, Codec::new(limits()));
    let mut theirs = Framed::new(theirs, Codec::new(limits()));
    let data = [7; 1000];
    let piece = Message::Piece(Piece { piece: PieceIndex(3), begin: 5, data: &data });
    let sent = async {
        for message in [Message::Unchoke, piece, Message::KeepAlive] {
            ours.send(message).await.unwrap();
        }
        drop(ours);
    };
    let received = async {
        let mut frames = Vec::new();
        while let Some(frame) = theirs.next().await {
            frames.push(frame.unwrap());
        }
        frames
    };
    let ((), frames) = tokio::join!(sent, received);
    let messages: Vec<_> = frames.iter().map(|frame| frame.message()).collect();
    assert_eq!(messages, [Message::Unchoke, piece, Message::KeepAlive]);
    assert_eq!(frames[1].bytes().slice_ref(messages[1].payload()), data[..]);
}

#[tokio::test]
async fn what_no_peer_may_send_ends_a_framed_stream() {
    let (mut ours, theirs) = tokio::io::duplex(100);
    let mut theirs = Framed::new(theirs, Codec::new(limits()));
    ours.write_all(&[0, 0, 0, 5, 4, 0, 0, 0, 10]).await.unwrap();
    let wrong = theirs.next().await.unwrap().unwrap_err();
    assert!(matches!(wrong, CodecError::Peer(Error::Piece { .. })), "{wrong}");
    assert!(theirs.next().await.is_none());
}

#[test]
fn the_codec_reserves_nothing_on_the_word_of_a_prefix() {
    let mut codec = Codec::new(Limits::for_torrent(100_000_000 << 14, 1 << 14).unwrap());
    let mut bytes = BytesMut::from(&[0, 0xbe, 0xbc, 0x21, 5, 0][..]);
    let before = bytes.capacity();
    assert!(codec.decode(&mut bytes).unwrap().is_none());
    assert_eq!(bytes.capacity(), before);
}

#[test]
fn the_codec_writes_what_is_written_without_it() {
    let (mut codec, mut out, mut expected) = (Codec::new(limits()), BytesMut::new(), Vec::new());
    for message in [Message::Have(PieceIndex(1)), Message::Port(80)] {
        codec.encode(message, &mut out).unwrap();
        message.encode(&mut expected);
    }
    assert_eq!(out, expected);
}

#[tokio::test]
async fn a_queue_is_written_by_write_buf() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let mut stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let (mut accepted, _) = listener.accept().await.unwrap();
    let mut queue = SendQueue::new(0, 1 << 30);
    let mut expected = Vec::new();
    for nth in 0..100 {
        let data = vec![nth as u8; 1 << 14];
        let message = Message::Piece(Piece { piece: PieceIndex(nth), begin: 0, data: &data });
        message.encode(&mut expected);
        queue.push_piece(PieceIndex(nth), 0, data).unwrap();
    }
    let sent = async {
        let mut slices = [IoSlice::new(&[]); 64];
        assert_eq!(queue.chunks_vectored(&mut slices), 64);
        while queue.has_remaining() {
            stream.write_buf(&mut queue).await.unwrap();
        }
        drop(stream);
    };
    let received = async {
        let mut received = Vec::new();
        accepted.read_to_end(&mut received).await.unwrap();
        received
    };
    let ((), received) = tokio::join!(sent, received);
    assert!(received == expected);
}
