"""Chromium without a screen, driven by the DevTools protocol over a pipe. No driver and no library is needed for that.

A message is JSON that ends with a null byte. Chromium reads commands from descriptor 3 and writes replies and events to
descriptor 4.
"""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from base64 import b64decode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
#: On a closed network the requests that Chromium sends on its own fail by the hundred. They are switched off.
QUIET = (
    *("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-quic", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars"),
)
_DEADLINE = 60.0


class Browser:
    """A Chromium with one page. Leaving the `with` block ends it."""

    def __init__(self, program: str, *more: str) -> None:
        """`more`: further options of Chromium."""
        self._home = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        options = ("--headless", "--remote-debugging-pipe", f"--user-data-dir={self._home.name}", *QUIET, *more)
        # Chromium's sandbox needs a user other than root, or rights that containers lack. The pages are our own.
        command = (program, *options, "--no-sandbox", "about:blank")
        self._process = subprocess.Popen(
            ["sh", "-c", 'exec "$@" 3<&0 4>&1 1>&2', "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        assert self._process.stdin
        assert self._process.stdout
        self._commands, self._replies = self._process.stdin.fileno(), self._process.stdout.fileno()
        self._unread = b""
        self._sent = 0
        self._session: dict[str, str] = {}
        #: What the page has reported so far: (method, parameters).
        self.events: list[tuple[str, dict[str, Any]]] = []

    def __enter__(self) -> Self:
        page = self.send("Target.createTarget", url="about:blank")["targetId"]
        session = self.send("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        self._session = {"sessionId": session}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()
        self._home.cleanup()

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command, and return its result. Events that arrive before it are kept in `events`."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": parameters, **self._session}
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._next_message()
            if reply.get("id") == self._sent:
                assert "error" not in reply, (method, reply["error"])
                result: dict[str, Any] = reply["result"]
                return result

    def open(self, url: str) -> None:
        """Load a page."""
        with self.loading():
            self.send("Page.navigate", url=url)

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Forget the events of the present page, and wait at the end until another page has loaded."""
        self.events.clear()
        yield
        deadline = time.monotonic() + _DEADLINE
        while not any(method == "Page.loadEventFired" for method, _ in self.events):
            assert time.monotonic() < deadline, "no page has loaded"
            self._next_message()

    def run(self, script: str) -> Any:
        """Run JavaScript in the page, and return its value. A promise is awaited."""
        done = self.send("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """Run JavaScript until its value is true, and return the value."""
        deadline = time.monotonic() + _DEADLINE
        while not (value := self.run(script)):
            assert time.monotonic() < deadline, f"never true: {script}"
            time.sleep(0.05)
        return value

    def resize(self, width: int, height: int = 900) -> None:
        """Set the size of the window, in CSS pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)

    def prefer(self, scheme: str) -> None:
        """Set what the system prefers: `light` or `dark`."""
        wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
        features = [{"name": name, "value": value} for name, value in wanted.items()]
        self.send("Emulation.setEmulatedMedia", features=features)

    def picture(self, file: Path, tallest: int = 2400) -> None:
        """Write a PNG of the page, from its top down to at most `tallest` pixels."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": min(size["height"], tallest), "scale": 1}
        taken = self.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        file.write_bytes(b64decode(taken["data"]))

    def _next_message(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._replies], [], [], _DEADLINE)
            assert ready, "Chromium doesn't answer"
            more = os.read(self._replies, 1 << 16)
            assert more, f"Chromium ended with status {self._process.wait()}"
            self._unread += more
        first, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        if "method" in message:
            self.events.append((message["method"], message["params"]))
        return message


def found() -> str | None:
    """Return the path of this machine's Chromium or Chrome."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)
