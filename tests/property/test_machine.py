"""The promise holds in every order of events that hypothesis tries; without a guard it finds one that breaks it."""

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test

from issuer import Issuer, gateway, scripts
from issuer.clock import Deadline
from issuer.scripts import Script
from persistence.records import Reservation, Tag
from tests.property.machine import IssuerMachine, ServedStore, twin_of

SEARCH = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
#: Enough to find each hole below many times over; shrinking would only make the failure prettier.
HUNT = settings(SEARCH, max_examples=400, phases=(Phase.generate,), derandomize=True, print_blob=False)


@pytest.mark.live
@pytest.mark.covers("1.1", "2.13", "N.6", "3.25", "3.30")
def test_no_order_of_events_repeats_a_number() -> None:
    run_state_machine_as_test(IssuerMachine, settings=SEARCH)


def without(name: str, old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Take a guard out of the script of that name, for every issuer made from now on."""
    whole = scripts.script(name)
    assert whole.text.count(old) == 1, f"the guard {old!r} is not where it was"
    text = whole.text.replace(old, new)
    mutant = Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())
    monkeypatch.setattr(gateway, "script", lambda asked: mutant if asked == name else scripts.script(asked))


def found(machine: type[IssuerMachine], harm: str) -> None:
    """Assert that the search finds that harm."""
    with pytest.raises(AssertionError, match=harm):
        run_state_machine_as_test(machine, settings=HUNT)


FENCE = "not fence or #fence ~= 40 or not string.find(info, '\\nmaster_replid:' .. fence .. '\\r', 1, true)"


# The other guards need a certain order of rare events: tests/lua/test_mutations.py and tests/contract play those.
@pytest.mark.live
@pytest.mark.parametrize(
    ("name", "guard", "mutant", "harm"),
    [
        ("next", FENCE, "false", "REPEAT|ORDER"),
        ("next", "or less(max, high) then", "then", "REPEAT|ABOVE|ORDER"),
    ],
)
def test_without_a_guard_of_the_scripts_the_search_finds_the_harm(
    name: str, guard: str, mutant: str, harm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    without(name, guard, mutant, monkeypatch)
    found(IssuerMachine, harm)


class ForkKeeps(IssuerMachine):
    """A child goes on with what its parent held."""

    def fork_resets(self, child: Issuer) -> None:
        """Nothing is dropped."""


class NoTombstone(IssuerMachine):
    """A deleted tag is forgotten, and so are its numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.store.__class__ = Forgetful


class Forgetful(ServedStore):
    def delete(self, tag: str, *, timeout: float) -> Tag:
        gone = super().delete(tag, timeout=timeout)
        del self._tags[tag]
        return replace(gone, max=0)


class RestoredBlindly(IssuerMachine):
    """After a restore nobody runs recover, and reservations don't look at what is known to be taken."""

    def __init__(self) -> None:
        super().__init__()
        self.store.__class__ = Blind

    def recover_after_restore(self, tag: str) -> None:
        """Nothing is recovered."""


class Blind(ServedStore):
    def reserve(self, tag: str, n: int | None, **rest: Any) -> Reservation:
        return super().reserve(tag, n, **{**rest, "at_least": 0})


class HandedBackAndKept(IssuerMachine):
    """Numbers are handed back by a process that goes on using them."""

    def stop(self, process: int) -> None:
        for line in self.ids[process]._roster.lines.values():
            supply = line.supply
            kept = None if supply.hand is None else twin_of(supply.hand, self.ids[process]._open)
            line.run(supply.close(Deadline(1)), Deadline(1))
            supply.hand, supply.ended = kept, None


@pytest.mark.live
@pytest.mark.parametrize(
    ("mutant", "harm"),
    [
        (ForkKeeps, "REPEAT"),
        (NoTombstone, "REPEAT|ABOVE"),
        (RestoredBlindly, "REPEAT"),
        (HandedBackAndKept, "REPEAT|ABOVE|OVERLAP"),
    ],
)
def test_without_a_guard_of_the_process_or_the_store_the_search_finds_the_harm(
    mutant: type[IssuerMachine], harm: str
) -> None:
    found(mutant, harm)
