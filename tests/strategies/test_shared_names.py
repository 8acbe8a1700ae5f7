"""A snowflake namespace x and a keyed tag x both have a use for the tag `x#machine-7`: who comes second is refused."""

from typing import Any

import pytest

from issuer import Issuer
from issuer.errors import ConfigurationError
from issuer.strategies import Instance
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import TagSettings
from tests.colours import Connect

#: One machine number, 0.
NAMESPACE: dict[str, Any] = {"namespace": "x", "machine": "store", "machine_bits": 1, "sequence_bits": 8}
PART = "x#machine-"


def draw(ids: Issuer, key: str) -> int:
    return ids.issue("x", restart_key=key).value


def keyed(ids: Issuer) -> None:
    ids.create("x", keyed=True, order="trend", format="{key}/{seq}")


def snowflake(ids: Issuer) -> None:
    ids.create("flakes", strategy="snowflake", options=NAMESPACE)


def opened(connect: Connect, store: MemoryStore) -> Issuer:
    instance = Instance(application="tests", ip="192.0.2.5")
    return connect(redis="none", store=store, scheduler=None, instance=instance, timeout=20)


def test_a_restart_key_that_names_a_machine_numbers_tag_is_refused_and_both_go_on(connect: Connect) -> None:
    store = MemoryStore()
    with opened(connect, store) as ids:
        snowflake(ids)
        first = ids.next("flakes")
        keyed(ids)
        (machine,) = [each for each in store.tags(count=1000, timeout=5) if each.tag.startswith(PART)]
        with pytest.raises(ConfigurationError, match="another restart key"):
            draw(ids, machine.tag.removeprefix("x#"))
        assert store.get(machine.tag, timeout=5) == machine
        assert draw(ids, "acme") == 1
        ids.delete("x")
        assert [each.tag for each in store.tags(count=1000, timeout=5)] == ["flakes", machine.tag]
        assert ids.next("flakes") > first


def test_a_machine_number_whose_tag_is_a_series_is_refused_and_both_go_on(connect: Connect) -> None:
    store = MemoryStore()
    with opened(connect, store) as ids:
        keyed(ids)
        numbers = [draw(ids, f"machine-{number}") for number in range(2)]
        before = [store.get(f"{PART}{number}", timeout=5) for number in range(2)]
        snowflake(ids)
        with pytest.raises(ConfigurationError, match="another namespace"):
            ids.next("flakes")
        assert [store.get(f"{PART}{number}", timeout=5) for number in range(2)] == before
        numbers += [draw(ids, f"machine-{number}") for number in range(2)]
        assert numbers == [1, 1, 2, 2]


@pytest.mark.parametrize("description", [True, False])
def test_machine_numbers_of_before_go_on_and_those_of_anybody_else_are_not_taken_for_some(
    connect: Connect, description: bool
) -> None:
    store = MemoryStore()
    said = "timestamps, in ms since 1970, that the machine number may have used" if description else ""
    for number in range(2):
        store.create(
            f"{PART}{number}", TagSettings(step=1, order="trend", description=said, scheme={"part_of": "x"}), timeout=5
        )
    with opened(connect, store) as ids:
        snowflake(ids)
        if description:
            assert ids.next("flakes") < ids.next("flakes")
        else:
            with pytest.raises(ConfigurationError, match="another namespace"):
                ids.next("flakes")
