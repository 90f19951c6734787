//! `swarmkeep check`: whether a tracker answers, for what starts it again if it does not.

use std::{
    error::Error,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    process,
    time::{Duration, Instant},
};

use swarmkeep_load::Target;
use swarmkeep_tracker_protocol::{
    bittorrent::Family,
    udp::{ConnectRequest, Response, TransactionId},
};

/// Check whether a tracker answers: exit code 0 if it does within 2 seconds, otherwise 1.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The tracker, such as 127.0.0.1:6969 over UDP or http://127.0.0.1:7070/announce; or its admin address,
    /// such as http://127.0.0.1:6970/health/ready. Over HTTP the status must be 200.
    target: Target,
}

const PATIENCE: Duration = Duration::from_secs(2);

/// After how long to ask again over UDP, which may lose a question or an answer.
const AGAIN: Duration = Duration::from_millis(500);

/// The most of an answer that is read.
const LONGEST_ANSWER: u64 = 64 * 1024;

pub(crate) fn run(Args { target }: Args) -> Result<(), Box<dyn Error>> {
    match &target {
        Target::Udp(address) => over_udp(*address),
        Target::Http { address, host, path } => over_http(*address, host, path),
    }
    .map_err(|error| format!("{target}: {error}").into())
}

fn over_udp(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let here: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((here, 0))?;
    // Answers of others are not for this socket, then.
    socket.connect(address)?;
    socket.set_read_timeout(Some(AGAIN))?;
    let mine = TransactionId(process::id());
    let mut request = [0; ConnectRequest::LEN];
    ConnectRequest { transaction_id: mine }.write(&mut request);
    let began = Instant::now();
    while began.elapsed() < PATIENCE {
        socket.send(&request)?;
        let mut answer = [0; 64];
        match socket.recv(&mut answer) {
            Ok(len) => {
                let answer = Response::parse(&answer[..len], Family::V4);
                if matches!(answer, Ok(Response::Connect(answer)) if answer.transaction_id == mine) {
                    return Ok(());
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err("there is no answer".into())
}

fn over_http(address: SocketAddr, host: &str, path: &str) -> Result<(), Box<dyn Error>> {
    get(address, host, path).map(drop)
}

/// What a server answers over HTTP with status 200.
///
/// # Errors
/// What went wrong, or the answer with another status.
pub fn get(address: SocketAddr, host: &str, path: &str) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(LONGEST_ANSWER).read_to_end(&mut answer)?;
    let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    let body = answer.split_off(end.map_or(answer.len(), |end| end + 4));
    let head = String::from_utf8_lossy(&answer);
    if head.starts_with("HTTP/1.1 200 ") {
        return Ok(body);
    }
    let body = String::from_utf8_lossy(&body);
    Err(format!("{}: {}", head.lines().next().unwrap_or("there is no answer"), body.trim()).into())
}
