"""A caller is struck when its draw was sent: by a signal's handler, by the end of the stack or of memory.

The reply that it doesn't read may elect its process to load the next segment. Others don't wait for that in vain.
"""

import time
from collections.abc import Callable
from typing import Any

import pytest

import issuer
from issuer.drivers.blocking.link import Link
from issuer_persistence.memory import MemoryStore
from tests.audit import repeats
from tests.servers.redis import RedisServer

pytestmark = [pytest.mark.usefixtures("patient"), pytest.mark.live]


class Interrupt(BaseException):
    """What a signal's handler raises."""


WAYS: dict[str, Callable[[issuer.Issuer], list[int]]] = {
    "next": lambda ids: [ids.next("a")],
    "next in time": lambda ids: [ids.next("a", timeout=30)],
    "take": lambda ids: ids.take("a", 1),
    "key": lambda ids: [ids.next("a", key=f"{time.monotonic_ns()}")],
    "long way": lambda ids: [ids.issue("a").value],
    "lease": lambda ids: ids.take("leased", 1),
}


@pytest.mark.parametrize("error", [Interrupt, RecursionError, MemoryError])
@pytest.mark.parametrize("way", WAYS)
def test_a_lost_reply_costs_a_number_and_no_election(
    server: RedisServer, monkeypatch: pytest.MonkeyPatch, way: str, error: type[BaseException]
) -> None:
    tag = "leased" if way == "lease" else "a"
    settings: dict[str, Any] = {"redis": server.url, "store": MemoryStore()}
    # `other` draws nothing in the background, which would be struck as well.
    with issuer.connect(**settings) as ids, issuer.connect(**settings, scheduler=None) as other:
        ids.create("a", step=50)
        ids.create("leased", step=10, order="trend", lease=1)
        numbers = other.take(tag, 1)
        ask = Link.ask
        struck: list[object] = []

        def strike(link: Link, packed: bytes, seconds: float) -> Any:
            reply = ask(link, packed, seconds)
            if type(reply) is list and b"extend" in reply and not struck:
                struck.append(reply)
                raise error
            return reply

        monkeypatch.setattr(Link, "ask", strike)
        try:
            while not struck:
                numbers += WAYS[way](ids)
        except (error, issuer.IssuerError):  # the latter if a lease was drawn in the background
            pass
        monkeypatch.undo()
        assert struck
        # An election stands for 11 s here: by then a caller that waits for it has got an error.
        numbers += [other.next(tag, timeout=8) for _ in range(80)]
        assert not repeats(numbers)
