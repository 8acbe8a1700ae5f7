"""What a run tells of a process that gets no numbers: else nobody could find out why, once it is over."""

import re
import signal
import time

import pytest

from issuer.cli.chaos.faults import FAULTS
from issuer.cli.chaos.world import STRICT, Terms
from issuer.errors import IssuerError
from tests.chaos.pair import Pair
from tests.chaos.worlds import binary, folder, kind_of
from tests.waiting import until

pytestmark = pytest.mark.live

#: Who got no strict number for so many ns gets none any more.
QUIET = 300_000_000


def test_of_a_process_without_numbers_it_is_told_what_it_lacks_and_where_it_stands() -> None:
    kind = kind_of(FAULTS)
    with folder() as path, kind.make(path, kind.server(binary()), Terms()) as world:
        world.more()
        halted, *others = world.crew.workers
        halted.signal(signal.SIGSTOP)
        assert isinstance(world, Pair)
        world.master.pause()
        # What it had answered before is on its way.
        until(lambda: not any(worker.served(time.monotonic_ns() - QUIET, [STRICT]) for worker in others))
        with pytest.raises(IssuerError, match="no numbers within 1 s in ") as caught:
            world.crew.wait_served(time.monotonic_ns(), timeout=1)
        world.master.resume()
        halted.signal(signal.SIGCONT)
        told = re.split(r"(?m)(?:^; |in )(?=w\d+, )", str(caught.value))[1:]
    assert [text.partition(", ")[0] for text in told] == [halted.name, *(worker.name for worker in others)]
    assert told[0].startswith(f"{halted.name}, stopped, lacks strict")
    for worker, text in zip(others, told[1:], strict=True):
        # Whoever stops everything for a while, as a busy machine does, may have stopped this one just then.
        assert re.match(rf"{worker.name}, ({worker.setup.colour}|stopped), lacks strict", text)
        assert re.search(r'worker\.py", line \d+,? in (threads|tasks|draw)\b', text), text
