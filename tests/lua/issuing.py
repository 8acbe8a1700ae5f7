"""A small issuer over the raw scripts, so that scenarios can break the scripts under it and count what comes out."""

from collections.abc import Mapping
from itertools import count

import redis

from tests.lua.hashes import INTACT, TagHash
from tests.servers.redis import RedisServer

_BORNS = count(1)
_ROUNDS = 50


class BehindError(Exception):
    """The store stands below what Redis has seen: it went back in time, and the real one halts the tag."""


class RangeStore:
    """Hands out ranges, upwards."""

    def __init__(self, step: int = 100) -> None:
        self.max = 0
        self.step = step

    def reserve(self, at_least: int = 0) -> tuple[int, int]:
        if self.max < at_least:
            raise BehindError
        low, self.max = self.max, self.max + self.step
        return low, self.max


class SmallIssuer:
    """Draws one number after another and extends when told to, as issuer/core/extend.py does.

    `issued`: every number, in the order of its draw. `above`: those that the store had not reserved when they came.
    """

    def __init__(self, texts: Mapping[str, str] = INTACT, store: RangeStore | None = None) -> None:
        self.texts = texts
        self.store = store or RangeStore()
        self.issued: list[int] = []
        self.above: list[int] = []
        self._clients: dict[tuple[int, int | None], redis.Redis] = {}

    def hash(self, server: RedisServer) -> TagHash:
        """Return the tag's hash on that server, over a connection that is kept as long as the process lives."""
        client = self._clients.setdefault((server.port, server.pid), server.client(decode_responses=True))
        return TagHash(client, self.texts)

    def draw(self, server: RedisServer) -> str:
        reply = self.hash(server).next(1)
        if reply[0] == "ok":
            numbers = range(int(reply[1]) + 1, int(reply[2]) + 1)
            self.issued += numbers
            self.above += [number for number in numbers if number > self.store.max]
            return "extend" if len(reply) > 3 else "ok"
        return reply[0]

    def extend(self, server: RedisServer) -> None:
        hash = self.hash(server)
        opened = hash.open(born=f"b{next(_BORNS)}", role="mine")
        assert opened[0] == "open", opened
        _, reign, born, top, _, due, _ = opened
        if due == "1":
            low, high = self.store.reserve(int(top))
            hash.load(low, high, reign=reign, born=born)

    def issue(self, server: RedisServer, count: int) -> None:
        """Issue `count` numbers more."""
        wanted = len(self.issued) + count
        rounds = 0
        while len(self.issued) < wanted:
            status = self.draw(server)
            if status != "ok":
                self.extend(server)
            if status not in ("ok", "extend"):
                rounds += 1
                assert rounds < _ROUNDS, f"no numbers any more: {status}"
