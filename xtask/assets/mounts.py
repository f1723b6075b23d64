"""Checks of mounts as an administrator types them, in a guest beside its server:
`mounts.py HOST SHARE [SECURITY PROGRAMS MODULE...]`. SECURITY is `tls`, `mtls` or `krb5p`. SHARE has the keys for it, and PROGRAMS the daemon for TLS.

Every check is a function below, with the mount options in its first line; each prints `ok NAME` or `not ok NAME: WHY`.
The host kills the server and starts it again when the file `kill` appears in SHARE, and then removes the file.
"""

import contextlib
import errno
import fcntl
import mmap
import os
import re
import shutil
import subprocess
import sys
import time
import traceback

ADDRESS, SHARE, *REST = sys.argv[1:]
SECURITY, PROGRAMS = REST[:2] or ("plain", "")
MODULES = REST[2:]
HOST = ADDRESS if SECURITY == "plain" else "forebay.test"
OPTION = {"plain": None, "tls": "xprtsec=tls", "mtls": "xprtsec=mtls", "krb5p": "sec=krb5p"}[SECURITY]
CLIENT = "guest.test"
MOUNT = "/mnt"
# The calls that the reference work may take: see docs/benchmarks.md.
MOST_CALLS = 100


def run(*words):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, f"{' '.join(words)} ended with {done.returncode}: {done.stdout.decode()[-400:]}"
    return done.stdout.decode()


@contextlib.contextmanager
def mounted(at=MOUNT, *options):
    os.makedirs(at, exist_ok=True)
    protection = ("-o", OPTION) if OPTION else ()
    run("mount", "-t", "nfs", *options, *protection, f"{HOST}:/", at)
    try:
        yield at
    finally:
        os.chdir("/")
        run("umount", at)


def options_of(at):
    with open("/proc/mounts") as mounts:
        return next(line.split()[3].split(",") for line in mounts if line.split()[1] == at)


def write(path, content=b""):
    with open(path, "wb") as file:
        file.write(content)


def read(path):
    with open(path, "rb") as file:
        return file.read()


def in_child(check):
    """Runs `check` in another process and returns its process id."""
    child = os.fork()
    if child == 0:
        try:
            check()
        except BaseException:  # noqa: B902: the status tells the parent
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return child


def succeeds(child):
    _, status = os.waitpid(child, 0)
    return status == 0


def is_locked(path, lock):
    """Tries to lock in another process, without waiting."""
    def check():
        with open(path, "r+b") as file:
            try:
                lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                assert error.errno in (errno.EAGAIN, errno.EACCES), error
                os._exit(2)
    _, status = os.waitpid(in_child(check), 0)
    assert os.WEXITSTATUS(status) in (0, 2), status
    return os.WEXITSTATUS(status) == 2


def locks_of_processes_conflict(path, other):
    """Locks a file by its path, and by its path on another mount."""
    write(path, bytes(100))
    for lock in (fcntl.flock, fcntl.lockf):
        with open(path, "r+b") as file:
            lock(file, fcntl.LOCK_EX)
            assert is_locked(other, lock), lock.__name__

            def waits():
                with open(other, "r+b") as own:
                    lock(own, fcntl.LOCK_EX)
                    assert read(other)[:5] == b"first"
            child = in_child(waits)
            os.pwrite(file.fileno(), b"first", 0)
            os.fsync(file.fileno())
            lock(file, fcntl.LOCK_UN)
            assert succeeds(child), f"{lock.__name__}: the process that waited"
        assert not is_locked(other, lock), lock.__name__
    with open(path, "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX, 10, 20)
        assert is_locked(other, lambda own, how: fcntl.lockf(own, how, 1, 29))
        assert not is_locked(other, lambda own, how: fcntl.lockf(own, how, 1, 30))
        assert not is_locked(other, lambda own, how: fcntl.lockf(own, how, 20, 0))


# The checks

def plain_mount_is_4_2():
    with mounted():
        assert "vers=4.2" in options_of(MOUNT), options_of(MOUNT)
        assert not OPTION or OPTION in options_of(MOUNT), options_of(MOUNT)
        figures = os.statvfs(MOUNT)
        assert 0 < figures.f_bavail <= figures.f_blocks and figures.f_files > 0
        assert f"{HOST}:/" in run("df", MOUNT)


def programs_and_mappings():
    with mounted():
        shutil.copy("/bin/true", f"{MOUNT}/program")
        os.chmod(f"{MOUNT}/program", 0o755)
        run(f"{MOUNT}/program")
        write(f"{MOUNT}/mapped", bytes(100_000))
        with open(f"{MOUNT}/mapped", "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            memory[70_000:70_004] = b"text"
            memory.flush()
    with mounted():
        assert read(f"{MOUNT}/mapped")[70_000:70_004] == b"text"


def exclusive_creates():
    with mounted():
        os.close(os.open(f"{MOUNT}/once", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o640))
        try:
            os.open(f"{MOUNT}/once", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
            raise AssertionError("made twice")
        except FileExistsError:
            pass


def removed_while_open():
    with mounted():
        os.mkdir(f"{MOUNT}/open")
        with open(f"{MOUNT}/open/file", "w+b") as file:
            file.write(b"before")
            file.flush()
            os.unlink(f"{MOUNT}/open/file")
            file.write(b" after")
            file.seek(0)
            assert file.read() == b"before after"
        os.rmdir(f"{MOUNT}/open")


def locks():
    with mounted():
        locks_of_processes_conflict(f"{MOUNT}/locked", f"{MOUNT}/locked")


def calls():
    """Returns the number of calls of each operation on the mount."""
    with open("/proc/self/mountstats") as stats:
        own = stats.read().split(f" mounted on {MOUNT} with ")[1].split("\ndevice ")[0]
    counts = re.findall(r"^\s+([A-Z_0-9]+): (\d+)", own.split("per-op statistics")[1], re.M)
    return {name: int(count) for name, count in counts}


def calls_of_locks(file):
    """Locks and unlocks a file 20 times, and returns the number of calls that this took."""
    before = calls()
    for lock in (fcntl.flock, fcntl.lockf):
        for _ in range(10):
            lock(file, fcntl.LOCK_EX)
            lock(file, fcntl.LOCK_UN)
    after = calls()
    return sum(after[name] - before[name] for name in ("LOCK", "LOCKU", "LOCKT"))


def locks_under_a_delegation_send_nothing():
    with mounted():
        with open(f"{MOUNT}/delegated", "w+b") as first:
            assert calls_of_locks(first) == 40
            # The second open of a file gets the delegation.
            with open(f"{MOUNT}/delegated", "r+b") as second:
                assert calls_of_locks(second) == 0


def reference_work(directory):
    """The work of a program with files of its own: it makes them, and opens, reads, writes and locks them again."""
    os.mkdir(directory)
    for number in range(6):
        path = f"{directory}/file-{number}"
        write(path, bytes(20_000))
        for lock in (fcntl.flock, fcntl.lockf):
            with open(path, "r+b", buffering=0) as file:
                for record in range(4):
                    lock(file, fcntl.LOCK_EX)
                    assert len(os.pread(file.fileno(), 100, 1000 * record)) == 100
                    os.pwrite(file.fileno(), b"a record", 1000 * record)
                    lock(file, fcntl.LOCK_UN)
        assert read(path)[1000:1008] == b"a record"


def calls_of_the_reference_work():
    with mounted():
        before = calls()
        reference_work(f"{MOUNT}/work")
        after = calls()
        taken = {name: after[name] - before[name] for name in after if after[name] > before[name]}
        print(f"{sum(taken.values())} calls of the reference work:",
              ", ".join(f"{count} {name}" for name, count in sorted(taken.items())), flush=True)
        assert sum(taken.values()) <= MOST_CALLS, taken


# Places of a sparse file that have data.
PLACES = (0, 70_000_000, 99_999_999, 130_000_000)


def sparse(path, size):
    with open(path, "wb") as file:
        file.truncate(size)
        for place in PLACES:
            os.pwrite(file.fileno(), b"data at %d" % place, place)


def copy(source, target):
    with open(source, "rb") as reader, open(target, "wb") as writer:
        while os.copy_file_range(reader.fileno(), writer.fileno(), 1 << 30):
            pass


def check_copy(path, size):
    assert os.stat(path).st_size == size
    with open(path, "rb") as file:
        for place in PLACES:
            assert os.pread(file.fileno(), 30, place) == (b"data at %d" % place).ljust(30, b"\0"), place


def copies_within_the_server():
    size = 160 << 20
    with mounted():
        sparse(f"{MOUNT}/source", size)
        before = calls()
        copy(f"{MOUNT}/source", f"{MOUNT}/target")
        after = calls()
        # A synchronous copy takes at least one for each 64 MiB.
        assert after["COPY"] - before["COPY"] == 1, after["COPY"] - before["COPY"]
        assert all(after[name] == before[name] for name in ("READ", "WRITE"))
    with mounted():
        check_copy(f"{MOUNT}/target", size)


def copies_over_a_crash_of_the_server():
    size = 1 << 30
    with mounted():
        sparse(f"{MOUNT}/large", size)
        child = in_child(lambda: copy(f"{MOUNT}/large", f"{MOUNT}/larger"))
        time.sleep(0.3)
        write(f"{SHARE}/kill")
        while os.path.exists(f"{SHARE}/kill"):
            time.sleep(0.1)
        # Without a request the client would find the restart with the next renewal of its lease.
        os.statvfs(MOUNT)
        assert succeeds(child)
    with mounted():
        check_copy(f"{MOUNT}/larger", size)
        os.unlink(f"{MOUNT}/larger")


def start_lock_services():
    """Starts what a client needs to lock files of NFSv3: rpcbind, and the status monitor."""
    run("rpcbind", "-w")
    run("rpc.statd")


def locks_of_version_3():
    start_lock_services()
    with mounted(MOUNT, "-o", "vers=3"):
        assert not any(option in options_of(MOUNT) for option in ("nolock", "local_lock=all"))
        locks_of_processes_conflict(f"{MOUNT}/locked-3", f"{MOUNT}/locked-3")


def locks_of_both_versions():
    with mounted(MOUNT, "-o", "vers=3"), mounted("/mnt-4"):
        locks_of_processes_conflict(f"{MOUNT}/locked-both", "/mnt-4/locked-both")
        locks_of_processes_conflict("/mnt-4/locked-both-4", f"{MOUNT}/locked-both-4")


def locks_of_version_3_over_a_crash_of_the_server():
    with mounted(MOUNT, "-o", "vers=3"):
        write(f"{MOUNT}/kept-3", b"old")
        with open(f"{MOUNT}/kept-3", "r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            write(f"{SHARE}/kill")
            while os.path.exists(f"{SHARE}/kill"):
                time.sleep(0.1)
            # The client waits for the end of the grace period.
            assert is_locked(f"{MOUNT}/kept-3", fcntl.lockf)
        assert not is_locked(f"{MOUNT}/kept-3", fcntl.lockf)


def several_connections():
    with mounted(MOUNT, "-o", "nconnect=4"):
        for number in range(40):
            write(f"{MOUNT}/connection-{number}", b"x")
        with open("/proc/net/tcp") as table:
            # 0801 is port 2049, 01 is an established connection.
            connections = [line for line in table if line.split()[2].endswith(":0801") and line.split()[3] == "01"]
        assert len(connections) == 4, len(connections)


def files_and_locks_over_a_crash_of_the_server():
    with mounted():
        write(f"{MOUNT}/kept", b"old")
        with open(f"{MOUNT}/kept", "r+b") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            file.write(b"new")
            write(f"{SHARE}/kill")
            while os.path.exists(f"{SHARE}/kill"):
                time.sleep(0.1)
            file.write(b" and newer")
            file.flush()
            os.fsync(file.fileno())
            assert is_locked(f"{MOUNT}/kept", fcntl.lockf)
        assert not is_locked(f"{MOUNT}/kept", fcntl.lockf)
        assert read(f"{MOUNT}/kept") == b"new and newer"


def start_tls():
    """Starts the daemon that does the handshakes. It is a program of another release, with that release's loader."""
    libraries = f"{PROGRAMS}/usr/lib/x86_64-linux-gnu"
    authenticate = f"[authenticate.client]\nx509.truststore={SHARE}/ca.pem\n"
    if SECURITY == "mtls":
        authenticate += f"x509.certificate={SHARE}/{CLIENT}.pem\nx509.private_key={SHARE}/{CLIENT}.key\n"
    write("/run/tlshd.conf", f"[debug]\nloglevel=0\ntls=0\nnl=0\n{authenticate}".encode())
    subprocess.Popen([f"{libraries}/ld-linux-x86-64.so.2", "--library-path", libraries, f"{PROGRAMS}/usr/sbin/tlshd",
                      "-s", "-c", "/run/tlshd.conf"])


def start_kerberos():
    shutil.copy(f"{SHARE}/krb5.conf", "/etc/krb5.conf")
    shutil.copy(f"{SHARE}/{CLIENT}.keytab", "/etc/krb5.keytab")
    os.makedirs("/run/rpc_pipefs", exist_ok=True)
    run("mount", "-t", "rpc_pipefs", "sunrpc", "/run/rpc_pipefs")
    run("rpc.gssd", "-p", "/run/rpc_pipefs")


def the_protection_starts():
    for module in MODULES:
        run("busybox", "insmod", module)
    with open("/etc/hosts", "a") as hosts:
        hosts.write(f"{ADDRESS} {HOST}\n")
    run("hostname", CLIENT)
    start_kerberos() if SECURITY == "krb5p" else start_tls()
    # Until the daemon answers, a mount fails.
    for _ in range(60):
        with contextlib.suppress(AssertionError), mounted():
            return
        time.sleep(1)
    with mounted():
        pass


def less_protection_is_refused():
    less = {"tls": ["xprtsec=none"], "mtls": ["xprtsec=none", "xprtsec=tls"], "krb5p": ["sec=sys", "sec=krb5i"]}
    for option in less[SECURITY]:
        done = subprocess.run(["mount", "-t", "nfs", "-o", option, f"{HOST}:/", MOUNT], capture_output=True)
        if done.returncode == 0:
            names = subprocess.run(["ls", MOUNT], capture_output=True)
            run("umount", MOUNT)
            assert names.returncode != 0, option


def the_kernel_is_silent():
    log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    said = []
    with contextlib.suppress(BlockingIOError):
        while True:
            said.append(os.read(log, 8192).decode(errors="replace").split(";", 1)[-1].strip())
    words = ("nfs", "rpc", "lockd", "bug:", "warning:", "error")
    # A killed server is a server that does not answer for a while.
    known = ("not responding", "OK", "Installing knfsd", "Registered", "registered", "id_resolver", "Key type",
             # Lines of a 6.12 kernel at its start that contain "lockd" and "Error".
             "LSM: initializing", "RAS: Correctable Errors collector",
             # A timer of the emulated machine, when the host is busy.
             "MP-BIOS bug: 8254 timer")
    found = [line for line in said if any(word in line.lower() for word in words)
             and not any(word in line for word in known)]
    assert not found, found


def main():
    with_4 = [plain_mount_is_4_2, programs_and_mappings, exclusive_creates, removed_while_open, locks,
              locks_under_a_delegation_send_nothing, calls_of_the_reference_work, copies_within_the_server]
    with_3 = [locks_of_version_3, locks_of_both_versions, locks_of_version_3_over_a_crash_of_the_server]
    last = [several_connections, files_and_locks_over_a_crash_of_the_server, copies_over_a_crash_of_the_server,
            the_kernel_is_silent]
    first, between = ([], with_3) if SECURITY == "plain" else ([the_protection_starts], [less_protection_is_refused])
    for check in first + with_4 + between + last:
        try:
            check()
            print(f"ok {check.__name__}", flush=True)
        except Exception as error:
            line = traceback.extract_tb(error.__traceback__)[-1].lineno
            text = str(error).replace("\n", " ") or "assertion"
            print(f"not ok {check.__name__}: line {line}: {type(error).__name__}: {text}", flush=True)


main()
