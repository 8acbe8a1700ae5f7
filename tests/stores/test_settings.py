"""A tag's lease, what it has ahead, its scheme and the other settings: the same promises from every store."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from issuer_persistence import scheme_json
from issuer_persistence.errors import Corrupt, LeaseOnStrict, SchemeMismatch, StepsCrossed, TagMissing, VersionMoved
from issuer_persistence.records import AHEAD_MOST, DURATION_MOST, HIGHEST, LEASE_MOST, Tag, TagChanges
from issuer_persistence.scheme_json import DEPTH_MOST, SCHEME_MOST
from issuer_persistence.sql.tables import TAG_COLUMNS
from issuer_persistence.transactional import record_of, row_of
from tests.stores.benches import (
    SCHEME,
    TIMEOUT,
    check_contiguous,
    create,
    get,
    nested,
    of_size,
    ranges,
    reserve,
    spans,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from issuer_persistence.contract import Store
    from tests.stores.benches import Bench

#: What each is of a tag that was given nothing.
SETTINGS: dict[str, Any] = {
    "lease": None, "ahead": 1, "scheme": {}, "step_mode": "fixed", "refill_at": 0.2, "survive": 0, "target": 600,
    "min_step": 1000, "max_step": 1_000_000, "drain": True,
}  # fmt: skip
OURS: dict[str, Any] = {
    "lease": 5, "ahead": 3, "scheme": SCHEME, "step_mode": "auto", "refill_at": 0.8, "survive": 120, "target": 60,
    "min_step": 5, "max_step": HIGHEST, "drain": False,
}  # fmt: skip
#: What each may become.
CHANGES: dict[str, list[Any]] = {
    "step": [20, HIGHEST],
    "limit": [500, HIGHEST],
    "description": ["other", ""],
    "lease": [500, 0, LEASE_MOST, 1],
    "ahead": [5, AHEAD_MOST, 1],
    "step_mode": ["auto", "fixed"],
    "refill_at": [0.8, 0.01, 0.333, 0.9, 0.2],
    "survive": [600, DURATION_MOST, 0],
    "target": [1, DURATION_MOST, 600],
    "min_step": [1, 1_000_000],
    "max_step": [HIGHEST, 1000],
    "drain": [False, True],
    "scheme": [{"format": "{seq}"}, nested(DEPTH_MOST), of_size(SCHEME_MOST), SCHEME, {}],
}


def ours(record: Tag) -> dict[str, Any]:
    return {name: getattr(record, name) for name in SETTINGS}


def test_a_tag_has_what_it_was_made_with_and_else_the_default(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    plain = create(one, "a", order="trend", lease=None, scheme={})
    assert ours(plain) == ours(get(two, "a")) == SETTINGS
    made = create(one, "b", order="trend", **OURS)
    assert ours(made) == ours(reserve(two, tag="b").tag) == OURS
    assert (plain.scheme_id, made.scheme_id) == ("", "9f2c")
    assert create(one, "c", order="trend", lease=0) == get(two, "c")
    assert get(two, "c").lease == 0
    # True is no number, and a number no float.
    found = get(two, "b").scheme
    assert [type(found["options"][name]) for name in ("yes", "größe", "least")] == [bool, int, int]
    assert [type(each["from"]) for each in found["stride"]] == [int, int]


@pytest.mark.covers("U.5", "3.48", "3.49")
@pytest.mark.parametrize("setting", CHANGES)
def test_it_is_changed_without_anything_else(bench: Bench, setting: str) -> None:
    one, two = bench.store, bench.open()
    before = create(one, step=10, order="trend")
    for value in CHANGES[setting]:
        changed = one.configure("orders", TagChanges(**{setting: value}), timeout=TIMEOUT)
        assert changed == replace(before, version=changed.version, timestamp=changed.timestamp, **{setting: value})
        assert changed.version != before.version
        assert get(two) == changed
        before = changed


def test_it_stays_whatever_else_changes(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    create(one, step=10, limit=1000, order="trend", **OURS)
    mine = reserve(one)
    assert one.hand_back([mine], 3, timeout=TIMEOUT)
    one.halt("orders", below=20, timeout=TIMEOUT)
    assert ours(one.recover("orders", at_least=20, timeout=TIMEOUT)) == OURS
    unsaid: dict[str, Any] = dict.fromkeys(SETTINGS)
    assert (
        ours(two.configure("orders", TagChanges(step=20, limit=90, description="x", **unsaid), timeout=TIMEOUT)) == OURS
    )
    held = [reserve(two), reserve(one)]
    assert spans(held) == [(20, 80), (80, 90)]  # the second is the short one, at the limit
    assert [ours(each.tag) for each in held] == [OURS] * 2
    assert ours(two.configure("orders", TagChanges(limit=1000, raise_to=500), timeout=TIMEOUT)) == OURS
    assert ours(one.delete("orders", timeout=TIMEOUT)) == ours(get(two)) == OURS


@pytest.mark.covers("1.9", "3.28", "U.5")
def test_what_somebody_else_has_set_holds_at_the_very_next_reservation(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    create(one, step=10, order="trend")
    got = []
    for by, ahead, step, lease in ((one, 3, 10, 50), (two, 1, 10, 0), (one, 2, 20, 7), (two, 1, 5, 8)):
        by.configure("orders", TagChanges(ahead=ahead, step=step, lease=lease), timeout=TIMEOUT)
        for held in (reserve(one), reserve(two)):
            assert held.high - held.low == ahead * step
            assert held.tag.lease == lease
            got += spans([held])
    one.configure("orders", TagChanges(limit=172), timeout=TIMEOUT)
    got += spans([reserve(two)])
    assert ranges(one) == got
    check_contiguous(got, 0, 172)


def test_a_tag_made_again_has_what_is_given_now(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    create(one, step=10, order="trend", **OURS)
    for order, lease, ahead in (("trend", None, 1), ("trend", 0, 2), ("trend", 9, 3), ("strict", None, 4)):
        again: dict[str, Any] = {"order": order, "lease": lease, "ahead": ahead, "scheme": SCHEME}
        top = reserve(one).high
        one.delete("orders", timeout=TIMEOUT)
        made = create(two, step=10, **again)
        assert {name: getattr(made, name) for name in again} == again
        assert (made.max, get(one)) == (top, made)
        held = reserve(one)
        assert (held.high, held.tag.lease) == (top + 10 * ahead, lease)


#: What each may not be, and what is said of it.
WRONG: dict[str, tuple[str, list[Any]]] = {
    "step": ("step must be an integer", [0, -1, 1.0, True, 2**63]),
    "limit": ("limit must be an integer", [0, 2**63, "5"]),
    "lease": (r"lease must be an integer in 0\.\.1000000", [-1, LEASE_MOST + 1, 2**63, 1.0, "5", True]),
    "ahead": (r"ahead must be an integer in 1\.\.1000", [0, -1, AHEAD_MOST + 1, 2**63, 1.0, "5", True]),
    "step_mode": ("step_mode must be one of fixed, auto", ["x", "", 5, True]),
    "refill_at": (r"refill_at must be a share in 0\.01\.\.0\.9", [0.0, 0.009, 0.901, 1, "0.2", True, float("nan")]),
    "survive": (r"survive must be an integer in 0\.\.2592000", [-1, DURATION_MOST + 1, 1.0, "5", True]),
    "target": (r"target must be an integer in 1\.\.2592000", [0, -1, DURATION_MOST + 1, 1.0, "5", True]),
    "min_step": ("min_step must be an integer", [0, -1, 2**63, 1.0, "5", True]),
    "max_step": ("max_step must be an integer", [0, -1, 2**63, 1.0, "5", True]),
    "drain": ("drain must be true or false", [0, 1, "false", 0.0]),
    "scheme": ("'a' holds 1.5", [{"a": 1.5}]),
    "above": ("above must be", [-1]),
    "order": ("order must be", ["random"]),
    "raise_to": ("raise_to must be an integer", [-1, 2.0, 2**63]),
    "seen": ("seen", [5]),
}


def test_what_is_out_of_range_is_a_value_error_and_changes_nothing(store: Store) -> None:
    made = create(store, order="trend", **OURS)
    for name, (message, values) in WRONG.items():
        for value in values:
            wrong: dict[str, Any] = {"step": 7, name: value}
            if name not in {"above", "order"}:
                with pytest.raises(ValueError, match=message):
                    store.configure("orders", TagChanges(**wrong), timeout=TIMEOUT)
            if name not in {"raise_to", "seen"}:
                with pytest.raises(ValueError, match=message):
                    create(store, "new", **{"order": "trend", **wrong})
    assert store.tags(count=1000, timeout=TIMEOUT) == [made]


def test_the_lowest_step_is_not_above_the_highest_one(store: Store) -> None:
    crossed: list[dict[str, Any]] = [{"min_step": 6, "max_step": 5}, {"max_step": 999}, {"min_step": 1_000_001}]
    for wrong in crossed:
        with pytest.raises(StepsCrossed):
            create(store, **wrong)
    made = create(store, min_step=5, max_step=5)
    for change in (TagChanges(min_step=6), TagChanges(max_step=4)):
        with pytest.raises(StepsCrossed) as caught:
            store.configure("orders", change, timeout=TIMEOUT)
        assert (caught.value.tag, caught.value.min_step - caught.value.max_step) == ("orders", 1)
    assert get(store) == made
    assert store.configure("orders", TagChanges(min_step=7, max_step=9), timeout=TIMEOUT).min_step == 7


def test_a_strict_tag_has_no_lease(store: Store) -> None:
    with pytest.raises(LeaseOnStrict) as caught:
        create(store, order="strict", lease=5)
    assert (caught.value.tag, caught.value.lease) == ("orders", 5)
    assert store.get("orders", timeout=TIMEOUT) is None
    made = create(store, order="strict")
    with pytest.raises(LeaseOnStrict):
        store.configure("orders", TagChanges(step=5, lease=1, scheme=SCHEME), timeout=TIMEOUT)
    assert get(store) == made
    assert store.configure("orders", TagChanges(lease=0), timeout=TIMEOUT).lease == 0
    store.delete("orders", timeout=TIMEOUT)
    with pytest.raises(LeaseOnStrict):
        create(store, order="strict", lease=9)
    assert get(store).deleted


def test_a_tag_turned_strict_behind_our_back_has_no_lease(shared_bench: Bench) -> None:
    store = shared_bench.store
    create(store, step=10, order="trend", lease=5)
    shared_bench.tamper("orders", order="strict")
    assert (get(store).order, get(store).lease) == ("strict", None)
    assert [reserve(store).low, reserve(store).low] == [0, 10]
    assert store.configure("orders", TagChanges(step=20), timeout=TIMEOUT).lease is None
    assert store.configure("orders", TagChanges(lease=0), timeout=TIMEOUT).lease == 0


def test_a_scheme_is_copied_and_compared_as_any_dict_and_never_changed_in_place() -> None:
    given = copy.deepcopy(SCHEME)
    scheme: Any = Tag(tag="a", max=0, step=1, created=0, timestamp=0, version="", scheme=given).scheme
    given["stride"][0]["from"] = 2
    of_objects = "__setitem__ __delitem__ __ior__ clear pop popitem setdefault update"
    of_lists = "__setitem__ __delitem__ __iadd__ __imul__ append clear extend insert pop remove reverse sort"
    for again in (copy.copy(scheme), copy.deepcopy(scheme), pickle.loads(pickle.dumps(scheme))):  # noqa: S301 - our own
        for place, methods in ((again, of_objects), (again["stride"][0], of_objects), (again["stride"], of_lists)):
            for method in methods.split():
                with pytest.raises(TypeError, match="in place"):
                    getattr(place, method)()
        assert again == scheme == SCHEME
    # It is part of what makes two records equal.
    plain = Tag(tag="a", max=0, step=1, created=0, timestamp=0, version="")
    assert plain != replace(plain, scheme=scheme) == replace(plain, scheme=SCHEME)
    assert len({plain, replace(plain, scheme=scheme), replace(plain, scheme=SCHEME)}) == 2


NO_SCHEMES = [
    ("x", "must be an object"),
    ([], "must be an object"),
    ({"a": 1.5}, "'a' holds 1.5"),
    ({"a": [{"b": float("nan")}]}, r"'a\[0\].b' holds nan"),
    ({"a": 2**63}, "64-bit integer"),
    ({"a": -(2**63) - 1}, "64-bit integer"),
    ({"a": b"x"}, "bytes"),
    ({"a": {1, 2}}, "set"),
    ({"a": "\ud800"}, "surrogate"),
    ({"\ud800": 1}, "surrogate"),
    ({1: "a"}, "not a text"),
    ({"": 1}, "key ''"),
    ({"a": {"$set": 1}}, "'a' has the key"),
    ({"a.b": 1}, "key 'a.b'"),
    ({"a\0": 1}, "NUL"),
    (nested(DEPTH_MOST + 1), "deeper"),
    (of_size(SCHEME_MOST + 1), "16384"),
    ({"format": "京" * (SCHEME_MOST // 6)}, "16384"),
]


@pytest.mark.parametrize(("scheme", "message"), NO_SCHEMES)
def test_a_record_with_what_is_no_scheme_is_corrupt(scheme: Any, message: str) -> None:
    fields = {"max": 0, "step": 1, "limit": 1, "order": "trend", "description": "", "created": 0, "timestamp": 0}
    fields |= {"version": "", "halted": False, "deleted": False}
    assert Tag.checked("a", fields).scheme == Tag.checked("a", {**fields, "scheme": None}).scheme == {}
    with pytest.raises(Corrupt, match=message):
        Tag.checked("a", {**fields, "scheme": scheme})


def test_a_change_of_what_somebody_else_has_changed_is_refused(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    seen = create(one, step=10).version
    changes: list[Callable[[], object]] = [
        partial(two.configure, "orders", TagChanges(scheme={"format": "A{seq}"}), timeout=TIMEOUT),
        partial(reserve, two),
        partial(two.recover, "orders", at_least=0, timeout=TIMEOUT),
        partial(two.halt, "orders", timeout=TIMEOUT),
        partial(two.delete, "orders", timeout=TIMEOUT),
        partial(create, two),
    ]
    for change in changes:
        change()
        before = get(one)
        with pytest.raises(TagMissing if before.deleted else VersionMoved):
            one.configure("orders", TagChanges(scheme=SCHEME, step=5, limit=500, seen=seen), timeout=TIMEOUT)
        assert get(one) == before
        if not before.deleted:
            seen = one.configure(
                "orders", TagChanges(description="other", seen=before.version), timeout=TIMEOUT
            ).version
    # Without what was seen, what the other one had set is lost.
    assert one.configure("orders", TagChanges(scheme=SCHEME), timeout=TIMEOUT).scheme == SCHEME


PLAIN: dict[str, Any] = {}
STRIDE: dict[str, Any] = {"stride": [{"from": 1, "first": 3, "stride": 2}]}
SCRAMBLE: dict[str, Any] = {"scramble": [{"from": 1, "key": "k1", "fingerprint": "9f2c"}]}
SHARDS: dict[str, Any] = {"shards": {"shard_bits": 6, "app_bits": 8, "app": 17}}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (PLAIN, {**STRIDE, "id": "b"}),
        ({**STRIDE, "id": "a"}, PLAIN),
        ({**STRIDE, "id": "a"}, {**SCRAMBLE, "id": "b"}),
        ({**SCRAMBLE, "id": "a"}, {"scramble": [{"from": 1, "key": "k2", "fingerprint": "9f2c"}], "id": "a"}),
        ({"restart": "daily", "id": "a"}, {"restart": "monthly", "id": "b"}),
        (SHARDS, PLAIN),
        (SHARDS, {"shards": {**SHARDS["shards"], "app": 1}}),
        ({"strategy": "snowflake"}, {"strategy": "segment"}),
    ],
)
def test_another_way_of_making_values_is_seen(before: Mapping[str, object], after: Mapping[str, object]) -> None:
    assert scheme_json.continued(before, after) is None
    assert scheme_json.continued(after, before) is None
    assert scheme_json.continued(before, before) == before
    # What doesn't make values is replaced.
    plain = {"format": "A{seq}", "timezone": "Asia/Tokyo", "stride": []}
    for other in ({"format": "B{seq}", "strategy": "segment", "restart": "never"}, PLAIN):
        assert scheme_json.continued(plain, other) == other


def test_a_tag_is_not_made_again_with_another_way_of_making_values(bench: Bench) -> None:
    first, other = {**STRIDE, "format": "A{seq}", "id": "a"}, {**SCRAMBLE, "id": "b"}
    create(bench.store, scheme=first)
    for given in ("b", "", None):
        tombstone = bench.store.delete("orders", timeout=TIMEOUT)
        with pytest.raises(SchemeMismatch) as caught:
            create(bench.open(), scheme=other)
        assert caught.value.tag == "orders"
        assert get(bench.store) == tombstone
        # In the same way it is, and keeps the id of the tombstone.
        scheme = {**STRIDE, "format": f"B{given}{{seq}}", **({} if given is None else {"id": given})}
        made = create(bench.open(), scheme=scheme)
        assert made.scheme == {**scheme, "id": "a"}
        assert (get(bench.store), made.scheme_id) == (made, "a")
    assert create(bench.store, "another", scheme=other).scheme == other


def test_a_value_of_another_type_is_not_taken_for_the_equal_one_before_it() -> None:
    row = row_of(TAG_COLUMNS, Tag(tag="a", max=0, created=0, timestamp=0, version="v", step=1))
    assert record_of(TAG_COLUMNS, row).step == 1
    with pytest.raises(Corrupt, match="step must be an integer"):
        record_of(
            TAG_COLUMNS, [True if column == "step" else value for column, value in zip(TAG_COLUMNS, row, strict=True)]
        )
