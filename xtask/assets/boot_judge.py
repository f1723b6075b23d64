"""The judge in a booted guest: waits for the server, checks every file that was acknowledged as durable, changes some
files, and cuts the power. Every line that it writes to the port begins with a word that xtask/src/boot.rs reads."""

import json
import os
import shutil
import subprocess
import sys
import time
import traceback
import zlib

import confined

PORT = "/run/output"
MOUNT = "/mnt"
# In an emulated machine a start with a few retries takes a minute if the host is busy.
PATIENCE = 240


def run(*words, limit=60):
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=limit)
        return done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        return -1, "", "no answer within %d s" % limit


def contents(name, generation):
    line = "%s:%s\n" % (name, generation)
    size = 1000 + zlib.crc32(name.encode()) % 60000
    return (line * (size // len(line) + 1))[:size].encode()


def unit():
    names = "ActiveState,SubState,Result,Job"
    text = run("systemctl", "show", "forebay.service", "-p", names)[1]
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def settled():
    """Waits until the server serves, has failed, or systemd does not start it any more."""
    end, still = time.monotonic() + PATIENCE, 0
    while time.monotonic() < end:
        state = unit()
        if state.get("ActiveState") == "active":
            return "serving"
        idle = state.get("ActiveState") in ("failed", "inactive") and state.get("Job", "0") in ("", "0")
        late = unit_of("late.service") in ("active", "activating")
        still = still + 1 if idle and not late else 0
        if still >= 3:
            return "refused"
        time.sleep(0.5)
    return "hangs"


def unit_of(name):
    return run("systemctl", "show", name, "-p", "ActiveState", "--value")[1].strip()


def expected():
    ledger = {}
    with open("/run/ledger") as file:
        for line in file:
            if line.strip():
                name, generations = line.split()
                ledger[name] = generations.split(",")
    return ledger


def check(tell, ledger):
    """Checks that every file of the ledger has one of its permitted contents; '-' permits its absence."""
    for name, generations in ledger.items():
        try:
            with open(os.path.join(MOUNT, name), "rb") as file:
                found = file.read()
        except FileNotFoundError:
            found = None
        except OSError as error:
            tell("WRONG %s cannot be read: %s" % (name, error))
            continue
        may = [None if g == "-" else contents(name, g) for g in generations]
        if found not in may:
            what = "is not there" if found is None else "has other contents (%d bytes)" % len(found)
            tell("WRONG %s %s; it should be %s" % (name, what, generations))
    for name in os.listdir(MOUNT):
        if name not in ledger and not name.startswith(".forebay") and name != "lost+found":
            tell("WRONG %s is there, and nobody made it" % name)


def write(tell, name, generation):
    tell("TRY %s %s" % (name, generation))
    with open(os.path.join(MOUNT, name), "wb") as file:
        file.write(contents(name, generation))
        file.flush()
        os.fsync(file.fileno())
    tell("DURABLE %s %s" % (name, generation))


def change(tell, ledger, boot):
    for number in range(4):
        write(tell, "b%s-%d" % (boot, number), "1")
    # An overwritten file is first written under another name, so that it is whole in every generation.
    tell("TRY over %s" % boot)
    with open(os.path.join(MOUNT, "new"), "wb") as file:
        file.write(contents("over", boot))
        file.flush()
        os.fsync(file.fileno())
    os.rename(os.path.join(MOUNT, "new"), os.path.join(MOUNT, "over"))
    tell("DURABLE over %s" % boot)
    old = [name for name, generations in ledger.items() if name.endswith("-3") and "-" not in generations]
    for name in old[:1]:
        tell("TRY %s -" % name)
        os.unlink(os.path.join(MOUNT, name))
        tell("DURABLE %s -" % name)


def exercise():
    """Makes calls of every kind: a filter around the server must not forbid a system call that one of them needs."""
    place = os.path.join(MOUNT, "calls")
    os.mkdir(place)
    path = lambda name: os.path.join(place, name)
    with open(path("large"), "wb") as file:
        file.write(bytes(1 << 20))
        os.fsync(file.fileno())
    with open(path("large"), "rb") as file:
        file.read()
    os.truncate(path("large"), 5000)
    os.chmod(path("large"), 0o4755)
    os.chown(path("large"), 1000, 1000)
    os.utime(path("large"), (1, 2))
    os.link(path("large"), path("hard"))
    os.symlink("large", path("soft"))
    os.mkfifo(path("fifo"))
    os.mknod(path("device"), 0o600 | 0o020000, os.makedev(1, 3))
    os.rename(path("hard"), path("renamed"))
    os.statvfs(place)
    # As another user with groups, so that the server acts as that user. The ids belong to a process, so a child calls.
    os.chmod(place, 0o777)
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([2000, 3000])
            os.setgid(1000)
            os.setuid(1000)
            with open(path("joe"), "wb") as file:
                file.write(b"joe")
                os.fsync(file.fileno())
            os._exit(0)
        except OSError:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0, "a user cannot write"
    for name in os.listdir(place):
        os.unlink(path(name))
    os.rmdir(place)


def sandboxed(tell):
    """Checks that systemd confines a service as the shipped unit says: calls that the host permits fail in it."""
    program = [sys.executable, confined.__file__]
    unit = "/run/systemd/system/confined.service"
    os.makedirs(unit + ".d")
    # Not a link, which would make the name an alias of the server's.
    shutil.copy("/etc/systemd/system/forebay.service", unit)
    with open(unit + ".d/program.conf", "w") as file:
        file.write("[Service]\nType=oneshot\nRestart=no\nStateDirectory=\nExecReload=\nExecStart=\nExecStart=%s /run/inside\n" % " ".join(program))
    run("systemctl", "daemon-reload")
    code, _, error = run("systemctl", "start", "confined.service")
    if code != 0:
        tell("WRONG no service with the sandbox of the unit: " + error + run("journalctl", "-u", "confined", "-n", "20")[1])
        return
    run(*program, "/run/outside")
    for name, (expected, setting) in confined.EXPECTED.items():
        inside, outside = (dict(map(str.split, open(path))).get(name) for path in ("/run/inside", "/run/outside"))
        if inside != expected or (outside == expected) != (expected == "done"):
            tell("WRONG %s: %s ends with %s in the unit, and with %s outside" % (setting, name, inside, outside))
    tell("CONFINED %d calls tried" % len(confined.EXPECTED))


def mirror(tell):
    """Adds the SSD that the pool lost in an earlier boot, if both are present; waits until writes are cached again."""
    ssds = ["/dev/disk/by-id/virtio-ssd1", "/dev/disk/by-id/virtio-ssd2"]
    if status().get("effective_mode") == "write-back" or not all(map(os.path.exists, ssds)):
        return
    for ssd in ssds:
        # The server refuses a device that is in use.
        code, _, error = run("forebay", "pool", "add", ssd, "--force", "--state-dir", "/var/lib/forebay/main", limit=120)
        tell("ADD %s: %s" % (ssd, "done" if code == 0 else error.strip()))
    end = time.monotonic() + 60
    while status().get("effective_mode") != "write-back" and time.monotonic() < end:
        time.sleep(1)


def status():
    return json.loads(run("forebay", "status", "--json", "--state-dir", "/var/lib/forebay/main")[1] or "{}")


def serve(tell, boot):
    options = "vers=3,proto=tcp,port=2049,mountport=2049,nolock,noac,soft,timeo=300"
    code, _, error = run("mount", "-t", "nfs", "-o", options, "127.0.0.1:/", MOUNT, limit=120)
    if code != 0:
        tell("WRONG it serves and cannot be mounted: " + error.strip())
        return
    ledger = expected()
    check(tell, ledger)
    sandboxed(tell)
    mirror(tell)
    try:
        exercise()
        change(tell, ledger, boot)
    except OSError as error:
        # If every disk appeared, boot.rs counts this as a failure.
        tell("STOPPED changes fail: %s" % error)
    now = status()
    pool = now.get("pool") or {}
    tell("STATUS mode %s, %s, %s bytes dirty, sandbox %s" % (
        now.get("effective_mode"), now.get("health", {}).get("state"), pool.get("dirty_bytes"), now.get("sandbox")))
    code, events, error = run("forebay", "events", "--json", "-n", "1000", "--state-dir", "/var/lib/forebay/main")
    for line in events.splitlines():
        if '"call-refused"' in line or '"sandbox"' in line:
            tell("WRONG " + line)


def refused(tell):
    """Checks that a refusal gave its reason, and made no file below the mount point of an absent array."""
    state = unit()
    tell("STATE %s/%s %s" % (state.get("ActiveState"), state.get("SubState"), state.get("Result")))
    if not os.path.ismount("/srv/array") and os.listdir("/srv/array"):
        tell("WRONG made in the empty mount point: %s" % os.listdir("/srv/array"))


def main(tell):
    boot = os.environ.get("BOOT", open("/run/boot").read().strip())
    outcome = settled()
    tell(outcome.upper())
    if outcome == "serving":
        serve(tell, boot)
    else:
        refused(tell)
    log = run("journalctl", "-u", "forebay.service", "-o", "cat", "--no-pager", "-n", "60")[1]
    for line in log.splitlines():
        tell("LOG " + line)
    for mount in ("/srv/array", "/var/lib/forebay"):
        tell("MOUNT %s %s" % (mount, os.path.ismount(mount)))


if __name__ == "__main__":
    while not os.path.exists(PORT):
        time.sleep(0.2)
    port = open(PORT, "w")

    def tell(line):
        port.write(line.replace("\n", " ") + "\n")
        port.flush()

    try:
        main(tell)
    except BaseException:
        tell("WRONG the judge failed: " + traceback.format_exc())
    tell("END")
    # Cuts the power without a sync.
    with open("/proc/sysrq-trigger", "w") as file:
        file.write("b")
    time.sleep(60)
