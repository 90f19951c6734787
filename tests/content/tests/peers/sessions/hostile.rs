//! Hostile peers: each costs its own connection, and nothing else.

use super::*;

/// A connection that the test writes byte by byte.
pub(crate) struct Stranger {
    stream: TcpStream,
    pub(crate) received: ReceiveBuffer,
}

impl Stranger {
    /// Calls a session, and says something.
    pub(crate) async fn call(to: &Session, n: u8, messages: &[Message<'_>]) -> Self {
        let stream = caller([127, 0, 1, n], to.addresses()[0]).await;
        let mut stranger = Self::shaken(stream, n, info().info_hash(), Reserved::FAST).await;
        stranger.say(messages).await;
        stranger
    }

    pub(crate) async fn shaken(
        mut stream: TcpStream,
        n: u8,
        info_hash: InfoHash,
        reserved: Reserved,
    ) -> Self {
        stream.write_all(&handshake(n, info_hash, reserved)).await.unwrap();
        // Longer blocks than a session takes, so that it reads their rejections.
        let limits = with(Limits::new(), |limits| limits.longest_block = 1 << 20);
        let mut stranger = Self { stream, received: ReceiveBuffer::new(limits) };
        while stranger.received.next_handshake().unwrap().is_none() {
            assert!(stranger.fill().await, "no handshake");
        }
        stranger
    }

    /// Whether there was something more to read.
    pub(crate) async fn fill(&mut self) -> bool {
        let read = self.stream.read(self.received.space()).await.unwrap_or(0);
        self.received.filled(read);
        read > 0
    }

    pub(crate) async fn say(&mut self, messages: &[Message<'_>]) {
        let mut bytes = Vec::new();
        messages.iter().for_each(|message| message.encode(&mut bytes));
        self.say_bytes(&bytes).await;
    }

    pub(crate) async fn say_bytes(&mut self, bytes: &[u8]) {
        // The session may have closed the connection.
        let _ = self.stream.write_all(bytes).await;
    }

    pub(crate) async fn say_encoded(&mut self, message: &impl Encode) {
        let mut bytes = Vec::new();
        message.encode(&mut bytes);
        self.say_bytes(&bytes).await;
    }

    pub(crate) async fn say_hello(&mut self, hello: ExtendedHandshake<'_>) {
        self.say_encoded(&ExtendedMessage::Handshake(hello).to_peer(&ExtensionIds::NONE).unwrap()).await;
    }

    pub(crate) async fn bring(&mut self, content: &[u8], Block { piece, begin, length }: Block) {
        let from = piece.0 as usize * info().piece_length() as usize + begin as usize;
        let data = &content[from..from + length as usize];
        self.say(&[Message::Piece(Piece { piece, begin, data })]).await;
    }

    /// Reads until a message is `looked_for`.
    pub(crate) async fn until(&mut self, looked_for: impl Fn(&Message<'_>) -> bool) {
        self.wait_for(|message| looked_for(message).then_some(())).await;
    }

    /// Reads until `says` has a value for a message.
    pub(crate) async fn wait_for<T>(&mut self, says: impl Fn(&Message<'_>) -> Option<T>) -> T {
        let found = async {
            loop {
                while let Some(message) = self.received.next_message().unwrap() {
                    if let Some(said) = says(&message) {
                        return said;
                    }
                }
                assert!(self.fill().await, "the connection has ended");
            }
        };
        timeout(A_MINUTE, found).await.expect("in time")
    }

    pub(crate) async fn ends(mut self) {
        let ended = async { while self.stream.read(&mut [0; 4096]).await.is_ok_and(|read| read > 0) {} };
        timeout(A_MINUTE, ended).await.expect("it is cut off in time");
    }
}

pub(crate) fn handshake(n: u8, info_hash: InfoHash, reserved: Reserved) -> Vec<u8> {
    let mut bytes = Vec::new();
    Handshake { reserved, info_hash, peer_id: PeerId::new([n; 20]) }.encode(&mut bytes);
    bytes
}

pub(crate) fn block(n: u32) -> Block {
    Block { piece: PieceIndex(n / 4), begin: n % 4 * (16 << 10), length: 16 << 10 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_of_another_protocol_is_cut_off_and_others_are_served() {
    let (seeder, _seeds) = session(40, &store(0..32)).await;
    let at = seeder.addresses()[0];
    let mut garbage = TcpStream::connect(at).await.unwrap();
    garbage.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").await.unwrap();
    let mut another = TcpStream::connect(at).await.unwrap();
    another.write_all(&handshake(7, InfoHash::new([7; 20]), Reserved::FAST)).await.unwrap();
    let mut too_long = Stranger::call(&seeder, 1, &[]).await;
    too_long.stream.write_all(&[0xff; 5]).await.unwrap();
    // Not all of it: then no message would be left.
    let some = Message::Bitfield(Bitfield::new(&[0x80, 0, 0, 0]));
    let late = Stranger::call(&seeder, 2, &[Message::HaveNone, some]).await;
    let beyond = Stranger::call(&seeder, 3, &[Message::Have(PieceIndex(32))]).await;
    for stranger in [too_long, late, beyond] {
        stranger.ends().await;
    }
    for mut stream in [garbage, another] {
        let end = timeout(A_MINUTE, stream.read(&mut [0; 100])).await.expect("in time");
        assert!(end.map_or(true, |read| read == 0), "something was answered");
    }
    assert_serves(&seeder, 41).await;
    seeder.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn choked_and_impossible_requests_are_refused_and_answers_to_a_flood_are_bounded() {
    let (seeder, seeds) = session(42, &store(0..16)).await;
    let mut stranger = Stranger::call(&seeder, 4, &[Message::HaveNone, Message::Request(block(0))]).await;
    stranger.until(|message| *message == Message::Reject(block(0))).await;
    stranger.say(&[Message::Interested]).await;
    stranger.until(|message| *message == Message::Unchoke).await;
    stranger.say(&[Message::Request(block(127))]).await;
    stranger.until(|message| *message == Message::Reject(block(127))).await;
    // Reads nothing: the buffers of the sockets and the queue of the session bound the answers.
    let flood: Vec<_> = (0..20_000).map(|n| Message::Request(block(n % 64))).collect();
    let mut went = 0;
    let stands_still = async {
        while went == 0 || went != seeds.status().up.0 {
            went = seeds.status().up.0;
            sleep(Duration::from_millis(500)).await;
        }
    };
    let flooding = async {
        stranger.say(&flood).await;
        std::future::pending::<()>().await;
    };
    tokio::select! {
        still = timeout(A_MINUTE, stands_still) => still.expect("answers end"),
        () = flooding => {}
    }
    assert!(went < 16 << 20, "{went} bytes were read for a peer that reads nothing");
    let (fetcher, fetches) = fetching(43, &store([]), &seeder).await;
    until("others are served", || fetches.status().progress.complete >= 16).await;
    stop([fetcher, seeder]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_for_blocks_that_do_not_exist_are_rejected_and_end_the_connection_only_in_masses() {
    let (seeder, _seeds) = session(47, &store(0..32)).await;
    let mut stranger = Stranger::call(&seeder, 5, &[Message::HaveNone, Message::Interested]).await;
    stranger.until(|message| *message == Message::Unchoke).await;
    let no_such = [
        Block { piece: PieceIndex(32), ..block(0) },
        Block { begin: (64 << 10) - 1, ..block(0) },
        Block { length: 256 << 10, ..block(0) },
    ];
    for asked in no_such {
        stranger.say(&[Message::Request(asked)]).await;
        stranger.until(|message| *message == Message::Reject(asked)).await;
        stranger.say(&[Message::Cancel(asked), Message::Request(block(1))]).await;
        stranger.until(|message| matches!(message, Message::Piece(piece) if piece.block() == block(1))).await;
    }
    let many = [Message::Request(no_such[0]); 200];
    stranger.say(&many).await;
    stranger.say(&[Message::Request(block(2))]).await;
    stranger.until(|message| matches!(message, Message::Piece(piece) if piece.block() == block(2))).await;
    stranger.say(&many).await;
    stranger.ends().await;
    seeder.stop().await.unwrap();
}

/// A seeder at 127.0.2.`host` with a wrong second block in each of the `wrong` pieces; its address.
async fn seeds(host: u8, n: u8, wrong: Range<usize>) -> SocketAddr {
    let listener = TcpListener::bind(SocketAddr::from(([127, 0, 2, host], 0))).await.unwrap();
    let at = listener.local_addr().unwrap();
    let mut content = crate::sessions::content();
    wrong.for_each(|piece| content[(piece << 16) + (16 << 10) + 5] ^= 1);
    tokio::spawn(seed(listener, n, content));
    at
}

/// Has everything and answers each request.
async fn seed(listener: TcpListener, n: u8, content: Vec<u8>) {
    loop {
        let Ok((stream, _)) = listener.accept().await else { return };
        let mut stranger = Stranger::shaken(stream, n, info().info_hash(), Reserved::FAST).await;
        stranger.say(&[Message::HaveAll, Message::Unchoke]).await;
        loop {
            let mut asked = Vec::new();
            while let Ok(Some(message)) = stranger.received.next_message() {
                if let Message::Request(block) = message {
                    asked.push(block);
                }
            }
            for block in asked {
                stranger.bring(&content, block).await;
                // So that each piece has blocks of several peers.
                sleep(Duration::from_millis(2)).await;
            }
            if !stranger.fill().await {
                break;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_peer_that_sends_wrong_bytes_is_found_among_others_and_banned() {
    let at = [seeds(1, 1, 0..0).await, seeds(2, 2, 0..32).await, seeds(3, 3, 0..0).await];
    let empty = store([]);
    let (fetcher, fetches) = session(44, &empty).await;
    fetches.found(at);
    whole(&fetches).await;
    let status = fetches.status();
    assert!(status.banned.len() == 1 && status.banned[0].0 == at[1], "{:?}", status.banned);
    assert!(status.wasted > 0);
    fetcher.stop().await.unwrap();
    assert_has_all(&empty);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_only_source_is_asked_for_other_pieces_until_five_are_wrong_and_a_peer_beside_it_for_all() {
    let empty = store([]);
    let why =
        "sent wrong bytes of piece 5: it is banned, and asked for other pieces only without another source";
    let (fetcher, fetches) = session(48, &empty).await;
    let banned = || fetches.status().banned;
    fetches.found([seeds(11, 1, 5..6).await]);
    until("all but one come", || fetches.status().progress.complete == 31).await;
    assert_eq!(banned()[0].1, why);
    // Behind the same address is one that has it.
    fetches.found([seeds(11, 2, 0..0).await]);
    whole(&fetches).await;
    assert_eq!(banned()[0].1, why, "and not once more");
    fetcher.stop().await.unwrap();
    assert_has_all(&empty);
    // A seeder of wrong pieces only.
    let (fetcher, fetches) = session(49, &store([])).await;
    fetches.found([seeds(12, 3, 0..32).await]);
    let is_over =
        |status: &Status| status.banned.iter().any(|(_, why)| why.ends_with("its address is banned"));
    until("it is banned", || is_over(&fetches.status()) && fetches.status().peers.is_empty()).await;
    // The wrong pieces of five, and those that were on their way.
    assert!(fetches.status().wasted <= 20 << 16, "{}", fetches.status().wasted);
    let mut refused = caller([127, 0, 2, 12], fetcher.addresses()[0]).await;
    refused.write_all(&hello(4)).await.unwrap();
    assert_closes(refused).await;
    fetcher.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_of_a_byte_at_a_time_is_cut_off_and_others_are_served_meanwhile() {
    let (seeder, _seeds) = session(45, &store(0..32)).await;
    let mut slow = Vec::new();
    for n in 0..40 {
        let begin = std::time::Instant::now();
        let mut stream = TcpStream::connect(seeder.addresses()[0]).await.unwrap();
        slow.push(tokio::spawn(async move {
            let mut sent = 0;
            for byte in b"\x13BitTorrent protocol".iter().chain(&[n; 48]) {
                let wait = sleep(Duration::from_secs(1));
                if stream.write_all(&[*byte]).await.is_err() {
                    break;
                }
                sent += 1;
                // A session says nothing before it knows the torrent.
                tokio::select! {
                    () = wait => {}
                    _ = stream.readable() => break,
                }
            }
            (begin.elapsed(), sent)
        }));
    }
    assert_serves(&seeder, 46).await;
    for slow in slow {
        let (lasted, sent) = slow.await.unwrap();
        assert!(lasted.as_secs() >= 4 && sent < Handshake::LEN, "{sent} bytes in {lasted:?}");
    }
    seeder.stop().await.unwrap();
}
