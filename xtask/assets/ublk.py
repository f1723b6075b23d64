"""Checks volumes as block devices of this machine (ublk). Needs root, and a kernel with ublk as a module.

    ublk.py KILLS FOREBAY MODULE...     the server is killed KILLS times below each file system
"""

import contextlib
import glob
import hashlib
import mmap
import os
import random
import signal
import subprocess
import sys
import threading
import time

from quota_rig import MIB, PATIENCE, SERVED, SSD, Server, Wrong, expect, image

BLOCK = 4096
DISK, MOUNT, DEVICE = f"{SSD}/disk.img", "/mnt", "/dev/ublkb0"
SIZE = 384 * MIB
MAKE = {"ext4": ["mkfs.ext4", "-q", "-F"], "xfs": ["mkfs.xfs", "-q", "-f"]}
CHECK = {"ext4": ["fsck.ext4", "-fn"], "xfs": ["xfs_repair", "-n"]}


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
    expect(done.returncode == 0, f"{' '.join(words)}: {' '.join((done.stdout + done.stderr).split())}")
    return done.stdout


class Rig:
    def __init__(self, binary, modules):
        os.makedirs(SERVED)
        image("ssd", 900 * MIB, ["mkfs.ext4", "-q"], SSD)
        self.modules = modules
        self.server = Server("write-back", binary)

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

    def unload(self):
        # The kernel may still use the device of a server that has just ended.
        for _ in range(PATIENCE):
            if subprocess.run(["rmmod", "ublk_drv"], capture_output=True).returncode == 0:
                return
            time.sleep(1)
        raise Wrong("ublk_drv is in use")

    def kill(self):
        self.server.process.kill()
        self.server.process.wait()

    def stop(self):
        self.server.process.send_signal(signal.SIGTERM)
        expect(self.server.process.wait(PATIENCE) == 0, f"the server ended badly: {self.server.log()}")


class Disk:
    """The block device, past the page cache."""

    def __init__(self):
        self.file = os.open(DEVICE, os.O_RDWR | os.O_DIRECT)
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
        os.rename(f"{path}.new", path)
        directory = os.open(MOUNT, os.O_RDONLY)
        os.fsync(directory)
        os.close(directory)
        self.files[os.path.basename(path)] = hashlib.sha256(content).digest()

    def end(self):
        self.over.set()
        self.join(PATIENCE)
        expect(not self.is_alive(), f"a write does not end; the kernel's requests: {in_flight()}")
        expect(self.error is None, f"a write failed: {self.error}")


def in_flight():
    with open("/sys/block/ublkb0/inflight") as file:
        return " ".join(file.read().split())


def drop_caches():
    with open("/proc/sys/vm/drop_caches", "w") as file:
        file.write("3")


def verify(files):
    for name, digest in files.items():
        with open(f"{MOUNT}/{name}", "rb") as file:
            found = hashlib.sha256(file.read()).digest()
        expect(found == digest, f"{name} has other contents")


def no_ublk(rig):
    """Without ublk, a volume has no device, and the reason is told."""
    rig.ask("create", "scratch", "--backing", DISK)
    rig.refused("modprobe ublk_drv", "attach", "scratch")
    rig.load()
    rig.server.crash()


def attaching(rig):
    """A volume is a disk with a volatile cache."""
    expect(rig.ask("attach", "scratch") == DEVICE, "another device")
    expect(rig.ask("attach", "scratch") == DEVICE, "a second attach makes another device")
    expect(DEVICE in rig.ask("list") and DEVICE in rig.ask("show", "scratch"), "the device is not shown")
    wanted = {
        "queue/write_cache": "write back",
        "queue/fua": "1",
        "queue/logical_block_size": "512",
        "queue/physical_block_size": "4096",
        "queue/discard_max_bytes": str(1 << 30),
        "queue/write_zeroes_max_bytes": str(1 << 30),
        "size": str(SIZE // 512),
        "ro": "0",
    }
    for name, value in wanted.items():
        with open(f"/sys/block/ublkb0/{name}") as file:
            found = file.read().strip()
        expect(found == value, f"{name} is {found}, not {value}")
    rig.refused("detach it first", "remove", "scratch")


def answered(rig, mode, turns):
    """A write that was answered, and never flushed, survives kills of the server."""
    rig.ask("mode", "scratch", mode)
    disk, known, chance = Disk(), {}, random.Random(mode)
    for turn in range(turns):
        for _ in range(200):
            block, number = chance.randrange(2000), chance.getrandbits(60)
            disk.write(block, number)
            known[block] = number
        rig.server.crash()
        for block, number in known.items():
            expect(disk.read(block) == number, f"block {block} has not what was answered, after kill {turn}")
    disk.close()
    rig.ask("mode", "scratch", "server")


def zeroes(rig):
    """Zeros and discards of all sizes read as zeros, and leave their neighbours."""
    disk = Disk()
    for command, blocks in (("--zeroout", 3), ("--zeroout", 2000), ("--discard", 300)):
        for block in (0, 1, blocks, blocks + 1):
            disk.write(block, 9)
        name = ["blkdiscard", "-f", "-o", str(BLOCK), "-l", str(blocks * BLOCK), DEVICE]
        run(*name, *(["--zeroout"] if command == "--zeroout" else []))
        found = [disk.read(block) for block in (0, 1, blocks, blocks + 1)]
        expect(found == [9, 0, 0, 9], f"after {command} of {blocks} blocks the blocks have {found}")
    disk.close()


def killed(rig, fs, kills):
    """Durable files of a mounted file system survive kills of the server under load."""
    run(*MAKE[fs], DEVICE)
    run("mount", DEVICE, MOUNT)
    writers = [Writer(number) for number in range(3)]
    for _ in range(kills):
        time.sleep(0.5)
        rig.server.crash()
    time.sleep(0.5)
    rig.stop()
    rig.server.start()
    before = sum(writer.done for writer in writers)
    # Writes go on after the last start.
    end = time.monotonic() + PATIENCE
    while sum(writer.done for writer in writers) < before + 6 and time.monotonic() < end:
        time.sleep(0.1)
    for writer in writers:
        writer.end()
    print(f"# {fs}: {sum(writer.done for writer in writers)} files were written", flush=True)
    expect(sum(writer.done for writer in writers) >= before + 6, "writes do not go on after the last start")
    rig.refused("unmount it", "detach", "scratch")
    files = {name: digest for writer in writers for name, digest in writer.files.items()}
    drop_caches()
    verify(files)
    run("fstrim", MOUNT)
    run("umount", MOUNT)
    run(*CHECK[fs], DEVICE)
    rig.server.crash()
    run("mount", DEVICE, MOUNT)
    verify(files)
    run("umount", MOUNT)
    return files


def detaching(rig, files):
    """After a detach, the backing file has everything, and there is no device."""
    rig.ask("detach", "scratch")
    expect(not os.path.exists(DEVICE) and not glob.glob("/dev/ublkc*"), "the device is still there")
    expect(DEVICE not in rig.ask("show", "scratch"), "the device is still shown")
    copy = "/dev/shm/copy"
    run("cp", "--sparse=always", DISK, copy)
    run("mount", "-o", "loop,nouuid", copy, MOUNT)
    verify(files)
    run("umount", MOUNT)
    os.unlink(copy)


def gone(rig):
    """A device that is gone, as after a restart of this machine, is made again."""
    rig.ask("attach", "scratch")
    disk = Disk()
    disk.write(7, 77)
    disk.close()
    rig.kill()
    rig.unload()
    expect(not os.path.exists(DEVICE), "the device is still there")
    rig.load()
    rig.server.start()
    end = time.monotonic() + PATIENCE
    while not os.path.exists(DEVICE) and time.monotonic() < end:
        time.sleep(0.05)
    disk = Disk()
    expect(disk.read(7) == 77, "the block has other contents")
    disk.close()
    rig.ask("detach", "scratch")
    rig.ask("remove", "scratch")


def main():
    kills, binary, *modules = sys.argv[1:]
    rig = Rig(binary, [module for module in modules if "ublk" in module])
    with open(DISK, "wb") as file:
        file.truncate(SIZE)
    files = {}
    cases = [
        ("without ublk", lambda: no_ublk(rig)),
        ("attach", lambda: attaching(rig)),
        ("answered writes, write-back", lambda: answered(rig, "server", 2)),
        ("answered writes, write-through", lambda: answered(rig, "write-through", 1)),
        ("zeros and discards", lambda: zeroes(rig)),
        ("ext4", lambda: killed(rig, "ext4", int(kills))),
        ("xfs", lambda: files.update(killed(rig, "xfs", int(kills)))),
        ("detach", lambda: detaching(rig, files)),
        ("a device that is gone", lambda: gone(rig)),
    ]
    failed = False
    for name, case in cases:
        begun = time.monotonic()
        try:
            case()
            print(f"# {name}: {time.monotonic() - begun:.1f} s", flush=True)
            print(f"ok {name}", flush=True)
        except (Wrong, OSError, subprocess.SubprocessError) as error:
            print(f"not ok {name}: {error}", flush=True)
            print(f"# {rig.server.log()}", flush=True)
            failed = True
            break
    with contextlib.suppress(Exception):
        rig.kill()
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
