"""Runs nfstest_posix in a guest beside its server: `nfstest.py HOST SHARE TESTS PYTHON VERSION`. TESTS has the source,
and PYTHON the files of Python 2.7, for which it is written.

Each assertion prints `ok TEXT` or `not ok TEXT: TEST`.
"""

import os
import subprocess
import sys

HOST, _, TESTS, PYTHON, VERSION = sys.argv[1:]


def must(*words):
    subprocess.run(words, check=True)


def main():
    # The tests expect to be denied access, so they are an ordinary user's.
    must("mount", "-t", "nfs", "-o", f"vers={VERSION}", f"{HOST}:/", "/mnt")
    os.mkdir("/mnt/posix")
    os.chown("/mnt/posix", 1000, 1000)
    environment = dict(os.environ, PYTHONPATH=TESTS, PYTHONHOME=f"{PYTHON}/usr", PYTHONDONTWRITEBYTECODE="1",
                       LD_LIBRARY_PATH=f"{PYTHON}/usr/lib/x86_64-linux-gnu")
    user = ["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups"]
    words = [f"{PYTHON}/usr/bin/python2.7", "-u", f"{TESTS}/test/nfstest_posix", "--server", HOST, "--nomount",
             "--mtpoint", "/mnt/posix", "--nfsversion", VERSION, "--notty"]
    tests = subprocess.Popen(user + words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="replace", cwd="/tmp")
    results, title = 0, ""
    for line in tests.stdout:
        text = line.strip()
        if text.startswith("***"):
            title = text.strip("* ")
        elif text.startswith("PASS:"):
            results += 1
            print(f"ok {text[5:].strip()}", flush=True)
        elif text.startswith("FAIL:"):
            results += 1
            print(f"not ok {text[5:].strip()}: {title}", flush=True)
        elif text:
            print(f"# {text}", flush=True)
    status = tests.wait()
    if results == 0:
        print(f"not ok the run: it ended with {status} and without a result", flush=True)
    must("umount", "/mnt")


main()
