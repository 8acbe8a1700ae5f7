"""`create_many`: several tags at once, all or none of them."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import issuer
from issuer import ForeignHash, InvalidArgument, IssuerError, SchemeError, TagDiffers, TagExists, UnknownTag
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import Tag
from tests.colours import BOTH, Connect
from tests.days import DAILY
from tests.schemes import Make

pytestmark = [pytest.mark.colours("blocking"), pytest.mark.covers("U.20")]

SMALL = {"shard_bits": 2, "app_bits": 8}

#: Settings of all kinds, by the name of the tag.
ASKED: dict[str, dict[str, Any]] = {
    "z": {"start": 1000, "step": 5},
    "a": {},
    "bills": {"limit": "js", "order": "trend", "lease": 3, "ahead": 2, "description": "京"},
    "coupons": {"order": "trend", "scramble": "k1", "limit": 9999},
    "users": {"shards": SMALL},
    "days": DAILY,
    "cust": {"keyed": True},
    "vienna": {"stride": 2, "offset": 1},
    "flakes": {"strategy": "snowflake"},
}


@BOTH
def test_each_tag_is_as_create_makes_it_and_issues(make: Make) -> None:
    many, single = make(), make(store=MemoryStore(), prefix="single")
    made = many.create_many(ASKED)
    assert [each.tag for each in made] == [*ASKED]
    alone = [single.create(tag, **settings) for tag, settings in ASKED.items()]

    def kept(tag: Tag) -> object:
        scheme = {name: value for name, value in tag.scheme.items() if name != "id"}
        return tag.tag, tag.max, tag.step, tag.step_mode, tag.limit, tag.order, tag.lease, tag.ahead, scheme

    assert [*map(kept, made)] == [*map(kept, alone)]
    assert [*map(kept, many.tags())] == [*map(kept, single.tags())]
    assert (many.next("z"), many.next("a"), many.issue("users", shard_key="x").counter) == (1000, 1, 1)
    assert many.next("flakes") > 0
    assert many.create_many({}) == []


BAD: list[tuple[str, dict[str, Any], type[Exception]]] = [
    ("there", {}, TagExists),
    ("users#1", {}, ForeignHash),
    ("used", {"limit": 5}, issuer.LimitReached),
    ("x", {"step": 0}, InvalidArgument),
    ("x", {"start": 5, "above": 4}, InvalidArgument),
    ("x", {"order": "strict", "lease": 5}, InvalidArgument),
    ("x", {"restart": "daily"}, SchemeError),
    ("x", {"offset": 2}, SchemeError),
    ("x", {"strategy": "nobody's"}, IssuerError),
    ("", {}, InvalidArgument),
    (" x", {}, InvalidArgument),
    ("users#2", {}, InvalidArgument),
    ("x", {"colour": "red"}, TypeError),
]


@BOTH
@pytest.mark.parametrize("place", [0, 4])
@pytest.mark.parametrize("bad", BAD)
def test_if_one_cannot_be_created_none_is(
    make: Make, store: MemoryStore, bad: tuple[str, dict[str, Any], type[Exception]], place: int
) -> None:
    ids, (tag, settings, error) = make(), bad
    if error is ForeignHash:
        other = make(store=MemoryStore())
        other.create("users#1")
        other.next("users#1")
    ids.create("there")
    ids.create("used", start=9)
    ids.delete("used")
    before = store.snapshot()
    asked: list[tuple[str, dict[str, Any]]] = [
        ("a", {}),
        ("b", {"start": 7}),
        ("users", {"shards": SMALL}),
        ("flakes", {"strategy": "snowflake"}),
    ]
    if error is ForeignHash:
        del asked[2]
    asked.insert(place, (tag, settings))
    with pytest.raises(error) as caught:
        ids.create_many(dict(asked))
    if isinstance(caught.value, IssuerError):
        assert caught.value.tag in (tag, None if tag == "" else tag, "users" if tag == "users#2" else tag)
    assert store.snapshot() == before


def test_with_exist_ok_what_exists_stays_and_what_differs_is_an_error(make: Make, store: MemoryStore) -> None:
    ids = make()
    first = ids.create_many({"a": {"step": 5}, "users": {"shards": SMALL}, "flakes": {"strategy": "snowflake"}})
    ids.next("a")
    made = ids.create_many({"b": {}, **{each.tag: {} for each in first[:1]}, "c": {"start": 5}}, exist_ok=True)
    assert [(each.tag, each.max, each.step) for each in made] == [("b", 0, 1000), ("a", 5, 5), ("c", 4, 1000)]
    before = store.snapshot()
    with pytest.raises(TagDiffers) as caught:
        ids.create_many({"d": {}, "a": {"limit": 7}, "b": {}}, exist_ok=True)
    assert (caught.value.tag, set(caught.value.differences)) == ("a", {"limit"})
    with pytest.raises(TagExists) as exists:
        ids.create_many({"d": {}, "users": {"shards": SMALL}})
    assert exists.value.tag == "users"
    assert store.snapshot() == before


def test_what_several_processes_create_at_once_is_there_once(connect: Connect, redis_url: str, tmp_path: Path) -> None:
    asked: dict[str, dict[str, Any]] = {f"t{number}": {"step": 5} for number in range(30)} | {
        "users": {"shards": SMALL}
    }
    url = f"sqlite:///{tmp_path}/store.db"
    with ExitStack() as ends, ThreadPoolExecutor(4) as pool:
        everybody = [ends.enter_context(connect(redis=redis_url, store=url)) for _ in range(4)]
        made = list(pool.map(lambda ids: ids.create_many(asked, exist_ok=True), everybody))
        assert all(each == made[0] for each in made)
        everybody[0].delete("t3")
        with pytest.raises(UnknownTag):
            everybody[0].next("t3")
        assert everybody[1].create_many({"t3": {}})[0].max == 0
