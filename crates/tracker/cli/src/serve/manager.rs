//! The service manager: sockets from it (sd_listen_fds(3)), and notifications to it (sd_notify(3)).

use std::{convert::Infallible, env, future::pending, time::Duration};

use listenfd::ListenFd;
use sd_notify::NotifyState;
use swarmkeep::{
    Totals,
    bittorrent::{counted, in_words},
};
use swarmkeep_tracker::{Control, Sockets};
use tokio::time::{Instant, sleep, timeout};
use tracing::{error, warn};

/// The longest time between notifications. The watchdog of the manager may need a shorter one.
const STATUS_PERIOD: Duration = Duration::from_secs(10);

/// The time between looks at threads that have not started, or that are stuck.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// Unusable sockets from the manager.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WrongSocket {
    #[error(
        "the {nth}. socket that was handed over, `{name}`, is neither of UDP nor of TCP; hand over others"
    )]
    Unknown { nth: usize, name: String },
    #[error("several sockets that were handed over are named `admin`; hand over one")]
    ManyAdmins,
}

/// The sockets from the manager: datagrams are for UDP, streams for HTTP unless they are named `https` or
/// `admin`.
pub(crate) fn sockets() -> Result<Sockets, WrongSocket> {
    let names = env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    let mut handed_over = ListenFd::from_env();
    let mut sockets = Sockets::default();
    for n in 0..handed_over.len() {
        let name = names.next().unwrap_or_default();
        if let Ok(Some(socket)) = handed_over.take_udp_socket(n) {
            sockets.udp.push(socket);
        } else if let Ok(Some(listener)) = handed_over.take_tcp_listener(n) {
            match name {
                "https" => sockets.https.push(listener),
                "admin" if sockets.admin.is_some() => return Err(WrongSocket::ManyAdmins),
                "admin" => sockets.admin = Some(listener),
                _ => sockets.http.push(listener),
            }
        } else {
            return Err(WrongSocket::Unknown { nth: n + 1, name: name.into() });
        }
    }
    Ok(sockets)
}

/// Notifies the manager once the tracker answers, and from then on of its status, and of its watchdog while
/// threads and timers run.
pub(crate) async fn report(control: Control) -> Infallible {
    if env::var_os("NOTIFY_SOCKET").is_none() {
        return pending().await;
    }
    let metrics = &control.metrics;
    while metrics.threads().starting > 0 {
        sleep(LOOK_AGAIN).await;
    }
    tell(&[NotifyState::Ready]);
    let watchdog = sd_notify::watchdog_enabled().map(|longest| longest / 2);
    let period = watchdog.unwrap_or(STATUS_PERIOD).min(STATUS_PERIOD);
    let (mut requests, mut since) = (0, Instant::now());
    loop {
        sleep(period).await;
        let mut told = false;
        while metrics.threads().stuck > 0 {
            if !told {
                error!(
                    threads = metrics.threads().stuck,
                    "threads have not looked at their sockets for seconds"
                );
                told = true;
            }
            sleep(LOOK_AGAIN).await;
        }
        let counts = metrics.counts();
        let all = counts.udp.all_requests() + counts.http.all_requests();
        let per_second = (all - requests) as f64 / since.elapsed().as_secs_f64();
        (requests, since) = (all, Instant::now());
        let mut status = format!("{per_second:.0} requests per second");
        if watchdog.is_some() {
            tell(&[NotifyState::Watchdog]);
        }
        if let Ok(Ok(Totals { swarms, .. })) = timeout(period / 4, control.repository.totals()).await {
            status += &format!("; {}", counted(swarms as usize, "torrent"));
        }
        tell(&[NotifyState::Status(&status)]);
    }
}

/// Notifies of settings that are being read again. [`ready`] ends it.
pub(crate) fn reloading() {
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => {
            warn!(error = %in_words(&error), "cannot notify the service manager of reading settings again")
        }
    }
}

pub(crate) fn ready() {
    tell(&[NotifyState::Ready]);
}

pub(crate) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Does nothing without a manager.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        warn!(error = %in_words(&error), "cannot notify the service manager");
    }
}
