"""Runs nfstest_posix in a guest beside its server: `nfstest.py HOST SHARE TESTS PYTHON VERSION`. TESTS has the source,
and PYTHON the files of Python 2.7, for which it is written.

Each assertion prints `ok NUMBER TEXT` or `not ok NUMBER TEXT: TEST`.
"""

import os
import subprocess
import sys

HOST, _, TESTS, PYTHON, VERSION = sys.argv[1:]


def main():
    environment = dict(os.environ, PYTHONPATH=TESTS, PYTHONHOME=f"{PYTHON}/usr", PYTHONDONTWRITEBYTECODE="1",
                       LD_LIBRARY_PATH=f"{PYTHON}/usr/lib/x86_64-linux-gnu")
    # The client is root, so a command that runs another one takes the place of sudo.
    words = [f"{PYTHON}/usr/bin/python2.7", "-u", f"{TESTS}/test/nfstest_posix", "--server", HOST, "--export", "/",
             "--nfsversion", VERSION, "--mtpoint", "/mnt/posix", "--mtopts", "hard", "--sudo", "/usr/bin/env", "--notty"]
    tests = subprocess.Popen(words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="replace")
    number, title = 0, ""
    for line in tests.stdout:
        text = line.strip()
        if text.startswith("***"):
            title = text.strip("* ")
        elif text.startswith("PASS:"):
            number += 1
            print(f"ok {number:03} {text[5:].strip()}", flush=True)
        elif text.startswith("FAIL:"):
            number += 1
            print(f"not ok {number:03} {text[5:].strip()}: {title}", flush=True)
        elif text:
            print(f"# {text}", flush=True)
    status = tests.wait()
    if number == 0:
        print(f"not ok the run: it ended with {status} and without a result", flush=True)


main()
