//! Errors of the system and of libraries, and counts, in words for a person.

use std::fmt::Display;

/// The beginnings of errors, with their sentences. `…` is the error's own detail, behind its first colon.
const SENTENCES: [(&str, &str); 39] = [
    ("Connection refused", "Connection refused: no server listens there"),
    ("Too many open files in system", "the system has too many open files"),
    ("Too many open files", "too many open files: let this process open more"),
    ("failed to lookup address", "no address is known for this name: check the name, and the DNS here"),
    ("stream did not contain valid UTF-8", "it is not text in UTF-8"),
    ("unexpected end of file", "it ends too early"),
    ("failed to fill whole buffer", "it ends too early"),
    ("connection closed before", "it has closed the connection without an answer"),
    ("tls handshake eof", "it has closed the connection in the TLS handshake: its log has the reason"),
    ("peer closed connection", "it has closed the connection"),
    ("received corrupt message", "it does not speak TLS: give its port for TLS, or a URL without TLS"),
    ("peer misbehaved", "it does not speak TLS well: give its port for TLS, or a URL without TLS"),
    ("peer is incompatible", "it has no version or cipher of TLS 1.2 and 1.3 known here: allow one there"),
    ("ProtocolVersion", "it refuses TLS 1.2 and 1.3, which are needed"),
    ("CertificateRequired", "it asks for a client certificate, which is not supported: turn that off there"),
    ("BadEncoding", "it is not a certificate: give a file in PEM with one"),
    ("UnknownIssuer", "the authority of its certificate is not trusted here: name its file"),
    ("BadSignature", "the authority of its certificate is not the given one: name its file"),
    ("Other(OtherError(CaUsed", "its certificate is an authority's: give it one signed by that authority"),
    ("certificate not valid for name", "its certificate is for another name: use a name in the certificate"),
    ("certificate expired", "its certificate has expired: renew it, and check the clock here"),
    ("certificate not valid yet", "its certificate is not valid yet: check the clock here, or renew it"),
    ("invalid peer certificate", "its certificate cannot be used: `openssl x509 -text` shows it; renew it"),
    ("received fatal alert", "it refuses the TLS handshake: its log has the reason"),
    ("base64 decode error", "it is not PEM"),
    ("illegal section start", "it is not PEM"),
    ("missing section end", "it is not PEM to its end: give the whole file"),
    ("\"NOAUTH\"", "it asks for a password: give one"),
    ("Redis URL did not parse", "expected redis://HOST:PORT/DATABASE, with USER:PASSWORD@ before HOST"),
    ("Redis server refused to switch database", "it refuses the database of the URL, give another: …"),
    ("Password authentication failed", "it refuses the user and the password"),
    ("number would be zero", "expected a whole number above 0"),
    ("number too large", "the number is too large"),
    ("number too small", "the number is too small"),
    ("invalid digit found", "expected a whole number"),
    ("cannot parse integer", "expected a whole number"),
    ("invalid float literal", "expected a number, such as 0.5"),
    ("cannot parse float", "expected a number, such as 0.5"),
    ("invalid socket address", "expected an address and port, such as 192.0.2.1:6969 or [2001:db8::1]:6969"),
];

/// An error as a sentence, without the system's number. Paths or other errors, with colons, may precede it.
pub fn in_words(error: &(impl Display + ?Sized)) -> String {
    let text = error.to_string().replace("I/O error: ", "");
    let mut parts = text.split(" (os error ");
    let first = parts.next().unwrap_or_default().to_owned();
    let text = parts.fold(first, |text, part| text + part.split_once(')').map_or(part, |(_, rest)| rest));
    let starts = [0].into_iter().chain(text.match_indices(": ").map(|(colon, _)| colon + 2));
    let known = SENTENCES.iter().find_map(|(begins, sentence)| {
        let is_there = |&at: &usize| text[at..].starts_with(begins) && !text[at..].starts_with(sentence);
        Some((starts.clone().find(is_there)?, sentence))
    });
    let Some((at, sentence)) = known else { return text };
    let detail = text[at..].split_once(": ").map_or("", |(_, detail)| detail);
    let before = text[..at].trim_end_matches("invalid peer certificate: ");
    before.trim_end_matches("received fatal alert: ").to_owned() + &sentence.replace('…', detail)
}

/// `1 block`, `2 blocks`.
pub fn counted(count: impl Display, unit: &str) -> String {
    let count = count.to_string();
    format!("{count} {unit}{}", if count == "1" { "" } else { "s" })
}

#[test]
fn errors_are_sentences_without_numbers_of_the_system() {
    let of_system = std::io::Error::from_raw_os_error;
    assert_eq!(in_words(&of_system(23)), "the system has too many open files");
    assert_eq!(in_words(&format!("a: {}; (b)", of_system(2))), "a: No such file or directory; (b)");
    let is = |error: &str, begins| assert!(in_words(error).starts_with(begins), "{}", in_words(error));
    is("invalid peer certificate: Other(OtherError(CaUsedAsEndEntity))", "its certificate is an authority's");
    is("invalid peer certificate: certificate expired: 1 s ago", "its certificate has expired: renew it");
    is("c: invalid peer certificate: UnsupportedCertVersion", "c: its certificate cannot be used: `openssl");
    is("received fatal alert: CertificateRequired", "it asks for a client certificate");
    is("/c: received fatal alert: HandshakeFailure", "/c: it refuses the TLS handshake");
    is("tokens: /f: stream did not contain valid UTF-8", "tokens: /f: it is not text in UTF-8");
    is("tokens: /f: tls handshake eof", "tokens: /f: it has closed the connection in the TLS handshake");
    let refused = "192.0.2.1:1: Connection refused: no server listens there";
    assert_eq!(in_words(&format!("192.0.2.1:1: {}", of_system(111))), refused);
    assert_eq!(in_words(&format!("{refused}; start it")), format!("{refused}; start it"));
    let number = |text: &str| in_words(&text.parse::<std::num::NonZero<u8>>().unwrap_err());
    assert_eq!(["", "-1"].map(number), ["expected a whole number"; 2]);
    assert_eq!(["0", "256"].map(number), ["expected a whole number above 0", "the number is too large"]);
    is(&"".parse::<f64>().unwrap_err().to_string(), "expected a number, such as 0.5");
    is(&"192.0.2.1".parse::<std::net::SocketAddr>().unwrap_err().to_string(), "expected an address and port");
    is("Redis server refused to switch database: 7", "it refuses the database of the URL, give another: 7");
}
