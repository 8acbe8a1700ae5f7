"""Each page and each act of the console in a real browser, with scripts and without. SHOTS=<folder> keeps pictures."""

import os
import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.doors.console.browsing import WIDTHS, ConsoleBrowser
from tests.doors.console.conftest import TOKENS
from tests.doors.console.sites import Site, console, program
from tests.waiting import until

pytestmark = pytest.mark.live

#: The pages, each with its status.
PAGES = {
    "": 200,
    "?sort=name&page=1": 200,
    "?q=nothing": 200,
    "?state=halted": 200,
    "?sort=x": 400,
    "tag?tag=orders": 200,
    "tag?tag=orders&number=5&span=hour": 200,
    "tag?tag=orders&number=x": 200,
    "tag?tag=halted&done=halt": 200,
    "tag?tag=visits": 200,
    "tag?tag=snow": 200,
    "tag?tag=used%20up": 200,
    "tag?tag=unused": 200,
    "tag?tag=nope": 404,
    "servers": 200,
    "history": 200,
    "history?tag=orders": 200,
    "act?what=create": 200,
    "act?what=configure&tag=orders": 200,
    "act?what=halt&tag=orders": 200,
    "act?what=recover&tag=orders": 200,
    "act?what=delete&tag=orders": 200,
    "act?what=nope": 404,
    "nope": 404,
    "login": 200,
}


@pytest.fixture(params=["scripts", "no scripts"])
def way(request: pytest.FixtureRequest, browser: ConsoleBrowser) -> Iterator[ConsoleBrowser]:
    """The browser with scripts, and without."""
    browser.resize(WIDTHS[-1])
    with browser.without_scripts() if request.param == "no scripts" else nullcontext():
        yield browser


def checked(browser: ConsoleBrowser, site: Site, page: str, status: int = 200) -> list[str]:
    """Return what is wrong with a page, in light and dark, at each width."""
    wrong: list[str] = []
    for scheme in ("light", "dark"):
        browser.prefer(scheme)
        for width in WIDTHS:
            browser.resize(width)
            browser.open(f"{site.console}/{page}")
            assert browser.status() == status, browser.text()
            wrong += [f"{scheme} {width}: the layout shifts by {each}" for each in browser.moved()]
            wrong += [f"{scheme} {each}" for each in browser.too_wide(width)]
            if width != WIDTHS[1]:
                wrong += [f"{scheme} {width}: {each}" for each in browser.violations()]
            wrong += browser.complaints(site.url, status=status)
            picture(browser, f"{re.sub('[^a-z]+', '-', page) or 'overview'}-{width}-{scheme}")
    return wrong


def picture(browser: ConsoleBrowser, name: str) -> None:
    if folder := os.environ.get("SHOTS"):
        Path(folder).mkdir(parents=True, exist_ok=True)
        browser.picture(Path(folder) / f"{name}.png")


@pytest.mark.covers("U.21")
@pytest.mark.parametrize("page", PAGES)
def test_a_page_fits_each_window_and_is_for_everybody(page: str, browser: ConsoleBrowser, filled: Site) -> None:
    if page == "servers":
        until_examined(filled)
    assert checked(browser, filled, page, PAGES[page]) == []


def until_examined(site: Site) -> None:
    """Wait until the findings of the doctor are there."""
    until(lambda: "Examined" in site.client.get("/console/servers").text, message="the findings")


@pytest.mark.parametrize(
    "page", ["", "tag?tag=orders", "servers", "history", "act?what=create", "act?what=delete&tag=orders"]
)
def test_tab_reaches_each_control_of_a_page_in_order(page: str, browser: ConsoleBrowser, filled: Site) -> None:
    for width in (WIDTHS[0], WIDTHS[-1]):
        browser.resize(width)
        browser.open(f"{filled.console}/{page}")
        expected = browser.controls()
        reached = [*dict.fromkeys(browser.reached(len(expected) + 10))]
        assert [each for each in reached if each in expected] == expected


def test_the_first_link_skips_to_the_content(browser: ConsoleBrowser, filled: Site) -> None:
    browser.open(f"{filled.console}/")
    browser.press("Tab")
    assert browser.run("document.activeElement.textContent") == "Skip to the content"
    assert browser.run("document.activeElement.getBoundingClientRect().left") >= 0
    browser.press("Enter")
    browser.wait_for("location.hash === '#main'")
    browser.press("Tab")
    assert browser.run("document.activeElement.closest('main') !== null")


@pytest.mark.covers("U.21")
class TestActs:
    def test_a_tag_is_created(self, way: ConsoleBrowser, filled: Site, request: pytest.FixtureRequest) -> None:
        tag = f"new {'of ' if 'no' in request.node.name else ''}shop"
        way.open(f"{filled.console}/")
        way.follow("a[href$='act?what=create']")
        way.fill("#tag", tag)
        way.fill("#step", "500")
        way.fill("#description", "Numbers of a shop")
        way.follow("form.settings button")
        shown = way.text()
        assert re.search(r"step\s+500", shown), shown
        with program(filled.redis, filled.store) as ids:
            assert tag not in [each.tag for each in ids.tags()]
            way.follow("form.confirm button")
            assert "The tag was created." in way.text()
            assert way.run("location.search").startswith("?tag=new")
            (made,) = [each for each in ids.tags() if each.tag == tag]
            assert (made.step, made.max) == (500, 0)
        assert way.complaints(filled.url) == []

    def test_settings_are_changed_after_old_and_new_were_shown(self, way: ConsoleBrowser, filled: Site) -> None:
        with program(filled.redis, filled.store) as ids:
            before = ids.inspect("orders").store.step
            after = before + 7
            way.open(f"{filled.console}/tag?tag=orders")
            way.follow("a[href*='what=configure']")
            way.fill("#step", str(after))
            way.follow("form.settings button")
            assert re.search(rf"step\s+{before}\s+{after}", way.text()), way.text()
            assert ids.inspect("orders").store.step == before
            way.follow("form.confirm button")
            assert "The settings were changed." in way.text()
            assert ids.inspect("orders").store.step == after
        assert way.complaints(filled.url) == []

    def test_a_wrong_value_is_named_and_kept(self, way: ConsoleBrowser, filled: Site) -> None:
        way.open(f"{filled.console}/act?what=configure&tag=orders")
        way.fill("#refill_at", "much")
        way.follow("form.settings button")
        assert "refill" in way.run("document.querySelector('[role=alert]').innerText")
        assert way.run("document.querySelector('#refill_at').value") == "much"
        assert way.violations() == []
        way.fill("#refill_at", "")
        way.fill("#step", "0")
        way.follow("form.settings button")
        way.follow("form.confirm button")
        assert way.status() == 400
        assert "step" in way.run("document.querySelector('[role=alert]').innerText")
        assert way.run("document.querySelector('#step').value") == "0"
        with program(filled.redis, filled.store) as ids:
            assert ids.inspect("orders").store.step > 0

    def test_reservations_are_stopped_and_a_recovery_allows_them(self, way: ConsoleBrowser, filled: Site) -> None:
        with program(filled.redis, filled.store) as ids:
            way.open(f"{filled.console}/tag?tag=visits")
            way.follow("a[href*='what=halt']")
            assert re.search(r"reservations\s+allowed\s+stopped", way.text())
            assert not ids.inspect("visits").store.halted
            way.follow("form.confirm button")
            assert "Reservations of the tag are stopped." in way.text()
            assert re.search(r"reservations\s+stopped", way.text()), way.text()
            assert ids.inspect("visits").store.halted
            way.follow("a[href*='what=recover']")
            assert "dry run" in way.text()
            way.fill("input[name=at_least]", "123456")
            way.follow("form.filter button")
            assert re.search(r"visits\s+[0-9,]+\s+123,456", way.text()), way.text()
            assert ids.inspect("visits").store.halted
            way.fill("#typed", "visit")
            way.follow("form.confirm button")
            assert "wrong_name" in way.text()
            assert way.violations() == []
            assert ids.inspect("visits").store.halted
            way.open(f"{filled.console}/act?what=recover&tag=visits&at_least=123456")
            way.fill("#typed", "visits")
            way.follow("form.confirm button")
            assert "The tag was recovered." in way.text()
            assert re.search(r"reservations\s+allowed", way.text()), way.text()
            seen = ids.inspect("visits").store
            assert (seen.halted, seen.max >= 123_456) == (False, True)
            ids.recover("visits")

    def test_a_tag_is_deleted_after_its_name_was_typed(self, way: ConsoleBrowser, filled: Site) -> None:
        with program(filled.redis, filled.store) as ids:
            ids.create("gone")
            way.open(f"{filled.console}/tag?tag=gone")
            way.follow("a[href*='what=delete']")
            way.fill("#typed", "Gone")
            way.follow("form.confirm button")
            assert "wrong_name" in way.text()
            assert "gone" in [each.tag for each in ids.tags()]
            way.open(f"{filled.console}/act?what=delete&tag=gone")
            way.fill("#typed", "gone")
            way.follow("form.confirm button")
            assert "The tag was deleted." in way.text()
            assert "gone" not in [each.tag for each in ids.tags()]
        assert way.complaints(filled.url) == []

    def test_an_act_without_its_typed_name_is_not_sent(self, way: ConsoleBrowser, filled: Site) -> None:
        way.open(f"{filled.console}/act?what=delete&tag=orders")
        way.click("form.confirm button")
        assert way.run("document.activeElement.id") == "typed"
        assert way.run("document.querySelector('#typed').validity.valueMissing")


class TestReading:
    def test_tags_are_searched_sorted_and_filtered(self, way: ConsoleBrowser, filled: Site) -> None:
        way.open(f"{filled.console}/")
        way.fill("input[type=search]", "CANCELLED")
        way.follow("form.filter button")
        rows = "[...document.querySelectorAll('.tags tbody th')].map(each => each.innerText)"
        assert way.run(rows) == ["orders"]
        assert way.run("document.querySelector('input[type=search]').value") == "CANCELLED"
        way.open(f"{filled.console}/")
        way.choose("select[name=sort]", "name")
        way.follow("form.filter button")
        names = way.run(rows)
        assert names == sorted(names)
        way.open(f"{filled.console}/")
        way.choose("select[name=state]", "halted")
        way.follow("form.filter button")
        assert "halted" in way.run(rows)
        assert "orders" not in way.run(rows)
        way.follow(".tags a[href$='tag=halted']")
        assert way.run("location.search") == "?tag=halted"

    def test_a_number_is_looked_up(self, way: ConsoleBrowser, filled: Site) -> None:
        way.open(f"{filled.console}/tag?tag=orders")
        way.fill("input[name=number]", "15")
        way.follow("form.filter button")
        assert "11..20" in way.text()
        assert way.run("document.querySelector('input[name=number]').value") == "15"


@pytest.fixture
def guarded_here(tmp_path: Path) -> Iterator[Site]:
    with console(tmp_path, tokens=TOKENS) as site:
        yield site


def test_an_operator_logs_in_and_out(way: ConsoleBrowser, guarded_here: Site) -> None:
    assert guarded_here.tokens is not None
    way.open(f"{guarded_here.console}/history?tag=a%26b")
    assert way.run("location.pathname") == "/console/login"
    way.fill("#token", "wrong")
    way.follow("form.login button")
    assert "the token is unknown" in way.text()
    assert way.violations() == []
    way.fill("#token", guarded_here.tokens.of["boss"])
    way.follow("form.login button")
    assert way.run("location.pathname + location.search") == "/console/history?tag=a%26b"
    assert "a&b" in way.run("document.querySelector('h1').innerText")
    assert way.run("document.cookie") == ""
    assert way.violations() == []
    way.follow("header form button")
    assert way.run("location.pathname") == "/console/login"
    way.open(f"{guarded_here.console}/")
    assert way.run("location.pathname") == "/console/login"


def test_a_token_without_a_scope_sees_a_page_that_says_so(browser: ConsoleBrowser, guarded_here: Site) -> None:
    assert guarded_here.tokens is not None
    browser.open(f"{guarded_here.console}/login")
    browser.fill("#token", guarded_here.tokens.of["some"])
    browser.follow("form.login button")
    assert browser.status() == 403
    assert "forbidden" in browser.text()
    assert browser.violations() == []
