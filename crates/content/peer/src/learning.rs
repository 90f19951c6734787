//! The metadata of a magnet link: its info dictionary, then the hashes of its pieces.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use swarmkeep_metainfo::{Info, InfoHashes, Magnet};
use swarmkeep_peer_wire::{HashRange, Hashes};
use tokio::sync::oneshot;

use crate::{
    Error,
    hashes::{HashFault, HashFetch},
    metadata::{Fetched, MetadataFault, MetadataFetch},
    picker::PeerKey,
};

/// Fetches the metadata from the peers of a torrent.
#[derive(Debug)]
pub(crate) struct Learning {
    stage: Stage,
    /// Whether its peers speak v2: then hashes are fetched from them also where v1 has some.
    v2: bool,
    learnt: Option<oneshot::Sender<Result<Info, Error>>>,
}

#[derive(Debug)]
enum Stage {
    Metadata(Box<MetadataFetch<PeerKey>>),
    /// The dictionary is here, and is being read.
    Reading,
    /// With the time of its start: a hybrid does not wait long for hashes.
    Hashes(Box<HashFetch<PeerKey>>, Instant),
    Done,
}

/// The next request to a peer: for a piece of the info dictionary, or for hashes.
pub(crate) enum LearningRequest<'a> {
    Metadata(u32),
    Hashes(HashRange<'a>),
}

/// How long a hybrid waits for hashes: it has those of v1 as well, and its v1 peers know no others.
const HYBRID: Duration = Duration::from_secs(10);

impl Learning {
    pub(crate) fn new(magnet: &Magnet) -> (Self, oneshot::Receiver<Result<Info, Error>>) {
        let (v1, v2) = (magnet.info_hash_v1(), magnet.info_hash_v2());
        let hashes = InfoHashes::new(v1, v2).expect("a magnet link has one of them");
        let (learnt, result) = oneshot::channel();
        let fetch = MetadataFetch::new(hashes, MetadataFetch::<PeerKey>::LONGEST);
        (Self { stage: Stage::Metadata(fetch.into()), v2: v1.is_none(), learnt: Some(learnt) }, result)
    }

    pub(crate) const fn is_done(&self) -> bool {
        matches!(self.stage, Stage::Done)
    }

    /// A peer claims that it has the info dictionary, of `size` bytes.
    pub(crate) fn offered(&mut self, peer: PeerKey, size: u32) -> Result<(), MetadataFault> {
        match &mut self.stage {
            Stage::Metadata(fetch) => fetch.offered(peer, size),
            _ => Ok(()),
        }
    }

    /// The next request to a peer, if there is one. `has` returns whether the peer has one of the pieces.
    pub(crate) fn next_request(
        &mut self,
        peer: PeerKey,
        now: Instant,
        has: impl Fn(Range<u32>) -> bool,
    ) -> Option<LearningRequest<'_>> {
        if let Stage::Hashes(_, since) = &self.stage
            && now.saturating_duration_since(*since) > HYBRID
        {
            self.do_without();
        }
        match &mut self.stage {
            Stage::Metadata(fetch) => fetch.request(peer, now).map(LearningRequest::Metadata),
            Stage::Hashes(fetch, _) => fetch.request(peer, now, has).map(LearningRequest::Hashes),
            Stage::Reading | Stage::Done => None,
        }
    }

    pub(crate) fn metadata(
        &mut self,
        peer: PeerKey,
        piece: u32,
        total_size: u32,
        data: &[u8],
    ) -> Result<Fetched<PeerKey>, MetadataFault> {
        // Another peer was faster.
        let Stage::Metadata(fetch) = &mut self.stage else { return Ok(Fetched::Part) };
        let fetched = fetch.data(peer, piece, total_size, data)?;
        if let Fetched::Whole { .. } = fetched {
            self.stage = Stage::Reading;
        }
        Ok(fetched)
    }

    pub(crate) fn metadata_rejected(&mut self, peer: PeerKey, piece: u32) -> Result<(), MetadataFault> {
        match &mut self.stage {
            Stage::Metadata(fetch) => fetch.rejected(peer, piece, Instant::now()),
            _ => Ok(()),
        }
    }

    /// Takes the parsed info dictionary, or the error of parsing it.
    pub(crate) fn read(&mut self, info: Result<Info, Error>) {
        match info {
            Ok(info) if info.knows_hashes() && !self.v2 => self.end(Ok(info)),
            Ok(info) => match HashFetch::new(info) {
                Ok(fetch) if fetch.is_complete() => self.end(Ok(fetch.into_info())),
                Ok(fetch) => self.stage = Stage::Hashes(Box::new(fetch), Instant::now()),
                Err(error) => self.end(Err(Error::Torrent(error.to_string()))),
            },
            Err(error) => self.end(Err(error)),
        }
    }

    pub(crate) fn hashes(&mut self, peer: PeerKey, hashes: &Hashes<'_>) -> Result<(), HashFault> {
        let Stage::Hashes(fetch, _) = &mut self.stage else { return Ok(()) };
        if fetch.hashes(peer, hashes)?
            && let Stage::Hashes(fetch, _) = std::mem::replace(&mut self.stage, Stage::Done)
        {
            self.end(Ok(fetch.into_info()));
        }
        Ok(())
    }

    pub(crate) fn hashes_rejected(&mut self, peer: PeerKey, range: &HashRange<'_>) -> Result<(), HashFault> {
        match &mut self.stage {
            Stage::Hashes(fetch, _) => {
                fetch.rejected(peer, range, Instant::now())?;
                self.do_without();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Takes a hybrid without the hashes that are missing.
    fn do_without(&mut self) {
        if let Stage::Hashes(fetch, _) = &self.stage
            && fetch.info().knows_hashes()
            && let Stage::Hashes(fetch, _) = std::mem::replace(&mut self.stage, Stage::Done)
        {
            self.end(Ok(fetch.into_info()));
        }
    }

    pub(crate) fn gone(&mut self, peer: PeerKey) {
        match &mut self.stage {
            Stage::Metadata(fetch) => fetch.gone(peer),
            Stage::Hashes(fetch, _) => fetch.gone(peer),
            Stage::Reading | Stage::Done => {}
        }
    }

    fn end(&mut self, info: Result<Info, Error>) {
        self.stage = Stage::Done;
        if let Some(learnt) = self.learnt.take() {
            // The receiver may be gone.
            let _ = learnt.send(info);
        }
    }
}
