# Writes pieces through the disk I/O of libtorrent, as lines on its standard input say:
# "create NUMBER LENGTH PIECE_LENGTH", "piece NUMBER INDEX LENGTH" and the bytes, "flush", which is answered.
import sys, time
import libtorrent as lt

ERROR, STORAGE, STATISTICS = 1 << 0, 1 << 3, 1 << 11
# The folder to write to and, to be tuned, bytes that may wait for the disk.
folder, *queue = sys.argv[1:]
settings = {
    "alert_mask": ERROR | STORAGE | STATISTICS,
    # No hashing here: the other stores also get verified pieces.
    "disable_hash_checks": True,
    "enable_dht": False, "enable_lsd": False, "enable_natpmp": False, "enable_upnp": False,
    "listen_interfaces": "",
}
if queue:
    # Calls instead of a mapping, and one thread that writes.
    settings |= {"disk_write_mode": 1, "aio_threads": 1, "max_queued_disk_bytes": int(queue[0])}
session = lt.session(settings)
# The bytes that wait for the disk before a session reads no more from peers.
window = session.get_settings()["max_queued_disk_bytes"]
torrents, given = {}, 0


def wait_for(kind, count=1):
    while True:
        session.wait_for_alert(1000)
        for alert in session.pop_alerts():
            if isinstance(alert, (lt.file_error_alert, lt.torrent_error_alert)):
                sys.exit(alert.message())
            count -= isinstance(alert, kind)
            if count == 0:
                return alert


def wait_for_disk(most):
    while True:
        session.post_session_stats()
        queued = wait_for(lt.session_stats_alert).values["disk.queued_write_bytes"]
        if queued <= most:
            return queued
        time.sleep(0.0005)


commands = sys.stdin.buffer
print(lt.__version__, flush=True)
for line in commands:
    command, *numbers = line.decode().split()
    numbers = [int(number) for number in numbers]
    if command == "create":
        number, length, piece_length = numbers
        info = {
            b"name": str(number).encode(), b"length": length, b"piece length": piece_length,
            b"pieces": b"%020d" % number * (-(-length // piece_length)),
        }
        parameters = lt.add_torrent_params()
        parameters.ti = lt.torrent_info(lt.bdecode(lt.bencode({b"info": info})))
        parameters.save_path, parameters.flags = folder, 0
        if queue:
            parameters.storage_mode = lt.storage_mode_t.storage_mode_allocate
        torrents[number] = session.add_torrent(parameters)
        while str(torrents[number].status().state) != "downloading":
            time.sleep(0.0005)
    elif command == "piece":
        number, piece, length = numbers
        torrents[number].add_piece(piece, commands.read(length), 0)
        given += length
        if given > window:
            given = wait_for_disk(window // 2)
    else:
        given = wait_for_disk(0)
        for torrent in torrents.values():
            torrent.flush_cache()
        wait_for(lt.cache_flushed_alert, len(torrents))
        print("flushed", flush=True)
