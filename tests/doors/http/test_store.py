"""The route by which another issuer uses the store: what a token may do there, and what it can't be made to do."""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from issuer.doors.access import Access
from issuer_persistence.contract import Store
from issuer_persistence.errors import Unconfirmed
from issuer_persistence.ledger import Purpose
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import HIGHEST, TagSettings, fresh_version
from issuer_persistence.remote.store import BATCH, PAGE
from tests.doors.http.doors import Answer, Door, open_door, tokens

ID = fresh_version()
RESERVE = {"reason": "load", "id": ID}

#: Each call with arguments that are right, and the scope that it needs.
CALLS: dict[str, tuple[str, Any]] = {
    "get": ("read", {}),
    "reserve": ("reserve", RESERVE),
    "hand_back": ("reserve", {"entries": [ID], "version": "x", "used": 0}),
    "halt": ("reserve", {"below": 0}),
    "segments": ("read", {"count": 1}),
    "entries": ("read", {"ids": [ID]}),
    "own": ("read", {"ids": [ID]}),
    "batch": ("read", {"read": "get", "options": {}}),
    "configure": ("admin", {"settings": {"step": 5}}),
    "create_many": ("admin", {}),
    "delete": ("admin", {}),
    "recover": ("admin", {"at_least": 0}),
}
#: The scopes with which a token may make calls that need a scope.
SUFFICIENT = {"read": {"read", "reserve", "admin"}, "reserve": {"reserve", "admin"}, "admin": {"admin"}}
#: Calls that concern no tag.
OF_NONE = {"store_id", "made_id", "examine", "witnessed", "tags"}


class Caller:
    """Sends calls with a token."""

    def __init__(self, door: Door, token: str) -> None:
        self.door, self._token = door, token

    async def ask(self, name: str, tag: str = "", **arguments: Any) -> Answer:
        body = {"call": name, "tag": tag, "arguments": arguments}
        return await self.door.ask("POST", "/v1/store", body, token=self._token)

    async def good(self, name: str, tag: str = "", **arguments: Any) -> Any:
        answer = await self.ask(name, tag, **arguments)
        assert answer.status == 200, answer
        return answer.json["result"]

    async def refused(self, name: str, tag: str = "", **arguments: Any) -> tuple[int, str]:
        answer = await self.ask(name, tag, **arguments)
        return answer.status, answer.code


@asynccontextmanager
async def callers(folder: Path, store: Store | None = None, **given: Any) -> AsyncIterator[dict[str, Caller]]:
    """Open a door, with callers by the names of their tokens, and the tags a, b and shop."""
    access, made = tokens(folder, **given)
    async with open_door("a", "b", "shop", access=access, store=store or MemoryStore()) as door:
        yield {name: Caller(door, token) for name, token in made.items()}


def of(name: str, tag: str, arguments: Any) -> dict[str, Any]:
    """Return the arguments of a call for this tag."""
    if name == "create_many":
        return {"settings": {tag: {}}}
    return {**arguments, "tags": [tag]} if name == "batch" else arguments


@pytest.mark.parametrize("name", CALLS)
async def test_a_token_reaches_its_tags_by_the_calls_of_its_scope_and_no_other(name: str, tmp_path: Path) -> None:
    scope, arguments = CALLS[name]
    scopes: Any = {each: ([each], ["a", "new"]) for each in ("read", "issue", "reserve", "admin")}
    tag = "new" if name == "create_many" else "a"
    async with callers(tmp_path, **scopes) as by:
        for has, caller in by.items():
            arguments = {**arguments, "id": fresh_version()} if name == "reserve" else arguments
            told = "" if name in ("batch", "create_many") else tag
            answer = await caller.ask(name, told, **of(name, tag, arguments))
            assert (answer.status == 200) is (has in SUFFICIENT[scope]), (has, answer)
            # A tag that is named beside the one that counts is no way around.
            others = [("b", of(name, "b", arguments))]
            others += [(tag, of(name, "b", arguments))] if name in ("batch", "create_many") else []
            for beside, given in others:
                assert await caller.refused(name, beside, **given) == (403, "forbidden"), has


async def test_what_concerns_no_tag_shows_those_of_the_token(tmp_path: Path) -> None:
    class Witness(MemoryStore):
        def witnessed(self, *, timeout: float) -> dict[str, int]:  # noqa: ARG002 - the contract's
            return {"a": 1, "b": 2}

    given: dict[str, Any] = {"some": (["reserve"], ["a", "s*"]), "reader": (["read"], ["a", "s*"])}
    async with callers(tmp_path, Witness(), **given, none=(["issue"], ["*"])) as by:
        for name in given:
            assert [each["tag"] for each in (await by[name].good("tags", count=9))["tags"]] == ["a", "shop"]
            assert await by[name].good("witnessed") == {"a": 1}
            assert {*await by[name].good("examine")} == {"version", "lasting", "time"}
        assert await by["some"].good("made_id") == await by["reader"].good("store_id")
        for name in OF_NONE:
            assert await by["none"].refused(name, count=9) == (403, "forbidden")


async def test_a_token_that_only_reads_changes_nothing(tmp_path: Path) -> None:
    """Not even what an issuer adapts or reports by itself."""
    store = MemoryStore()
    async with callers(tmp_path, store, it=(["read"], ["*"]), region=(["reserve"], ["*"])) as by:
        store.create("auto", TagSettings(step_mode="auto", step=10, min_step=10, max_step=100), timeout=5)
        made = await by["region"].good("reserve", "auto", **RESERVE, n=10)

        def stored() -> object:
            return store.tags(count=99, timeout=5), store.segments("auto", count=99, timeout=5)

        before = stored()
        writes: dict[str, Any] = {
            "made_id": {},
            "reserve": {**RESERVE, "id": fresh_version()},
            "hand_back": {"entries": [ID], "version": made["tag"]["version"], "used": 0},
            "halt": {"below": 100},
            "configure": {"settings": {"step": 20}},
            "create_many": {"settings": {"new": {}}},
            "delete": {},
            "recover": {"at_least": 100},
        }
        for name, arguments in writes.items():
            assert await by["it"].refused(name, "auto", **arguments) == (403, "forbidden"), name
        assert stored() == before
        reads = {name for name, (scope, _) in CALLS.items() if scope == "read"}
        assert {*writes} == {*CALLS} - reads | {"made_id"}


async def test_options_of_a_batch_name_no_other_tag(tmp_path: Path) -> None:
    async with callers(tmp_path, it=(["reserve"], ["a"])) as by:
        (found,) = await by["it"].good("batch", read="get", tags=["a"], options={"tag": "b", "of": "a newer client"})
        assert found["result"]["tag"] == "a"


BATCHES: tuple[dict[str, Any], ...] = (
    {"tags": "a"}, {"tags": ["a"] * (BATCH + 1)}, {"tags": [{"$gt": ""}]}, {"options": {"newest": -1}},
    {"options": {"newest": BATCH + 1}}, {"options": {"count": -1}}, {"options": []},
)  # fmt: skip
WRONG: list[tuple[str, Any]] = [
    *(("reserve", {**RESERVE, **each}) for each in (
        {"n": 0}, {"n": -5}, {"n": HIGHEST + 1}, {"n": 1.5}, {"n": "1"}, {"n": True}, {"at_least": -1},
        {"at_least": HIGHEST + 1}, {"id": ""}, {"id": "x" * 24}, {"id": ID + "\n"}, {"id": {"$gt": ""}},
        {"reason": "x" * 201}, {"born": "x" * 201}, {"application": "x" * 201}, {"exact": 1},
    )),
    *(("segments", each) for each in (
        {}, {"count": 0}, {"count": -1}, {"count": HIGHEST + 1}, {"count": 1, "beyond": {"$gt": 0}},
        {"count": 1, "beyond": [{"$gt": 0}, 0, ""]}, {"count": 1, "beyond": [2**64, 0, ""]},
        {"count": 1, "beyond": [0, 0]},
    )),
    *(("tags", each) for each in ({"count": -1}, {"count": 1, "after": {"$gt": ""}}, {"count": 1, "after": "x" * 201})),
    *(("entries", each) for each in ({"ids": ID}, {"ids": [{"$gt": ""}]}, {"ids": [ID] * (PAGE + 1)})),
    *(("own", each) for each in ({"ids": [{"$gt": ""}]}, {"ids": [ID] * (PAGE + 1)})),
    *(("hand_back", {"entries": [ID], "version": "x", "used": 0, **each}) for each in (
        {"used": -1}, {"used": HIGHEST + 1}, {"entries": ["x"]}, {"entries": [{"$gt": ""}]}, {"version": {"$ne": ""}},
    )),
    *(("halt", each) for each in ({"below": -1}, {"below": HIGHEST + 1}, {"below": "1"})),
    *(("recover", each) for each in ({"at_least": -1}, {"at_least": HIGHEST + 1}, {"at_least": None})),
    *(("batch", {"read": "get", "tags": ["a"], "options": {}, **each}) for each in BATCHES),
    ("configure", {"settings": {}, "raise_to": -1}),
    ("configure", {"settings": {}, "seen": {"$ne": ""}}),
    ("create_many", {"settings": {"a": []}}),
    ("create_many", {"settings": ["a"]}),
]  # fmt: skip


async def test_arguments_of_another_type_or_size_are_refused_before_the_store_is_asked(tmp_path: Path) -> None:
    class Asked(MemoryStore):
        calls = 0

        def transaction(self, *given: Any, **more: Any) -> Any:
            Asked.calls += 1
            return super().transaction(*given, **more)

    async with callers(tmp_path, Asked(), it=(["admin"], ["*"])) as by:
        before = Asked.calls
        for name, arguments in WRONG:
            assert await by["it"].refused(name, "a", **arguments) == (422, "wrong_type"), (name, arguments)
        for tag in ("", "x" * 201, "a\0", "a\n"):
            assert await by["it"].refused("get", tag) == (400, "invalid_argument")
            assert await by["it"].refused("batch", read="get", tags=["a", tag], options={}) == (400, "invalid_argument")
            assert await by["it"].refused("create_many", settings={tag: {}}) == (400, "invalid_argument")
        assert await by["it"].refused("create_many", settings={" a": {}}) == (400, "invalid_argument")
        assert await by["it"].refused("prune", before=HIGHEST) == (422, "wrong_type")
        assert Asked.calls == before
        for settings in ({"step": 0}, {"step": "x"}, {"newer": 1}, {"limit": HIGHEST + 1}, {"scheme": {"a": 0.5}}):
            assert await by["it"].refused("create_many", settings={"new": settings}) == (400, "invalid_argument")
        for changes in ({"step": 0}, {"order": "trend"}, {"seen": "x"}, {"self": 1}, {"step": {"$inc": 1}}):
            assert await by["it"].refused("configure", "a", settings=changes) == (400, "invalid_argument")
        assert await by["it"].refused("batch", read="delete", tags=["a"], options={}) == (400, "invalid_argument")
        assert (await by["it"].good("get", "new")) is None


async def test_a_reply_has_no_more_than_a_page(tmp_path: Path) -> None:
    counts: list[int] = []

    class Counted(MemoryStore):
        def segments(self, tag: str, *, count: int, **more: Any) -> Any:
            counts.append(count)
            return super().segments(tag, count=count, **more)

        def tags(self, *, count: int, **more: Any) -> Any:
            counts.append(count)
            return super().tags(count=count, **more)

    async with callers(tmp_path, Counted(), it=(["reserve"], ["*"])) as by:
        await by["it"].good("segments", "a", count=HIGHEST)
        await by["it"].good("tags", count=HIGHEST)
        await by["it"].good("batch", read="segments", tags=["a", "b"], options={"count": HIGHEST})
        assert counts == [PAGE, PAGE, PAGE // 2, PAGE // 2]


async def test_a_large_reply_is_refused_if_clients_make_the_server_hold_too_much(tmp_path: Path) -> None:
    async with callers(tmp_path, it=(["admin"], ["*"])) as by:
        await by["it"].good("create_many", settings={"large": {"description": "x" * 40_000}})
        application = by["it"].door.app
        application.service.budget.hold(application.service.budget.most - 30_000)
        assert await by["it"].refused("get", "large") == (503, "busy")
        await by["it"].good("reserve", "large", **RESERVE)


async def test_a_range_is_reserved_once_for_an_id_and_handed_back_by_its_token_only(tmp_path: Path) -> None:
    region = (["reserve"], ["*"])
    async with callers(tmp_path, one=region, two=region) as by:
        first = await by["one"].good("reserve", "a", **RESERVE, n=10, application="two")
        assert await by["one"].good("reserve", "a", **RESERVE, n=10, again=True) == first
        assert (await by["one"].ask("reserve", "a", **RESERVE, n=10)).status == 503
        assert (await by["two"].good("reserve", "a", **RESERVE, n=10, again=True))["low"] > first["high"]
        (entry,) = await by["one"].good("own", "a", ids=[ID])
        assert (entry["application"], entry["low"], entry["high"]) == ("one", 0, 10)
        second = fresh_version()
        made = await by["one"].good("reserve", "a", reason="load", id=second, n=10)
        given: dict[str, Any] = {"entries": [second], "version": made["tag"]["version"], "used": made["low"] + 3}
        assert await by["two"].good("hand_back", "a", **given) is False
        assert await by["one"].good("hand_back", "a", **{**given, "version": "x" * 24}) is False
        assert (await by["one"].good("get", "a"))["max"] == made["high"]


async def test_a_request_that_still_runs_when_it_comes_again_is_the_same_range(tmp_path: Path) -> None:
    class Running(MemoryStore):
        looks = 0

        def own(self, tag: str, ids: Any, *, timeout: float) -> Any:
            Running.looks += 1
            return [] if Running.looks == 1 else super().own(tag, ids, timeout=timeout)

    async with callers(tmp_path, Running(), it=(["reserve"], ["*"])) as by:
        first = await by["it"].good("reserve", "a", **RESERVE, n=10)
        again = await by["it"].good("reserve", "a", **RESERVE, n=10, again=True)
        assert (again["low"], again["high"]) == (first["low"], first["high"])
        assert Running.looks == 2
        assert (await by["it"].ask("reserve", "none", **RESERVE, again=True)).json["error"]["kind"] == "TagMissing"


async def test_numbers_are_handed_back_up_to_the_end_of_the_newest_reservation(tmp_path: Path) -> None:
    async with callers(tmp_path, it=(["reserve"], ["*"])) as by:
        it, ids = by["it"], [fresh_version() for _ in range(3)]
        made = [await it.good("reserve", "a", reason="load", id=each, n=10) for each in ids]
        version = made[-1]["tag"]["version"]
        # Not from the middle, not twice, not of an id that there is not, and not of a tag that it is not of.
        assert await it.good("hand_back", "a", entries=ids[:2], version=version, used=5) is False
        assert await it.good("hand_back", "a", entries=[ids[2], fresh_version()], version=version, used=25) is False
        assert await it.good("hand_back", "b", entries=ids[2:], version=version, used=25) is False
        assert await it.good("hand_back", "a", entries=ids[1:], version=version, used=0) is False, "shortened before"
        assert await it.good("hand_back", "a", entries=ids[2:], version=version, used=0) is True
        assert (await it.good("get", "a"))["max"] == 20


async def test_an_issuer_adapts_steps_and_halts_what_has_gone_back_without_being_an_operator(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "issuer.audit")
    store, auto = MemoryStore(), TagSettings(step_mode="auto", step=10, min_step=10, max_step=100)
    region = {"it": (["reserve"], ["*"]), "ops": (["admin"], ["*"])}
    async with callers(tmp_path, store, **region) as by:
        store.create("auto", auto, timeout=5)
        it = by["it"]

        async def audited(name: str, tag: str, **arguments: Any) -> tuple[int, list[str]]:
            caplog.clear()
            status = (await it.ask(name, tag, **arguments)).status
            return status, [each.getMessage().split(" from ")[0] for each in caplog.records]

        assert await audited("configure", "auto", settings={"step": 20}) == (200, [])
        assert await audited("reserve", "auto", **RESERVE) == (200, [])
        for tag, changes in (
            ("auto", {"settings": {"step": 101}}),
            ("auto", {"settings": {"step": 9}}),
            ("auto", {"settings": {"step": 20, "limit": 500}}),
            ("auto", {"settings": {"step": 20}, "raise_to": 500}),
            ("auto", {"settings": {}, "raise_to": 500}),
            ("a", {"settings": {"step": 20}}),
            ("none", {"settings": {"step": 20}}),
        ):
            status, (line,) = await audited("configure", tag, **changes)
            assert (status, line) == (403, f"store.configure of tag {tag!r}: 403, by token 'it'"), changes
            caplog.clear()
            from issuer.doors.web import guard

            guard._sparing._said.clear()
        # The step is not changed if somebody has made it a fixed one meanwhile.
        record = store.get("auto", timeout=5)
        assert record is not None
        assert record.step == 20
        assert await audited("halt", "auto", below=record.max) == (200, [])
        assert await audited("halt", "auto", below=record.max + 1) == (
            200, ["store.halt of tag 'auto': 200, by token 'it'"]
        )  # fmt: skip
        assert (await audited("halt", "a"))[0] == 403
        it = by["ops"]
        for name, (scope, arguments) in CALLS.items():
            caplog.clear()
            tag = "later" if name == "create_many" else "a"
            await it.ask(name, tag, **of(name, tag, arguments))
            lines = [
                each.getMessage() for each in caplog.records if f"store.{name} of tag {tag!r}" in each.getMessage()
            ]
            assert len(lines) == (scope == "admin"), name


async def test_a_step_that_an_operator_sets_meanwhile_stays(tmp_path: Path) -> None:
    class Slow(MemoryStore):
        def configure(self, tag: str, changes: Any, *, timeout: float) -> Any:
            if changes.settings == {"step": 20}:
                super().configure(tag, type(changes)(step_mode="fixed", step=7), timeout=timeout)
            return super().configure(tag, changes, timeout=timeout)

    store = Slow()
    async with callers(tmp_path, store, it=(["reserve"], ["*"])) as by:
        store.create("auto", TagSettings(step_mode="auto", min_step=10), timeout=5)
        answer = await by["it"].ask("configure", "auto", settings={"step": 20})
        assert answer.json["error"]["kind"] == "VersionMoved"
        assert (await by["it"].good("get", "auto"))["step"] == 7


async def test_a_token_names_no_entry_of_somebody_else(tmp_path: Path) -> None:
    """Not even one with its name as label: by its own label, which is `issuer`, the server reserves its segments."""
    store = MemoryStore()
    async with callers(tmp_path, store, issuer=(["reserve"], ["*"]), other=(["reserve"], ["*"])) as by:
        made = store.reserve("a", 10, purpose=Purpose("load", "issuer", id=ID), timeout=5)
        given: dict[str, Any] = {"entries": [ID], "version": made.version, "used": 0}
        assert await by["issuer"].good("hand_back", "a", **given) is False
        assert await by["issuer"].good("own", "a", ids=[ID]) == []
        assert (await by["issuer"].good("reserve", "a", **RESERVE, n=10, again=True))["low"] == 10
        (entry,) = await by["issuer"].good("own", "a", ids=[ID])
        assert (entry["id"], entry["low"], entry["application"]) == (ID, 10, "issuer")
        (shown,) = (await by["other"].good("segments", "a", count=1))["entries"]
        for name in (ID, shown["id"]):
            assert await by["other"].good("own", "a", ids=[name]) == []


async def test_errors_of_the_store_itself_show_nothing_of_it(tmp_path: Path) -> None:
    class Away(MemoryStore):
        def get(self, tag: str, *, timeout: float) -> Any:
            if tag == "b":
                raise Unconfirmed("mongodb://10.0.0.5 is away")
            return super().get(tag, timeout=timeout)

    async with callers(tmp_path, Away(), it=(["reserve"], ["*"])) as by:
        for tags in (["b"], ["b", "shop"]):
            answer = await by["it"].ask("batch", read="get", tags=tags, options={})
            assert (answer.status, answer.code) == (503, "store_unavailable")
            assert b"10.0.0.5" not in answer.body
        assert len(await by["it"].good("batch", read="get", tags=["a", "b", "shop"], options={})) == 1
        assert b"10.0.0.5" not in (await by["it"].ask("get", "b")).body


def test_every_call_is_in_the_table_above() -> None:
    from issuer.doors.web.store import NAMES

    assert {*NAMES} == {*CALLS} | OF_NONE
    assert Access(None).is_open
