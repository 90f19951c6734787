//! A blocking connection to a server.

use std::{fmt, io, time::Duration};

use redis::{
    Client, Cmd, ConnectionAddr, ConnectionLike as _, FromRedisValue, IntoConnectionInfo as _,
    RedisConnectionInfo, RedisResult, Value,
};

use crate::{Error, Result};

/// A connection to a server, for commands that must use the same one: `MULTI`, `SUBSCRIBE`, `CLIENT`.
pub struct Connection {
    port: u16,
    inner: redis::Connection,
}

impl Connection {
    /// The longest wait for a reply: longer than the minute for which `WAIT` and `MIGRATE` may wait.
    const PATIENCE: Duration = Duration::from_secs(75);

    pub(crate) fn open(port: u16, password: Option<&str>) -> Result<Self> {
        let open = || -> RedisResult<_> {
            // Nothing is sent before the time-outs are set: a paused server accepts connections, but sends no
            // reply.
            let silent = RedisConnectionInfo::default().set_skip_set_lib_name();
            let address = ConnectionAddr::Tcp("127.0.0.1".to_owned(), port).into_connection_info()?;
            let client = Client::open(address.set_redis_settings(silent))?;
            let inner = client.get_connection_with_timeout(Self::PATIENCE)?;
            inner.set_read_timeout(Some(Self::PATIENCE))?;
            inner.set_write_timeout(Some(Self::PATIENCE))?;
            Ok(inner)
        };
        let inner = open().map_err(|error| unreachable(port, error))?;
        let mut connection = Self { port, inner };
        if let Some(password) = password {
            connection.command(&["AUTH", password])?;
        }
        Ok(connection)
    }

    /// Sends a command and waits for its reply, for 75 seconds at most.
    pub fn command(&mut self, arguments: &[impl AsRef<[u8]>]) -> Result<Value> {
        let port = self.port;
        let mut command = Cmd::new();
        for argument in arguments {
            command.arg(argument.as_ref());
        }
        match self.inner.req_command(&command).map_err(|error| unreachable(port, error))? {
            Value::ServerError(error) => {
                let message = [error.code(), error.details().unwrap_or_default()].join(" ");
                Err(Error::Refused { port, command: named(arguments), message })
            }
            reply => Ok(reply),
        }
    }

    /// As [`command`](Self::command), with the reply as a value of this type.
    pub fn query<T: FromRedisValue>(&mut self, arguments: &[impl AsRef<[u8]>]) -> Result<T> {
        let reply = self.command(arguments)?;
        T::from_redis_value_ref(&reply).map_err(|_| Error::Unexpected {
            port: self.port,
            command: named(arguments),
            reply: format!("{reply:?}"),
        })
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("port", &self.port).finish_non_exhaustive()
    }
}

fn unreachable(port: u16, error: redis::RedisError) -> Error {
    Error::Unreachable { port, source: io::Error::other(error) }
}

/// The name of a command in messages: its first words, without data and passwords.
fn named(arguments: &[impl AsRef<[u8]>]) -> String {
    let words: Vec<_> = arguments.iter().map(|word| String::from_utf8_lossy(word.as_ref())).take(3).collect();
    if words.first().is_some_and(|first| first == "CLUSTER") {
        words.join(" ")
    } else {
        words.into_iter().take(1).collect()
    }
}
