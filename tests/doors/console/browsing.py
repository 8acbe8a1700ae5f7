"""The console in a real browser: a page that clicks, types and is checked."""

import fcntl
import json
import shutil
import subprocess
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from tests.house.site.browser import Browser
from tests.servers.absent import absent, needed

#: A phone, a tablet, a laptop.
WIDTHS = (360, 800, 1280)

_PACKAGES = Path(__file__).with_name("package.json")
_CACHE = Path(__file__).resolve().parents[3] / ".languages"
_INSTALL = 300.0

#: Runs before each page: notes what moves, what the policy blocks, and what a hostile text would do.
_WATCH = """
window.__moved = []
window.__blocked = []
new PerformanceObserver(list => {
    for (const each of list.getEntries()) if (!each.hadRecentInput) window.__moved.push(
        `${each.value}: ${each.sources.map(it => it.node?.outerHTML?.slice(0, 80) || it.node?.data).join(' | ')}`)
}).observe({type: 'layout-shift', buffered: true})
addEventListener('securitypolicyviolation', it => window.__blocked.push(`${it.violatedDirective} ${it.blockedURI}`))
"""

#: Elements that are wider than the window, unless they are in a box that scrolls by itself.
_BEYOND = """
[...document.querySelectorAll('body *')].filter(it => {
    if (it.closest('svg') || it.matches('.skip, .hidden, .tags thead, .tags thead *')) return false
    if (it.getBoundingClientRect().right <= innerWidth + 1) return false
    for (let box = it.parentElement; box.matches('body *'); box = box.parentElement)
        if (/auto|scroll|hidden/.test(getComputedStyle(box).overflowX)) return false
    return it.checkVisibility()
}).map(it => it.outerHTML.slice(0, 150))
"""

_CONTROLS = "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex]"


@cache
def axe() -> str:
    """Return the source of axe-core, which npm installs once."""
    npm = needed("npm")
    folder = _CACHE / f"axe-{zlib.crc32(_PACKAGES.read_bytes()):08x}"
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes of the tests may come here at once
        if not (folder / "ready").exists():
            shutil.copy(_PACKAGES, folder)
            command = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=_INSTALL)
            if done.returncode:
                absent(f"the npm registry ({done.stderr.strip()[-500:]})")
            (folder / "ready").touch()
    return (folder / "node_modules/axe-core/axe.min.js").read_text(encoding="utf-8")


class ConsoleBrowser(Browser):
    """A browser on the console."""

    #: Whether the scripts of pages run.
    _scripts = True

    def watch(self, more: str = "") -> None:
        """Note from now on what moves and what is blocked. `more`: a script that runs before each page."""
        self.send("Page.addScriptToEvaluateOnNewDocument", source=_WATCH + more)

    @contextmanager
    def without_scripts(self) -> Iterator[None]:
        """Run no script of a page meanwhile."""
        self._run_scripts(False)
        try:
            yield
        finally:
            self._run_scripts(True)

    def _run_scripts(self, value: bool) -> None:
        self.send("Emulation.setScriptExecutionDisabled", value=not value)
        self._scripts = value

    def open(self, url: str) -> None:
        """Load a page, after the page before has ended its requests."""
        super().open("about:blank")
        super().open(url)

    # ------------------------------------------------------------------ what a person does

    def text(self) -> str:
        """Return what the page shows."""
        return str(self.run("document.body.innerText"))

    def status(self) -> int:
        """Return the status of the reply with the present page."""
        found = [
            told["response"]["status"]
            for method, told in self.events
            if method == "Network.responseReceived" and told["type"] == "Document"
        ]
        return int(found[-1])

    def press(self, key: str, times: int = 1) -> None:
        """Press a key: Tab, Enter, or a letter."""
        codes = {"Tab": 9, "Enter": 13, "Space": 32, "ArrowDown": 40}
        text = {"Enter": "\r", "Space": " "}.get(key)
        given = {"key": " " if key == "Space" else key, "code": key, "windowsVirtualKeyCode": codes[key]}
        for _ in range(times):
            self.send("Input.dispatchKeyEvent", type="keyDown", **given, **({"text": text} if text else {}))
            self.send("Input.dispatchKeyEvent", type="keyUp", **given)

    def place(self, selector: str) -> tuple[float, float]:
        """Return the middle of the first line of an element, after it was scrolled into the window."""
        found = self.run(f"""(() => {{
            const it = document.querySelector({json.dumps(selector)})
            it.scrollIntoView({{block: 'center'}})
            const box = it.getClientRects()[0]  // a link may take several lines
            return [box.x + box.width / 2, box.y + box.height / 2]
        }})()""")
        return float(found[0]), float(found[1])

    def click(self, selector: str) -> None:
        """Click an element with the mouse."""
        x, y = self.place(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def follow(self, selector: str) -> None:
        """Click an element that leads to another page, and wait for that page."""
        with self.loading():
            self.click(selector)

    def fill(self, selector: str, text: str) -> None:
        """Type into a field, in place of what it has."""
        self.click(selector)
        self.run(f"document.querySelector({json.dumps(selector)}).select()")
        self.send("Input.insertText", text=text)

    def choose(self, selector: str, value: str) -> None:
        """Choose an option of a list."""
        self.run(f"document.querySelector({json.dumps(selector)}).value = {json.dumps(value)}")

    # ------------------------------------------------------------------ what is checked

    def violations(self) -> list[str]:
        """Return what axe-core finds in the page. It needs scripts: those of the present page have not run before."""
        if not self._scripts:
            self._run_scripts(True)
            try:
                return self.violations()
            finally:
                self._run_scripts(False)
        if not self.run("Boolean(window.axe)"):
            self.run(f"{axe()}; 0")
        found = self.run("""axe.run(document, {resultTypes: ['violations']}).then(it => it.violations.map(
            each => `${each.id} (${each.impact}): ${each.nodes.map(node => node.html).join(' | ').slice(0, 400)}`))""")
        return [str(each) for each in found]

    def too_wide(self, width: int) -> list[str]:
        """Return what is wider than the window."""
        self.resize(width)
        wide = self.run("document.scrollingElement.scrollWidth")
        found = [f"{wide} pixels in a window of {width}"] if wide > width else []
        return [*found, *(f"{width}: {each}" for each in self.run(_BEYOND))]

    def moved(self) -> list[str]:
        """Return the layout shifts of the page so far: how much and what."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(0))))")
        return [str(each) for each in self.run("window.__moved")]

    def complaints(self, address: str, *, status: int = 200) -> list[str]:
        """Return errors of the page, what its policy has blocked, and requests to other servers.

        `status`: expected status of the page. Chromium logs a page with an error as such.
        """
        found = [f"blocked: {each}" for each in self.run("window.__blocked || []")]
        for method, told in self.events:
            if method == "Runtime.exceptionThrown":
                found.append(json.dumps(told["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and told["type"] in {"error", "warning", "assert"}:
                found.append(json.dumps(told["args"]))
            elif method == "Log.entryAdded" and told["entry"]["level"] in {"error", "warning"}:
                if status < 400 or f"status of {status}" not in told["entry"]["text"]:
                    found.append(json.dumps(told["entry"]))
            elif method == "Page.javascriptDialogOpening":
                found.append(f"a dialog: {told['message']}")
            elif method == "Network.requestWillBeSent" and not told["request"]["url"].startswith((address, "data:")):
                found.append(f"a request to {told['request']['url']}")
        return found

    def controls(self) -> list[str]:
        """Return all controls and links of the page that are visible, in their order."""
        return self._named(
            f"[...document.querySelectorAll({json.dumps(_CONTROLS)})].filter(it => it.checkVisibility())"
        )

    def reached(self, most: int) -> Sequence[str]:
        """Return what Tab reaches from the top of the page, in order, at most `most` elements."""
        self.run("document.activeElement.blur(); scrollTo(0, 0)")
        found: list[str] = []
        for _ in range(most):
            self.press("Tab")
            found += self._named("[document.activeElement].filter(it => it !== document.body)")
        return found

    def _named(self, elements: str) -> list[str]:
        """Return elements as text: their tag, name and place among all elements."""
        names = f"""(() => {{ const all = [...document.querySelectorAll('*')]
            return {elements}.map(
                it => `${{it.localName}} ${{it.name || it.textContent.trim()}} ${{all.indexOf(it)}}`) }})()"""
        return [str(each) for each in self.run(names)]
