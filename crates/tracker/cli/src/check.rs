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

use swarmkeep_load::Target;
use swarmkeep_tracker_protocol::{
    bittorrent::{Family, in_words},
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
    /// such as http://127.0.0.1:6970/health/ready. Over HTTP and HTTPS the status must be 200.
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
    tls: bool,
}

impl FromStr for CheckTarget {
    type Err = swarmkeep_load::Error;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let Some(rest) = text.strip_prefix("https://") else {
            let target: Target = text.parse()?;
            return Ok(Self { text: target.to_string(), target, tls: false });
        };
        let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        let port = if has_port { "" } else { ":443" };
        let target = format!("http://{host}{port}{path}").parse()?;
        Ok(Self { text: text.to_owned(), target, tls: true })
    }
}

const PATIENCE: Duration = Duration::from_secs(2);

/// The time between requests over UDP, which may lose a request or an answer.
const AGAIN: Duration = Duration::from_millis(500);

const LONGEST_ANSWER: u64 = 64 * 1024;

pub(crate) fn run(
    Args { target: CheckTarget { text, target, tls }, ca, insecure }: Args,
) -> Result<(), Box<dyn Error>> {
    match &target {
        Target::Udp(address) => over_udp(*address),
        Target::Http { address, host, path } if tls => {
            let name = host.rsplit_once(':').map_or(&**host, |(name, _)| name).trim_matches(['[', ']']);
            let connected = || {
                let session = ClientConnection::new(
                    authorities(ca.as_deref(), insecure)?,
                    name.to_owned().try_into()?,
                )?;
                Ok::<_, Box<dyn Error>>(StreamOwned::new(session, connect(*address)?))
            };
            connected().and_then(|stream| ask(stream, host, path))
        }
        Target::Http { address, host, path } => {
            connect(*address).map_err(Into::into).and_then(|stream| ask(stream, host, path))
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

fn over_udp(address: SocketAddr) -> Result<(), Box<dyn Error>> {
    let here: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((here, 0))?;
    // Then the socket receives no datagrams of other senders.
    socket.connect(address)?;
    socket.set_read_timeout(Some(AGAIN))?;
    let request = ConnectRequest { transaction_id: TransactionId(process::id()) }.to_bytes();
    let (mut client, began) = (Client::new(Family::V4), Instant::now());
    while began.elapsed() < PATIENCE {
        socket.send(&request)?;
        let mut answer = [0; 2048];
        match socket.recv(&mut answer) {
            Ok(len) => match client.answer(&request, &answer[..len], Instant::now()) {
                Ok(Some(Response::Error(error))) => {
                    return Err(error.message.escape_ascii().to_string().into());
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

fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    Ok(stream)
}

/// Requests a path, which must have the status 200.
fn ask(mut stream: impl Read + Write, host: &str, path: &str) -> Result<(), Box<dyn Error>> {
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    match stream.take(LONGEST_ANSWER).read_to_end(&mut answer) {
        // Many servers end a TLS connection without `close_notify`.
        Err(error) if error.kind() == ErrorKind::UnexpectedEof && !answer.is_empty() => {}
        read => _ = read?,
    }
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    match head.lines().next() {
        Some(status) if status.starts_with("HTTP/1.1 200 ") => Ok(()),
        Some(status) => Err(format!("{status}: {}", body.trim()).into()),
        None => Err("it has closed the connection without an answer".into()),
    }
}
