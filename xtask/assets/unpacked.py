"""Runs the server of an archive and of an OCI image, each in a root directory of its own, and uses it as a client.

Arguments: the archive, and the directory of the image. No container daemon is needed: the layers are unpacked, and the
command line of the image runs with the capabilities that container runtimes give. Needs root. Prints a line for each case.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile

from watched_server import case, wait_for

# Addresses of this host in its own network: one that the image's rule admits, and one that no rule admits.
ADMITTED, STRANGER = "10.1.2.3", "192.0.2.1"
# What Docker and Podman give to root in a container.
CAPABILITIES = ["chown", "dac_override", "fowner", "fsetid", "kill", "mknod", "net_bind_service", "setfcap", "setgid", "setpcap",
                "setuid", "sys_chroot"]


def run(*words, **more):
    """Runs a program that has to succeed, and returns its output."""
    done = subprocess.run(words, capture_output=True, text=True, check=False, **more)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"
    return done.stdout


def blob(layout, digest):
    """Returns the path of a blob of an OCI layout."""
    return os.path.join(layout, "blobs", *digest.split(":"))


def read(path):
    """Returns the contents of a JSON file."""
    with open(path, encoding="utf-8") as file:
        return json.load(file)


def unpack(layout, root):
    """Unpacks the layers of an image, and returns its configuration."""
    index = read(os.path.join(layout, "index.json"))
    assert len(index["manifests"]) == 1, index
    manifest = read(blob(layout, index["manifests"][0]["digest"]))
    for layer in manifest["layers"]:
        run("tar", "--extract", "--gzip", "--file", blob(layout, layer["digest"]), "--directory", root)
    return read(blob(layout, manifest["config"]["digest"]))["config"]


class Root:
    """A root directory with the file systems that a container has, and a server in it."""

    def __init__(self):
        self.at = tempfile.mkdtemp(prefix="unpacked-")
        self.process = None

    def mount(self):
        """Mounts what every container has. A binary that is not static gets its libraries."""
        for name in ("proc", "dev", "sys", "srv", "tmp"):
            os.makedirs(os.path.join(self.at, name), exist_ok=True)
        run("mount", "-t", "proc", "proc", os.path.join(self.at, "proc"))
        run("mount", "--rbind", "/dev", os.path.join(self.at, "dev"))
        run("mount", "--rbind", "/sys", os.path.join(self.at, "sys"))
        # Clients are nobody here.
        os.chmod(os.path.join(self.at, "srv"), 0o777)
        linked = subprocess.run(["ldd", os.path.join(self.at, "usr/bin/forebay")], capture_output=True, text=True, check=False)
        for word in linked.stdout.split():
            if word.startswith("/") and os.path.exists(word):
                place = self.at + word
                os.makedirs(os.path.dirname(place), exist_ok=True)
                shutil.copy(word, place)

    def ask(self, *words):
        """Returns what a command prints in the root directory."""
        return run("chroot", self.at, *words)

    def serve(self, words):
        """Starts a server, and waits until it serves."""
        bounds = ",".join(["-all"] + [f"+{name}" for name in CAPABILITIES])
        self.process = subprocess.Popen(["setpriv", f"--bounding-set={bounds}", "--inh-caps=-all", "chroot", self.at, *words])
        wait_for("the start", self.is_up)

    def is_up(self):
        """Returns true once the server serves clients."""
        assert self.process.poll() is None, f"the server ended with {self.process.returncode}"
        try:
            status = json.loads(self.ask("/usr/bin/forebay", "status", "--json", "--state-dir", "/var/lib/forebay/main"))
        except AssertionError:
            return False
        return not status.get("starting")

    def use(self, address, export, ports=""):
        """A client copies a file to an export of the server at an address. Without ports, it asks the portmapper."""
        with tempfile.NamedTemporaryFile() as file:
            file.write(os.urandom(100_000))
            file.flush()
            # nfs-cp mounts what is before the last slash.
            run("nfs-cp", file.name, f"nfs://{address}{export}/copied{ports}", timeout=30)
            assert "copied" in run("nfs-ls", f"nfs://{address}{export}{ports}", timeout=30)
            self.ask("/usr/bin/forebay", "flush", "--wait", "--state-dir", "/var/lib/forebay/main")
            with open(os.path.join(self.at, "srv/copied"), "rb") as copied, open(file.name, "rb") as original:
                assert copied.read() == original.read()

    def stop(self):
        """Ends the server cleanly."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(30) == 0, f"the stop ended with {self.process.returncode}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for name in ("proc", "dev", "sys"):
            place = os.path.join(self.at, name)
            if os.path.ismount(place):
                run("umount", "--recursive", place)
        # Nothing of this host may be mounted below the directory any more.
        run("rm", "--recursive", "--force", "--one-file-system", self.at)


def refused(address):
    """A client at an address that no rule admits gets nothing."""
    done = subprocess.run(["nfs-ls", f"nfs://{address}/"], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode != 0, done.stdout


def check_image(layout):
    """The image serves /srv to hosts with private addresses, with nothing but its own command line."""
    with Root() as root:
        config = unpack(layout, root.at)
        assert set(config["Volumes"]) == {"/srv", "/var/lib/forebay"} and "2049/tcp" in config["ExposedPorts"], config
        root.mount()
        root.serve(config["Entrypoint"] + config["Cmd"])
        root.use(ADMITTED, "/")
        refused(STRANGER)
        root.stop()


def check_archive(archive):
    """The archive, unpacked as operations.md says, serves its example configuration."""
    with Root() as root:
        run("tar", "-C", root.at, "--strip-components", "1", "-xf", archive)
        for path in ("usr/share/man/man1/forebay.1", "usr/lib/systemd/system/forebay.service", "usr/share/doc/forebay/LICENSE-MIT"):
            assert any(os.path.exists(os.path.join(root.at, path + ending)) for ending in ("", ".gz")), f"the archive lacks {path}"
        root.mount()
        root.ask("/usr/bin/forebay", "config", "check")
        root.serve(["/usr/bin/forebay", "serve", "--config", "/etc/forebay/forebay.toml", "--state-dir", "/var/lib/forebay/main"])
        # The example listens on loopback, so no portmapper answers.
        root.use("127.0.0.1", "/data", "?version=3&nfsport=2049&mountport=2049")
        root.stop()


def main(archive, layout):
    """Runs all cases in a network and with mounts of their own."""
    if "UNSHARED" not in os.environ:
        os.execvpe("unshare", ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", sys.executable, *sys.argv],
                   {**os.environ, "UNSHARED": "1"})
    run("ip", "link", "set", "lo", "up")
    for address in (ADMITTED, STRANGER):
        run("ip", "address", "add", f"{address}/32", "dev", "lo")
    good = case("the image serves with its own command line", lambda: check_image(layout))
    good &= case("the archive serves with its example configuration", lambda: check_archive(archive))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
