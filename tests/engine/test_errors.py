"""Records and errors as JSON shows them, errors in the words of the edge that shows them, and what is kept of them."""

import dataclasses
import gc
import json
import logging
import pickle
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date
from typing import Any

import pytest
import redis

import issuer
from issuer import values
from issuer.advice import ADVICE, command_line, http, python
from issuer.errors import IssuerError
from issuer.views import message_of, view
from issuer_persistence.errors import Corrupt, StoreError, Unconfirmed
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import fresh_version
from tests.doors.http.doors import Door, through

TAG = values.Tag(tag="orders", max=9, step=5, created=1, timestamp=2, version=fresh_version())


ENTRY = values.LedgerEntry(tag="orders", low=0, high=5, reason="extend")


SNOWFLAKE = {"strategy": "snowflake", "options": {"epoch": 0}}


STATE = values.StoreState(**{each.name: getattr(TAG, each.name) for each in dataclasses.fields(values.StoreState)})


SEEN = values.Inspection("orders", STATE, None, "strict", 99, None, "set", "", None, None, None)


NUMBERS = values.MachineNumbers([values.MachineNumber(3, "", None, 5, 0)], 1024)


RECORDS = [
    TAG,
    dataclasses.replace(TAG, scheme=SNOWFLAKE),
    ENTRY,
    values.LedgerPage([ENTRY], [Corrupt("orders", "no number")], (5, 0, "id")),
    values.Readiness(store=issuer.StoreUnavailable("away"), halted=["orders"]),
    STATE,
    SEEN,
    dataclasses.replace(SEEN, scheme=SNOWFLAKE, redis=values.RedisState(1, 2, 1, None, None, "f", "b"), period="x"),
    values.RedisState(1, 2, 1, None, None, "f", "b"),
    values.Waste(1, 5, 0),
    values.Issued("orders", 5, "5"),
    values.Decoded("orders", 5, 5, date=date(2026, 11, 23), fields={"machine": 3}, holder="host"),
    values.Provenance("orders", 5, [ENTRY], None, ENTRY, 9, None, 9),
    values.Recovery("orders", None, 9, 4, asked=("a:1",)),
    values.Finding("tag-limit", "weak", "orders", "what", "why", error=issuer.UnknownTag("orders")),
    NUMBERS,
    *NUMBERS.used,
    values.Discrepancy("orders", "overlap", "1..5 were reserved twice", (1, 5), (ENTRY, ENTRY)),
    values.Discrepancy("orders", "Redis not looked at", "away", values={"key": "issuer:{orders}"}),
]


BEHIND = "the store is behind: tag 'orders' has max 5, but 9 is taken"


AWKWARD = {"by": {1: [2**70, float("inf"), b"x", range(2)]}, "day": date(2026, 1, 1)}


ERRORS = [
    issuer.IssuerError("closed"),
    issuer.ConfigurationError("no"),
    issuer.SchemeError("no", setting="scramble_strict", value=AWKWARD),
    issuer.ForeignHash("orders", key="k", owner="s1", store="s2", taken=5),
    issuer.InvalidArgument("no", value=10**5000, argument="at_least"),
    issuer.NotDecodable("no"),
    issuer.FormatOverflow(100, width=2, field="seq"),
    issuer.UnknownTag("it's {}", store="memory://"),
    issuer.TagExists("orders"),
    issuer.TagDiffers("orders", {"step": (5, 6)}),
    issuer.LimitReached("orders", limit=9, value=9),
    issuer.Refused("orders", plugin="Mine", reason="no"),
    issuer.TransformFailed("orders", plugin="Mine", numbers=[5]),
    issuer.Unauthenticated("no token was sent"),
    issuer.Forbidden("billing", scope="admin", scopes=["issue"], tag="orders"),
    issuer.Unavailable("away", retry_after=0.12345),
    issuer.TooManyRequests("too many", retry_after=0.5),
    issuer.StoreUnavailable("away"),
    issuer.StoreFull("no space is left", path="store.db"),
    issuer.RedisUnavailable("away", tag="orders", advice="redis_unavailable.recover"),
    issuer.CalledWithin(tag="orders"),
    issuer.ClockBehind("behind", behind=5),
    issuer.NoMachineNumber("none"),
    issuer.StrategyFailed("failed", strategy="mine"),
    issuer.CorruptState("odd", tag="orders", advice="corrupt_state.hash"),
    issuer.JournalDamaged("torn", path="journal", line=3),
    issuer.FenceError("no master"),
    issuer.StoreBehind("orders", max=5, taken=9),
]


def test_each_public_record_and_error_has_a_view_that_json_takes() -> None:
    public = {getattr(module, name) for module in (issuer, values) for name in module.__all__}
    kinds = {each for each in public if isinstance(each, type) and issubclass(each, IssuerError)}
    assert {type(error) for error in ERRORS} == kinds
    assert {type(record) for record in RECORDS} == {each for each in public if dataclasses.is_dataclass(each)}
    for each in (*RECORDS, *ERRORS):
        content = json.loads(json.dumps(view(each), allow_nan=False))
        assert content, each


def test_the_view_of_an_error_has_its_code_and_what_it_carries() -> None:
    shown = [view(error) for error in ERRORS]
    assert [each["code"] for each in shown] == [error.code for error in ERRORS]
    assert len({error.code for error in ERRORS}) == len(ERRORS)
    by_code = {each["code"]: each for each in shown}
    assert by_code["unavailable"] == {
        "error": "Unavailable", "message": "away", "tag": None, "code": "unavailable", "retry_after": 0.123,
    }  # fmt: skip
    behind = {name: by_code["store_behind"][name] for name in ("tag", "max", "taken", "scheme")}
    assert behind == {"tag": "orders", "max": 5, "taken": 9, "scheme": None}
    assert by_code["scheme"]["value"] == {
        "by": {"1": [repr(2**70), "inf", "b'x'", [0, 1]]},
        "day": repr(date(2026, 1, 1)),
    }
    assert "value" in by_code["invalid_argument"]
    drawn = issuer.LimitReached("orders", limit=9, value=9)
    drawn.drawn = [1, 2]
    assert "drawn" not in drawn.values, "they are the caller's: each edge hands them out in its own way"


@pytest.mark.parametrize(
    ("code", "in_python", "in_shell", "in_http"),
    [
        ("scheme", "scramble_strict: no", "--scramble-strict: no", "scramble_strict: no"),
        ("invalid_argument", "at_least no", "--at-least no", "at_least no"),
        (
            "unknown_tag",
            """unknown tag "it's {}" in memory://; create it with ids.create("it's {}")""",
            """unknown tag "it's {}" in memory://; create it with `issuer create 'it'"'"'s {}'`""",
            """unknown tag "it's {}" in memory://; create it with POST /v1/tags {"tag": "it's {}"}""",
        ),
        (
            "tag_differs",
            "tag 'orders' exists: step is 6, not 5; use its settings, or change them with ids.configure('orders')",
            "tag 'orders' exists: step is 6, not 5; use its settings, or change them with `issuer configure orders`",
            "tag 'orders' exists: step is 6, not 5; use its settings, or change them with PATCH /v1/tags/orders",
        ),
        (
            "store_behind",
            f"{BEHIND}; reservations are stopped until ids.recover('orders') has run",
            f"{BEHIND}; reservations are stopped until `issuer recover orders` has run",
            f'{BEHIND}; reservations are stopped until POST /v1/tags/orders/recover {{"dry_run": false}} has run',
        ),
    ],
)
def test_an_error_says_what_to_do_in_the_words_of_its_edge(
    code: str, in_python: str, in_shell: str, in_http: str
) -> None:
    (error,) = (each for each in ERRORS if each.code == code)
    assert (str(error), error.told(python), error.told(command_line)) == (in_python, in_python, in_shell)
    assert error.told(http) == in_http


def test_arguments_are_members_of_json_in_the_words_of_http() -> None:
    said = ["order='trend'", "scramble_strict=True", "limit=N", "above=5", "at_least"]
    assert http(said) == '"order": "trend", "scramble_strict": true, "limit": N, "above": 5, at_least'
    assert http(["limit=N"], "configure", "a/b%#?.{}") == 'PATCH /v1/tags/a%2Fb%25%23%3F.%7B%7D {"limit": N}'
    assert http(["from_journal=[FILE]"], "recover", "orders") == "`issuer recover orders --from-journal FILE`"


def test_an_error_in_a_log_record_is_shown_by_the_command_line_in_its_words(caplog: pytest.LogCaptureFixture) -> None:
    log = logging.getLogger("issuer.test")
    log.warning("tag %r: sweep: %s", "orders", issuer.UnknownTag("orders"))
    log.warning("%(what)s, 100 %%", {"what": "a mapping"})
    log.warning("100 %")
    assert list(map(message_of, caplog.records)) == [
        "tag 'orders': sweep: unknown tag 'orders'; create it with `issuer create orders`", "a mapping, 100 %", "100 %",
    ]  # fmt: skip
    assert caplog.messages[0].endswith("create it with ids.create('orders')"), "others have the record as it was"


def test_an_advice_of_its_own_takes_the_place_of_the_codes() -> None:
    limit = issuer.LimitReached("orders", limit=9, value=9, advice="go on with another tag")
    assert str(limit).endswith("9 of 9 are reserved; go on with another tag")
    (away,) = (each for each in ERRORS if each.code == "redis_unavailable")
    assert "if Redis stays down, connect(redis='none').recover('orders', at_least=N) raises" in str(away)
    assert "`issuer --redis none recover orders --at-least N` raises" in away.told(command_line)
    assert "`issuer --redis none recover orders --at-least N` raises" in away.told(http), "no client can do it"
    assert {name.partition(".")[0] for name in ADVICE} <= {error.code for error in ERRORS}


def test_errors_survive_pickling() -> None:
    for error in (
        issuer.UnknownTag("a"),
        issuer.LimitReached("a", limit=7, value=6),
        issuer.StoreBehind("a", max=5, taken=9),
        issuer.StoreUnavailable("away", tag="a", retry_after=2.5),
        issuer.InvalidArgument("no", tag="a", value=-1),
    ):
        again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own bytes
        assert type(again) is type(error)
        assert (str(again), vars(again)) == (str(error), vars(error))


# ---------------------------------------------------------------------------------------------- kept errors


class Away(MemoryStore):
    """A store that does not answer while it is away."""

    away = False

    def answer(self) -> None:
        if self.away:
            raise Unconfirmed("away")

    def get(self, tag: str, **named: Any) -> Any:
        self.answer()
        return super().get(tag, **named)

    def reserve(self, *given: Any, **named: Any) -> Any:
        self.answer()
        return super().reserve(*given, **named)

    def tags(self, **named: Any) -> Any:
        self.answer()
        return super().tags(**named)


def raised() -> list[BaseException]:
    """Return the errors of the issuer and its servers that something holds together with a traceback."""
    kinds = (IssuerError, StoreError, redis.RedisError)
    return [each for each in gc.get_objects() if issubclass(type(each), kinds) and each.__traceback__ is not None]


@contextmanager
def nothing_kept() -> Iterator[None]:
    gc.collect()
    before = raised()
    logging.disable()  # pytest keeps the records of the log, which have the errors
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
    gc.collect()
    assert [each for each in raised() if all(each is not other for other in before)] == []


def test_an_issuer_keeps_no_error_of_a_call() -> None:
    store = Away()
    with issuer.connect(redis="none", store=store, scheduler=None, timeout=0.05) as ids:
        for tag, limit in (("a", 100_000), ("b", 100_000), ("full", 1)):
            ids.create(tag, limit=limit)
            ids.next(tag)
        with nothing_kept():
            for tag, kind in (("unknown", issuer.UnknownTag), ("full", issuer.LimitReached)):
                with pytest.raises(kind):
                    ids.next(tag)
            store.away = True
            for tag in ("a", "b"):
                with pytest.raises(issuer.StoreUnavailable):
                    ids.take(tag, 5000)
        with nothing_kept():
            store.away = False
            ids.delete("a")
            with pytest.raises(issuer.UnknownTag):
                ids.next("a")


def test_a_server_keeps_no_error_of_a_request() -> None:
    store = Away()

    async def behave(door: Door) -> None:
        await door.ids.create("a")
        with nothing_kept():
            assert await door.refused("POST", "/v1/tags/unknown/next") == (404, "unknown_tag")
            assert await door.refused("POST", "/v1/tags/unknown/next") == (404, "unknown_tag")
            store.away = True
            for tag in ("a", "b"):
                assert await door.refused("POST", f"/v1/tags/{tag}/next") == (503, "store_unavailable")
            assert (await door.good("GET", "/readyz"))["store"] == "store_unavailable"

    through(behave, store=store, settings={"timeout": 0.2, "store_timeout": 0.1})
