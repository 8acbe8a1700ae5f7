"""The site of docs/, which `make docs` builds, in a real browser. SHOTS=<folder> keeps a picture of each page."""

import http.server
import json
import os
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.house.site.browser import Browser, found
from tests.servers.absent import absent

REPOSITORY = Path(__file__).resolve().parents[3]
SITE, DOCS = REPOSITORY / ".site", REPOSITORY / "docs"
PAGES = sorted(page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md"))
#: A phone, a tablet, a laptop.
WIDTHS = (360, 800, 1280)
#: Below it text is hard to read: WCAG 2, level AA.
CONTRAST = 4.5

pytestmark = pytest.mark.live

#: Elements of the page's text that reach beyond the window, unless they lie in a box that scrolls by itself.
BEYOND = """
[...document.querySelectorAll('.md-content *')].filter(it => {
    if (it.closest('svg, .md-typeset__scrollwrap') || it.getBoundingClientRect().right <= innerWidth + 1) return false
    for (let box = it.parentElement; box.matches('.md-content *'); box = box.parentElement)
        if (/auto|scroll/.test(getComputedStyle(box).overflowX)) return false
    return it.checkVisibility()
}).map(it => it.outerHTML.slice(0, 150))
"""

IMAGES = """
Promise.all([...document.images].map(async it => {
    it.loading = 'eager'
    await it.decode().catch(() => 0)
    return it.naturalWidth ? '' : it.src
})).then(all => all.filter(Boolean))
"""

#: The lowest contrast of each kind of text with what is behind it: [contrast, kind].
CONTRASTS = """
(() => {
    const known = new Map(), context = new OffscreenCanvas(1, 1).getContext('2d', {willReadFrequently: true})
    const channels = colour => {
        if (!known.has(colour)) {
            context.clearRect(0, 0, 1, 1)
            context.fillStyle = colour
            context.fillRect(0, 0, 1, 1)
            known.set(colour, [...context.getImageData(0, 0, 1, 1).data])
        }
        return known.get(colour)
    }
    const over = (above, below) => above.slice(0, 3).map((it, i) => (it * above[3] + below[i] * (255 - above[3])) / 255)
    const behind = it => {
        const own = channels(getComputedStyle(it).backgroundColor)
        return own[3] === 255 || !it.parentElement ? own.slice(0, 3) : over(own, behind(it.parentElement))
    }
    const luminance = colour => colour.map(it => it / 255)
        .map(it => it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4)
        .reduce((sum, it, i) => sum + it * [0.2126, 0.7152, 0.0722][i], 0)
    const kinds = new Map()
    for (const it of document.querySelectorAll('.md-content :is(p, li, td, th, h1, h2, a, code, pre span)')) {
        if (!it.textContent.trim() || !it.checkVisibility() || it.matches('.headerlink')) continue
        const background = behind(it), text = over(channels(getComputedStyle(it).color), background)
        const [low, high] = [luminance(text), luminance(background)].sort((a, b) => a - b)
        const kind = `${it.localName}.${it.className}`
        kinds.set(kind, Math.min((high + 0.05) / (low + 0.05), kinds.get(kind) ?? 21))
    }
    return [...kinds].map(([kind, ratio]) => [ratio, kind])
})()
"""

#: How bright the page's background is, from 0 to 1.
BRIGHTNESS = """
(([red, green, blue]) => (Number(red) + Number(green) + Number(blue)) / 765)(
    getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g))
"""

#: The button of the header that changes the colours.
TOGGLE = "[...document.querySelectorAll('[data-md-component=palette] label')].find(it => !it.hidden)"


#: The search of the theme lives in a shadow tree.
DIALOG = "[...document.body.children].map(it => it.shadowRoot?.querySelector('dialog[open]')).find(Boolean)"


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Serves files, and logs nothing."""

    def log_message(self, format: str, *arguments: Any) -> None:
        """Log nothing."""


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """Where the site is served."""
    newest = max(file.stat().st_mtime for file in (*DOCS.rglob("*"), REPOSITORY / "zensical.toml"))
    if not (SITE / "index.html").is_file() or (SITE / "index.html").stat().st_mtime < newest:
        absent("an up-to-date site of docs/ (`make docs` builds it)")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=SITE)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="session")
def chromium(address: str) -> Iterator[Browser]:
    assert address
    with Browser(found() or absent("Chromium", "chromium")) as browser:
        yield browser


def complaints(browser: Browser, address: str) -> Iterator[str]:
    """Yield errors of the page, and requests to other servers."""
    for method, told in browser.events:
        if method == "Runtime.exceptionThrown":
            yield json.dumps(told["exceptionDetails"])
        elif method == "Runtime.consoleAPICalled" and told["type"] in {"error", "warning", "assert"}:
            yield json.dumps(told["args"])
        elif method == "Log.entryAdded" and told["entry"]["level"] in {"error", "warning"}:
            yield json.dumps(told["entry"])
        elif method == "Network.requestWillBeSent":
            url = told["request"]["url"]
            if not url.startswith((address, "data:", "blob:")):
                yield f"a request to {url}"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_each_window_in_light_and_dark(page: str, chromium: Browser, address: str) -> None:
    wrong: list[object] = []
    for scheme in ("light", "dark"):
        chromium.prefer(scheme)
        chromium.resize(WIDTHS[-1])
        chromium.open(f"{address}/{page}.html")
        assert chromium.run(IMAGES) == []
        if round(chromium.run(BRIGHTNESS)) != (scheme == "light"):
            wrong.append(f"the background isn't {scheme}")
        wrong.extend((scheme, kind, ratio) for ratio, kind in chromium.run(CONTRASTS) if ratio < CONTRAST)
        for width in WIDTHS:
            chromium.resize(width)
            wide = chromium.run("document.scrollingElement.scrollWidth")
            if wide > width:
                wrong.append(f"{wide} pixels wide in a window of {width}")
            wrong.extend((width, beyond) for beyond in chromium.run(BEYOND))
            if folder := os.environ.get("SHOTS"):
                Path(folder).mkdir(parents=True, exist_ok=True)
                chromium.picture(Path(folder) / f"{page.replace('/', '-')}-{width}-{scheme}.png")
        wrong.extend(complaints(chromium, address))
    assert not wrong, "\n".join(map(str, wrong))


@pytest.mark.parametrize("width", [WIDTHS[0], WIDTHS[-1]])
def test_the_search_finds_a_word_and_leads_to_its_page(width: int, chromium: Browser, address: str) -> None:
    chromium.resize(width)
    chromium.open(f"{address}/index.html")
    chromium.run("document.querySelector('label[for=__search]').click()")
    chromium.wait_for(f"{DIALOG}?.querySelector('input:focus')?.value === ''")
    chromium.send("Input.insertText", text="recover")
    results = chromium.wait_for(f"{DIALOG}.querySelectorAll('[role=listbox] a').length")
    assert results > 1
    with chromium.loading():
        chromium.run(f"{DIALOG}.querySelector('[role=listbox] a').click()")
    assert chromium.run("location.pathname") != "/index.html"
    assert "recover" in chromium.run("document.querySelector('.md-content').innerText")
    assert list(complaints(chromium, address)) == []


def test_a_reader_chooses_dark_and_later_the_system_again(chromium: Browser, address: str) -> None:
    chromium.prefer("light")
    chromium.resize(WIDTHS[-1])
    chromium.open(f"{address}/index.html")
    seen = []
    for _ in range(3):
        chromium.run(f"{TOGGLE}.click()")
        chromium.open(f"{address}/index.html")
        seen.append(round(chromium.run(BRIGHTNESS)))
    chromium.prefer("dark")
    chromium.open(f"{address}/index.html")
    assert [*seen, round(chromium.run(BRIGHTNESS))] == [1, 0, 1, 0]
