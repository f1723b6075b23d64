"""Runs the Connectathon tests in a guest beside its server: `cthon.py HOST SHARE TESTS VERSION`.

Each group of tests prints `ok NAME` or `not ok NAME: WHY`, and its time.
"""

import os
import subprocess
import sys
import time

HOST, _, TESTS, VERSION = sys.argv[1:]
MOUNT = "/mnt"
GROUPS = {"basic": "-b", "general": "-g", "special": "-s", "lock": "-l"}


def run(*words, **options):
    return subprocess.run(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)


def must(*words):
    done = run(*words)
    assert done.returncode == 0, f"{' '.join(words)} ended with {done.returncode}: {done.stdout.decode()[-400:]}"


def group(name, option):
    environment = dict(os.environ, NFSTESTDIR=f"{MOUNT}/{name}")
    begun = time.monotonic()
    done = run("sh", "./runtests", option, "-t", f"{MOUNT}/{name}", cwd=TESTS, env=environment)
    took = time.monotonic() - begun
    if done.returncode == 0:
        print(f"ok {name}", flush=True)
    else:
        why = " ".join(done.stdout.decode(errors="replace").split()[-60:])
        print(f"not ok {name}: {why}", flush=True)
    print(f"{name}: {took:.0f} s", flush=True)


def main():
    if VERSION == "3":
        # The kernel's client asks for locks of NFSv3 through these.
        must("rpcbind", "-w")
        must("rpc.statd")
    must("mount", "-t", "nfs", "-o", f"vers={VERSION}", f"{HOST}:/", MOUNT)
    for name, option in GROUPS.items():
        group(name, option)
    must("umount", MOUNT)


main()
