//! A program at an interface, its addresses, and the sockets of its queues.

use std::{
    collections::BTreeSet,
    fmt, fs, io,
    net::{IpAddr, SocketAddr},
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
    sync::{
        Arc,
        atomic::Ordering::{Relaxed, Release},
    },
    thread,
    time::Duration,
};

use nix::ifaddrs::getifaddrs;
use rustix::net::{
    AddressFamily, SocketType,
    netdevice::{index_to_name, name_to_index},
    socket,
};

use crate::{
    kernel::{Kind, Link, Map, MapWords, Place, Program},
    program::{self, Maps, Options},
    queue::{Copying, Queue, Statistics},
};

/// How frames reach this process, from the cheapest mode to the most expensive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The driver writes them into the memory of this process.
    ZeroCopy,
    /// The program runs in the driver, and frames are copied.
    Native,
    /// The program runs in the kernel, before its protocols. This works with every driver.
    Generic,
}

impl Mode {
    /// From the cheapest to the most expensive.
    pub const ALL: [Self; 3] = [Self::ZeroCopy, Self::Native, Self::Generic];

    /// Its name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::ZeroCopy => "zero-copy",
            Self::Native => "native",
            Self::Generic => "generic",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The reason why a program cannot be attached or kept up to date.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no such interface.
    #[error("there is no interface `{0}`; `ip link` lists all interfaces")]
    NoInterface(String),
    /// The interface has been removed since the program was attached.
    #[error("the interface is gone")]
    Gone,
    /// The interface has another program.
    #[error("another XDP program is attached there; `ip link show` names it")]
    Taken,
    /// The process lacks a capability.
    #[error("{0}: permission denied; it takes CAP_NET_ADMIN, CAP_BPF and CAP_NET_RAW")]
    Forbidden(&'static str),
    /// The process may not lock enough memory.
    #[error(
        "{0}: the limit of locked memory is too low; it takes 8 MiB per queue (LimitMEMLOCK=, ulimit -l)"
    )]
    Memory(&'static str),
    /// No mode works; each has its reason.
    #[error("no mode works: {}", RefusedModes(.0))]
    NoMode(Vec<(Mode, Self)>),
    /// The system refuses a step.
    #[error("{what}: {source}")]
    System {
        /// The step.
        what: &'static str,
        /// The error of the operating system.
        source: io::Error,
    },
}

impl Error {
    fn when(what: &'static str) -> impl Fn(io::Error) -> Self {
        move |source| match source.raw_os_error() {
            Some(libc::EPERM | libc::EACCES) => Self::Forbidden(what),
            Some(libc::ENOBUFS) => Self::Memory(what),
            _ => Self::System { what, source },
        }
    }
}

/// Modes that do not work, as text.
struct RefusedModes<'a>(&'a [(Mode, Error)]);

impl fmt::Display for RefusedModes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (mode, error)) in self.0.iter().enumerate() {
            write!(f, "{}{mode}: {error}", if n == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// The datagrams that go to queues and not to the kernel.
#[derive(Debug, Clone)]
pub enum Datagrams {
    /// Those of a server: to these addresses. An unspecified IP address means all addresses of the interface
    /// in its family.
    To(Vec<SocketAddr>),
    /// Those of a client: from these addresses.
    From(Vec<SocketAddr>),
}

/// The parameters of an [`Attached`].
#[derive(Debug, Clone)]
pub struct Settings {
    /// The name of the interface.
    pub interface: String,
    /// Which datagrams go to its [`Queue`]s.
    pub datagrams: Datagrams,
    /// Whether the program answers connects of BitTorrent trackers.
    pub connects: bool,
    /// The largest number of queues with a socket; frames of other queues pass.
    pub most_queues: usize,
    /// The modes to try, in this order.
    pub modes: Vec<Mode>,
}

/// A program at an interface. It is detached when this is dropped, and whenever the process ends.
#[derive(Debug)]
pub struct Attached {
    index: u32,
    mode: Mode,
    refused: Vec<(Mode, Error)>,
    routes: [bool; 2],
    datagrams: Datagrams,
    /// The addresses in the map.
    ours: BTreeSet<SocketAddr>,
    addresses: Map,
    connects: Option<(MapWords, Map)>,
    /// Of the queues.
    sockets: Vec<Arc<OwnedFd>>,
    /// Until it is detached.
    link: Option<Link>,
    _map_of_sockets: Map,
    _program: Program,
}

/// The time and the keys of connection ids: a key for this hour, and one for the next.
#[derive(Debug, Clone, Copy)]
pub struct ConnectKeys {
    /// The time in steps of 8 seconds; 0 if the program is to answer no connects.
    pub tick: u64,
    /// The key of the even hour, then the key of the odd hour. An hour has 450 steps.
    pub keys: [[u64; 2]; 2],
}

/// The bytes of a key in the map of addresses.
const ADDRESS: usize = 20;
/// The words of the value with the time and the keys.
const CONNECT_WORDS: usize = 5;

impl Attached {
    /// Attaches a program in the first of the modes that works, and opens a [`Queue`] for each queue of the
    /// interface. Each takes 8 MiB of memory. After this the process needs no privileges. Datagrams to a
    /// server pass until [`follow_addresses`](Self::follow_addresses) is called.
    ///
    /// # Errors
    /// [`Error::NoInterface`] and [`Error::Forbidden`]; [`Error::NoMode`] with the error of each mode, which
    /// may be [`Error::Taken`]; or [`Error::System`].
    pub fn new(settings: &Settings) -> Result<(Self, Vec<Queue>), Error> {
        if cfg!(target_endian = "big") {
            let source = io::ErrorKind::Unsupported.into();
            return Err(Error::System { what: "making a program for this machine", source });
        }
        let Settings { interface, datagrams, connects, most_queues, modes } = settings;
        let index =
            name_to_index(any_socket()?, interface).map_err(|_| Error::NoInterface(interface.clone()))?;
        let map = |kind, key, value, entries| {
            Map::new(kind, key, value, entries).map_err(Error::when("making a map"))
        };
        let addresses = map(Kind::Hash, ADDRESS, 4, 1024)?;
        let queues = queues(interface).clamp(1, (*most_queues).max(1));
        let sockets = map(Kind::Sockets, 4, 4, queues as u32)?;
        let connects = match connects {
            true => {
                let array = map(Kind::Array, 4, CONNECT_WORDS * 8, 1)?;
                Some((array, map(Kind::Counts, 4, 8, 2)?))
            }
            false => None,
        };
        let is_client = matches!(datagrams, Datagrams::From(_));
        let routes = ["ipv4", "ipv6"].map(|family| !is_client && looks_up_routes(family));
        let maps = Maps {
            addresses: addresses.descriptor(),
            sockets: sockets.descriptor(),
            connects: connects.as_ref().map(|(array, counts)| (array.descriptor(), counts.descriptor())),
        };
        let code = program::build(&Options { maps, is_client, routes });
        let program = Program::load(&code).map_err(Error::when("loading the program"))?;
        let connects = match connects {
            Some((array, counts)) => Some((array.words().map_err(Error::when("mapping the keys"))?, counts)),
            None => None,
        };
        let AttachedMode { mode, link, opened, refused } = climb(&program, index, queues, modes)?;
        for (number, queue) in opened.iter().enumerate() {
            let descriptor = queue.socket().as_raw_fd().to_ne_bytes();
            let set = sockets.set(&(number as u32).to_ne_bytes(), &descriptor);
            set.map_err(Error::when("giving the program a socket"))?;
        }
        let mut attached = Self {
            index,
            mode,
            refused,
            routes,
            datagrams: datagrams.clone(),
            ours: BTreeSet::new(),
            addresses,
            connects,
            sockets: opened.iter().map(Queue::socket).collect(),
            link: Some(link),
            _map_of_sockets: sockets,
            _program: program,
        };
        if is_client {
            attached.follow_addresses()?;
        }
        Ok((attached, opened))
    }

    /// Returns the mode that works; `None` after the program was detached.
    pub fn mode(&self) -> Option<Mode> {
        self.link.as_ref().map(|_| self.mode)
    }

    /// Returns the number of the interface.
    pub const fn interface(&self) -> u32 {
        self.index
    }

    /// Returns the modes that were tried before it, with the reasons why they do not work.
    pub fn refused(&self) -> &[(Mode, Error)] {
        &self.refused
    }

    /// Returns whether the kernel's routes decide the way back, over IPv4 and over IPv6. Otherwise an answer
    /// goes to the hardware address of the request's sender.
    pub const fn routes(&self) -> [bool; 2] {
        self.routes
    }

    /// Removes the program: the kernel has all datagrams again.
    pub fn detach(&mut self) {
        self.link = None;
    }

    /// Tells the program the addresses that the interface has now. Call it every few seconds: it lists the
    /// addresses of all interfaces.
    ///
    /// # Errors
    /// [`Error::Gone`], after which the program is detached, or [`Error::System`].
    pub fn follow_addresses(&mut self) -> Result<(), Error> {
        let Ok(name) = index_to_name(any_socket()?, self.index) else {
            self.detach();
            return Err(Error::Gone);
        };
        let ours = match &self.datagrams {
            Datagrams::From(remote) => remote.iter().copied().collect(),
            Datagrams::To(listening) => local(&name, listening)?,
        };
        self.tell_addresses(ours)
    }

    /// Returns the number of addresses, each with a port, for which the program takes datagrams.
    pub fn addresses(&self) -> usize {
        self.ours.len()
    }

    /// Passes everything to the kernel from now on. Frames in a [`Queue`] can still be answered.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn pass_all(&mut self) -> Result<(), Error> {
        self.tell_addresses(BTreeSet::new())
    }

    fn tell_addresses(&mut self, ours: BTreeSet<SocketAddr>) -> Result<(), Error> {
        let error = Error::when("telling the program its addresses");
        for new in ours.difference(&self.ours) {
            self.addresses.set(&key(new), &[0; 4]).map_err(&error)?;
        }
        for gone in self.ours.difference(&ours) {
            self.addresses.remove(&key(gone)).map_err(&error)?;
        }
        self.ours = ours;
        Ok(())
    }

    /// Sets the time and the keys of connection ids; the program answers connects from then on, or none if
    /// the time is 0.
    pub fn set_keys(&self, ConnectKeys { tick, keys }: ConnectKeys) {
        let Some((words, _)) = &self.connects else { return };
        let [time, rest @ ..] = words.all() else { return };
        for (word, key) in rest.iter().zip(keys.as_flattened()) {
            word.store(*key, Relaxed);
        }
        time.store(tick, Release);
    }

    /// Returns the numbers of frames that did not reach a queue. Makes a system call per queue.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn statistics(&self) -> Result<Statistics, Error> {
        let mut sum = Statistics::default();
        for socket in &self.sockets {
            let of_one = Statistics::of(socket).map_err(Error::when("reading statistics"))?;
            sum.ring_full += of_one.ring_full;
            sum.no_place += of_one.no_place;
        }
        Ok(sum)
    }

    /// The number of connects that the program has answered, over IPv4 and over IPv6.
    ///
    /// # Errors
    /// [`Error::System`].
    pub fn connects(&self) -> Result<[u64; 2], Error> {
        let Some((_, counts)) = &self.connects else { return Ok([0; 2]) };
        let count = |family| counts.sum(family).map_err(Error::when("reading counts"));
        Ok([count(0)?, count(1)?])
    }
}

/// Returns an address as the program looks it up: 16 bytes, IPv4-mapped if it is IPv4, and the port.
pub(crate) fn key(address: &SocketAddr) -> [u8; ADDRESS] {
    let ip = match address.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let mut key = [0; ADDRESS];
    key[..16].copy_from_slice(&ip.octets());
    key[16..18].copy_from_slice(&address.port().to_be_bytes());
    key
}

/// Returns the number of queues that an interface both receives and sends by.
fn queues(interface: &str) -> usize {
    let folder = Path::new("/sys/class/net").join(interface).join("queues");
    let names: Vec<_> = fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.file_name()).collect();
    let count = |kind: &[u8]| names.iter().filter(|name| name.as_encoded_bytes().starts_with(kind)).count();
    count(b"rx-").min(count(b"tx-"))
}

/// Returns whether programs may look up routes of a family: the kernel allows it if loopback forwards.
fn looks_up_routes(family: &str) -> bool {
    let forwards = fs::read_to_string(format!("/proc/sys/net/{family}/conf/lo/forwarding"));
    forwards.is_ok_and(|forwards| forwards.trim() == "1")
}

/// The addresses of an interface at which a server listens, with their ports.
fn local(interface: &str, listening: &[SocketAddr]) -> Result<BTreeSet<SocketAddr>, Error> {
    let all = getifaddrs().map_err(|error| Error::when("reading addresses")(error.into()))?;
    // With a label, such as `eth0:1`, which an address over IPv4 may have in place of the name.
    let is_of_interface = |name: &str| name.split(':').next() == Some(interface);
    let of_interface = all.filter(|address| is_of_interface(&address.interface_name)).filter_map(|address| {
        let address = address.address?;
        let v4 = address.as_sockaddr_in().map(|v4| IpAddr::from(v4.ip()));
        v4.or_else(|| address.as_sockaddr_in6().map(|v6| v6.ip().into()))
    });
    let ours = of_interface.flat_map(|ip| {
        let with_port = listening.iter().map(move |at| (at, SocketAddr::new(ip, at.port())));
        with_port.filter(|(at, here)| listens(**at, *here)).map(|(_, here)| here)
    });
    Ok(ours.collect())
}

/// Whether a socket that is bound to `at` receives datagrams to `to`.
pub fn listens(at: SocketAddr, to: SocketAddr) -> bool {
    let everywhere = at.ip().is_unspecified() && at.is_ipv4() == to.is_ipv4();
    at.port() == to.port() && (everywhere || at.ip() == to.ip())
}

/// Opens a socket for ioctls about interfaces.
fn any_socket() -> Result<OwnedFd, Error> {
    let any = socket(AddressFamily::INET, SocketType::DGRAM, None);
    any.map_err(|error| Error::when("opening a socket")(error.into()))
}

struct AttachedMode {
    mode: Mode,
    link: Link,
    opened: Vec<Queue>,
    refused: Vec<(Mode, Error)>,
}

/// Attaches in the first mode that works.
fn climb(program: &Program, index: u32, queues: usize, modes: &[Mode]) -> Result<AttachedMode, Error> {
    let mut refused = Vec::new();
    for &mode in modes {
        match attach(program, index, queues, mode) {
            Ok((link, opened)) => return Ok(AttachedMode { mode, link, opened, refused }),
            Err(error) => refused.push((mode, error)),
        }
    }
    Err(Error::NoMode(refused))
}

fn attach(program: &Program, index: u32, queues: usize, mode: Mode) -> Result<(Link, Vec<Queue>), Error> {
    let (place, copying) = match mode {
        Mode::ZeroCopy => (Place::Native, Copying::ZeroCopy),
        Mode::Native => (Place::Native, Copying::Copy),
        Mode::Generic => (Place::Generic, Copying::Copy),
    };
    let link = patiently(|| program.attach(index, place)).map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY | libc::EEXIST) => Error::Taken,
        _ => Error::when("attaching the program")(error),
    })?;
    let open = |queue| patiently(|| Queue::open(index, queue as u32, copying));
    let opened = (0..queues).map(open).collect::<io::Result<_>>();
    Ok((link, opened.map_err(Error::when("opening a socket at a queue"))?))
}

/// Retries for a second while a resource is busy, or has a program of another mode: the kernel frees the
/// queues and the memory of a failed mode a little later, and a child process that is being started has
/// copies of them for a moment.
fn patiently<T>(mut attempt: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let is_busy =
        |error: &io::Error| matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EEXIST | libc::ENOBUFS));
    let mut patience = 200;
    loop {
        match attempt() {
            Err(error) if patience > 0 && is_busy(&error) => {
                patience -= 1;
                thread::sleep(Duration::from_millis(5));
            }
            done => return done,
        }
    }
}
