"""What is refused over HTTP: with which status and code, without anything changed, and without a word too many."""

import json
import logging
from typing import Any

import pytest

import issuer
from issuer import errors
from issuer.care.care import Care
from issuer.core.sparing import Sparing
from issuer.doors.outside import outside
from issuer.doors.resp.replies import failure
from issuer.doors.web import numbers
from issuer.doors.web.calls import BODY_MOST
from issuer.doors.web.replies import STATUSES, answer, status_of
from issuer.engine.aio import AsyncEngine
from issuer.errors import IssuerError
from issuer.views import view
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.memory import MemoryStore
from tests.doors.http.doors import Answer, open_door
from tests.engine.test_errors import ERRORS

SECRET = "hunter2-of-the-store"
NEXT = "/v1/tags/a/next"


def answered(error: Exception, **options: Any) -> Answer:
    reply = answer(error, "GET /x", **options)
    found = {name.decode(): value.decode() for name, value in [*reply.headers, (b"content-type", reply.media)]}
    return Answer(reply.status, found, reply.body)


# ---------------------------------------------------------------------- errors of the library


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
def test_each_error_of_the_library_is_a_problem_with_its_code_and_values(error: IssuerError) -> None:
    found = answered(error)
    assert found.code == error.code
    content = view(outside(error))
    for name, value in content.items():
        if name not in ("error", "message"):
            assert found.json[name] == json.loads(json.dumps(value)), name
    assert ("retry-after" in found.headers) == (found.status in (429, 503))
    assert ("www-authenticate" in found.headers) == (found.status == 401)
    assert found.status in (400, 401, 403, 404, 409, 422, 429, 500, 503)


def test_each_status_stands_for_what_it_means() -> None:
    expected = {
        "unauthenticated": 401, "forbidden": 403, "refused": 403, "unknown_tag": 404, "tag_exists": 409,
        "tag_differs": 409, "limit_reached": 409, "format_overflow": 409, "not_decodable": 422, "invalid_argument": 400,
        "configuration": 422, "scheme": 422, "too_many_requests": 429, "unavailable": 503, "store_unavailable": 503,
        "store_full": 503, "called_within": 503,
        "redis_unavailable": 503, "clock_behind": 503, "no_machine_number": 503, "fence": 503, "store_behind": 503,
        "foreign_hash": 500, "failed": 500, "corrupt_state": 500, "journal_damaged": 500, "strategy_failed": 500,
        "transform_failed": 500,
    }  # fmt: skip
    assert {error.code: status_of(error) for error in ERRORS} == expected
    assert {kind for kind, _ in STATUSES} <= {each for each in vars(errors).values() if isinstance(each, type)}


@pytest.mark.parametrize(("seconds", "header"), [(0.001, "1"), (1.0, "1"), (1.2, "2"), (29.5, "30")])
def test_retry_after_is_a_whole_second_no_sooner_than_it_makes_sense(seconds: float, header: str) -> None:
    assert answered(errors.StoreUnavailable("away", retry_after=seconds)).headers["retry-after"] == header


def test_numbers_that_an_error_carries_are_strings_if_the_client_wants_them_so() -> None:
    limit = issuer.LimitReached("orders", limit=2**63 - 1, value=2**63 - 1)
    limit.drawn = [2**63 - 2, 2**63 - 1]
    found = answered(limit, as_string=True).json
    assert (found["limit"], found["drawn"]) == (str(2**63 - 1), [str(2**63 - 2), str(2**63 - 1)])


async def test_a_closed_issuer_is_a_service_that_is_away() -> None:
    async with open_door("a") as door:
        for _ in range(2):
            await door.good("POST", NEXT)
        await door.ids.close()
        for path in (NEXT, "/v1/tags/a/take"):
            found = await door.ask("POST", path, {"n": 2} if path.endswith("take") else None)
            assert (found.status, found.code, found.headers["retry-after"]) == (503, "failed", "1")
        assert (await door.ask("GET", "/livez")).status == 200


# ---------------------------------------------------------------------- faults within


@pytest.mark.parametrize("broken", ["next", "take", "composed", "tags", "create", "ready"])
async def test_a_fault_within_is_a_500_that_tells_nothing(
    broken: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise RuntimeError(f"mongodb://admin:{SECRET}@db")

    calls: dict[str, tuple[Any, ...]] = {
        "next": ("POST", NEXT),
        "take": ("POST", "/v1/tags/a/take", {"n": 5}),
        "composed": ("POST", NEXT, {"timeout": 1}),
        "tags": ("GET", "/v1/tags"),
        "create": ("POST", "/v1/tags", {"tag": "x"}),
        "ready": ("GET", "/readyz"),
    }

    async with open_door("a") as door:
        if found := {"tags": "tag_pages", "ready": "store_ready"}.get(broken):  # they read the store by pages
            monkeypatch.setattr(Care, found, fails)
        elif broken == "take":
            monkeypatch.setattr(AsyncEngine, "ranges", fails)
        else:
            monkeypatch.setattr(issuer.AsyncIssuer, broken, fails)
        with caplog.at_level(logging.DEBUG):
            answer = await door.ask(*calls[broken], token="issuer_" + SECRET)
        assert (answer.status, answer.code) == (500, "internal")
        assert {*answer.json} == {"type", "title", "status", "code", "detail"}
        for word in (SECRET, "RuntimeError", "Traceback", ".py", "mongodb"):
            assert word not in answer.body.decode() + str(answer.headers)
    assert SECRET not in caplog.text
    assert "Traceback" not in caplog.text
    assert "RuntimeError in fails (test_refusals.py:" in caplog.text, "the log says where"


async def test_a_fault_of_the_short_way_is_one_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_door("a") as door:
        await door.good("POST", NEXT)

        async def fails(_tag: str) -> int:
            raise ValueError(SECRET)

        monkeypatch.setattr(door.app, "_next", fails)
        found = await door.ask("POST", NEXT)
        assert (found.status, found.code) == (500, "internal")
        assert SECRET not in found.body.decode()


async def test_a_store_that_is_away_is_a_503_on_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_door(settings={"timeout": 0.2, "insist": 0.1}) as door:
        await door.ids.create("a", step=1, timeout=60)
        await door.good("POST", NEXT, {"timeout": 60})

        def away(*_: object, **__: object) -> None:
            raise Unconfirmed(f"mongodb is away, {SECRET[:7]}")

        monkeypatch.setattr(MemoryStore, "reserve", away)
        for body in (None, {"timeout": 0.1}):
            found = await door.ask("POST", NEXT, body)
            assert (found.status, found.code) == (503, "store_unavailable")
            assert int(found.headers["retry-after"]) >= 1
            assert found.json["detail"] == (
                "the store did not answer in time, or did not reserve numbers: the log of the server has the reason"
            )


@pytest.mark.parametrize(
    "error",
    [
        errors.UnknownTag("a", store="mongodb://db.internal/ids"),
        errors.StoreUnavailable("store: db.internal:27017: connection refused", tag="a"),
        errors.StoreFull("store: /srv/db.internal/ids.db is full", tag="a", path="/srv/db.internal/ids.db"),
        errors.RedisUnavailable("redis db.internal:6379: connection refused", tag="a"),
        errors.ConfigurationError("store: mysql://db.internal/ids: no such table", tag="a"),
        errors.FenceError("redis db.internal:6379 is a read-only replica", tag="a"),
        errors.JournalDamaged("/srv/db.internal/journal: line 7", tag="a", path="/srv/db.internal/journal", line=7),
    ],
    ids=lambda error: error.code,
)
def test_only_the_log_has_the_addresses_of_servers(
    error: IssuerError, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("issuer.doors.outside._sparing", Sparing())
    found = answered(error)
    assert found.code == error.code
    assert found.json["tag"] == "a"
    assert b"db.internal" not in found.body
    assert b"db.internal" not in failure(error)
    assert isinstance(error, errors.UnknownTag) or "db.internal" in caplog.text


# ---------------------------------------------------------------------- requests


BODIES = [
    (b"{", 400, "malformed"),
    (b"[]", 400, "malformed"),
    (b"5", 400, "malformed"),
    (b"null", 400, "malformed"),
    (b'"x"', 400, "malformed"),
    (b"{}{}", 400, "malformed"),
    (b"\xff", 400, "malformed"),
    (b"\xef\xbb\xbf{}", 400, "malformed"),
    (json.dumps({}).encode("utf-16"), 400, "malformed"),
    (b'{"timeout": NaN}', 400, "malformed"),
    (b'{"timeout": Infinity}', 400, "malformed"),
    (b'{"timeout": -Infinity}', 400, "malformed"),
    (b'{"timeout": 1, "timeout": 1}', 400, "malformed"),
    (b'{"shard_key": {"a": 1, "a": 2}}', 400, "malformed"),
    (b'{"shard_key": "\\ud800"}', 400, "malformed"),
    (b'{"\\udfff": 1}', 400, "malformed"),
    (b"[" * 60_000, 400, "malformed"),
    (b'{"a":' * 10_000, 400, "malformed"),
    (b'{"timeout": ' + b"9" * 5000 + b"}", 400, "invalid_argument"),
    (b'{"timeout": -1}', 400, "invalid_argument"),
    (b'{"timeout": true}', 422, "wrong_type"),
    (b'{"timeout": "5"}', 422, "wrong_type"),
    (b'{"timeout": null}', 422, "wrong_type"),
    (b'{"shard_key": 5}', 422, "wrong_type"),
    (b'{"shard_key": "x"}', 400, "invalid_argument"),
    (b'{"restart_key": "x"}', 400, "invalid_argument"),
    (b'{"ttl": 60}', 400, "invalid_argument"),
    (b'{"key": "x"}', 422, "unknown_member"),
    (b'{"__class__": 1}', 422, "unknown_member"),
    (b" " * (BODY_MOST + 1), 413, "too_large"),
]


@pytest.mark.parametrize("given", ["5\n", "", "-5", "5.0", "9" * 20])
async def test_a_number_as_a_text_has_digits_only(given: str) -> None:
    async with open_door("a") as door:
        assert await door.refused("POST", "/v1/tags/a/recover", {"at_least": given}) == (422, "wrong_type")


@pytest.mark.parametrize(("body", "status", "code"), BODIES, ids=range(len(BODIES)))
async def test_a_body_that_isn_t_as_it_should_be_is_refused_and_draws_nothing(
    body: bytes, status: int, code: str
) -> None:
    async with open_door("a") as door:
        json_ = [("Content-Type", "application/json")]
        assert await door.refused("POST", NEXT, sent=body, headers=json_) == (status, code)
        halves = [body[: len(body) // 2], body[len(body) // 2 :]]
        assert await door.refused("POST", NEXT, pieces=halves, headers=json_) == (status, code), "without a length"
        assert (await door.good("POST", NEXT))["number"] == 1


async def test_a_body_as_large_as_may_be_is_taken_and_no_byte_more_is_read() -> None:
    async with open_door("a") as door:
        json_ = [("Content-Type", "application/json")]
        padded = b"{" + b" " * (BODY_MOST - 2) + b"}"
        assert (await door.good("POST", NEXT, sent=padded, headers=json_))["number"] == 1
        endless = [b" " * 10_000] * 1000
        lengths = [[("Content-Length", length)] for length in ("70000", "9" * 30, "-1", "x", "")]
        for pieces, headers in [(endless, []), *(([b"{}"], each) for each in lengths)]:
            found = await door.ask("POST", NEXT, pieces=pieces, headers=[*json_, *headers])
            assert (found.status, found.code) == (413, "too_large")
            assert found.headers["connection"] == "close", "what is left of the body is no request"
        assert (await door.good("POST", NEXT))["number"] == 2


@pytest.mark.parametrize(
    ("said", "body", "status"),
    [
        (None, b"", 200),
        (None, b"{}", 415),
        ("application/json", b"", 200),
        ("application/json", b"{}", 200),
        ("Application/JSON; charset=UTF-8", b"{}", 200),
        ('application/json;charset="utf-8"', b"{}", 200),
        ("application/json; charset=latin-1", b"{}", 415),
        ("text/plain", b"{}", 415),
        ("text/plain", b"", 415),
        ("application/x-www-form-urlencoded", b"", 415),
        ("application/x-www-form-urlencoded", b"n=5", 415),
        ("multipart/form-data; boundary=x", b"--x--", 415),
        ("application/problem+json", b"{}", 415),
        ("", b"{}", 415),
        ("", b"", 200),
    ],
)
async def test_a_body_says_that_it_is_json(said: str | None, body: bytes, status: int) -> None:
    async with open_door("a") as door:
        headers = [] if said is None else [("Content-Type", said)]
        for expected in (1, 2):  # the long way, and what could be the short one
            answer = await door.ask("POST", NEXT, sent=body, headers=headers)
            assert answer.status == status
            assert answer.json["number"] == expected if status == 200 else answer.code == "unsupported_media_type"
        assert (await door.good("POST", NEXT))["number"] == (3 if status == 200 else 1)


@pytest.mark.parametrize(
    ("target", "status", "code"),
    [
        ("/v1/tags/a%/next", 400, "malformed"),
        ("/v1/tags/a%4/next", 400, "malformed"),
        ("/v1/tags/%zz/next", 400, "malformed"),
        ("/v1/tags/%ff/next", 400, "malformed"),
        ("/v1/tags/%ed%a0%80/next", 400, "malformed"),
        ("/v1/tags/%00/next", 400, "invalid_argument"),
        ("/v1/tags/%20a/next", 400, "invalid_argument"),
        ("/v1/tags/" + "x" * 201 + "/next", 400, "invalid_argument"),
        ("/v1/tags//next", 404, "not_found"),
        ("/v1/tags/a/next/", 404, "not_found"),
        ("/v1/tags/a/draw", 404, "not_found"),
        ("/v1/tags/", 404, "not_found"),
        ("//v1/tags/a/next", 404, "not_found"),
        ("/V1/tags/a/next", 404, "not_found"),
        ("/", 404, "not_found"),
        ("", 404, "not_found"),
        ("*", 404, "not_found"),
        ("/v1/tags/a/next?n=5", 422, "unknown_parameter"),
        ("/v1/tags/a/next?timeout=5", 422, "unknown_parameter"),
        ("/v1/tags/a/next?tag=b", 422, "unknown_parameter"),
        ("/v1/tags/a/next?as=number", 400, "invalid_argument"),
        ("/v1/tags/a/next?as=string&as=string", 400, "malformed"),
        ("/v1/tags/a/next?as=%ff", 400, "malformed"),
        ("/v1/tags/a/next?as=%", 400, "malformed"),
        ("/v1/tags/a/next?" + "&".join(f"a{at}=1" for at in range(101)), 400, "malformed"),
        ("/v1/tags/-/next?tag=", 400, "invalid_argument"),
    ],
)
async def test_a_path_or_query_that_isn_t_as_it_should_be_is_refused(target: str, status: int, code: str) -> None:
    async with open_door("a") as door:
        for _ in range(2):
            assert await door.refused("POST", target) == (status, code)
        assert (await door.good("POST", NEXT))["number"] == 1


async def test_no_get_draws_and_other_methods_are_told_which_there_are() -> None:
    async with open_door("a") as door:
        await door.good("POST", NEXT)
        for method in ("GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "QUERY", "next"):
            found = await door.ask(method, NEXT)
            assert (found.status, found.headers["allow"]) == (405, "POST")
        for method in ("PUT", "OPTIONS"):
            found = await door.ask(method, "/v1/tags/a")
            assert (found.status, found.headers["allow"]) == (405, "DELETE, GET, HEAD, PATCH")
        assert (await door.good("POST", NEXT))["number"] == 2


async def test_head_has_the_headers_of_get_and_no_body() -> None:
    async with open_door("a") as door:
        for path in ("/v1/tags", "/v1/tags/a", "/livez", "/openapi.json", "/docs"):
            got, headed = await door.ask("GET", path), await door.ask("HEAD", path)
            assert (headed.status, headed.body, headed.headers) == (200, b"", got.headers)
        headed = await door.ask("HEAD", "/v1/tags/b")
        assert (headed.status, headed.body) == (404, b"")


@pytest.mark.parametrize("name", ["Host", "Authorization", "Idempotency-Key", "Content-Type", "Content-Length"])
async def test_a_header_that_comes_twice_is_refused_if_it_means_two_things_then(name: str) -> None:
    async with open_door("a") as door:
        for _ in range(2):
            twice = [(name, "0"), (name, "0")]
            assert await door.refused("POST", NEXT, headers=twice, host=None) == (400, "malformed")
            doubled = [("X-Other", "a"), ("X-Other", "b"), ("Accept", "*/*"), ("Accept", "text/html")]
            await door.good("POST", NEXT, headers=doubled)
        assert (await door.good("POST", NEXT))["number"] == 3


async def test_a_client_that_goes_before_its_request_is_there_draws_nothing() -> None:
    async with open_door("a") as door:
        sent: list[Any] = []

        async def gone() -> Any:
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http", "http_version": "1.1", "method": "POST", "path": NEXT, "raw_path": NEXT.encode(),
            "query_string": b"", "root_path": "", "headers": [(b"content-length", b"2")],
        }  # fmt: skip
        await door.app(scope, gone, send)
        assert [each.get("status") for each in sent] == [400, None]
        assert (await door.good("POST", NEXT))["number"] == 1


async def test_a_call_waits_no_longer_than_it_asks_and_than_the_server_has_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float | None] = []
    real = numbers.ranges

    async def ranges(service: Any, call: Any, tag: str, n: int, timeout: float | None) -> Any:
        asked.append(timeout)
        return await real(service, call, tag, n, timeout)

    monkeypatch.setattr(numbers, "ranges", ranges)
    async with open_door("a", longest=2.5) as door:
        for timeout in (0.5, 2, 3, 1e6, float("1e300")):
            await door.good("POST", "/v1/tags/a/take", {"n": 1, "timeout": timeout})
        await door.good("POST", "/v1/tags/a/take", {"n": 1})
        await door.good("GET", "/v1/tags?timeout=1.5")
        for wrong in ("x", "-1", "nan", "inf", "1e5", ""):
            assert await door.refused("GET", f"/v1/tags?timeout={wrong}") == (400, "invalid_argument")
    assert asked == [0.5, 2, 2.5, 2.5, 2.5, None]


@pytest.mark.parametrize("longest", [0, -1, float("nan"), "5", True])
async def test_a_server_without_time_for_a_call_is_refused(longest: Any) -> None:
    with pytest.raises(issuer.InvalidArgument, match="longest must be"):
        async with open_door(longest=longest):
            raise AssertionError
