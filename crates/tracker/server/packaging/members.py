#!/usr/bin/env python3
"""Sums up what members upload and download, from the records of `swarmkeep serve --report-to FILE`:

    members.py SUMS.sqlite FILE     # every few minutes: adds what is new in FILE.1 and FILE, and prints
                                    # NAME UPLOADED DOWNLOADED of each member, in bytes

A row is a member, an info hash and a peer id; after 30 days without an announce, a member alone. A client
announces its numbers over IPv4 and over IPv6; they count once. A client that starts again counts from 0."""

import contextlib, hashlib, itertools, json, os, sqlite3, sys, time

TABLES = """CREATE TABLE IF NOT EXISTS sums (name, info_hash, peer_id, number, sum, most, v4, v6, time,
    PRIMARY KEY (name, info_hash, peer_id, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (first_line PRIMARY KEY, bytes) WITHOUT ROWID;"""
FIND = "SELECT sum, most, v4, v6 FROM sums WHERE name = ? AND info_hash = ? AND peer_id = ? AND number = ?"
# Not sum(), which fails above 2^63: a member could bring it there by many peer ids.
SUM = "CAST(total(sum) FILTER (WHERE number = '%s') AS INTEGER)"
SHOW = f"SELECT name, {SUM % 'uploaded'}, {SUM % 'downloaded'} FROM sums GROUP BY name ORDER BY name"
FOLD = """INSERT OR REPLACE INTO sums SELECT name, '', '', number, CAST(total(sum) AS INTEGER), 0, 0, 0, 0
    FROM sums WHERE time < ? GROUP BY name, number"""
LARGEST = 2**53  # of one row, whatever a client says


def add(db, report):
    for number in ("uploaded", "downloaded"):
        key = (report["name"], report["info_hash"], report["peer_id"], number)
        total, most, *last = db.execute(FIND, key).fetchone() or (0, 0, 0, 0)
        family = report["endpoint"].startswith("[")
        value = last[family] if report[number] is None else report[number]
        # Without a start, another announce has overtaken this one, or a piece was bad.
        if value < last[family] and report["event"] == "started":
            most, last = 0, [0, 0]
        total, most = min(total + max(0, value - most), LARGEST), max(value, most)
        last[family] = max(value, last[family])  # only a start lowers it
        db.execute("INSERT OR REPLACE INTO sums VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", (*key, total, most, *last, report["time"]))


database, path = sys.argv[1:] if len(sys.argv) == 3 else sys.exit(__doc__)
files = [open(name, "rb") for name in (path, path + ".1") if os.path.exists(name)]  # FILE may become FILE.1
files or sys.exit(f"there is no {path}: give the file of --report-to")
os.umask(0o077)  # the sums show what members fetch
db = sqlite3.connect(database)
db.executescript(TABLES)
with db:
    db.execute("BEGIN IMMEDIATE")  # one run at a time
    for file in reversed(files):
        first = hashlib.sha256(file.readline()).hexdigest()
        (end,) = db.execute("SELECT bytes FROM files WHERE first_line = ?", (first,)).fetchone() or (0,)
        file.seek(end)
        # The last line may be half written.
        for line in itertools.takewhile(lambda line: line.endswith(b"\n"), file):
            end += len(line)
            with contextlib.suppress(ValueError, KeyError, TypeError):  # of a line that a crash has cut off
                add(db, json.loads(line))
        db.execute("INSERT OR REPLACE INTO files VALUES (?, ?)", (first, end))
    old = (time.time() - 30 * 24 * 3600,)
    db.execute(FOLD, old)
    db.execute("DELETE FROM sums WHERE time < ? AND peer_id <> ''", old)
for row in db.execute(SHOW):
    print(*row)
