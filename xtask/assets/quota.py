"""Checks quotas of the served file system through this machine's kernel client. Needs root and a kernel with quotas.

    quota.py FS MODE FOREBAY     FS is ext4 or xfs
"""

import errno
import os
import subprocess
import sys
import time

from quota_rig import GROUP, MAKE, MIB, PATIENCE, PORT, SERVED, SSD, USER
from quota_rig import Backing, Running, Server, Wrong, act, expect, image

CHUNK, BLOCK = 64 << 10, 4 << 10
HARD = 24 * MIB
# A file needs blocks besides its data, so the server may accept less than the limit: at most this much less.
SLACK = 4 * MIB
MOUNT = "/mnt"


def mib(count):
    return f"{count / MIB:.2f} MiB"


def content(name, version, place, size):
    """Returns data in which every block of 4 KiB contains its place."""
    blocks = []
    for block in range(place // BLOCK, -(-(place + size) // BLOCK)):
        label = f"{name} {version} {block} ".encode()
        blocks.append((label * BLOCK)[:BLOCK])
    return b"".join(blocks)[:size]


def write(name, start, end, version=0):
    """Writes durable chunks. Returns the bytes written, and true if the quota ended the writes."""
    place = start
    try:
        # A new file may need blocks, too.
        file = os.open(f"{MOUNT}/{name}", os.O_CREAT | os.O_WRONLY | os.O_SYNC, 0o644)
        with os.fdopen(file, "wb", buffering=0) as file:
            file.seek(start)
            while place < end:
                written = file.write(content(name, version, place, CHUNK))
                if written != CHUNK:
                    raise Wrong(f"{written} bytes of {CHUNK} written at {place}")
                place += CHUNK
    except OSError as error:
        if error.errno != errno.EDQUOT:
            raise
        return place, True
    return place, False


def remove(name):
    os.unlink(f"{MOUNT}/{name}")


def fill(user, name, start=0, limit=HARD):
    """Writes until the quota ends it. `limit` is the most that may be acknowledged."""
    return filled([act(user, write, name, start, limit + 8 * MIB)], limit)


def filled(results, limit):
    acknowledged = sum(place for place, _ in results)
    far = f"{mib(acknowledged)} acknowledged under a limit of {mib(limit)}"
    expect(all(ended for _, ended in results), f"no EDQUOT: {far}")
    expect(acknowledged <= limit, f"EDQUOT came late: {far}")
    expect(acknowledged >= limit - SLACK, f"EDQUOT came early: {far}")
    return acknowledged


def all_written(user, name, start, end, version=0):
    place, ended = act(user, write, name, start, end, version)
    expect(not ended, f"EDQUOT at {mib(place)}, of {mib(start)} to {mib(end)}")


def holds(name, size, overwritten=0, directory=SERVED):
    """Checks the acknowledged data, possibly with a part of the refused write. `overwritten` bytes have version 1."""
    with open(f"{directory}/{name}", "rb") as file:
        length = os.fstat(file.fileno()).st_size
        expect(size <= length < size + CHUNK, f"{name} in {directory} has {length} bytes, {size} were acknowledged")
        for place in range(0, length, CHUNK):
            right = content(name, int(place < overwritten), place, min(CHUNK, length - place))
            expect(file.read(CHUNK) == right, f"{name} in {directory} is not what was written at {place}")


def memory_dropped():
    """Drops the caches of the client, so that it asks the server from now on."""
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("1\n")


def kernel_log():
    """Returns the end of the kernel log, because an emulated machine has failures of its own."""
    lines = subprocess.run(["dmesg"], capture_output=True, text=True).stdout.splitlines()
    return " | ".join(lines[-15:])


class Cases:
    """The cases, run in this order. Users have the ids 1001 and up, each with a group of that number."""

    def __init__(self, backing, server):
        self.backing, self.server = backing, server
        self.sizes = {}

    def case_a_user_is_stopped_at_the_limit(self):
        self.backing.limit(USER, 1001, HARD)
        self.sizes["user"] = fill(1001, "user")

    def case_a_group_is_stopped_at_the_limit(self):
        self.backing.limit(GROUP, 1002, HARD)
        self.sizes["group"] = fill(1002, "group")

    def case_others_write_on(self):
        all_written(1003, "other", 0, 8 * MIB)
        memory_dropped()
        holds("other", 8 * MIB, directory=MOUNT)

    def case_what_is_still_dirty_is_overwritten_at_the_limit(self):
        self.reached("group")
        all_written(1002, "group", 0, MIB, version=1)

    def case_all_that_was_acknowledged_is_destaged(self):
        self.server.destaged()
        holds("user", self.reached("user"))
        holds("group", self.reached("group"), overwritten=MIB)
        holds("other", 8 * MIB)

    def case_what_is_destaged_is_overwritten_at_the_limit(self):
        size = self.reached("user")
        all_written(1001, "user", 0, MIB, version=1)
        self.server.destaged()
        holds("user", size, overwritten=MIB)

    def case_removing_makes_room(self):
        self.reached("user")
        act(1001, remove, "user")
        begun = time.monotonic()
        place, ended = act(1001, write, "again", 0, 16 * MIB)
        refused = place
        while ended and time.monotonic() < begun + 10:
            place, ended = act(1001, write, "again", place, 16 * MIB)
        took = time.monotonic() - begun
        expect(refused == 16 * MIB, f"EDQUOT at {mib(refused)}; at {mib(place)} after {took:.1f} s of trying")
        self.server.destaged()
        holds("again", 16 * MIB)

    def case_a_soft_limit_holds_once_its_grace_is_over(self):
        self.backing.limit(USER, 1004, 64 * MIB, soft=8 * MIB)
        all_written(1004, "soft", 0, 12 * MIB)
        self.server.destaged()
        self.backing.limit(USER, 1004, 64 * MIB, soft=8 * MIB, until=1)
        # The server asks for quotas twice a second.
        time.sleep(1)
        # In this file XFS may have reserved blocks earlier.
        place, ended = act(1004, write, "late", 0, 2 * MIB)
        expect(ended and place == 0, f"{mib(place)} acknowledged though the grace is over")
        self.server.destaged()
        holds("soft", 12 * MIB)

    def case_two_processes_share_a_limit(self):
        self.backing.limit(USER, 1005, HARD)
        both = [Running(1005, write, name, 0, HARD) for name in ("left", "right")]
        results = [one.end() for one in both]
        filled(results, HARD)
        self.server.destaged()
        for name, (size, _) in zip(("left", "right"), results):
            holds(name, size)

    def case_a_file_counts_for_its_new_owner(self):
        self.backing.limit(USER, 1006, 16 * MIB)
        all_written(0, "given", 0, 12 * MIB)
        os.chown(f"{MOUNT}/given", 1006, 1006)
        size = act(1006, write, "own", 0, 16 * MIB)
        filled([size, (12 * MIB, True)], 16 * MIB)
        self.server.destaged()
        holds("given", 12 * MIB)
        holds("own", size[0])

    def case_a_crash_forgets_nothing_that_counts(self):
        self.backing.limit(USER, 1007, HARD)
        all_written(1007, "crash", 0, 16 * MIB)
        self.server.crash()
        size = fill(1007, "crash", start=16 * MIB)
        self.server.destaged()
        holds("crash", size)

    def reached(self, name):
        """Returns the bytes acknowledged in that file before the quota ended the writes."""
        expect(name in self.sizes, "its user did not get to the limit before")
        return self.sizes[name]

    def run(self):
        for method in [method for method in vars(Cases) if method.startswith("case_")]:
            name, problem = method.removeprefix("case_").replace("_", " "), None
            try:
                getattr(self, method)()
            except (Wrong, OSError, ValueError) as error:
                problem = str(error)
                if self.server.died():
                    problem += f"; the server ended with {self.server.process.returncode}: {self.server.log()} {kernel_log()}"
            print(f"not ok {name}: {problem}" if problem else f"ok {name}", flush=True)
            if problem:
                self.mend()

    def mend(self):
        """Removes the limits, so that all data can be destaged before the next case."""
        self.sizes.clear()
        self.backing.no_limits()
        if self.server.died():
            self.server.start()
        end = time.monotonic() + PATIENCE
        while (answer := self.server.ask("flush", "--wait"))[0] != 0:
            expect(time.monotonic() < end, f"also without limits flush ends with {answer}: {self.server.log()}")
            time.sleep(0.5)
        self.server.events()


def main(kind, mode, binary):
    image("ssd", 300 * MIB, MAKE["ext4"], SSD)
    backing, server = Backing(kind), Server(mode, binary)
    # Every user may make files.
    os.chmod(SERVED, 0o777)
    options = f"vers=3,nolock,proto=tcp,mountproto=tcp,port={PORT},mountport={PORT}"
    subprocess.run(["mount", "-t", "nfs", "-o", options, "127.0.0.1:/", MOUNT], check=True)
    Cases(backing, server).run()
    subprocess.run(["umount", MOUNT], check=True)
    server.process.terminate()
    sys.exit(server.process.wait(PATIENCE))


main(*sys.argv[1:])
