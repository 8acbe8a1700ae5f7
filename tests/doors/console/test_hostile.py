"""Texts from outside, in each place where the console shows them: none becomes a part of the page."""

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
import redis as redis_py

from issuer.care.chronicle import Act, Happening, Process
from issuer.doors.console.words import inline
from issuer.gateway.keys import chronicle_key
from issuer_persistence.records import now_ms
from tests.doors.console.browsing import WIDTHS, ConsoleBrowser
from tests.doors.console.conftest import store_in
from tests.doors.console.sites import Site, console, program
from tests.servers.redis import RedisServer

pytestmark = pytest.mark.live

IMAGE = "<img src=x onerror=alert(1)>"
SCRIPT = "\"><script>alert(2)</script>'"
LINK = "javascript:alert(3)"
TEMPLATE = "{{ 7*7 }}{% if 1 %}${7*7}`<b>`"
BREAKING = "</title></textarea></svg></script><svg onload=alert(4)>"
TEXTS = (IMAGE, SCRIPT, LINK, TEMPLATE, BREAKING)
ALL = " ".join(TEXTS)

#: Places on pages of what a visitor sends himself.
SENT = (
    *("?q={}", "?state={}", "?sort={}", "?page={}", "?done={}", "?unknown={}", "tag?tag={}", "history?tag={}"),
    *("tag?tag=orders&number={}", "tag?tag=orders&span={}", "tag?tag=orders&done={}", "tag.json?tag={}"),
    *("act?what={}&tag=orders", "act?what=halt&tag={}", "act?what=create&tag={}", "act?what=create&description={}"),
    *("act?what=create&sent=1&tag={}", "act?what=create&sent=1&tag=a&description={}"),
    *("act?what=configure&tag=orders&sent=1&step={}", "act?what=configure&tag=orders&sent=1&target={}"),
    *("act?what=recover&tag=orders&at_least={}", "act?what=recover&tag=orders&typed={}", "login?then={}", "{}"),
    *("nope?{}", "login?then=/console/%3F{}"),
)


@pytest.fixture(scope="module")
def hostile(module_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A console over a Redis and a store with hostile texts wherever others can write them."""
    folder = tmp_path_factory.mktemp("hostile")
    store = store_in(folder)
    with program(module_redis.url, store) as ids:
        ids.create("orders", step=10)
        for text in TEXTS:
            ids.create(text, step=10, description=text)
            ids.take(text, 30)
        ids.create("damaged", step=10)
        ids.next("damaged")
    with closing(sqlite3.connect(folder / "ids.db")) as database, database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        database.execute("UPDATE segments SET host = ?, reason = ?, application = ?", (ALL, ALL, ALL))
    with module_redis.client() as client:
        client.hset("issuer:{damaged}", "cur", IMAGE)
        client.hset("issuer:{orders}", "born", ALL)
        lines(client)
    with console(folder, "--console-changes", redis=module_redis.url, store=store) as site:
        site.read_tags("orders")
        yield site


def lines(client: redis_py.Redis) -> None:
    """Write lines of a chronicle as a hostile program would."""
    now, text = now_ms(), ALL[:300]
    happening = Happening(now, ALL, TEXTS, 2, text, ALL, 7, ALL)
    act = Act(now, ALL, IMAGE, ALL, ALL, ALL)
    process = Process(ALL, 7, ALL, ALL, now, now, 1, 1, 1, 1, text, ALL)
    for key, record in ((chronicle_key("issuer", "events"), happening), (chronicle_key("issuer", "acts"), act)):
        late = json.dumps(asdict(record) | {"time": 2**63 - 1})
        client.rpush(key, json.dumps(asdict(record)), late, "junk", "{", "[]", "null", b"\xff\xfe<img>")
    client.hset(chronicle_key("issuer", "processes"), ALL, json.dumps(asdict(process)))


class Elements(HTMLParser):
    """The elements of a page, and whether one has an attribute that runs a script or loads from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.wrong: list[str] = []
        self.scripts = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.scripts += tag == "script"
        given = dict(attrs)
        if tag in {"img", "b", "iframe", "object", "style"} or any(name.startswith("on") for name in given):
            self.wrong.append(f"{tag} {given}")
        for name in ("href", "src", "action", "formaction"):
            where = given.get(name) or ""
            if where and not where.startswith(("/console/", "#")):
                self.wrong.append(f"{tag} {name}={where}")


def unharmed(text: str) -> list[str]:
    found = Elements(text)
    return [*found.wrong, *([] if found.scripts == 1 else [f"{found.scripts} scripts"])]


PAGES = (
    *("", "?sort=name", "servers", "history", f"history?tag={quote(IMAGE)}"),
    *("tag?tag=orders", "tag?tag=orders&number=5", "tag?tag=damaged"),
    *(f"tag?tag={quote(text, safe='')}&number=5" for text in TEXTS),
    *(f"act?what=configure&tag={quote(text, safe='')}" for text in TEXTS),
    *(f"act?what={what}&tag={quote(SCRIPT, safe='')}" for what in ("halt", "recover", "delete")),
)


@pytest.mark.parametrize("page", PAGES, ids=range(len(PAGES)))
def test_a_text_of_a_store_or_of_redis_is_shown_and_does_nothing(
    page: str, browser: ConsoleBrowser, hostile: Site
) -> None:
    answer = hostile.client.get(f"/console/{page}")
    assert unharmed(answer.text) == []
    for width in (WIDTHS[0], WIDTHS[-1]):
        browser.resize(width)
        browser.open(f"{hostile.console}/{page}")
        assert browser.too_wide(width) == []
        assert browser.violations() == []
        assert browser.complaints(hostile.url, status=answer.status_code) == []


@pytest.mark.covers("U.21")
def test_hostile_texts_are_shown_as_they_are(browser: ConsoleBrowser, hostile: Site) -> None:
    browser.resize(WIDTHS[-1])
    for page, expected in (
        ("?sort=name", TEXTS),
        ("servers", (ALL[:300], ALL)),
        ("history", (ALL[:300], ALL, ", ".join(TEXTS))),
        (f"tag?tag={quote(IMAGE, safe='')}", (IMAGE, ALL, ALL[:200])),
    ):
        browser.open(f"{hostile.console}/{page}")
        shown = browser.run("document.body.textContent")
        for text in expected:
            assert text in shown, (page, text)


def test_a_link_to_a_hostile_tag_leads_to_its_page(browser: ConsoleBrowser, hostile: Site) -> None:
    for text in TEXTS:
        browser.open(f"{hostile.console}/?q={quote(text, safe='')}")
        browser.follow(".tags a")
        assert browser.status() == 200
        assert browser.run("document.querySelector('h1').firstChild.data").strip() == text
        browser.follow("a[href*='what=halt']")
        assert text in browser.run("document.querySelector('h1').textContent")


@pytest.mark.parametrize("place", SENT, ids=range(len(SENT)))
def test_what_a_visitor_sends_is_shown_and_does_nothing(place: str, browser: ConsoleBrowser, hostile: Site) -> None:
    for text in (*TEXTS, ALL):
        page = place.format(quote(text, safe=""))
        answer = hostile.client.get(f"/console/{page}")
        assert answer.status_code < 500
        if answer.headers["content-type"].startswith("text/html"):
            assert unharmed(answer.text) == []
            browser.open(f"{hostile.console}/{page}")
            assert browser.complaints(hostile.url, status=answer.status_code) == []
        else:
            assert answer.headers["content-disposition"].startswith("attachment")


@pytest.mark.parametrize(
    "field", ["tag", "description", "step", "typed", "at_least", "limit", "format", "sent", "other"]
)
@pytest.mark.parametrize("what", ["create", "configure", "recover", "delete", "halt"])
def test_what_a_form_sends_is_shown_and_does_nothing(what: str, field: str, hostile: Site) -> None:
    key = hostile.key(hostile.client)
    for text in (*TEXTS, ALL):
        for confirmed in ({}, {"confirmed": text}):
            if what == "create" and field in ("tag", "description", "typed", "at_least", "sent", "other") and confirmed:
                continue  # it would be made
            fields = {"form_key": key, "what": what, "tag": "damaged" if confirmed else "orders", "sent": "1"}
            answer = hostile.send(hostile.client, "act", fields | confirmed | {field: text})
            assert answer.status_code < 500 or "corrupt_state" in answer.text, answer.text
            if answer.text:
                assert unharmed(answer.text) == []


def test_a_token_of_a_form_is_never_shown(hostile: Site) -> None:
    answer = hostile.send(hostile.client, "login", {"token": ALL, "then": ALL})
    assert answer.status_code in {303, 401}
    assert answer.headers.get("location", "/console/") == "/console/"


def test_a_download_is_json_that_no_browser_shows_as_a_page(hostile: Site) -> None:
    for text in TEXTS:
        answer = hostile.client.get(f"/console/tag.json?{urlencode({'tag': text})}")
        assert answer.json()["tag"] == text
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["content-disposition"] == 'attachment; filename="tag.json"'


def test_the_file_of_the_board_is_for_its_user_alone(hostile: Site) -> None:
    folder = Path(hostile.store.removeprefix("sqlite:///")).parent
    (board,) = folder.glob("issuer-metrics-*/console-*.sqlite")
    assert board.stat().st_mode & 0o077 == 0


def test_a_backquote_makes_no_part_of_a_page() -> None:
    for text in (*TEXTS, f"`{ALL}`", f"`{IMAGE}", f"a `{SCRIPT}` b `c`"):
        assert not Elements(str(inline(text))).wrong
        assert not Elements(str(inline(text))).scripts
    assert inline("a `b` <c>") == "a <code>b</code> &lt;c&gt;"
