"""A clock that was ten days ahead, and was set right: the way out of the future, which repeats nothing."""

from dataclasses import replace
from typing import Any

import pytest

from issuer.clock import Deadline
from issuer.errors import ClockBehind, InvalidArgument, NoMachineNumber
from issuer.instance import Instance
from issuer.strategies.snowflake import aside
from issuer.strategies.snowflake.machines import Clock
from issuer_persistence.memory import MemoryStore
from issuer_persistence.records import Tag, TagSettings
from tests.audit import repeats
from tests.refusals import refused
from tests.strategies.hosts import Desk, Host, MovedClock, from_store

TEN_DAYS = 10 * 86_400
BITS: dict[str, Any] = {"machine_bits": 4, "sequence_bits": 12}


def record(**options: Any) -> Tag:
    scheme = {"strategy": "snowflake", "options": {**BITS, **options}}
    return Tag.made("orders", None, TagSettings(step=1, limit=1, order="trend", scheme=scheme))


class Redis:
    """One host and its Redis, whose clocks go wrong together."""

    def __init__(self, host: Host, source: str) -> None:
        self.host, self.pass_time = host, host.pass_time
        self.record = record(machine=source)

    def start(self, port: int = 8112) -> Desk:
        return self.host.start(port, machine=self.record.scheme["options"]["machine"], **BITS)

    def set_clock(self, seconds: float) -> None:
        self.host.moved.step(round(seconds * 1000))
        self.host.server.time_offset += seconds


class InStore:
    """A host whose machine numbers are the store's."""

    record = record(machine="store")

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.moved, self.store = MovedClock(Clock().ms()), MemoryStore()
        self.pass_time = self.moved.sleep
        from_store(monkeypatch, [*range(16)], lambda _: self.moved)
        monkeypatch.setattr("issuer.strategies.snowflake.aside.Clock", lambda: self.moved.clock)
        monkeypatch.setattr("issuer.clock.sleep", self.pass_time)

    def start(self, port: int = 8112) -> Desk:
        return Desk("stored", BITS, store=self.store, instance=Instance("sequence-client", port, "192.168.0.222"))

    def set_clock(self, seconds: float) -> None:
        self.moved.step(round(seconds * 1000))


@pytest.fixture(params=["redis", "file", "store"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Redis | InStore:
    if request.param == "store":
        return InStore(monkeypatch)
    return Redis(request.getfixturevalue("host"), request.param)


def taken(place: Redis | InStore, desk: Desk, n: int) -> list[int]:
    """Draw when every lease that Redis may have forgotten is over."""
    for _ in range(3):
        try:
            return desk.take(n)
        except NoMachineNumber:
            place.pass_time(41)
    return desk.take(n)


def blocked(place: Redis | InStore) -> list[int]:
    """Draw at present, then ten days ahead, then with the clock set right in a process that has to wait ten days."""
    desk = place.start()
    numbers = taken(place, desk, 10)
    place.set_clock(TEN_DAYS)
    numbers += taken(place, desk, 10)
    place.set_clock(-TEN_DAYS)
    desk.close()
    place.pass_time(700)
    desk = place.start()
    caught = refused(ClockBehind, "", taken, place, desk, 1)
    assert caught.behind > 9 * 86_400_000
    desk.close()
    return numbers


def test_after_set_aside_a_process_makes_numbers_of_the_present_and_none_comes_again(place: Redis | InStore) -> None:
    numbers = blocked(place)
    future = numbers[-1]
    other = place.start(1)
    found = other.run(aside.look(place.record, "issuer"), Deadline(5))
    (ahead,) = [each for each in found.used if each.ahead]
    assert (found.of, ahead.ahead > 9 * 86_400_000) == (16, True)
    for _ in range(2):  # twice is harmless: it is ahead still
        assert len(other.run(aside.set_aside(place.record, "issuer"), Deadline(5))) == 1
    freed = place.start()
    numbers += taken(place, freed, 10)
    assert numbers[-1] < future
    # When that time has come nobody repeats it, whichever process has which machine number then.
    for _ in range(TEN_DAYS // 3600 + 2):
        place.pass_time(3600)
        numbers += taken(place, freed, 2)
    assert numbers[-1] > future
    for port in range(2, 16):
        numbers += taken(place, place.start(port), 5)
    assert repeats(numbers) == []
    assert not any(each.ahead for each in other.run(aside.look(place.record, "issuer"), Deadline(5)).used)


def test_numbers_of_the_future_are_taken_last_and_wait_then(place: Redis | InStore) -> None:
    numbers = blocked(place)
    desks = [place.start(port) for port in range(1, 16)]
    desks[0].run(aside.set_aside(place.record, "issuer"), Deadline(5))
    for desk in desks:
        numbers += taken(place, desk, 3)
    assert repeats(numbers) == []
    with pytest.raises((ClockBehind, NoMachineNumber)):
        place.start(17).take(1)


def test_where_no_machine_numbers_are_kept_it_says_what_to_do() -> None:
    plain = replace(record(), scheme={})
    fixed, ordinal = record(machine="fixed"), record(machine="ordinal")
    for tag, problem in ((plain, "segment"), (fixed, "ISSUER_MACHINE"), (ordinal, "another host name")):
        refused(InvalidArgument, problem, lambda tag=tag: next(aside.look(tag, "issuer")))
