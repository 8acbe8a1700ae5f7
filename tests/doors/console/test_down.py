"""The console while Redis, the store or both do not answer: each page answers, and says what is old."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.doors.console.browsing import WIDTHS, ConsoleBrowser
from tests.doors.console.conftest import chronicle, fill
from tests.doors.console.sites import Site, console, program
from tests.servers.mongo import MongoServers
from tests.servers.redis import RedisServer
from tests.together import together
from tests.waiting import until

pytestmark = pytest.mark.live

#: As users have it: those of the other tests are for machines that stand still.
USUAL = {"ISSUER_TIMEOUT": "5", "ISSUER_STORE_TIMEOUT": "5", "ISSUER_REDIS_TIMEOUT": "1", "ISSUER_INSIST": "5"}
#: Pages, each with what it must say.
SEEN = {
    "": "orders",
    "?q=cancelled": "orders",
    "tag?tag=orders": "were read",
    "tag?tag=orders&number=5": "were read",
    "servers": "Processes",
    "history": "FenceTripped",
}
ACTS = ("act?what=configure&tag=orders", "act?what=halt&tag=orders", "act?what=recover&tag=orders", "act?what=create")


@pytest.fixture
def site(mongo_server: MongoServers, server: RedisServer, tmp_path: Path) -> Iterator[Site]:
    """A console over a Redis and a MongoDB of its own, whose pages were all seen once."""
    store = f"{mongo_server.url}/issuer"
    with program(server.url, store) as ids:
        fill(ids)
    chronicle(server)
    with console(tmp_path, "--console-changes", redis=server.url, store=store, env=USUAL) as site:
        site.read_tags("orders")
        until(lambda: "Examined" in site.client.get("/console/servers").text, message="the findings")
        for page in SEEN:
            assert site.client.get(f"/console/{page}").status_code == 200
        yield site


def told(site: Site, *codes: str) -> None:
    """Wait until the top of the pages names these errors."""

    def named() -> bool:
        top = top_of(site.client.get("/console/").text)
        return all(f"<code>{code}</code> since" in top for code in codes)

    until(named, message="the pages name the errors")


def top_of(page: str) -> str:
    return page.partition('id="health"')[2].partition("</section>")[0]


def answered(site: Site, **instead: str) -> dict[str, float]:
    """Return how long each page takes, after it was checked. `instead`: what the page of a tag says."""
    took = {}
    for page, usual in SEEN.items():
        text = instead.get("tag", usual) if page.startswith("tag") else usual
        began = time.monotonic()
        answer = site.client.get(f"/console/{page}")
        took[page] = round(time.monotonic() - began, 2)
        assert answer.status_code == 200
        assert text in answer.text
        assert "since" in top_of(answer.text)
    for page in ACTS:
        began = time.monotonic()
        answer = site.client.get(f"/console/{page}")
        took[page] = round(time.monotonic() - began, 2)
        assert answer.status_code in {200, 503}, answer.text
        assert 'id="health"' in answer.text
    print(took)  # pytest -s shows it
    return took


def shown(browser: ConsoleBrowser, site: Site) -> list[str]:
    """Return what is wrong with the pages in a browser."""
    wrong = []
    for page in (*SEEN, *ACTS):
        for width in (WIDTHS[0], WIDTHS[-1]):
            browser.resize(width)
            browser.open(f"{site.console}/{page}")
            assert browser.run("document.querySelector('#health').innerText.includes('since')")
            found = [*browser.too_wide(width), *browser.violations(), *browser.moved()]
            wrong += [f"{page} {width}: {each}" for each in found]
            wrong += browser.complaints(site.url, status=browser.status())
    return wrong


def test_while_redis_is_killed(site: Site, server: RedisServer, browser: ConsoleBrowser) -> None:
    server.kill()
    told(site, "redis_unavailable")
    answered(site, tag="Redis")
    assert "Redis does not answer" in site.client.get("/console/tag", params={"tag": "orders"}).text
    assert shown(browser, site) == []


@pytest.mark.covers("N.11")
def test_while_redis_stands_still(site: Site, server: RedisServer) -> None:
    server.pause()
    told(site, "redis_unavailable")
    answered(site, tag="Redis")
    server.resume()
    until(lambda: "redis_unavailable" not in site.client.get("/console/").text, message="it is back")


def test_while_the_store_stands_still(site: Site, mongo_server: MongoServers, browser: ConsoleBrowser) -> None:
    with mongo_server.members[0].frozen():
        told(site, "store_unavailable")
        answered(site)
        assert shown(browser, site) == []
    until(lambda: "store_unavailable" not in site.client.get("/console/").text, message="it is back")
    assert "were read" not in site.client.get("/console/tag", params={"tag": "orders"}).text


@pytest.mark.covers("N.11")
def test_while_the_store_is_killed(site: Site, mongo_server: MongoServers) -> None:
    mongo_server.kill()
    told(site, "store_unavailable")
    answered(site)


@pytest.mark.covers("N.11")
def test_while_both_stand_still_and_many_look(site: Site, server: RedisServer, mongo_server: MongoServers) -> None:
    server.pause()
    with mongo_server.members[0].frozen():
        told(site, "store_unavailable", "redis_unavailable")
        answered(site)

        def look() -> None:
            with site.visitor() as visitor:
                for page in ("tag?tag=orders", "tag?tag=visits", "", "tag?tag=orders&number=5") * 2:
                    assert visitor.get(f"/console/{page}").status_code in {200, 503}

        together(*[look] * 12)
        answered(site)
    server.resume()


def test_a_tag_that_nobody_has_looked_at_has_the_values_of_the_overview(site: Site, mongo_server: MongoServers) -> None:
    site.read_tags("near")
    with mongo_server.members[0].frozen():
        told(site, "store_unavailable")
        answer = site.client.get("/console/tag", params={"tag": "near"})
        assert answer.status_code == 200
        assert "the values of the overview are shown" in answer.text
        assert "highest number reserved (max)" in answer.text
        unknown = site.client.get("/console/tag", params={"tag": "nobody's"})
        assert unknown.status_code == 200
        assert "unknown" in unknown.text


def test_an_act_says_that_it_failed_and_nothing_is_done(site: Site, mongo_server: MongoServers) -> None:
    with mongo_server.members[0].frozen():
        told(site, "store_unavailable")
        for what in ("halt", "recover", "delete", "configure"):
            answer = site.act(site.client, what, "orders", typed="orders", step="7")
            assert answer.status_code == 503
            assert "store_unavailable" in answer.text or "did not answer" in answer.text
    with program(site.redis, site.store) as ids:
        (orders,) = [each for each in ids.tags() if each.tag == "orders"]
        assert orders.step == 10


def test_a_console_that_starts_while_both_are_away_says_so(
    server: RedisServer, mongo_server: MongoServers, tmp_path: Path
) -> None:
    store = f"{mongo_server.url}/issuer"
    with program(server.url, store) as ids:
        ids.create("orders")
    server.kill()
    mongo_server.kill()
    with console(tmp_path, redis=server.url, store=store, env=USUAL) as site:
        told(site, "redis_unavailable", "store_unavailable")
        for page in ("", "servers", "history", "tag?tag=orders"):
            answer = site.client.get(f"/console/{page}")
            assert answer.status_code == 200
            assert "do not answer" in answer.text
