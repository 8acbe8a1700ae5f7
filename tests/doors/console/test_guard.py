"""What the console rejects: forms of other pages, callers without the scope, requests that are malformed."""

import http.client
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.doors.console.conftest import store_in
from tests.doors.console.sites import Site, console, program

pytestmark = pytest.mark.live

PAGES = ("", "tag?tag=orders", "tag.json?tag=orders", "act?what=halt&tag=orders", "servers", "history")
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
#: An act that changes each tag, with all that it needs but the key of the form.
HALT = {"what": "halt", "tag": "orders", "confirmed": "1", "sent": "1"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A console without tokens, which is read-only."""
    folder = tmp_path_factory.mktemp("alone")
    with program("none", store_in(folder)) as ids:
        ids.create("orders", step=1000)
    with console(folder) as site:
        yield site


@pytest.fixture(scope="module")
def changing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A console without tokens that may change tags."""
    folder = tmp_path_factory.mktemp("changing")
    with program("none", store_in(folder)) as ids:
        ids.create("orders", step=1000)
    with console(folder, "--console-changes") as site:
        yield site


def state(site: Site) -> Any:
    """Return all that an act could have changed."""
    with program(site.redis, site.store) as ids:
        return [(each.tag, each.max, each.step, each.halted) for each in ids.tags()], ids.segments("orders").entries


def asked(site: Site, method: str, path: str, headers: dict[str, str] | None = None, body: bytes = b"") -> Any:
    """Send a request without a library that would correct it. Return status, headers and body."""
    with closing(http.client.HTTPConnection("127.0.0.1", site.port, timeout=120)) as client:
        client.request(method, path, body, headers or {})
        answer = client.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read().decode()


class TestForms:
    @pytest.mark.parametrize(
        ("origin", "code"),
        [
            (None, "no_origin"),
            ("null", "cross_origin"),
            ("", "cross_origin"),
            ("http://evil.example", "cross_origin"),
            ("http://127.0.0.1", "cross_origin"),
            ("http://localhost.evil.example", "cross_origin"),
        ],
    )
    def test_a_form_of_another_page_changes_nothing_and_the_reply_names_the_reason(
        self, guarded: Site, origin: str | None, code: str
    ) -> None:
        before = state(guarded)
        with guarded.logged_in("boss") as boss:
            fields = HALT | {"form_key": guarded.key(boss)}
            headers = {} if origin is None else {"Origin": origin}
            answer = boss.post("/console/act", data=fields, headers=headers)
            assert answer.status_code == 403
            assert code in answer.text
            assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert state(guarded) == before

    @pytest.mark.parametrize("key", [None, "", "0" * 64, "other's", "x" * 60_000])
    def test_a_form_without_the_key_of_this_login_changes_nothing(self, guarded: Site, key: str | None) -> None:
        before = state(guarded)
        with guarded.logged_in("boss") as boss, guarded.logged_in("reader") as reader:
            sent = guarded.key(reader) if key == "other's" else key
            fields = HALT | ({} if sent is None else {"form_key": sent})
            for page in ("act", "logout"):
                answer = guarded.send(boss, page, fields)
                assert answer.status_code == 403
                assert "<code>wrong_form</code>" in answer.text
            assert boss.get("/console/").status_code == 200
        assert state(guarded) == before

    def test_a_form_without_a_login_changes_nothing(self, guarded: Site) -> None:
        before = state(guarded)
        with guarded.visitor() as stranger:
            for page in ("act", "logout", "", "nope"):
                answer = guarded.send(stranger, page, HALT | {"form_key": ""})
                assert (answer.status_code, "wrong_form" in answer.text) == (403, True)
        assert state(guarded) == before

    def test_what_is_no_form_is_rejected(self, guarded: Site) -> None:
        before = state(guarded)
        with guarded.logged_in("boss") as boss:
            key = guarded.key(boss)
            text = "&".join(f"{name}={value}" for name, value in {**HALT, "form_key": key}.items()).encode()
            form, own = "application/x-www-form-urlencoded", {"Origin": guarded.url}
            for content, kind, status in (
                (text, "text/plain", 415),
                (text, "multipart/form-data; boundary=x", 415),
                (text, "application/json", 415),
                (text, "", 415),
                (b"\xff=\xff", form, 400),
                (b"&".join(b"%d=1" % each for each in range(101)) + b"&" + text, form, 400),
                (text + b"&x=" + b"x" * 65_536, form, 413),
            ):
                answer = boss.post("/console/act", content=content, headers={**own, "Content-Type": kind})
                assert answer.status_code == status, (kind, answer.text)
                assert answer.headers["content-security-policy"] == CSP
        assert state(guarded) == before

    def test_the_reply_to_a_form_of_a_wrong_page_is_a_page(self, guarded: Site) -> None:
        with guarded.logged_in("boss") as boss:
            key = guarded.key(boss)
            for page in ("", "tag", "servers", "nope", "act/x"):
                assert guarded.send(boss, page, {"form_key": key}).status_code == 404

    def test_a_get_changes_nothing(self, guarded: Site) -> None:
        before = state(guarded)
        with guarded.logged_in("boss") as boss:
            fields = HALT | {"form_key": guarded.key(boss), "typed": "orders"}
            for what in ("halt", "recover", "delete", "configure", "create"):
                for method in ("GET", "HEAD"):
                    more = {"what": what, "step": "7"} | ({"tag": "new"} if what == "create" else {})
                    answer = boss.request(method, "/console/act", params=fields | more)
                    assert answer.status_code == 200, answer.text
            for page in PAGES:
                boss.get(f"/console/{page}")
        assert state(guarded) == before


class TestScopes:
    @pytest.mark.parametrize("page", PAGES)
    @pytest.mark.parametrize("name", ["some", "drawer"])
    def test_a_token_that_may_not_read_all_tags_sees_nothing(self, guarded: Site, name: str, page: str) -> None:
        with guarded.logged_in(name) as visitor:
            answer = visitor.get(f"/console/{page}")
            assert answer.status_code == 403
            assert "<code>forbidden</code>" in answer.text
            assert 'id="health"' not in answer.text
            assert "Log out" in answer.text

    @pytest.mark.parametrize("name", ["reader", "some", "drawer"])
    def test_without_the_scope_admin_for_all_tags_nothing_is_changed(self, guarded: Site, name: str) -> None:
        before = state(guarded)
        with guarded.logged_in(name) as visitor:
            key = _key(visitor)
            for what in ("halt", "recover", "delete", "configure", "create"):
                assert visitor.get("/console/act", params={"what": what, "tag": "orders"}).status_code == 403
                fields = HALT | {"what": what, "form_key": key, "typed": "orders", "step": "7"}
                answer = guarded.send(visitor, "act", fields)
                assert answer.status_code == 403
                assert "<code>forbidden</code>" in answer.text
        assert state(guarded) == before

    def test_a_token_for_reading_is_offered_no_act(self, guarded: Site) -> None:
        with guarded.logged_in("reader") as reader, guarded.logged_in("boss") as boss:
            for page in ("", "tag?tag=orders"):
                assert "/console/act" not in reader.get(f"/console/{page}").text
                assert "/console/act" in boss.get(f"/console/{page}").text

    def test_without_tokens_the_console_is_read_only(self, alone: Site) -> None:
        before = state(alone)
        key = _key(alone.client)
        for page in ("", "tag?tag=orders"):
            answer = alone.client.get(f"/console/{page}")
            assert answer.status_code == 200
            assert "/console/act" not in answer.text
        for what in ("halt", "recover", "delete", "configure", "create"):
            fields = HALT | {"what": what, "form_key": key, "typed": "orders", "step": "7"}
            answer = alone.client.get("/console/act", params=fields)
            assert answer.status_code == 403
            assert "<code>read_only</code>" in answer.text
            assert alone.send(alone.client, "act", fields).status_code == 403
        assert state(alone) == before

    def test_without_tokens_a_form_needs_its_key_too(self, changing: Site) -> None:
        before = state(changing)
        for key in ("", "0" * 64):
            assert changing.send(changing.client, "act", HALT | {"form_key": key}).status_code == 403
        assert state(changing) == before
        assert changing.act(changing.client, "halt", "orders").status_code == 303
        assert state(changing) != before


def _key(visitor: httpx.Client) -> str:
    """Return the key of the forms, as a caller finds it who computes it from nothing but its pages."""
    found = visitor.get("/console/servers").text.partition('name="form_key" value="')[2]
    return found.partition('"')[0]


class TestRequests:
    def test_each_reply_has_the_headers(self, guarded: Site) -> None:
        with guarded.logged_in("boss") as boss:
            pages = [boss.get(f"/console/{page}") for page in (*PAGES, "nope", "login", "style.css", "script.js")]
            more = [boss.put("/console/"), guarded.send(boss, "act", {}), boss.get("/console/", params={"sort": "x"})]
            foreign = [boss.get("/console/", headers={"Sec-Fetch-Site": "cross-site"})]
            twice = [boss.get("/console/", headers=[("Origin", guarded.url), ("Origin", guarded.url)])]
        with guarded.visitor() as stranger:
            for answer in (*pages, *more, *foreign, *twice, stranger.get("/console/")):
                assert answer.headers["content-security-policy"] == CSP, answer.text
                assert answer.headers["x-content-type-options"] == "nosniff"
                assert answer.headers["cache-control"] == "no-store"
                assert answer.headers["referrer-policy"] == "same-origin"
                assert "access-control-allow-origin" not in answer.headers

    def test_a_head_has_the_headers_of_the_page_and_no_body(self, guarded: Site) -> None:
        with guarded.logged_in("boss") as boss:
            for page in (*PAGES, "nope", "login", "style.css"):
                head, get = boss.head(f"/console/{page}"), boss.get(f"/console/{page}")
                assert (head.status_code, head.content) == (get.status_code, b"")
                assert head.headers["content-type"] == get.headers["content-type"]

    @pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND"])
    def test_other_methods_are_not_allowed(self, guarded: Site, method: str) -> None:
        with guarded.logged_in("boss") as boss:
            for page in ("", "act", "nope", "style.css"):
                answer = boss.request(method, f"/console/{page}")
                assert (answer.status_code, answer.headers["allow"]) == (405, "GET, POST")

    @pytest.mark.parametrize(
        "page", ["nope", "tags/orders", "act/halt", "../console/x", "tag%2Forders", "static/../x", "%00", "login/x"]
    )
    def test_an_unknown_page_is_a_page_with_404(self, guarded: Site, page: str) -> None:
        with guarded.logged_in("boss") as boss:
            status, headers, text = asked(
                guarded, "GET", f"/console/{page}", {"Cookie": "; ".join(f"{k}={v}" for k, v in boss.cookies.items())}
            )
        assert (status, headers["content-type"]) == (404, "text/html; charset=utf-8")
        assert "<code>not_found</code>" in text

    @pytest.mark.parametrize(
        ("query", "status"),
        [
            ("q=a&q=b", 400),
            ("tag=a&tag=orders", 400),
            ("q=%", 400),
            ("q=%zz", 400),
            ("q=%ff", 400),
            ("q=%00", 200),
            ("&".join(f"{each}=1" for each in range(101)), 400),
            ("sort=x", 400),
            ("page=0", 400),
            ("page=-1", 400),
            ("page=1e3", 400),
            ("page=99999999", 400),
            ("page=%D9%A1", 400),
            ("page=999999", 200),
            ("state=x", 400),
            ("unknown=x", 200),
            ("q=" + "x" * 5000, 200),
        ],
    )
    def test_a_query_that_is_wrong_is_an_error_of_the_caller(self, guarded: Site, query: str, status: int) -> None:
        with guarded.logged_in("boss") as boss:
            answer = boss.get(f"/console/?{query}")
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "text/html; charset=utf-8"

    @pytest.mark.parametrize(
        "number", ["9" * 19, "9" * 20, "9" * 5000, "-1", "0", "\u0663", "\u00b2", "x" * 5000, "\0", "1.5", "1e9"]
    )
    def test_any_text_can_be_looked_up(self, guarded: Site, number: str) -> None:
        with guarded.logged_in("boss") as boss:
            answer = boss.get("/console/tag", params={"tag": "orders", "number": number})
        assert answer.status_code == 200, answer.text

    def test_a_tag_that_does_not_exist_is_a_page_with_404(self, guarded: Site) -> None:
        with guarded.logged_in("boss") as boss:
            for page in ("tag", "tag.json", "act"):
                for tag, status in (("nope", 404), ("", 400), ("x" * 300, 400), ("\0", 400)):
                    answer = boss.get(f"/console/{page}", params={"tag": tag, "what": "halt"})
                    assert answer.status_code == status, (page, tag, answer.text)

    def test_an_act_that_does_not_exist_is_a_page_with_404(self, guarded: Site) -> None:
        with guarded.logged_in("boss") as boss:
            for what in ("", "x", "__init__", "Create"):
                assert boss.get("/console/act", params={"what": what, "tag": "orders"}).status_code == 404


class TestOtherSites:
    def test_a_link_on_another_site_leads_to_a_page(self, guarded: Site) -> None:
        with guarded.logged_in("boss") as boss:
            for page in PAGES:
                assert boss.get(f"/console/{page}", headers=LINK).status_code == 200
                assert boss.get(f"/console/{page}", headers=LINK | {"Sec-Fetch-Site": "same-site"}).status_code == 200

    @pytest.mark.parametrize(
        "headers",
        [
            {"Sec-Fetch-Dest": "iframe"},
            {"Sec-Fetch-Dest": "frame"},
            {"Sec-Fetch-Dest": "embed"},
            {"Sec-Fetch-Dest": "object"},
            {"Sec-Fetch-Dest": ""},
            {"Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
            {"Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
            {"Sec-Fetch-Mode": "no-cors"},
            {"Origin": "http://evil.example"},
        ],
    )
    def test_another_site_cannot_load_a_page_into_its_own(self, guarded: Site, headers: dict[str, str]) -> None:
        with guarded.logged_in("boss") as boss:
            answer = boss.get("/console/", headers=LINK | headers)
        assert answer.status_code == 403
        assert "cross_origin" in answer.text

    def test_a_form_on_another_site_is_rejected_also_as_a_navigation(self, guarded: Site) -> None:
        before = state(guarded)
        with guarded.logged_in("boss") as boss:
            fields = HALT | {"form_key": guarded.key(boss)}
            for method in ("POST", "HEAD", "PUT"):
                answer = boss.request(method, "/console/act", data=fields, headers=LINK | {"Origin": guarded.url})
                assert answer.status_code == 403
        assert state(guarded) == before

    def test_a_link_on_another_site_leads_to_no_page_of_the_api(self, guarded: Site) -> None:
        assert guarded.tokens is not None
        with guarded.visitor(Authorization=f"Bearer {guarded.tokens.of['boss']}") as program:
            for path in ("/v1/tags", "/docs", "/metrics", "/consolex", "/v1/console"):
                answer = program.get(path, headers=LINK)
                assert (answer.status_code, answer.json()["code"]) == (403, "cross_origin")

    def test_only_names_of_this_server_are_served(self, alone: Site) -> None:
        for host, status in (("evil.example", 403), (f"evil.example:{alone.port}", 403), ("localhost", 200)):
            for page in ("/console/", "/console", "/console/style.css"):
                found, _, text = asked(alone, "GET", page, {"Host": host})
                assert found == status
                assert ("wrong_host" in text) == (status == 403)


def test_the_server_of_issuer_console_serves_only_the_console(tmp_path: Path) -> None:
    command = ("console", "--port", "0", "--no-browser")
    with console(tmp_path, command=command) as site:
        assert site.client.get("/console/").status_code == 200
        assert site.client.get("/livez").status_code == 200
        for method, path in (("POST", "/v1/tags/orders/next"), ("GET", "/v1/tags"), ("POST", "/v1/tags")):
            assert site.client.request(method, path).status_code == 404
        assert state_is_empty(site)


def state_is_empty(site: Site) -> bool:
    with program(site.redis, site.store) as ids:
        return not ids.tags()
