#!/usr/bin/env python3
"""Sums up what members upload and download, from the records of `swarmkeep serve --report-to FILE`:

    members.py SUMS.sqlite FILE     # every few minutes: adds what is new in FILE.1 and FILE, and prints the sums

A row is a member, an info hash and a peer id. A client announces its numbers over IPv4 and over IPv6; they count
once. A number that is lower than the last one over the same family begins anew: the client counts from 0 again."""

import json, os, sqlite3, sys

TABLES = """
CREATE TABLE IF NOT EXISTS sums (name TEXT, info_hash TEXT, peer_id TEXT, number TEXT, sum INTEGER, most INTEGER,
    v4 INTEGER, v6 INTEGER, PRIMARY KEY (name, info_hash, peer_id, number)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS files (first_line TEXT PRIMARY KEY, bytes INTEGER) WITHOUT ROWID;
"""
FIND = "SELECT sum, most, v4, v6 FROM sums WHERE name = ? AND info_hash = ? AND peer_id = ? AND number = ?"
# Not sum(), which fails above 2^63: a member could bring it there by many peer ids.
SUM = "CAST(total(sum) FILTER (WHERE number = '%s') AS INTEGER)"
SHOW = f"SELECT name, {SUM % 'uploaded'}, {SUM % 'downloaded'} FROM sums GROUP BY name ORDER BY name"
LARGEST = 2**53  # of one row, whatever a client says


def add(db, report, number):
    value = report[number]
    if value is None:
        return
    key = (report["name"], report["info_hash"], report["peer_id"], number)
    total, most, *last = db.execute(FIND, key).fetchone() or (0, 0, 0, 0)
    family = 1 if report["endpoint"].startswith("[") else 0
    if value < last[family]:
        most, last = 0, [0, 0]
    total, most, last[family] = min(total + max(0, value - most), LARGEST), max(value, most), value
    db.execute("INSERT OR REPLACE INTO sums VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (*key, total, most, *last))


def read(db, file):
    first = file.readline()
    known = db.execute("SELECT bytes FROM files WHERE first_line = ?", (first.decode(),)).fetchone()
    end = known[0] if known else 0
    file.seek(end)
    for line in file:
        if not line.endswith(b"\n"):
            break  # it is being written
        for number in ("uploaded", "downloaded"):
            add(db, json.loads(line), number)
        end += len(line)
    if end:
        db.execute("INSERT OR REPLACE INTO files VALUES (?, ?)", (first.decode(), end))


database, path = sys.argv[1:]
db = sqlite3.connect(database)
db.executescript(TABLES)
names = (path, path + ".1")  # in this order: FILE may become FILE.1 meanwhile
files = [open(name, "rb") for name in names if os.path.exists(name)]
with db:
    for file in reversed(files):
        read(db, file)
for row in db.execute(SHOW):
    print(*row)
