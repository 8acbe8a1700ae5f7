"""Python clients of a real `issuer serve` that is killed while they draw."""

from __future__ import annotations

import threading
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

import issuer
from tests.colours import COLOURS
from tests.doors.server.conftest import Serve, lives
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.live

#: How often the server is killed.
KILLS = 3


@pytest.mark.covers("U.25")
@pytest.mark.parametrize("colour", [*COLOURS])
def test_a_server_that_is_killed_under_load_repeats_nothing(
    serve: Serve, redis_url: str, home: Path, colour: str
) -> None:
    before = ("--redis", redis_url, "--store", f"sqlite:///{home}/store.db")
    served = serve("--workers", "2", before=before)
    port = served.port()
    drawn: dict[str, list[list[int]]] = {"strict": [], "trend": []}
    stop = threading.Event()

    def draws(ids: Any, tag: str, numbers: list[int]) -> None:
        while not stop.is_set():
            numbers.append(ids.next(tag, timeout=120))

    with ExitStack() as ends:
        clients = [
            ends.enter_context(COLOURS[colour](server=f"http://127.0.0.1:{port}", timeout=120, store_timeout=60))
            for _ in range(2)
        ]
        clients[0].create("strict", step=100)
        clients[0].create("trend", order="trend", step=50)
        threads = []
        for ids in clients:
            for tag, lists in drawn.items():
                lists.append([])
                threads.append(threading.Thread(target=draws, args=(ids, tag, lists[-1])))
        for thread in threads:
            thread.start()
        for _ in range(KILLS):
            count = {tag: sum(map(len, lists)) for tag, lists in drawn.items()}
            until(lambda: all(sum(map(len, lists)) > count[tag] + 200 for tag, lists in drawn.items()))  # noqa: B023
            workers = served.children()
            served.process.kill()
            served.process.wait(60)
            until(lambda: not any(map(lives, workers)), message="its workers leave the port")  # noqa: B023
            served = serve("--workers", "2", before=before, http=f"127.0.0.1:{port}")
            served.told("serving ")
        count = {tag: sum(map(len, lists)) for tag, lists in drawn.items()}
        until(lambda: all(sum(map(len, lists)) > count[tag] + 200 for tag, lists in drawn.items()))
        stop.set()
        for thread in threads:
            thread.join(120)
        with issuer.connect(redis=redis_url, store=f"sqlite:///{home}/store.db") as own:
            highest = {tag: own.inspect(tag).store.max for tag in drawn}
    for tag, lists in drawn.items():
        every = [number for numbers in lists for number in numbers]
        assert len({*every}) == len(every)
        assert max(every) <= highest[tag]
        assert all(numbers == sorted(numbers) for numbers in lists)
