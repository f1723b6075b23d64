"""Runs Prometheus with the shipped alert rules against a server under load. Removes a cache device, and has one die.

Arguments: the binary, and the rules. Prints a line for each case.
"""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request

from watched_server import Server, case, wait_for

CONFIGURATION = """
global: {scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}
rule_files: [RULES]
scrape_configs:
  - job_name: forebay
    static_configs: [{targets: ["TARGET"]}]
"""


class Prometheus:
    """A Prometheus on a free port, with a fast configuration."""

    def __init__(self, rules, target):
        self.directory = tempfile.mkdtemp(prefix="prometheus-")
        config = os.path.join(self.directory, "prometheus.yml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(CONFIGURATION.replace("RULES", json.dumps(os.path.abspath(rules))).replace("TARGET", target))
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.log = open(os.path.join(self.directory, "log"), "wb")
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={config}", f"--storage.tsdb.path={self.directory}/data",
             f"--web.listen-address=127.0.0.1:{port}"], stdout=self.log, stderr=self.log)

    def ask(self, path, **query):
        """Returns the data of an answer; None as long as there is none."""
        try:
            with urllib.request.urlopen(f"{self.url}{path}?{urllib.parse.urlencode(query)}", timeout=5) as answer:
                return json.load(answer)["data"]
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            if self.process.poll() is not None:
                raise RuntimeError(f"prometheus ended: see {self.log.name}") from None
            return None

    def value(self, query):
        """Returns the first value of a query; None if it has none."""
        found = self.ask("/api/v1/query", query=query)
        return float(found["result"][0]["value"][1]) if found and found["result"] else None

    def firing(self, name):
        """Returns the labels of an alert that fires; None if none does."""
        alerts = (self.ask("/api/v1/alerts") or {}).get("alerts", [])
        found = [one["labels"] for one in alerts if one["labels"]["alertname"] == name and one["state"] == "firing"]
        return found[0] if found else None

    def stop(self):
        """Ends Prometheus."""
        self.process.terminate()
        self.process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)


def check_text(server):
    """Both formats pass the check of promtool, and are what was asked for."""
    with urllib.request.urlopen(f"{server.base}/metrics") as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"), answer.headers["Content-Type"]
        text = answer.read()
    for one in (text, server.ask("status", "--prometheus").encode()):
        done = subprocess.run(["promtool", "check", "metrics"], input=one, capture_output=True, check=False)
        assert done.returncode == 0 and not done.stderr, (done.stderr or done.stdout).decode()
    wanted = urllib.request.Request(f"{server.base}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    with urllib.request.urlopen(wanted) as answer:
        assert answer.headers["Content-Type"].startswith("application/openmetrics-text"), answer.headers["Content-Type"]
        assert answer.read().endswith(b"# EOF\n")


def check_names(rules, dashboard, server):
    """Each metric of the rules and of the dashboard is one that the server has."""
    with urllib.request.urlopen(f"{server.base}/metrics") as answer:
        known = set(re.findall(r"^(forebay_\w+)", answer.read().decode(), re.M))
    # An emulated disk reports no wear.
    optional = {"forebay_cache_device_life_used_ratio", "forebay_cache_device_spare_ratio", "forebay_cache_device_media_errors_total"}
    for path in (rules, dashboard):
        with open(path, encoding="utf-8") as file:
            used = set(re.findall(r"\bforebay_\w+", file.read()))
        assert used and used <= known | optional, f"{path}: {sorted(used - known - optional)}"


def check_lost(prometheus, server):
    """The alert names the device that died, and ends when another one replaces it."""
    assert not prometheus.firing("ForebayCacheDeviceLost"), "it fires before"
    # The load uses the device, so the server notices that its file is gone.
    os.remove(server.caches[0])
    labels = wait_for("the alert", lambda: prometheus.firing("ForebayCacheDeviceLost"))
    assert labels["device"] == server.caches[0] and labels["severity"] == "critical", labels
    server.ask("pool", "add", server.caches[1], "--force")
    wait_for("the end of the alert", lambda: not prometheus.firing("ForebayCacheDeviceLost"))


def main(binary, rules, dashboard):
    """Runs all cases."""
    done = subprocess.run(["promtool", "check", "rules", rules], capture_output=True, text=True, check=False)
    good = case("promtool accepts the alert rules", lambda: done.check_returncode())
    server = Server(binary)
    prometheus = Prometheus(rules, server.base.removeprefix("http://"))
    try:
        load = server.load(30)
        good &= case("metrics in both formats", lambda: check_text(server))
        good &= case("prometheus scrapes a loaded server", lambda: wait_for("a rate", lambda: (
            prometheus.value('sum(rate(forebay_procedure_duration_seconds_count{procedure="WRITE"}[2s]))') or 0) > 0))
        good &= case("rules and dashboard name metrics that exist", lambda: check_names(rules, dashboard, server))
        good &= case("no alert fires before", lambda: not prometheus.firing("ForebayCacheNotMirrored") or 1 / 0)
        server.ask("pool", "remove", server.caches[1], "--wait")
        good &= case("an alert fires when a device is removed", lambda: wait_for(
            "the alert", lambda: prometheus.firing("ForebayCacheNotMirrored")))
        server.ask("pool", "add", server.caches[2])
        good &= case("the alert ends when a device is added", lambda: wait_for(
            "the end of the alert", lambda: not prometheus.firing("ForebayCacheNotMirrored")))
        good &= case("an alert fires when a device dies", lambda: check_lost(prometheus, server))
        load.terminate()
        load.wait()
    finally:
        prometheus.stop()
        server.stop()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
