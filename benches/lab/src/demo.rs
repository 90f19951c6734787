//! `cargo demo`: a tracker, a seeder and two fetchers on this machine, each a process, and a torrent that
//! goes through them.

mod part;
mod peer;
mod show;
mod tracker;
mod verify;

use std::{
    error::Error,
    fs::{self, File},
    io::Write,
    num::NonZero,
    path::Path,
    process::ExitCode,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use indicatif::BinaryBytes;
use rand::Rng;
use swarmkeep_metainfo::{Info, Metainfo};

pub use self::part::{PartArgs, run_part};
use self::{
    part::{Interrupted, Interruption, PATIENCE, PAUSE, Part, lock},
    peer::Peer,
    show::{Event, Frame, Moved, Show},
    tracker::{Counts, Tracker},
    verify::verify,
};
use seedkeep::read_torrent;
use swarmkeep_cli::units;

use crate::refuse;

/// What the program ends with when somebody has interrupted it.
const INTERRUPTED: u8 = 3;

const DETAILS: &str = "\
Examples:
  cargo demo                        256 MiB at 16 MiB per second
  cargo demo --kill                 the seeder and a fetcher are killed in the middle, and go on
  cargo demo --size 1GiB --keep     more, and everything is still there afterwards
  cargo demo --json | jq -c .event  for programs

What runs:
  the tracker   swarmkeep serve, with the packed store; announced to over UDP, scraped over HTTP
  the seeder    seedkeep seed, over a block store in an image; sends no faster than --rate
  two fetchers  seedkeep fetch, one over a block store in an image, one into plain files; they also
                fetch from each other, as fast as they can

Each is a process of its own, on loopback addresses, at ports that are free, in a folder that is
made for it where temporary files go (TMPDIR); it takes about four times --size. The torrent is
random bytes in three files, hashed for BitTorrent v1 and v2. In the end everything is read back,
and its hashes are compared. Nothing is left, however the demo ends; if it is itself killed by
SIGKILL, its processes end and the folder stays.

What --kill shows:
  When the fetcher over the block store has half of it, it and the seeder get SIGKILL, and are
  started again a second later. A fetcher makes durable what it has within five seconds, so it may
  have told of pieces which it has not any more then, and fetches them anew: that is said. What was
  there when it started again is not fetched again: it fetches no more bytes than were missing, or
  the demo fails.

Exit codes:
  0  everything is there, and right
  1  something went wrong; what, is printed
  2  the command line is wrong
  3  it was interrupted";

/// See it all at work: a tracker, a seeder and two fetchers on this machine.
#[derive(Debug, clap::Args)]
#[command(after_long_help = DETAILS, after_help = "See --help for examples, what runs, and the exit codes.")]
pub struct Args {
    /// Bytes of the torrent, from 1MiB on.
    #[arg(long, value_name = "BYTES", default_value = "256MiB", value_parser = units::bytes)]
    size: NonZero<u64>,

    /// Bytes a second that the seeder sends at most [default: all of it within 16 seconds].
    #[arg(long, value_name = "BYTES", value_parser = units::bytes)]
    rate: Option<NonZero<u64>>,

    /// Take the seeder and a fetcher down in the middle (SIGKILL), and bring them back.
    #[arg(long)]
    kill: bool,

    /// Print events as JSON, one a line, in place of the screen.
    #[arg(long)]
    json: bool,

    /// Leave the folder with everything in it, and say where it is.
    #[arg(long)]
    keep: bool,
}

/// How long the seeder takes, if nobody says how fast it sends.
const SECONDS: u64 = 16;

/// For how long they are gone.
const GONE: Duration = Duration::from_secs(1);

/// No kill before that, unless nearly all is there: after a fetcher has made something durable for the first
/// time, and it was seen.
const EARLIEST: Duration = Duration::from_secs(9);

/// What was told of so long ago is durable: fetchers flush it within five seconds, which may take a while.
const DURABLE: Duration = Duration::from_secs(8);

/// A fetcher asks a peer for no more than 512 blocks of 16 KiB at a time, and in the end both of its peers
/// for the same ones.
const MOST_TWICE: u64 = 2 * (512 * (16 << 10));

/// How long the tracker may take to hear of what has just happened, until it is shown as it is.
const ANNOUNCED: Duration = Duration::from_secs(3);

/// After that nothing will come any more.
const STUCK: Duration = Duration::from_secs(20);

/// Where everything is, below the folder of the demo. The torrent has the name of the folder with the files.
const DATA: &str = "demo";
const TORRENT: &str = "demo.torrent";
const SEEDER_IMAGE: &str = "seeder.image";
const FETCHER_IMAGE: &str = "fetcher.image";
const FILES_FOLDER: &str = "files";

/// Which of the peers.
const SEEDER: usize = 0;
const ON_BLOCKS: usize = 1;

/// Shows it, until it is over or interrupted.
///
/// # Errors
/// What did not go as it was to go.
pub fn run(args: &Args) -> Result<ExitCode, Box<dyn Error>> {
    if !(1 << 20..=1 << 40).contains(&args.size.get()) {
        refuse("--size: from 1MiB to 1TiB".into());
    }
    let interruption = Interruption::watch()?;
    let folder = tempfile::Builder::new().prefix("swarmkeep-demo-").tempdir();
    let folder = folder
        .map_err(|error| format!("no folder can be made in {}: {error}", std::env::temp_dir().display()))?;
    let mut show = Show::new(args.json);
    let played = play(args, folder.path(), &interruption, &mut show);
    // No part of it runs any more.
    let kept = if args.keep { Some(folder.keep()) } else { folder.close().map(|()| None)? };
    let why = played.as_ref().err().map(ToString::to_string);
    show.tell(&Event::Ended { ok: why.is_none(), why: why.as_deref(), kept: kept.as_deref() })?;
    match played {
        Err(error) if error.is::<Interrupted>() => {
            eprintln!("error: {error}");
            Ok(ExitCode::from(INTERRUPTED))
        }
        played => played.map(|()| ExitCode::SUCCESS),
    }
}

/// All of it; whatever was started has ended when this returns.
fn play(
    args: &Args,
    folder: &Path,
    interruption: &Interruption,
    show: &mut Show,
) -> Result<(), Box<dyn Error>> {
    let tracker = Tracker::start(folder, interruption)?;
    show.tell(&Event::Started { part: "tracker", pid: tracker.part().pid(), address: &tracker.url() })?;
    let info = prepare(args, folder, &tracker, interruption, show)?;
    let mut swarm = Swarm::new(args, folder, interruption, tracker, &info);
    swarm.start(show)?;
    let proof = swarm.run(args.kill, show)?;
    show.working("ending them");
    let (peers, tracker) = swarm.end()?;
    let verified = verify(folder, &info, interruption, show)?;
    show.tell(&Event::Summary { peers: &peers, tracker, verified: &verified, restart: proof.as_ref() })?;
    match proof.filter(|proof| !proof.holds()) {
        Some(proof) => Err(proof.words().into()),
        None => Ok(()),
    }
}

/// Makes the torrent, puts it into the seeder's store, and makes empty ones for the fetchers.
fn prepare(
    args: &Args,
    folder: &Path,
    tracker: &Tracker,
    interruption: &Interruption,
    show: &mut Show,
) -> Result<Info, Box<dyn Error>> {
    let size = args.size.get();
    show.working(&format!("making {} of random bytes", BinaryBytes(size)));
    fs::create_dir(folder.join(DATA))?;
    // Their ends lie within pieces, and so there is padding.
    let first = size / 2 - 12_345;
    let second = size / 3 + 678;
    for (name, length) in [("first.bin", first), ("second.bin", second), ("third.bin", size - first - second)]
    {
        random_file(&folder.join(DATA).join(name), length, interruption)?;
    }
    show.working("hashing it for BitTorrent v1 and v2");
    let piece_length = (size / 1024).next_power_of_two().clamp(16 << 10, 1 << 20);
    let ask = |line: &str| ask(folder, line, interruption);
    ask(&format!(
        "create {DATA} --hybrid --piece-length {piece_length} --tracker {} -o {TORRENT}",
        tracker.url()
    ))?;
    let (metainfo, _): (Metainfo, _) = read_torrent(&folder.join(TORRENT))?;
    let info = metainfo.into_info();
    show.working("putting it into the seeder's store");
    // Blocks that are not full, and the torrent file.
    let image = info.length() + info.length() / 8 + (64 << 20);
    for store in [SEEDER_IMAGE, FETCHER_IMAGE] {
        ask(&format!("store format {store} --size {image}"))?;
    }
    fs::create_dir(folder.join(FILES_FOLDER))?;
    ask(&format!("store add {SEEDER_IMAGE} {TORRENT} {DATA}"))?;
    fs::remove_dir_all(folder.join(DATA))?;
    show.tell(&Event::Torrent {
        info_hash: &info.info_hash().to_string(),
        bytes: info.length(),
        pieces: info.piece_count(),
        piece_length: info.piece_length(),
    })?;
    Ok(info)
}

fn random_file(path: &Path, length: u64, interruption: &Interruption) -> Result<(), Box<dyn Error>> {
    let written = |error| format!("{}: {error}", path.display());
    let mut file = File::create_new(path).map_err(written)?;
    let mut bytes = vec![0; 1 << 20];
    let mut left = length;
    while left > 0 {
        interruption.check()?;
        rand::rng().fill_bytes(&mut bytes);
        let now = left.min(bytes.len() as u64);
        file.write_all(&bytes[..now as usize]).map_err(written)?;
        left -= now;
    }
    Ok(())
}

/// Runs the program with these words in the folder until it ends with exit code 0; what it printed.
fn ask(folder: &Path, line: &str, interruption: &Interruption) -> Result<String, Box<dyn Error>> {
    let printed = Arc::<Mutex<String>>::default();
    let arguments: Vec<_> = line.split(' ').collect();
    let mut part = Part::start(format!("`swarmkeep {line}`"), folder, &arguments, {
        let printed = Arc::clone(&printed);
        move |line| {
            let mut printed = lock(&printed);
            *printed += line;
            *printed += "\n";
        }
    })?;
    let status = part.done(interruption)?;
    let printed = std::mem::take(&mut *lock(&printed));
    if !status.success() {
        return Err(part.told_of(format_args!("failed ({status})\n{printed}")));
    }
    Ok(printed)
}

/// Everybody who takes part.
struct Swarm<'a> {
    folder: &'a Path,
    interruption: &'a Interruption,
    info: &'a Info,
    peers: [Peer; 3],
    tracker: Tracker,
    /// When the fetchers started.
    began: Instant,
    /// How long it took each of them until it had everything.
    took: [Option<Duration>; 3],
}

impl<'a> Swarm<'a> {
    fn new(
        args: &Args,
        folder: &'a Path,
        interruption: &'a Interruption,
        tracker: Tracker,
        info: &'a Info,
    ) -> Self {
        let rate = args.rate.map_or(args.size.get().div_ceil(SECONDS), NonZero::get);
        let line = |line: String| line.split(' ').map(ToOwned::to_owned).collect();
        let peers = [
            Peer::new(
                "seeder",
                ["seeder", "block store"],
                "the seeder",
                line(format!("seed {TORRENT} --store {SEEDER_IMAGE} --up {rate}")),
            ),
            Peer::new(
                "blocks",
                ["fetcher", "block store"],
                "the fetcher over a block store",
                line(format!("fetch {TORRENT} --seed --store {FETCHER_IMAGE} --write-within 5")),
            ),
            Peer::new(
                "files",
                ["fetcher", "plain files"],
                "the fetcher into plain files",
                line(format!("fetch {TORRENT} --seed --store {FILES_FOLDER} --write-within 5")),
            ),
        ];
        Self { folder, interruption, info, peers, tracker, began: Instant::now(), took: [None; 3] }
    }

    /// Starts all; the fetchers when the tracker knows of the seeder.
    fn start(&mut self, show: &mut Show) -> Result<(), Box<dyn Error>> {
        show.working("starting the seeder and the fetchers");
        self.start_peer(SEEDER, show)?;
        let asked = Instant::now();
        while self.tracker.scrape(self.info.info_hash())?.seeders == 0 {
            self.pause()?;
            if asked.elapsed() > PATIENCE {
                return Err("the seeder has not announced itself to the tracker".into());
            }
        }
        self.began = Instant::now();
        for peer in ON_BLOCKS..self.peers.len() {
            self.start_peer(peer, show)?;
        }
        Ok(())
    }

    fn start_peer(&mut self, peer: usize, show: &mut Show) -> Result<(), Box<dyn Error>> {
        self.peers[peer].start(self.folder)?;
        let asked = Instant::now();
        // What it has as it begins is the first thing that it tells.
        while self.peers[peer].listening().is_none() || self.peers[peer].first().is_none() {
            self.pause()?;
            if asked.elapsed() > PATIENCE {
                return Err(format!("{} does not begin", self.peers[peer].name).into());
            }
        }
        let Peer { key, .. } = self.peers[peer];
        let (Some(pid), Some(address)) = (self.peers[peer].pid(), self.peers[peer].listening()) else {
            unreachable!("it was started, and listens");
        };
        show.tell(&Event::Started { part: key, pid, address: &address.to_string() })
    }

    /// Waits a little.
    ///
    /// # Errors
    /// If somebody has interrupted, or a part has ended.
    fn pause(&mut self) -> Result<(), Box<dyn Error>> {
        thread::sleep(PAUSE);
        self.interruption.check()?;
        self.peers.iter_mut().try_for_each(Peer::check)
    }

    /// Until both fetchers have everything; what a kill has shown.
    fn run(&mut self, kill: bool, show: &mut Show) -> Result<Option<Proof>, Box<dyn Error>> {
        let mut killing = if kill { Killing::Ahead } else { Killing::Never };
        let mut last_change = (0, Instant::now());
        loop {
            self.pause()?;
            show.frame(&self.frame()?)?;
            killing = self.kill(killing, show)?;
            let mut complete = true;
            for (peer, took) in self.peers.iter().zip(&mut self.took) {
                if peer.pid().is_some() && peer.latest().is_complete() {
                    took.get_or_insert_with(|| self.began.elapsed());
                } else {
                    complete = false;
                }
            }
            if complete {
                let proof = match killing {
                    Killing::Never => None,
                    Killing::Over(before) => Some(Proof::of(before, &self.peers[ON_BLOCKS])),
                    Killing::Ahead | Killing::Gone { .. } => continue,
                };
                self.until_announced()?;
                show.finish(&self.frame()?)?;
                return Ok(proof);
            }
            let pieces: u32 = self.peers.iter().map(|peer| peer.latest().complete).sum();
            if pieces != last_change.0 {
                last_change = (pieces, Instant::now());
            } else if last_change.1.elapsed() > STUCK {
                return Err(format!("nobody has got a piece for {} seconds", STUCK.as_secs()).into());
            }
        }
    }

    /// Waits until the tracker has heard that both have everything, if it does soon.
    fn until_announced(&mut self) -> Result<(), Box<dyn Error>> {
        let asked = Instant::now();
        while asked.elapsed() < ANNOUNCED
            && self.tracker.scrape(self.info.info_hash())?.seeders < self.peers.len() as u32
        {
            self.pause()?;
        }
        Ok(())
    }

    fn frame(&mut self) -> Result<Frame<'_>, Box<dyn Error>> {
        let tracker = self.tracker.counts(self.info.info_hash())?;
        Ok(Frame { seconds: self.began.elapsed().as_secs_f64(), peers: &self.peers, tracker })
    }

    /// Kills when it is time, and brings back.
    fn kill(&mut self, killing: Killing, show: &mut Show) -> Result<Killing, Box<dyn Error>> {
        match killing {
            Killing::Ahead => {
                let percent = self.peers[ON_BLOCKS].latest().percent();
                if percent < 50 || (percent < 75 && self.began.elapsed() < EARLIEST) {
                    return Ok(Killing::Ahead);
                }
                let now = Instant::now();
                let parts = [&self.peers[SEEDER], &self.peers[ON_BLOCKS]];
                let (pids, keys) =
                    (parts.map(|peer| peer.pid().unwrap_or_default()), parts.map(|peer| peer.key));
                for peer in [SEEDER, ON_BLOCKS] {
                    self.peers[peer].kill()?;
                }
                let durable =
                    now.checked_sub(DURABLE).map_or(0, |then| self.peers[ON_BLOCKS].complete_at(then));
                let before = Before { complete: self.peers[ON_BLOCKS].latest().complete, durable };
                show.tell(&Event::Killed { parts: keys, pids, complete: before.complete })?;
                Ok(Killing::Gone { since: now, before })
            }
            Killing::Gone { since, before } if since.elapsed() >= GONE => {
                for peer in [SEEDER, ON_BLOCKS] {
                    // Somebody may have taken its port meanwhile; it gets another one then.
                    self.start_peer(peer, show).or_else(|_| self.start_peer(peer, show))?;
                }
                let Proof { kept, missing, .. } = Proof::of(before, &self.peers[ON_BLOCKS]);
                show.tell(&Event::Back { part: self.peers[ON_BLOCKS].key, complete: kept, missing })?;
                Ok(Killing::Over(before))
            }
            killing => Ok(killing),
        }
    }

    /// Asks everybody to end, the tracker as the last; what they have moved, and what the tracker counted
    /// when they were gone.
    fn end(mut self) -> Result<(Vec<Moved>, Counts), Box<dyn Error>> {
        for peer in &mut self.peers {
            peer.stop(self.interruption)?;
        }
        let counts = self.tracker.scrape(self.info.info_hash())?;
        self.tracker.stop(self.interruption)?;
        let moved = self.peers.iter().zip(self.took).enumerate();
        let moved = moved.map(|(nth, (peer, took))| Moved::of(peer, took.filter(|_| nth != SEEDER)));
        Ok((moved.collect(), counts))
    }
}

/// How far it is with killing.
#[derive(Clone, Copy)]
enum Killing {
    Never,
    Ahead,
    Gone { since: Instant, before: Before },
    Over(Before),
}

/// What the fetcher over the block store had when it was killed.
#[derive(Clone, Copy)]
struct Before {
    /// Pieces that it had told of.
    complete: u32,
    /// Those of them that must have been durable.
    durable: u32,
}

/// What a kill has shown of the fetcher that was killed.
#[derive(Debug, Clone, Copy, serde::Serialize)]
struct Proof {
    /// Pieces that it had told of when it was killed.
    told: u32,
    /// Pieces of which it had told so early that they had to be durable.
    durable: u32,
    /// Pieces that it had when it started again.
    kept: u32,
    /// Bytes that it lacked then.
    missing: u64,
    /// Bytes that it fetched from then on.
    fetched: u64,
    /// Bytes that came besides, and were of no use: of blocks that two peers were asked for, as at the end.
    twice: u64,
}

impl Proof {
    fn of(before: Before, peer: &Peer) -> Self {
        let (first, latest) = (peer.first().unwrap_or_default(), peer.latest());
        Self {
            told: before.complete,
            durable: before.durable,
            kept: first.complete,
            // It may have fetched something before it told of anything.
            missing: first.left + first.downloaded,
            fetched: latest.downloaded,
            twice: latest.wasted,
        }
    }

    /// Whether nothing that was there is lost, or was fetched again.
    const fn holds(&self) -> bool {
        self.kept >= self.durable && self.fetched <= self.missing && self.twice <= MOST_TWICE
    }

    /// In words, for people.
    fn words(&self) -> String {
        let Self { told, durable, kept, missing, fetched, twice } = *self;
        let verdict = if self.holds() {
            "no complete piece was fetched twice"
        } else {
            "MORE THAN WAS MISSING, or less is there than was durable"
        };
        let lost = told.saturating_sub(kept);
        let besides = match twice {
            0 => "nothing besides".into(),
            twice => format!("{twice} that came twice, as two peers were asked"),
        };
        format!(
            "The fetcher that was killed had told of {told} pieces, and came back with {kept}. The\n \
             other {lost} were not durable yet (it takes five seconds at most),\n \
             and fetched again. {durable} were so old that they had to be there. {missing}\n \
             bytes were missing then, and it fetched {fetched}, and {besides}:\n \
             {verdict}."
        )
    }
}
