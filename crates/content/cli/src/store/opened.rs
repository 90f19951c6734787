//! A store that was opened: on a device, in an image, or in a folder.

use std::{
    collections::HashSet,
    error::Error,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use swarmkeep_bittorrent::in_words;
use swarmkeep_content::{
    ContentConfig, ContentRepository, Description, Error as StoreError, FileFolder, InfoHash, Library,
    Summary,
    block::BlockStore,
    files::{self, FileStore, HIDDEN},
};
use swarmkeep_metainfo::Metainfo;

use super::{TorrentFiles, counted};

/// The longest wait for another process that has the store open.
const PATIENCE: Duration = Duration::from_secs(1);

/// A store of any kind, and its torrent files.
pub(crate) struct OpenStore {
    pub(crate) repository: Arc<dyn ContentRepository>,
    pub(crate) torrents: Arc<Library>,
    pub(crate) torrent_files: PathBuf,
    pub(crate) kind: Kind,
    /// Damage found while opening it.
    pub(crate) damage: Vec<String>,
}

pub(crate) enum Kind {
    Block(BlockStore),
    Files(FileStore),
}

/// The purpose of opening a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// Several processes may read a device or an image at the same time. A folder is mended also then, since
    /// opening it does so.
    Reading,
    Writing,
    /// A folder need not be a store yet.
    Adding,
}

pub(crate) struct StoredTorrent {
    pub(crate) summary: Summary,
    /// A summary of its torrent file, if there is one.
    pub(crate) description: Option<Description>,
}

impl OpenStore {
    /// Opens the store at `path`. Prints its damage.
    pub(crate) fn open(
        path: &Path,
        torrent_files: &TorrentFiles,
        access: Access,
    ) -> Result<Self, Box<dyn Error>> {
        let opened = Self::open_quietly(path, torrent_files, access)?;
        opened.damage.iter().for_each(|damage| eprintln!("seedkeep: {damage}"));
        Ok(opened)
    }

    pub(crate) fn open_quietly(
        path: &Path,
        torrent_files: &TorrentFiles,
        access: Access,
    ) -> Result<Self, Box<dyn Error>> {
        let shown = path.display();
        let kind = path.metadata().map_err(|error| {
            format!("{shown}: {error}; `seedkeep store format {shown} --size 100GiB` makes an image there")
        })?;
        let (kind, damage): (_, Vec<_>) = if kind.is_dir() {
            if access != Access::Adding && !path.join(HIDDEN).exists() {
                return Err(
                    format!("{shown} holds no store; `seedkeep store add` begins one in a folder").into()
                );
            }
            let store = patiently(|| FileStore::open(&ContentConfig::new(path), files::Allocation::Sparse))?;
            let damage = store.report().damage.iter().map(in_words).collect();
            (Kind::Files(store), damage)
        } else if kind.is_file() || kind.file_type().is_block_device() {
            let store = match access {
                Access::Reading => patiently(|| BlockStore::open_read_only(path))?,
                Access::Writing | Access::Adding => patiently(|| BlockStore::open(path, None))?,
            };
            let report = store.report();
            let mut damage: Vec<_> = report.damage.iter().map(in_words).collect();
            damage.extend(report.read_only.filter(|_| access != Access::Reading).map(ToOwned::to_owned));
            (Kind::Block(store), damage)
        } else {
            return Err(format!("{shown} is neither a block device, nor a file, nor a folder").into());
        };
        let repository: Arc<dyn ContentRepository> = match &kind {
            Kind::Block(store) => Arc::new(store.clone()),
            Kind::Files(store) => Arc::new(store.clone()),
        };
        let torrent_files = torrent_files.of(path)?;
        let torrents = Library::new(Arc::clone(&repository), FileFolder::new(&torrent_files));
        Ok(Self { repository, torrents: Arc::new(torrents), torrent_files, kind, damage })
    }

    /// Every torrent, by name.
    pub(crate) fn torrents(&self) -> Result<Vec<StoredTorrent>, Box<dyn Error>> {
        let list = self.repository.list()?;
        let mut torrents = Vec::with_capacity(list.len());
        for summary in list {
            let description = if_readable(self.torrents.description(&summary.info_hash))?;
            torrents.push(StoredTorrent { summary, description });
        }
        torrents.sort_unstable_by(|a, b| (a.name(), a.info_hash()).cmp(&(b.name(), b.info_hash())));
        Ok(torrents)
    }

    /// The torrents of these names, info hashes, or beginnings of info hashes. All if `names` is empty.
    pub(crate) fn named(&self, names: &[String]) -> Result<Vec<StoredTorrent>, Box<dyn Error>> {
        let mut torrents = self.torrents()?;
        if names.is_empty() {
            return Ok(torrents);
        }
        let mut picked = vec![false; torrents.len()];
        for name in names {
            let hash = name.to_ascii_lowercase();
            // The name of a torrent may be the info hash of another.
            let ways: [&dyn Fn(&StoredTorrent) -> bool; 3] = [
                &|torrent| torrent.info_hash().to_string() == hash,
                &|torrent| torrent.name() == Some(name),
                &|torrent| hash.len() >= 4 && torrent.info_hash().to_string().starts_with(&hash),
            ];
            let found = ways.into_iter().find_map(|meant| {
                let found: Vec<_> = (0..torrents.len()).filter(|&at| meant(&torrents[at])).collect();
                (!found.is_empty()).then_some(found)
            });
            match found.as_deref() {
                Some([at]) => picked[*at] = true,
                None => {
                    let help = "`seedkeep store list` shows all";
                    return Err(format!("no torrent in the store is called {name}; {help}").into());
                }
                Some(found) => {
                    let count = found.len();
                    return Err(
                        format!("{count} torrents are called {name}: name one by its info hash").into()
                    );
                }
            }
        }
        let mut picked = picked.into_iter();
        torrents.retain(|_| picked.next() == Some(true));
        Ok(torrents)
    }

    /// The metainfo of a torrent, if its torrent file can be read.
    pub(crate) fn metainfo(&self, info_hash: &InfoHash) -> Result<Option<Metainfo>, StoreError> {
        if_readable(self.torrents.metainfo(info_hash))
    }

    /// A message with the number of torrents without a torrent file, if any. Reads no torrent file.
    pub(crate) fn missing_torrent_files(&self) -> Result<Option<String>, Box<dyn Error>> {
        let torrents = self.repository.list()?;
        Ok(self.kept(torrents.iter().map(|torrent| torrent.info_hash)).1)
    }

    /// The info hashes of the torrent files, and a message with the number of torrents without one, if any.
    pub(crate) fn kept(
        &self,
        torrents: impl ExactSizeIterator<Item = InfoHash>,
    ) -> (HashSet<InfoHash>, Option<String>) {
        let kept = match self.torrents.kept() {
            Ok(kept) => kept,
            Err(error) => return (HashSet::new(), Some(format!("its torrent files are not known: {error}"))),
        };
        let all = counted(torrents.len(), "torrent");
        let missing = torrents.filter(|torrent| !kept.contains(torrent)).count();
        let folder = self.torrent_files.display();
        let told = format!(
            "{missing} of {all} cannot be verified: their torrent files are not in {folder}; `seedkeep store add` \
             keeps them again, --torrents names another folder"
        );
        (kept, (missing > 0).then_some(told))
    }

    /// Damage of the store as a whole: missing torrent files, damage found while opening it, lost torrents.
    pub(crate) fn all_damage(&self) -> Result<Vec<String>, Box<dyn Error>> {
        let mut damage: Vec<_> = self.missing_torrent_files()?.into_iter().collect();
        damage.extend(self.damage.iter().cloned());
        if let Kind::Block(store) = &self.kind {
            let told =
                |lost: &&InfoHash| !self.damage.iter().any(|damage| damage.contains(&lost.to_string()));
            let why = "is lost: nothing is known of it but the name; `seedkeep store remove` forgets it";
            damage.extend(store.report().lost.iter().filter(told).map(|lost| format!("{lost} {why}")));
        }
        Ok(damage)
    }

    /// Messages about torrent files that cannot be read, or belong to another torrent. Reads all of them.
    pub(crate) fn damaged_torrent_files(&self) -> Result<Vec<String>, Box<dyn Error>> {
        let mut damage = Vec::new();
        for Summary { info_hash, .. } in self.repository.list()? {
            match self.torrents.is_damaged(&info_hash) {
                Ok(false) => {}
                Ok(true) => damage.push(format!(
                    "{info_hash}: its torrent file is damaged; `seedkeep store add` replaces it"
                )),
                Err(error @ StoreError::Io { .. }) => damage.push(format!("{info_hash}: {error}")),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(damage)
    }
}

/// `None` for a torrent file that cannot be read. [`OpenStore::damaged_torrent_files`] reports the reason.
fn if_readable<T>(read: Result<Option<T>, StoreError>) -> Result<Option<T>, StoreError> {
    if let Err(StoreError::Io { .. }) = read { Ok(None) } else { read }
}

/// Opens a store, or waits for the lock of another process: one that was killed frees it some time later.
fn patiently<S>(open: impl Fn() -> Result<S, StoreError>) -> Result<S, StoreError> {
    let began = Instant::now();
    loop {
        match open() {
            Err(StoreError::InUse { .. }) if began.elapsed() < PATIENCE => thread::sleep(PATIENCE / 50),
            done => return done,
        }
    }
}

impl StoredTorrent {
    pub(crate) const fn info_hash(&self) -> InfoHash {
        self.summary.info_hash
    }

    /// Its name in its torrent file.
    pub(crate) fn name(&self) -> Option<&str> {
        self.description.as_ref().map(Description::name)
    }

    /// Its name, or else its info hash.
    pub(crate) fn title(&self) -> String {
        self.name().map_or_else(|| self.info_hash().to_string(), ToOwned::to_owned)
    }
}
