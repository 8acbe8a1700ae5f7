"""The scheme of a tag, how its values are made: the same promises from every store."""

from __future__ import annotations

import copy
import pickle
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from issuer.persistence import schemes
from issuer.persistence.errors import Corrupt, SchemeMismatch, TagMissing, VersionMoved
from issuer.persistence.records import Tag
from issuer.persistence.schemes import DEPTH_MOST, SCHEME_MOST
from tests.contract.benches import SCHEME, TIMEOUT, create, get, nested, of_size, ranges, reserve
from tests.contract.test_races import at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from issuer.persistence.contract import Store
    from tests.contract.benches import Bench


# ---------------------------------------------------------------------------------------------------------- the record


def test_true_is_no_number_and_a_number_no_float(store: Store) -> None:
    assert create(store, scheme=SCHEME).scheme_id == "9f2c"
    found = get(store).scheme
    assert [type(found["options"][name]) for name in ("yes", "größe", "least")] == [bool, int, int]
    assert [type(each["from"]) for each in found["stride"]] == [int, int]
    assert create(store, "plain").scheme_id == ""


def test_nobody_can_change_a_scheme_in_place(store: Store) -> None:
    given = copy.deepcopy(SCHEME)
    made = create(store, scheme=given)
    given["stride"][0]["from"] = 2
    given["format"] = "another"
    found: Any = get(store).scheme
    of_objects = "__setitem__ __delitem__ __ior__ clear pop popitem setdefault update"
    of_lists = "__setitem__ __delitem__ __iadd__ __imul__ append clear extend insert pop remove reverse sort"
    for place, methods in ((found, of_objects), (found["stride"][0], of_objects), (found["stride"], of_lists)):
        for method in methods.split():
            with pytest.raises(TypeError, match="in place"):
                getattr(place, method)()
    assert get(store).scheme == made.scheme == SCHEME


def test_a_scheme_is_copied_and_compared_as_any_dict() -> None:
    scheme = schemes.frozen(SCHEME)
    for again in (copy.copy(scheme), copy.deepcopy(scheme), pickle.loads(pickle.dumps(scheme))):  # noqa: S301 - our own
        assert again == scheme
        with pytest.raises(TypeError):
            again["stride"].append({})
    other = {**scheme, "stride": [*scheme["stride"], {"from": 5}]}
    assert (len(other["stride"]), len(scheme["stride"])) == (3, 2)
    # It is part of what makes two records equal.
    plain = Tag(tag="a", max=0, step=1, created=0, timestamp=0, version="")
    with_it = replace(plain, scheme=scheme)
    assert plain != with_it == replace(plain, scheme=SCHEME)
    assert len({plain, with_it, replace(with_it)}) == 2


# ----------------------------------------------------------------------------------------------------------- bad input


WRONG = [
    ("x", "must be an object"),
    ([], "must be an object"),
    ({"a": 1.5}, "'a' holds 1.5"),
    ({"a": [{"b": float("nan")}]}, r"'a\[0\].b' holds nan"),
    ({"a": 2**63}, "64 bits"),
    ({"a": -(2**63) - 1}, "64 bits"),
    ({"a": b"x"}, "bytes"),
    ({"a": {1, 2}}, "set"),
    ({"a": "\ud800"}, "surrogate"),
    ({"\ud800": 1}, "surrogate"),
    ({1: "a"}, "no text"),
    ({"": 1}, "key ''"),
    ({"a": {"$set": 1}}, "'a' has the key"),
    ({"a.b": 1}, "key 'a.b'"),
    ({"a\0": 1}, "NUL"),
    (nested(DEPTH_MOST + 1), "deeper"),
    (of_size(SCHEME_MOST + 1), "16384"),
    ({"format": "京" * (SCHEME_MOST // 6)}, "16384"),
]


@pytest.mark.parametrize(("scheme", "message"), WRONG)
def test_a_record_with_what_is_no_scheme_is_corrupt(scheme: Any, message: str) -> None:
    fields = {"max": 0, "step": 1, "limit": 1, "order": "trend", "description": "", "created": 0, "timestamp": 0}
    fields |= {"version": "", "halted": False, "deleted": False}
    assert Tag.checked("a", fields).scheme == Tag.checked("a", {**fields, "scheme": None}).scheme == {}
    with pytest.raises(Corrupt, match=message):
        Tag.checked("a", {**fields, "scheme": scheme})


def test_what_is_no_scheme_is_a_value_error_and_changes_nothing(store: Store) -> None:
    made = create(store, scheme=SCHEME)
    wrong: Any = {"a": 1.5}
    with pytest.raises(ValueError, match=r"'a' holds 1\.5"):
        store.configure("orders", step=7, scheme=wrong, timeout=TIMEOUT)
    with pytest.raises(ValueError, match=r"'a' holds 1\.5"):
        create(store, "new", scheme=wrong)
    with pytest.raises(ValueError, match="seen"):
        store.configure("orders", step=7, seen=5, timeout=TIMEOUT)  # type: ignore[arg-type]  # wrong on purpose
    assert store.tags(timeout=TIMEOUT) == [made]
    assert store.get("new", timeout=TIMEOUT) is None
    store.delete("orders", timeout=TIMEOUT)
    with pytest.raises(TagMissing):
        store.configure("orders", scheme=SCHEME, seen=made.version, timeout=TIMEOUT)


# -------------------------------------------------------------------------------------------------- what was seen holds


def test_a_change_of_what_somebody_else_has_changed_is_refused(bench: Bench) -> None:
    one, two = bench.store, bench.open()
    seen = create(one, step=10).version
    changes: list[Callable[[], object]] = [
        partial(two.configure, "orders", scheme={"format": "A{seq}"}, timeout=TIMEOUT),
        partial(two.configure, "orders", step=20, timeout=TIMEOUT),
        partial(reserve, two),
        partial(two.recover, "orders", at_least=0, timeout=TIMEOUT),
        partial(two.halt, "orders", timeout=TIMEOUT),
    ]
    for change in changes:
        change()
        before = get(one)
        with pytest.raises(VersionMoved) as caught:
            one.configure("orders", scheme=SCHEME, step=5, limit=500, seen=seen, timeout=TIMEOUT)
        assert caught.value.tag == "orders"
        assert get(one) == before
        seen = one.configure("orders", description="other", seen=before.version, timeout=TIMEOUT).version
    two.delete("orders", timeout=TIMEOUT)
    create(two)
    with pytest.raises(VersionMoved):
        one.configure("orders", scheme=SCHEME, seen=seen, timeout=TIMEOUT)
    assert get(one).scheme == {}
    # Without what was seen, what the other one had set is lost.
    assert one.configure("orders", scheme=SCHEME, timeout=TIMEOUT).scheme == SCHEME


def test_no_change_is_lost_beside_others_and_beside_reservations(bench: Bench) -> None:
    opened = [bench.store, bench.store, bench.open(), bench.open()]
    create(bench.store, step=10)

    def change(store: Store, name: int) -> None:
        for turn in range(2):
            while True:
                record = get(store)
                scheme = {"names": [*record.scheme.get("names", []), 10 * name + turn]}
                with suppress(VersionMoved):
                    store.configure("orders", scheme=scheme, seen=record.version, timeout=TIMEOUT)
                    break
            reserve(store)

    assert at_once([partial(change, store, name) for name, store in enumerate(opened)]) == [None] * 4
    assert sorted(get(bench.store).scheme["names"]) == [0, 1, 10, 11, 20, 21, 30, 31]
    assert len(ranges(bench.store)) == 8


# ----------------------------------------------------------------------------------------------------- made once again


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
        (PLAIN, {"cycle": True, "id": "b"}),
        (SHARDS, PLAIN),
        (SHARDS, {"shards": {**SHARDS["shards"], "app": 1}}),
        ({"strategy": "snowflake"}, {"strategy": "segment"}),
    ],
)
def test_another_way_of_making_values_is_seen(before: Mapping[str, object], after: Mapping[str, object]) -> None:
    assert schemes.continued(before, after) is None
    assert schemes.continued(after, before) is None
    assert schemes.continued(before, before) == before


def test_what_does_not_make_values_is_replaced() -> None:
    before = {"format": "A{seq}", "timezone": "Asia/Tokyo", "cycle": False, "stride": []}
    for after in ({"format": "B{seq}", "strategy": "segment", "restart": "never"}, PLAIN):
        assert schemes.continued(before, after) == after


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


# ------------------------------------------------------------------------------------------------------------ tampered
