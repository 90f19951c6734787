//! Forwarding to an inner store, for both traits.

/// Within an implementation of [`TorrentRepository`](crate::TorrentRepository), forwards to an inner store
/// every method that you do not write.
///
/// `|this|` names `self`, the expression after it is the inner store, and `except` lists the methods that you
/// write, or leave to their defaults. [`announce_batch`](crate::TorrentRepository::announce_batch) and
/// [`scrape_batch`](crate::TorrentRepository::scrape_batch) are forwarded too: their defaults would undo the
/// gain of the inner store from a batch. List `announce_batch` if you write `announce`; `except scrape`
/// leaves `scrape_batch` to its default, too.
///
/// ```
/// use swarmkeep::{InfoHash, SwarmStats, TorrentRepository, implement::forward_repository};
///
/// /// Shows no downloads in scrapes.
/// #[derive(Debug)]
/// struct Modest<R>(R);
///
/// impl<R: TorrentRepository> TorrentRepository for Modest<R> {
///     fn scrape(&self, info_hash: &InfoHash) -> SwarmStats {
///         SwarmStats { downloaded: 0, ..self.0.scrape(info_hash) }
///     }
///
///     forward_repository! { |modest| modest.0, except scrape }
/// }
/// # use swarmkeep::{HashKey, Packed, RepositoryConfig, SwarmSummary, Timestamp};
/// # let store = Modest(Packed::new(&RepositoryConfig::new(HashKey::from_bytes([7; 16]))).unwrap());
/// # let stats = SwarmStats { downloaded: 1, ..SwarmStats::default() };
/// # let mut swarms = [SwarmSummary { info_hash: InfoHash::new([1; 20]), stats }];
/// # store.restore(&swarms[0], &[], Timestamp::from_secs(1));
/// # store.scrape_batch(&mut swarms);
/// # let inner = store.0.scrape(&swarms[0].info_hash);
/// # assert_eq!((inner.downloaded, swarms[0].stats.downloaded), (1, 0));
/// ```
///
/// With `|this| inner => function`, a function converts the answer of each inner method, which may then be
/// something else: a future of the answer, for example.
#[doc(hidden)]
#[macro_export]
macro_rules! __forward_repository {
    (|$this:ident| $inner:expr $(, except $($written:ident),+)?) => {
        $crate::__forward_repository! { |$this| $inner => ::core::convert::identity $(, except $($written),+)? }
    };
    (|$this:ident| $inner:expr => $answer:path $(, except $($written:ident),+)?) => {
        $crate::__forward! { [$this, $inner, $answer] [$($($written)+)?]
            announce(
                announce: &$crate::Announce,
                now: $crate::Timestamp,
                rng: &mut dyn $crate::Random,
                peers: &mut $crate::PeerBuffer<'_>,
            ) -> $crate::Announced;
            announce_batch(
                batch: &mut [$crate::Request<'_>],
                now: $crate::Timestamp,
                rng: &mut dyn $crate::Random,
            ) -> ();
            scrape(info_hash: &$crate::InfoHash) -> $crate::SwarmStats;
            scrape_batch(swarms: &mut [$crate::SwarmSummary]) -> ();
            totals() -> $crate::Totals;
            walk(from: $crate::Cursor, limit: usize, out: &mut Vec<$crate::SwarmSummary>) -> $crate::Cursor;
            page(after: Option<&$crate::InfoHash>, limit: usize, out: &mut Vec<$crate::SwarmSummary>) -> ();
            peers(
                info_hash: &$crate::InfoHash,
                from: $crate::Cursor,
                limit: usize,
                out: &mut Vec<$crate::PeerRecord>,
            ) -> $crate::Cursor;
            advance(now: $crate::Timestamp) -> $crate::Timestamp;
            sweep(now: $crate::Timestamp, policy: $crate::Retention, budget: $crate::Budget) -> $crate::Swept;
            remove(info_hash: &$crate::InfoHash) -> Option<$crate::SwarmStats>;
            remove_where(
                forbidden: &(dyn Fn(&$crate::InfoHash) -> bool + Sync),
                from: $crate::Cursor,
                budget: $crate::Budget,
            ) -> $crate::Removed;
            restore(
                swarm: &$crate::SwarmSummary,
                peers: &[$crate::PeerRecord],
                now: $crate::Timestamp,
            ) -> $crate::Restored;
            export(export: &mut $crate::Export, now: $crate::Timestamp, budget: $crate::Budget) -> ();
            import(records: &[$crate::Records], now: $crate::Timestamp) -> $crate::Restored;
            add_downloads(info_hash: &$crate::InfoHash, earlier: u32) -> bool;
            capabilities() -> $crate::Capabilities;
            memory() -> $crate::MemoryUse;
        }
    };
}

/// The same within an implementation of [`AsyncTorrentRepository`](crate::AsyncTorrentRepository), except
/// `capabilities`. A macro of yours, `answer!(this, "method", call)`, makes the
/// [`Answer`](crate::Answer) of the name of a method and of its call on the inner store.
#[doc(hidden)]
#[macro_export]
macro_rules! __forward_asynchronous {
    (|$this:ident| $inner:expr => $answer:ident! $(, except $($written:ident),+)?) => {
        $crate::__forward! { [$this, $inner, async $answer] [capabilities $($($written)+)?]
            announce(
                announce: &'a $crate::Announce,
                now: $crate::Timestamp,
                rng: &'a mut dyn $crate::Random,
                peers: &'a mut $crate::PeerBuffer<'_>,
            ) -> $crate::Announced;
            announce_batch(
                batch: &'a mut [$crate::Request<'_>],
                now: $crate::Timestamp,
                rng: &'a mut dyn $crate::Random,
            ) -> ();
            scrape(info_hash: &'a $crate::InfoHash) -> $crate::SwarmStats;
            totals() -> $crate::Totals;
            walk(
                from: $crate::Cursor,
                limit: usize,
                out: &'a mut Vec<$crate::SwarmSummary>,
            ) -> $crate::Cursor;
            page(
                after: Option<&'a $crate::InfoHash>,
                limit: usize,
                out: &'a mut Vec<$crate::SwarmSummary>,
            ) -> ();
            peers(
                info_hash: &'a $crate::InfoHash,
                from: $crate::Cursor,
                limit: usize,
                out: &'a mut Vec<$crate::PeerRecord>,
            ) -> $crate::Cursor;
            advance(now: $crate::Timestamp) -> $crate::Timestamp;
            sweep(now: $crate::Timestamp, policy: $crate::Retention, budget: $crate::Budget) -> $crate::Swept;
            remove(info_hash: &'a $crate::InfoHash) -> Option<$crate::SwarmStats>;
            remove_where(
                forbidden: &'a (dyn Fn(&$crate::InfoHash) -> bool + Sync),
                from: $crate::Cursor,
                budget: $crate::Budget,
            ) -> $crate::Removed;
            restore(
                swarm: &'a $crate::SwarmSummary,
                peers: &'a [$crate::PeerRecord],
                now: $crate::Timestamp,
            ) -> $crate::Restored;
            export(export: &'a mut $crate::Export, now: $crate::Timestamp, budget: $crate::Budget) -> ();
            import(records: &'a [$crate::Records], now: $crate::Timestamp) -> $crate::Restored;
            add_downloads(info_hash: &'a $crate::InfoHash, earlier: u32) -> bool;
            memory() -> $crate::MemoryUse;
        }
    };
}

/// The methods of the list, except the methods that are written already.
#[doc(hidden)]
#[macro_export]
macro_rules! __forward {
    ($to:tt $written:tt $($method:ident $arguments:tt -> $output:ty;)*) => {
        $($crate::__forward! { @unless $written $method $to $arguments -> $output })*
    };

    (@unless [announce $($more:ident)*] announce $($rest:tt)*) => {};
    (@unless [announce_batch $($more:ident)*] announce_batch $($rest:tt)*) => {};
    (@unless [scrape $($more:ident)*] scrape $($rest:tt)*) => {};
    // Its default calls the written `scrape`.
    (@unless [scrape $($more:ident)*] scrape_batch $($rest:tt)*) => {};
    (@unless [scrape_batch $($more:ident)*] scrape_batch $($rest:tt)*) => {};
    (@unless [totals $($more:ident)*] totals $($rest:tt)*) => {};
    (@unless [walk $($more:ident)*] walk $($rest:tt)*) => {};
    (@unless [page $($more:ident)*] page $($rest:tt)*) => {};
    (@unless [peers $($more:ident)*] peers $($rest:tt)*) => {};
    (@unless [advance $($more:ident)*] advance $($rest:tt)*) => {};
    (@unless [sweep $($more:ident)*] sweep $($rest:tt)*) => {};
    (@unless [remove $($more:ident)*] remove $($rest:tt)*) => {};
    (@unless [remove_where $($more:ident)*] remove_where $($rest:tt)*) => {};
    (@unless [restore $($more:ident)*] restore $($rest:tt)*) => {};
    (@unless [export $($more:ident)*] export $($rest:tt)*) => {};
    (@unless [import $($more:ident)*] import $($rest:tt)*) => {};
    (@unless [add_downloads $($more:ident)*] add_downloads $($rest:tt)*) => {};
    (@unless [capabilities $($more:ident)*] capabilities $($rest:tt)*) => {};
    (@unless [memory $($more:ident)*] memory $($rest:tt)*) => {};
    (@unless [$other:ident $($more:ident)*] $($rest:tt)*) => {
        $crate::__forward! { @unless [$($more)*] $($rest)* }
    };
    (@unless []
        $method:ident [$this:ident, $inner:expr, async $answer:ident] ($($name:ident: $type:ty),* $(,)?)
        -> $output:ty
    ) => {
        #[allow(clippy::needless_lifetimes, reason = "most methods need theirs")]
        fn $method<'a>(&'a self, $($name: $type),*) -> $crate::Answer<'a, $output> {
            let $this = self;
            $answer!($this, stringify!($method), $inner.$method($($name),*))
        }
    };
    (@unless []
        $method:ident [$this:ident, $inner:expr, $answer:path] ($($name:ident: $type:ty),* $(,)?) -> $output:ty
    ) => {
        fn $method(&self, $($name: $type),*) -> $output {
            let $this = self;
            $answer($inner.$method($($name),*))
        }
    };
}
