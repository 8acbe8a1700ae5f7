"""A subscription to a channel of Redis."""

from __future__ import annotations

from typing import Any

import redis

from issuer.clock import Deadline, monotonic
from issuer.core.steps import Masters
from issuer.drivers.redis_errors import connection_error, meaning
from issuer.drivers.topology import Address
from issuer.drivers.wire import Wire
from issuer.errors import IssuerError
from issuer.gateway.commands import RedisCall, pack

#: After this many seconds without a message, the subscription is repeated: the reply shows that the connection works.
SILENCE = 10.0

#: Maximum number of messages that `receive` returns at once.
MOST = 10_000


class Channel:
    """Receives the messages of a channel, over one connection of its own.

    One connection is enough even for a Cluster, because each node passes a message on to all other nodes.
    """

    def __init__(self, servers: Wire[Any], name: str) -> None:
        """`name`: name of the channel. The first `receive` connects."""
        self._servers = servers
        self._name = name
        self._pubsub: Any = None
        self._address = Address()
        #: When the last message arrived, and when the subscription was last repeated, on the monotonic clock.
        self._heard_at = 0.0
        self._asked_at = 0.0

    async def receive(self, seconds: float) -> list[str] | None:
        """Wait at most `seconds` seconds for a message, and return all that have arrived.

        Returns None if the connection is new: then earlier messages may be lost. After an error, the next call connects
        again.

        Raises:
            RedisUnavailable: The server does not answer, or has ended the connection.
            FenceError: The user has no permission to subscribe.
            ConfigurationError: The server refuses the login.
        """
        try:
            if self._pubsub is None:
                await self._subscribe()
                return None
            return await self._received(seconds)
        except Exception as raised:
            await self.close()
            provider = self._servers.target.data.provider
            if provider is not None and isinstance(raised, redis.exceptions.AuthenticationError):
                provider.refused()
            if isinstance(raised, IssuerError):
                raise
            call = RedisCall(pack("SUBSCRIBE", self._name), "", bool)
            raise meaning(connection_error(raised), self._servers.name, self._name, None, call) from raised

    async def _subscribe(self) -> None:
        end = Deadline(self._servers.timeout)
        self._address = (await self._masters(end))[0]
        self._pubsub = self._servers.pubsub_class(self._servers.connection_pool(self._address))
        await self._pubsub.subscribe(self._name)
        self._heard_at = self._asked_at = monotonic()
        if not await self._pubsub.get_message(timeout=end.left()):
            raise redis.TimeoutError("no answer in time")

    async def _masters(self, end: Deadline) -> list[Address]:
        return [Address(host or None, port) for host, port in await self._servers.do(Masters(), end)]

    async def _received(self, seconds: float) -> list[str]:
        found: list[str] = []
        message = await self._pubsub.get_message(timeout=seconds)
        now = monotonic()
        while message is not None:
            self._heard_at = now
            if message["type"] == "message":
                found.append(_text(message["data"]))
            message = await self._pubsub.get_message(timeout=0) if len(found) < MOST else None
        if now - self._heard_at > SILENCE:
            await self._check(now)
        return found

    async def _check(self, now: float) -> None:
        """After a long time without a message: check that the server is still a master and the connection works."""
        if self._asked_at > self._heard_at:
            if now - self._asked_at > self._servers.timeout:
                raise redis.TimeoutError("no answer in time")
            return
        self._asked_at = now
        if self._address not in await self._masters(Deadline(self._servers.timeout)):
            raise redis.ConnectionError(f"{self._address.name} is no longer a master")
        await self._pubsub.subscribe(self._name)

    async def close(self) -> None:
        """Close the connection."""
        pubsub, self._pubsub = self._pubsub, None
        if pubsub is not None:
            await pubsub.aclose()


def _text(data: Any) -> str:
    return data if isinstance(data, str) else bytes(data).decode(errors="replace")
