"""The judge in a guest with systemd: `package_judge.py OLD.deb NEW.deb` installs, upgrades under a client that writes, and
removes. Each case is a function below; each prints `ok NAME` or `not ok NAME: WHY` to the port."""

import json
import os
import subprocess
import sys
import threading
import time
import traceback

OLD, NEW = sys.argv[1:]
PORT = "/dev/virtio-ports/output"
MOUNT, EXPORT, STATE = "/mnt", "/srv/array", "/var/lib/forebay"
CONFIG = """listen = ["127.0.0.1"]
cache = ["/dev/disk/by-id/virtio-ssd1", "/dev/disk/by-id/virtio-ssd2"]
ram = "64MiB"
[[export]]
path = "/srv/array"
name = "/"
[[export.client]]
networks = ["127.0.0.0/8"]
access = "rw"
squash = "none"
"""


def run(*words, status=0):
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    assert done.returncode == status, f"{' '.join(words)} ended with {done.returncode}: {done.stdout[-600:]}"
    return done.stdout


def unit(name):
    return run("systemctl", "show", "forebay.service", "-p", name, "--value").strip()


def status():
    return json.loads(run("forebay", "status", "--json", "--state-dir", STATE + "/main"))


class Writer(threading.Thread):
    """A client that writes a durable file five times a second until it is told to stop. More would only take time from
    the upgrade, because the guest has one processor."""

    def __init__(self):
        super().__init__()
        self.stop, self.files, self.error = threading.Event(), 0, None

    def run(self):
        try:
            while not self.stop.wait(0.2):
                write(f"file-{self.files}", self.files)
                self.files += 1
        except OSError as error:
            self.error = error


def contents(number):
    return f"file {number}\n".encode() * 2000


def write(name, number):
    with open(os.path.join(MOUNT, name), "wb") as file:
        file.write(contents(number))
        file.flush()
        os.fsync(file.fileno())


def check(directory, files):
    for number in range(files):
        with open(f"{directory}/file-{number}", "rb") as file:
            assert file.read() == contents(number), f"file-{number} has other contents"


def an_installation_starts_nothing_and_says_what_to_do(memory):
    # As on every machine with systemd. Otherwise the server keeps its own mount, and waits for itself when it ends.
    assert run("findmnt", "-n", "-o", "PROPAGATION", "/").strip() == "shared"
    said = run("dpkg", "-i", OLD)
    assert "enable --now forebay" in said, said
    assert unit("ActiveState") == "inactive"
    assert run("systemctl", "is-enabled", "forebay", status=1).strip() == "disabled"
    assert os.path.exists("/usr/share/man/man1/forebay-serve.1.gz")


def a_configured_server_starts_after_the_mounts_of_its_exports(memory):
    with open("/etc/forebay/forebay.toml", "w") as file:
        file.write(CONFIG)
    run("systemctl", "daemon-reload")
    assert EXPORT in unit("RequiresMountsFor").split(), unit("RequiresMountsFor")
    run("systemctl", "enable", "--now", "forebay")
    assert unit("ActiveState") == "active"
    assert status()["effective_mode"] == "write-back", status()


def an_upgrade_under_a_writing_client_loses_nothing(memory):
    run("mount", "-t", "nfs", "127.0.0.1:/", MOUNT)
    writer = memory["writer"] = Writer()
    writer.start()
    while writer.files < 20 and writer.error is None:
        time.sleep(0.1)
    assert status()["pool"]["dirty_bytes"] > 0, "nothing is dirty at the upgrade"
    before = unit("MainPID")
    run("dpkg", "-i", NEW)
    assert unit("ActiveState") == "active" and unit("MainPID") != before
    after = writer.files
    while writer.files < after + 10 and writer.error is None:
        time.sleep(0.1)
    writer.stop.set()
    writer.join()
    assert writer.error is None, writer.error
    check(MOUNT, writer.files)
    assert "+later" in run("dpkg-query", "-W", "-f", "${Version}", "forebay")
    with open("/etc/forebay/forebay.toml") as file:
        assert file.read() == CONFIG, "the upgrade changed the configuration"


def a_removal_leaves_whole_directories_and_the_state(memory):
    run("umount", MOUNT)
    said = run("dpkg", "-r", "forebay")
    assert "the state stays in /var/lib/forebay" in said, said
    check(EXPORT, memory["writer"].files)
    assert os.path.exists(STATE + "/main") and not os.path.exists("/usr/bin/forebay")


def a_purge_keeps_the_state_unless_it_is_told_to_remove_it(memory):
    run("dpkg", "-P", "forebay")
    assert os.path.exists(STATE + "/main") and not os.path.exists("/etc/forebay")
    run("dpkg", "-i", NEW)
    answer = "forebay forebay/remove-state boolean true\n"
    subprocess.run(["debconf-set-selections"], input=answer, text=True, check=True)
    run("dpkg", "-P", "forebay")
    assert not os.path.exists(STATE)


CASES = [
    an_installation_starts_nothing_and_says_what_to_do,
    a_configured_server_starts_after_the_mounts_of_its_exports,
    an_upgrade_under_a_writing_client_loses_nothing,
    a_removal_leaves_whole_directories_and_the_state,
    a_purge_keeps_the_state_unless_it_is_told_to_remove_it,
]

while not os.path.exists(PORT):
    time.sleep(0.2)
with open(PORT, "w") as port:
    memory = {}
    for case in CASES:
        name = case.__name__.replace("_", " ")
        begun = time.monotonic()
        try:
            case(memory)
            port.write(f"ok {name} ({time.monotonic() - begun:.0f} s)\n")
        except BaseException:  # noqa: B902: every failure is a result
            log = subprocess.run(["journalctl", "-u", "forebay", "-o", "cat", "-n", "20"], capture_output=True, text=True).stdout
            why = (traceback.format_exc() + log).replace("\n", " | ")
            port.write(f"not ok {name}: {why}\n")
        port.flush()
    port.write("END\n")
with open("/proc/sysrq-trigger", "w") as file:
    file.write("o")
time.sleep(60)
