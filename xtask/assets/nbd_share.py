"""Measures clients of a volume and clients of an export of one server, alone and beside each other. Prints a table.

    nbd_share.py FOREBAY WORK ROUNDS SECONDS LOADS...

WORK is a directory on the SSD. LOADS are names of `CASES`. A client of the export has another address than the clients
that load the export, so that it has a share of its own.
"""

import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time

from nbd_rig import expect, until
from nbd_speed import SIZE, Measured, begin, fio, many

# Seconds for which a load is in progress before the clients beside it are measured, and after them.
AROUND = 4


class Shared(Measured):
    """A server with a volume, and with an export that a client reaches at two addresses."""

    def words(self):
        return [*super().words(), "--listen", "[::1]:0", "--squash", "none"]

    def export(self, is_other=False):
        """Returns the URL of the export, at the first or at the other address."""
        with open(f"{self.work}/log", errors="replace") as log:
            first, other = re.search(r"Listening on (\S+), (\S+)", log.read()).groups()
        return f"nfs://{other if is_other else first}/"


def volume(connections, depth, issue="fua"):
    """Returns a load of a volume."""
    return lambda server, seconds: many(server.uris()[-1], seconds, connections, depth, issue)


def stream(words):
    """Returns a sequential load of a volume, in MiB/s."""
    words = [*words, "--bs=1M"]
    return lambda server, seconds: (fio(server.uris()[-1], seconds, words, 1, 4), None, None)


def export(clients, depth, is_other=False):
    """Returns a load of the export: random WRITEs of 4 KiB, FILE_SYNC."""
    return lambda server, seconds: bench(server, seconds, "randwrite", clients, depth, f"{128 // clients}M", is_other)


def files(pattern):
    """Returns a sequential load of the export, in MiB/s. A pattern that ends earlier is short."""

    def run(server, seconds):
        return bench(server, seconds, pattern, 1, 4, str(SIZE), False)

    return run


def bench(server, seconds, pattern, clients, depth, size, is_other):
    """Returns the operations per second, and the 50th and 99th percentile of their times in microseconds."""
    words = [server.binary, "bench", "run", "--url", server.export(is_other), pattern, "--clients", str(clients)]
    words += ["--depth", str(depth), "--size", size, "--seconds", str(seconds), "--keep", "-o", "-"]
    done = subprocess.run(words, capture_output=True, text=True)
    expect(done.returncode == 0, f"{' '.join(words)}: {done.stderr[-500:]}")
    (run,) = json.loads(done.stdout)["phases"][-1]["runs"]
    return run["operations_per_second"], run["latency"]["p50"], run["latency"]["p99"]


# A name, the clients that are measured, and the load beside them, if any.
CASES = {
    "volume 1x1": (volume(1, 1), None),
    "volume 1x1 beside export 32x4": (volume(1, 1), export(32, 4)),
    "volume 1x1 beside volume 16x8": (volume(1, 1), volume(16, 8)),
    "export 1x1": (export(1, 1, True), None),
    "export 1x1 beside export 32x4": (export(1, 1, True), export(32, 4)),
    "export 1x1 beside volume 16x8": (export(1, 1, True), volume(16, 8)),
    "volume 16x8": (volume(16, 8), None),
    "volume 16x8 beside export 32x4": (volume(16, 8), export(32, 4)),
    "export 32x4": (export(32, 4), None),
    "export 32x4 beside volume 16x8": (export(32, 4), volume(16, 8)),
    "reads of volume 1x1": (volume(1, 1, "read"), None),
    "reads of volume 1x1 beside export 32x4": (volume(1, 1, "read"), export(32, 4)),
    "stream into volume": (stream(["--rw=write", "--fsync=64"]), None),
    "stream into file": (files("seqwrite"), None),
    "stream from volume": (stream(["--rw=read"]), None),
    "stream from file": (files("seqread"), None),
}


def beside(server, load, seconds):
    """Starts a load in a process of its own, which ends with `stop`."""
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        try:
            load(server, seconds + 2 * AROUND)
        finally:
            os._exit(0)
    time.sleep(AROUND)
    return child


def stop(child):
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    os.waitpid(child, 0)


def measure(server, name, seconds):
    measured, load = CASES[name]
    measured(server, 1)
    if load:
        # The files of an export are made by the first run.
        load(server, 1)
    child = load and beside(server, load, seconds)
    try:
        found = measured(server, seconds)
        expect(not child or os.waitpid(child, os.WNOHANG) == (0, 0), "the load ended early")
        return found
    finally:
        if child:
            stop(child)


def cell(values):
    values = [value for value in values if value is not None]
    return f"{statistics.median(values):,.0f} [{min(values):,.0f} to {max(values):,.0f}]" if values else ""


def main():
    forebay, work, rounds, seconds, *wanted = sys.argv[1:]
    names = [name for name in CASES if not wanted or any(word in name for word in wanted)]
    results = {name: [] for name in names}
    for turn in range(int(rounds)):
        start = turn * 3 % len(names)
        for name in names[start:] + names[:start]:
            server = begin(lambda work: Shared(work, forebay, SIZE), f"{work}/server")
            try:
                fio(server.uris()[-1], 2, ["--rw=write", "--bs=1M", "--fsync=64"], 1, 4)
                until("the end of the first writes", lambda: server.settle() is None, server)
                results[name].append(measure(server, name, int(seconds)))
            finally:
                server.process.kill()
                server.process.wait()
            load = os.getloadavg()[0]
            print(f"# {name}: {results[name][-1]}, load {load:.1f}", file=sys.stderr, flush=True)
    print("| clients | requests/s, or MiB/s of a stream | median, us | 99th percentile, us |\n|---|---|---|---|")
    for name, found in results.items():
        print(f"| {name} | {' | '.join(cell(values) for values in zip(*found))} |")


if __name__ == "__main__":
    main()
