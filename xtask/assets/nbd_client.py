"""Checks file systems on a volume that the kernel attaches over NBD and TCP. Needs root, and nbd as a module.

    nbd_client.py HOST PORT KILLS ATTACH FSSTRESS FSX CONFIG MODULE...

The server is killed KILLS times below each file system. ATTACH is the command that Forebay prints for a client.
FSSTRESS loads the file systems as well, unless it is empty.
"""

import errno
import os
import random
import subprocess
import sys
import time

from block_rig import CHECK, MAKE, MIB, MOUNT, Disk, Writer, drop_caches, report, run, verify
from nbd_netlink import Device
from quota_rig import PATIENCE, expect

HOST, PORT, KILLS, ATTACH, FSSTRESS, FSX, CONFIG, *MODULES = sys.argv[1:]
DEVICE, QUEUE, NAME = "/dev/nbd0", "/sys/block/nbd0", "scratch"
SIZE = 1024 * MIB


def crash():
    """Has the host kill the server, and start it again."""
    with open("/share/kill", "w"):
        pass
    end = time.monotonic() + PATIENCE
    while os.path.exists("/share/kill"):
        expect(time.monotonic() < end, "the server does not start again")
        time.sleep(0.02)


def has(what, wanted):
    end = time.monotonic() + PATIENCE
    while True:
        try:
            with open(f"{QUEUE}/{what}") as file:
                found = file.read().strip()
        except FileNotFoundError:
            found = None
        if found == wanted or time.monotonic() > end:
            break
        time.sleep(0.05)
    expect(found == wanted, f"{what} is {found}, not {wanted}")


def client(*words):
    run("nbd-client", HOST, PORT, "-N", NAME, *words, DEVICE)
    has("size", str(SIZE // 512))


def end_of_client():
    run("nbd-client", "-d", DEVICE)
    has("pid", None)


def attaching():
    """A volume is a disk with a volatile cache that takes discards, for nbd-client with several connections."""
    for module in MODULES:
        if "ublk" not in module:
            run("insmod", module)
    run("nbd-client", "-l", HOST, PORT)
    client("-C", "4")
    for name, value in {"queue/write_cache": "write back", "queue/fua": "1", "ro": "0",
                        "queue/logical_block_size": "512"}.items():
        has(name, value)
    with open(f"{QUEUE}/queue/discard_max_bytes") as file:
        expect(int(file.read()) > 0, "the device takes no discards")
    disk = Disk(DEVICE)
    disk.write(7, 77)
    expect(disk.read(7) == 77, "the block has other contents")
    disk.close()
    end_of_client()


def printed_command():
    """The command that Forebay prints attaches a volume whose XFS was made on sectors of 512 bytes."""
    client()
    run(*MAKE["xfs"], "-s", "size=512", DEVICE)
    end_of_client()
    run(*ATTACH.replace("127.0.0.1", HOST).split())
    has("size", str(SIZE // 512))
    run("mount", DEVICE, MOUNT)
    run("umount", MOUNT)
    end_of_client()


def without_reconnect():
    """Below nbd-client, the file system learns of a kill. What was durable is there after the next attach."""
    # Without a time limit, a request that has no answer waits until `nbd-client -d`.
    client("-b", "4096", "-t", "10")
    has("queue/logical_block_size", "4096")
    run(*MAKE["xfs"], DEVICE)
    run("mount", DEVICE, MOUNT)
    writer = Writer(1)
    time.sleep(2)
    crash()
    writer.join(PATIENCE)
    expect(not writer.is_alive() and writer.error, f"the writer does not learn of the kill: {writer.error}")
    expect(writer.error.errno in (errno.EIO, errno.EROFS), f"the error is {writer.error}")
    run("umount", MOUNT)
    subprocess.run(["nbd-client", "-d", DEVICE], capture_output=True)
    has("pid", None)
    client("-b", "4096")
    run("mount", DEVICE, MOUNT)
    expect(len(writer.files) > 2, "too few files were written")
    verify(writer.files, writer.last)
    run("umount", MOUNT)
    run(*CHECK["xfs"], DEVICE)
    end_of_client()


def answered():
    """Writes that were answered, and never flushed, survive kills of the server below a client that connects again."""
    device = Device(HOST, int(PORT), NAME, 2)
    device.attach()
    has("size", str(SIZE // 512))
    disk, known, chance, lost = Disk(DEVICE), {}, random.Random(1), 0
    for _ in range(3):
        for _ in range(200):
            block, number = chance.randrange(2000), chance.getrandbits(60)
            disk.write(block, number)
            known[block] = number
        crash()
        device.attach_again()
        lost += sum(disk.read(block) != number for block, number in known.items())
    disk.close()
    expect(not lost, f"{lost} blocks have lost a write that was answered")
    device.detach()
    has("pid", None)


class Stress:
    """fsstress in a directory of the file system: four processes with all operations in random order."""

    def __init__(self):
        os.mkdir(f"{MOUNT}/stress")
        words = [FSSTRESS, "-p", "4", "-n", "10000000", "-s", "7", "-d", f"{MOUNT}/stress"]
        with open("/tmp/fsstress.log", "w") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def end(self):
        """Ends all of its processes, which must still run."""
        status = self.process.poll()
        self.process.terminate()
        self.process.wait(PATIENCE)
        with open("/tmp/fsstress.log") as log:
            expect(status is None, f"fsstress ended with {status}: {log.read()[-600:]}")


def killed(fs):
    """A mounted file system goes on after kills of the server under load, and is sound after them."""
    device = Device(HOST, int(PORT), NAME, 4)
    device.attach()
    has("size", str(SIZE // 512))
    run(*MAKE[fs], DEVICE)
    run("mount", DEVICE, MOUNT)
    writers = [Writer(number) for number in range(3)]
    stress = Stress() if FSSTRESS else None
    words = [FSX, "-f", CONFIG, "-S", "7", "-N", "100000", "-P", "/tmp", f"{MOUNT}/fsx"]
    with open("/tmp/fsx.log", "w") as log:
        fsx = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    for _ in range(int(KILLS)):
        time.sleep(3)
        crash()
        device.attach_again()
    before = sum(writer.done for writer in writers)
    end = time.monotonic() + PATIENCE
    while sum(writer.done for writer in writers) < before + 9 and time.monotonic() < end:
        time.sleep(0.1)
    if stress:
        stress.end()
    status = fsx.poll()
    fsx.kill()
    fsx.wait()
    for writer in writers:
        writer.end()
    done = sum(writer.done for writer in writers)
    print(f"# {fs}: {done} files were written", flush=True)
    expect(done >= before + 9, "writes do not go on after the last kill")
    if status not in (None, 0):
        with open("/tmp/fsx.log") as log:
            expect(False, f"fsx ended with {status}: {log.read()[-600:]}")
    files = {name: digest for writer in writers for name, digest in writer.files.items()}
    drop_caches()
    verify(files)
    run("fstrim", MOUNT)
    run("umount", MOUNT)
    run(*CHECK[fs], DEVICE)
    run("mount", DEVICE, MOUNT)
    verify(files)
    run("umount", MOUNT)
    device.detach()
    has("pid", None)


def main():
    return report([
        ("nbd-client", attaching),
        ("the command of attach", printed_command),
        ("nbd-client, server killed", without_reconnect),
        ("answered writes", answered),
        *((fs, lambda fs=fs: killed(fs)) for fs in ("ext4", "btrfs", "xfs")),
    ])


if __name__ == "__main__":
    sys.exit(main())
