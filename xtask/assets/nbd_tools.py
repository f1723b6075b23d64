"""Runs the tools of NBD's users against a server: libnbd's, QEMU's and fio's. Needs no root.

    nbd_tools.py SERVER WORK [LIBNBD]

SERVER is a binary of Forebay, `nbdkit` or `qemu-nbd`; WORK is an empty directory; LIBNBD has the source of libnbd, whose
example programs run as well,
and those of its test programs that take a server.
"""

import contextlib
import errno
import json
import os
import random
import subprocess
import sys
import time

import nbd
from nbd_rig import MIB, PATIENCE, SERVERS, SIZE, Forebay, Wrong, expect, run

BLOCK = 4096
ABILITIES = "connect read write trim zero flush fua multi-conn cache df fast-zero structured-reply"
# Of the JSON of nbdinfo.
BLOCK_SIZES = {"block_size_minimum": 1, "block_size_preferred": BLOCK, "block_size_maximum": 32 * MIB}
HOLE, ZERO, CACHED, DIRTY = 1, 2, 1, 2
# More than the RAM of the server, so that blocks come from the cache files as well.
AREA = 8 * MIB


class Client:
    """Connections of libnbd, and the contents that the volume must have from `start` on."""

    def __init__(self, uri, connections=1, start=0, length=AREA):
        self.uri, self.start, self.length = uri, start, length
        self.handles = [connect(uri) for _ in range(connections)]
        self.holds = bytearray(self.handles[0].pread(length, start))

    def verify(self):
        equal(self.handles[0].pread(self.length, self.start), self.holds)

    def reconnect(self):
        self.handles = [connect(self.uri) for _ in self.handles]


def connect(uri, strict=True):
    handle = nbd.NBD()
    for context in ("base:allocation", "forebay:cache"):
        handle.add_meta_context(context)
    if not strict:
        handle.set_strict_mode(0)
    handle.connect_uri(uri)
    return handle


def equal(found, wanted):
    if found != wanted:
        at = next(at for at, pair in enumerate(zip(found, wanted)) if pair[0] != pair[1])
        raise Wrong(f"byte {at} is {found[at]}, not {wanted[at]}; lengths are {len(found)} and {len(wanted)}")


def wipe(uri):
    run("qemu-io", "-f", "raw", "-c", f"write -z -u 0 {SIZE}", "-c", "flush", uri)


def image(path, parts):
    """Makes a sparse image with data in these ranges."""
    with open(path, "wb") as file:
        file.truncate(SIZE)
        for start, length in parts:
            os.pwrite(file.fileno(), random.Random(start).randbytes(length), start)
    return path


def used(path):
    return os.stat(path).st_blocks * 512


def contents(path):
    with open(path, "rb") as file:
        return file.read()


def settled(server, wanted):
    """Checks that the volume's image has the contents of another image."""
    server.settle()
    equal(contents(server.image), contents(wanted))


def statuses(uri, context):
    """Returns the extents that nbdinfo maps, as pairs of length and status. Neighbours differ."""
    extents = json.loads(run("nbdinfo", "--json", f"--map={context}", uri))
    joined = []
    for extent in extents:
        if joined and joined[-1][1] == extent["type"]:
            joined[-1][0] += extent["length"]
        else:
            joined.append([extent["length"], extent["type"]])
    expect(sum(length for length, _ in joined) == SIZE, f"the map has another size: {joined}")
    return [(length, status) for length, status in joined]


def status_at(uri, offset):
    """Returns the status of a byte in the context of the cache."""
    for length, status in statuses(uri, "forebay:cache"):
        if offset < length:
            return status
        offset -= length
    raise Wrong("the map is too short")


def nbdinfo(server, uri):
    """nbdinfo: the export, its abilities, and the list of exports."""
    export = json.loads(run("nbdinfo", "--json", uri))
    expect(export["structured"] and not export["TLS"], f"the negotiation is {export}")
    (export,) = export["exports"]
    expect(export["export-size"] == SIZE and not export["is_read_only"], f"the export is {export}")
    run("nbdinfo", "--is", "read-only", uri, status=2)
    expect(run("nbdinfo", "--size", uri).strip() == str(SIZE), "another size")
    if isinstance(server, Forebay):
        expect(BLOCK_SIZES.items() <= export.items(), f"the export is {export}")
        for ability in ABILITIES.split():
            run("nbdinfo", "--can", ability, uri)
        listed = json.loads(run("nbdinfo", "--list", "--json", uri.replace("/disk", "/")))
        names = [export["export-name"] for export in listed["exports"]]
        expect(names == ["disk"], f"the exports are {names}")


def mapped(server, uri):
    """nbdinfo --map: data, holes, and the contents of the cache."""
    wipe(uri)
    run("qemu-io", "-f", "raw", "-c", "write -P 5 1M 1M", "-c", "write -P 6 9M 4k", "-c", "flush", uri)
    data = [(length, status) for length, status in statuses(uri, "base:allocation") if not status & HOLE]
    expect(data == [(MIB, 0), (BLOCK, 0)], f"the data is {data}")
    if isinstance(server, Forebay):
        server.settle()
        run("qemu-io", "-f", "raw", "-c", "write -P 7 16M 8k", "-c", "flush", uri)
        expect(status_at(uri, 16 * MIB) & CACHED, "a block that was just written is not in the cache")
        server.settle()
        left = {status & DIRTY for _, status in statuses(uri, "forebay:cache")}
        expect(left == {0}, "the map has dirty blocks after a flush of the volume")
        kinds = {status & CACHED for _, status in statuses(uri, "forebay:cache")}
        expect(kinds == {0, CACHED}, f"of the map {kinds} is cached")


def nbdcopy(server, uri):
    """nbdcopy: a sparse image in and out; holes stay holes."""
    parts = [(0, 64 << 10), (5 * MIB + 512, 3 * MIB), (20 * MIB, 512), (SIZE - 700, 700)]
    source = image(f"{server.work}/source", parts)
    for words in (["-C", "1", "--synchronous"], ["-C", "4", "-R", "16"]):
        wipe(uri)
        if "-R" in words:
            # Old contents must not show through the holes.
            run("qemu-io", "-f", "raw", "-c", f"write -P 9 0 {SIZE // 2}", uri)
        run("nbdcopy", "--flush", *words, source, uri)
        copy = f"{server.work}/copy"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(copy)
        open(copy, "wb").close()
        run("nbdcopy", *words, uri, copy)
        equal(contents(copy), contents(source))
        expect(used(copy) < 5 * MIB, f"the copy has {used(copy)} bytes on disk")
    settled(server, source)
    expect(used(server.image) < 5 * MIB, f"the volume's image has {used(server.image)} bytes on disk")


def change(client, chance):
    """Makes a random change through one of the connections."""
    handle = chance.choice(client.handles)
    unit = chance.choice([1, 512, BLOCK])
    offset = chance.randrange(client.length // unit) * unit
    length = min(chance.choice([unit, 8 * unit, 70_000, 600_000]), client.length - offset)
    place, fua = client.start + offset, chance.choice([0, 0, nbd.CMD_FLAG_FUA])
    kind = chance.choice(["write"] * 5 + ["zero", "keep", "trim", "cache", "flush"])
    if kind == "write":
        data = chance.randbytes(length)
        handle.pwrite(data, place, fua)
        client.holds[offset:offset + length] = data
    elif kind in ("zero", "keep"):
        handle.zero(length, place, fua | (nbd.CMD_FLAG_NO_HOLE if kind == "keep" else 0))
        client.holds[offset:offset + length] = bytes(length)
    elif kind == "trim":
        handle.trim(length, place, fua)
        # Each block has zeros or the contents before.
        found = handle.pread(length, place)
        for at in range(length):
            expect(found[at] in (0, client.holds[offset + at]), f"a trim wrote byte {offset + at}")
        client.holds[offset:offset + length] = found
    elif kind == "cache" and handle.can_cache():
        handle.cache(length, place)
    else:
        handle.flush()


def libnbd(server, uri):
    """libnbd: random changes of any alignment on two connections; flushed ones survive a kill of the server."""
    client, chance = Client(uri, connections=2, start=SIZE - AREA), random.Random(uri)
    for turn in range(2):
        for _ in range(150):
            change(client, chance)
        client.verify()
        # A flush covers the writes of both connections.
        client.handles[turn % 2].flush()
        server.crash()
        client.reconnect()
        client.verify()
    server.settle()
    equal(contents(server.image)[SIZE - AREA:], client.holds)


def in_flight(server, uri):
    """libnbd: 64 requests in flight on each of four connections."""
    client = Client(uri, connections=4, length=4 * MIB)
    buffers, cookies = [], []
    for turn, handle in enumerate(client.handles):
        for number in range(64):
            block = number * len(client.handles) + turn
            data = bytes([1 + block % 255]) * BLOCK
            buffers.append(nbd.Buffer.from_bytearray(bytearray(data)))
            cookies.append((handle, handle.aio_pwrite(buffers[-1], block * BLOCK)))
            client.holds[block * BLOCK:(block + 1) * BLOCK] = data
    for handle in client.handles:
        while handle.aio_in_flight():
            handle.poll(1000)
    expect(all(handle.aio_command_completed(cookie) for handle, cookie in cookies), "a write has no answer")
    client.verify()


def answered(server, uri):
    """libnbd: a write that was answered, and not flushed, survives a kill: a client that connects again relies on it."""
    client, chance = Client(uri), random.Random(uri)
    for _ in range(3):
        for _ in range(100):
            offset, data = chance.randrange(client.length // BLOCK) * BLOCK, chance.randbytes(BLOCK)
            client.handles[0].pwrite(data, offset)
            client.holds[offset:offset + BLOCK] = data
        server.crash()
        client.reconnect()
        client.verify()


def refused(server, uri):
    """libnbd: requests that a server must refuse change nothing, and the connection goes on."""
    client = Client(uri)
    handle = connect(uri, strict=False)

    def fails(names, work):
        try:
            work()
        except nbd.Error as error:
            expect(errno.errorcode.get(error.errnum) in names, f"the error is {error}")
        else:
            raise Wrong(f"no error, of {names}")

    data = b"x" * BLOCK
    fails(("ENOSPC", "EINVAL"), lambda: handle.pwrite(data, SIZE - 1))
    fails(("EINVAL",), lambda: handle.pread(BLOCK, SIZE - 1))
    fails(("ENOSPC", "EINVAL"), lambda: handle.zero(BLOCK, SIZE))
    fails(("EINVAL",), lambda: handle.trim(BLOCK, SIZE))
    fails(("EINVAL", "ENOSPC"), lambda: handle.pwrite(data, (1 << 63) - BLOCK))
    if isinstance(server, Forebay):
        fails(("EINVAL",), lambda: handle.pwrite(data, 0, 1 << 9))
        # The whole range, and one byte.
        expect(handle.pread(1, SIZE - 1) is not None, "the last byte is not readable")
    equal(handle.pread(client.length, 0), client.holds)


PATTERNS = [
    "write -P 0x11 0 64k",
    "write -f -P 0x22 4k 4k",
    "write -P 0x33 512 512",
    "write -P 0x44 65024 1536",
    "write -P 0x55 1M 2M",
    "write -z 1M 512k",
    "write -z -u 1536k 512k",
    "write -z 2560k 512",
    "write -z -u -f 3000k 4k",
    "discard 2M 64k",
    "flush",
    "aio_write -P 0x66 8M 128k",
    "aio_write -P 0x77 8320k 128k",
    "aio_flush",
    "read -P 0x11 0 512",
    "read -P 0x33 512 512",
    "read -P 0x11 1024 3072",
    "read -P 0x22 4k 4k",
    "read -P 0x11 8k 56832",
    "read -P 0x44 65024 1536",
    "read -P 0 1M 1M",
    "read -P 0x55 2112k 448k",
    "read -P 0 2560k 512",
    "read -P 0x55 2621952 450048",
    "read -P 0x66 8M 128k",
    "read -P 0x77 8320k 128k",
]


def qemu_io(server, uri):
    """qemu-io: writes with FUA, zeros with and without unmap, discards, parts of blocks, with and without a cache."""
    for cache in ("none", "writeback", "writethrough"):
        wipe(uri)
        commands = [word for pattern in PATTERNS for word in ("-c", pattern)]
        said = run("qemu-io", "-t", cache, "-f", "raw", "-d", "unmap", *commands, uri)
        expect("failed" not in said and "rror" not in said, f"with {cache}: {said[:800]}")
    server.crash()
    reads = [word for pattern in PATTERNS if pattern.startswith("read") for word in ("-c", pattern)]
    said = run("qemu-io", "-f", "raw", *reads, uri)
    expect("failed" not in said, f"after a kill: {said[:800]}")


def qemu_reconnect(server, uri):
    """QEMU with reconnect-delay: a write that was answered, and not flushed, survives kills that QEMU hides."""
    wipe(uri)
    if "unix" in uri:
        place = f"server.type=unix,server.path={server.socket}"
    else:
        place = f"server.type=inet,server.host=127.0.0.1,server.port={server.port}"
    options = f"driver=raw,file.driver=nbd,file.export=disk,file.reconnect-delay=30,file.{place.replace(',', ',file.')}"
    words = ["qemu-io", "-t", "writeback", "--image-opts", options]
    qemu = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def ask(command, answer):
        qemu.stdin.write(f"{command}\n")
        qemu.stdin.flush()
        said = ""
        while f"\n{answer}" not in f"\n{said}".replace("qemu-io> ", ""):
            line = qemu.stdout.readline()
            expect(line and "failed" not in line, f"{command}: {said}{line}")
            said += line

    try:
        for turn in range(3):
            for block in range(40):
                ask(f"write -P {1 + turn * 40 + block} {(turn * 40 + block) * 4}k 4k", "wrote")
            server.crash()
        for block in range(120):
            ask(f"read -P {1 + block} {block * 4}k 4k", "read")
        ask("flush", "")
    finally:
        qemu.stdin.close()
        qemu.kill()
        qemu.wait()


def qemu_img(server, uri):
    """qemu-img: info, convert in and out, compare, map, and a qcow2 image on the volume."""
    wipe(uri)
    expect(json.loads(run("qemu-img", "info", "--output=json", uri))["virtual-size"] == SIZE, "another size")
    parts = [(3 * MIB, MIB), (30 * MIB, 100_000)]
    source, qcow = image(f"{server.work}/source", parts), f"{server.work}/copy.qcow2"
    for words in ([], ["-W", "-m", "8"]):
        run("qemu-io", "-f", "raw", "-c", f"write -P 9 0 {SIZE // 2}", uri)
        run("qemu-img", "convert", "-n", *words, "-f", "raw", "-O", "raw", source, uri)
        run("qemu-img", "compare", "-f", "raw", "-F", "raw", source, uri)
        run("qemu-img", "convert", *words, "-f", "raw", "-O", "qcow2", uri, qcow)
        run("qemu-img", "compare", "-f", "qcow2", "-F", "raw", qcow, uri)
    extents = json.loads(run("qemu-img", "map", "--output=json", "-f", "raw", uri))
    data = [extent for extent in extents if extent["data"]]
    found = {extent["start"] // MIB for extent in data}
    expect(found == {3, 30} and sum(extent["length"] for extent in data) < 2 * MIB, f"the map is {extents}")
    settled(server, source)
    run("qemu-img", "create", "-q", "-f", "qcow2", uri, "32M")
    run("qemu-io", "-f", "qcow2", "-c", "write -P 1 0 4M", "-c", "discard 1M 1M", "-c", "write -P 2 20M 64k", uri)
    run("qemu-img", "check", "-q", "-f", "qcow2", uri)
    run("qemu-io", "-f", "qcow2", "-c", "read -P 1 2M 2M", "-c", "read -P 2 20M 64k", uri)


JOBS = {
    "random": ["--rw=randrw", "--bs=4k"],
    "small": ["--rw=randwrite", "--bsrange=512-16k", "--verify_interval=512", "--fsync=32"],
    # One request at a time: the job does not wait for a trim before it writes the block.
    "trims": ["--rw=randtrimwrite", "--bs=4k", "--iodepth=1", "--size=4M"],
}


def fio(server, uri):
    """fio: random reads, writes and trims; every block is verified (crc32c)."""
    for name, words in JOBS.items():
        output = f"{server.work}/fio.json"
        common = ["--ioengine=nbd", f"--uri={uri}", "--size=8M", "--iodepth=16", "--verify=crc32c", "--verify_fatal=1",
                  "--do_verify=1", "--verify_state_save=0", "--randseed=7", "--output-format=json", f"--output={output}"]
        run("fio", f"--name={name}", *common, *words)
        with open(output) as file:
            (job,) = json.load(file)["jobs"]
        expect(job["error"] == 0 and job["read"]["total_ios"], f"the job {name}: {job['error']}")
        if name == "trims":
            expect(job["trim"]["total_ios"], "no trims")


def nbdkit(server, uri):
    """nbdkit's plugin `nbd` between a client and the server, which its filter `retry` hides kills of."""
    path = f"{server.work}/proxy.sock"
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    words = ["nbdkit", "-f", "-U", path, "--filter=retry", "nbd", f"uri={uri}", "retry=60", "retries=20", "retry-delay=1",
             "retry-exponential=no"]
    proxy = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + PATIENCE
        while not os.path.exists(path):
            expect(proxy.poll() is None and time.monotonic() < end, "nbdkit does not start")
            time.sleep(0.02)
        client, chance = Client(f"nbd+unix:///?socket={path}"), random.Random(uri)
        for _ in range(2):
            for _ in range(60):
                change(client, chance)
            server.crash()
            client.verify()
        client.handles[0].flush()
    finally:
        proxy.kill()
        proxy.wait()


# Programs of libnbd's examples, and their standard input. They fail if a reply is wrong.
EXAMPLES = {"server-flags": "", "get-size": "", "fetch-first-sector": "", "list-exports": "0\n", "reads-and-writes": "",
            "aio-connect-read": "", "batched-read-write": "", "strict-structured-reads": "",
            "threaded-reads-and-writes": ""}


def examples(server, uri, source):
    """libnbd's example programs: flags, lists, structured replies, 64 requests in flight on each of 8 connections."""
    for name, answer in EXAMPLES.items():
        with open(f"{source}/examples/{name}.c") as file:
            # 10,000 requests of each connection take minutes.
            code = file.read().replace("NR_CYCLES 10000", "NR_CYCLES 500")
        program = f"{server.work}/{name}"
        words = ["cc", "-x", "c", "-o", program, "-", "-lnbd", "-lpthread"]
        subprocess.run(words, input=code, text=True, check=True)
        place = uri if name == "strict-structured-reads" else server.socket
        done = subprocess.run([program, place], input=answer, capture_output=True, text=True, timeout=PATIENCE)
        expect(done.returncode == 0, f"{name} ended with {done.returncode}: {(done.stdout + done.stderr)[-600:]}")


def test_programs(server, _, source):
    """libnbd's own tests of many connections: random requests, each read verified. The volume first has their pattern."""
    pattern = b"".join(at.to_bytes(8, "big") for at in range(0, SIZE, 8))
    handle = connect(server.uris()[0])
    # The header that their build makes.
    open(f"{server.work}/config.h", "w").close()
    headers = [f"-I{server.work}", f"-I{source}/common/include"]
    # The size that synch-parallel expects, and the time that each of them runs, can be set in the source only.
    for name, size in {"aio-parallel": "", "aio-parallel-load": "", "synch-parallel": f"{SIZE}"}.items():
        with open(f"{source}/tests/{name}.c") as file:
            code = file.read().replace("EXPORTSIZE (8*1024*1024)", f"EXPORTSIZE ({size})")
        program = f"{server.work}/{name}"
        words = ["cc", "-x", "c", *headers, "-o", program, "-", "-lnbd", "-lpthread"]
        subprocess.run(words, input=code, text=True, check=True)
        for at in range(0, SIZE, 8 * MIB):
            handle.pwrite(pattern[at:at + 8 * MIB], at)
        run(program, server.socket)


CASES = [nbdinfo, mapped, nbdcopy, libnbd, in_flight, answered, refused, qemu_io, qemu_reconnect, nbdkit, qemu_img,
         fio]


def attempt(title, case, server, *words):
    begun = time.monotonic()
    try:
        case(server, *words)
        print(f"# {title}: {time.monotonic() - begun:.1f} s\nok {title}", flush=True)
    except (Wrong, nbd.Error, OSError, subprocess.SubprocessError) as error:
        print(f"not ok {title}: {' '.join(str(error).split())}", flush=True)
        print(f"# {server.log()}", flush=True)


def main():
    name, work, *sources = sys.argv[1:]
    server = SERVERS[name](work) if name in SERVERS else Forebay(work, name)
    server.start()
    try:
        for case in CASES:
            for uri in server.uris():
                attempt(f"{case.__name__}, {'Unix socket' if 'unix' in uri else 'TCP'}", case, server, uri)
        for source in sources:
            attempt("examples of libnbd", examples, server, server.uris()[-1], source)
            attempt("tests of libnbd", test_programs, server, server.uris()[-1], source)
        server.stop()
        print("ok a clean stop", flush=True)
    finally:
        if server.process.poll() is None:
            server.process.kill()
            server.process.wait()


if __name__ == "__main__":
    main()
