//! `swarmkeep check`: whether a tracker answers, for the service manager that restarts it if it does not.

use std::{
    error::Error,
    fmt::Display,
    io::{self, ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    path::{Path, PathBuf},
    process,
    str::FromStr,
    sync::Arc,
    time::{Duration, Instant},
};

use swarmkeep_load::{Target, printable};
use swarmkeep_tracker_protocol::{
    bittorrent::{Family, in_words},
    http::AnnounceResponse,
    udp::{Client, ConnectRequest, Response, TransactionId},
};

use tokio_rustls::rustls::{
    self, ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, SignatureScheme, StreamOwned,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};

/// Check whether a tracker answers: exit code 0 if it does within 2 seconds, otherwise 1.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The tracker, such as 127.0.0.1:6969 over UDP or http://127.0.0.1:7070/announce; or its admin address,
    /// such as http://127.0.0.1:6970/health/ready. Over HTTP and HTTPS the status must be 200, and an announce
    /// must get an answer of a tracker: a success, if the URL has a query.
    target: CheckTarget,

    /// PEM file with the certificate authority of https:// targets. Default: the authorities that the system
    /// trusts.
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    ca: Option<PathBuf>,

    /// Accept any certificate of https:// targets, such as on the machine itself, since none has its name.
    #[arg(long)]
    insecure: bool,
}

#[derive(Debug, Clone)]
struct CheckTarget {
    text: String,
    target: Target,
    query: String,
    tls: bool,
}

impl FromStr for CheckTarget {
    type Err = swarmkeep_load::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (url, query) = text.split_at(text.find('?').unwrap_or(text.len()));
        if !query.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(Self::Err::Config(format!(
                "{text}: expected a query without blanks, percent-encoded"
            )));
        }
        let query = query.to_owned();
        let Some(rest) = url.strip_prefix("https://") else {
            let target: Target = url.parse()?;
            return Ok(Self { text: format!("{target}{query}"), target, query, tls: false });
        };
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let port = if has_port { "" } else { ":443" };
        let target = format!("http://{host}{port}{path}").parse()?;
        Ok(Self { text: text.to_owned(), target, query, tls: true })
    }
}

const PATIENCE: Duration = Duration::from_secs(2);

/// The time between requests over UDP, which may lose a request or an answer.
const AGAIN: Duration = Duration::from_millis(500);

const LONGEST_ANSWER: u64 = 64 * 1024;

pub(crate) fn run(
    Args { target: CheckTarget { text, target, query, tls }, ca, insecure }: Args,
) -> Result<(), Box<dyn Error>> {
    let until = Instant::now() + PATIENCE;
    match &target {
        Target::Udp(address) => over_udp(*address, until),
        Target::Http { address, host, path } if tls => {
            let name = host.rsplit_once(':').map_or(&**host, |(name, _)| name).trim_matches(['[', ']']);
            let connected = || {
                let session = ClientConnection::new(
                    authorities(ca.as_deref(), insecure)?,
                    name.to_owned().try_into()?,
                )?;
                Ok::<_, Box<dyn Error>>(StreamOwned::new(session, TimedStream::connect(*address, until)?))
            };
            connected().and_then(|stream| ask(stream, host, path, &query))
        }
        Target::Http { address, host, path } => {
            let connected = TimedStream::connect(*address, until);
            connected.map_err(Into::into).and_then(|stream| ask(stream, host, path, &query))
        }
    }
    .map_err(|error| {
        let kind = error.downcast_ref().map(io::Error::kind);
        let is_late = matches!(kind, Some(ErrorKind::WouldBlock | ErrorKind::TimedOut));
        let said = if is_late { format!("no answer in {} s", PATIENCE.as_secs()) } else { in_words(&error) };
        format!("{text}: {said}").into()
    })
}

fn authorities(ca: Option<&Path>, insecure: bool) -> Result<Arc<ClientConfig>, Box<dyn Error>> {
    let provider = Arc::new(ring::default_provider());
    let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("that provider has ciphers for both versions");
    if insecure {
        let any = Arc::new(AnyCertificate(provider));
        return Ok(Arc::new(config.dangerous().with_custom_certificate_verifier(any).with_no_client_auth()));
    }
    let mut roots = RootCertStore::empty();
    match ca {
        Some(path) => {
            let wrong = |error: &dyn Display| format!("{}: {}", path.display(), in_words(error));
            for certificate in CertificateDer::pem_file_iter(path).map_err(|error| wrong(&error))? {
                let certificate = certificate.map_err(|error| wrong(&error))?;
                roots.add(certificate).map_err(|error| wrong(&error))?;
            }
            if roots.is_empty() {
                return Err(wrong(&"it has no certificate in PEM").into());
            }
        }
        None => _ = roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs),
    }
    Ok(Arc::new(config.with_root_certificates(roots).with_no_client_auth()))
}

/// Accepts any certificate if the server has its key.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signed, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn over_udp(address: SocketAddr, until: Instant) -> Result<(), Box<dyn Error>> {
    let here: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((here, 0))?;
    // Then the socket receives no datagrams of other senders.
    socket.connect(address)?;
    socket.set_read_timeout(Some(AGAIN))?;
    let request = ConnectRequest { transaction_id: TransactionId(process::id()) }.to_bytes();
    let mut client = Client::new(Family::V4);
    while Instant::now() < until {
        socket.send(&request)?;
        let mut answer = [0; 2048];
        match socket.recv(&mut answer) {
            Ok(len) => match client.answer(&request, &answer[..len], Instant::now()) {
                Ok(Some(Response::Error(error))) => {
                    return Err(printable(error.message).into());
                }
                Ok(Some(_)) => return Ok(()),
                Ok(None) | Err(_) => {}
            },
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(io::Error::from(ErrorKind::TimedOut).into())
}

/// A connection with a time at which it ends, however slowly the server writes.
struct TimedStream {
    stream: TcpStream,
    until: Instant,
}

impl TimedStream {
    fn connect(address: SocketAddr, until: Instant) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, until.saturating_duration_since(Instant::now()))?;
        Ok(Self { stream, until })
    }

    /// The time that is left, above 0.
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero());
        left.map(Some).ok_or_else(|| ErrorKind::TimedOut.into())
    }
}

impl Read for TimedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(self.left()?)?;
        self.stream.read(buffer)
    }
}

impl Write for TimedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(self.left()?)?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Requests a path, which must have the status 200. Without a query, an announce is refused by a good tracker
/// too.
fn ask(mut stream: impl Read + Write, host: &str, path: &str, query: &str) -> Result<(), Box<dyn Error>> {
    // Version 1.0 has no chunks.
    let request = format!("GET {path}{query} HTTP/1.0\r\nHost: {host}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes())?;
    let mut answer = Vec::new();
    match stream.take(LONGEST_ANSWER).read_to_end(&mut answer) {
        // Many servers end a TLS connection without `close_notify`.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof && !answer.is_empty() => {}
        read => _ = read?,
    }
    let end = answer.windows(4).position(|end| end == b"\r\n\r\n").unwrap_or(answer.len());
    let (head, body) = answer.split_at(end);
    let status = head.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let body = body.get(4..).unwrap_or_default();
    if status.is_empty() {
        return Err("it has closed the connection without an answer".into());
    }
    if ![&b"HTTP/1.0 200 "[..], b"HTTP/1.1 200 "].iter().any(|good| status.starts_with(good)) {
        return Err(format!("{}: {}", printable(status), printable(body.trim_ascii())).into());
    }
    match AnnounceResponse::parse(body) {
        _ if !path.ends_with("/announce") => Ok(()),
        Ok(Err(failure)) if !query.is_empty() => Err(printable(failure.reason).into()),
        Ok(_) => Ok(()),
        Err(_) => Err("it is no tracker: its answer to an announce is none".into()),
    }
}
