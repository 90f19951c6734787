//! Tokens of the API, and their scopes.

use std::{
    fmt,
    hash::Hasher as _,
    io,
    str::FromStr,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use axum::http::{HeaderMap, Method, header::AUTHORIZATION};
use data_encoding::BASE64URL_NOPAD;
use rand::{TryRng, rngs::SysRng};
use siphasher::sip128::{Hasher128, SipHasher24};

named! {
    /// A right that a token gives.
    pub enum Scope {
        /// Read everything except the addresses of peers.
        Read = "read",
        /// Change the tracker.
        Write = "write",
        /// Read the addresses of peers.
        Peers = "peers",
        /// Read and change the passkeys of members.
        Members = "members",
    }
}

impl Scope {
    /// The scope that a request needs.
    pub(crate) fn of(method: &Method, path: &str) -> Self {
        match *method {
            _ if path.contains("/passkeys") => Self::Members,
            Method::GET | Method::HEAD if path.ends_with("/peers") => Self::Peers,
            Method::GET | Method::HEAD => Self::Read,
            _ => Self::Write,
        }
    }
}

/// The scopes of one token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Scopes(u8);

impl Scopes {
    fn new(scopes: &[Scope]) -> Self {
        Self(scopes.iter().fold(0, |all, &scope| all | 1 << scope as u8))
    }

    pub(crate) fn names(self) -> impl Iterator<Item = &'static str> {
        Scope::ALL.into_iter().filter(move |&scope| self.has(scope)).map(Scope::name)
    }

    pub(crate) const fn has(self, scope: Scope) -> bool {
        self.0 & 1 << scope as u8 != 0
    }
}

/// A secret and its scopes. Only a hash of the secret is kept, under a random key of this process.
#[derive(Clone, Copy)]
pub struct Token {
    digest: u128,
    scopes: Scopes,
}

impl Token {
    /// The fewest characters of a secret.
    pub const SHORTEST: usize = 16;

    /// Takes a secret of at least [`SHORTEST`](Self::SHORTEST) visible ASCII characters.
    ///
    /// # Errors
    /// [`TokenError`], which never shows the secret.
    pub fn new(secret: &str, scopes: &[Scope]) -> Result<Self, TokenError> {
        if secret.len() < Self::SHORTEST || !secret.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(TokenError::Secret);
        }
        if scopes.is_empty() {
            return Err(TokenError::NoScope);
        }
        let key = Key::drawn().map_err(TokenError::NoEntropy)?;
        Ok(Self { digest: key.mac(b"token", &[secret.as_bytes()]), scopes: Scopes::new(scopes) })
    }

    /// Draws a secret of 192 bits, and returns it with its token. It cannot be read again later.
    ///
    /// # Errors
    /// [`TokenError::NoEntropy`], or [`TokenError::NoScope`].
    pub fn draw(scopes: &[Scope]) -> Result<(Self, String), TokenError> {
        let secret = draw_secret().map_err(TokenError::NoEntropy)?;
        Ok((Self::new(&secret, scopes)?, secret))
    }
}

/// Draws 192 bits, in characters that a URL takes.
pub(crate) fn draw_secret() -> io::Result<String> {
    let mut bytes = [0; 24];
    SysRng.try_fill_bytes(&mut bytes).map_err(io::Error::other)?;
    Ok(BASE64URL_NOPAD.encode(&bytes))
}

/// Parses `SECRET scope[,scope]`, a line of a file of tokens.
impl FromStr for Token {
    type Err = TokenError;

    fn from_str(line: &str) -> Result<Self, TokenError> {
        let mut parts = line.split_ascii_whitespace();
        let (Some(secret), Some(scopes), None) = (parts.next(), parts.next(), parts.next()) else {
            return Err(TokenError::Line);
        };
        let scope = |name: &str| Scope::ALL.into_iter().find(|scope| scope.name() == name);
        let scopes: Option<Vec<_>> = scopes.split(',').map(scope).collect();
        Self::new(secret, &scopes.ok_or(TokenError::Scope)?)
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(secret)")
    }
}

/// Why a token is refused. The error never contains the input, which may be a secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// There are not two words.
    #[error("a token is a secret and its scopes, with a space between: SECRET read,write,peers,members")]
    Line,
    /// The secret is too short, or cannot be sent in a header.
    #[error("a token's secret takes {} or more visible ASCII characters", Token::SHORTEST)]
    Secret,
    /// A word is not a scope.
    #[error("a token's scopes are read, write, peers and members, with commas between")]
    Scope,
    /// There is no scope.
    #[error("a token takes at least one scope of read, write, peers and members")]
    NoScope,
    /// The operating system gave no randomness for the key.
    #[error("no randomness from the operating system, which the hash of tokens needs: {0}")]
    NoEntropy(io::Error),
}

/// The key with which this process hashes tokens and authenticates its cursors.
#[derive(Clone, Copy)]
pub(crate) struct Key([u8; 16]);

impl Key {
    /// The key of this process.
    pub(crate) fn drawn() -> io::Result<Self> {
        static KEY: OnceLock<Key> = OnceLock::new();
        if let Some(key) = KEY.get() {
            return Ok(*key);
        }
        let mut bytes = [0; 16];
        SysRng.try_fill_bytes(&mut bytes).map_err(io::Error::other)?;
        Ok(*KEY.get_or_init(|| Self(bytes)))
    }

    /// A SipHash-2-4 of 128 bits, which only this process can compute. A comparison need not take constant
    /// time: without the key, the hash of a guess is unknown.
    pub(crate) fn mac(&self, purpose: &[u8], parts: &[&[u8]]) -> u128 {
        let mut hasher = SipHasher24::new_with_key(&self.0);
        for part in [purpose].iter().chain(parts) {
            hasher.write_usize(part.len());
            hasher.write(part);
        }
        hasher.finish128().as_u128()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(secret)")
    }
}

/// The most wrong tokens per second with that answer. Further ones get the answer to wait.
const MOST_WRONG_PER_SECOND: u32 = 10;

/// The tokens of one tracker, and how many wrong ones it has seen.
#[derive(Debug)]
pub(crate) struct Tokens {
    tokens: Vec<Token>,
    wrong: AtomicU64,
    /// When the current second began, and how many wrong ones it has seen.
    second: Mutex<(Instant, u32)>,
}

/// Why there are no scopes.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum TokenRefusal {
    None,
    Wrong,
    TooMany,
}

impl Tokens {
    pub(crate) fn new(tokens: Vec<Token>) -> Self {
        Self { tokens, wrong: AtomicU64::new(0), second: Mutex::new((Instant::now(), 0)) }
    }

    /// The number of wrong tokens so far.
    pub(crate) fn wrong(&self) -> u64 {
        self.wrong.load(Relaxed)
    }

    /// The scopes of the token in these headers.
    pub(crate) fn check(&self, key: &Key, headers: &HeaderMap, now: Instant) -> Result<Scopes, TokenRefusal> {
        let header = headers.get(AUTHORIZATION).ok_or(TokenRefusal::None)?.as_bytes();
        let secret = match header.split_at_checked(BEARER.len()) {
            Some((scheme, secret)) if scheme.eq_ignore_ascii_case(BEARER) => secret.trim_ascii(),
            _ => &[],
        };
        let digest = key.mac(b"token", &[secret]);
        if let Some(token) = self.tokens.iter().find(|token| token.digest == digest) {
            return Ok(token.scopes);
        }
        self.wrong.fetch_add(1, Relaxed);
        let mut second = self.second.lock().unwrap_or_else(PoisonError::into_inner);
        if now.saturating_duration_since(second.0) >= Duration::from_secs(1) {
            *second = (now, 0);
        }
        second.1 = second.1.saturating_add(1);
        Err(if second.1 > MOST_WRONG_PER_SECOND { TokenRefusal::TooMany } else { TokenRefusal::Wrong })
    }
}

const BEARER: &[u8] = b"Bearer ";

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: &str = "sixteen-of-these";

    fn bearing(secret: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(AUTHORIZATION, secret.parse().expect("a header"));
        headers
    }

    #[test]
    fn a_line_is_a_secret_and_its_scopes() {
        for (line, scopes) in [
            ("sixteen-of-these read", &[Scope::Read][..]),
            (" sixteen-of-these\tpeers,write \n", &[Scope::Peers, Scope::Write]),
        ] {
            let token: Token = line.parse().expect("a token");
            assert_eq!(token.scopes, Scopes::new(scopes), "{line}");
            assert_eq!(format!("{token:?}"), "Token(secret)");
        }
        let wrong = "|sixteen-of-these read write|sixteen-of-these read,|sixteen-of-these Read|\
            fifteen-of-them read|sechzehn-schöne-Zeichen read|sixteen-of-these all";
        for line in wrong.split('|').chain([SECRET]) {
            let error = line.parse::<Token>().expect_err(line);
            for text in [error.to_string(), format!("{error:?}")] {
                assert!(
                    line.is_empty() || !line.split(' ').any(|word| word.len() > 9 && text.contains(word)),
                    "{text}"
                );
            }
        }
        assert!(Token::new(SECRET, &[]).is_err());
    }

    #[test]
    fn every_drawn_token_is_different() {
        let [(first, secret), (second, _)] = [(); 2].map(|()| Token::draw(&[Scope::Read]).expect("entropy"));
        assert_eq!((secret.len(), first.digest == second.digest), (32, false));
        assert_eq!(Token::new(&secret, &[Scope::Write]).expect("long enough").digest, first.digest);
    }

    #[test]
    fn only_a_bearer_of_a_known_secret_has_its_scopes() {
        let key = Key::drawn().expect("entropy");
        let tokens = Tokens::new(vec![Token::new(SECRET, &[Scope::Peers]).expect("a token")]);
        let now = Instant::now();
        for right in ["Bearer sixteen-of-these", "bearer  sixteen-of-these "] {
            assert_eq!(tokens.check(&key, &bearing(right), now), Ok(Scopes::new(&[Scope::Peers])), "{right}");
        }
        assert_eq!(tokens.check(&key, &HeaderMap::new(), now), Err(TokenRefusal::None));
        for wrong in
            ["Bearer sixteen-of-thesf", "Basic sixteen-of-these", "sixteen-of-these", "Bearer", "Bearer "]
        {
            assert_eq!(tokens.check(&key, &bearing(wrong), now), Err(TokenRefusal::Wrong), "{wrong}");
        }
        assert_eq!(tokens.wrong(), 5);
        let none = Tokens::new(Vec::new());
        assert_eq!(none.check(&key, &bearing("Bearer sixteen-of-these"), now), Err(TokenRefusal::Wrong));
    }

    #[test]
    fn guessing_is_slow_and_does_not_keep_a_right_token_out() {
        let key = Key::drawn().expect("entropy");
        let tokens = Tokens::new(vec![Token::new(SECRET, &[Scope::Read]).expect("a token")]);
        let now = Instant::now();
        let guess = |at| tokens.check(&key, &bearing("Bearer another-secret-x"), at).expect_err("wrong");
        let told = (0..30).filter(|_| guess(now) == TokenRefusal::Wrong).count();
        assert_eq!(told, MOST_WRONG_PER_SECOND as usize);
        assert!(tokens.check(&key, &bearing("Bearer sixteen-of-these"), now).is_ok());
        assert_eq!(guess(now + Duration::from_secs(1)), TokenRefusal::Wrong);
    }

    #[test]
    fn changes_take_write_and_addresses_take_peers() {
        for (method, path, scope) in [
            (Method::GET, "/stats", Scope::Read),
            (Method::HEAD, "/torrents/x", Scope::Read),
            (Method::GET, "/torrents/x/peers", Scope::Peers),
            (Method::HEAD, "/torrents/x/peers", Scope::Peers),
            (Method::DELETE, "/torrents/x", Scope::Write),
            (Method::PUT, "/access/x/peers", Scope::Write),
            (Method::GET, "/passkeys", Scope::Members),
            (Method::DELETE, "/passkeys/x", Scope::Members),
        ] {
            assert_eq!(Scope::of(&method, path), scope, "{method} {path}");
        }
    }
}
