"""The rig of `quota.py` and `ktls.py`: a file system with limits, a server in front of it, and processes of users."""

import contextlib
import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import time

KIB, MIB = 1 << 10, 1 << 20
# Emulation is slow, but an operation that works ends within this number of seconds.
PATIENCE = 120
PORT = 2049
SERVED, SSD = "/srv/served", "/srv/ssd"
MAKE = {"ext4": ["mkfs.ext4", "-q", "-b", "4096", "-O", "quota"], "xfs": ["mkfs.xfs", "-q"]}
OPTIONS = {"ext4": "usrquota,grpquota", "xfs": "uquota,gquota"}
# <sys/quota.h>
USER, GROUP = 0, 1
SET_QUOTA = 0x800008
LIMITS, TIME = 1, 16


class Wrong(Exception):
    """A failure that a case has found."""


def expect(true, why):
    if not true:
        raise Wrong(why)


class Backing:
    """The served file system, in an image."""

    def __init__(self, kind):
        self.device = image("served", 400 * MIB, MAKE[kind], SERVED, OPTIONS[kind])
        self.limited = set()
        self.libc = ctypes.CDLL(None, use_errno=True)

    def limit(self, who, number, hard, soft=0, until=0):
        """Sets limits in bytes; 0 means none. The grace of the soft limit ends at `until`, in seconds since 1970."""
        valid = LIMITS | (TIME if until else 0)
        limits = struct.pack("8QI4x", hard // KIB, soft // KIB, 0, 0, 0, 0, until, 0, valid)
        if self.libc.quotactl(SET_QUOTA << 8 | who, self.device.encode(), number, limits):
            raise OSError(ctypes.get_errno(), "quotactl")
        self.limited.add((who, number))

    def no_limits(self):
        for who, number in self.limited:
            self.limit(who, number, 0)


def image(name, size, make, where, options="defaults"):
    path = f"/dev/shm/{name}"
    with open(path, "wb") as file:
        file.truncate(size)
    subprocess.run([*make, path], check=True)
    losetup = ["losetup", "--find", "--show", path]
    device = subprocess.run(losetup, check=True, capture_output=True, text=True).stdout.strip()
    os.makedirs(where)
    subprocess.run(["mount", "-o", options, device, where], check=True)
    return device


class Server:
    def __init__(self, mode, binary, flags=()):
        self.mode, self.binary, self.flags = mode, binary, flags
        self.start()

    def start(self):
        self.known = 0
        command = [self.binary, "serve", SERVED, "--listen", f"127.0.0.1:{PORT}", "--squash", "none"]
        command += ["--mode", self.mode, "--state-dir", f"{SSD}/state", "--cache-size", "96M"]
        command += ["--cache", f"{SSD}/a", "--cache", f"{SSD}/b", *self.flags]
        with open("/run/log", "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + PATIENCE
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                return socket.create_connection(("127.0.0.1", PORT), PATIENCE).close()
            expect(not self.died() and time.monotonic() < end, f"the server does not listen: {self.log()}")
            time.sleep(0.05)

    def died(self):
        return self.process.poll() is not None

    def log(self):
        with open("/run/log", errors="replace") as log:
            return " | ".join(log.read().splitlines()[-15:])

    def crash(self):
        self.process.kill()
        self.process.wait()
        self.start()

    def ask(self, *words):
        """Returns the exit status and the output."""
        command = [self.binary, *words, "--state-dir", f"{SSD}/state"]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            return None, f"no answer within {PATIENCE} s"
        return done.returncode, done.stdout or done.stderr

    def events(self):
        """Returns the events since the last call."""
        events = [json.loads(line) for line in self.ask("events", "--json")[1].splitlines()]
        events = [event for event in events if event["sequence"] > self.known]
        self.known = max([self.known, *(event["sequence"] for event in events)])
        return events

    def destaged(self):
        """Checks that all acknowledged data reaches the directory without a failure."""
        status, said = self.ask("flush", "--wait")
        failed = [event["message"] for event in self.events() if event["kind"] in ("backing-failed", "backing-late")]
        expect(status == 0, f"flush ended with {status}: {' '.join(said.split())} {failed[:1]}")
        expect(not failed, f"destaging failed meanwhile: {failed[:2]}")
        status = json.loads(self.ask("status", "--json")[1])
        dirty, health = status["pool"]["dirty_bytes"], status["health"]
        expect(dirty == 0, f"{dirty} bytes are dirty after a flush")
        expect(health["state"] == "OK", f"the health is {health}")


class Running:
    """Runs a function in a process of a user; the result comes through a pipe."""

    def __init__(self, user, work, *arguments):
        read, write = os.pipe()
        self.result = os.fdopen(read)
        self.child = os.fork()
        if self.child == 0:
            status = 1
            try:
                # Ends the process even while it waits for the server.
                signal.alarm(PATIENCE)
                os.setgroups([])
                os.setgid(user)
                os.setuid(user)
                os.write(write, json.dumps(work(*arguments)).encode())
                status = 0
            except Exception as error:
                os.write(write, json.dumps(f"{type(error).__name__}: {error}").encode())
            finally:
                os._exit(status)
        os.close(write)

    def end(self):
        with self.result:
            text = self.result.read()
        status = os.waitstatus_to_exitcode(os.waitpid(self.child, 0)[1])
        expect(status != -signal.SIGALRM, "the server did not answer in time")
        expect(text, f"the user's process ended with {status}")
        result = json.loads(text)
        expect(status == 0, f"as the user: {result}")
        return result


def act(user, work, *arguments):
    return Running(user, work, *arguments).end()
