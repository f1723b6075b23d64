"""Unpacks a source tree on a mount while the power of the server is cut.

    untar.py make ARCHIVE FILES          writes an archive; equal arguments give equal archives
    untar.py guest MOUNT SHARE CUTS      unpacks SHARE/tree.tar; SHARE is a directory that the host can read as well
    untar.py host DIR SHARE              checks that the served directory has exactly the tree
"""

import io
import os
import random
import subprocess
import sys
import tarfile
import time

# Number of files, and of directories, in a directory of the tree.
FILES, DIRECTORIES = 12, 6
# One out of this number of files is kept open over a cut.
HELD = 8


def entry(path, kind, chance):
    info = tarfile.TarInfo(path)
    info.type = kind
    info.mtime = 1_300_000_000 + chance.randrange(300_000_000)
    info.mode = 0o755 if kind == tarfile.DIRTYPE or chance.random() < 0.05 else 0o644
    info.uid = info.gid = chance.choice([0, 0, 0, 1000])
    return info


def make(archive, count):
    """Writes an archive with sizes as in Linux: half of them below 3.3 KiB, 10 KiB on average; some are links."""
    chance = random.Random(int(count))
    with tarfile.open(archive, "w", format=tarfile.PAX_FORMAT) as tar:
        for number in range(int(count)):
            directory, place = divmod(number, FILES)
            path = "tree"
            for part in (directory // DIRECTORIES**2, directory // DIRECTORIES % DIRECTORIES, directory % DIRECTORIES):
                path += f"/part{part}"
            if place == 0:
                parents = path.split("/")
                for depth in range(1, len(parents) + 1):
                    parent = "/".join(parents[:depth])
                    if parent not in make.known:
                        make.known.add(parent)
                        tar.addfile(entry(parent, tarfile.DIRTYPE, chance))
            info = entry(f"{path}/file{place}.c", tarfile.REGTYPE, chance)
            info.size = min(int(chance.lognormvariate(8.1, 1.5)), 400_000)
            tar.addfile(info, io.BytesIO(chance.randbytes(info.size)))
            for kind, name in ((tarfile.SYMTYPE, "symlink"), (tarfile.LNKTYPE, "link")):
                if chance.random() < 0.02:
                    link = entry(f"{path}/{name}{place}", kind, chance)
                    link.linkname = f"file{place}.c" if kind == tarfile.SYMTYPE else info.name
                    link.mode, link.mtime, link.uid, link.gid = info.mode, info.mtime, info.uid, info.gid
                    tar.addfile(link)


make.known = set()


def verdict(name, problem):
    print(f"not ok {name}: {problem}" if problem else f"ok {name}", flush=True)


def compare(archive, directory):
    """Compares types, modes, owners, times, contents, and targets of links."""
    result = subprocess.run(["tar", "-d", "-f", archive, "-C", directory], capture_output=True, text=True)
    lines = (result.stdout + result.stderr).splitlines()
    if result.returncode or lines:
        first = [f"{line} ({sizes(archive, directory, line.split(': ')[0])})" for line in lines[:3]]
        return f"{len(lines)} differences, first {first}"


def sizes(archive, directory, name):
    """Returns what a person needs to judge a difference."""
    with tarfile.open(archive) as tar:
        wanted = next((info.size for info in tar if info.name == name), None)
    try:
        found = os.lstat(f"{directory}/{name}")
    except OSError as error:
        return f"{wanted} bytes in the archive, {error.strerror}"
    return f"{wanted} bytes in the archive, {found.st_size} found, {found.st_blocks} sectors"


class Open:
    """The files that a process keeps open over a cut."""

    def __init__(self):
        os.mkdir("beside")
        os.chdir("beside")
        self.lines = os.open("lines", os.O_CREAT | os.O_EXCL | os.O_RDWR)
        self.removed = os.open("removed", os.O_CREAT | os.O_EXCL | os.O_RDWR)
        os.write(self.removed, b"still there")
        # The client renames a removed file until it is closed.
        os.unlink("removed")
        self.held, self.written = [], b""

    def hold(self, path):
        if not os.path.islink(path) and os.path.isfile(path):
            handle = os.open(path, os.O_RDONLY)
            self.held.append((path, handle, os.fstat(handle).st_ino))

    def step(self, path):
        """Appends a line to an open file; the mount is synchronous, so the line is durable on return."""
        line = (path + "\n").encode()
        os.write(self.lines, line)
        self.written += line

    def check(self, archive):
        """Checks every open file; the caches are dropped first, so that the client reads from the server."""
        os.sync()
        with open("/proc/sys/vm/drop_caches", "w") as file:
            file.write("3")
        other, stale = [], []
        with tarfile.open(archive) as tar:
            for path, handle, number in self.held:
                try:
                    if {os.fstat(handle).st_ino, os.stat(path).st_ino} != {number}:
                        other.append(path)
                    if os.pread(handle, 1 << 20, 0) != tar.extractfile(path.split("/", 2)[2]).read():
                        stale.append(path)
                except OSError as error:
                    stale.append(f"{path} ({error})")
        verdict("file ids from before the cuts are the files' still", other[:3])
        verdict("files opened before the cuts can be read", stale[:3])
        verdict("there were such files", not self.held and "none")
        lines = os.pread(self.lines, 1 << 20, 0)
        verdict("a file opened before the cuts was written on", lines != self.written and f"{len(lines)} bytes")
        removed = os.pread(self.removed, 100, 0)
        verdict("a file removed while it was open can be read", removed != b"still there" and removed)
        verdict("the current directory is where it was", sorted(os.listdir("."))[-1:] != ["lines"] and os.listdir("."))


def guest(mount, share, cuts):
    archive, cuts = f"{share}/tree.tar", int(cuts)
    with tarfile.open(archive) as tar:
        names = len(tar.getnames())
    os.chdir(mount)
    opened, seen, begun = Open(), [], time.monotonic()
    tar = subprocess.Popen(["tar", "-x", "-v", "-f", archive, "-C", mount], stdout=subprocess.PIPE, text=True)
    goals = [names * (cut + 1) // (cuts + 1) for cut in range(cuts)]
    for line in tar.stdout:
        # A name is reported before its file is made, so the file before it must be complete.
        if cuts and seen and len(seen) % HELD == 0:
            opened.hold(f"{mount}/{seen[-1]}")
            opened.step(seen[-1])
        seen.append(line.strip())
        if len(seen) in goals:
            open(f"{share}/under-way-{goals.index(len(seen))}", "w").close()
    status = tar.wait()
    os.sync()
    print(f"{names} names in {time.monotonic() - begun:.1f} s", flush=True)
    verdict("tar ends well", status and f"status {status}")
    if cuts:
        opened.check(archive)
        verdict("the client sees the tree of the archive", compare(archive, mount))


def host(directory, share):
    archive = f"{share}/tree.tar"
    verdict("the directory served has the tree of the archive", compare(archive, directory))
    with tarfile.open(archive) as tar:
        wanted = set(tar.getnames())
    found = set()
    for path, directories, files in os.walk(f"{directory}/tree"):
        found.update(os.path.relpath(os.path.join(path, name), directory) for name in directories + files)
    others = sorted(found - wanted)
    verdict("it has nothing else", others and f"{len(others)} names, first {others[:3]}")
    beside = set(os.listdir(directory)) - {"tree", "beside", ".forebay", "lost+found"}
    verdict("nothing was set aside", sorted(beside))


{"make": make, "guest": guest, "host": host}[sys.argv[1]](*sys.argv[2:])
