"""The world of `issuer chaos` on servers and before proxies that the faults of these tests ask more of."""

from pathlib import Path

from issuer.cli.chaos.world import World
from tests.servers.proxy import FaultProxy
from tests.servers.redis import RedisServer


class Pair(World):
    master: RedisServer
    fronts: list[FaultProxy]  # type: ignore[assignment]

    def server(self, binary: Path) -> RedisServer:
        return RedisServer(binary)

    def proxy(self, upstream: tuple[str, int]) -> FaultProxy:
        return FaultProxy(upstream)
