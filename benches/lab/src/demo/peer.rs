//! A seeder or a fetcher of the demo, and what it tells.

use std::{
    error::Error,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex},
    time::Instant,
};

use serde::{Deserialize, Serialize};

use super::part::{Interruption, Part, lock};

/// A seeder or a fetcher.
pub(super) struct Peer {
    /// What it is called in JSON.
    pub(super) key: &'static str,
    /// What it is, and over which store, as people are shown it.
    pub(super) title: [&'static str; 2],
    /// In a sentence.
    pub(super) name: &'static str,
    arguments: Vec<String>,
    part: Option<Part>,
    /// Whether it was killed, and is not back.
    killed: bool,
    seen: Arc<Mutex<Seen>>,
    /// Of the runs that are over.
    earlier: Totals,
}

/// What a run of a peer has told so far.
#[derive(Debug, Default)]
struct Seen {
    listening: Option<SocketAddr>,
    first: Option<Told>,
    latest: Told,
    /// When it had told of how many pieces.
    history: Vec<(Instant, u32)>,
}

/// What a peer tells of the torrent (`--json`).
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) bytes: u64,
    pub(super) left: u64,
    pub(super) pieces: u32,
    pub(super) complete: u32,
    pub(super) downloaded: u64,
    pub(super) uploaded: u64,
    pub(super) wasted: u64,
    pub(super) down_rate: u64,
    pub(super) up_rate: u64,
    pub(super) peers: usize,
    pub(super) banned: usize,
    /// Which pieces it has: a digit a stretch.
    pub(super) have: String,
}

/// Bytes, over all runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Totals {
    pub(super) downloaded: u64,
    pub(super) uploaded: u64,
    pub(super) wasted: u64,
}

#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum Line {
    Listening {
        addresses: Vec<SocketAddr>,
    },
    #[serde(alias = "stopped")]
    Progress {
        torrents: Vec<Told>,
    },
    #[serde(other)]
    Other,
}

impl Peer {
    pub(super) fn new(
        key: &'static str,
        title: [&'static str; 2],
        name: &'static str,
        arguments: Vec<String>,
    ) -> Self {
        let (seen, earlier) = Default::default();
        Self { key, title, name, arguments, part: None, killed: false, seen, earlier }
    }

    /// Starts it, where it listened before if it did.
    pub(super) fn start(&mut self, folder: &Path) -> Result<(), Box<dyn Error>> {
        let listening = lock(&self.seen).listening.take();
        // At the same address it is the same peer to the tracker, which has not heard that it was gone.
        let listen = listening.unwrap_or_else(|| ([127, 0, 0, 1], 0).into()).to_string();
        let mut arguments = self.arguments.clone();
        arguments.extend(["--json".into(), "--listen".into(), listen]);
        self.earlier = self.totals();
        self.seen = Arc::default();
        let seen = Arc::clone(&self.seen);
        self.killed = false;
        self.part = Some(Part::start(self.name, folder, &arguments, move |line| lock(&seen).read(line))?);
        Ok(())
    }

    /// # Errors
    /// If it has ended though nobody has asked it to, or says that something is wrong.
    pub(super) fn check(&mut self) -> Result<(), Box<dyn Error>> {
        self.part.as_mut().map_or(Ok(()), Part::check)?;
        if self.latest().banned > 0 {
            return Err(format!(
                "{} was sent wrong bytes, and speaks no more with that address, at which all of the demo is: what another peer has was changed \
                 behind its back",
                self.name
            )
            .into());
        }
        Ok(())
    }

    pub(super) fn kill(&mut self) -> Result<(), Box<dyn Error>> {
        self.killed = true;
        match self.part.take() {
            Some(mut part) => Ok(part.kill()?),
            None => Ok(()),
        }
    }

    pub(super) fn stop(&mut self, interruption: &Interruption) -> Result<(), Box<dyn Error>> {
        match self.part.take() {
            Some(mut part) => part.stop(interruption),
            None => Ok(()),
        }
    }

    pub(super) const fn is_killed(&self) -> bool {
        self.killed
    }

    /// While it runs.
    pub(super) fn pid(&self) -> Option<u32> {
        self.part.as_ref().map(Part::pid)
    }

    /// Where it listens, once that is known.
    pub(super) fn listening(&self) -> Option<SocketAddr> {
        lock(&self.seen).listening
    }

    /// What this run told as the first thing.
    pub(super) fn first(&self) -> Option<Told> {
        lock(&self.seen).first.clone()
    }

    pub(super) fn latest(&self) -> Told {
        lock(&self.seen).latest.clone()
    }

    /// How many pieces this run had told of by then.
    pub(super) fn complete_at(&self, then: Instant) -> u32 {
        let seen = lock(&self.seen);
        seen.history.iter().take_while(|(at, _)| *at <= then).last().map_or(0, |(_, complete)| *complete)
    }

    pub(super) fn totals(&self) -> Totals {
        let told = self.latest();
        Totals {
            downloaded: self.earlier.downloaded + told.downloaded,
            uploaded: self.earlier.uploaded + told.uploaded,
            wasted: self.earlier.wasted + told.wasted,
        }
    }
}

impl Told {
    pub(super) const fn is_complete(&self) -> bool {
        self.pieces > 0 && self.complete == self.pieces
    }

    /// Hundredths of it that are there.
    pub(super) const fn percent(&self) -> u64 {
        // Of less than 2^53 bytes, a demo's.
        match self.bytes {
            0 => 0,
            bytes => (bytes - if self.left < bytes { self.left } else { bytes }) * 100 / bytes,
        }
    }
}

impl Seen {
    fn read(&mut self, line: &str) {
        match serde_json::from_str(line) {
            Ok(Line::Listening { addresses }) => self.listening = addresses.first().copied(),
            Ok(Line::Progress { mut torrents }) if !torrents.is_empty() => {
                let told = torrents.swap_remove(0);
                self.history.push((Instant::now(), told.complete));
                self.first.get_or_insert_with(|| told.clone());
                self.latest = told;
            }
            // Of a later version, or the end of a line that a kill has cut.
            Ok(_) | Err(_) => {}
        }
    }
}
