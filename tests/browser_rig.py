"""A headless Chromium on a pipe: DevTools messages over two file descriptors, so that no package is needed for it."""

import fcntl
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

OPTIONS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run")
OPTIONS += ("--remote-debugging-pipe",)

# Far above what a start takes on a busy machine.
PATIENCE_S = 120.0


class Browser:
    """One tab. ``requests`` are the addresses it asked for, ``errors`` what it complained of."""

    def __init__(self, home: Path):
        read, self._to = os.pipe()
        self._from, write = os.pipe()
        # Chromium reads from 3 and writes to 4; out of their way first.
        ends = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (read, write)]
        self._process = subprocess.Popen(
            [CHROMIUM, *OPTIONS, f"--user-data-dir={home}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=(home / "stderr").open("w"),
            close_fds=False,  # others are not inherited in any case
            preexec_fn=lambda: [os.dup2(end, number) for number, end in zip((3, 4), ends, strict=True)],
        )
        for end in (read, write, *ends):
            os.close(end)
        self._rest, self._number, self._session = b"", 0, None
        self.requests, self.errors = [], []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method, **parameters):
        """Ask, and take note of everything that is said before the answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            heard = self._next()
            if heard.get("id") == self._number:
                assert "error" not in heard, heard["error"]
                return heard["result"]
            self._note(heard)

    def evaluate(self, expression):
        """JavaScript's value, promises awaited."""
        found = self.call(
            "Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True, userGesture=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def open(self, page: Path, *, width=1280, dark=False):
        """Load it, and wait until everything is drawn."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 700
        )
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])
        self.call("Page.navigate", url=page.as_uri())
        self.until("document.documentElement?.dataset.drawn === 'all'")

    def until(self, condition):
        deadline = time.monotonic() + PATIENCE_S
        while not self.evaluate(condition):
            assert time.monotonic() < deadline, f"never so: {condition}\n{self.errors}"
            time.sleep(0.05)

    def _next(self):
        while b"\0" not in self._rest:
            read = os.read(self._from, 1 << 20)
            assert read, "the browser went away"
            self._rest += read
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, heard):
        kind, said = heard.get("method"), heard.get("params", {})
        if kind == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif kind == "Runtime.exceptionThrown":
            self.errors.append(said["exceptionDetails"])
        elif kind == "Log.entryAdded" and said["entry"]["level"] == "error":
            self.errors.append(said["entry"])
        elif kind == "Runtime.consoleAPICalled" and said["type"] in ("error", "assert"):
            self.errors.append(said["args"])
        elif kind == "Page.javascriptDialogOpening":
            self.errors.append(said["message"])
            self.call("Page.handleJavaScriptDialog", accept=True)

    def end(self):
        self._process.kill()
        self._process.wait()
        for end in (self._to, self._from):
            os.close(end)
