//! How a demo is shown: a screen that changes, a line a second where nobody looks, or events in JSON.

use std::{
    env,
    error::Error,
    fmt::{self, Write as _},
    io::{self, IsTerminal, Write as _},
    path::Path,
    time::{Duration, Instant},
};

use indicatif::{BinaryBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::{Serialize, Serializer};

use super::{
    Proof,
    peer::{Peer, Told, Totals},
    tracker::Counts,
    verify::Verified,
};
use seedkeep::counted;

pub(super) struct Show {
    how: How,
    /// When a frame was shown last.
    shown: Option<Instant>,
}

enum How {
    Screen { bar: ProgressBar, colours: bool },
    Lines,
    Json,
}

/// Something that happens, as `--json` prints it.
#[derive(Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Event<'a> {
    Started { part: &'a str, pid: u32, address: &'a str },
    Torrent { info_hash: &'a str, bytes: u64, pieces: u32, piece_length: u32 },
    Progress(&'a Frame<'a>),
    Killed { parts: [&'a str; 2], pids: [u32; 2], complete: u32 },
    Back { part: &'a str, complete: u32, missing: u64 },
    Verified(&'a Verified),
    Summary { peers: &'a [Moved], tracker: Counts, verified: &'a [Verified], restart: Option<&'a Proof> },
    Ended { ok: bool, why: Option<&'a str>, kept: Option<&'a Path> },
}

/// How it is at a moment.
#[derive(Serialize)]
pub(super) struct Frame<'a> {
    /// Since the fetchers started.
    pub(super) seconds: f64,
    #[serde(serialize_with = "peers")]
    pub(super) peers: &'a [Peer],
    pub(super) tracker: Counts,
}

/// What a peer has moved.
#[derive(Serialize)]
pub(super) struct Moved {
    part: &'static str,
    #[serde(skip)]
    title: [&'static str; 2],
    #[serde(flatten)]
    totals: Totals,
    /// How long a fetcher took.
    seconds: Option<f64>,
}

/// How often there is another frame.
const FRAMES: Duration = Duration::from_millis(200);
const LINES: Duration = Duration::from_secs(1);

const BOLD: &str = "1";
const CYAN: &str = "36";
const GREEN: &str = "32";
const RED: &str = "31";

impl Show {
    pub(super) fn new(json: bool) -> Self {
        let how = if json {
            How::Json
        } else if io::stdout().is_terminal() {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stdout());
            let colours = env::var_os("NO_COLOR").is_none_or(|set| set.is_empty());
            How::Screen {
                bar: bar.with_style(ProgressStyle::with_template("{msg}").expect("a valid template")),
                colours,
            }
        } else {
            How::Lines
        };
        Self { how, shown: None }
    }

    /// What is being done, while nothing else is shown.
    pub(super) fn working(&mut self, what: &str) {
        if let How::Screen { bar, .. } = &self.how {
            bar.set_message(format!(" … {what}"));
        }
    }

    pub(super) fn tell(&mut self, event: &Event<'_>) -> Result<(), Box<dyn Error>> {
        match &self.how {
            How::Json => writeln!(io::stdout(), "{}", serde_json::to_string(event)?)?,
            How::Lines => {
                let words = event.to_string();
                if !words.is_empty() {
                    writeln!(io::stdout(), "{words}")?;
                }
            }
            How::Screen { bar, .. } => {
                if matches!(event, Event::Summary { .. } | Event::Ended { .. }) {
                    bar.finish_and_clear();
                }
                let words = event.to_string();
                if !words.is_empty() {
                    bar.suspend(|| say(&words))?;
                }
            }
        }
        Ok(())
    }

    /// Shows how it is, if it is time to do so.
    pub(super) fn frame(&mut self, frame: &Frame<'_>) -> Result<(), Box<dyn Error>> {
        let often = if matches!(self.how, How::Screen { .. }) { FRAMES } else { LINES };
        if self.shown.is_some_and(|shown| shown.elapsed() < often) {
            return Ok(());
        }
        self.shown = Some(Instant::now());
        match &self.how {
            How::Json => writeln!(io::stdout(), "{}", serde_json::to_string(&Event::Progress(frame))?)?,
            How::Lines => writeln!(io::stdout(), "{}", frame.line())?,
            How::Screen { bar, colours } => bar.set_message(frame.screen(*colours)),
        }
        Ok(())
    }

    /// Shows the last frame, which stays.
    pub(super) fn finish(&mut self, frame: &Frame<'_>) -> Result<(), Box<dyn Error>> {
        self.shown = None;
        match &self.how {
            How::Screen { bar, colours } => {
                let screen = frame.screen(*colours);
                bar.suspend(|| say(&screen))
            }
            How::Json | How::Lines => self.frame(frame),
        }
    }
}

fn say(words: &str) -> Result<(), Box<dyn Error>> {
    writeln!(io::stdout(), "{words}")?;
    Ok(())
}

impl fmt::Display for Event<'_> {
    /// In words: nothing if there is nothing to say.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { part: "tracker", pid, address } => {
                write!(f, " tracker over the packed store: process {pid}, {address}")
            }
            Self::Started { part, pid, address } => write!(f, " {}: process {pid}, {address}", named(part)),
            Self::Torrent { info_hash, bytes, pieces, piece_length } => write!(
                f,
                " torrent {info_hash},\n for v1 and v2: {} in {pieces} pieces of {}",
                BinaryBytes(*bytes),
                BinaryBytes((*piece_length).into())
            ),
            Self::Progress(frame) => f.write_str(&frame.line()),
            Self::Killed { parts: [one, other], pids: [one_id, other_id], complete } => write!(
                f,
                " SIGKILL to the {} ({one_id}) and\n the {} ({other_id}), which had told of {complete} pieces",
                named(one),
                named(other)
            ),
            Self::Back { part, complete, missing } => write!(
                f,
                " the {} is back with {complete} pieces; {} are missing",
                named(part),
                BinaryBytes(*missing)
            ),
            Self::Verified(_) => Ok(()),
            Self::Summary { peers, tracker, verified, restart } => {
                writeln!(
                    f,
                    " {:8} {:12} {:>12} {:>12} {:>12} {:>8} {:>14}",
                    "", "", "fetched", "of no use", "sent", "seconds", "a second"
                )?;
                for moved in *peers {
                    moved.fmt(f)?;
                }
                for Verified { part, how, pieces } in *verified {
                    writeln!(f, " right: {}, {pieces} of {pieces} pieces ({how})", named(part))?;
                }
                let Counts { seeders, leechers, downloads } = tracker;
                let downloads = counted(*downloads as usize, "download");
                let peers = counted((seeders + leechers) as usize, "peer");
                write!(f, " The tracker counted {downloads}; {peers} left in it.")?;
                restart.map_or(Ok(()), |restart| write!(f, "\n {}", restart.words()))
            }
            Self::Ended { ok, kept, .. } => {
                // If not, why is the last that the program says.
                f.write_str(if *ok { " All is well. " } else { " " })?;
                match kept {
                    Some(kept) => write!(f, "Everything is in {}", kept.display()),
                    None => f.write_str("No process and no file of the demo is left."),
                }
            }
        }
    }
}

/// A part, by what it is called in JSON.
fn named(part: &str) -> &str {
    match part {
        "blocks" => "fetcher over a block store",
        "files" => "fetcher into plain files",
        "seeder" => "seeder over a block store",
        other => other,
    }
}

impl Frame<'_> {
    /// As a screen has it: two lines for each peer, and one for the tracker.
    fn screen(&self, colours: bool) -> String {
        let paint = |colour: &str, text: &str| {
            if colours { format!("\x1b[{colour}m{text}\x1b[0m") } else { text.to_owned() }
        };
        let mut screen = String::new();
        for peer in self.peers {
            let told = peer.latest();
            let title = paint(BOLD, &format!("{:7} {:12}", peer.title[0], peer.title[1]));
            let state = if peer.is_killed() {
                paint(RED, "gone: SIGKILL")
            } else {
                format!(
                    "{:>3} % {} ↓ {:>12}/s ↑ {:>12}/s {}",
                    told.percent(),
                    bar(told.percent()),
                    BinaryBytes(told.down_rate).to_string(),
                    BinaryBytes(told.up_rate).to_string(),
                    counted(told.peers, "peer")
                )
            };
            let _ = writeln!(screen, " {title} {state}");
            let colour = if told.is_complete() { GREEN } else { CYAN };
            let _ = writeln!(screen, "   {}", paint(colour, &map(&told.have)));
        }
        let Counts { seeders, leechers, downloads } = self.tracker;
        let title = paint(BOLD, &format!("{:7} {:12}", "tracker", "packed store"));
        let _ = write!(
            screen,
            " {title} {}, {}, {} completed {:>12.0} s",
            counted(seeders as usize, "seeder"),
            counted(leechers as usize, "leecher"),
            counted(downloads as usize, "download"),
            self.seconds
        );
        screen
    }

    /// In a line.
    fn line(&self) -> String {
        let mut line = format!("{:>4.0} s", self.seconds);
        for peer in self.peers {
            let told = peer.latest();
            let _ = write!(line, "  {} {:>3} %", peer.key, told.percent());
            for (rate, arrow) in [(told.down_rate, '↓'), (told.up_rate, '↑')] {
                if rate > 0 {
                    let _ = write!(line, " {arrow} {}/s", BinaryBytes(rate));
                }
            }
        }
        let Counts { seeders, leechers, downloads } = self.tracker;
        let _ = write!(
            line,
            "  tracker: {}, {}, {}",
            counted(seeders as usize, "seeder"),
            counted(leechers as usize, "leecher"),
            counted(downloads as usize, "download")
        );
        line
    }
}

/// Ten cells for a hundred.
fn bar(percent: u64) -> String {
    let full = (percent / 10) as usize;
    "█".repeat(full) + &"·".repeat(10 - full)
}

/// Shades for digits.
fn map(have: &str) -> String {
    let shade = |level| match level {
        '0' => '·',
        '1'..='3' => '░',
        '4'..='6' => '▒',
        '7' | '8' => '▓',
        _ => '█',
    };
    have.chars().map(shade).collect()
}

impl Moved {
    pub(super) fn of(peer: &Peer, took: Option<Duration>) -> Self {
        Self {
            part: peer.key,
            title: peer.title,
            totals: peer.totals(),
            seconds: took.map(|took| took.as_secs_f64()),
        }
    }
}

impl fmt::Display for Moved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Totals { downloaded, uploaded, wasted } = self.totals;
        let bytes = |bytes: u64| BinaryBytes(bytes).to_string();
        let (seconds, rate) = self.seconds.map_or_else(Default::default, |seconds| {
            (format!("{seconds:.1}"), bytes((downloaded as f64 / seconds) as u64))
        });
        writeln!(
            f,
            " {:8} {:12} {:>12} {:>12} {:>12} {seconds:>8} {rate:>14}",
            self.title[0],
            self.title[1],
            bytes(downloaded),
            bytes(wasted),
            bytes(uploaded)
        )
    }
}

/// With what each tells of the torrent.
fn peers<S: Serializer>(peers: &[Peer], serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Row {
        part: &'static str,
        pid: Option<u32>,
        #[serde(flatten)]
        told: Told,
    }
    serializer.collect_seq(peers.iter().map(|peer| Row {
        part: peer.key,
        pid: peer.pid(),
        told: peer.latest(),
    }))
}
