"""The rig of `caches.py`: XFS on caches of block devices, exported by the kernel's NFS server.

The disks are exports of `volatile_disks.py` on the host, with their files in `/share`, which outlives the machine.
"""

import hashlib
import json
import os
import random
import subprocess
import sys
import time

FOREBAY, PORT, EARLY = sys.argv[2], sys.argv[3], int(sys.argv[4])
MIB, SECTOR = 1 << 20, 512
DISK, SSD, METADATA = 320 * MIB, 96 * MIB, 8 * MIB
RAID = " on RAID 1"
CACHES = ["bcache", "dm-cache", "dm-writecache"]
STACKS = ["plain disk", *CACHES, *(name + RAID for name in CACHES), "Forebay"]
# Seconds after which an operation counts as one that does not end.
PATIENCE = 60
# The directory with the file systems, which the kernel's NFS server exports.
EXPORTS = "/run/exports"
# The flags of an export: any port, no check of the way, a number as its identity, and the file systems below it.
EXPORT_FLAGS = 0x2 | 0x400 | 0x2000 | 0x4000
FOR_EVER = 2**31 - 1
# The file system of Forebay's server, which outlives the machine as well.
OWN, STATE = "/srv/own", "/srv/own/state"


def run(*words):
    done = subprocess.run(words, capture_output=True, text=True, timeout=2 * PATIENCE)
    if done.returncode:
        raise OSError(f"{' '.join(words)}: {' '.join((done.stdout + done.stderr).split())}")
    return done.stdout.strip()


def written(path, text):
    with open(path, "w") as file:
        file.write(text)


def until(condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def appears(path):
    if not until(lambda: os.path.exists(path)):
        raise OSError(f"{path} does not appear")
    return path


def disk(name, size):
    """Attaches a disk of the host as the first free device but /dev/nbd0, which is for Forebay's volume."""
    path = f"/share/{name}"
    if not os.path.exists(path):
        with open(path, "wb") as file:
            file.truncate(size)
    number = 1
    while os.path.exists(f"/sys/block/nbd{number}/pid"):
        number += 1
    run("nbd-client", "10.0.2.2", PORT, "-N", name, f"/dev/nbd{number}")
    return f"/dev/nbd{number}"


def linear(name, below, start, size):
    """Makes a device that can be told to fail."""
    table = f"0 {size // SECTOR} linear {below} {start // SECTOR}"
    run("dmsetup", "create", name, "--table", table)
    return f"/dev/mapper/{name}"


class Stack:
    """An XFS on a cache in front of a disk."""

    def __init__(self, name):
        self.name, self.is_mirrored = name, name.endswith(RAID)
        self.kind, self.short = name.removesuffix(RAID), name.lower().replace(" ", "-")
        # The file system, and its mount over NFS.
        self.exported, self.mount = f"{EXPORTS}/{self.short}", f"/mnt/{self.short}"
        self.disk = disk(f"{self.short}.disk", DISK)
        self.caches = []

    def cell(self, column, result):
        print(f"= {self.name} | {column} | {result}", flush=True)

    def ssd(self, number=0):
        name = f"{self.short}-ssd{number}"
        self.caches.append(linear(name, disk(name, SSD), 0, SSD))
        return self.caches[-1]

    def mirror(self, is_new, legs):
        """Returns an array of MD over SSDs."""
        array, devices = f"/dev/md{STACKS.index(self.name)}", [self.ssd(leg) for leg in legs]
        words = ["--create", array, "--level=1", "--raid-devices=2", "--metadata=1.2", "--bitmap=internal",
                 "--assume-clean"] if is_new else ["--assemble", array]
        run("mdadm", *words, "--run", *devices)
        return array

    def assemble(self, is_new, legs=(0, 1)):
        """Returns the block device of the stack."""
        if self.name == "plain disk":
            return self.disk
        if self.kind == "Forebay":
            for leg in legs:
                self.ssd(leg)
            return self.serve(is_new)
        ssd, sectors = self.mirror(is_new, legs) if self.is_mirrored else self.ssd(), DISK // SECTOR
        if self.kind == "bcache":
            if is_new:
                run("make-bcache", "--writeback", "--bucket", "64k", "-B", self.disk, "-C", ssd)
            for device in (self.disk, ssd):
                written("/sys/fs/bcache/register", os.path.realpath(device))
            return self.bcache()
        if self.kind == "dm-cache":
            metadata = linear(f"{self.short}-metadata", ssd, 0, METADATA)
            # The array's own metadata takes a part of it.
            data = linear(f"{self.short}-data", ssd, METADATA, SSD - 2 * METADATA)
            table = f"0 {sectors} cache {metadata} {data} {self.disk} 128 1 writeback smq 0"
        else:
            table = f"0 {sectors} writecache s {self.disk} {ssd} 4096 0"
        run("dmsetup", "create", self.short, "--table", table)
        return f"/dev/mapper/{self.short}"

    def bcache(self):
        link = appears(f"/sys/block/{os.path.basename(self.disk)}/bcache/dev")
        return appears(f"/dev/{os.path.basename(os.path.realpath(link))}")

    def serve(self, is_new):
        own = disk("own", 128 * MIB)
        if is_new:
            run("mkfs.ext4", "-q", own)
        os.makedirs(OWN, exist_ok=True)
        run("mount", own, OWN)
        os.makedirs(f"{OWN}/served", exist_ok=True)
        words = [FOREBAY, "serve", f"{OWN}/served", "--listen", "127.0.0.1:12049", "--mode", "write-back"]
        words += ["--portmap=off", "--state-dir", STATE]
        # User-mode Linux has no ublk.
        has_ublk = os.path.exists("/dev/ublk-control")
        words += [] if has_ublk else ["--nbd", f"{OWN}/nbd.sock"]
        words += [word for cache in self.caches for word in ("--cache", cache)]
        with open("/run/log", "ab") as log:
            subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        if is_new:
            end = time.monotonic() + PATIENCE
            while subprocess.run([FOREBAY, "volume", "list", "--state-dir", STATE], capture_output=True).returncode:
                if time.monotonic() > end:
                    raise OSError("the server does not start")
                time.sleep(0.5)
            run(FOREBAY, "volume", "create", "disk", "--backing", self.disk, "--state-dir", STATE)
            if has_ublk:
                run(FOREBAY, "volume", "attach", "disk", "--state-dir", STATE)
        return appears("/dev/ublkb0") if has_ublk else self.connected()

    def destage(self):
        """Has Forebay destage until that fails."""
        while True:
            run(FOREBAY, "volume", "flush", "disk", "--state-dir", STATE)

    def connected(self):
        """Attaches the volume over NBD as soon as the server lists it."""
        words, end = ["nbd-client", "-unix", f"{OWN}/nbd.sock"], time.monotonic() + PATIENCE
        while subprocess.run([*words, "-N", "disk", "/dev/nbd0"], capture_output=True).returncode:
            if time.monotonic() > end:
                raise OSError("the volume is not served over NBD")
            time.sleep(0.5)
        return "/dev/nbd0"

    def mounted(self, device):
        os.makedirs(self.mount, exist_ok=True)
        os.makedirs(self.exported, exist_ok=True)
        run("mount", device, self.exported)
        export(self.exported, 1 + STACKS.index(self.name))
        run("mount", "-t", "nfs", "-o", "vers=4.2", f"127.0.0.1:/{self.short}", self.mount)

    def known(self):
        """The durable files and their sums, as the machine noted them before its crash."""
        with open(f"/share/{self.short}.sums") as file:
            return dict(line.split() for line in file if line.endswith("\n"))

    def write(self, group, count):
        """Writes files durably. Notes each one after that, where a crash of this machine cannot take it."""
        chance = random.Random(f"{self.name} {group}")
        directory = os.open(self.mount, os.O_RDONLY)
        with open(f"/share/{self.short}.sums", "a") as sums:
            for number in range(count):
                content = chance.randbytes(100_000)
                with open(f"{self.mount}/{group}{number}", "wb") as file:
                    file.write(content)
                    os.fsync(file.fileno())
                os.fsync(directory)
                sums.write(f"{group}{number} {hashlib.sha256(content).hexdigest()}\n")
                sums.flush()
                os.fsync(sums.fileno())
        os.close(directory)

    def right(self, group=""):
        """Returns the number of the files that have their contents, and the number of all."""
        names = {name: sum_ for name, sum_ in self.known().items() if name.startswith(group)}
        found = 0
        for name, sum_ in names.items():
            try:
                with open(f"{self.mount}/{name}", "rb") as file:
                    found += hashlib.sha256(file.read()).hexdigest() == sum_
            except OSError:
                pass
        return found, len(names)

    def right_of_disk(self, group):
        """Returns the part of the files of a group that is read from the disk, with their contents in no memory."""
        drop_caches()
        before = self.disk_bytes()
        found = self.right(group)
        return f"{min(100, round(100 * (self.disk_bytes() - before) / (found[1] * 100_000)))} %"

    def disk_bytes(self):
        with open(f"/sys/block/{os.path.basename(self.disk)}/stat") as file:
            return int(file.read().split()[2]) * SECTOR

    def die(self):
        """Has the first cache device fail every request from now on."""
        name = os.path.basename(self.caches[0])
        run("dmsetup", "suspend", "--noflush", "--nolockfs", name)
        run("dmsetup", "load", name, "--table", f"0 {SSD // SECTOR} error")
        run("dmsetup", "resume", name)


def attempt(work):
    """Runs an operation that may not end in a process of its own. Returns its result, or the reason for none."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            result = work()
        except (OSError, subprocess.SubprocessError) as error:
            result = f"no: {error}"
        os.write(write, json.dumps(result).encode())
        os._exit(0)
    os.close(write)
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        if os.waitpid(child, os.WNOHANG)[0]:
            with os.fdopen(read) as result:
                return json.load(result)
        time.sleep(0.05)
    return f"no end within {PATIENCE} s"


def serve_kernel():
    """Starts the kernel's NFS server, with an empty root."""
    run("ip", "link", "set", "lo", "up")
    os.makedirs(EXPORTS)
    run("mount", "-t", "tmpfs", "exports", EXPORTS)
    run("mount", "-t", "nfsd", "nfsd", "/proc/fs/nfsd")
    written("/proc/net/rpc/auth.unix.ip/channel", f"nfsd 127.0.0.1 {FOR_EVER} client\n")
    export(EXPORTS, 0)
    # Version 3 would need rpcbind. No client has state from before: the shortest grace period is long enough.
    written("/proc/fs/nfsd/versions", "-3 +4\n")
    written("/proc/fs/nfsd/nfsv4gracetime", "10\n")
    written("/proc/fs/nfsd/threads", "4\n")


def export(path, number):
    """Gives the kernel's server an export, as mountd would."""
    identity = "\\x" + number.to_bytes(4, sys.byteorder).hex()
    written("/proc/net/rpc/nfsd.export/channel",
            f"client {path} {FOR_EVER} {EXPORT_FLAGS} 65534 65534 {number}\n")
    written("/proc/net/rpc/nfsd.fh/channel", f"client 1 {identity} {FOR_EVER} {path}\n")


def drop_caches():
    written("/proc/sys/vm/drop_caches", "3")
