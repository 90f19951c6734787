//! One server.

use std::{collections::BTreeMap, env, fs, path::Path, time::Duration};

use parking_lot::Mutex;
use redis::{FromRedisValue, Value};
use tempfile::TempDir;

use crate::{
    Connection, Error, Result,
    ports::Ports,
    process::{CONFIGURATION, MODULE_VARIABLE, Process},
    wait_until,
};

/// A server on a loopback port, with its own folder. It keeps nothing on disk unless it is configured to. It
/// is killed when it is dropped.
#[derive(Debug)]
pub struct Server {
    // Fields are dropped in this order: the process ends before its folder is removed.
    process: Mutex<Option<Process>>,
    folder: TempDir,
    ports: Ports,
    password: Option<String>,
}

impl Server {
    /// Starts a server with a minimal configuration. It answers when this returns, after about 10 ms.
    pub fn start() -> Result<Self> {
        Self::start_with(&[])
    }

    /// Starts a server with these lines in its configuration: a directive and its values, quoted as in
    /// `redis.conf`. They override the minimal configuration. The password of `requirepass` is used by the
    /// methods here, and is in [`url`](Self::url).
    pub fn start_with(directives: &[(&str, &str)]) -> Result<Self> {
        Self::start_on_free_ports(directives, None)
    }

    /// Starts a server that also accepts TLS, at [`tls_port`](Self::tls_port), with the files of a
    /// certificate and its key in PEM. It asks clients for no certificate.
    pub fn start_with_tls(certificate: &Path, key: &Path, directives: &[(&str, &str)]) -> Result<Self> {
        Self::start_on_free_ports(directives, Some((certificate, key)))
    }

    /// Its URL.
    #[must_use]
    pub fn url(&self) -> String {
        let password = self.password.as_ref().map(|password| format!(":{password}@")).unwrap_or_default();
        format!("redis://{password}127.0.0.1:{}", self.port())
    }

    /// Its port on 127.0.0.1, without TLS. A restart does not change it.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.ports.first()
    }

    /// Its port for TLS, if it accepts TLS.
    #[must_use]
    pub fn tls_port(&self) -> u16 {
        self.ports.second()
    }

    /// Its folder, which `dir` of its configuration names. It contains `log` and `server.conf`.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Whether it runs and is not paused.
    #[must_use]
    pub fn is_live(&self) -> bool {
        self.process.lock().as_mut().is_some_and(Process::is_live)
    }

    /// Kills it (`SIGKILL`) and waits for its end. Data that is not on disk is lost.
    pub fn kill(&self) {
        *self.process.lock() = None;
    }

    /// Starts it again on the same port and in the same folder. If it still runs, it is killed first. It
    /// answers when this returns.
    ///
    /// It is empty unless it was configured to write to disk. A master of a Cluster comes back as a master if
    /// no replica replaced it, and then empties its replicas.
    pub fn restart(&self) -> Result<()> {
        let mut process = self.process.lock();
        *process = None;
        *process = Some(self.launch()?);
        Ok(())
    }

    /// Pauses it (`SIGSTOP`). Connections stay open and can be opened, but get no answer.
    pub fn pause(&self) -> Result<()> {
        self.signal(|process| process.pause().map_err(Error::io("pausing a server")))
    }

    /// Resumes it (`SIGCONT`).
    pub fn resume(&self) -> Result<()> {
        self.signal(|process| process.resume().map_err(Error::io("resuming a server")))
    }

    /// A new connection, to database 0.
    pub fn connect(&self) -> Result<Connection> {
        Connection::open(self.port(), self.password.as_deref())
    }

    /// Sends a command over a new connection and waits for its reply, for 75 seconds at most.
    pub fn command(&self, arguments: &[impl AsRef<[u8]>]) -> Result<Value> {
        self.connect()?.command(arguments)
    }

    /// As [`command`](Self::command), with the reply as a value of this type.
    pub fn query<T: FromRedisValue>(&self, arguments: &[impl AsRef<[u8]>]) -> Result<T> {
        self.connect()?.query(arguments)
    }

    /// A section of `INFO`: the names of its fields, and their values.
    pub fn info(&self, section: &str) -> Result<BTreeMap<String, String>> {
        let text: String = self.query(&["INFO", section])?;
        let fields = text.lines().filter_map(|line| line.split_once(':'));
        Ok(fields.map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
    }

    /// The bytes of its allocations: `used_memory`.
    pub fn used_memory(&self) -> Result<u64> {
        let memory = self.info("memory")?;
        self.number(&memory, "used_memory")
    }

    /// The processor time of its main thread since its start, in user mode and in the kernel. That thread
    /// executes the commands.
    pub fn cpu(&self) -> Result<Duration> {
        let used = self.info("cpu")?;
        let user: f64 = self.number(&used, "used_cpu_user_main_thread")?;
        let system: f64 = self.number(&used, "used_cpu_sys_main_thread")?;
        Ok(Duration::from_secs_f64(user + system))
    }

    /// Closes all connections of clients, except those of replicas and subscribers, and returns their number.
    pub fn client_kill_all(&self) -> Result<u64> {
        self.query(&["CLIENT", "KILL", "TYPE", "normal"])
    }

    fn number<N: std::str::FromStr>(&self, info: &BTreeMap<String, String>, field: &str) -> Result<N> {
        info.get(field).and_then(|value| value.parse().ok()).ok_or_else(|| Error::Unexpected {
            port: self.port(),
            command: "INFO".to_owned(),
            reply: format!("no number as {field}"),
        })
    }

    fn signal(&self, send: impl FnOnce(&mut Process) -> Result<()>) -> Result<()> {
        self.process.lock().as_mut().map_or(Err(Error::NotRunning { port: self.port() }), send)
    }

    fn start_on_free_ports(directives: &[(&str, &str)], tls: Option<(&Path, &Path)>) -> Result<Self> {
        // A process without this module may take a port before the server binds it. This is rare.
        const ATTEMPTS: usize = 5;
        let mut attempt = 1;
        loop {
            match Self::start_on(Ports::take()?, directives, tls) {
                Err(Error::Exited { log, .. })
                    if attempt < ATTEMPTS && log.contains("Address already in use") =>
                {
                    attempt += 1;
                }
                result => return result,
            }
        }
    }

    fn start_on(ports: Ports, directives: &[(&str, &str)], tls: Option<(&Path, &Path)>) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("swarmkeep-server-").tempdir();
        let folder = folder.map_err(Error::io("making a server's folder"))?;
        let mut configuration = format!(
            "port {}\nbind 127.0.0.1\nprotected-mode no\ndir .\nsave \"\"\nappendonly no\n",
            ports.first()
        );
        if let Some((certificate, key)) = tls {
            configuration += &format!(
                "tls-port {}\ntls-cert-file {}\ntls-key-file {}\ntls-auth-clients no\n",
                ports.second(),
                certificate.display(),
                key.display()
            );
        }
        let loads = directives.iter().any(|(directive, _)| *directive == "loadmodule");
        if let Some(module) = env::var_os(MODULE_VARIABLE).filter(|_| !loads) {
            configuration += &format!("loadmodule {}\n", module.display());
        }
        for (directive, values) in directives {
            configuration += &format!("{directive} {values}\n");
        }
        let written = fs::write(folder.path().join(CONFIGURATION), configuration);
        written.map_err(Error::io("configuring a server"))?;
        let password = directives.iter().rfind(|(directive, _)| *directive == "requirepass");
        let password = password.map(|(_, password)| (*password).to_owned());
        let server = Self { process: Mutex::new(None), folder, ports, password };
        server.restart()?;
        Ok(server)
    }

    fn launch(&self) -> Result<Process> {
        let mut process = Process::start(self.folder())?;
        let id = process.id().to_string();
        // The inner error is of a process that ended: it would not help to wait.
        wait_until(&format!("starting a server on port {}", self.port()), || {
            if let Err(error) = process.check(self.folder()) {
                return Ok(Err(error));
            }
            match self.answers_as(&id) {
                Err(error) => Err(error.to_string()),
                Ok(false) => Err("another process answers there".to_owned()),
                Ok(true) => Ok(Ok(())),
            }
        })??;
        Ok(process)
    }

    /// Whether the server has loaded its data from disk, and is the process that was started here.
    fn answers_as(&self, process: &str) -> Result<bool> {
        self.command(&["PING"])?;
        Ok(self.info("server")?.get("process_id").is_some_and(|id| id == process))
    }
}
