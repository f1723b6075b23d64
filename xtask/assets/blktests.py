"""Runs tests of blktests in a guest: `blktests.py SERVER TESTS NBD NAME...`. Needs root.

SERVER is nbd-server, or Forebay, which the tests then get in the place of nbd-server. TESTS has the built tests. NBD is
the kernel's module, which tests load and unload by its name.

Each test prints `ok NAME`, `not ok NAME: WHY` or `skip NAME: WHY`.
"""

import glob
import os
import re
import shutil
import subprocess
import sys

SERVER, TESTS, NBD, *NAMES = sys.argv[1:]
HERE = os.path.dirname(os.path.abspath(__file__))
PROGRAMS, RESULTS = "/run/programs", "/run/results"
# A test whose server nothing reaches passes all the same.
CONNECTS = "nbd/004"


def run(*words):
    done = subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, f"{' '.join(words)} ended with {done.returncode}: {done.stdout.decode()[-400:]}"


def prepare():
    """Gives the tests what they find on a machine: modules, udev, and nbd-server in the path."""
    modules = f"/lib/modules/{os.uname().release}/kernel/drivers/block"
    os.makedirs(modules)
    shutil.copy(NBD, f"{modules}/nbd.ko")
    run("depmod")
    # User-mode Linux has none. Tests only wait by it for the end of a device.
    if os.path.isdir("/sys/kernel/debug"):
        run("mount", "-t", "debugfs", "debugfs", "/sys/kernel/debug")
    # Debian's configuration has an nbd-server that is given a port and a file run as a user who cannot read the file.
    if os.path.exists("/etc/nbd-server/config"):
        os.unlink("/etc/nbd-server/config")
    # Partitions appear as soon as udev has opened a changed disk.
    run("/usr/lib/systemd/systemd-udevd", "--daemon")
    # The root of the guest looks like that of a chroot, in which udevadm would do nothing.
    os.environ["SYSTEMD_IGNORE_CHROOT"] = "1"
    run("udevadm", "trigger")
    run("udevadm", "settle")
    os.makedirs(PROGRAMS)
    if os.path.basename(SERVER) != "nbd-server":
        with open(f"{PROGRAMS}/nbd-server", "w") as program:
            program.write(f'#!/bin/sh\nexec /usr/bin/python3 -B {HERE}/as_nbd_server.py {SERVER} "$@"\n')
        os.chmod(f"{PROGRAMS}/nbd-server", 0o755)


def connections(name):
    """Returns the number of connections of a test that nbd-client reported."""
    with open(f"{RESULTS}/nodev/{name}.full", errors="replace") as log:
        return log.read().count("Connected /dev/nbd0")


def report(name, status, more):
    if status == "passed" and name == CONNECTS:
        count = connections(name)
        print(f"# {name}: {count} connections", flush=True)
        if not count:
            status, more = "failed", ["nothing was connected"]
    why = " | ".join(more)[:1500]
    print({"passed": f"ok {name}", "failed": f"not ok {name}: {why}", "not run": f"skip {name}: {why}"}[status],
          flush=True)


def print_logs():
    for log in glob.glob(f"{RESULTS}/nodev*/**/*.full", recursive=True) + glob.glob("/run/forebay-*/log"):
        with open(log, errors="replace") as file:
            for line in file.read().splitlines()[-20:]:
                print(f"# {os.path.relpath(log, '/run')}: {line}", flush=True)


def main():
    prepare()
    environment = dict(os.environ, PATH=f"{PROGRAMS}:{os.environ['PATH']}")
    check = subprocess.run(["bash", "./check", "-o", RESULTS, *NAMES], cwd=TESTS, env=environment, text=True,
                           stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace")
    results = []
    for line in check.stdout.splitlines():
        print(f"# {line}", flush=True)
        if found := re.match(r"(\w+/\d{3}) .*\[(passed|failed|not run)\]$", line):
            results.append((found[1], found[2], []))
        elif results and line.startswith("    "):
            results[-1][2].append(line.strip())
    for result in results:
        report(*result)
    if any(status != "passed" for _, status, _ in results):
        print_logs()
    return 0 if results else 1


sys.exit(main())
