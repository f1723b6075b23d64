"""Checks of operations that applications make on files. They run in three places:

    posix.py before DIR   on the server's host, on the directory served, before it is mounted
    posix.py guest DIR    on the client, on the mounted export
    posix.py after DIR    on the server's host again: checks that the client's changes are there

Every check is a function below; each prints `ok NAME`, `not ok NAME: WHY` or `skip NAME: WHY`.
"""

import contextlib
import errno
import hashlib
import mmap
import os
import random
import shutil
import socket
import stat
import struct
import subprocess
import sys
import traceback

CROWD = 100_000
TREE = "/usr/include/linux"
ODD_NAMES = [b"caf\xe9", b"\xff\xfe\x80", b"new\nline", b"-rf", b"tab\tquote\"'", "日本語".encode(), b" lead", b"trail "]


# Helpers

class Skip(Exception):
    pass


@contextlib.contextmanager
def fails(*codes):
    """Asserts that the body fails with one of these error codes."""
    try:
        yield
    except OSError as error:
        assert error.errno in codes, f"{errno.errorcode[error.errno]} instead of {[errno.errorcode[c] for c in codes]}"
    else:
        raise AssertionError(f"succeeded instead of {[errno.errorcode[c] for c in codes]}")


def write(path, content=b"", mode="wb"):
    with open(path, mode) as file:
        file.write(content)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def user(uid, check, gid=None, groups=()):
    """Runs `check` in a child with these credentials, and raises its exception here."""
    pipe_in, pipe_out = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups(groups)
            os.setgid(uid if gid is None else gid)
            os.setuid(uid)
            check()
        except BaseException as error:  # noqa: B902: the parent raises it again
            os.write(pipe_out, f"as uid {uid}: {type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(pipe_out)
    with open(pipe_in, "rb") as pipe:
        problem = pipe.read()
    os.waitpid(child, 0)
    assert not problem, problem.decode()


def drop_caches():
    """Drops the caches of the client, so that the next read asks the server."""
    os.sync()
    write("/proc/sys/vm/drop_caches", b"3")


def noise(seed, size):
    return random.Random(seed).randbytes(size)


def digest(path):
    return hashlib.sha256(read(path)).hexdigest()


def run(*words, cwd=None):
    done = subprocess.run(words, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, f"{' '.join(words)} ended with {done.returncode}: {done.stdout.decode()[-400:]}"
    return done.stdout


# Before: the contents of the served directory before the client mounts it

def before_crowd():
    os.mkdir("crowd")
    for number in range(CROWD):
        os.close(os.open(f"crowd/{number:06}", os.O_CREAT | os.O_WRONLY, 0o644))


def before_acl():
    write("acl", b"for one reader")
    os.chmod("acl", 0o600)
    # user::rw-, user:23456:r--, group::---, mask::r--, other::---
    entries = [(1, 6, 0xFFFFFFFF), (2, 4, 23456), (4, 0, 0xFFFFFFFF), (16, 4, 0xFFFFFFFF), (32, 0, 0xFFFFFFFF)]
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    os.setxattr("acl", "system.posix_acl_access", value)


def before_special_files():
    os.symlink("/etc/hostname", "points-outside")
    os.mkfifo("host-fifo")


# Guest: on the mounted export

def guest_hard_links():
    write("a", b"one")
    os.link("a", "b")
    assert os.stat("a").st_nlink == 2 and os.stat("a").st_ino == os.stat("b").st_ino
    write("b", b" two", "ab")
    os.unlink("a")
    assert read("b") == b"one two" and os.stat("b").st_nlink == 1
    with fails(errno.EEXIST):
        write("c")
        os.link("b", "c")
    os.mkdir("d")
    with fails(errno.EPERM):
        os.link("d", "e")


def guest_rename():
    write("a", b"new")
    write("b", b"old")
    inode = os.stat("a").st_ino
    os.rename("a", "b")
    assert read("b") == b"new" and os.stat("b").st_ino == inode and not os.path.exists("a")
    os.makedirs("full/inner")
    os.mkdir("empty")
    with fails(errno.ENOTEMPTY, errno.EEXIST):
        os.rename("empty", "full")
    with fails(errno.EINVAL):
        os.rename("full", "full/inner/self")
    os.rename("full", "empty")
    assert os.path.isdir("empty/inner")
    os.mkdir("other")
    os.rename("b", "other/b")
    os.rename("empty", "other/empty")
    assert os.stat("other/empty/..").st_ino == os.stat("other").st_ino
    with fails(errno.EISDIR):
        os.rename("other/b", "other/empty")
    with fails(errno.ENOTDIR):
        os.rename("other/empty", "other/b")
    os.rename("other/b", "other/b")


def guest_rename_links_of_one_file():
    write("a", b"x")
    os.link("a", "b")
    os.rename("a", "b")
    assert os.path.exists("a") and os.path.exists("b")


def guest_exclusive_create():
    handle = os.open("a", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640)
    os.write(handle, b"mine")
    os.close(handle)
    assert stat.S_IMODE(os.stat("a").st_mode) == 0o640
    with fails(errno.EEXIST):
        os.open("a", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    os.symlink("nowhere", "link")
    with fails(errno.EEXIST):
        os.open("link", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    # The times must not show the verifier of an exclusive create.
    assert abs(os.stat("a").st_mtime - os.stat(".").st_mtime) < 60


def guest_read_only_create():
    def check():
        handle = os.open("a", os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o444)
        os.write(handle, b"written by the one who made it")
        os.fsync(handle)
        os.close(handle)
        with fails(errno.EACCES):
            os.open("a", os.O_WRONLY)
        handle = os.open("b", os.O_CREAT | os.O_RDWR, 0o600)
        os.chmod("b", 0)
        os.write(handle, b"still open")
        os.fsync(handle)
        os.close(handle)

    os.chmod(".", 0o777)
    user(1000, check)
    assert read("a") == b"written by the one who made it" and read("b") == b"still open"


def guest_sparse():
    with open("sparse", "wb") as file:
        file.seek(5 << 30)
        file.write(b"end")
        file.seek(3 << 30)
        file.write(b"middle")
    drop_caches()
    info = os.stat("sparse")
    assert info.st_size == (5 << 30) + 3, info.st_size
    assert info.st_blocks < 4096, f"{info.st_blocks} blocks"
    with open("sparse", "rb") as file:
        assert file.read(8192) == bytes(8192)
        file.seek((3 << 30) - 4)
        assert file.read(14) == bytes(4) + b"middle" + bytes(4)
        file.seek(5 << 30)
        assert file.read() == b"end"


def guest_names():
    longest = b"n" * 255
    for name in [*ODD_NAMES, longest]:
        write(name, name)
    with fails(errno.ENAMETOOLONG):
        write(b"n" * 256)
    with fails(errno.ENAMETOOLONG):
        os.mkdir(b"n" * 256)
    drop_caches()
    assert sorted(os.listdir(b".")) == sorted([*ODD_NAMES, longest])
    for name in [*ODD_NAMES, longest]:
        assert read(name) == name
    os.rename(longest, b"m" * 255)
    os.unlink(b"m" * 255)


def guest_sixteen_groups():
    write("file", b"for the group")
    os.chown("file", 0, 40015)
    os.chmod("file", 0o640)
    groups = list(range(40000, 40016))

    def refused():
        with fails(errno.EACCES):
            read("file")

    user(12345, lambda: read("file"), gid=50000, groups=groups)
    user(12345, refused, gid=50000, groups=groups[:-1])
    user(12345, lambda: read("file"), gid=40015)


def guest_acl_of_the_server():
    if not os.path.exists("../acl"):
        raise Skip("the directory has none")

    def refused():
        with fails(errno.EACCES):
            read("../acl")

    user(23456, lambda: read("../acl"))
    user(23457, refused)


def guest_permissions():
    write("secret", b"x")
    os.chmod("secret", 0o600)
    os.mkdir("closed", 0o700)
    write("closed/inside", b"x")
    os.mkdir("sticky")
    os.chmod("sticky", 0o1777)
    write("sticky/roots")
    os.mkdir("walk", 0o711)
    write("walk/known", b"x")

    def check():
        with fails(errno.EACCES):
            read("secret")
        with fails(errno.EACCES):
            write("new")
        with fails(errno.EACCES):
            read("closed/inside")
        with fails(errno.EACCES):
            os.listdir("walk")
        assert read("walk/known") == b"x"
        with fails(errno.EPERM, errno.EACCES):
            os.unlink("sticky/roots")
        with fails(errno.EPERM):
            os.chmod("walk/known", 0o777)
        with fails(errno.EPERM):
            os.chown("walk/known", 1000, -1)
        with fails(errno.EACCES):
            os.truncate("walk/known", 0)
        with fails(errno.EACCES, errno.EPERM):
            os.utime("walk/known")
        write("sticky/mine")
        os.unlink("sticky/mine")

    os.chmod(".", 0o755)
    user(1000, check)


def guest_write_by_others():
    write("shared", b"a longer text")
    os.chmod("shared", 0o666)
    os.utime("shared", ns=(10**18, 10**18))

    def check():
        write("shared", b"new")
        os.truncate("shared", 2)
        write("shared", b"!", "ab")
        os.utime("shared")
        with fails(errno.EPERM):
            os.utime("shared", ns=(10**18, 10**18))

    user(1000, check)
    drop_caches()
    assert read("shared") == b"ne!" and os.stat("shared").st_mtime_ns > 10**18


def guest_chmod_chown():
    write("a")
    for mode in (0o000, 0o4755, 0o2755, 0o1777, 0o7777, 0o644):
        os.chmod("a", mode)
        assert stat.S_IMODE(os.stat("a").st_mode) == mode, oct(mode)
    for uid, gid in ((1000, 1001), (4_000_000_000, 4_100_000_000), (0, 0)):
        os.chown("a", uid, gid)
        drop_caches()
        info = os.stat("a")
        assert (info.st_uid, info.st_gid) == (uid, gid)
    os.chown("a", 1000, 1000)
    os.chmod("a", 0o6755)
    user(1000, lambda: os.chown("a", -1, 1001), groups=[1001])
    assert stat.S_IMODE(os.stat("a").st_mode) == 0o755, "a change of group keeps the set-id bits"
    os.chmod("a", 0o6777)
    user(2000, lambda: write("a", b"x"))
    assert stat.S_IMODE(os.stat("a").st_mode) == 0o777, "a write by another keeps the set-id bits"


def guest_umask_and_set_gid():
    previous = os.umask(0o027)
    write("a")
    os.mkdir("d")
    os.umask(previous)
    assert stat.S_IMODE(os.stat("a").st_mode) == 0o640 and stat.S_IMODE(os.stat("d").st_mode) == 0o750
    os.chown("d", 0, 1234)
    os.chmod("d", 0o2777)
    write("d/file")
    os.mkdir("d/inner")
    assert os.stat("d/file").st_gid == 1234 and os.stat("d/inner").st_gid == 1234
    assert os.stat("d/inner").st_mode & stat.S_ISGID
    user(1000, lambda: write("d/users"))
    info = os.stat("d/users")
    assert (info.st_uid, info.st_gid) == (1000, 1234)


def guest_times():
    write("a")
    wanted = (1_234_567_890_123_456_789, 987_654_321_987_654_321)
    os.utime("a", ns=wanted)
    drop_caches()
    info = os.stat("a")
    assert (info.st_atime_ns, info.st_mtime_ns) == wanted, (info.st_atime_ns, info.st_mtime_ns)
    write("a", b"x", "ab")
    drop_caches()
    assert os.stat("a").st_mtime_ns > wanted[1], "a write leaves mtime alone"
    changed = os.stat("a").st_ctime_ns
    os.chmod("a", 0o600)
    drop_caches()
    assert os.stat("a").st_ctime_ns > changed, "chmod leaves ctime alone"
    os.mkdir("d")
    os.utime("d", ns=wanted)
    write("d/x")
    drop_caches()
    assert os.stat("d").st_mtime_ns > wanted[1], "a create leaves the directory's mtime alone"


def guest_truncate():
    write("a", b"\xaa" * 100_000)
    os.truncate("a", 5_000)
    os.truncate("a", 50_000)
    drop_caches()
    assert read("a") == b"\xaa" * 5_000 + bytes(45_000)
    write("a", b"b", "ab")
    drop_caches()
    assert read("a") == b"\xaa" * 5_000 + bytes(45_000) + b"b"
    write("a")
    assert os.stat("a").st_size == 0
    with fails(errno.EISDIR):
        os.truncate(".", 0)


def guest_mmap():
    content = bytearray(noise(1, 300_000))
    write("a", content)
    with open("a", "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        for place in range(0, len(content), 4097):
            memory[place] = content[place] = (content[place] + 1) % 256
        memory.flush()
    drop_caches()
    assert read("a") == content


def guest_append():
    handles = [os.open("log", os.O_CREAT | os.O_WRONLY | os.O_APPEND) for _ in range(3)]
    for number in range(300):
        os.write(handles[number % 3], f"line {number}\n".encode())
    for handle in handles:
        os.close(handle)
    assert read("log").decode().split("\n") == [f"line {number}" for number in range(300)] + [""]


def guest_unlink_open_file():
    with open("a", "w+b") as file:
        file.write(b"before")
        file.flush()
        os.unlink("a")
        assert not os.path.exists("a")
        file.write(b" after")
        file.flush()
        os.fsync(file.fileno())
        drop_caches()
        file.seek(0)
        assert file.read() == b"before after"
    assert os.listdir(".") == [], "the removed file is still there"


def guest_rename_over_open_file():
    write("a", b"old")
    with open("a", "rb") as file:
        write("b", b"new")
        os.rename("b", "a")
        drop_caches()
        assert file.read() == b"old"
    assert read("a") == b"new"


def guest_crowded_directory():
    if not os.path.isdir("../crowd"):
        raise Skip("the directory has none")
    names = os.listdir("../crowd")
    assert len(names) == CROWD and len(set(names)) == CROWD, f"{len(names)} names, {len(set(names))} of them distinct"
    for number in range(0, CROWD, CROWD // 50):
        os.stat(f"../crowd/{number:06}")
    # Names that stay must be listed exactly once while other names appear and disappear.
    seen = []
    with os.scandir("../crowd") as entries:
        for count, entry in enumerate(entries):
            seen.append(entry.name)
            if count % 1000 == 0:
                write(f"../crowd/new-{count}")
            if count % 1000 == 500:
                os.unlink(f"../crowd/new-{count - 500}")
    stayed = [name for name in seen if not name.startswith("new-")]
    assert sorted(stayed) == sorted(names), f"{len(stayed)} names seen, {len(set(stayed))} of them distinct"


def guest_inode_numbers():
    for number in range(50):
        write(f"f{number}")
    os.mkdir("d")
    with os.scandir(".") as entries:
        for entry in entries:
            assert entry.inode() == entry.stat(follow_symlinks=False).st_ino, entry.name


def guest_remove_while_listing():
    os.mkdir("d")
    for number in range(700):
        write(f"d/{number}")
    run("rm", "-r", "d")
    assert not os.path.exists("d")


def guest_directories():
    os.makedirs("a/b/c")
    assert os.stat("a").st_nlink == 3
    with fails(errno.ENOTEMPTY, errno.EEXIST):
        os.rmdir("a")
    write("file")
    with fails(errno.ENOTDIR):
        os.rmdir("file")
    with fails(errno.EISDIR):
        os.unlink("a")
    with fails(errno.EEXIST):
        os.mkdir("a")
    with fails(errno.ENOTDIR):
        os.mkdir("file/x")
    with fails(errno.ENOENT):
        os.mkdir("missing/x")
    assert os.stat("a/b/c/../../..").st_ino == os.stat(".").st_ino
    os.removedirs("a/b/c")


def guest_symlinks():
    os.symlink("target", "relative")
    os.symlink("/absolute/" + "x" * 200, "absolute")
    os.symlink("y/" * 2000 + "z", "long")
    os.symlink(b"\xff\xfe", "bytes")
    drop_caches()
    assert os.readlink("relative") == "target"
    assert os.readlink("absolute") == "/absolute/" + "x" * 200
    assert os.readlink("long") == "y/" * 2000 + "z"
    assert os.readlink(b"bytes") == b"\xff\xfe"
    with fails(errno.ENOENT):
        read("relative")
    write("target", b"here")
    assert read("relative") == b"here" and os.lstat("relative").st_size == 6
    os.symlink("loop", "loop")
    with fails(errno.ELOOP):
        read("loop")
    # The client follows a link itself, so a link never leads to the server's files.
    if os.path.lexists("../points-outside"):
        assert os.readlink("../points-outside") == "/etc/hostname"


def guest_special_files():
    os.mkfifo("fifo", 0o640)
    os.mknod("block", 0o600 | stat.S_IFBLK, os.makedev(7, 200))
    os.mknod("char", 0o600 | stat.S_IFCHR, os.makedev(1, 300_000))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket")
    drop_caches()
    assert stat.S_ISFIFO(os.stat("fifo").st_mode) and stat.S_IMODE(os.stat("fifo").st_mode) == 0o640
    assert stat.S_ISBLK(os.stat("block").st_mode) and os.stat("block").st_rdev == os.makedev(7, 200)
    assert stat.S_ISCHR(os.stat("char").st_mode) and os.stat("char").st_rdev == os.makedev(1, 300_000)
    assert stat.S_ISSOCK(os.stat("socket").st_mode)
    reader = os.open("fifo", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open("fifo", os.O_WRONLY)
    os.write(writer, b"through")
    assert os.read(reader, 10) == b"through"


def guest_file_system_figures():
    info = os.statvfs(".")
    assert 0 < info.f_bavail <= info.f_bfree <= info.f_blocks and 0 < info.f_ffree <= info.f_files
    assert info.f_namemax == 255


def guest_large_file():
    content = noise(2, 1 << 20)
    with open("large", "wb") as file:
        for _ in range(48):
            file.write(content)
    drop_caches()
    with open("large", "rb") as file:
        for _ in range(48):
            assert file.read(1 << 20) == content
        assert file.read() == b""
    handle = os.open("large", os.O_RDWR | os.O_DIRECT)
    with mmap.mmap(-1, 1 << 20) as buffer:
        buffer.write(content[::-1])
        assert os.pwrite(handle, buffer, 3 << 20) == 1 << 20
        assert os.preadv(handle, [buffer], 4 << 20) == 1 << 20
        assert buffer[:] == content
    os.close(handle)


def guest_synchronous_writes():
    handle = os.open("a", os.O_CREAT | os.O_WRONLY | os.O_SYNC)
    for number in range(50):
        os.write(handle, b"%04d" % number)
    os.close(handle)
    assert len(read("a")) == 200


def guest_archive_and_compare():
    if not os.path.isdir(TREE):
        raise Skip(f"no {TREE}")
    run("tar", "-C", TREE, "-cf", "tree.tar", ".")
    os.mkdir("unpacked")
    run("tar", "-xf", "../tree.tar", cwd="unpacked")
    drop_caches()
    run("diff", "-r", TREE, "unpacked")
    found = run("find", "unpacked", "-type", "f").count(b"\n")
    assert found == sum(len(files) for _, _, files in os.walk(TREE))


def guest_git():
    os.mkdir("repository")
    shutil.copytree(TREE + "/netfilter", "repository/files")
    git = ["git", "-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "safe.directory=*"]
    run(*git, "init", "-q", cwd="repository")
    run(*git, "add", ".", cwd="repository")
    run(*git, "commit", "-q", "-m", "all", cwd="repository")
    run(*git, "fsck", "--strict", cwd="repository")
    run(*git, "clone", "-q", "--no-hardlinks", "repository", "clone")
    run("diff", "-r", "repository/files", "clone/files")
    assert run(*git, "status", "--porcelain", cwd="clone") == b""


def guest_build():
    write("Makefile", b"hello: main.o part.o\n\tcc -o $@ $^\n%.o: %.c part.h\n\tcc -c -o $@ $<\n")
    write("part.h", b"int part(int);\n")
    write("part.c", b'#include "part.h"\nint part(int x) { return x * 2; }\n')
    write("main.c", b'#include <stdio.h>\n#include "part.h"\nint main(void) { printf("%d\\n", part(21)); return 0; }\n')
    run("make")
    assert run("./hello") == b"42\n"
    assert b"up to date" in run("make")


# After: the served directory after the client has unmounted it

def after_sparse():
    info = os.stat("guest_sparse/sparse")
    assert info.st_size == (5 << 30) + 3 and info.st_blocks < 4096


def after_names():
    assert sorted(os.listdir(b"guest_names")) == sorted(ODD_NAMES)
    for name in ODD_NAMES:
        assert read(b"guest_names/" + name) == name


def after_archive():
    if not os.path.isdir(TREE):
        raise Skip(f"no {TREE}")
    run("diff", "-r", TREE, "guest_archive_and_compare/unpacked")


def after_large_file():
    content = noise(2, 1 << 20)
    written = read("guest_large_file/large")
    assert len(written) == 48 << 20
    for place in range(48):
        wanted = content[::-1] if place == 3 else content
        assert written[place << 20:(place + 1) << 20] == wanted, f"MiB {place}"


def after_mmap():
    content = bytearray(noise(1, 300_000))
    for place in range(0, len(content), 4097):
        content[place] = (content[place] + 1) % 256
    assert read("guest_mmap/a") == content


def after_special_files():
    assert os.stat("guest_special_files/char").st_rdev == os.makedev(1, 300_000)
    assert stat.S_ISSOCK(os.stat("guest_special_files/socket").st_mode)


def after_owners():
    info = os.stat("guest_umask_and_set_gid/d/users")
    assert (info.st_uid, info.st_gid) == (1000, 1234)


def after_nothing_left_behind():
    left = [name for _, directories, files in os.walk(".") for name in files + directories if name.startswith(".nfs")]
    assert not left, left
    crowd = os.listdir("crowd")
    assert all(f"{number:06}" in set(crowd) for number in (0, CROWD - 1))


def main(place, root):
    names = [name for name in globals() if name.startswith(place + "_")]
    for name in names:
        os.chdir(root)
        try:
            if place == "guest":
                os.mkdir(name)
                os.chdir(name)
            globals()[name]()
            print(f"ok {name}", flush=True)
        except Skip as why:
            print(f"skip {name}: {why}", flush=True)
        except Exception as error:
            line = traceback.extract_tb(error.__traceback__)[-1].lineno
            for frame in traceback.extract_tb(error.__traceback__):
                if frame.name == name:
                    line = frame.lineno
            text = str(error).replace("\n", " ") or "assertion"
            print(f"not ok {name}: line {line}: {type(error).__name__}: {text}", flush=True)


main(sys.argv[1], sys.argv[2])
