"""Servers of NBD for `nbd_tools.py`: Forebay with a cache in write-back mode, and the servers to compare it with."""

import json
import os
import signal
import socket
import subprocess
import time

MIB = 1 << 20
SIZE = 64 * MIB
# An operation that works ends within this number of seconds.
PATIENCE = 60


class Wrong(Exception):
    """A failure that a case has found."""


def expect(true, why):
    if not true:
        raise Wrong(why)


def run(*words, status=0):
    """Runs a program to its end, and returns its output."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    said = done.stdout + done.stderr
    expect(done.returncode == status, f"{' '.join(words)} ended with {done.returncode}: {' '.join(said.split())}")
    return done.stdout


def until(what, condition, server):
    """Waits until the condition is true. A server that ends meanwhile is a failure."""
    end = time.monotonic() + PATIENCE
    while not condition():
        expect(server.process.poll() is None, f"the server ended: {server.log()}")
        expect(time.monotonic() < end, f"{what} did not happen: {server.log()}")
        time.sleep(0.02)


class Peer:
    """A server with the image `disk` in `work`, on a Unix socket and on a TCP port."""

    def __init__(self, work, size=SIZE):
        self.work = work
        self.image, self.socket = f"{work}/disk.img", f"{work}/nbd.sock"
        with open(self.image, "wb") as file:
            file.truncate(size)

    def begin(self, *words):
        with open(f"{self.work}/log", "ab") as log:
            self.process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def uris(self):
        return [f"nbd+unix:///disk?socket={self.socket}"]

    def log(self):
        with open(f"{self.work}/log", errors="replace") as log:
            return " | ".join(log.read().splitlines()[-15:])

    def connects(self):
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(self.socket) == 0

    def crash(self):
        """Kills the server, and starts it again."""
        self.process.kill()
        self.process.wait()
        self.start()

    def settle(self):
        """Brings everything that was flushed to the image."""

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(PATIENCE)
        expect(status == 0, f"the server ended with {status}: {self.log()}")


class Nbdkit(Peer):
    def start(self):
        if os.path.exists(self.socket):
            os.unlink(self.socket)
        self.begin("nbdkit", "-f", "-U", self.socket, "-e", "disk", "file", self.image)
        until("the start", self.connects, self)


class QemuNbd(Peer):
    def start(self):
        if os.path.exists(self.socket):
            os.unlink(self.socket)
        self.begin("qemu-nbd", "-t", "-e", "16", "-f", "raw", "-x", "disk", "-k", self.socket,
                   "--discard=unmap", "--allocation-depth", self.image)
        until("the start", self.connects, self)


class Forebay(Peer):
    """A server with two cache files and the volume `disk`."""

    cache, ram = "64MiB", "32MiB"

    def __init__(self, work, binary, size=SIZE):
        super().__init__(work, size)
        self.binary, self.is_new = binary, True
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]

    def words(self):
        words = ["serve", f"{self.work}/served", "--listen", "127.0.0.1:0", "--portmap=off", "--mode", "write-back",
                 "--nbd", f"127.0.0.1:{self.port}", "--nbd", self.socket, "--cache-size", self.cache, "--ram", self.ram]
        words += ["--cache", f"{self.work}/cache-a", "--cache", f"{self.work}/cache-b"]
        return [*words, "--state-dir", f"{self.work}/state"]

    def start(self):
        os.makedirs(f"{self.work}/served", exist_ok=True)
        self.begin(self.binary, *self.words())
        until("the start", self.serves, self)
        if self.is_new:
            self.ask("create", "disk", "--backing", self.image)
            self.is_new = False

    def serves(self):
        words = [self.binary, "status", "--json", "--state-dir", f"{self.work}/state"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE)
        return done.returncode == 0 and not json.loads(done.stdout).get("starting")

    def uris(self):
        return [f"nbd://127.0.0.1:{self.port}/disk", *super().uris()]

    def ask(self, *words):
        return run(self.binary, "volume", *words, "--state-dir", f"{self.work}/state")

    def settle(self):
        self.ask("flush", "disk")


SERVERS = {"nbdkit": Nbdkit, "qemu-nbd": QemuNbd}
