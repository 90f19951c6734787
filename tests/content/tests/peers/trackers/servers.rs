//! Scripted trackers, which record their requests.

use std::{io, sync::Mutex};

use swarmkeep_tracker_protocol::{
    bittorrent::AnnounceEvent,
    http,
    udp::{
        AnnounceOption, AnnounceResponseHeader, ConnectResponse, ConnectionId, ErrorResponse, Request,
        TransactionId,
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

use super::*;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum UdpRequest {
    Connect {
        id: TransactionId,
    },
    Announce {
        id: TransactionId,
        connection: u64,
        event: AnnounceEvent,
        left: u64,
        want: Option<u32>,
        key: u32,
        path: Vec<u8>,
    },
    Other,
}

impl UdpRequest {
    fn read(packet: &[u8]) -> Self {
        match Request::parse(packet) {
            Ok(Request::Connect(request)) => Self::Connect { id: request.transaction_id },
            Ok(Request::Announce(request)) => Self::Announce {
                id: request.transaction_id,
                connection: request.connection_id.0,
                event: request.event,
                left: request.left,
                want: request.want,
                key: request.key,
                path: request.options().fold(Vec::new(), |path, option| match option {
                    AnnounceOption::UrlData(piece) => [&path, piece].concat(),
                    _ => path,
                }),
            },
            _ => Self::Other,
        }
    }

    pub(crate) const fn id(&self) -> TransactionId {
        match self {
            Self::Connect { id } | Self::Announce { id, .. } => *id,
            Self::Other => TransactionId(0),
        }
    }

    pub(crate) const fn is_connect(&self) -> bool {
        matches!(self, Self::Connect { .. })
    }

    /// The answer of a good tracker: its connection id is 99, its interval half an hour, and its only peer is
    /// at 192.0.2.1:6881.
    pub(crate) fn good_answer(&self) -> Vec<u8> {
        self.answer(99, 1800)
    }

    pub(crate) fn answer(&self, connection: u64, interval: u32) -> Vec<u8> {
        let transaction_id = self.id();
        match self {
            Self::Connect { .. } => {
                let mut packet = [0; ConnectResponse::LEN];
                let connection_id = ConnectionId(connection);
                ConnectResponse { transaction_id, connection_id }.write(&mut packet);
                packet.to_vec()
            }
            _ => {
                let mut head = [0; AnnounceResponseHeader::LEN];
                AnnounceResponseHeader { transaction_id, interval, leechers: 3, seeders: 2 }.write(&mut head);
                [&head[..], &[192, 0, 2, 1, 0x1a, 0xe1]].concat()
            }
        }
    }

    pub(crate) fn error(&self, message: &str) -> Vec<u8> {
        let mut packet = vec![0; ErrorResponse::len_with(message.len())];
        ErrorResponse { transaction_id: self.id(), message: message.as_bytes() }.write(&mut packet);
        packet
    }
}

pub(crate) struct Udp {
    pub(crate) at: SocketAddr,
    asked: Arc<Mutex<Vec<(UdpRequest, SocketAddr, Instant)>>>,
    _tasks: JoinSet<()>,
}

impl Udp {
    /// A tracker that sends the packets that `answer` returns for a request and its number.
    pub(crate) async fn new(answer: impl FnMut(&UdpRequest, usize) -> Vec<Vec<u8>> + Send + 'static) -> Self {
        Self::at("127.0.0.1:0", answer).await.expect("loopback")
    }

    pub(crate) async fn at(
        at: &str,
        mut answer: impl FnMut(&UdpRequest, usize) -> Vec<Vec<u8>> + Send + 'static,
    ) -> io::Result<Self> {
        let socket = UdpSocket::bind(at).await?;
        let at = socket.local_addr()?;
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut packet = [0; 2048];
            for nth in 0.. {
                let (len, from) = socket.recv_from(&mut packet).await.expect("loopback");
                let asked = UdpRequest::read(&packet[..len]);
                noted.lock().expect("no thread panics").push((asked.clone(), from, Instant::now()));
                for packet in answer(&asked, nth) {
                    socket.send_to(&packet, from).await.expect("loopback");
                }
            }
        });
        Ok(Self { at, asked, _tasks: tasks })
    }

    pub(crate) async fn good() -> Self {
        Self::new(|asked, _| vec![asked.good_answer()]).await
    }

    pub(crate) async fn silent() -> Self {
        Self::new(|_, _| vec![]).await
    }

    pub(crate) fn url(&self) -> String {
        format!("udp://{}/announce", self.at)
    }

    pub(crate) fn requests(&self) -> Vec<(UdpRequest, SocketAddr, Instant)> {
        self.asked.lock().expect("no thread panics").clone()
    }

    pub(crate) fn connects(&self) -> usize {
        self.requests().iter().filter(|(asked, ..)| asked.is_connect()).count()
    }

    pub(crate) fn events(&self) -> Vec<AnnounceEvent> {
        let event = |(asked, ..): (UdpRequest, _, _)| match asked {
            UdpRequest::Announce { event, .. } => Some(event),
            _ => None,
        };
        self.requests().into_iter().filter_map(event).collect()
    }
}

/// The reaction of an HTTP server to a request.
pub(crate) enum Reply {
    /// Sends this and keeps the connection.
    Keep(Vec<u8>),
    /// Sends this and closes the connection.
    Close(Vec<u8>),
    /// Sends one byte of it every 20 milliseconds.
    Slowly(Vec<u8>),
    /// Sends this again and again, as long as the client reads.
    Forever(Vec<u8>),
    Nothing,
}

pub(crate) struct Http {
    pub(crate) at: SocketAddr,
    /// Path and query of each request.
    asked: Arc<Mutex<Vec<String>>>,
    pub(crate) connections: Arc<AtomicUsize>,
    /// The bytes that it could send.
    pub(crate) sent: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

impl Http {
    /// A tracker that sends the result of `answer` for a request and its number.
    pub(crate) async fn new(answer: impl Fn(&str, usize) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("loopback");
        let at = listener.local_addr().expect("bound");
        let (asked, connections, sent): (Arc<Mutex<Vec<_>>>, Arc<AtomicUsize>, Arc<AtomicUsize>) =
            Default::default();
        let mut tasks = JoinSet::new();
        let (noted, counted, sending) = (Arc::clone(&asked), Arc::clone(&connections), Arc::clone(&sent));
        let answer = Arc::new(answer);
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = listener.accept().await.expect("loopback");
                counted.fetch_add(1, Relaxed);
                let (noted, answer, sending) =
                    (Arc::clone(&noted), Arc::clone(&answer), Arc::clone(&sending));
                connections.spawn(async move {
                    // The test decides whether a client leaves early.
                    drop(serve(stream, &noted, &*answer, &sending).await);
                });
            }
        });
        Self { at, asked, connections, sent, _tasks: tasks }
    }

    /// A tracker with one answer to all requests.
    pub(crate) async fn saying(body: &'static [u8]) -> Self {
        Self::new(move |_, _| Reply::Keep(ok(body))).await
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/announce", self.at)
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.asked.lock().expect("no thread panics").clone()
    }

    pub(crate) fn events(&self) -> Vec<(AnnounceEvent, Option<u64>)> {
        let event = |target: String| {
            let request = http::AnnounceRequest::parse(target.split_once('?')?.1.as_bytes()).ok()?;
            Some((request.event, request.left))
        };
        self.requests().into_iter().filter_map(event).collect()
    }
}

async fn serve(
    mut stream: TcpStream,
    noted: &Mutex<Vec<String>>,
    answer: &(impl Fn(&str, usize) -> Reply + Sync),
    sent: &AtomicUsize,
) -> io::Result<()> {
    let mut head = Vec::new();
    loop {
        while !head.ends_with(b"\r\n\r\n") {
            if stream.read_buf(&mut head).await? == 0 {
                return Ok(());
            }
        }
        let text = String::from_utf8(std::mem::take(&mut head)).expect("text");
        let target = text.split(' ').nth(1).expect("a target").to_owned();
        assert!(text.starts_with("GET ") && text.to_ascii_lowercase().contains("\r\nhost: "), "{text}");
        let nth = {
            let mut noted = noted.lock().expect("no thread panics");
            noted.push(target.clone());
            noted.len() - 1
        };
        match answer(&target, nth) {
            Reply::Keep(bytes) => stream.write_all(&bytes).await?,
            Reply::Close(bytes) => {
                stream.write_all(&bytes).await?;
                return stream.shutdown().await;
            }
            Reply::Slowly(bytes) => {
                for byte in bytes {
                    stream.write_all(&[byte]).await?;
                    sleep(Duration::from_millis(20)).await;
                }
            }
            Reply::Forever(bytes) => loop {
                stream.write_all(&bytes).await?;
                sent.fetch_add(bytes.len(), Relaxed);
            },
            Reply::Nothing => std::future::pending().await,
        }
    }
}

/// A good answer around a body.
pub(crate) fn ok(body: &[u8]) -> Vec<u8> {
    with("200 OK", "", body)
}

pub(crate) fn with(status: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// An answer with one peer, at 192.0.2.1:6881.
pub(crate) const GOOD: &[u8] =
    b"d8:completei2e10:incompletei3e8:intervali1800e5:peers6:\xc0\x00\x02\x01\x1a\xe1e";
