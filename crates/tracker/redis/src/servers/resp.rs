//! A blocking connection that speaks RESP2: as much of it as asking a server something takes.

use std::{
    io::{self, BufRead, BufReader, Read, Write as _},
    net::{Ipv4Addr, SocketAddr, TcpStream},
    time::Duration,
};

use super::{Error, Result};

/// One connection to a server, for what takes the same one: `MULTI`, `SUBSCRIBE`, `CLIENT`.
#[derive(Debug)]
pub struct Connection {
    port: u16,
    stream: BufReader<TcpStream>,
}

/// What a server answered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Reply {
    /// A status, `OK` mostly.
    Simple(String),
    /// An error, its code first. On its own it is [`Error::Refused`]; here it stands in an array.
    Error(String),
    /// A number.
    Integer(i64),
    /// A string of bytes, or nothing.
    Bulk(Option<Vec<u8>>),
    /// Several replies, or nothing.
    Array(Option<Vec<Self>>),
}

impl Reply {
    /// The text of a status or of a string that is UTF-8.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        match self {
            Self::Simple(text) => Some(text),
            Self::Bulk(Some(bytes)) => std::str::from_utf8(bytes).ok(),
            _ => None,
        }
    }

    /// The number.
    #[must_use]
    pub const fn integer(&self) -> Option<i64> {
        match self {
            Self::Integer(number) => Some(*number),
            _ => None,
        }
    }

    /// The replies in an array.
    #[must_use]
    pub fn array(&self) -> Option<&[Self]> {
        match self {
            Self::Array(Some(replies)) => Some(replies),
            _ => None,
        }
    }
}

impl Connection {
    /// For how long a server may be silent: what is asked here, any that is not paused answers within
    /// milliseconds.
    const PATIENCE: Duration = Duration::from_secs(5);

    pub(super) fn open(port: u16, password: Option<&str>) -> Result<Self> {
        let open = || {
            let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
            let stream = TcpStream::connect_timeout(&address, Self::PATIENCE)?;
            stream.set_read_timeout(Some(Self::PATIENCE))?;
            stream.set_write_timeout(Some(Self::PATIENCE))?;
            stream.set_nodelay(true)?;
            Ok(BufReader::new(stream))
        };
        let stream = open().map_err(|source| Error::Unreachable { port, source })?;
        let mut connection = Self { port, stream };
        if let Some(password) = password {
            connection.command(&["AUTH", password])?;
        }
        Ok(connection)
    }

    /// Sends a command and waits for its reply, for five seconds at most.
    ///
    /// # Errors
    /// [`Error::Refused`] if the reply is an error, [`Error::Unreachable`] if there is none.
    pub fn command<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Result<Reply> {
        let port = self.port;
        let reply = self.send(arguments).and_then(|()| read(&mut self.stream));
        match reply.map_err(|source| Error::Unreachable { port, source })? {
            Reply::Error(message) => Err(Error::Refused { port, command: named(arguments), message }),
            reply => Ok(reply),
        }
    }

    fn send<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> io::Result<()> {
        let mut request = format!("*{}\r\n", arguments.len()).into_bytes();
        for argument in arguments {
            let argument = argument.as_ref();
            request.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
            request.extend_from_slice(argument);
            request.extend_from_slice(b"\r\n");
        }
        self.stream.get_mut().write_all(&request)
    }
}

/// What a command is called in messages: its first words, which are no data and no password.
pub(super) fn named<A: AsRef<[u8]>>(arguments: &[A]) -> String {
    let word = |argument: &A| String::from_utf8_lossy(argument.as_ref()).into_owned();
    let count = if arguments.first().is_some_and(|first| word(first) == "CLUSTER") { 3 } else { 1 };
    arguments.iter().take(count).map(word).collect::<Vec<_>>().join(" ")
}

fn read(stream: &mut impl BufRead) -> io::Result<Reply> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the connection was closed"));
    }
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, format!("{line:?} is no RESP2"));
    let (kind, rest) = line.trim_end_matches("\r\n").split_at_checked(1).ok_or_else(invalid)?;
    let number = || rest.parse::<i64>().map_err(|_| invalid());
    // A length of -1 is RESP2's null.
    let length = || Ok::<_, io::Error>(usize::try_from(number()?).ok());
    match kind {
        "+" => Ok(Reply::Simple(rest.to_owned())),
        "-" => Ok(Reply::Error(rest.to_owned())),
        ":" => Ok(Reply::Integer(number()?)),
        "$" => Ok(Reply::Bulk(match length()? {
            Some(length) => Some(read_bulk(stream, length)?),
            None => None,
        })),
        "*" => Ok(Reply::Array(match length()? {
            Some(length) => Some((0..length).map(|_| read(stream)).collect::<io::Result<_>>()?),
            None => None,
        })),
        _ => Err(invalid()),
    }
}

fn read_bulk(stream: &mut impl Read, length: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; length + 2];
    stream.read_exact(&mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_of_all_kinds_are_read() {
        let mut bytes: &[u8] = b"*6\r\n+OK\r\n-ERR no\r\n:-7\r\n$2\r\n\r\n\r\n$-1\r\n*-1\r\n";
        let expected = [
            Reply::Simple("OK".to_owned()),
            Reply::Error("ERR no".to_owned()),
            Reply::Integer(-7),
            Reply::Bulk(Some(b"\r\n".to_vec())),
            Reply::Bulk(None),
            Reply::Array(None),
        ];
        assert_eq!(read(&mut bytes).unwrap().array(), Some(&expected[..]));
        assert!(bytes.is_empty());
    }

    #[test]
    fn what_is_no_reply_is_an_error() {
        for bytes in ["", "\r\n", "?\r\n", ":x\r\n", "$5\r\nab", "ä\r\n"] {
            assert!(read(&mut bytes.as_bytes()).is_err(), "{bytes:?}");
        }
    }
}
