"""A load on a root that is a volume. The judge is outside, and reads what each line says before and after a change.

    load KIND WORKER

    TRY NAME VALUE        the file or block may have this value from now on; "-" is a file that is absent
    DURABLE NAME VALUE    it has this value, also after a power cut
    WRONG WHAT            an operation failed, or something read has another value
"""

import hashlib
import mmap
import os
import random
import sys

KIND, WORKER = sys.argv[1:]
PATH, BLOCK, BLOCKS = f"/data/{WORKER}", 4096, 64


def sync(path):
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def say(word, changes):
    for name, value in changes.items():
        # One write of a line, so that lines of several processes do not mix.
        os.write(1, f"{word} {WORKER}/{name} {value}\n".encode())


class Files:
    """Files that are replaced, renamed and removed. Every change is durable before the next one."""

    def __init__(self):
        self.sums = {}

    def turn(self):
        if len(self.sums) > 2 and random.random() < 0.4:
            self.move()
        else:
            self.replace(str(random.randrange(12)))
        if self.sums:
            self.read(random.choice(list(self.sums)))

    def replace(self, name):
        content = random.randbytes(random.choice([0, 100, 5000, 40_000, 300_000]))
        change = {name: hashlib.sha256(content).hexdigest()[:16]}
        say("TRY", change)
        with open(f"{PATH}/{name}.new", "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.rename(f"{PATH}/{name}.new", f"{PATH}/{name}")
        sync(PATH)
        say("DURABLE", change)
        self.sums.update(change)

    def move(self):
        """Removes a file, or gives it another name, which another file may have."""
        old, new = random.choice(list(self.sums)), str(random.randrange(12))
        change = {old: "-"}
        if new != old:
            change[new] = self.sums[old]
        say("TRY", change)
        if new != old:
            os.rename(f"{PATH}/{old}", f"{PATH}/{new}")
        else:
            os.unlink(f"{PATH}/{old}")
        sync(PATH)
        say("DURABLE", change)
        del self.sums[old]
        self.sums.update({name: value for name, value in change.items() if value != "-"})

    def read(self, name):
        with open(f"{PATH}/{name}", "rb") as file:
            found = hashlib.sha256(file.read()).hexdigest()[:16]
        if found != self.sums[name]:
            say("WRONG", {name: f"has {found} and not {self.sums[name]}"})


class Blocks:
    """Blocks of one file that are written in place, or behind its end."""

    def __init__(self):
        flags = {"blocks": 0, "direct": os.O_DIRECT | os.O_DSYNC, "append": os.O_APPEND}[KIND]
        self.file = os.open(PATH, os.O_RDWR | os.O_CREAT | flags)
        self.buffer, self.number, self.numbers = mmap.mmap(-1, BLOCK), 0, {}
        sync("/data")

    def turn(self):
        place = len(self.numbers) if KIND == "append" else random.randrange(BLOCKS)
        self.number += 1
        say("TRY", {place: self.number})
        self.buffer[:] = self.number.to_bytes(8, "little") * (BLOCK // 8)
        if KIND == "append":
            os.write(self.file, self.buffer)
            os.fdatasync(self.file)
        else:
            os.pwritev(self.file, [self.buffer], place * BLOCK)
            if KIND != "direct":
                os.fsync(self.file)
        say("DURABLE", {place: self.number})
        self.numbers[place] = self.number
        self.read(random.choice(list(self.numbers)))

    def read(self, place):
        os.preadv(self.file, [self.buffer], place * BLOCK)
        if self.buffer[:] != self.numbers[place].to_bytes(8, "little") * (BLOCK // 8):
            say("WRONG", {place: f"does not have {self.numbers[place]}"})


def main():
    load = Files() if KIND == "files" else Blocks()
    while True:
        load.turn()


if __name__ == "__main__":
    try:
        main()
    except BaseException as error:
        say("WRONG", {"load": repr(error)})
