"""A small issuer over the raw scripts, so that scenarios can break the scripts under it and count what comes out."""

from collections.abc import Mapping
from itertools import count

import redis

from tests.lua.hashes import TagHash, numbers
from tests.servers.redis import RedisServer

STEP = 100
_BORNS = count(1)
_ROUNDS = 50


class SmallIssuer:
    """Draws one number after another and extends when told to, as issuer/core/supply/extend.py does.

    `issued`: every number, in the order of its draw. `max`: up to which the store has reserved.
    """

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts
        self.max = 0
        self.issued: list[int] = []
        self._clients: dict[tuple[int, int | None], redis.Redis] = {}

    def hash(self, server: RedisServer) -> TagHash:
        """Return the tag's hash on that server, over a connection that is kept as long as the process lives."""
        client = self._clients.setdefault((server.port, server.pid), server.client(decode_responses=True))
        return TagHash(client, self.texts)

    def draw(self, server: RedisServer) -> str:
        reply = self.hash(server).next(1)
        if reply[0] == "ok":
            self.issued += numbers(reply)
            assert self.issued[-1] <= self.max
            return "extend" if len(reply) > 3 else "ok"
        return reply[0]

    def extend(self, server: RedisServer) -> None:
        hash = self.hash(server)
        opened = hash.open(born=f"b{next(_BORNS)}", window=0)
        assert opened[0] == "open", opened
        _, reign, born, _, _, due, _ = opened
        if due == "1":
            low, self.max = self.max, self.max + STEP
            hash.load(low, self.max, reign=reign, born=born)

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
