"""The proxy of `issuer chaos`, for tests of the drivers and the stores: they count connections, and send twice.

For MongoDB put `port` into its URL, with directConnection=true.
"""

import asyncio

from issuer.chaos import proxy
from tests.servers.ports import free_port

# Seconds until it has done what it was told: a machine that stands still meanwhile is no fault of it.
proxy._ORDER_TIMEOUT = 60.0


class FaultProxy(proxy.FaultProxy):
    """`upstream` is (host, port)."""

    def __init__(self, upstream: tuple[str, int]) -> None:
        #: Connections accepted so far.
        self.accepted = 0
        #: By link: set when the first reply to what is sent twice has come.
        self._swallowed: dict[proxy.ProxiedConnection, asyncio.Event] = {}
        super().__init__(upstream, free_port())

    @property
    def open(self) -> int:
        return len(self._links)

    def cut(self) -> None:
        """Cut every open connection; new ones are served."""
        self._order(self._cut())

    def count(self) -> int:
        """Count requests from now on, and return `hits`."""
        self._order(self._set(proxy.ProxyFault()))
        return self.hits

    def duplicate(self, match: bytes | None = None, times: int | None = None) -> None:
        """Deliver the request, swallow its reply, deliver it again: the client sees the second reply only."""
        self._order(self._set(_Duplicate(match=match, left=times)))

    async def _serve(self, link: proxy.ProxiedConnection) -> None:
        self.accepted += 1
        await super()._serve(link)

    async def _deliver(
        self, link: proxy.ProxiedConnection, up: asyncio.StreamWriter, request: bytes, strike: proxy.ProxyFault
    ) -> None:
        if isinstance(strike, _Duplicate):
            self._swallowed[link] = asyncio.Event()
            await super()._deliver(link, up, request, strike)
            await self._swallowed[link].wait()
            del self._swallowed[link]
        await super()._deliver(link, up, request, strike)

    async def _answer(self, link: proxy.ProxiedConnection, writer: asyncio.StreamWriter, reply: bytes) -> None:
        first = self._swallowed.get(link)
        if first is None or first.is_set():
            await super()._answer(link, writer, reply)
        else:
            first.set()


class _Duplicate(proxy.ProxyFault):
    """Sends what it strikes twice."""
