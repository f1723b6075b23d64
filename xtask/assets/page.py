"""Opens every view of the page in a real browser, clicks every action, and takes pictures.

Arguments: the binary, and a directory for the pictures. Prints a line for each case.
"""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request

from watched_server import Server, case, wait_for

VIEWS = ["overview", "pool", "clients", "events"]
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--no-first-run", "--disable-dev-shm-usage", "--hide-scrollbars", "--window-size=1280,900"]
TAB, ENTER, ESCAPE = "\ue004", "\ue007", "\ue00c"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"


class Browser:
    """Chromium, driven by WebDriver."""

    def __init__(self):
        self.profile = tempfile.mkdtemp(prefix="chromium-")
        self.driver = subprocess.Popen(["chromedriver", "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        port = None
        while port is None:
            line = self.driver.stdout.readline()
            assert line, "chromedriver ended"
            found = re.search(r"started successfully on port (\d+)", line)
            port = found and found.group(1)
        self.url = f"http://127.0.0.1:{port}/session"
        capabilities = {"browserName": "chrome", "goog:chromeOptions": {"args": [*FLAGS, f"--user-data-dir={self.profile}"]},
                        "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}
        session = self.call("", {"capabilities": {"alwaysMatch": capabilities}})
        self.url += f"/{session['sessionId']}"

    def call(self, path, body=None, method=None):
        """Sends a command of WebDriver."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=data, method=method, headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def open(self, url):
        """Opens a URL."""
        self.call("/url", {"url": url})

    def run(self, script, *arguments):
        """Runs a script in the page, and returns its result."""
        return self.call("/execute/sync", {"script": script, "args": list(arguments)})

    def click(self, selector):
        """Clicks an element as a person does: it has to be visible and in front."""
        def click_once():
            element = self.call("/element", {"using": "css selector", "value": selector})[ELEMENT]
            try:
                self.run("arguments[0].scrollIntoView({block: 'center'})", {ELEMENT: element})
                self.call(f"/element/{element}/click", {})
            except RuntimeError as error:
                # A new figure has replaced the element: it is looked up again.
                if "stale element" not in str(error):
                    raise
                return False
            return True
        wait_for(f"a click on {selector}", click_once)

    def type(self, selector, text):
        """Types into an element."""
        element = self.call("/element", {"using": "css selector", "value": selector})[ELEMENT]
        self.call(f"/element/{element}/value", {"text": text})

    def press(self, key):
        """Presses a key."""
        strokes = [{"type": "keyDown", "value": key}, {"type": "keyUp", "value": key}]
        self.call("/actions", {"actions": [{"type": "key", "id": "keyboard", "actions": strokes}]})

    def cdp(self, command, **parameters):
        """Sends a command of Chromium's own protocol."""
        return self.call("/goog/cdp/execute", {"cmd": command, "params": parameters})

    def picture(self, path):
        """Takes a picture of the whole page."""
        taken = self.cdp("Page.captureScreenshot", captureBeyondViewport=True)
        with open(path, "wb") as file:
            file.write(base64.b64decode(taken["data"]))

    def stop(self):
        """Ends the browser."""
        try:
            self.call("", method="DELETE")
        finally:
            self.driver.terminate()
            self.driver.wait()
            shutil.rmtree(self.profile, ignore_errors=True)


class Page:
    """The page of a server in a browser."""

    def __init__(self, server, browser, pictures):
        self.server, self.browser, self.pictures = server, browser, pictures

    def show(self, view):
        """Shows a view, and waits for its contents."""
        self.browser.run("location.hash = arguments[0]", view)
        wait_for(f"the view {view}", lambda: self.browser.run(
            "return document.getElementById('view').dataset.view === arguments[0]", view))

    def picture(self, name):
        """Takes a picture."""
        self.browser.picture(os.path.join(self.pictures, f"{name}.png"))

    def check_overview(self):
        """The charts have lines, live and from the history."""
        self.show("overview")
        wait_for("charts with lines", lambda: self.browser.run(
            "return document.querySelectorAll('figure.chart path.series').length >= 12 && document.querySelector('.chart path').getAttribute('d').length > 20"))
        assert self.browser.run("return document.getElementById('link').textContent") == "Live"
        spoken = self.browser.run("return document.querySelector('.chart svg[role=img]').getAttribute('aria-label')")
        assert spoken.startswith("Operations. READ: now ") and "at most" in spoken, spoken
        before = self.browser.run("return document.querySelector('.chart path').getAttribute('d')")
        wait_for("new figures", lambda: self.browser.run("return document.querySelector('.chart path').getAttribute('d')") != before)

    def check_views(self, name, width=1280):
        """Takes a picture of each view. Nothing may be wider than the screen."""
        for view in VIEWS:
            self.show(view)
            wait_for("the contents", lambda: self.browser.run("return document.getElementById('view').childElementCount > 1"))
            wide = self.browser.run("return document.documentElement.scrollWidth")
            assert wide <= width, f"{view} is {wide} pixels wide"
            self.picture(f"{name}-{view}")

    def check_looks(self):
        """All views on a screen, in the dark, on a phone, and printed."""
        self.check_views("light")
        self.browser.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
        self.check_views("dark")
        self.browser.cdp("Emulation.setDeviceMetricsOverride", width=390, height=844, deviceScaleFactor=2, mobile=True)
        self.check_views("phone", 390)
        self.browser.cdp("Emulation.clearDeviceMetricsOverride")
        self.browser.cdp("Emulation.setEmulatedMedia", media="print", features=[])
        self.check_views("print")
        self.browser.cdp("Emulation.setEmulatedMedia", media="", features=[])

    def check_keyboard(self):
        """The first tab stop skips to the content. Headings, landmarks, names and headers are there."""
        # A new document: within one, the focus stays where it was.
        self.browser.open("about:blank")
        self.browser.open(f"{self.server.base}/#pool")
        wait_for("the pool", lambda: self.browser.run("return document.querySelector('#view table') !== null"))
        self.browser.press(TAB)
        focused = self.browser.run("return document.activeElement.className")
        assert focused == "skip", f"the focus is on {focused!r}"
        faults = self.browser.run("""
            const faults = [];
            for (const one of ['header', 'nav[aria-label]', 'main', 'footer', 'h1', 'html[lang]', '[aria-live]', 'nav a[aria-current=page]'])
                if (!document.querySelector(one)) faults.push(`no ${one}`);
            for (const one of document.querySelectorAll('button')) if (!(one.textContent.trim() || one.ariaLabel)) faults.push('a button without a name');
            for (const one of document.querySelectorAll('input, select'))
                if (!one.labels.length && !one.ariaLabel) faults.push(`${one.id} has no label`);
            for (const one of document.querySelectorAll('table')) if (!one.caption || !one.querySelector('th[scope=col]')) faults.push('a table without headers');
            return faults;""")
        assert not faults, faults

    def check_curve(self):
        """The view of the pool has the miss-ratio curve: the server's sentence, and with enough requests a plot and a table."""
        self.show("pool")
        wait_for("the curve", lambda: "Reads from the cache, by its size" in self.browser.run("return document.getElementById('view').textContent"))
        points = [{"cache_bytes": size << 30, "hit_ratio": ratio, "coalescing": 1.5, "filled": size < 400}
                  for size, ratio in [(25, 0.3), (50, 0.42), (100, 0.5), (150, 0.57), (200, 0.61), (300, 0.83), (400, 0.83), (800, 0.84)]]
        advice = {"curve": {"enough": True, "cache_bytes": 200 << 30, "points": points}, "best": "Buy 100 GiB.", "facts": ["A fact."]}
        drawn = self.browser.call("/execute/async", {"args": [advice], "script": """
            const [advice, done] = arguments;
            import('/curve.js').then(({ curveParts }) => {
                const view = document.getElementById('view');
                const [plot, table] = curveParts(advice, view.clientWidth - 26);
                // A view is drawn anew each second, but not what is beside it.
                const beside = document.createElement('div');
                beside.id = 'beside';
                beside.append(plot, table);
                view.after(beside);
                document.activeElement.blur();
                done([plot.querySelector('path').getAttribute('d'), plot.querySelector('svg').getAttribute('aria-label'),
                    table.querySelectorAll('tbody tr').length, plot.textContent]);
            }, (error) => done([String(error)]));"""})
        assert drawn[0].count("L") == 7, drawn
        assert "200 GiB: 61 %" in drawn[1] and drawn[2] == 8 and "Buy 100 GiB." in drawn[3], drawn
        self.picture("curve")
        self.browser.run("document.getElementById('beside').remove()")

    def check_work(self):
        """The view of the pool shows each work in progress, with an estimate."""
        self.show("pool")
        work = [{"kind": "rebuild", "done": 3 << 30, "total": 4 << 30, "left_ns": 90e9},
                {"kind": "removal", "device": "/dev/nvme1n1", "done": 1 << 20, "total": 5 << 20, "left_ns": 4e9},
                {"kind": "scrub", "done": 20, "total": 400}, {"kind": "load", "done": 1, "total": 2, "left_ns": 7200e9}]
        drawn = self.browser.call("/execute/async", {"args": [work], "script": """
            const [work, done] = arguments;
            import('/views.js').then(async ({ pool }) => {
                const request = new XMLHttpRequest();
                request.open('GET', '/api/status', false);
                request.send();
                const status = JSON.parse(request.responseText);
                const shown = (work) => {
                    const view = document.createElement('div');
                    view.id = 'beside';
                    view.append(...pool({ status: { ...status, pool: { ...status.pool, work } }, width: 800 }).filter((one) => one));
                    return view;
                };
                const view = shown(work);
                document.getElementById('view').after(view);
                const lines = [...view.querySelectorAll('p.progress')].map((line) => [line.textContent,
                    line.querySelector('progress').labels.length, line.querySelector('progress').position]);
                done([lines, shown([]).textContent.includes('In progress')]);
            }).catch((error) => done([String(error)]));"""})
        assert drawn == [[
            ["Dirty data gets its second copy  3 GiB of 4 GiB, 1 min 30 s left", 1, 0.75],
            ["Data leaves /dev/nvme1n1  1 MiB of 5 MiB, 4 s left", 1, 0.2],
            ["Scrub  20 of 400 segments, the time left is not known yet", 1, 0.05],
            ["Clean data is loaded  1 of 2 segments, 2 h left", 1, 0.5]], False], drawn
        self.picture("work")
        self.browser.run("document.getElementById('beside').remove()")

    def rows(self, table):
        """Returns the number of rows of a table whose last but one figure is not 0."""
        return self.browser.run("""
            const rows = [...document.querySelectorAll(`[role=region][aria-label='${arguments[0]}'] tbody tr`)];
            return rows.filter((row) => row.children.length > 9 && row.children[9].textContent !== '0').length;""", table)

    def check_activity(self):
        """Everybody sees what clients do, and nobody sees the names of files but an administrator."""
        self.show("clients")
        wait_for("what clients do", lambda: self.rows("What clients do") == 1)
        assert self.rows("What happens in exports") >= 1
        assert self.browser.run("return !document.querySelector(\"[aria-label='Hot files and directories']\")")
        files = self.browser.run("""
            const request = new XMLHttpRequest();
            request.open('GET', '/api/activity', false);
            request.send();
            return JSON.parse(request.responseText).files.entries.length;""")
        assert files == 0, files

    def check_stranger(self):
        """Without an invitation the page has no actions, and the server refuses them."""
        self.show("pool")
        assert not self.browser.run("return document.querySelectorAll('#view button').length")
        status = self.browser.run("""
            const request = new XMLHttpRequest();
            request.open('POST', '/api/act', false);
            request.send('{"action":"flush"}');
            return request.status;""")
        assert status == 403, status

    def check_keys(self):
        """An administrator comes to an action, opens it and leaves it with the keyboard alone. Paper has no buttons."""
        self.browser.open(self.server.invitation())
        wait_for("the rights", lambda: self.browser.run("return document.getElementById('leave') !== null"))
        self.show("pool")
        wait_for("the actions", lambda: self.browser.run("return document.getElementById('scrub') !== null"))
        focused = "return document.activeElement.id"
        for _ in range(60):
            if self.browser.run(focused) == "scrub":
                break
            self.browser.press(TAB)
        assert self.browser.run(focused) == "scrub", "no tab stop is the action"
        assert self.browser.run("return getComputedStyle(document.activeElement).outlineStyle") != "none", "the focus cannot be seen"
        figures = "return document.getElementById('where').textContent"
        before = self.browser.run(figures)
        wait_for("new figures", lambda: self.browser.run(figures) != before)
        assert self.browser.run(focused) == "scrub", "new figures take the focus away"
        self.browser.press(ENTER)
        assert self.browser.run("return document.getElementById('confirm').open"), "Enter opens nothing"
        for _ in range(6):
            self.browser.press(TAB)
            assert self.browser.run("return document.activeElement === document.body || document.getElementById('confirm').contains(document.activeElement)")
        self.browser.press(ESCAPE)
        wait_for("the end of the question", lambda: not self.browser.run("return document.getElementById('confirm').open"))
        assert self.browser.run(focused) == "scrub", "the focus does not come back"
        self.browser.cdp("Emulation.setEmulatedMedia", media="print")
        try:
            self.check_paper()
        finally:
            self.browser.cdp("Emulation.setEmulatedMedia", media="")

    def check_paper(self):
        """Each view can be printed, without what only a screen can do."""
        for view in VIEWS:
            self.show(view)
            left = self.browser.run("return [...document.querySelectorAll('button, input, select')].filter((one) => one.checkVisibility()).map((one) => one.textContent)")
            assert not left, f"{view} is printed with {left}"
            paper = base64.b64decode(self.browser.cdp("Page.printToPDF", printBackground=False)["data"])
            assert paper.startswith(b"%PDF") and b"/Type /Page\n" in paper, f"{view} cannot be printed"

    def act(self, button, told):
        """Clicks an action, cancels it, clicks it again, and confirms it."""
        for answer in ("no", "yes"):
            self.browser.click(button)
            assert self.browser.run("return document.getElementById('confirm').open")
            if answer == "yes":
                self.picture(f"confirm-{button.split('[')[0].strip('#')}")
            self.browser.click(f"#confirm-{answer}")
        wait_for(f"the answer to {button}", lambda: told in self.browser.run("return document.getElementById('told').textContent"))

    def check_actions(self):
        """Each action does what it says, and leaves an event with who."""
        self.browser.open(self.server.invitation())
        wait_for("the rights", lambda: self.browser.run("return document.getElementById('leave') !== null"))
        self.show("pool")
        wait_for("the actions", lambda: self.browser.run("return document.getElementById('scrub') !== null"))
        self.picture("administrator-pool")
        self.show("clients")
        wait_for("hot files", lambda: self.rows("Hot files and directories") >= 2)
        self.picture("administrator-clients")
        self.show("pool")
        wait_for("the actions again", lambda: self.browser.run("return document.getElementById('scrub') !== null"))
        self.act("#flush", "The flush has begun")
        self.act("#scrub", "The scrub has begun")
        added = self.server.caches[2]
        self.browser.type("#add-path", added)
        self.act("#add", "is in use")
        wait_for("the device", lambda: any(one["path"] == added for one in self.server.status()["pool"]["devices"]))
        wait_for("its row", lambda: self.browser.run("return document.querySelectorAll('#view tbody tr').length") == 3)
        self.act(f"button[aria-label='Remove {added}']", "has begun")
        wait_for("the removal", lambda: len(self.server.status()["pool"]["devices"]) == 2)
        self.browser.run("""const mode = document.getElementById('mode'); mode.value = 'write-through';
            mode.dispatchEvent(new Event('change', {bubbles: true}))""")
        self.act("#change-mode", "The mode is write-through")
        assert self.server.status()["mode"] == "write-through"
        told = [json.loads(line) for line in self.server.ask("events", "--json").splitlines()]
        actions = [one["fields"]["action"].split()[0:2] for one in told if one["kind"] == "web-action"]
        assert [one[0] for one in actions] == ["flush", "pool", "pool", "pool", "mode"], actions
        assert all("who" in one["fields"] for one in told if one["kind"] == "web-action")
        self.show("events")
        wait_for("the events", lambda: self.browser.run("return document.body.textContent.includes('web-action')"))
        self.picture("administrator-events")
        self.browser.click("#leave")
        wait_for("the end of the rights", lambda: self.browser.run("return document.getElementById('leave') === null"))

    def check_quiet(self):
        """No fault was logged, and no request went to another host."""
        # The browser logs the refused action of the visitor.
        log = [one["message"] for one in self.browser.call("/se/log", {"type": "browser"}) if "403" not in one["message"]]
        assert not log, log
        asked = [json.loads(one["message"])["message"] for one in self.browser.call("/se/log", {"type": "performance"})]
        urls = {one["params"]["request"]["url"] for one in asked if one["method"] == "Network.requestWillBeSent"}
        others = [url for url in urls if not url.startswith((self.server.base, "data:", "chrome:", "about:"))]
        assert urls and not others, others


def main(binary, pictures):
    """Runs all cases."""
    os.makedirs(pictures, exist_ok=True)
    server = Server(binary)
    browser = None
    try:
        load = server.load(40)
        browser = Browser()
        browser.open(f"{server.base}/")
        page = Page(server, browser, pictures)
        good = case("the overview shows history and live figures", page.check_overview)
        good &= case("all views on a screen, in the dark, on a phone and printed", page.check_looks)
        good &= case("keyboard and screen reader", page.check_keyboard)
        good &= case("the miss-ratio curve", page.check_curve)
        good &= case("work in progress with its estimates", page.check_work)
        good &= case("who does how much, without names of files", page.check_activity)
        good &= case("a visitor may look only", page.check_stranger)
        good &= case("actions with the keyboard, and on paper", page.check_keys)
        good &= case("every action of an administrator", page.check_actions)
        good &= case("no fault, and no request to another host", page.check_quiet)
        load.terminate()
        load.wait()
    finally:
        if browser:
            browser.stop()
        server.stop()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
