//! The URL of a tracker, and where a redirect leads.

use std::{fmt, net::IpAddr};

use hyper::Uri;
use swarmkeep_tracker_protocol::udp::AnnounceRequest;

/// The longest URL that is understood. BEP 41 puts path and query into a datagram, which then stays below the
/// 1,280 bytes that every IPv6 link carries.
const LONGEST: usize = 1024;

/// The protocol of a tracker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Scheme {
    Udp,
    Http,
    Https,
}

/// The parts of a tracker's URL. Equal ones are the same tracker.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct TrackerUrl {
    pub(super) scheme: Scheme,
    /// A name in lower case, or an address without brackets.
    pub(super) host: String,
    pub(super) port: u16,
    /// Path and query, beginning with `/`; empty if the URL ends with the port.
    pub(super) target: String,
}

/// Why the tracker at a URL cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UrlError {
    /// It is longer than a datagram has room for.
    #[error("{0} bytes are more than the 1024 of the longest URL that is understood")]
    TooLong(usize),
    /// It is not a URL.
    #[error("not a URL: {0}")]
    Syntax(String),
    /// Its scheme is not one of trackers.
    #[error("{0:?} is no way to ask a tracker: expected udp, http or https")]
    Scheme(String),
    /// It has no port, and UDP has no default port.
    #[error("the port is missing")]
    NoPort,
    /// Its port is 0.
    #[error("no tracker listens at port 0")]
    PortZero,
    /// It has a user name or a password, for which BEP 3 and 15 have no place.
    #[error("a user name or password is not supported")]
    UserInfo,
    /// The same tracker is earlier in the list.
    #[error("this tracker is in the list already")]
    Twice,
    /// The list already has as many trackers as one torrent may have.
    #[error("a torrent may have no more than 256 trackers")]
    TooMany,
}

impl TrackerUrl {
    /// Reads a URL. White space around it is ignored: torrent files have some.
    pub(super) fn parse(url: &str) -> Result<Self, UrlError> {
        let url = url.trim();
        if url.len() > LONGEST {
            return Err(UrlError::TooLong(url.len()));
        }
        // A fragment is for the client, not for the server.
        let (url, _) = url.split_once('#').unwrap_or((url, ""));
        let uri: Uri = url.parse().map_err(|error| UrlError::Syntax(format!("{error}")))?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(UrlError::Syntax("expected SCHEME://HOST".into()));
        };
        let (scheme, usual) = match scheme.to_ascii_lowercase().as_str() {
            "udp" => (Scheme::Udp, None),
            "http" => (Scheme::Http, Some(80)),
            "https" => (Scheme::Https, Some(443)),
            other => return Err(UrlError::Scheme(other.into())),
        };
        if authority.as_str().contains('@') {
            return Err(UrlError::UserInfo);
        }
        let host = authority.host();
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        if host.is_empty() {
            return Err(UrlError::Syntax("there is no host".into()));
        }
        let port = match authority.port() {
            Some(port) => port.as_u16(),
            // `host:` and ports above 65,535 are no port either, but an error.
            None if authority.as_str().len() > authority.host().len() => {
                return Err(UrlError::Syntax("the port is not a number up to 65535".into()));
            }
            None => usual.ok_or(UrlError::NoPort)?,
        };
        if port == 0 {
            return Err(UrlError::PortZero);
        }
        let target = uri.path_and_query().map_or("", |target| target.as_str());
        let target = if target.starts_with('?') { format!("/{target}") } else { target.to_owned() };
        let target = if target == "/" { String::new() } else { target };
        Ok(Self { scheme, host: host.to_ascii_lowercase(), port, target })
    }

    /// Where a redirect to `location` leads: an absolute URL, or one relative to this (RFC 3986, 5.2, without
    /// dots in paths).
    pub(super) fn join(&self, location: &str) -> Result<Self, UrlError> {
        let location = location.trim();
        let scheme_ends = location.find(':').unwrap_or(usize::MAX);
        let path_begins = location.find(['/', '?', '#']).unwrap_or(usize::MAX);
        if scheme_ends < path_begins {
            return Self::parse(location);
        }
        let base = if location.starts_with("//") { format!("{}:", self.scheme) } else { self.origin() };
        let path = self.target.split(['?']).next().unwrap_or_default();
        let folder = path.rfind('/').map_or("/", |slash| &path[..=slash]);
        Self::parse(&match location.as_bytes() {
            [b'/', ..] => format!("{base}{location}"),
            [b'?', ..] => format!("{base}{path}{location}"),
            _ => format!("{base}{folder}{location}"),
        })
    }

    /// The address, if the host is one and no name.
    pub(super) fn address(&self) -> Option<IpAddr> {
        self.host.parse().ok()
    }

    /// Host and port as a request names them: without the port where it is the usual one.
    pub(super) fn authority(&self) -> String {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match (self.scheme, self.port) {
            (Scheme::Http, 80) | (Scheme::Https, 443) => host,
            (_, port) => format!("{host}:{port}"),
        }
    }

    /// The options of BEP 41 that an announce over UDP ends with: path and query, in pieces of 255 bytes at
    /// most.
    pub(super) fn options(&self) -> Vec<u8> {
        const URL_DATA: u8 = 2;
        let mut options = Vec::with_capacity(self.target.len() + 2 * self.target.len().div_ceil(255));
        for piece in self.target.as_bytes().chunks(255) {
            options.extend([URL_DATA, piece.len() as u8]);
            options.extend(piece);
        }
        debug_assert!(AnnounceRequest::LEN + options.len() < 1200, "bounded by the longest URL");
        options
    }

    /// Whether the path is exactly a tracker's, after at most one passkey. Such a path has no dots and no
    /// escapes, so no service reads it as another path.
    pub(super) fn is_an_announce(&self) -> bool {
        let (path, _) = self.target.split_once('?').unwrap_or((&self.target, ""));
        let is_passkey =
            |key: &str| key.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(&byte));
        let last = match path.split('/').collect::<Vec<_>>()[..] {
            ["", last] => last,
            ["", key, last] if !key.is_empty() && is_passkey(key) => last,
            _ => return false,
        };
        ["announce", "announce.php", "scrape"].contains(&last)
    }

    pub(super) fn query(&self) -> Option<&str> {
        self.target.split_once('?').map(|(_, query)| query)
    }

    /// The URL with `query` behind its own: a passkey, for example.
    pub(super) fn with_query(&self, query: &str) -> Self {
        let target = match self.target.as_str() {
            "" => format!("/?{query}"),
            target if target.ends_with(['?', '&']) => format!("{target}{query}"),
            target if target.contains('?') => format!("{target}&{query}"),
            target => format!("{target}?{query}"),
        };
        Self { target, ..self.clone() }
    }

    fn origin(&self) -> String {
        format!("{}://{}", self.scheme, self.authority())
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Udp => "udp",
            Self::Http => "http",
            Self::Https => "https",
        })
    }
}

impl fmt::Display for TrackerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.origin(), self.target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn url(text: &str) -> TrackerUrl {
        TrackerUrl::parse(text).unwrap()
    }

    #[test]
    fn urls_of_trackers_are_read() {
        for (text, scheme, host, port, target) in [
            ("udp://tracker.example:6969/announce", Scheme::Udp, "tracker.example", 6969, "/announce"),
            (" UDP://Tracker.Example:80 ", Scheme::Udp, "tracker.example", 80, ""),
            ("udp://[2001:db8::1]:80/", Scheme::Udp, "2001:db8::1", 80, ""),
            ("http://192.0.2.1/a?passkey=b#c", Scheme::Http, "192.0.2.1", 80, "/a?passkey=b"),
            ("http://t.example?x=1", Scheme::Http, "t.example", 80, "/?x=1"),
            ("http://t.example:8080", Scheme::Http, "t.example", 8080, ""),
        ] {
            let expected = TrackerUrl { scheme, host: host.into(), port, target: target.into() };
            assert_eq!(url(text), expected, "{text}");
            assert_eq!(url(&expected.to_string()), expected, "{text}");
        }
        assert_eq!(url("udp://t.example:1").options(), b"");
    }

    #[test]
    fn an_invalid_url_has_a_reason() {
        let error = |text: &str| TrackerUrl::parse(text).unwrap_err();
        let wrong = "|x|//t.example/announce|http://|http:///announce|http://a b/|http://t:x/|\
            http://t:99999/|http://t:/";
        for text in wrong.split('|') {
            assert!(matches!(error(text), UrlError::Syntax(_)), "{text}: {:?}", error(text));
        }
        assert_eq!(error("wss://t.example/announce"), UrlError::Scheme("wss".into()));
        assert_eq!(error("udp://t.example/announce"), UrlError::NoPort);
        assert_eq!(error("udp://t.example:0/announce"), UrlError::PortZero);
        assert_eq!(error("http://me:secret@t.example/announce"), UrlError::UserInfo);
        assert_eq!(error(&format!("http://t.example/{}", "a".repeat(1024))), UrlError::TooLong(1041));
    }

    #[test]
    fn an_announce_follows_the_query_of_the_url() {
        for (own, whole) in [("/a?passkey=b", "/a?passkey=b&q"), ("/a?", "/a?q"), ("/a", "/a?q"), ("", "/?q")]
        {
            assert_eq!(url(&format!("http://t.example{own}")).with_query("q").target, whole);
        }
    }

    #[test]
    fn a_redirect_may_be_relative() {
        let from = url("http://t.example:81/a/b?c=/d");
        for (location, to) in [
            ("http://u.example/x", "http://u.example/x"),
            ("udp://u.example:1/x", "udp://u.example:1/x"),
            ("//u.example/x", "http://u.example/x"),
            ("/x?y=:", "http://t.example:81/x?y=:"),
            ("x", "http://t.example:81/a/x"),
            ("?z", "http://t.example:81/a/b?z"),
        ] {
            assert_eq!(from.join(location).map(|to| to.to_string()).as_deref(), Ok(to), "{location}");
        }
        assert_eq!(url("http://t.example").join("x").unwrap().to_string(), "http://t.example/x");
    }

    #[test]
    fn a_path_tells_trackers_from_other_services() {
        for yes in "http://h/announce http://h/announce?x http://h/announce.php http://h/scrape \
                  http://h/a_Passkey-1/announce"
            .split(' ')
        {
            assert!(url(yes).is_an_announce(), "{yes}");
        }
        let none = "http://h http://h/admin?announce http://h/x/?/announce \
            http://h/announce/../api/reboot?confirm=yes http://h/announcements/delete?id=1 \
            http://h/api/reboot/announce http://h/../announce http://h/%2e%2e/announce http://h/%2E./announce \
            http://h/.%2e/announce http://h/%5c..%5capi/announce http://h//announce http://h/announce/ \
            http://h/announce;x http://h/announce%00 http://h/ANNOUNCE";
        for no in none.split(' ') {
            assert!(!url(no).is_an_announce(), "{no}");
        }
        assert_eq!(url("http://h/announce").query(), None);
        assert_eq!(url("http://h/announce?").query(), Some(""));
        assert_eq!(url("http://h/announce?a?b").query(), Some("a?b"));
    }
}
