//! A run from its first socket to its report.

use std::{
    collections::BTreeMap,
    sync::{
        OnceLock,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::{
    Config, Error, Report,
    clock::{Clock, SECOND},
    engine::{self, Client, Run, Times},
    frames::Frames,
    http::HttpClient,
    population::Population,
    report,
    server::Usage,
    stats::{self, Recorder, Totals},
    udp::UdpClient,
};

/// The progress of a run.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Progress {
    /// Workers connect, and then each peer announces once.
    Filling {
        /// First announces answered by now.
        announced: u64,
        /// Peers in all; 0 if the tracker is not filled.
        peers: u64,
    },
    /// Requests are sent and not counted.
    WarmingUp,
    /// A second of the measurement has ended.
    Second(report::Second),
}

/// Runs a load test, and calls `progress` for every second of it.
///
/// # Errors
/// Any [`Error`]. Wrong answers and failed requests are not errors: they are in the report.
pub fn run(config: &Config, progress: &mut dyn FnMut(&Progress)) -> Result<Report, Error> {
    run_until(config, &AtomicBool::new(false), progress)
}

/// The same, but ends early when `stop` becomes true: the report then covers the measurement until then.
///
/// # Errors
/// Any [`Error`]. [`Error::Interrupted`] if the measurement has not begun.
pub fn run_until(
    config: &Config,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Report, Error> {
    config.validate()?;
    if config.is_http() {
        run_clients::<HttpClient>(config, stop, progress)
    } else {
        run_clients::<UdpClient>(config, stop, progress)
    }
}

fn run_clients<C: Client>(
    config: &Config,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(&Progress),
) -> Result<Report, Error> {
    let watched = |pid| Usage::of(pid).ok_or(Error::NoProcess(pid));
    config.server_pid.map(watched).transpose()?;
    allow_sockets(config.workers + config.threads() + 64);
    let mut frames = Frames::open(config)?;
    let xdp_mode = frames.as_ref().map(Frames::mode);
    let origins = config.origins();
    let population = Population::new(config, origins.len())?;
    let threads = config.threads();
    let mut clients: Vec<Vec<_>> = (0..threads).map(|_| Vec::new()).collect();
    for worker in 0..config.workers {
        let origin = &origins[worker % origins.len()];
        let client = C::open(config, origin, worker).map_err(|source| Error::Socket {
            what: format!("cannot open a socket from {} to {}", origin.source, origin.target),
            source,
        })?;
        clients[worker % threads].push((worker, client));
    }
    let run = Run {
        config,
        population: &population,
        clock: Clock::start(),
        threads,
        stop,
        ready: AtomicUsize::new(0),
        connected: AtomicUsize::new(0),
        filled: AtomicU64::new(0),
        times: OnceLock::new(),
    };
    let (publish, seconds) = mpsc::channel();
    thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|(number, clients)| {
                let recorder = Recorder::new(publish.clone());
                let frames = frames.take();
                scope.spawn(move || engine::drive::<C>(run, number, clients, recorder, frames))
            })
            .collect();
        drop(publish);
        let join = |threads: Vec<thread::ScopedJoinHandle<'_, Result<Totals, _>>>| {
            let mut all = Totals::new();
            for thread in threads {
                let totals = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
                all.add(&totals?);
            }
            Ok::<_, Error>(all)
        };

        let no_answer = || Error::NoAnswer(report::targets(config));
        while run.ready.load(Ordering::Acquire) < threads.len() {
            // A thread that ends before it is ready has failed.
            if threads.iter().any(thread::ScopedJoinHandle::is_finished) {
                run.times.get_or_init(|| None);
                return Err(join(threads).err().unwrap_or_else(no_answer));
            }
            let peers = if config.fill { config.peers } else { 0 };
            progress(&Progress::Filling { announced: run.filled.load(Ordering::Relaxed), peers });
            thread::sleep(Duration::from_millis(if config.fill { 50 } else { 2 }));
        }
        let stopped = || stop.load(Ordering::Relaxed);
        if stopped() || run.connected.load(Ordering::Acquire) == 0 {
            run.times.get_or_init(|| None);
            join(threads)?;
            return Err(if stopped() { Error::Interrupted } else { no_answer() });
        }
        // A little later, so that all threads are awake when the first request is due.
        let times = Times::from(run.clock.now() + SECOND / 200, config);
        run.times.get_or_init(|| Some(times));

        progress(&Progress::WarmingUp);
        while run.clock.now() < times.begin && !stopped() {
            run.clock.sleep_until(times.begin.min(run.clock.now() + SECOND / 20));
        }
        let usage = || (config.server_pid.map(watched).transpose(), Usage::of(std::process::id()));
        let (server, own) = usage();
        let series = collect(seconds, threads.len(), progress);
        let totals = join(threads)?;
        if totals.end <= times.begin {
            return Err(Error::Interrupted);
        }
        let (server_after, own_after) = usage();
        let server = config.server_pid.zip(server?).zip(server_after?);
        let server = server.map(|((pid, before), after)| after.since(&before, pid, totals.answers()));
        let own = own.zip(own_after).map(|(before, after)| after.cpu_seconds - before.cpu_seconds);
        let mut report = Report::new(config, totals, times, series);
        (report.server, report.generator.cpu_seconds, report.generator.xdp_mode) = (server, own, xdp_mode);
        Ok(report)
    })
}

/// Adds up the seconds of all threads, until all threads have ended.
fn collect(
    seconds: mpsc::Receiver<stats::Second>,
    threads: usize,
    progress: &mut dyn FnMut(&Progress),
) -> Vec<report::Second> {
    let mut open: BTreeMap<u64, (usize, stats::Second)> = BTreeMap::new();
    let mut series = Vec::new();
    let mut close = |second: stats::Second| {
        let second = report::Second::of(&second);
        progress(&Progress::Second(second));
        series.push(second);
    };
    for second in seconds {
        let new = || (0, stats::Second::new(second.index));
        let (handed_in, sum) = open.entry(second.index).or_insert_with(new);
        *handed_in += 1;
        sum.succeeded += second.succeeded;
        sum.failed += second.failed;
        sum.wrong += second.wrong;
        sum.latency.add(&second.latency).expect("the same bounds");
        while open.first_key_value().is_some_and(|(_, (handed_in, _))| *handed_in == threads) {
            close(open.pop_first().expect("it is there").1.1);
        }
    }
    // Threads end in different seconds if they wait for answers.
    open.into_values().for_each(|(_, second)| close(second));
    series
}

/// Raises the limit of open files for the sockets of all workers, if the system allows it.
fn allow_sockets(count: usize) {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < count as u64
    {
        // If this fails, opening a socket fails with the error of the system.
        let _ = setrlimit(Resource::RLIMIT_NOFILE, (count as u64).min(hard), hard);
    }
}
