"""Logins of the console: who may see it, and how long."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from issuer.doors.access import Access
from issuer.doors.console.logins import COOKIE, VALID_FOR, Logins, set_cookie
from issuer.doors.tokens import line_for, new_token
from issuer.errors import TooManyRequests, Unauthenticated
from tests.doors.console.conftest import TOKENS
from tests.doors.console.sites import Site, console
from tests.waiting import until

PAGES = ("", "tag?tag=orders", "tag.json?tag=orders", "act?what=halt&tag=orders", "servers", "history")
KEY = b"k" * 32


class Clock:
    """A clock that the test moves. It is the wall clock and the one of the rates."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


class Made:
    """The logins of a server with one token, without the server."""

    def __init__(self, folder: Path) -> None:
        self.clock, self.token, self.file = Clock(), new_token(), folder / "tokens.toml"
        self.file.touch(mode=0o600)
        self.file.write_text(line_for(self.token, "boss", ["admin"], ["*"]) + "\n")
        self.logins = self.of(KEY)

    def of(self, key: bytes) -> Logins:
        return Logins(Access(self.file, clock=self.clock, wall=self.clock), lambda: key, wall=self.clock)

    def name(self, cookie: str, logins: Logins | None = None) -> str | None:
        """Return the name of the token that a cookie stands for."""
        session = (logins or self.logins).of(f"{COOKIE}={cookie}".encode())
        return None if session is None else session.caller.name


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path)


class TestCookies:
    def test_a_login_ends_after_its_time(self, made: Made) -> None:
        cookie = made.logins.login(made.token)
        assert made.name(cookie) == "boss"
        made.clock.now += VALID_FOR - 1
        assert made.name(cookie) == "boss"
        made.clock.now += 1
        assert made.name(cookie) is None

    def test_nobody_can_change_a_cookie(self, made: Made) -> None:
        name, end, signature = made.logins.login(made.token).split(".")
        other = "0" if signature[-1] != "0" else "1"
        for forged in (
            f"{name}.{int(end) + 1}.{signature}",
            f"other.{end}.{signature}",
            f"{name}.{end}.{signature[:-1]}{other}",
            f"{name}.{end}.{signature[:-1]}",
            f"{name}.{end}.",
            f"{name}.{end}.{signature}.",
            f"{name}.{end}",
            "",
            ".",
            "..",
            f"{name}.{'9' * 500}.{signature}",
            f"{name}.-1.{signature}",
            f"{name}.{end}.{'é' * 64}",
        ):
            assert made.name(forged) is None, forged
        assert made.name(f"{name}.{end}.{signature}") == "boss"

    def test_the_cookie_of_another_server_is_not_valid(self, made: Made) -> None:
        assert made.name(made.of(b"x" * 32).login(made.token)) is None
        assert made.name(made.of(KEY).login(made.token)) == "boss"

    def test_a_login_ends_with_the_token_also_if_another_one_takes_its_name(self, made: Made) -> None:
        cookie = made.logins.login(made.token)
        made.file.write_text(line_for(new_token(), "boss", ["admin"], ["*"]) + "\n")
        assert made.name(cookie, made.of(KEY)) is None
        made.file.write_text(line_for(made.token, "chief", ["admin"], ["*"]) + "\n")
        assert made.name(cookie, made.of(KEY)) is None
        made.file.write_text("")
        assert made.name(cookie, made.of(KEY)) is None

    def test_a_login_ends_when_its_token_expires(self, made: Made) -> None:
        end = datetime.fromtimestamp(made.clock.now + 3600, UTC)
        line = line_for(made.token, "boss", ["admin"], ["*"]).removesuffix(" }")
        made.file.write_text(f"{line}, expires = {end.isoformat()} }}\n")
        access = Access(made.file, clock=made.clock, wall=made.clock)
        logins = Logins(access, lambda: KEY, wall=made.clock)
        cookie = logins.login(made.token)
        assert made.name(cookie, logins) == "boss"
        made.clock.now += 3600
        access.look()
        assert made.name(cookie, logins) is None
        with pytest.raises(Unauthenticated, match="expired"):
            logins.login(made.token)

    def test_the_key_of_a_form_belongs_to_one_login(self, made: Made) -> None:
        first = made.logins.login(made.token)
        made.clock.now += 1
        keys = set()
        for cookie in (first, made.logins.login(made.token)):
            session = made.logins.of(f"{COOKIE}={cookie}".encode())
            assert session is not None
            assert session.form_key not in cookie
            keys.add(session.form_key)
        assert len(keys) == 2

    def test_too_many_logins_that_fail_at_once_wait_and_keep_nobody_with_a_token_out(self, made: Made) -> None:
        def failed() -> TooManyRequests | None:
            with pytest.raises((Unauthenticated, TooManyRequests)) as caught:
                made.logins.login(new_token())
            return caught.value if isinstance(caught.value, TooManyRequests) else None

        refusal = next(filter(None, (failed() for _ in range(100))))
        assert made.name(made.logins.login(made.token)) == "boss"
        made.clock.now += refusal.retry_after or 0
        assert failed() is None

    @pytest.mark.parametrize(
        "other",
        [
            'state={"a": [1, 2]}',
            "a b=c",
            "=x",
            "x",
            'quoted="un;closed',
            "back\\slash=[x]",
            "über=ä",
            f"{COOKIE}x=1",
            "$Version=1",
            "\x7f\x01=\x02",
            ";;; ;",
        ],
    )
    def test_cookies_of_other_programs_on_the_host_end_no_login(self, made: Made, other: str) -> None:
        own = f"{COOKIE}={made.logins.login(made.token)}"
        for cookies in (f"{other}; {own}", f"{own}; {other}"):
            assert made.logins.of(cookies.encode("utf-8")) is not None, cookies

    def test_a_stranger_has_no_session(self, made: Made) -> None:
        for cookies in (None, b"", b"\xff\xfe", b"a=b", COOKIE.encode(), f"{COOKIE}=".encode(), b";" * 10_000):
            assert made.logins.of(cookies) is None

    def test_the_cookie_has_its_flags(self) -> None:
        plain = set_cookie("value", "/console", secure=False).decode()
        flags = f"Path=/console; Max-Age={VALID_FOR}; HttpOnly; SameSite=Lax"
        assert plain == f"{COOKIE}=value; {flags}"
        assert set_cookie("value", "/console", secure=True).decode() == f"{plain}; Secure"


@pytest.mark.live
class TestLogin:
    def test_a_login_sets_a_cookie_that_no_script_and_no_form_of_another_site_can_use(self, guarded: Site) -> None:
        with guarded.visitor() as visitor:
            assert guarded.tokens is not None
            answer = guarded.login(visitor, guarded.tokens.of["boss"])
        assert answer.status_code == 303
        assert answer.headers["location"] == "/console/"
        cookie = answer.headers["set-cookie"]
        name, *flags = cookie.split("; ")
        assert name.startswith(f"{COOKIE}=boss.")
        assert flags == ["Path=/console", f"Max-Age={VALID_FOR}", "HttpOnly", "SameSite=Lax"]
        assert guarded.tokens.of["boss"] not in cookie

    @pytest.mark.parametrize(
        ("scheme", "secure"), [("https", True), ("HTTPS", True), ("https, http", True), ("http", False), ("x", False)]
    )
    def test_behind_a_proxy_with_https_the_cookie_goes_over_https_only(
        self, guarded: Site, scheme: str, secure: bool
    ) -> None:
        with guarded.visitor() as visitor:
            assert guarded.tokens is not None
            answer = guarded.login(visitor, guarded.tokens.of["boss"], headers={"X-Forwarded-Proto": scheme})
        assert answer.headers["set-cookie"].endswith("; Secure") == secure

    def test_without_a_login_each_page_leads_to_the_login_and_back(self, guarded: Site) -> None:
        for page in (*PAGES, "nope"):
            with guarded.visitor() as visitor:
                answer = visitor.get(f"/console/{page}")
                assert answer.status_code == 303
                assert answer.text == ""
                to = urlsplit(answer.headers["location"])
                assert to.path == "/console/login"
                (then,) = parse_qs(to.query)["then"]
                assert then == f"/console/{page}"
                assert guarded.tokens is not None
                back = guarded.login(visitor, guarded.tokens.of["boss"], then=then)
                assert back.headers["location"] == then

    @pytest.mark.parametrize("token", ["", "x", "issuer_wrong", "é", "\0", "x" * 60_000, "<b>'\"&"])
    def test_a_wrong_token_gets_no_cookie(self, guarded: Site, token: str) -> None:
        with guarded.visitor() as visitor:
            answer = guarded.login(visitor, token)
            assert answer.status_code == 401
            assert "set-cookie" not in answer.headers
            assert re.search(r'role="alert">[^<]*the token is (unknown|empty)', answer.text)
            if len(token) > 3:
                assert token not in answer.text
            assert visitor.get("/console/").status_code == 303

    def test_a_token_is_taken_from_a_form_only(self, guarded: Site) -> None:
        assert guarded.tokens is not None
        with guarded.visitor() as visitor:
            answer = visitor.get("/console/login", params={"token": guarded.tokens.of["boss"]})
            assert "set-cookie" not in answer.headers
            assert guarded.tokens.of["boss"] not in answer.text

    @pytest.mark.parametrize(
        "then",
        [
            *("//evil.example", "/\\evil.example", "\\\\evil.example", "https://evil.example/", "https:evil.example"),
            *("javascript:alert(1)", "/console//evil.example", "/console/\\evil", "/consolex", "/v1/tags", "/", ""),
            *(" /console/", "\t//evil.example", "/console", "http:/console/"),
        ],
    )
    def test_a_login_leads_to_pages_of_the_console_only(self, guarded: Site, then: str) -> None:
        with guarded.visitor() as visitor:
            assert guarded.tokens is not None
            answer = guarded.login(visitor, guarded.tokens.of["boss"], then=then)
            assert answer.headers["location"] == "/console/"
            shown = visitor.get("/console/login", params={"then": then}).text
            assert re.findall('name="then" value="([^"]*)"', shown) == ["/console/"]

    def test_a_place_after_the_login_adds_no_header(self, guarded: Site) -> None:
        assert guarded.tokens is not None
        for then in ("/console/\r\nX-Evil: 1", "/console/\nX-Evil: 1", "/console/\0", "/console/é\u2028"):
            with guarded.visitor() as visitor:
                answer = guarded.login(visitor, guarded.tokens.of["boss"], then=then)
                assert answer.status_code == 303
                assert "x-evil" not in answer.headers
                assert answer.headers["location"].startswith("/console/")

    def test_a_logout_ends_the_login_in_the_browser(self, guarded: Site) -> None:
        with guarded.logged_in("boss") as visitor:
            key = guarded.key(visitor)
            assert visitor.get("/console/logout").status_code == 404
            assert visitor.get("/console/").status_code == 200
            answer = guarded.send(visitor, "logout", {"form_key": key})
            assert (answer.status_code, answer.headers["location"]) == (303, "/console/login")
            assert "Max-Age=0" in answer.headers["set-cookie"]
            assert visitor.get("/console/").status_code == 303


@pytest.fixture
def changing(tmp_path: Path) -> Iterator[Site]:
    """A console whose tokens file the test changes."""
    with console(tmp_path, tokens=TOKENS) as site:
        yield site


@pytest.mark.live
def test_a_login_ends_when_its_token_is_removed_or_replaced(changing: Site) -> None:
    tokens = changing.tokens
    assert tokens is not None
    with changing.logged_in("boss") as boss, changing.logged_in("reader") as reader, changing.visitor() as stranger:
        assert [each.get("/console/").status_code for each in (boss, reader)] == [200, 200]
        tokens.of["reader"] = new_token()
        del tokens.of["boss"]
        tokens.write()
        for visitor in (boss, reader):
            until(lambda visitor=visitor: visitor.get("/console/").status_code == 303, message="the login ends")  # type: ignore[misc]  # a default
        assert changing.login(stranger, tokens.of["reader"]).status_code == 303
        assert stranger.get("/console/").status_code == 200


@pytest.mark.live
def test_a_program_may_send_its_token_as_for_the_api(guarded: Site) -> None:
    assert guarded.tokens is not None
    with guarded.visitor(Authorization=f"Bearer {guarded.tokens.of['reader']}") as program:
        answer: httpx.Response = program.get("/console/tag.json", params={"tag": "orders"})
        assert answer.status_code == 200
        assert answer.json()["state"]["tag"] == "orders"
        assert "set-cookie" not in answer.headers
    with guarded.visitor(Authorization=f"Bearer {guarded.tokens.of['boss']}") as program:
        refused = guarded.send(program, "act", {"what": "halt", "tag": "orders", "confirmed": "1", "form_key": ""})
        assert refused.status_code == 403
        assert "wrong_form" in refused.text
