"""Processes draw while faults strike, and every number is checked."""

import re
import signal
import time
from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from issuer.chaos.call_files import all_calls
from issuer.chaos.faults import FAULTS, WIRE, Fault
from issuer.chaos.world import STRICT, Terms
from issuer.errors import IssuerError
from tests.proofs.chaos.kinds import KINDS
from tests.proofs.chaos.more import MORE, Pair
from tests.proofs.chaos.wire import MACHINE_SCRIPTS, WIRED
from tests.proofs.chaos.worlds import assert_kept, binary, folder, kind_of, named, suffer
from tests.waiting import until

pytestmark = [pytest.mark.live, pytest.mark.covers("N.1", "N.8")]

#: One or more of each family. The others take longest: whole processes are started anew, eight recover at once.
SEVERAL = "F1c,F2,F3a,F4,F6a,F9b,F12,F18,F21"


def test_several_faults_strike_once_and_no_number_comes_twice() -> None:
    verdict = suffer(named(SEVERAL), patience=60)
    assert_kept(verdict)
    # The one on the wire hits four scripts.
    assert verdict.struck == len(named(SEVERAL)) + 3
    assert verdict.acknowledged > 0


@pytest.mark.covers("U.28")
def test_an_election_and_a_rollback_of_mongodb_cost_no_number() -> None:
    verdict = suffer(named("F26b,F26f"), patience=60)
    assert_kept(verdict)
    assert verdict.struck == 4
    assert verdict.acknowledged > 0


@pytest.mark.soak
@pytest.mark.parametrize(
    "faults",
    [FAULTS, MORE, WIRED, *(kind.faults for kind in KINDS[1:])],
    ids=["offered", "more", "seldom sent", *(kind.name for kind in KINDS[1:])],
)
def test_each_fault_strikes_twice_and_no_number_comes_twice(faults: Sequence[Fault]) -> None:
    verdict = suffer(faults, times=2)
    assert_kept(verdict)
    assert verdict.struck >= 2 * len(faults)
    assert verdict.acknowledged > 1_000
    if faults is WIRED:
        calls = {"giveback": "F9g", "floor of recover": "F9h", "floor": "F9h", "once": "F9i"}
        calls |= dict.fromkeys(MACHINE_SCRIPTS, "F9j")
        assert verdict.faults == {f"{name} {manner}: {call}": 2 for manner in WIRE for call, name in calls.items()}


def asked_in_vain(path: Path, workers: Collection[str], since: int) -> bool:
    """Whether each caller of these workers has begun a call for strict numbers since then, in ns, that brought none."""
    made = [[*calls] for calls in all_calls(path) if calls.tag == STRICT and calls.worker in workers]
    return all(calls and calls[-1].began > since and calls[-1].first < 0 for calls in made)


def test_of_a_process_without_numbers_it_is_told_what_it_lacks_and_where_it_stands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("issuer.chaos.crew.STACKS_TAKE", 12.0)
    kind = kind_of(FAULTS)
    with folder() as path, kind.make(path, kind.server(binary()), Terms(timeout=1.0)) as world:
        world.more()
        halted, *others = world.crew.workers
        halted.process.send_signal(signal.SIGSTOP)
        assert isinstance(world, Pair)
        world.master.pause()
        # What it had answered before is on its way, and comes no later than that.
        paused, names = time.monotonic_ns(), {worker.name for worker in others}
        until(lambda: asked_in_vain(path, names, paused), 60)
        with pytest.raises(IssuerError, match="no numbers within 1 s in ") as caught:
            world.crew.wait_served(time.monotonic_ns(), timeout=1)
        world.master.resume()
        halted.process.send_signal(signal.SIGCONT)
        told = re.split(r"(?m)(?:^; |in )(?=w\d+, )", str(caught.value))[1:]
    assert [text.partition(", ")[0] for text in told] == [halted.name, *(worker.name for worker in others)]
    assert told[0].startswith(f"{halted.name}, stopped, lacks strict")
    for worker, text in zip(others, told[1:], strict=True):
        # Whoever stops everything for a while, as a busy machine does, may have stopped this one just then.
        assert re.match(rf"{worker.name}, ({worker.setup.colour}|stopped), lacks strict", text)
        assert re.search(r'worker\.py", line \d+,? in (threads|tasks|draw)\b', text), text
