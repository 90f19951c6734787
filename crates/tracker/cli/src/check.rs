//! `swarmkeep check`: whether a tracker answers, for the service manager that restarts it if it does not.

use std::{
    error::Error,
    fmt::Display,
    io::{ErrorKind, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream, UdpSocket},
    path::{Path, PathBuf},
    process,
    sync::{Arc, mpsc},
    thread,
    time::{Duration, Instant},
};

use swarmkeep_load::{Target, printable};
use swarmkeep_tracker_protocol::{
    TrackerUrl,
    bittorrent::{Family, in_words},
    http::{AnnounceResponse, ScrapeResponse},
    udp::{Action, Client, ConnectRequest, Response, TransactionId},
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
    /// such as http://127.0.0.1:6970/health/ready. Over HTTP and HTTPS the status must be 200, and an
    /// announce must get an answer of a tracker: a success, if the URL has a query.
    target: String,

    /// PEM file with the certificate authority of https:// targets. Default: the authorities that the system
    /// trusts.
    #[arg(long, value_name = "FILE", conflicts_with = "insecure")]
    ca: Option<PathBuf>,

    /// Accept any certificate of https:// targets, such as on the machine itself, since none has its name.
    #[arg(long)]
    insecure: bool,
}

const PATIENCE: Duration = Duration::from_secs(2);

/// The time between requests over UDP, which may lose a request or an answer.
const AGAIN: Duration = Duration::from_millis(500);

const LONGEST_ANSWER: u64 = 64 * 1024;

pub(crate) fn run(args: Args) -> Result<(), Box<dyn Error>> {
    let target = args.target.clone();
    let (ended, end) = mpsc::channel();
    // A thread, since finding the address of a name has no deadline of its own.
    thread::spawn(move || ended.send(check(&args).map_err(|error| in_words(&error))));
    let late = |_| Err(format!("no answer in {} s", PATIENCE.as_secs()));
    end.recv_timeout(PATIENCE).unwrap_or_else(late).map_err(|said| format!("{target}: {said}").into())
}

fn check(Args { target, ca, insecure }: &Args) -> Result<(), Box<dyn Error>> {
    let (url, query) = target.split_at(target.find('?').unwrap_or(target.len()));
    if !query.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err("expected a query without blanks, percent-encoded".into());
    }
    let tls = url.strip_prefix("https://");
    let url = tls.map_or_else(
        || url.to_owned(),
        |rest| {
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let has_port = host.rsplit_once(':').is_some_and(|(_, port)| port.parse::<u16>().is_ok());
            format!("http://{host}{}{path}", if has_port { "" } else { ":443" })
        },
    );
    match &url.parse()? {
        Target::Udp(address) => over_udp(*address),
        Target::Http { address, host, path } => {
            let stream = TcpStream::connect(address)?;
            if tls.is_none() {
                return ask(stream, host, path, query);
            }
            let name = host.rsplit_once(':').map_or(&**host, |(name, _)| name).trim_matches(['[', ']']);
            let authorities = authorities(ca.as_deref(), *insecure)?;
            let session = ClientConnection::new(authorities, name.to_owned().try_into()?)?;
            ask(StreamOwned::new(session, stream), host, path, query)
        }
    }
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
    let mut client = Client::new(Family::V4);
    loop {
        socket.send(&request)?;
        let mut answer = [0; 2048];
        match socket.recv(&mut answer) {
            Ok(len) => match client.answer(&request, &answer[..len], Instant::now()) {
                Ok(Some(Response::Error(error))) => return Err(shown(error.message).into()),
                Ok(Some(_)) => return Ok(()),
                Ok(None) | Err(_) => {}
            },
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The beginning of a remote text.
fn shown(text: &[u8]) -> String {
    printable(&text[..text.len().min(500)])
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
        return Err(format!("{}: {}", shown(status), shown(body.trim_ascii())).into());
    }
    let (page, refused) = match TrackerUrl::new(path.as_bytes(), b"").action {
        Some(Action::Announce) => ("announce", AnnounceResponse::parse(body).map(Result::err)),
        Some(Action::Scrape) => ("scrape", ScrapeResponse::parse(body).map(Result::err)),
        _ => return Ok(()),
    };
    match refused {
        Ok(Some(failure)) if !query.is_empty() => Err(shown(failure.reason).into()),
        Ok(_) => Ok(()),
        Err(_) => Err(format!("it is no tracker: its answer to this {page} is none").into()),
    }
}
