"""Each call of the store that is seldom made is dropped, loses its reply, and is late."""

from contextlib import ExitStack
from itertools import product

import pytest

from issuer.cli.chaos.play import play
from issuer.cli.chaos.world import STRICT, Terms
from tests.chaos.administered import ADMINISTERED, CALLS, CHANGE, Office
from tests.chaos.groups import MongoWorld
from tests.chaos.worlds import assert_kept, binary, folder

pytestmark = pytest.mark.live

#: A long step, as the wire server of the tests gets slow when the ledger gets long.
TERMS = Terms(step=30_000)
MANNERS = {"F9l": "request dropped", "F9m": "reply dropped", "F9n": "300 ms late"}


@pytest.mark.covers("N.1", "N.8")
def test_each_call_of_the_store_is_hit_in_each_manner_and_no_number_comes_twice() -> None:
    with folder() as path, MongoWorld(path, binary(), TERMS) as world:
        verdict = play(world, ADMINISTERED)
    assert_kept(verdict)
    assert verdict.faults == {f"{name} {manner}: {call}": 1 for (name, manner), call in product(MANNERS.items(), CALLS)}
    assert verdict.acknowledged > 10_000


def test_a_call_that_was_not_hit_ends_the_run() -> None:
    with folder() as path, MongoWorld(path, binary(), TERMS) as world, ExitStack() as ends:
        office = Office(world, "F9m", "reply dropped", ends)
        with (
            pytest.raises(AssertionError, match="tags was not hit"),
            office.struck("tags", CHANGE, lambda left: office.ids.tags(timeout=left)),
        ):
            pass


def test_a_change_whose_reply_is_dropped_is_made_all_the_same_and_asked_for_again() -> None:
    seen: list[bool] = []
    with folder() as path, MongoWorld(path, binary(), TERMS) as world, ExitStack() as ends:
        for manner in ("request dropped", "reply dropped"):
            office = Office(world, "F9", manner, ends)
            asked: list[float] = []

            def halt(left: float, office: Office = office, asked: list[float] = asked) -> None:
                asked.append(left)
                office.ids.halt("strict", timeout=left)

            def look(office: Office = office) -> None:
                seen.append(office.record(STRICT).halted)

            with office.struck("halt", CHANGE, halt, doubtful=look):
                assert len(asked) == 2
            world.ids.recover("strict")
    assert seen == [False, True]
