"""The script of the console: it shows new values, keeps what a person types, and leaves a server in trouble alone."""

import re
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.doors.console.browsing import WIDTHS, ConsoleBrowser, axe
from tests.doors.console.conftest import store_in
from tests.doors.console.sites import Site, console, program
from tests.house.site.browser import found
from tests.servers.absent import absent
from tests.servers.ports import free_port
from tests.waiting import until

pytestmark = pytest.mark.live

#: The script waits a 20th of the time, and each pause is noted.
QUICK = """
window.__pauses = []
const later = setTimeout
window.setTimeout = (run, pause) => { window.__pauses.push(pause); return later(run, pause / 20) }
"""
ROW = "[...document.querySelectorAll('.tags tbody tr')].find(each => each.innerText.startsWith('orders')).innerText"
OLD = "document.getElementById('old').innerText"


@pytest.fixture(scope="module")
def quick() -> Iterator[ConsoleBrowser]:
    """A browser in which pauses are short."""
    axe()
    with ConsoleBrowser(found() or absent("Chromium", "chromium")) as opened:
        opened.watch(QUICK)
        opened.resize(WIDTHS[-1])
        yield opened


@pytest.fixture
def orders(tmp_path: Path) -> Iterator[Site]:
    """A console with the tag `orders`, on a port of its own."""
    with program("none", store_in(tmp_path)) as ids:
        ids.create("orders", order="trend", step=10)
        ids.create("visits", order="trend", step=10)
        ids.take("orders", 20)
    with again(tmp_path, free_port()) as site:
        site.read_tags("orders", "visits")
        yield site


def again(folder: Path, port: int) -> AbstractContextManager[Site]:
    return console(folder, command=("serve", "--console", "--http", f"127.0.0.1:{port}"))


def refreshed(browser: ConsoleBrowser, times: int = 2) -> None:
    """Wait until the script has loaded the page again, so often."""
    before = browser.run("window.__pauses.length")
    browser.wait_for(f"window.__pauses.length >= {before + times}")


def requests(browser: ConsoleBrowser) -> int:
    return sum(method == "Network.requestWillBeSent" for method, _ in browser.events)


def test_new_values_appear_and_what_a_person_has_typed_stays(quick: ConsoleBrowser, orders: Site) -> None:
    quick.open(f"{orders.console}/")
    quick.fill("input[type=search]", "ord")
    before = quick.run(ROW)
    with program(orders.redis, orders.store) as ids:
        ids.configure("orders", step=77)
    quick.wait_for(f"{ROW}.includes('77')")
    assert "77" not in before
    assert quick.run("document.querySelector('input[type=search]').value") == "ord"
    assert quick.run("document.activeElement.type") == "search"
    assert quick.moved() == []
    assert quick.violations() == []
    assert quick.complaints(orders.url) == []


@pytest.mark.parametrize("page", ["", "tag?tag=orders", "servers"])
def test_nothing_moves_when_a_page_is_loaded_again(page: str, quick: ConsoleBrowser, orders: Site) -> None:
    if page == "servers":
        until(lambda: "Examined" in orders.client.get("/console/servers").text, message="the findings")
    for width in WIDTHS:
        quick.resize(width)
        quick.open(f"{orders.console}/{page}")
        refreshed(quick)
        assert quick.moved() == []
        assert quick.complaints(orders.url) == []
    quick.resize(WIDTHS[-1])


def test_after_an_error_the_pauses_grow_and_the_page_says_that_it_is_old(
    quick: ConsoleBrowser, orders: Site, tmp_path: Path
) -> None:
    quick.open(f"{orders.console}/")
    refreshed(quick)
    assert set(quick.run("window.__pauses")) == {5000}
    assert orders.stop() == 0
    quick.wait_for("window.__pauses.at(-1) === 60000")
    assert [*dict.fromkeys(quick.run("window.__pauses"))] == [5000, 10_000, 20_000, 40_000, 60_000]
    assert re.fullmatch(r"This page cannot be loaded again\. Its values are those of .*[0-9].*\.", quick.run(OLD))
    assert "orders" in quick.text()
    assert quick.violations() == []
    with again(tmp_path, orders.port):
        quick.wait_for("window.__pauses.at(-1) === 5000")
        assert quick.run(OLD) == ""


def test_a_page_that_nobody_sees_asks_for_nothing(quick: ConsoleBrowser, orders: Site) -> None:
    quick.open(f"{orders.console}/")
    quick.run("Object.defineProperty(document, 'hidden', {configurable: true, get: () => true})")
    refreshed(quick)
    quick.events.clear()
    refreshed(quick, 4)
    assert requests(quick) == 0
    quick.run("Object.defineProperty(document, 'hidden', {configurable: true, get: () => false})")
    refreshed(quick, 4)
    assert requests(quick) > 0


def test_a_form_is_not_loaded_again_while_it_is_filled_in(quick: ConsoleBrowser, tmp_path: Path) -> None:
    with program("none", store_in(tmp_path)) as ids:
        ids.create("orders", order="trend")
    with console(tmp_path, "--console-changes") as site:
        quick.open(f"{site.console}/act?what=configure&tag=orders")
        quick.fill("#step", "55")
        refreshed(quick, 4)
        assert quick.run("document.querySelector('#step').value") == "55"
        assert quick.run("document.activeElement.id") == "step"
