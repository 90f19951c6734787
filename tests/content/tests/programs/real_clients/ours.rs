//! Our own peer as one of the clients: a process of this program.

use std::{env, fs, net::SocketAddr, path::PathBuf, process::Command, sync::Arc, time::Duration};

use swarmkeep_bittorrent::PeerId;
use swarmkeep_content::{
    ContentConfig, ContentExt, ContentRepository, FileFolder, Library,
    files::{Allocation, FileStore, HIDDEN},
};
use swarmkeep_peer::{Session, SessionConfig};
use tokio::signal::unix::{SignalKind, signal};

use crate::real_clients::{FILE, clients::ClientSetup};

/// The arguments of [`run`]: its address, the torrent file, and the folder with the file.
const ARGUMENTS: [&str; 3] = ["SWARMKEEP_PEER_AT", "SWARMKEEP_PEER_TORRENT", "SWARMKEEP_PEER_FOLDER"];

pub(crate) fn command(place: &ClientSetup, command: &mut Command) {
    *command = Command::new(env::current_exe().expect("a test is a program"));
    let values = [place.at.to_string().into(), place.torrent().to_owned(), place.download.clone().into()];
    command.envs(ARGUMENTS.into_iter().zip(values));
}

/// Whether this process must be such a client instead of tests.
pub(crate) fn is_asked_for() -> bool {
    env::var_os(ARGUMENTS[0]).is_some()
}

/// Seeds the file, or fetches it, until SIGINT.
pub(crate) fn run() {
    let [at, torrent, folder] = ARGUMENTS.map(|variable| env::var_os(variable).expect("all are set"));
    let at: SocketAddr = at.to_str().and_then(|at| at.parse().ok()).expect("an address");
    let (torrent, folder) = (torrent.into_string().expect("a path or a link"), PathBuf::from(folder));
    // A store does not adopt files that it did not write.
    let seeded = fs::read(folder.join(FILE)).ok();
    if seeded.is_some() {
        fs::remove_file(folder.join(FILE)).expect("a file of ours");
    }
    let files = FileStore::open(&ContentConfig::new(&folder), Allocation::Sparse).expect("a folder of ours");
    let library = Library::new(Arc::new(files), FileFolder::new(folder.join(HIDDEN).join("torrents")));
    let store = library.store();
    let keep = |torrent: &[u8]| library.add(torrent).expect("room for 2 MiB");
    let known = fs::read(&torrent).ok().map(|torrent| keep(&torrent));
    if let (Some(seeded), Some(metainfo)) = (seeded, &known) {
        let info = metainfo.info();
        let content = store.open(&info.info_hash()).expect("it was added");
        content.write(0, &seeded).expect("room for 2 MiB");
        (0..info.piece_count()).for_each(|piece| _ = content.mark_complete(piece).expect("it was written"));
    }
    let mut config = SessionConfig::new(PeerId::new(*b"-KP0100-our own peer"));
    config.listen = vec![at];
    config.trackers.shortest_interval = Duration::from_secs(2);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let mut interrupt = signal(SignalKind::interrupt()).expect("a handler");
        let session = Session::start(config, Arc::clone(store)).await.expect("the address is ours");
        let metainfo = match known {
            Some(metainfo) => metainfo,
            None => {
                let link = torrent.parse().expect("a magnet link");
                let learnt = session.learn(&link).await.expect("a torrent");
                keep(&learnt.encode().expect("its hashes were learnt"))
            }
        };
        let tiers = metainfo.tiers().to_vec();
        let _shared = session.add(metainfo.into_info(), &tiers).await.expect("the store has it");
        interrupt.recv().await;
        session.stop().await.expect("a store that works");
    });
}
