//! The demo's tracker, and what it counts.

use std::{
    error::Error,
    net::SocketAddr,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use serde::Serialize;
use swarmkeep_bittorrent::InfoHash;
use swarmkeep_tracker_protocol::http::{ScrapeRequest, ScrapeResponse};

use super::part::{Interruption, PATIENCE, PAUSE, Part};
use swarmkeep_cli::get;

/// A tracker that runs.
pub(super) struct Tracker {
    part: Part,
    udp: SocketAddr,
    http: SocketAddr,
    counts: Counts,
    asked: Option<Instant>,
}

/// What it says of the torrent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Counts {
    pub(super) seeders: u32,
    pub(super) leechers: u32,
    /// How often a download was completed.
    pub(super) downloads: u32,
}

/// How often it is asked.
const OFTEN: Duration = Duration::from_millis(500);

impl Tracker {
    /// Starts it at ports that are free, over the packed store.
    pub(super) fn start(folder: &Path, interruption: &Interruption) -> Result<Self, Box<dyn Error>> {
        let line = "serve --repository packed --udp 127.0.0.1:0 --http 127.0.0.1:0 --admin off --log error";
        let arguments: Vec<_> = line.split(' ').collect();
        let mut part = Part::start("the tracker", folder, &arguments, |_| {})?;
        let began = Instant::now();
        // It says `listening on udp ADDRESS, http ADDRESS; …`.
        loop {
            let said = part.said();
            let address = |protocol: &str| {
                let (_, rest) = said.split_once(protocol)?;
                rest.split([',', ';']).next()?.trim().parse().ok()
            };
            if let (Some(udp), Some(http)) = (address("udp "), address("http ")) {
                return Ok(Self { part, udp, http, counts: Counts::default(), asked: None });
            }
            part.check()?;
            interruption.check()?;
            if began.elapsed() > PATIENCE {
                return Err(part.told_of(format_args!("does not say where it listens")));
            }
            thread::sleep(PAUSE);
        }
    }

    /// Where peers announce.
    pub(super) fn url(&self) -> String {
        format!("udp://{}", self.udp)
    }

    pub(super) const fn part(&self) -> &Part {
        &self.part
    }

    /// What it counts, asked by a scrape over HTTP (BEP 48) if it was not asked just now.
    pub(super) fn counts(&mut self, info_hash: InfoHash) -> Result<Counts, Box<dyn Error>> {
        self.part.check()?;
        if self.asked.is_none_or(|asked| asked.elapsed() > OFTEN) {
            self.scrape(info_hash)?;
        }
        Ok(self.counts)
    }

    /// What it counts now.
    pub(super) fn scrape(&mut self, info_hash: InfoHash) -> Result<Counts, Box<dyn Error>> {
        let mut path = b"/scrape?".to_vec();
        ScrapeRequest::write([info_hash], &mut path);
        let path = String::from_utf8(path).expect("escaped bytes are ASCII");
        let scraped = || {
            let body = get(self.http, &self.http.to_string(), &path)?;
            let scrape = ScrapeResponse::parse(&body)?
                .map_err(|failure| String::from_utf8_lossy(failure.reason).into_owned())?;
            let mut swarms = scrape.swarms().filter(|(of, _)| *of == info_hash);
            Ok::<_, Box<dyn Error>>(swarms.next().map(|(_, stats)| stats))
        };
        let stats = match scraped() {
            Ok(stats) => stats,
            Err(error) => {
                // If it has died, that is why.
                thread::sleep(PAUSE);
                self.part.check()?;
                return Err(self.part.told_of(format_args!("cannot be asked: {error}")));
            }
        };
        self.counts = stats.map_or(Counts::default(), |stats| Counts {
            seeders: stats.seeders,
            leechers: stats.leechers,
            downloads: stats.completed,
        });
        self.asked = Some(Instant::now());
        Ok(self.counts)
    }

    pub(super) fn stop(mut self, interruption: &Interruption) -> Result<(), Box<dyn Error>> {
        self.part.stop(interruption)
    }
}
