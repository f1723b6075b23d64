"""A server with a cache and load, for the scripts that look at it through metrics and its page."""

import json
import os
import shutil
import subprocess
import tempfile
import time

DEADLINE = 60


def wait_for(what, condition):
    """Waits until `condition()` is true, and returns it."""
    until = time.monotonic() + DEADLINE
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > until:
            raise TimeoutError(f"{what} did not happen within {DEADLINE} seconds")
        time.sleep(0.05)


class Server:
    """`forebay serve` in write-back mode on two cache files, with HTTP on a free port."""

    def __init__(self, binary):
        self.binary = binary
        self.directory = tempfile.mkdtemp(prefix="watched-")
        self.state = os.path.join(self.directory, "state")
        self.caches = [os.path.join(self.directory, name) for name in ("cache-a", "cache-b", "cache-c")]
        self.log = open(os.path.join(self.directory, "log"), "w+b")
        flags = [argument for cache in self.caches[:2] for argument in ("--cache", cache)]
        self.process = subprocess.Popen(
            [binary, "serve", os.path.join(self.directory, "data"), "--state-dir", self.state, "--listen", "127.0.0.1:0",
             "--http=127.0.0.1:0", "--cache-size", "64MiB", "--ram", "64MiB", "--sandbox", "strict", "--squash", "none",
             "--portmap=off", "--cache-in-memory", *flags],
            stderr=self.log, stdout=subprocess.DEVNULL)
        try:
            status = wait_for("the start of the server", self.status)
            self.port = int(status["listen"][0].rsplit(":", 1)[1])
            self.base = self.invitation().split("/enter")[0]
        except BaseException:
            self.stop()
            raise

    def ask(self, *words):
        """Returns what a verb prints."""
        done = subprocess.run([self.binary, *words, "--state-dir", self.state], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
        return done.stdout

    def status(self):
        """Returns the status of a server that serves clients; None before that."""
        if self.process.poll() is not None:
            self.log.seek(0)
            raise RuntimeError(f"the server ended: {self.log.read().decode()}")
        try:
            status = json.loads(self.ask("status", "--json"))
        except RuntimeError:
            return None
        return None if status.get("starting") else status

    def invitation(self):
        """Returns a URL that opens the page with the rights of an administrator."""
        return wait_for("the page", lambda: self._ask_or_none("web")).strip()

    def _ask_or_none(self, *words):
        try:
            return self.ask(*words)
        except RuntimeError:
            return None

    def load(self, seconds):
        """Starts a load of small reads and writes."""
        return subprocess.Popen(
            [self.binary, "bench", "run", "--url", f"nfs://127.0.0.1:{self.port}/", "mixed", "--clients", "4", "--size", "4MiB",
             "--record", "4KiB", "--seconds", str(seconds)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def stop(self):
        """Ends the server, and removes its directory."""
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def case(name, check):
    """Prints the result of a check as a line for the suites. Returns true if it passed."""
    try:
        check()
    except Exception as error:  # pylint: disable=broad-except
        print(f"not ok {name}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", flush=True)
        return False
    print(f"ok {name}", flush=True)
    return True
