"""Writes of `caches.py` that are under way when the power is cut, and the control of the cut itself."""

import mmap
import os
import random
import signal
import time

from caches_rig import EARLY, MIB, PATIENCE, disk, linear

BLOCK, BLOCKS = 4096, 256
# Writes of blocks between two flushes.
BETWEEN = 50
# Files and flushes that a load has noted before the cut.
UNDER_WAY = 5


class Blocks:
    """Blocks of a file or a device, past the page cache. A block is filled with one number."""

    def __init__(self, path, flags=0):
        self.file = os.open(path, os.O_RDWR | os.O_DIRECT | flags)
        self.buffer = mmap.mmap(-1, BLOCK)

    def write(self, block, number):
        self.buffer[:] = number.to_bytes(8, "little") * (BLOCK // 8)
        os.pwrite(self.file, self.buffer, block * BLOCK)

    def read(self, block):
        """Returns the number; `None` if the block has a mixture."""
        os.preadv(self.file, [self.buffer], block * BLOCK)
        number = self.buffer[:8]
        return int.from_bytes(number, "little") if self.buffer[:] == number * (BLOCK // 8) else None

    def flush(self):
        os.fsync(self.file)


class Load:
    """Two processes on a stack: one writes files durably over NFS, the other blocks of a file past the page cache, with
    a flush now and then. A third one has Forebay destage all the time."""

    def __init__(self, stack, cut):
        self.stack, self.group, self.path = stack, f"busy{cut}-", f"{stack.exported}/blocks{cut}"
        # The numbers of writes that were flushed.
        self.notes = f"/share/{stack.short}.flushed{cut}"

    def start(self):
        with open(self.path, "wb") as file:
            file.write(bytes(BLOCK * BLOCKS))
            os.fsync(file.fileno())
        works = [self.files, self.blocks, *([self.stack.destage] if self.stack.kind == "Forebay" else [])]
        self.processes = [in_background(work) for work in works]

    def files(self):
        self.stack.write(self.group, 1000)

    def blocks(self):
        blocks = Blocks(self.path)
        with open(self.notes, "w") as notes:
            for number in range(1, 1 << 30):
                blocks.write(block_of(number), number)
                if number % BETWEEN == 0:
                    blocks.flush()
                    notes.write(f"{number}\n")
                    notes.flush()
                    os.fsync(notes.fileno())

    def is_under_way(self):
        """Waits until both processes have noted some of their work."""
        end = time.monotonic() + 2 * PATIENCE
        while self.flushed() < UNDER_WAY * BETWEEN or self.durable() < UNDER_WAY:
            if time.monotonic() > end:
                raise OSError(f"{self.stack.name}: the load does not get on")
            time.sleep(0.1)

    def flushed(self):
        if not os.path.exists(self.notes):
            return 0
        with open(self.notes) as notes:
            return max((int(line) for line in notes if line.endswith("\n")), default=0)

    def durable(self):
        return sum(name.startswith(self.group) for name in self.stack.known())

    def right(self):
        """Returns the number of the blocks that have their last flushed contents or later ones, and that of all."""
        flushed, blocks, last = self.flushed(), Blocks(self.path), {}
        for number in range(1, flushed + 1):
            last[block_of(number)] = number
        found = [blocks.read(block) for block in range(BLOCKS)]

        def is_right(block, number):
            return number == last.get(block, 0) or number is not None and number > flushed and block_of(number) == block

        wrong = [(block, number) for block, number in enumerate(found) if not is_right(block, number)]
        for block, number in wrong:
            print(f"# {self.stack.name}: block {block} has {number}; write {last.get(block, 0)} to it was flushed with "
                  f"write {flushed}", flush=True)
        return [BLOCKS - len(wrong), BLOCKS]


def block_of(number):
    """Returns the block that a write goes to."""
    return random.Random(number).randrange(BLOCKS)


def in_background(work):
    """Runs work in a process of its own until it fails or the machine ends. Returns its process id."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        try:
            work()
        except OSError as error:
            print(f"# {error}", flush=True)
        os._exit(0)
    return child


class Control:
    """A disk whose blocks show that a power cut takes what was not flushed, and nothing else."""

    FLUSHED, FORCED, UNFLUSHED, COUNT = 0, 64, 128, 64

    def __init__(self):
        self.device = linear("control-linear", disk("control", MIB), 0, MIB)
        self.disk = Blocks(self.device)

    def write(self):
        for block in range(3 * self.COUNT):
            self.disk.write(block, 1)
        for block in range(self.FLUSHED, self.FLUSHED + self.COUNT):
            self.disk.write(block, 2)
        self.disk.flush()

    def write_last(self):
        """Writes blocks with FUA, and blocks that nothing flushes."""
        forced = Blocks(self.device, os.O_DSYNC)
        for block in range(self.COUNT):
            forced.write(self.FORCED + block, 2)
        for block in range(self.COUNT):
            self.disk.write(self.UNFLUSHED + block, 2)

    def has_power(self):
        try:
            return self.disk.read(0) is not None
        except OSError:
            return False

    def check(self):
        def newer(start):
            return sum(self.disk.read(start + block) == 2 for block in range(self.COUNT))

        counts = newer(self.FLUSHED), newer(self.FORCED), newer(self.UNFLUSHED)
        said = "{} flushed, {} forced and {} unflushed blocks of 64 survived the power cut".format(*counts)
        # Of 64 blocks that survive with a chance of 90 %, all survive in one of 800 runs.
        is_right = counts[:2] == (self.COUNT, self.COUNT) and counts[2] <= (self.COUNT - 1 if EARLY else 0)
        print(f"# control: {said}\nok control" if is_right else f"not ok control: {said}", flush=True)
