//! The workers of one thread: they send requests and receive answers until the time is over.

use std::{
    io,
    iter::Peekable,
    os::fd::{AsFd, BorrowedFd},
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use nix::{
    errno::Errno,
    poll::{PollFd, PollFlags, ppoll},
    sys::{
        epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout},
        time::TimeSpec,
    },
};
use swarmkeep::AnnounceEvent;

use crate::{
    Error,
    clock::{Clock, SECOND, nanoseconds},
    config::{Config, Origin},
    frames::Frames,
    population::{Fill, Hashes, Population, Request, Stream},
    schedule::Schedule,
    stats::{Kind, Purpose, Recorder, Sending, Totals},
};

/// A worker's side of a protocol: a socket, its requests in flight, and the parser of its answers.
pub(crate) trait Client: Sized + Send {
    /// Buffers that the workers of a thread share. Pushed requests lie there until a flush.
    type Shared;
    /// The events that wake the poller.
    const EVENTS: EpollFlags;

    fn open(config: &Config, origin: &Origin, worker: usize) -> io::Result<Self>;
    fn shared(config: &Config, frames: Option<Frames>) -> Self::Shared;
    /// The second source of answers.
    fn frames(_: &mut Self::Shared) -> Option<&mut Frames> {
        None
    }
    fn socket(&self) -> BorrowedFd<'_>;
    /// Whether the socket is another one than at the last call.
    fn take_is_new(&mut self) -> bool {
        false
    }
    fn in_flight(&self) -> usize;
    /// The number of requests that may now be added to those in flight.
    fn room(&self, now: u64, filling: bool) -> usize;
    /// The kind of the next request.
    fn next_request(&self, now: u64) -> NextRequest;
    fn is_connected(&self) -> bool;
    /// Queues a request. Its time is set when it is flushed, and if that is earlier its intended time too.
    fn push(&mut self, shared: &mut Self::Shared, request: &Request, hashes: &Hashes, sending: Sending);
    /// Whether nothing more may be pushed before a flush.
    fn is_full(_: &Self::Shared) -> bool {
        false
    }
    fn flush(&mut self, shared: &mut Self::Shared, clock: &Clock, recorder: &mut Recorder);
    /// Reads the received frame, or all answers from the socket.
    fn receive(&mut self, shared: &mut Self::Shared, clock: &Clock, recorder: &mut Recorder);
    /// Gives up requests that have been in flight for too long.
    fn expire(&mut self, now: u64, recorder: &mut Recorder);
    /// The peers with a first announce that has failed since the last call.
    fn take_lost_fill(&mut self) -> std::vec::Drain<'_, u64>;
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NextRequest {
    /// A connect, because there is no connection id, or an old one.
    Connect,
    Anything,
    /// Nothing, until a connect has been answered.
    Wait,
}

/// The state that all threads of a run share.
#[derive(Debug)]
pub(crate) struct Run<'a> {
    pub(crate) config: &'a Config,
    pub(crate) population: &'a Population,
    pub(crate) clock: Clock,
    pub(crate) threads: usize,
    /// Whether the run has to end early.
    pub(crate) stop: &'a AtomicBool,
    /// The number of threads that have connected their workers and finished their share of the fill.
    pub(crate) ready: AtomicUsize,
    pub(crate) connected: AtomicUsize,
    pub(crate) filled: AtomicU64,
    /// Ready threads wait for it. Without times, they end.
    pub(crate) times: OnceLock<Option<Times>>,
}

/// The times of a run, in nanoseconds of the clock.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Times {
    pub(crate) warm_up: u64,
    pub(crate) begin: u64,
    pub(crate) end: u64,
}

impl Times {
    pub(crate) fn from(warm_up: u64, config: &Config) -> Self {
        let begin = warm_up + nanoseconds(config.warm_up);
        Self { warm_up, begin, end: begin + nanoseconds(config.duration) }
    }
}

/// The most requests in flight of all workers together while they connect and fill: fewer than fit into the
/// default buffer of a socket.
const FILL_FLIGHT: usize = 128;

/// The most times that each first announce is sent before it counts as lost, and that each worker tries to
/// connect before the start.
const TRIES: u32 = 3;

/// The most frames of a queue that are read before other queues, and timeouts, are looked at.
const MOST_FRAMES: usize = 256;

/// Runs the workers of one thread to the end.
pub(crate) fn drive<C: Client>(
    run: &Run<'_>,
    thread: usize,
    clients: Vec<(usize, C)>,
    recorder: Recorder,
    frames: Option<Frames>,
) -> Result<Totals, Error> {
    let waiting = |source| Error::Socket { what: "cannot wait for answers".to_owned(), source };
    // Timers that are 50 µs late are the kernel's default, and would be counted as the tracker's latency.
    let _ = nix::sys::prctl::set_timerslack(1);
    let mut thread = Thread::new(run, thread, clients, recorder, frames).map_err(waiting)?;
    thread.prepare().map_err(waiting)?;
    let connected = thread.workers.iter().filter(|w| w.client.is_connected()).count();
    if let Some(frames) = C::frames(&mut thread.shared) {
        frames.check(connected)?;
    }
    run.connected.fetch_add(connected, Ordering::Relaxed);
    run.ready.fetch_add(1, Ordering::Release);
    if let Some(times) = run.times.wait() {
        thread.measure(*times).map_err(waiting)?;
    }
    Ok(thread.recorder.finish())
}

struct Thread<'a, C: Client> {
    run: &'a Run<'a>,
    number: usize,
    workers: Vec<Worker<'a, C>>,
    shared: C::Shared,
    poller: Poller,
    recorder: Recorder,
    /// The time between looks for timeouts. Seconds are handed in as often.
    scan_period: u64,
    next_scan: u64,
}

struct Worker<'a, C> {
    client: C,
    stream: Stream<'a>,
    /// Requests of the schedule that are due and have not been sent.
    owed: u64,
    /// Requests of the schedule that have been sent.
    taken: u64,
}

impl<'a, C: Client> Thread<'a, C> {
    fn new(
        run: &'a Run<'a>,
        number: usize,
        clients: Vec<(usize, C)>,
        recorder: Recorder,
        frames: Option<Frames>,
    ) -> io::Result<Self> {
        let poller = Poller::new(clients.len())?;
        let mut shared = C::shared(run.config, frames);
        for (n, (_, client)) in clients.iter().enumerate() {
            poller.add(client, n)?;
            if let Some(frames) = C::frames(&mut shared) {
                frames.expect(client.socket(), n)?;
            }
        }
        let queues = C::frames(&mut shared).into_iter().flat_map(|frames| frames.queues());
        for (n, queue) in (clients.len()..).zip(queues) {
            poller.epoll.add(queue, EpollEvent::new(EpollFlags::EPOLLIN, n as u64))?;
        }
        let worker =
            |(worker, client)| Worker { client, stream: run.population.stream(worker), owed: 0, taken: 0 };
        let scan_period = (nanoseconds(run.config.timeout) / 50).clamp(SECOND / 1000, SECOND / 10);
        Ok(Self {
            run,
            number,
            workers: clients.into_iter().map(worker).collect(),
            shared,
            poller,
            recorder,
            scan_period,
            next_scan: 0,
        })
    }

    /// Connects every worker and sends the first announce of each peer, with few requests in flight.
    fn prepare(&mut self) -> io::Result<()> {
        let (clock, filling) = (self.run.clock, self.run.config.fill);
        let most = (FILL_FLIGHT / self.run.threads).max(1);
        let mut setups: Vec<_> = (0..self.workers.len())
            .map(|n| Setup::new(filling.then(|| self.run.population.fill(self.global(n)))))
            .collect();
        let mut first = 0;
        loop {
            let (now, mut flying) = (clock.now(), self.in_flight());
            let (count, from) = (setups.len(), first);
            for n in (0..count).map(|n| (from + n) % count) {
                if flying >= most {
                    break;
                }
                flying += self.send_setup(n, &mut setups[n], most - flying, now)?;
                first = n + 1;
            }
            let mut all = setups.iter_mut().zip(&self.workers);
            let is_left =
                all.any(|(setup, worker)| worker.client.in_flight() > 0 || setup.is_left(&worker.client));
            if !is_left || self.run.stop.load(Ordering::Relaxed) {
                break;
            }
            self.wait(self.scan_period)?;
            self.receive(|_, _| Ok(()))?;
            self.scan(clock.now());
            for (setup, worker) in setups.iter_mut().zip(&mut self.workers) {
                setup.again.extend(worker.client.take_lost_fill());
            }
            let filled = self.recorder.totals.fill.announced;
            self.run.filled.fetch_add(filled - setups[0].counted, Ordering::Relaxed);
            setups[0].counted = filled;
        }
        self.recorder.totals.fill.lost = setups.into_iter().map(Setup::lost).sum();
        Ok(())
    }

    /// Sends up to `most` of a worker's requests before the start, and returns their number.
    fn send_setup(&mut self, n: usize, setup: &mut Setup, most: usize, now: u64) -> io::Result<usize> {
        let worker_number = self.global(n);
        let Self { workers, shared, recorder, run, poller, .. } = self;
        let client = &mut workers[n].client;
        let mut sent = 0;
        while sent < most && client.room(now, true) > 0 && !C::is_full(shared) {
            let (request, kind, purpose) = match client.next_request(now) {
                NextRequest::Connect if setup.connects < TRIES => {
                    setup.connects += 1;
                    (Request::Connect, Kind::Connect, Purpose::WarmUp)
                }
                NextRequest::Anything => match setup.next() {
                    Some(peer) => {
                        // The next connection id has tries of its own.
                        setup.connects = 0;
                        let announcing = run.population.first_announce(worker_number, peer);
                        (Request::Announce(announcing), Kind::Announce, Purpose::Fill(peer))
                    }
                    None => break,
                },
                NextRequest::Connect | NextRequest::Wait => break,
            };
            client.push(shared, &request, &[], Sending { kind, intended: u64::MAX, sent: 0, purpose });
            sent += 1;
        }
        client.flush(shared, &run.clock, recorder);
        if client.take_is_new() {
            poller.add(client, n)?;
        }
        Ok(sent)
    }

    /// Warm-up, measurement, and waiting for requests in flight.
    fn measure(&mut self, times: Times) -> io::Result<()> {
        let Run { clock, config, stop, .. } = self.run;
        let Times { warm_up, begin, mut end } = times;
        self.recorder.begin(begin);
        clock.sleep_until(warm_up);
        let mut schedule = config
            .rate
            .map(|rate| Schedule::new(warm_up, rate, self.workers.len(), self.number, self.run.threads));
        if schedule.is_none() {
            (0..self.workers.len()).try_for_each(|n| self.pump(n, None, times))?;
        }
        loop {
            let now = clock.now();
            if stop.load(Ordering::Relaxed) {
                end = end.min(now);
            }
            if now >= end {
                break;
            }
            let mut until = self.next_scan.min(end);
            if let Some(schedule) = &mut schedule {
                while let Some((n, at)) = schedule.take(now) {
                    if at >= begin {
                        self.recorder.lag(now - at);
                    }
                    self.workers[n].owed += 1;
                    self.pump(n, Some(schedule), times)?;
                }
                until = until.min(schedule.next());
            }
            self.wait(until.saturating_sub(clock.now()))?;
            self.receive(|thread, n| thread.pump(n, schedule.as_ref(), times))?;
            let now = clock.now();
            if self.scan(now) {
                (0..self.workers.len()).try_for_each(|n| self.pump(n, schedule.as_ref(), times))?;
                if now >= begin {
                    self.recorder.tick(now);
                }
            }
        }
        self.recorder.totals.end = end;
        // Requests that came due by the end and were never sent have failed as well.
        if let Some(schedule) = &mut schedule {
            while let Some((n, _)) = schedule.take(end - 1) {
                self.workers[n].owed += 1;
            }
            for (n, worker) in self.workers.iter().enumerate() {
                let ticks = worker.taken..worker.taken + worker.owed;
                let unsent = ticks.filter(|&tick| schedule.intended(n, tick) >= begin).count();
                self.recorder.unsent(unsent as u64);
            }
        }
        while self.in_flight() > 0 {
            self.wait(self.scan_period)?;
            self.receive(|_, _| Ok(()))?;
            self.scan(clock.now());
        }
        Ok(())
    }

    /// Sends the requests of a worker that are due and have room.
    fn pump(
        &mut self,
        n: usize,
        schedule: Option<&Schedule>,
        Times { begin, end, .. }: Times,
    ) -> io::Result<()> {
        let Self { workers, shared, recorder, run, poller, .. } = self;
        let Worker { client, stream, owed, taken } = &mut workers[n];
        let now = run.clock.now();
        while client.room(now, false) > 0 {
            let intended = match schedule {
                // The flush sets it.
                None if now >= end => break,
                None => u64::MAX,
                Some(_) if *owed == 0 => break,
                Some(schedule) => schedule.intended(n, *taken),
            };
            let request = match client.next_request(now) {
                NextRequest::Wait => break,
                NextRequest::Connect => Request::Connect,
                NextRequest::Anything => stream.next(),
            };
            let kind = match &request {
                Request::Connect => Kind::Connect,
                Request::Announce(announcing) if announcing.event == AnnounceEvent::Stopped => Kind::Stopped,
                Request::Announce(_) => Kind::Announce,
                Request::Scrape => Kind::Scrape,
            };
            let measured = (begin..end).contains(&intended.min(now));
            let purpose = if measured { Purpose::Measured } else { Purpose::WarmUp };
            client.push(shared, &request, stream.hashes(), Sending { kind, intended, sent: 0, purpose });
            if schedule.is_some() {
                *owed -= 1;
                *taken += 1;
            }
            if C::is_full(shared) {
                client.flush(shared, &run.clock, recorder);
            }
        }
        client.flush(shared, &run.clock, recorder);
        if client.take_is_new() {
            poller.add(client, n)?;
        }
        Ok(())
    }

    /// Waits for answers, for at most `nanoseconds`. Frames are sent before.
    fn wait(&mut self, nanoseconds: u64) -> io::Result<()> {
        if let Some(frames) = C::frames(&mut self.shared) {
            frames.flush();
        }
        self.poller.wait(nanoseconds)
    }

    /// Reads the answers for which the poller has woken, and calls `go_on` for each of their workers.
    fn receive(&mut self, mut go_on: impl FnMut(&mut Self, usize) -> io::Result<()>) -> io::Result<()> {
        for event in 0..self.poller.woken {
            let woken = self.poller.source(event);
            let queue = woken.checked_sub(self.workers.len());
            let mut answered = None;
            for _ in 0..if queue.is_some() { MOST_FRAMES } else { 1 } {
                let next = |queue| C::frames(&mut self.shared)?.next(queue);
                let Some(n) = queue.map_or(Some(woken), next) else { break };
                // Answers to one worker follow each other.
                if let Some(other) = answered.replace(n).filter(|&other| other != n) {
                    go_on(self, other)?;
                }
                self.workers[n].client.receive(&mut self.shared, &self.run.clock, &mut self.recorder);
            }
            answered.map_or(Ok(()), |n| go_on(self, n))?;
        }
        Ok(())
    }

    /// Looks for timeouts, if it is time. Returns whether it was.
    fn scan(&mut self, now: u64) -> bool {
        if now < self.next_scan {
            return false;
        }
        self.next_scan = now + self.scan_period;
        self.workers.iter_mut().for_each(|worker| worker.client.expire(now, &mut self.recorder));
        true
    }

    fn in_flight(&self) -> usize {
        self.workers.iter().map(|worker| worker.client.in_flight()).sum()
    }

    /// A worker's number among those of all threads.
    fn global(&self, n: usize) -> usize {
        self.number + n * self.run.threads
    }
}

/// A worker's requests before the start: connects and its share of the fill.
struct Setup {
    connects: u32,
    fill: Option<Peekable<Fill>>,
    /// First announces that have failed.
    again: Vec<u64>,
    /// The number of them that may be sent once more.
    patience: u64,
    counted: u64,
}

impl Setup {
    fn new(fill: Option<Fill>) -> Self {
        let patience = fill.clone().map_or(0, |fill| fill.count() as u64) * u64::from(TRIES - 1);
        Self { connects: 0, fill: fill.map(Iterator::peekable), again: Vec::new(), patience, counted: 0 }
    }

    fn next(&mut self) -> Option<u64> {
        let again = if self.patience > 0 { self.again.pop() } else { None };
        self.patience -= u64::from(again.is_some());
        again.or_else(|| self.fill.as_mut()?.next())
    }

    fn is_left(&mut self, client: &impl Client) -> bool {
        if !client.is_connected() {
            return self.connects < TRIES;
        }
        (self.patience > 0 && !self.again.is_empty())
            || self.fill.as_mut().is_some_and(|fill| fill.peek().is_some())
    }

    /// Peers that could not be announced.
    fn lost(self) -> u64 {
        self.again.len() as u64 + self.fill.map_or(0, |fill| fill.count() as u64)
    }
}

/// The sockets with answers.
struct Poller {
    epoll: Epoll,
    events: Vec<EpollEvent>,
    woken: usize,
}

impl Poller {
    fn new(sockets: usize) -> io::Result<Self> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        Ok(Self { epoll, events: vec![EpollEvent::empty(); sockets.clamp(1, 256)], woken: 0 })
    }

    fn add<C: Client>(&self, client: &C, number: usize) -> io::Result<()> {
        Ok(self.epoll.add(client.socket(), EpollEvent::new(C::EVENTS, number as u64))?)
    }

    /// The number of the worker that an event belongs to. Numbers of queues follow the numbers of workers.
    fn source(&self, event: usize) -> usize {
        self.events[event].data() as usize
    }

    /// Waits for `nanoseconds`, to the microsecond, or until there is something to read.
    fn wait(&mut self, nanoseconds: u64) -> io::Result<()> {
        const MILLISECOND: u64 = SECOND / 1000;
        // One call waits for whole milliseconds; the rest needs a finer timer.
        let whole = nanoseconds / MILLISECOND;
        self.woken = self.look(whole.min(1000) as u16)?;
        if self.woken == 0 && whole == 0 && nanoseconds > 0 {
            let mut polled = [PollFd::new(self.epoll.0.as_fd(), PollFlags::POLLIN)];
            let wait = TimeSpec::from_duration(Duration::from_nanos(nanoseconds));
            match ppoll(&mut polled, Some(wait), None) {
                Ok(0) | Err(Errno::EINTR) => {}
                Ok(_) => self.woken = self.look(0)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn look(&mut self, milliseconds: u16) -> io::Result<usize> {
        match self.epoll.wait(&mut self.events, EpollTimeout::from(milliseconds)) {
            Ok(woken) => Ok(woken),
            Err(Errno::EINTR) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }
}
