"""Disks that keep written data in memory until they are told to flush: a plugin of nbdkit for Python.

    nbdkit python volatile_disks.py directory=DIR [early=PERCENT]

Each file of DIR is a disk, and its name that of the export. To kill nbdkit is a power cut: every disk loses all blocks
that were not flushed. With `early`, a disk writes a block at once with that chance, so a random part of the unflushed
blocks survives. DIR/NAME.lost has the number of blocks that a power cut would take. If DIR/cut has the name of a disk, a
power cut follows its next write, before any flush. While DIR/forget is there, flushes do nothing.
"""

import builtins
import os
import random
import signal

import nbdkit

API_VERSION = 2
BLOCK = 4096
DIRECTORY, EARLY = None, 0
CHANCE = random.Random(1)
DISKS = {}


class Disk:
    def __init__(self, name):
        self.name, path = name, f"{DIRECTORY}/{name}"
        self.file = os.open(path, os.O_RDWR)
        self.size = os.fstat(self.file).st_size
        self.lost = os.open(f"{path}.lost", os.O_RDWR | os.O_CREAT)
        # Unflushed blocks by their numbers.
        self.blocks = {}

    def block(self, number):
        return self.blocks.get(number) or os.pread(self.file, BLOCK, number * BLOCK)

    def write(self, data, offset, is_durable):
        """Puts data into the blocks. A block is written as a whole, so none is torn."""
        begin, end = offset, offset + len(data)
        while offset < end:
            number, start = divmod(offset, BLOCK)
            count = min(BLOCK - start, end - offset)
            piece = bytes(data[offset - begin:offset - begin + count])
            if count < BLOCK:
                former = self.block(number)
                piece = former[:start] + piece + former[start + count:]
            if is_durable or EARLY and CHANCE.randrange(100) < EARLY:
                os.pwrite(self.file, piece, number * BLOCK)
                self.blocks.pop(number, None)
            else:
                self.blocks[number] = piece
            offset += count
        self.count()
        if self.blocks and self.is_cut():
            os.kill(os.getpid(), signal.SIGKILL)

    def is_cut(self):
        try:
            with builtins.open(f"{DIRECTORY}/cut") as file:
                return file.read() == self.name
        except FileNotFoundError:
            return False

    def flush(self):
        for number, data in self.blocks.items():
            os.pwrite(self.file, data, number * BLOCK)
        self.blocks.clear()
        self.count()

    def count(self):
        os.pwrite(self.lost, b"%8d" % len(self.blocks), 0)


def forgets():
    return os.path.exists(f"{DIRECTORY}/forget")


def config(key, value):
    global DIRECTORY, EARLY
    if key == "directory":
        DIRECTORY = value
    elif key == "early":
        EARLY = int(value)
    else:
        raise RuntimeError(f"unknown parameter {key}")


def open(readonly):
    name = nbdkit.export_name()
    if name not in DISKS:
        DISKS[name] = Disk(name)
    return DISKS[name]


def get_size(disk):
    return disk.size


def can_write(disk):
    return True


def can_flush(disk):
    return True


def can_fua(disk):
    return nbdkit.FUA_NATIVE


def pread(disk, buffer, offset, flags):
    end = offset + len(buffer)
    first, last = offset // BLOCK, -(-end // BLOCK)
    if any(number in disk.blocks for number in range(first, last)):
        data = b"".join(disk.block(number) for number in range(first, last))
        buffer[:] = data[offset - first * BLOCK:end - first * BLOCK]
    else:
        buffer[:] = os.pread(disk.file, len(buffer), offset)


def pwrite(disk, buffer, offset, flags):
    disk.write(memoryview(buffer), offset, bool(flags & nbdkit.FLAG_FUA) and not forgets())


def flush(disk, flags):
    if not forgets():
        disk.flush()
