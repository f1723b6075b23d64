"""The judge in a guest with systemd: `package_judge.py OLD.deb NEW.deb MANUAL` follows the section "In ten minutes" of the
manual, upgrades under a client that writes, and removes. Each case is a function below; each prints `ok NAME` or `not ok
NAME: WHY` to the port."""

import glob
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
import traceback
import urllib.request

OLD, NEW, MANUAL = sys.argv[1:]
PORT = "/run/output"
MOUNT, EXPORT, STATE = "/mnt", "/srv/data", "/var/lib/forebay"
CONFIG = "/etc/forebay/forebay.toml"
VERSION = re.search("_(.*)-1_amd64.deb", OLD).group(1)


def run(*words, status=0, answer="", **options):
    done = subprocess.run(words, input=answer, **options, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    assert done.returncode == status, f"{' '.join(words)} ended with {done.returncode}: {done.stdout[-600:]}"
    return done.stdout


def blocks():
    """Returns the kind and the text of each block of the section."""
    with open(MANUAL, encoding="utf-8") as file:
        section = re.search(r"^## In ten minutes\n(.*?)^## ", file.read(), re.M | re.S).group(1)
    section = section.replace("VERSION", VERSION)
    return re.findall(r"^```(\w*)\n(.*?)^```$", section, re.M | re.S)


def follow(memory, beginning):
    """Runs the next block of the section as it stands there, and returns its output. The block begins as the case expects.
    Like a reader of the manual, it answers yes if apt asks whether to continue."""
    kind, text = memory["blocks"].pop(0)
    assert not kind and text.startswith(beginning), f"the manual has {text!r} in place of {beginning}"
    return run("sh", "-e", "-c", text, answer="y\n", cwd=os.path.dirname(OLD))


def edit(memory):
    """Changes the lines of the next block in the configuration, behind a `#` or not."""
    kind, text = memory["blocks"].pop(0)
    lines = text.splitlines()
    assert kind == "toml" and len(lines) == 3, f"the manual has {text!r} in place of three lines"
    with open(CONFIG, encoding="utf-8") as file:
        config = file.read()
    for line in lines:
        key = line.split(" = ")[0]
        # The first line for the key: `listen` stands under [http] as well.
        config, count = re.subn(rf"^(# )?{key} = .*$", lambda _: line, config, count=1, flags=re.M)
        assert count == 1, f"{CONFIG} has no line for {key}"
    with open(CONFIG, "w", encoding="utf-8") as file:
        file.write(config)
    memory["config"] = config


def unit(name):
    return run("systemctl", "show", "forebay.service", "-p", name, "--value").strip()


def watches(pid):
    """Returns the file systems whose changes the kernel reports to a process."""
    paths = glob.glob(f"/proc/{pid}/fdinfo/*")
    return [line for path in paths for line in read(path).splitlines() if line.startswith("fanotify sdev:")]


def status():
    return json.loads(run("forebay", "status", "--json", "--state-dir", STATE + "/main"))


class Writer(threading.Thread):
    """A client that writes a durable file five times a second until it is told to stop. More would only take time from
    the upgrade, because the guest has one processor."""

    def __init__(self, files=0):
        super().__init__()
        self.stop, self.files, self.error = threading.Event(), files, None

    def run(self):
        try:
            while not self.stop.wait(0.2):
                write(f"file-{self.files}", self.files)
                self.files += 1
        except OSError as error:
            self.error = error


class Connector(threading.Thread):
    """A client that connects again and again. systemd keeps the listening sockets, so no connection is refused."""

    def __init__(self):
        super().__init__()
        self.stop, self.made, self.error = threading.Event(), 0, None

    def run(self):
        try:
            while not self.stop.wait(0.02):
                socket.create_connection(("127.0.0.1", 2049), 120).close()
                self.made += 1
        except OSError as error:
            self.error = error


def listening():
    """Returns the inode of the socket that listens on the port of NFS."""
    lines = [line.split() for line in read("/proc/net/tcp").splitlines()[1:]]
    return [line[9] for line in lines if line[1].endswith(":0801") and line[3] == "0A"]


def contents(number):
    return f"file {number}\n".encode() * 2000


def write(name, number):
    with open(os.path.join(MOUNT, name), "wb") as file:
        file.write(contents(number))
        file.flush()
        os.fsync(file.fileno())


def read(path):
    with open(path, encoding="utf-8") as file:
        return file.read().strip()


def write_value(path, value):
    with open(path, "w", encoding="utf-8") as file:
        file.write(value)


def check(directory, files):
    for number in range(files):
        with open(f"{directory}/file-{number}", "rb") as file:
            assert file.read() == contents(number), f"file-{number} has other contents"


def an_installation_starts_nothing_and_says_what_to_do(memory):
    # As on every machine with systemd. Otherwise the server keeps its own mount, and waits for itself when it ends.
    assert run("findmnt", "-n", "-o", "PROPAGATION", "/").strip() == "shared"
    # As on a fresh host: an empty directory could be a mount point, so that the record of volumes would not be known.
    if os.path.exists(STATE):
        os.rmdir(STATE)
    memory["blocks"] = blocks()
    said = follow(memory, "apt install")
    assert "enable --now forebay" in said, said
    assert unit("ActiveState") == "inactive"
    assert run("systemctl", "is-enabled", "forebay", status=1).strip() == "disabled"
    assert os.path.exists("/usr/share/man/man1/forebay-serve.1.gz")


def a_configured_server_starts_after_the_mounts_of_its_exports(memory):
    edit(memory)
    said = follow(memory, "forebay config check")
    assert "No mistakes found" in said, said
    assert EXPORT in unit("RequiresMountsFor").split(), unit("RequiresMountsFor")
    assert unit("ActiveState") == "active"
    assert status()["effective_mode"] == "write-back", status()


def the_unit_of_a_configured_server_is_confined_and_the_server_lacks_nothing(memory):
    said = run("systemd-analyze", "security", "--no-pager", "--threshold=30", "forebay.service")
    memory["exposure"] = re.search(r"exposure level for \S+: ([\d.]+)", said).group(1)
    assert unit("ProtectHome") == "yes", unit("ProtectHome")
    assert not {"cap_sys_admin", "cap_sys_rawio"} & set(unit("CapabilityBoundingSet").split()), unit("CapabilityBoundingSet")
    # The helper has both capabilities: the kernel reports changes, and a process waits for questions about disks.
    assert watches(unit("MainPID")), "the kernel reports no changes to the server"
    helpers = run("systemctl", "list-units", "--plain", "--no-legend", "forebay-privileged@*.service").splitlines()
    assert len(helpers) == 1 and "running" in helpers[0], helpers


def a_reload_adds_what_the_unit_sees_and_refuses_what_it_hides(memory):
    def configured(path):
        export = f'[[export]]\npath = "{path}"\nname = "/more"\n[[export.client]]\nnetworks = ["127.0.0.0/8"]\n'
        os.makedirs(path, exist_ok=True)
        write_value(CONFIG, memory["config"] + "\n" + export)

    def reload(status=0):
        return run("forebay", "reload", "--state-dir", STATE + "/main", status=status)

    def exports():
        return [export["name"] for export in status()["exports"]]

    configured(EXPORT + "/more")
    reload()
    assert "/more" in exports(), exports()
    write_value(CONFIG, memory["config"])
    reload()
    os.rmdir(EXPORT + "/more")
    before = exports()
    configured("/home/more")
    said = reload(status=2)
    assert "/home/more is hidden from this server" in said and "daemon-reload" in said, said
    assert exports() == before, exports()
    said = run("forebay", "pool", "add", "/home/leg", "--state-dir", STATE + "/main", status=1)
    assert "/home/leg is hidden from this server" in said, said
    # What the sentence says: a restart would serve it.
    run("systemctl", "daemon-reload")
    assert unit("ProtectHome") == "no", unit("ProtectHome")
    write_value(CONFIG, memory["config"])
    reload()
    os.rmdir("/home/more")
    # An administrator's word counts more.
    os.makedirs("/etc/systemd/system/forebay.service.d")
    write_value("/etc/systemd/system/forebay.service.d/override.conf", "[Service]\nProtectHome=no\n")
    run("systemctl", "daemon-reload")
    assert unit("ProtectHome") == "no" and "50-homes.conf" in unit("DropInPaths"), unit("DropInPaths")
    os.remove("/etc/systemd/system/forebay.service.d/override.conf")
    os.rmdir("/etc/systemd/system/forebay.service.d")
    run("systemctl", "daemon-reload")
    assert unit("ProtectHome") == "yes", unit("ProtectHome")


def the_manual_shows_the_mount_the_page_and_the_metrics(memory):
    assert "certs" in follow(memory, "mount -t nfs")
    address = re.search(r"http://\S+", follow(memory, "forebay web")).group()
    with urllib.request.urlopen(address, timeout=60) as answer:
        page = answer.read().decode()
    assert "<title>Forebay" in page, page[:300]
    follow(memory, "cat >> /etc/prometheus/prometheus.yml")
    kind, query = memory["blocks"].pop(0)
    for _ in range(60):
        done = subprocess.run(["sh", "-c", query], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        if "=> 1" in done.stdout:
            break
        # Prometheus asks the server every 15 s.
        time.sleep(3)
    else:
        raise AssertionError(f"Prometheus knows no metric of the server: {query}: {done.stdout}")
    run("systemctl", "stop", "prometheus")
    assert not memory["blocks"], memory["blocks"]


def what_doctor_changes_is_kept_and_taken_back(memory):
    ahead, turns, service = "/sys/block/sda/queue/read_ahead_kb", "/sys/block/sda/queue/rotational", "chrony.service"

    def files():
        return glob.glob("/etc/*/90-forebay-*") + glob.glob("/etc/*/*/90-forebay-*")

    def state():
        enabled = subprocess.run(["systemctl", "is-enabled", service], capture_output=True, text=True).stdout
        active = subprocess.run(["systemctl", "is-active", service], capture_output=True, text=True).stdout
        return read(ahead), enabled.strip(), active.strip()

    write_value(ahead, "128")
    write_value(turns, "1")
    before = state()
    assert before == ("128", "disabled", "inactive") and not files(), (before, files())
    done = subprocess.run(["forebay", "doctor", "--apply"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=300)
    assert state() == ("4096", "enabled", "active"), (state(), done.stdout)
    # As at the next start of the host.
    write_value(ahead, "128")
    run("udevadm", "trigger", "--action=add", "--settle", "/sys/block/sda")
    rules = [read(path) for path in files() if path.endswith(".rules")]
    assert read(ahead) == "4096", f"a rule of udev has no effect: {rules} {done.stdout}"
    said = run("forebay", "doctor", "--undo")
    assert state() == before and not files(), (state(), files(), said)


def an_upgrade_and_a_restart_under_a_writing_client_lose_nothing_and_refuse_no_connection(memory):
    writer = memory["writer"] = Writer()
    writer.start()
    while writer.files < 20 and writer.error is None:
        time.sleep(0.1)
    assert status()["pool"]["dirty_bytes"] > 0, "nothing is dirty at the upgrade"
    before, sockets, connector = unit("MainPID"), listening(), Connector()
    connector.start()
    run("dpkg", "-i", NEW)
    upgraded = unit("MainPID")
    assert unit("ActiveState") == "active" and upgraded != before
    run("systemctl", "restart", "forebay")
    connector.stop.set()
    connector.join()
    assert unit("ActiveState") == "active" and unit("MainPID") != upgraded
    assert connector.error is None and connector.made, (connector.error, connector.made)
    assert len(sockets) == 1 and listening() == sockets, (sockets, listening())
    after = writer.files
    while writer.files < after + 10 and writer.error is None:
        time.sleep(0.1)
    writer.stop.set()
    writer.join()
    assert writer.error is None, writer.error
    check(MOUNT, writer.files)
    assert "+later" in run("dpkg-query", "-W", "-f", "${Version}", "forebay")
    with open(CONFIG, encoding="utf-8") as file:
        assert file.read() == memory["config"], "the upgrade changed the configuration"


def a_removal_under_a_writing_client_leaves_whole_directories_and_the_state(memory):
    before = memory["writer"].files
    writer = Writer(before)
    writer.start()
    while writer.files < before + 10 and writer.error is None:
        time.sleep(0.1)
    said = run("dpkg", "-r", "forebay")
    assert "the state stays in /var/lib/forebay" in said, said
    writer.stop.set()
    # The last write waits for a server. It fails when its requests are given up. The mount stays: an unmount would wait for
    # the server as well.
    while writer.is_alive():
        subprocess.run(["umount", "-f", MOUNT], stderr=subprocess.DEVNULL, timeout=60)
        writer.join(1)
    assert writer.files > before, writer.error
    check(EXPORT, writer.files)
    assert os.path.exists(STATE + "/main") and not os.path.exists("/usr/bin/forebay")
    assert run("systemctl", "list-units", "--plain", "--no-legend", "forebay*") == ""


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
    the_unit_of_a_configured_server_is_confined_and_the_server_lacks_nothing,
    a_reload_adds_what_the_unit_sees_and_refuses_what_it_hides,
    the_manual_shows_the_mount_the_page_and_the_metrics,
    what_doctor_changes_is_kept_and_taken_back,
    an_upgrade_and_a_restart_under_a_writing_client_lose_nothing_and_refuse_no_connection,
    a_removal_under_a_writing_client_leaves_whole_directories_and_the_state,
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
