//! Incoming connections that have not named a torrent yet.

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::network::site;

/// Room for incoming connections until they have named a torrent. They use no permit, and none makes another
/// wait: if there is no room, the oldest one of the site with the most ends.
#[derive(Debug, Default)]
pub(crate) struct Lobby {
    callers: Mutex<Callers>,
}

#[derive(Debug, Default)]
struct Callers {
    next: u64,
    /// By number, the oldest first.
    waiting: BTreeMap<u64, (IpAddr, CancellationToken)>,
}

/// An incoming connection in the lobby, until this is dropped.
pub(crate) struct LobbyPlace {
    lobby: Arc<Lobby>,
    number: u64,
    /// Cancelled when it has to end.
    pub(crate) leaves: CancellationToken,
}

impl Lobby {
    const MOST: usize = 128;

    pub(crate) fn enter(self: &Arc<Self>, ip: IpAddr) -> LobbyPlace {
        let mut callers = self.callers.lock();
        let Callers { next, waiting } = &mut *callers;
        if waiting.len() >= Self::MOST {
            let of_site = |site| waiting.values().filter(|(other, _)| *other == site).count();
            // Of equals, `max_by_key` returns the last: the oldest.
            let leaves = waiting.iter().rev().max_by_key(|(_, (site, _))| of_site(*site));
            let leaves = leaves.map(|(number, _)| *number).expect("it is full");
            waiting.remove(&leaves).expect("it was found").1.cancel();
        }
        let (number, leaves) = (*next, CancellationToken::new());
        *next += 1;
        waiting.insert(number, (site(ip), leaves.clone()));
        LobbyPlace { lobby: Arc::clone(self), number, leaves }
    }
}

impl Drop for LobbyPlace {
    fn drop(&mut self) {
        self.lobby.callers.lock().waiting.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_lobby_ends_the_oldest_of_the_largest_site() {
        let lobby = Arc::new(Lobby::default());
        let honest = lobby.enter(IpAddr::from([192, 0, 2, 1]));
        let of = |site: u8| move |host: u8| IpAddr::from([10, 0, site, host]);
        let mut crowd: Vec<_> = (0..64).map(of(1)).map(|ip| lobby.enter(ip)).collect();
        crowd.extend((0..200).map(of(2)).map(|ip| lobby.enter(ip)));
        assert!(!honest.leaves.is_cancelled());
        let left = |crowd: &[LobbyPlace]| crowd.iter().filter(|place| place.leaves.is_cancelled()).count();
        assert_eq!((left(&crowd[..64]), left(&crowd[64..])), (1, 136));
        assert!(crowd[0].leaves.is_cancelled() && crowd[64].leaves.is_cancelled(), "the oldest");
        assert!(!crowd[64 + 199].leaves.is_cancelled(), "the newest");
        drop(crowd);
        let again: Vec<_> = (0..127).map(of(3)).map(|ip| lobby.enter(ip)).collect();
        assert_eq!((left(&again), lobby.callers.lock().waiting.len()), (0, Lobby::MOST));
    }
}
