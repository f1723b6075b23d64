"""Runs Forebay in the place of nbd-server, for tests that start their server:

    as_nbd_server.py FOREBAY -p PIDFILE -C CONFIG      the exports of the configuration, on port 10809
    as_nbd_server.py FOREBAY PORT FILE                 one export

It ends when the exports are served. The server's process is named nbd-server.
"""

import configparser
import os
import subprocess
import sys
import tempfile
import time

FOREBAY, *WORDS = sys.argv[1:]
# Seconds after which a start has failed.
PATIENCE = 30


def asked():
    """Returns the port, the exports with their files, and the file for the process id."""
    if "-C" not in WORDS:
        port, file = WORDS
        return port, {"disk": file}, None
    options = dict(zip(WORDS[::2], WORDS[1::2]))
    config = configparser.ConfigParser()
    config.read(options["-C"])
    exports = {name: config[name]["exportname"] for name in config.sections() if name != "generic"}
    return config.get("generic", "port", fallback="10809"), exports, options["-p"]


def until(what, condition):
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"{what} did not happen within {PATIENCE} s")
        time.sleep(0.05)


def runs():
    """Returns true while a former server runs. Unlike nbd-server, Forebay destages at its end."""
    return subprocess.run(["pidof", "nbd-server"], stdout=subprocess.DEVNULL).returncode == 0


def main():
    port, exports, pid_file = asked()
    until("the end of the former server", lambda: not runs())
    work = tempfile.mkdtemp(prefix="forebay-", dir="/run")
    # killall(1) knows a process by the name of its program.
    program = f"{work}/nbd-server"
    os.symlink(FOREBAY, program)
    os.makedirs(f"{work}/served")
    words = [program, "serve", f"{work}/served", "--listen", "127.0.0.1:0", "--portmap=off", "--mode", "write-back"]
    words += ["--nbd", f"127.0.0.1:{port}", "--cache-size", "128MiB", "--ram", "32MiB", "--state-dir", f"{work}/state"]
    # The guest's file system is in memory.
    words += ["--cache-in-memory"]
    words += [word for leg in "ab" for word in ("--cache", f"{work}/cache-{leg}")]
    with open(f"{work}/log", "w") as log:
        server = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True)

    def ask(*words):
        done = subprocess.run([FOREBAY, "volume", *words, "--state-dir", f"{work}/state"], capture_output=True)
        return done.returncode == 0

    until("the start", lambda: ask("list"))
    for name, file in exports.items():
        if not ask("create", name, "--backing", os.path.abspath(file)):
            sys.exit(f"no volume can be created over {file}")
    if pid_file:
        with open(pid_file, "w") as file:
            file.write(str(server.pid))


main()
