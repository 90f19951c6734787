#!/usr/bin/env python3
"""Bytes a CPU second of seeders and fetchers, side by side: swarmkeep, libtorrent and aria2, over loopback.

Every seeder sends the same torrent to the same client, every fetcher gets it from the same seeder, in turns: A B C, then B C A, and so on. What
counts is the CPU time (user and system, all threads) of the one process that is looked at, from when it is ready until everything is there.
docs/reports/throughput.md says what each number means.
"""

import argparse
import json
import os
import platform
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

HERE = "127.0.0.1"
TICKS = os.sysconf("SC_CLK_TCK")

# In Debian's own Python, which has the binding. No encryption and no uTP, as with the others; all else by
# default.
LIBTORRENT = """
import libtorrent, signal, sys, time
torrent, folder, port, peer, then = sys.argv[1:]
session = libtorrent.session({
    "listen_interfaces": f"127.0.0.1:{port}", "enable_dht": False, "enable_lsd": False, "enable_upnp": False, "enable_natpmp": False,
    "enable_outgoing_utp": False, "enable_incoming_utp": False, "in_enc_policy": 2, "out_enc_policy": 2, "allow_multiple_connections_per_ip": True,
    "alert_mask": 0,
})
handle = session.add_torrent({"ti": libtorrent.torrent_info(torrent), "save_path": folder})
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
while peer and handle.status().state == libtorrent.torrent_status.checking_files:
    time.sleep(0.02)
if peer:
    handle.connect_peer(("127.0.0.1", int(peer)))
while then == "stay" or not handle.status().is_seeding:
    time.sleep(0.02 if then == "end" else 1)
"""


def main():
    options = arguments()
    work = Path(options.work)
    work.mkdir(parents=True, exist_ok=True)
    bench = Bench(options, work)
    try:
        bench.prepare()
        report = bench.run()
    finally:
        bench.stop_all()
        if not options.keep:
            shutil.rmtree(work)
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")
    table = markdown(report)
    if options.into:
        put_into(Path(options.into), table)
    print(table)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seedkeep", default="target/release/seedkeep", help="the program, built with --release")
    parser.add_argument("--before", help="another build of it, to measure it against")
    parser.add_argument("--swarmkeep", default="target/release/swarmkeep", help="the tracker, built with --release")
    parser.add_argument("--work", default="/dev/shm/swarmkeep-throughput", help="a folder in memory, which is removed afterwards")
    parser.add_argument("--mib", type=int, default=1024, help="how large the torrent is")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--only", action="append", default=[], help="names of rows to measure, as seed-files, fetch-blocks, seed-aria2")
    parser.add_argument("--client", choices=["libtorrent", "swarmkeep"], default="libtorrent", help="who fetches from the seeders")
    parser.add_argument("--minutes", type=float, default=20, help="no new turn begins after that")
    parser.add_argument("--json", help="where the figures go")
    parser.add_argument("--into", help="a Markdown file with `throughput:begin` and `throughput:end`, between which the table goes")
    parser.add_argument("--keep", action="store_true", help="leave the folder, and use what it has")
    return parser.parse_args()


class Bench:
    """The torrent, the stores of it, and the processes at work."""

    def __init__(self, options, work):
        self.options, self.work, self.running = options, work, []
        self.torrent = work / "content.torrent"
        self.bytes = options.mib << 20
        # For aria2, which gets the address of a peer only from a tracker.
        self.tracker = None
        # Libtorrent, as long as the program runs: the seeder of all fetchers.
        self.shared = None

    def rows(self):
        ours = {"": self.options.seedkeep}
        if self.options.before:
            ours["-before"] = self.options.before
        rows = {}
        for suffix, program in ours.items():
            rows[f"seed-files{suffix}"] = lambda program=program: self.seed_ours(program, self.work / "folder")
            rows[f"seed-blocks{suffix}"] = lambda program=program: self.seed_ours(program, self.work / "blocks.image")
        rows["seed-libtorrent"] = self.seed_libtorrent
        rows["seed-aria2"] = self.seed_aria2
        for suffix, program in ours.items():
            rows[f"fetch-blocks{suffix}"] = lambda program=program: self.fetch_ours(program, "blocks.image")
            rows[f"fetch-files{suffix}"] = lambda program=program: self.fetch_ours(program, "folder")
        rows["fetch-libtorrent"] = self.fetch_libtorrent
        rows["fetch-aria2"] = self.fetch_aria2
        return {name: row for name, row in rows.items() if not self.options.only or name in self.options.only}

    def prepare(self):
        work, ours = self.work, self.options.seedkeep
        plain = work / "plain"
        if self.torrent.exists():
            return
        plain.mkdir()
        with open(plain / "content", "wb") as file:
            for _ in range(self.options.mib):
                file.write(os.urandom(1 << 20))
        created = output(ours, "create", plain / "content", "--v1", "--piece-length", "1MiB", "--json", "-o", self.torrent)
        (work / "info_hash").write_text(json.loads(created)["info_hash"])
        (work / "folder").mkdir()
        self.format(work / "blocks.image")
        for store in ["folder", "blocks.image"]:
            quietly(ours, "store", "add", work / store, self.torrent, plain / "content")
        # From there on, all seed the same file.
        shutil.rmtree(plain)

    def format(self, image):
        quietly(self.options.seedkeep, "store", "format", image, "--size", f"{self.options.mib + 256}MiB")

    def run(self):
        rows = list(self.rows().items())
        taken = {name: [] for name, _ in rows}
        end = time.monotonic() + 60 * self.options.minutes
        turn = 0
        while turn < self.options.turns and (turn == 0 or time.monotonic() < end):
            first = turn % len(rows)
            for name, row in rows[first:] + rows[:first]:
                seconds, cpu, user = self.seeding(row) if name.startswith("seed-") else row()
                taken[name].append({"cpu": cpu, "user": user, "wall": seconds})
                print(f"turn {turn + 1} {name}: {cpu:.2f} s of CPU ({user:.2f} user), {seconds:.2f} s", file=sys.stderr)
            turn += 1
        return {
            "bytes": self.bytes, "piece": 1 << 20, "turns": turn, "client": self.options.client,
            "versions": versions(self.options), "machine": machine(), "rows": taken,
        }

    def seeding(self, start):
        """CPU of a seeder that gives everything to one client."""
        seeder, port = start()
        seeder.idle()
        before, user = seeder.cpu()
        target = self.fresh("target")
        if self.options.client == "libtorrent":
            client = self.start(*self.libtorrent(target, free_port(), port, "end"))
        else:
            client = self.start(self.options.seedkeep, "fetch", self.torrent, "--store", target,
                                "--listen", f"{HERE}:{free_port()}", "--peer", f"{HERE}:{port}")
        began = time.monotonic()
        client.wait()
        seconds = time.monotonic() - began
        after, user_after = seeder.cpu()
        self.check(target)
        seeder.stop()
        shutil.rmtree(target)
        return seconds, after - before, user_after - user

    def fetching(self, command, target):
        """CPU of a fetcher, from its start to its end. It gets the address of the shared seeder."""
        began = time.monotonic()
        fetcher = self.start(*command)
        cpu, user = fetcher.wait()
        seconds = time.monotonic() - began
        if target.is_dir():
            self.check(target)
            shutil.rmtree(target)
        else:
            target.unlink()
        return seconds, cpu, user

    def seed_ours(self, program, store):
        port = free_port()
        return self.start(program, "seed", self.torrent, "--store", store, "--listen", f"{HERE}:{port}"), port

    def seed_libtorrent(self):
        port = free_port()
        return self.start(*self.libtorrent(self.work / "folder", port, "", "stay")), port

    def seed_aria2(self):
        port = free_port()
        command = self.aria2(self.work / "folder", port) + ["--seed-ratio=0.0", "--check-integrity=true", self.torrent]
        return self.start(*command), port

    def fetch_ours(self, program, store):
        target = self.fresh("target") / store
        if store == "folder":
            target.mkdir()
        else:
            self.format(target)
        seeder = self.shared_seeder()
        return self.fetching([program, "fetch", self.torrent, "--store", target, "--listen", f"{HERE}:{free_port()}",
                              "--peer", f"{HERE}:{seeder}"], target)

    def fetch_libtorrent(self):
        seeder, target = self.shared_seeder(), self.fresh("target")
        seconds, cpu, user = self.fetching(self.libtorrent(target, free_port(), seeder, "end"), target)
        # The interpreter and its libraries are not measured.
        idle, idle_user = self.start("/usr/bin/python3", "-c", "import libtorrent; libtorrent.session()").wait()
        return seconds, cpu - idle, user - idle_user

    def fetch_aria2(self):
        seeder, target = self.shared_seeder(), self.fresh("target")
        tracker = self.announce(seeder)
        command = self.aria2(target, free_port()) + ["--seed-time=0", f"--bt-tracker={tracker}", self.torrent]
        return self.fetching(command, target)

    def libtorrent(self, folder, port, peer, then):
        return ["/usr/bin/python3", "-c", LIBTORRENT, self.torrent, folder, port, peer, then]

    def aria2(self, folder, port):
        return ["aria2c", "--no-conf", "--enable-dht=false", "--enable-dht6=false", "--bt-enable-lpd=false", "--enable-peer-exchange=false",
                "--file-allocation=none", "--bt-stop-timeout=0", "--summary-interval=0", "--console-log-level=error", "--quiet=true",
                f"--interface={HERE}", f"--listen-port={port}", f"--dir={folder}"]

    def shared_seeder(self):
        if self.shared is None:
            process, self.shared = self.seed_libtorrent()
            process.idle()
        return self.shared

    def announce(self, seeder):
        if self.tracker is None:
            port = free_port()
            self.start(self.options.swarmkeep, "serve", "--http", f"{HERE}:{port}")
            self.tracker = f"http://{HERE}:{port}/announce"
            wait_for(lambda: listens(port), "the tracker listens")
        query = urllib.parse.urlencode({"info_hash": bytes.fromhex((self.work / "info_hash").read_text()), "peer_id": b"-XX0000-of-a-seeder!",
                                        "port": seeder, "uploaded": 0, "downloaded": 0, "left": 0, "compact": 1, "event": "started"})
        urllib.request.urlopen(f"{self.tracker}?{query}").read()
        return self.tracker

    def fresh(self, name):
        folder = self.work / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def check(self, folder):
        quietly("cmp", self.work / "folder/content", folder / "content")

    def start(self, *command):
        process = Process(command, self.work / "log")
        self.running.append(process)
        return process

    def stop_all(self):
        for process in self.running:
            process.stop()


class Process:
    """A process of ours, and what CPU time it has taken."""

    def __init__(self, command, log):
        with open(log, "ab") as log:
            self.child = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.ended = None

    def cpu(self):
        """Seconds, and those of user time, of all threads that are or were."""
        fields = Path(f"/proc/{self.child.pid}/stat").read_text().rsplit(")", 1)[1].split()
        user, system = int(fields[11]) / TICKS, int(fields[12]) / TICKS
        return user + system, user

    def idle(self):
        """Waits until it has started and checked what it has: until it takes hardly any time for a second."""
        end = time.monotonic() + 120
        time.sleep(0.5)
        before = self.cpu()[0]
        while True:
            time.sleep(1)
            now = self.cpu()[0]
            if now - before <= 0.02:
                return
            if time.monotonic() > end:
                raise SystemExit("a seeder does not come to rest")
            before = now

    def wait(self):
        """Its whole CPU time."""
        end = time.monotonic() + 300
        while True:
            pid, status, usage = os.wait4(self.child.pid, os.WNOHANG)
            if pid:
                self.ended = self.child.returncode = os.waitstatus_to_exitcode(status)
                if self.ended != 0:
                    raise SystemExit(f"{self.child.args} ended with {self.ended}; see the log, with --keep")
                return usage.ru_utime + usage.ru_stime, usage.ru_utime
            if time.monotonic() > end:
                raise SystemExit(f"{self.child.args} does not end; see the log, with --keep")
            time.sleep(0.005)

    def stop(self):
        if self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)
            try:
                self.child.wait(10)
            except subprocess.TimeoutExpired:
                self.child.kill()
                self.child.wait()


def output(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def quietly(*command):
    subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)


def free_port():
    with socket.socket() as any_socket:
        any_socket.bind((HERE, 0))
        return any_socket.getsockname()[1]


def listens(port):
    with socket.socket() as one:
        return one.connect_ex((HERE, port)) == 0


def wait_for(happened, what):
    end = time.monotonic() + 30
    while not happened():
        if time.monotonic() > end:
            raise SystemExit(f"not after 30 seconds: {what}")
        time.sleep(0.02)


def versions(options):
    def said(*command):
        return output(*command).split("\n")[0].strip()

    return {
        "swarmkeep": said(options.seedkeep, "--version"),
        "libtorrent": "libtorrent " + said("/usr/bin/python3", "-c", "import libtorrent; print(libtorrent.__version__)"),
        "aria2": said("aria2c", "--version"),
    }


def machine():
    model = re.search(r"model name\s*:\s*(.*)", Path("/proc/cpuinfo").read_text())
    return {"cpu": model and model[1], "cores": os.cpu_count(), "kernel": platform.release()}


NAMES = {"files": "swarmkeep, files", "blocks": "swarmkeep, block store", "libtorrent": "libtorrent, files", "aria2": "aria2, files"}


def markdown(report):
    """One table for seeders and one for fetchers. Ratios are medians of those of each turn."""
    lines = []
    mib = report["bytes"] / (1 << 20)
    for kind, title in [("seed-", "seeder"), ("fetch-", "fetcher")]:
        rows = {name.removeprefix(kind): turns for name, turns in report["rows"].items() if name.startswith(kind) and turns}
        if not rows:
            continue
        others = [name for name in ["libtorrent", "aria2"] if name in rows]
        lines += ["", f"| {title} | MiB a CPU second (least–most) | of it user | MiB/s | " + "".join(f"times {name} | " for name in others)]
        lines[-1] = lines[-1].rstrip()
        lines.append("|---" * (4 + len(others)) + "|")
        for name, turns in rows.items():
            rates = [mib / turn["cpu"] for turn in turns]
            user = statistics.median(turn["user"] / turn["cpu"] for turn in turns)
            wall = statistics.median(mib / turn["wall"] for turn in turns)
            ratios = [statistics.median(o["cpu"] / t["cpu"] for o, t in zip(rows[other], turns)) for other in others]
            base, _, build = name.partition("-")
            shown = NAMES[base] + (" (before)" if build else "")
            lines.append(f"| {shown} | {statistics.median(rates):.0f} ({min(rates):.0f}–{max(rates):.0f}) | {100 * user:.0f} % | {wall:.0f} | "
                         + "".join(f"{ratio:.2f} | " for ratio in ratios).rstrip())
    told, where = report["versions"], report["machine"]
    lines += ["", f"{told['swarmkeep']}, {told['libtorrent']}, {told['aria2']}; {mib:.0f} MiB in pieces of 1 MiB, medians of {report['turns']} turns; "
              f"seeders send to {report['client']}, fetchers fetch from libtorrent. {where['cores']} cores ({where['cpu']}), Linux {where['kernel']}.", ""]
    return "\n".join(lines)


def put_into(path, table):
    begin, end = "<!-- throughput:begin -->", "<!-- throughput:end -->"
    before, _, rest = path.read_text().partition(begin)
    _, _, after = rest.partition(end)
    path.write_text(f"{before}{begin}\n{table.strip()}\n{end}{after}")


if __name__ == "__main__":
    main()
