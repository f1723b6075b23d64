"""A load that continues while the server is killed and started again.

    restart.py guest MOUNT SHARE    the load; SHARE is a directory that the host can read as well
    restart.py host DIR SHARE       checks that every acknowledged change is in the served directory
"""

import os
import random
import sys
import threading
import time

CRASHES = 3
# Number of steps of each thread before the next crash.
STEPS = 25
place, root, share = sys.argv[1:]


def content(name):
    generator = random.Random(name)
    return generator.randbytes(generator.randrange(1, 300_000))


def acknowledged(kind):
    with open(f"{share}/{kind}") as file:
        return file.read().split()


class Load(threading.Thread):
    """Makes steps until the last crash is over, and records every step that succeeded."""

    def __init__(self, kind):
        super().__init__()
        self.kind, self.done, self.problem = kind, [], None

    def run(self):
        try:
            while not stop.is_set():
                self.step(f"{self.kind}-{len(self.done)}")
        except BaseException as error:
            self.problem = f"{type(error).__name__}: {error}"

    def step(self, name):
        getattr(self, self.kind)(name)
        self.done.append(name)

    def files(self, name):
        """Makes a file, syncs and renames it."""
        handle = os.open(f"{name}.part", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        with open(handle, "wb") as file:
            file.write(content(name))
            file.flush()
            os.fsync(handle)
        os.rename(f"{name}.part", name)

    def lines(self, name):
        """Appends a line to a file and syncs it."""
        with open("lines", "a") as file:
            file.write(name + "\n")
            file.flush()
            os.fsync(file.fileno())

    def directories(self, name):
        """Makes a directory; makes and removes another one and a link. Each call would fail if executed twice."""
        os.mkdir(name)
        os.mkdir(f"{name}.gone")
        os.rmdir(f"{name}.gone")
        os.symlink(name, f"{name}.link")
        os.unlink(f"{name}.link")


def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.05)


def verdict(name, problem):
    print(f"not ok {name}: {problem}" if problem else f"ok {name}", flush=True)


def guest():
    loads = [Load(kind) for kind in ("files", "lines", "directories")]
    for load in loads:
        load.start()
    for crash in range(CRASHES + 1):
        goals = [len(load.done) + STEPS for load in loads]
        while any(load.problem is None and len(load.done) < goal for load, goal in zip(loads, goals)):
            time.sleep(0.02)
        if crash < CRASHES:
            open(f"{share}/under-way-{crash}", "w").close()
            wait_for(f"{share}/restarted-{crash}")
    stop.set()
    for load in loads:
        load.join()
        with open(f"{share}/{load.kind}", "w") as file:
            file.write("\n".join(load.done))
        verdict(f"the client carries on: {load.kind}", load.problem)


def host():
    lost = [name for name in acknowledged("files") if not os.path.exists(name)]
    verdict("no file is lost", lost and f"{len(lost)} files, first {lost[0]}")
    wrong = []
    for name in acknowledged("files"):
        if name not in lost:
            with open(name, "rb") as file:
                if file.read() != content(name):
                    wrong.append(name)
    verdict("every file holds what was written", wrong and f"{len(wrong)} files, first {wrong[0]}")
    with open("lines") as file:
        lines = file.read().split()
    verdict("every line is there once", lines != acknowledged("lines") and f"{len(lines)} lines")
    wanted = acknowledged("directories")
    lost = [name for name in wanted if not os.path.isdir(name)]
    verdict("no directory is lost", lost and f"{len(lost)} directories, first {lost[0]}")
    # There must be no partial file and no removed directory.
    known = {"lines", "lost+found", *acknowledged("files"), *wanted}
    others = sorted(set(os.listdir(".")) - known)
    verdict("nothing else is there", others and f"{len(others)} names, first {others[0]}")


stop = threading.Event()
os.chdir(root)
{"guest": guest, "host": host}[place]()
