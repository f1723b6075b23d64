"""The rig of `ublk.py` and `nbd_client.py`: a server with a volume, a block device, and writers of files on it."""

import glob
import hashlib
import mmap
import os
import random
import signal
import subprocess
import threading
import time

from quota_rig import MIB, PATIENCE, SERVED, SSD, Server, Wrong, expect, image

BLOCK = 4096
DISK, MOUNT = f"{SSD}/disk.img", "/mnt"
SIZE = 384 * MIB
MAKE = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"], "btrfs": ["mkfs.btrfs", "-q", "-f"]}
CHECK = {"ext4": ["fsck.ext4", "-fn"], "xfs": ["xfs_repair", "-n"], "btrfs": ["btrfs", "check", "--readonly"]}


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    expect(done.returncode == 0, f"{' '.join(words)}: {' '.join((done.stdout + done.stderr).split())}")
    return done.stdout


class Rig:
    """A server with the image of a volume, on a file system of its own."""

    def __init__(self, binary, modules):
        os.makedirs(SERVED)
        image("ssd", 900 * MIB, ["mkfs.ext4", "-q"], SSD)
        self.modules = modules
        self.server = Server("write-back", binary)
        with open(DISK, "wb") as file:
            file.truncate(SIZE)

    def answer(self, *words):
        """Returns the exit status and the output, once the server has started."""
        end = time.monotonic() + PATIENCE
        while True:
            status, said = self.server.ask("volume", *words)
            if "still starting" not in said or time.monotonic() > end:
                return status, said

    def ask(self, *words):
        status, said = self.answer(*words)
        expect(status == 0, f"volume {' '.join(words)} ended with {status}: {said}")
        return said.strip()

    def refused(self, text, *words):
        status, said = self.answer(*words)
        expect(status == 1 and text in said, f"volume {' '.join(words)} ended with {status}: {said}")

    def load(self):
        for module in self.modules:
            run("insmod", module)

    def kill(self):
        self.server.process.kill()
        self.server.process.wait()

    def stop(self):
        self.server.process.send_signal(signal.SIGTERM)
        expect(self.server.process.wait(PATIENCE) == 0, f"the server ended badly: {self.server.log()}")


class Disk:
    """A block device, past the page cache."""

    def __init__(self, device):
        self.file = os.open(device, os.O_RDWR | os.O_DIRECT)
        self.buffer = mmap.mmap(-1, BLOCK)

    def write(self, block, number):
        self.buffer[:] = number.to_bytes(8, "little") * (BLOCK // 8)
        expect(os.pwritev(self.file, [self.buffer], block * BLOCK) == BLOCK, f"block {block} was not written")

    def read(self, block):
        expect(os.preadv(self.file, [self.buffer], block * BLOCK) == BLOCK, f"block {block} was not read")
        number = int.from_bytes(self.buffer[:8], "little")
        expect(self.buffer[:] == self.buffer[:8] * (BLOCK // 8), f"block {block} is torn")
        return number

    def close(self):
        os.close(self.file)


class Writer(threading.Thread):
    """Writes and replaces files durably until it is told to end. Remembers what each file must have."""

    def __init__(self, number):
        super().__init__(daemon=True)
        self.number, self.files, self.error, self.done = number, {}, None, 0
        # The file that was replaced last. If that failed, the file may have the former contents or these.
        self.last = {}
        self.random = random.Random(number)
        self.over = threading.Event()
        self.start()

    def run(self):
        try:
            while not self.over.is_set():
                self.write(f"{MOUNT}/{self.number}-{self.random.randrange(12)}")
                self.done += 1
        except OSError as error:
            self.error = error

    def write(self, path):
        content = self.random.randbytes(self.random.choice([100, 5000, 40_000, 400_000]))
        with open(f"{path}.new", "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        self.last = {os.path.basename(path): hashlib.sha256(content).digest()}
        os.rename(f"{path}.new", path)
        directory = os.open(MOUNT, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        self.files.update(self.last)

    def end(self):
        self.over.set()
        self.join(PATIENCE)
        expect(not self.is_alive(), f"a write does not end; the kernel's requests: {in_flight()}")
        expect(self.error is None, f"a write failed: {self.error}")


def in_flight():
    found = []
    for path in glob.glob("/sys/block/[nu]b*/inflight"):
        with open(path) as file:
            found += file.read().split()
    return " ".join(found)


def drop_caches():
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def verify(files, perhaps=None):
    """Checks the contents of files, by their sums. A file in `perhaps` may have that sum as well."""
    for name, digest in files.items():
        with open(f"{MOUNT}/{name}", "rb") as file:
            found = hashlib.sha256(file.read()).digest()
        expect(found in (digest, (perhaps or {}).get(name)), f"{name} has other contents")


def report(cases, log=str):
    """Runs the cases up to the first that fails, and returns the exit status. `log` returns the server's last lines."""
    for name, case in cases:
        begun = time.monotonic()
        try:
            case()
            print(f"# {name}: {time.monotonic() - begun:.1f} s", flush=True)
            print(f"ok {name}", flush=True)
        except (Wrong, OSError, subprocess.SubprocessError) as error:
            print(f"not ok {name}: {error}", flush=True)
            print(f"# {log()}", flush=True)
            return 1
    return 0
