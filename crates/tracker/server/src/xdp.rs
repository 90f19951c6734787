//! XDP while a tracker runs: a program at an interface, and its queues, which bypass the system's sockets.

use std::{
    convert::Infallible,
    mem,
    net::{SocketAddr, UdpSocket},
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use swarmkeep::bittorrent::in_words;
use swarmkeep_xdp::{Attached, Datagrams, Error as AttachError, Queue, Settings, Statistics};
use tokio::time::{MissedTickBehavior, interval};
use tracing::{error, info, warn};

use crate::{
    Error, Reach,
    clock::now,
    families::addresses,
    metrics::XdpStatus,
    rules::LiveRules,
    udp::{ConnectionIds, FrameFront, Front, Listener},
};
pub use swarmkeep_xdp::Mode as XdpMode;

/// An interface with datagrams that bypass the system's sockets (AF_XDP). Where that does not work, they come
/// through the sockets.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Xdp {
    /// The name of the interface.
    pub interface: String,
    /// The mode to begin with; modes that cost more are tried after it.
    pub mode: XdpMode,
    /// Whether the program at the interface answers connects itself. `None`: if its answers arrive for sure,
    /// which is not so in native mode at an interface without hardware, such as one end of a veth pair: the
    /// other end drops them unless it has a program or GRO too.
    pub connects: Option<bool>,
}

impl Xdp {
    /// The interface of this name, in the best mode that works.
    pub fn at(interface: impl Into<String>) -> Self {
        Self { interface: interface.into(), mode: XdpMode::ZeroCopy, connects: None }
    }
}

/// The time between two updates of the time of connection ids, which has steps of 8 seconds.
const EVERY: Duration = Duration::from_secs(1);

/// After this many of them the addresses of the interface are read again, some 50 µs of work.
const ADDRESSES_AFTER: u32 = 5;

/// A program that is attached, and the queues for the threads.
#[derive(Debug)]
pub(crate) struct OpenedXdp {
    pub(crate) guard: DetachGuard,
    queues: Vec<Queue>,
    listening: Arc<[(SocketAddr, Listener)]>,
    interface: u32,
}

/// The program is detached when this is dropped. Metrics may last longer.
#[derive(Debug)]
pub(crate) struct DetachGuard(pub(crate) Arc<Attachment>);

impl Drop for DetachGuard {
    fn drop(&mut self) {
        if let Some(mut attached) = self.0.attached() {
            attached.detach();
        }
    }
}

/// The way past the sockets, whether it works here or not.
#[derive(Debug)]
pub(crate) struct Attachment {
    name: String,
    /// Whether the program answers connects, once it has keys.
    connects: bool,
    attached: Option<Mutex<Attached>>,
}

impl OpenedXdp {
    /// Attaches the program, with at most one queue per thread: as many as sockets per address. Logs the
    /// result.
    ///
    /// # Errors
    /// [`Error::NoInterface`]. Where it does not work, the system's sockets receive everything.
    pub(crate) fn at(xdp: &Xdp, sockets: &[Vec<UdpSocket>]) -> Result<Self, Error> {
        let of_listener = |(nth, sockets): (usize, &Vec<UdpSocket>)| {
            let addresses =
                sockets.first().and_then(|socket| addresses(&socket.into()).ok()).unwrap_or_default();
            addresses.into_iter().map(move |at| (at, Listener { nth, reach: Reach::of_listener(at.ip()) }))
        };
        let listening: Arc<[_]> = sockets.iter().enumerate().flat_map(of_listener).collect();
        let modes = XdpMode::ALL.into_iter().skip_while(|&mode| mode != xdp.mode).collect();
        let settings = Settings {
            interface: xdp.interface.clone(),
            datagrams: Datagrams::To(listening.iter().map(|(address, _)| *address).collect()),
            connects: xdp.connects != Some(false),
            most_queues: sockets.first().map_or(1, Vec::len),
            modes,
        };
        let name = xdp.interface.clone();
        let (attached, queues) = match Attached::new(&settings) {
            Ok(attached) => attached,
            Err(AttachError::NoInterface(name)) => return Err(Error::NoInterface(name)),
            Err(error) => {
                warn!(interface = name, error = %in_words(&error), "no XDP: all datagrams come through sockets");
                let guard = DetachGuard(Arc::new(Attachment { name, connects: false, attached: None }));
                return Ok(Self { guard, queues: Vec::new(), listening, interface: 0 });
            }
        };
        for (mode, error) in attached.refused() {
            info!(interface = name, %mode, error = %in_words(&error), "XDP: this mode does not work");
        }
        let mode = attached.mode().expect("just attached");
        let connects = xdp.connects.unwrap_or_else(|| mode == XdpMode::Generic || has_hardware(&name));
        info!(interface = name, %mode, queues = queues.len(), connects, "XDP: attached");
        for (family, routes) in ["IPv4", "IPv6"].into_iter().zip(attached.routes()) {
            if !routes {
                info!(
                    interface = name,
                    "XDP: answers over {family} follow no route; they go to the hardware address of the sender"
                );
            }
        }
        let interface = attached.interface();
        let attached = Some(Mutex::new(attached));
        let guard = DetachGuard(Arc::new(Attachment { name, connects, attached }));
        Ok(Self { guard, queues, listening, interface })
    }

    /// One front per queue.
    pub(crate) fn into_fronts(self) -> (DetachGuard, impl Iterator<Item = Box<dyn Front + Send>>) {
        let Self { guard, queues, listening, interface } = self;
        let front = move |queue| FrameFront::new(queue, Arc::clone(&listening), interface);
        (guard, queues.into_iter().map(front).map(|front| Box::new(front) as _))
    }
}

fn has_hardware(interface: &str) -> bool {
    Path::new("/sys/class/net").join(interface).join("device").exists()
}

impl Attachment {
    fn attached(&self) -> Option<MutexGuard<'_, Attached>> {
        // No code under the lock panics.
        Some(self.attached.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// For ever: follows the time and the addresses of the interface.
    pub(crate) async fn care(&self, ids: &ConnectionIds, rules: &LiveRules) -> Infallible {
        let mut times = interval(EVERY);
        times.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut known = usize::MAX;
        for time in (0..ADDRESSES_AFTER).cycle() {
            times.tick().await;
            let Some(mut attached) = self.attached().filter(|attached| attached.mode().is_some()) else {
                continue;
            };
            if self.connects {
                let mut keys = ids.at(now()).keys();
                // The program does not know the networks that are refused.
                if rules.now().refused.as_ref().is_some_and(|refused| refused.list().len() > 0) {
                    keys.tick = 0;
                }
                attached.set_keys(keys);
            }
            if time > 0 {
                continue;
            }
            match attached.follow_addresses() {
                Ok(()) => {
                    let addresses = attached.addresses();
                    if mem::replace(&mut known, addresses) != addresses && addresses == 0 {
                        warn!(
                            interface = self.name,
                            "XDP: the tracker listens at no address of the interface"
                        );
                    }
                }
                Err(error @ AttachError::Gone) => {
                    error!(interface = self.name, error = %in_words(&error), "no XDP any more: restart when it is back");
                }
                Err(error) => {
                    warn!(interface = self.name, error = %in_words(&error), "XDP: new addresses come through sockets");
                }
            }
        }
        unreachable!("times do not end")
    }

    /// Passes all datagrams from now on to the system's sockets.
    pub(crate) fn stop(&self) {
        if let Some(mut attached) = self.attached()
            && let Err(error) = attached.pass_all()
        {
            warn!(interface = self.name, error = %in_words(&error), "XDP: requests from now on are lost");
        }
    }

    /// The mode, and counts since the start. A count that cannot be read is 0.
    pub(crate) fn status(&self) -> XdpStatus {
        let Some(attached) = self.attached() else { return XdpStatus::default() };
        let Statistics { ring_full, no_place, .. } = attached.statistics().unwrap_or_default();
        XdpStatus {
            mode: attached.mode().map(XdpMode::name),
            addresses: attached.addresses(),
            connects: attached.connects().unwrap_or_default(),
            ring_full,
            no_place,
        }
    }
}
