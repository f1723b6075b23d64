"""Runs nfstest_posix in a guest beside its server: `nfstest.py HOST SHARE TESTS PYTHON VERSION`. TESTS has the source,
and PYTHON the files of Python 2.7, for which it is written.

Each assertion prints `ok TEXT` or `not ok TEXT: TEST`. A run that ends before its summary fails.
"""

import os
import re
import subprocess
import sys

HOST, _, TESTS, PYTHON, VERSION = sys.argv[1:]


def must(*words):
    subprocess.run(words, check=True)


def mended():
    """Returns the path of a copy of the test. For the contents of a mapping, the original looks for a NUL, also behind
    the mapping: where no memory is mapped there, it dies."""
    with open(f"{TESTS}/test/nfstest_posix") as source:
        text, count = re.subn(r"ptr\.value\[:(.+?)\]", r"ctypes.string_at(addr, \1)", source.read())
    assert count == 3, f"nfstest_posix reads {count} mappings in place of 3"
    with open("/tmp/nfstest_posix", "w") as copy:
        copy.write(text)
    return "/tmp/nfstest_posix"


def main():
    # The tests expect to be denied access, so they are an ordinary user's.
    must("mount", "-t", "nfs", "-o", f"vers={VERSION}", f"{HOST}:/", "/mnt")
    os.mkdir("/mnt/posix")
    os.chown("/mnt/posix", 1000, 1000)
    environment = dict(os.environ, PYTHONPATH=TESTS, PYTHONHOME=f"{PYTHON}/usr", PYTHONDONTWRITEBYTECODE="1",
                       LD_LIBRARY_PATH=f"{PYTHON}/usr/lib/x86_64-linux-gnu")
    user = ["setpriv", "--reuid", "1000", "--regid", "1000", "--clear-groups"]
    words = [f"{PYTHON}/usr/bin/python2.7", "-u", mended(), "--server", HOST, "--nomount",
             "--mtpoint", "/mnt/posix", "--nfsversion", VERSION, "--notty"]
    tests = subprocess.Popen(user + words, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, text=True, errors="replace", cwd="/tmp")
    is_whole, title = False, ""
    for line in tests.stdout:
        text = line.strip()
        if text.startswith("***"):
            title = text.strip("* ")
        elif text.startswith("PASS:"):
            print(f"ok {text[5:].strip()}", flush=True)
        elif text.startswith("FAIL:"):
            print(f"not ok {text[5:].strip()}: {title}", flush=True)
        elif text:
            is_whole = is_whole or re.match(r"\d+ tests \(", text) is not None
            print(f"# {text}", flush=True)
    status = tests.wait()
    if not is_whole:
        print(f"not ok the run: it ended with {status} before its summary", flush=True)
    must("umount", "/mnt")


main()
