"""Runs tests of xfstests in a guest beside its server: `xfstests.py HOST SHARE TESTS VERSION MINUTES NAME...`. TESTS
has the built tests. With `nbd:PORT:MODULE,...` as the version, they run on XFS on the volumes `test` and `scratch`, with a
log of writes on the volume `log`.

Each test prints `ok NAME`, `not ok NAME: WHY` or `skip NAME: WHY`. A test that takes longer than ten minutes, and than its
share of MINUTES, is killed. After MINUTES no further test is begun. SHARE/results has the output of all tests.
"""

import os
import re
import signal
import subprocess
import sys
import threading
import time

HOST, SHARE, TESTS, VERSION, MINUTES, *NAMES = sys.argv[1:]
# With a shared cache a mount of one directory that is made read-only makes the other one read-only.
OPTIONS = f"-o vers={VERSION},nosharecache"
# With volumes: the word, the port, and the kernel's modules.
NBD = VERSION.split(":") if VERSION.startswith("nbd:") else None
USERS = {"fsgqa": 2000, "fsgqa2": 2001, "123456-fsgqa": 2002}
# Seconds.
LONGEST = max(600, int(MINUTES) * 60 // max(len(NAMES), 1))


def must(*words):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, f"{' '.join(words)} ended with {done.returncode}: {done.stdout.decode()[-400:]}"


def prepare():
    """Makes the users of the tests, and what they mount."""
    with open("/etc/passwd", "a") as users, open("/etc/shadow", "a") as secrets, open("/etc/group", "a") as groups:
        for name, number in USERS.items():
            users.write(f"{name}:x:{number}:{number}::/tmp:/bin/bash\n")
            # Without this line su(1) refuses the account.
            secrets.write(f"{name}:*:20000:0:99999:7:::\n")
            groups.write(f"{name}:x:{number}:\n")
    for name in ("test", "scratch"):
        os.makedirs(f"/run/{name}")
    os.makedirs(f"{SHARE}/results")
    settings = on_volumes() if NBD else on_nfs()
    with open("/run/xfstests.config", "w") as config:
        config.write(f"{settings}\nexport TEST_DIR=/run/test SCRATCH_MNT=/run/scratch RESULT_BASE={SHARE}/results\n")


def on_volumes():
    """Attaches the volumes, and returns the settings of the tests."""
    for module in NBD[2].split(","):
        must("insmod", module)
    for number, name in enumerate(("test", "scratch", "log")):
        must("nbd-client", HOST, NBD[1], "-N", name, "-C", "4", f"/dev/nbd{number}")
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with open(f"/sys/block/nbd{number}/size") as size:
                if int(size.read()):
                    break
            time.sleep(0.05)
    must("mkfs.xfs", "-q", "-f", "/dev/nbd0")
    # There is no udev, for which tests wait. The device mapper makes nodes, where udev would make links.
    with open("/usr/bin/udevadm", "w") as udevadm:
        udevadm.write("""#!/bin/sh
for node in /dev/mapper/*; do
    [ ! -b "$node" ] || [ -L "$node" ] || ln -sf "../dm-$((0x$(stat -c %T "$node")))" "$node"
done
""")
    return "export FSTYP=xfs TEST_DEV=/dev/nbd0 SCRATCH_DEV=/dev/nbd1 LOGWRITES_DEV=/dev/nbd2 DM_DISABLE_UDEV=1"


def on_nfs():
    """Makes the two directories of the export, and returns the settings of the tests."""
    must("mount", "-t", "nfs", "-o", f"vers={VERSION}", f"{HOST}:/", "/mnt")
    for name in ("test", "scratch"):
        os.makedirs(f"/mnt/{name}")
    must("umount", "/mnt")
    return (f"export FSTYP=nfs TEST_DEV={HOST}:/test SCRATCH_DEV={HOST}:/scratch\n"
            f"export TEST_FS_MOUNT_OPTS='{OPTIONS}' MOUNT_OPTIONS='{OPTIONS}' NFS_MOUNT_OPTIONS='{OPTIONS}'")


class Watch:
    """Kills a test that takes too long, and all tests at the end of the time."""

    def __init__(self, check):
        self.check, self.end, self.since = check, time.monotonic() + 60 * float(MINUTES), time.monotonic()
        self.is_over = False
        threading.Thread(target=self.run, daemon=True).start()

    def next(self):
        self.since = time.monotonic()

    def run(self):
        while True:
            time.sleep(2)
            now = time.monotonic()
            if now > self.end and not self.is_over:
                self.is_over = True
                # The check prints its summary, and ends after the present test.
                self.check.send_signal(signal.SIGINT)
            if now - self.since > LONGEST or now > self.end + 60:
                self.next()
                self.kill_tests()

    @staticmethod
    def kill_tests():
        """Kills the test, and then the programs that it has left on the two directories: with them, every later test
        would fail to mount."""
        for process in os.listdir("/proc"):
            try:
                with open(f"/proc/{process}/cmdline") as file:
                    line = file.read()
            except OSError:
                continue
            if re.search(r"tests/(generic|nfs)/\d+", line):
                os.kill(int(process), signal.SIGKILL)
        for directory in ("/run/scratch", "/run/test"):
            if os.path.ismount(directory):
                subprocess.run(["fuser", "-k", "-m", directory], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)


def report(name, text, more):
    if text.startswith("[not run]"):
        print(f"skip {name}: {text[9:].strip()}", flush=True)
    elif text.startswith("[") or more:
        why = " | ".join([text] + more)
        print(f"not ok {name}: {why[:1500]}", flush=True)
    else:
        print(f"ok {name}", flush=True)
        print(f"# {name}: {text}", flush=True)


def main():
    prepare()
    environment = dict(os.environ, HOST_OPTIONS="/run/xfstests.config", USER="root", LOGNAME="root")
    words = ["bash", "./check", *([] if NBD else ["-nfs"]), *NAMES]
    check = subprocess.Popen(words, cwd=TESTS, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="replace")
    watch, name, text, more = Watch(check), None, "", []
    for line in check.stdout:
        found = re.match(r"((?:generic|nfs)/\d+)\s+(?:\d+s \.\.\.\s*)?(.*)", line)
        ends = line.startswith(("Ran:", "Interrupted!"))
        if (found or ends) and name:
            report(name, text, more)
            name = None
        if found:
            watch.next()
            name, text, more = found[1], found[2].strip(), []
        elif name and line.startswith(" ") and line.strip():
            more.append(line.strip())
        elif not name:
            print(f"# {line.rstrip()}", flush=True)
    check.wait()
    if watch.is_over:
        print(f"# the time was over after {MINUTES} minutes", flush=True)


main()
