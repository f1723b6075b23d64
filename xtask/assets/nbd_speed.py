"""Measures servers of NBD in turn, each with the load of fio through a Unix socket. Prints a table.

    nbd_speed.py FOREBAY WORK ROUNDS SECONDS ARRAY LOADS...

WORK is a directory on the SSD. With ARRAY `yes`, the backing device of Forebay is an emulated array of slow disks, and
needs root. LOADS are names in `LOADS`.
"""

import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import time

import nbd
from nbd_rig import MIB, Forebay, Nbdkit, QemuNbd, expect, run, until

SIZE, BLOCK = 256 * MIB, 4096
# A load: words of fio, connections, requests in flight on each, and whether a server without a disk can have it.
LOADS = {
    "reads-1x1": (["--rw=randread", "--bs=4k"], 1, 1, True),
    "reads-16x8": (["--rw=randread", "--bs=4k"], 16, 8, True),
    "flushed-1x1": (["--rw=randwrite", "--bs=4k", "--fsync=1"], 1, 1, False),
    "flushed-16x8": (["--rw=randwrite", "--bs=4k", "--fsync=1"], 16, 8, False),
    # fio cannot set FUA, nor flush without a write. Nothing is dirty for the flushes.
    "fua-1x1": (None, 1, 1, False),
    "fua-16x8": (None, 16, 8, False),
    "flushes-1x1": (None, 1, 1, False),
    "flushes-16x8": (None, 16, 8, False),
    "writes-16x8": (["--rw=randwrite", "--bs=4k"], 16, 8, True),
    "stream-reads": (["--rw=read", "--bs=1M"], 1, 4, True),
    "stream-writes": (["--rw=write", "--bs=1M", "--fsync=64"], 1, 4, False),
}


class Memory(Nbdkit):
    """nbdkit's plugin `memory`: what the protocol costs."""

    def start(self):
        self.begin("nbdkit", "-f", "-U", self.socket, "-e", "disk", "memory", str(SIZE))
        until("the start", self.connects, self)


class Measured(Forebay):
    """A server whose cache devices have room for everything."""

    cache, ram = "2GiB", "512MiB"


def array(forebay, *words):
    return run(forebay, "bench", "array", *words, "--name", "nbd-speed", "--state-dir", "/run/nbd-speed")


def servers(forebay, slow):
    """Returns the names of the servers, and what makes each one in a directory."""

    def cached(work):
        server = Measured(work, forebay, SIZE)
        server.image = slow or server.image
        return server

    return {"Forebay": cached, "nbdkit memory": lambda work: Memory(work, SIZE),
            "nbdkit file": lambda work: Nbdkit(work, SIZE), "qemu-nbd": lambda work: QemuNbd(work, SIZE)}


def used(pid):
    """Returns the processor time of a process, in seconds."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def fio(uri, seconds, words, connections, depth):
    """Returns the requests per second."""
    common = ["--name=load", "--ioengine=nbd", f"--uri={uri}", f"--size={SIZE}", "--time_based", "--group_reporting",
              f"--runtime={seconds}", f"--numjobs={connections}", f"--iodepth={depth}", "--output-format=json"]
    done = subprocess.run(["fio", *common, *words], capture_output=True, text=True, check=True)
    (job,) = json.loads(done.stdout[done.stdout.index("{"):])["jobs"]
    expect(job["error"] == 0, f"fio ended with the error {job['error']}")
    return job["read"]["iops"] + job["write"]["iops"]


# Requests that fio does not send, by name. Each sends one at a random place.
ISSUES = {
    "fua": lambda handle, buffer, place: handle.aio_pwrite(buffer, place, flags=nbd.CMD_FLAG_FUA),
    "read": lambda handle, buffer, place: handle.aio_pread(buffer, place),
    "flushes": lambda handle, buffer, place: handle.aio_flush(),
}


def connection(uri, depth, begin, end, number, issue):
    """Returns the times of the requests that one connection has answers for, in microseconds."""
    handle, chance, issue = nbd.NBD(), random.Random(number), ISSUES[issue]
    handle.connect_uri(uri)
    buffer, flying, times = nbd.Buffer.from_bytearray(bytearray(chance.randbytes(BLOCK))), {}, []
    time.sleep(max(0, begin - time.monotonic()))
    while time.monotonic() < end or flying:
        while len(flying) < depth and time.monotonic() < end:
            sent = time.monotonic()
            flying[issue(handle, buffer, chance.randrange(SIZE // BLOCK) * BLOCK)] = sent
        handle.poll(-1)
        over, now = [cookie for cookie in flying if handle.aio_command_completed(cookie)], time.monotonic()
        times += [int((now - flying.pop(cookie)) * 1e6) for cookie in over]
    return times


def many(uri, seconds, connections, depth, issue):
    """Returns the requests per second, and the 50th and 99th percentile of their times. Each connection is a process."""
    begin = time.monotonic() + 1
    children = []
    for number in range(connections):
        read, write = os.pipe()
        if os.fork() == 0:
            status = 1
            try:
                with os.fdopen(write, "w") as result:
                    json.dump(connection(uri, depth, begin, begin + seconds, number, issue), result)
                status = 0
            finally:
                os._exit(status)
        os.close(write)
        children.append(read)
    times = []
    for child in children:
        with os.fdopen(child) as result:
            times += json.loads(result.read() or "[]")
        expect(os.wait()[1] == 0, "a connection failed")
    times.sort()
    return len(times) / seconds, times[len(times) // 2], times[len(times) * 99 // 100]


def measure(server, load, seconds):
    """Returns the requests per second, and the processor time of the server for each in microseconds."""
    words, connections, depth, _ = LOADS[load]
    (uri,) = [uri for uri in server.uris() if "unix" in uri]
    # Every block is there, and in memory as far as the server has any.
    fio(uri, 2, ["--rw=write", "--bs=1M", "--fsync=64"], 1, 4)
    fio(uri, 1, ["--rw=read", "--bs=1M"], 1, 4)
    before = used(server.process.pid)
    if words:
        rate = fio(uri, seconds, words, connections, depth)
    else:
        rate, *_ = many(uri, seconds, connections, depth, load.split("-")[0])
    return rate, (used(server.process.pid) - before) / (rate * seconds) * 1e6


def begin(make, work):
    shutil.rmtree(work, ignore_errors=True)
    os.mkdir(work)
    server = make(work)
    server.start()
    return server


def cell(results):
    rates, costs = zip(*results)
    return (f"{statistics.median(rates):,.0f} [{min(rates):,.0f} to {max(rates):,.0f}]"
            f"<br>{statistics.median(costs):.1f} us")


def main():
    forebay, work, rounds, seconds, is_slow, *loads = sys.argv[1:]
    slow = None
    if is_slow == "yes":
        array(forebay, "up", "--model", "nl-sas-8", "--size", "2G", "--fs", "none")
        slow = json.loads(array(forebay, "status", "--json"))["device"]
    results = {}
    try:
        makers = servers(forebay, slow)
        for turn in range(int(rounds)):
            # Each round has another order.
            names = list(makers)[turn % len(makers):] + list(makers)[:turn % len(makers)]
            for load in loads or LOADS:
                for name in names:
                    if name == "nbdkit memory" and not LOADS[load][3]:
                        continue
                    server = begin(makers[name], f"{work}/{name.replace(' ', '-')}")
                    try:
                        found = measure(server, load, int(seconds))
                    finally:
                        server.process.kill()
                        server.process.wait()
                    results.setdefault(load, {}).setdefault(name, []).append(found)
                    print(f"# {load}, {name}: {found[0]:,.0f}/s, {found[1]:.1f} us", file=sys.stderr, flush=True)
    finally:
        if slow:
            array(forebay, "down", "--force")
    print(f"| load, requests/s | {' | '.join(makers)} |\n|---|{'---|' * len(makers)}")
    for load, found in results.items():
        print(f"| {load} | {' | '.join(cell(found[name]) if name in found else '' for name in makers)} |")


if __name__ == "__main__":
    main()
