//! The open connections, their limits, and the choice of a connection that makes room for another.

use std::{
    cmp::Reverse,
    collections::{HashMap, hash_map::Entry},
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use crate::block::Block;

/// The open connections, no more than `most`, and no more than `most_per_address` of one client.
///
/// When all places are in use, the connection that has waited for the longest for a complete request, idle or
/// slow, makes room for a new one. Otherwise a crowd that holds connections open could keep all other clients
/// out, while a client opens another connection when its idle one is closed.
#[derive(Debug)]
pub(crate) struct Connections {
    table: Mutex<Table>,
    /// Notified when a place becomes free.
    freed: Notify,
    stopping: AtomicBool,
    began: Instant,
    most: usize,
    most_per_address: usize,
    yields: Yields,
}

/// Which connection makes room for another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Yields {
    /// The one that has waited for a request for the longest.
    LongestWaiting,
    /// The same, of the address with the most connections: a crowd displaces itself.
    LargestCrowd,
}

#[derive(Debug, Default)]
struct Table {
    places: Vec<Option<Arc<Connection>>>,
    free: Vec<usize>,
    /// Only for addresses with connections, which bounds its size.
    of_address: HashMap<Block, usize>,
    /// Where the next search for a connection to close begins.
    hand: usize,
    /// The number of connections so far.
    taken: u64,
}

#[derive(Debug)]
struct Connection {
    /// The time of the latest answer, or of the opening, in milliseconds since the beginning; [`BUSY`] while
    /// there is a request.
    waiting_since: AtomicU64,
    /// Whether there was no request yet.
    silent: AtomicBool,
    from: Block,
    /// Whether it is a trusted proxy's.
    is_proxy: bool,
    /// Older connections have smaller numbers.
    number: u64,
    close: Notify,
}

const BUSY: u64 = u64::MAX;

/// A connection that has waited for a request for longer than this can be closed at once.
pub(crate) const HEARD_OUT: Duration = Duration::from_millis(100);

/// How many connections a search visits: the one of 16 that has waited for the longest is among the first
/// eighth of all with a probability of 88 %, and a new connection need not visit all 4,096.
const LOOKED_AT: usize = 16;

impl Connections {
    pub(crate) fn new(most: usize, most_per_address: usize, yields: Yields) -> Self {
        Self {
            table: Mutex::default(),
            freed: Notify::new(),
            stopping: AtomicBool::new(false),
            began: Instant::now(),
            most: most.max(1),
            most_per_address: most_per_address.max(1),
            yields,
        }
    }

    /// A place for a connection from `ip`; `None` if that address has `most_per_address`. Waits until there
    /// is room. With `unlimited`, only the number of all connections is limited.
    pub(crate) async fn place(self: &Arc<Self>, ip: IpAddr, unlimited: bool) -> Option<ConnectionPlace> {
        let from = Block::of(ip);
        let block = (!unlimited).then_some(from);
        loop {
            {
                let mut table = self.table();
                if let Some(block) = block
                    && table.of_address.get(&block).is_some_and(|&open| open >= self.most_per_address)
                {
                    return None;
                }
                if table.open() < self.most {
                    let place = self.give_place(&mut table, from, block);
                    if table.open() < self.most {
                        // Two places may have become free with one notification.
                        self.freed.notify_one();
                    }
                    return Some(place);
                }
                table.make_room(self.yields);
            }
            self.freed.notified().await;
        }
    }

    fn give_place(self: &Arc<Self>, table: &mut Table, from: Block, block: Option<Block>) -> ConnectionPlace {
        table.taken += 1;
        let connection = Arc::new(Connection {
            waiting_since: AtomicU64::new(self.millis()),
            silent: AtomicBool::new(true),
            from,
            is_proxy: block.is_none(),
            number: table.taken,
            close: Notify::new(),
        });
        if self.is_stopping() {
            connection.close.notify_one();
        }
        let nth = table.free.pop().unwrap_or(table.places.len());
        if nth == table.places.len() {
            table.places.push(None);
        }
        table.places[nth] = Some(Arc::clone(&connection));
        if let Some(block) = block {
            *table.of_address.entry(block).or_default() += 1;
        }
        ConnectionPlace { connections: Arc::clone(self), connection, nth, block }
    }

    /// Notifies one connection that waits for a request to make room, if there is one.
    pub(crate) fn make_room(&self) {
        self.table().make_room(self.yields);
    }

    /// Notifies connections to close that have waited for a request for longer than `patience`, or, if they
    /// are unlimited, `of_proxies`.
    pub(crate) fn close_the_slow(&self, patience: Duration, of_proxies: Duration) {
        let before = |patience: Duration| self.millis().saturating_sub(patience.as_millis() as u64);
        let (before, of_proxies) = (before(patience), before(of_proxies));
        for connection in self.table().places.iter().flatten() {
            let before = if connection.is_proxy { of_proxies } else { before };
            if connection.waiting_since.load(Relaxed) < before {
                connection.close.notify_one();
            }
        }
    }

    /// Notifies all connections to close, later ones as soon as they are open.
    pub(crate) fn stop(&self) {
        // Under the lock: a connection is either in the table by now or sees that it must close.
        let table = self.table();
        self.stopping.store(true, Relaxed);
        table.places.iter().flatten().for_each(|connection| connection.close.notify_one());
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Relaxed)
    }

    fn millis(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        // No code under the lock panics.
        self.table.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Table {
    fn open(&self) -> usize {
        self.places.len() - self.free.len()
    }

    fn make_room(&mut self, yields: Yields) {
        match yields {
            Yields::LongestWaiting => self.end_the_longest_waiting(),
            Yields::LargestCrowd => self.end_one_of_the_largest_crowd(),
        }
    }

    fn end_one_of_the_largest_crowd(&self) {
        let open = || self.places.iter().flatten();
        let mut of_address = HashMap::<_, usize>::new();
        open().for_each(|connection| *of_address.entry(connection.from).or_default() += 1);
        let waiting = open().map(|connection| (connection, connection.waiting_since.load(Relaxed)));
        let ends = waiting.filter(|(_, since)| *since != BUSY).max_by_key(|(connection, since)| {
            (!connection.is_proxy, of_address[&connection.from], Reverse(*since), Reverse(connection.number))
        });
        if let Some((ends, _)) = ends {
            ends.close.notify_one();
        }
    }

    /// The longest of the next [`LOOKED_AT`] that wait at all.
    fn end_the_longest_waiting(&mut self) {
        let (mut longest, mut seen) = (None, 0);
        for _ in 0..self.places.len() {
            self.hand = (self.hand + 1) % self.places.len();
            let Some(connection) = &self.places[self.hand] else { continue };
            let since = connection.waiting_since.load(Relaxed);
            if since == BUSY {
                continue;
            }
            // A proxy sends its next request into a connection that waits.
            let waits = (connection.is_proxy, since);
            if longest.is_none_or(|(longest, _)| waits < longest) {
                longest = Some((waits, connection));
            }
            seen += 1;
            if seen == LOOKED_AT {
                break;
            }
        }
        if let Some((_, connection)) = longest {
            connection.close.notify_one();
        }
    }
}

/// One connection's place, until it is dropped.
#[derive(Debug)]
pub(crate) struct ConnectionPlace {
    connections: Arc<Connections>,
    connection: Arc<Connection>,
    nth: usize,
    block: Option<Block>,
}

impl ConnectionPlace {
    /// Notes a request. Until [`answered`](Self::answered), this connection need not make room.
    pub(crate) fn begin_request(&self) {
        self.connection.waiting_since.store(BUSY, Relaxed);
    }

    /// Notes the answer.
    pub(crate) fn answered(&self) {
        self.connection.waiting_since.store(self.connections.millis(), Relaxed);
    }

    /// Notes that there was a request.
    pub(crate) fn speaks(&self) {
        self.connection.silent.store(false, Relaxed);
    }

    pub(crate) fn is_silent(&self) -> bool {
        self.connection.silent.load(Relaxed)
    }

    /// The time since when it waits for a request, in milliseconds; `None` while it has one.
    pub(crate) fn waiting_since(&self) -> Option<u64> {
        Some(self.connection.waiting_since.load(Relaxed)).filter(|&since| since != BUSY)
    }

    /// Whether it can be closed at once: the tracker goes on, and an earlier request would have been
    /// received.
    pub(crate) fn may_close_at_once(&self) -> bool {
        let waited = |since| Duration::from_millis(self.connections.millis().saturating_sub(since));
        !self.is_stopping() && self.waiting_since().is_some_and(|since| waited(since) >= HEARD_OUT)
    }

    /// Waits for the notification to close.
    pub(crate) async fn close_requested(&self) {
        self.connection.close.notified().await;
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.connections.is_stopping()
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        let mut table = self.connections.table();
        table.places[self.nth] = None;
        table.free.push(self.nth);
        if let Some(block) = self.block
            && let Entry::Occupied(mut open) = table.of_address.entry(block)
        {
            *open.get_mut() -= 1;
            if *open.get() == 0 {
                open.remove();
            }
        }
        drop(table);
        self.connections.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::{
        pin::pin,
        task::{Context, Poll, Waker},
    };

    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn poll<F: Future>(future: F) -> Poll<F::Output> {
        pin!(future).poll(&mut Context::from_waker(Waker::noop()))
    }

    fn enter(connections: &Arc<Connections>, text: &str) -> Option<ConnectionPlace> {
        match poll(connections.place(ip(text), false)) {
            Poll::Ready(place) => place,
            Poll::Pending => panic!("no room for {text}"),
        }
    }

    fn must_close(place: &ConnectionPlace) -> bool {
        poll(place.close_requested()).is_ready()
    }

    /// Sets the time since when it waits.
    fn waits_since(place: &ConnectionPlace, millis: u64) {
        place.connection.waiting_since.store(millis, Relaxed);
    }

    #[test]
    fn the_connections_of_an_address_are_limited() {
        let connections = Arc::new(Connections::new(100, 2, Yields::LongestWaiting));
        for (address, same, other) in [
            ("192.0.2.1", "::ffff:192.0.2.1", "192.0.2.2"),
            ("2001:db8::1", "2001:db8::ffff:0:0:2", "2001:db8:0:1::1"),
        ] {
            let first = enter(&connections, address).unwrap();
            let _second = enter(&connections, same).unwrap();
            assert!(enter(&connections, address).is_none());
            assert!(enter(&connections, other).is_some());
            drop(first);
            assert!(enter(&connections, same).is_some());
            let Poll::Ready(Some(_)) = poll(connections.place(ip(address), true)) else {
                panic!("unlimited")
            };
        }
        assert!(connections.table().of_address.is_empty(), "only live connections are remembered");
        assert_eq!(connections.table().open(), 0);
        assert!(connections.table().places.len() <= 5, "places are used again");
    }

    #[test]
    fn the_longest_waiting_makes_room() {
        let connections = Arc::new(Connections::new(3, 100, Yields::LongestWaiting));
        let places = [30, 10, 20].map(|since| {
            let place = enter(&connections, "192.0.2.1").unwrap();
            waits_since(&place, since);
            place
        });
        let [first, second, third] = places;
        let mut fourth = Box::pin(connections.place(ip("192.0.2.9"), false));
        let mut poll = || fourth.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll().is_pending());
        assert_eq!([&first, &second, &third].map(must_close), [false, true, false]);
        assert!(poll().is_pending(), "as long as the other is there");
        drop(second);
        let Poll::Ready(Some(_fourth)) = poll() else { panic!("there is room") };
        assert_eq!([&first, &third].map(must_close), [false, false]);
    }

    #[test]
    fn a_connection_with_a_request_need_not_make_room() {
        let connections = Arc::new(Connections::new(2, 100, Yields::LongestWaiting));
        let busy = enter(&connections, "192.0.2.1").unwrap();
        let waiting = enter(&connections, "192.0.2.1").unwrap();
        busy.begin_request();
        for _ in 0..3 {
            connections.make_room();
            assert_eq!([&busy, &waiting].map(must_close), [false, true]);
        }
        waiting.begin_request();
        connections.make_room();
        assert_eq!([&busy, &waiting].map(must_close), [false, false]);
        busy.answered();
        connections.make_room();
        assert_eq!([&busy, &waiting].map(must_close), [true, false]);
    }

    #[test]
    fn a_crowd_displaces_its_own_oldest_whatever_it_asks() {
        let connections = Arc::new(Connections::new(4, 100, Yields::LargestCrowd));
        let honest = enter(&connections, "192.0.2.1").unwrap();
        let crowd = [(); 3].map(|()| enter(&connections, "192.0.2.2").unwrap());
        [&honest, &crowd[0], &crowd[1], &crowd[2]].iter().for_each(|place| waits_since(place, 5));
        let closing = || [&honest, &crowd[0], &crowd[1], &crowd[2]].map(must_close);
        connections.make_room();
        assert_eq!(closing(), [false, true, false, false]);
        waits_since(&crowd[0], 7);
        crowd[1].begin_request();
        connections.make_room();
        assert_eq!(closing(), [false, false, false, true]);
        [&crowd[0], &crowd[2]].iter().for_each(|place| place.begin_request());
        connections.make_room();
        assert_eq!(closing(), [true, false, false, false], "all others have requests");
    }

    #[test]
    fn only_slow_connections_are_closed() {
        let hour = Duration::from_secs(3600);
        let began = Instant::now() - hour;
        let connections = Arc::new(Connections { began, ..Connections::new(4, 100, Yields::LongestWaiting) });
        let [slow, busy, quick] = [(); 3].map(|()| enter(&connections, "192.0.2.1").unwrap());
        let Poll::Ready(Some(proxy)) = poll(connections.place(ip("192.0.2.2"), true)) else {
            panic!("no room")
        };
        let closing = || [&slow, &busy, &quick, &proxy].map(must_close);
        [&slow, &busy, &quick, &proxy].into_iter().for_each(|place| waits_since(place, 0));
        busy.begin_request();
        quick.answered();
        let [short, long] = [hour / 2, 2 * hour];
        connections.close_the_slow(short, long);
        assert_eq!(closing(), [true, false, false, false]);
        connections.close_the_slow(long, short);
        assert_eq!(closing(), [false, false, false, true]);
        connections.close_the_slow(long, long);
        assert_eq!(closing(), [false; 4]);
    }

    #[test]
    fn all_are_notified_of_stopping_even_those_to_come() {
        let connections = Arc::new(Connections::new(3, 100, Yields::LongestWaiting));
        let first = enter(&connections, "192.0.2.1").unwrap();
        assert!(!first.is_stopping());
        connections.stop();
        let second = enter(&connections, "192.0.2.1").unwrap();
        assert_eq!([&first, &second].map(must_close), [true, true]);
        assert!(second.is_stopping());
    }
}
