"""A client of `issuer serve` that draws as the processes of `issuer chaos` do, and writes down what every call brought.

python -m tests.proofs.chaos.door_client SETUP, a JSON object: see `DoorSetup`.
"""

import json
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from typing import Any, ClassVar, Literal

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from issuer.chaos.ports import LOOPBACK
from issuer.chaos.worker import NumberSource, draw, told_to_stop
from issuer.errors import IssuerError, Unavailable
from tests.proofs.chaos.worker import MoreSetup

#: A server answers by its own deadline; its client waits for so many seconds longer.
LONGER = 0.25


@dataclass(frozen=True, slots=True)
class DoorSetup(MoreSetup):
    """Settings of a client: through which door of a server, and where that is. `redis`: what the server draws from."""

    door: Literal["http", "resp"] = "http"
    port: int = 0

    program: ClassVar[str] = "tests.proofs.chaos.door_client"


class Http:
    """Draws over HTTP, for each thread on a connection of its own. Nothing is asked twice."""

    def __init__(self, port: int, timeout: float) -> None:
        self._own = threading.local()
        self._port, self._timeout = port, timeout

    def next(self, tag: str, *, key: str | None = None) -> int:
        return int(self._asked(f"/v1/tags/{tag}/next", {} if key is None else {"Idempotency-Key": key})["number"])

    def take(self, tag: str, n: int) -> list[int]:
        numbers: list[int] = self._asked(f"/v1/tags/{tag}/take", {"Content-Type": "application/json"}, n=n)["numbers"]
        return numbers

    def stream(self, tag: str) -> Iterator[int]:
        while True:
            yield self.next(tag)

    def _asked(self, path: str, headers: dict[str, str], **body: int) -> Any:
        if not hasattr(self._own, "connection"):
            self._own.connection = HTTPConnection(LOOPBACK, self._port, timeout=self._timeout)
        connection: HTTPConnection = self._own.connection
        try:
            connection.request("POST", path, json.dumps(body) if body else None, headers)
            answer = connection.getresponse()
            content = json.loads(answer.read())
        except (OSError, HTTPException, ValueError) as error:
            connection.close()  # the next call makes another one
            raise Unavailable(f"{path}: {error!r}") from error
        if answer.status != 200:
            raise (Unavailable if answer.status == 503 else IssuerError)(f"{path}: {content}")
        return content

    def close(self) -> None:
        """Its connections end with their threads."""


class Resp:
    """Draws with a Redis client, one by one, in a pipeline or as one block. Nothing is asked twice."""

    def __init__(self, port: int, timeout: float) -> None:
        self._client = redis.Redis(port=port, socket_timeout=timeout, retry=Retry(NoBackoff(), 0), protocol=2)

    def next(self, tag: str, *, key: str | None = None) -> int:
        assert key is None
        try:
            return int(self._client.incr(tag))
        except redis.RedisError as error:
            raise _error(error) from error

    def take(self, tag: str, n: int) -> list[int]:
        try:
            if random.random() < 0.5:
                last = int(self._client.incrby(tag, n))
                return [*range(last - n + 1, last + 1)]
            pipeline = self._client.pipeline(transaction=False)
            for _ in range(n):
                pipeline.incr(tag)
            replies = pipeline.execute(raise_on_error=False)
        except redis.RedisError as error:
            raise _error(error) from error
        numbers = [reply for reply in replies if isinstance(reply, int)]
        if not numbers:
            raise _error(replies[0])
        return numbers

    def stream(self, tag: str) -> Iterator[int]:
        while True:
            yield self.next(tag)

    def close(self) -> None:
        self._client.close()


def _error(error: redis.RedisError) -> IssuerError:
    away = isinstance(error, (redis.ConnectionError, redis.TimeoutError)) or str(error).startswith("UNAVAILABLE")
    return (Unavailable if away else IssuerError)(repr(error))


def main(text: str) -> None:
    """Draw as the setup says, until stdin ends."""
    setup = DoorSetup.parsed(text)
    stop = told_to_stop()
    with closing((Http if setup.door == "http" else Resp)(setup.port, setup.timeout + LONGER)) as ids:
        drawn_from: NumberSource = ids
        draw(setup, drawn_from, stop)


if __name__ == "__main__":
    main(sys.argv[1])
