"""Records of what a server did: a line for each call of an operator and each caller that isn't known; and counts."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from issuer.acting import actor
from issuer.core.sparing import Sparing
from issuer.doors.access import Access
from issuer.metrics import install
from tests.doors.http.doors import open_door, tokens
from tests.metrics.shown import Shown


@pytest.fixture(autouse=True)
def never_said(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("access", "web.guard"):
        monkeypatch.setattr(f"issuer.doors.{module}._sparing", Sparing())


def audited(caplog: pytest.LogCaptureFixture) -> list[tuple[int, str]]:
    return [(each.levelno, each.getMessage()) for each in caplog.records if each.name == "issuer.audit"]


async def test_each_call_of_an_operator_is_one_line_with_who_where_and_which(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "issuer.audit")
    access, made = tokens(tmp_path, ops=(["admin"], ["*"]), shop=(["issue", "read"], ["*"]))
    async with open_door(access=access) as door:

        async def asked(name: str, *request: Any, said: str = "") -> tuple[int, str]:
            headers = [("X-Request-Id", said)] if said else []
            answer = await door.ask(*request, token=made[name], headers=headers, client=("10.0.0.7", 5))
            return answer.status, answer.headers.get("x-request-id", "")

        assert (await asked("ops", "POST", "/v1/tags", {"tag": "a"}, said="r-1")) == (201, "r-1")
        assert (await asked("ops", "PATCH", "/v1/tags/a", {"step": 7}, said="r-2")) == (200, "r-2")
        assert (await asked("shop", "POST", "/v1/tags/a/halt", said="r-3")) == (403, "r-3")
        assert (await asked("ops", "POST", "/v1/tags/b/recover", {"dry_run": False}, said="r-4")) == (404, "r-4")
        status, made_up = await asked("ops", "DELETE", "/v1/tags/a", said="two\tlines")
        assert status == 204
        assert re.fullmatch("[0-9a-f]{16}", made_up)
        assert audited(caplog) == [
            (logging.INFO, "create of tag 'a': 201, by token 'ops' from 10.0.0.7, request r-1"),
            (logging.INFO, "configure of tag 'a': 200, by token 'ops' from 10.0.0.7, request r-2"),
            (logging.INFO, "halt of tag 'a': 403, by token 'shop' from 10.0.0.7, request r-3"),
            (logging.INFO, "recover of tag 'b': 404, by token 'ops' from 10.0.0.7, request r-4"),
            (logging.INFO, f"delete of tag 'a': 204, by token 'ops' from 10.0.0.7, request {made_up}"),
        ]
        # Others are no operators' calls.
        await asked("ops", "POST", "/v1/tags", {"tag": "b"})
        caplog.clear()
        await asked("shop", "POST", "/v1/tags/b/next")
        await asked("shop", "GET", "/v1/tags/b")
        assert not audited(caplog)


async def test_the_chronicle_has_the_token_and_the_address_of_the_client(tmp_path: Path, redis_url: str) -> None:
    access, made = tokens(tmp_path, ops=(["admin"], ["*"]), region=(["reserve", "admin"], ["*"]))
    async with open_door(access=access, redis=redis_url) as door:

        async def asked(name: str, *request: Any) -> None:
            await door.good(*request, token=made[name], client=("10.0.0.7", 5))

        async def stored(call: str, **arguments: Any) -> None:
            body = {"call": call, "tag": "a", "arguments": arguments}
            await asked("region", "POST", "/v1/store", body)

        await asked("ops", "POST", "/v1/tags", {"tag": "a", "order": "trend"})
        await asked("ops", "PATCH", "/v1/tags/a", {"step": 7})
        await asked("ops", "POST", "/v1/tags/a/recover", {})
        await stored("configure", settings={"step": 9})
        await stored("get")
        await stored("halt")
        await door.ids.configure("a", step=11)
        *clients, own = (await door.ids.engine.chronicle.read()).acts[::-1]
        assert [(each.what, each.tag, each.who, each.origin) for each in clients] == [
            ("create", "a", "ops", "10.0.0.7"),
            ("configure", "a", "ops", "10.0.0.7"),
            ("configure", "a", "region", "10.0.0.7"),
            ("halt", "a", "region", "10.0.0.7"),
        ]
        assert clients[1].change.startswith("step 1000 -> 7")
        assert (own.who, own.origin) == actor()


async def test_rejected_calls_of_an_operator_are_one_line_a_minute(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "issuer.audit")
    access, made = tokens(tmp_path, ops=(["admin"], ["*"]), shop=(["issue"], ["*"]))
    async with open_door(access=access) as door:
        for tag in "abc":
            await door.good("POST", "/v1/tags", {"tag": tag}, token=made["ops"])
            await door.good("POST", f"/v1/tags/{tag}/halt", token=made["ops"])
        assert len(audited(caplog)) == 6, "what was done has a line each time"
        caplog.clear()
        for address in ("10.0.0.1", "10.0.0.2"):
            for tag in "abc":
                for path, body, status in ((f"/v1/tags/{tag}/halt", None, 403), ("/v1/tags", {"tag": 5}, 422)):
                    answer = await door.ask("POST", path, body, token=made["shop"], client=(address, 5))
                    assert answer.status == status
        lines = [line.partition(", request ")[0] for _, line in audited(caplog)]
        assert lines == [
            f"{call}, by token 'shop' from {address}"
            for address in ("10.0.0.1", "10.0.0.2")
            for call in ("halt of tag 'a': 403", "create of tag '': 422")
        ]


async def test_a_caller_that_is_not_known_is_one_line_a_minute_for_each_address(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    access, made = tokens(tmp_path, shop=(["issue"], ["*"]))
    async with open_door("a", access=access) as door:
        for _ in range(2):
            await door.good("POST", "/v1/tags/a/next", token=made["shop"])
        answers = [
            await door.ask(method, path, token=made["shop"] + "x", client=(address, 5))
            for address in ("10.0.0.1", "10.0.0.2", "10.0.0.1")
            # The short way, the long one, and a route that operators have.
            for method, path in (("POST", "/v1/tags/a/next"), ("GET", "/v1/tags"), ("DELETE", "/v1/tags/a"))
        ]
        assert [each.status for each in answers] == [401] * 9
        found = audited(caplog)
        assert [level for level, _ in found] == [logging.WARNING] * 2
        for (_, line), address, answer in zip(found, ("10.0.0.1", "10.0.0.2"), answers[::3], strict=False):
            request = answer.headers["x-request-id"]
            assert f"authentication failed over http, from {address}, request {request}: " in line
            assert made["shop"] not in line
        assert access.tally.failures == {"http": 9}


async def test_requests_are_counted_by_route_status_and_token_and_by_how_long_they_took(tmp_path: Path) -> None:
    access, made = tokens(tmp_path, shop=(["issue"], ["*"]), ops=(["admin"], ["*"]))
    async with open_door(access=access) as door:
        metrics = install(door.ids)
        metrics.serve(access.tally)

        def shown() -> Shown:
            return Shown(metrics.exposition()[1].decode())

        before = shown()
        await door.good("POST", "/v1/tags", {"tag": "a"}, token=made["ops"])
        for _ in range(5):  # the long way, then the short one
            await door.good("POST", "/v1/tags/a/next", token=made["shop"])
        await door.ask("POST", "/v1/tags/a/next", token="wrong")
        await door.ask("POST", "/v1/tags/a/take", {"n": 0}, token=made["shop"])
        await door.ask("GET", f"/nothing/{made['shop']}", token=made["shop"])
        await door.ask("PUT", "/v1/tags/a", token=made["shop"])
        await door.ask("GET", "/livez")

        def added(name: str, **labels: str) -> float:
            return (shown().value(name, **labels) or 0.0) - (before.value(name, **labels) or 0.0)

        for _ in range(2):  # to look at it adds nothing
            assert added("http_requests_total", route="next", status="200", token="shop") == 5
            assert added("http_requests_total", route="next", status="401", token="") == 1
            assert added("http_requests_total", route="take", status="400", token="shop") == 1
            assert added("http_requests_total", route="create", status="201", token="ops") == 1
            assert added("http_requests_total", route="other", status="404", token="") == 1
            assert added("http_requests_total", route="other", status="405", token="") == 1
            assert added("http_requests_total", route="livez", status="200", token="") == 1
            for le in ("10.0", "+Inf"):
                assert added("http_request_seconds_bucket", route="next", le=le) == 6
            assert added("http_request_seconds_count", route="next") == 6
            assert added("http_request_seconds_sum", route="next") > 0
            assert added("authentication_failures_total", protocol="http") == 1


async def test_without_tokens_operators_have_no_name(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "issuer.audit")
    async with open_door(access=Access(None)) as door:
        await door.good("POST", "/v1/tags", {"tag": "a"})
        ((_, line),) = audited(caplog)
        assert line.startswith("create of tag 'a': 201, by a caller without a token from 127.0.0.1, request ")
