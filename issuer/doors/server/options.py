"""Options of a server, as the settings have them, and what must not be served."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from issuer.errors import ConfigurationError
from issuer.settings import Settings, host_and_port


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address at which one protocol is served. `name`: http or resp; `source`: where the setting came from.

    `family`, `address`: as `socket` has them.
    """

    name: str
    family: socket.AddressFamily
    address: tuple[Any, ...]
    source: str

    @property
    def is_loopback(self) -> bool:
        """Whether this machine alone reaches it."""
        return ipaddress.ip_address(self.address[0].partition("%")[0]).is_loopback

    def shown(self, port: int) -> str:
        """Return it as a URL, with the port that was bound."""
        host = self.address[0]
        return f"{'http' if self.name == 'http' else 'redis'}://{f'[{host}]' if ':' in host else host}:{port}"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of a server.

    `given`: the arguments of `connect`, `config` among them. `drain_delay`: seconds between SIGTERM and the moment at
    which no more connections are accepted. `has_redis`: whether there is something to keep.
    """

    given: Mapping[str, Any]
    endpoints: tuple[Endpoint, ...]
    workers: int
    tokens: str
    allowed_hosts: tuple[str, ...]
    drain_delay: float
    longest_ttl: float
    keys_per_second: int
    series_per_tag: int
    log_format: str
    verbose: bool
    store_url: str
    has_redis: bool
    redis_connections: int

    @classmethod
    def of(cls, settings: Settings, given: Mapping[str, Any], *, verbose: bool) -> ServerOptions:
        """Put them together. Raises ConfigurationError."""
        named = (("http", settings.http), ("resp", settings.resp))
        endpoints = tuple(_endpoint(name, each.value, each.source) for name, each in named if each.value)
        if not endpoints:
            raise ConfigurationError("http and resp are both off: give an address for at least one of them")
        tokens, is_open = settings.tokens.value, settings.open.value
        if tokens and is_open:
            raise ConfigurationError(
                f"open ({settings.open.source}) and tokens ({settings.tokens.source}) contradict each other: "
                "remove one of them"
            )
        for each in endpoints:
            if not (tokens or is_open or each.is_loopback):
                raise ConfigurationError(
                    f"{each.name} {each.address[0]} ({each.source}) can be reached from other machines, and without "
                    "tokens any program there could draw: create a token with `issuer token` and name its file with "
                    "--tokens; or listen on 127.0.0.1; or set --open if every program that can reach this address may "
                    "draw"
                )
        return cls(
            given=dict(given),
            endpoints=endpoints,
            workers=settings.workers.value,
            tokens=tokens,
            allowed_hosts=tuple(settings.allowed_hosts.value),
            drain_delay=settings.drain_delay.value,
            longest_ttl=settings.longest_ttl.value,
            keys_per_second=settings.keys_per_second.value,
            series_per_tag=settings.series_per_tag.value,
            log_format=settings.log_format.value,
            verbose=verbose,
            store_url=str(settings.store_url.value),
            has_redis=settings.redis_url.value != "none",
            redis_connections=settings.redis_connections.value,
        )


def _endpoint(name: str, text: str, source: str) -> Endpoint:
    host, port = host_and_port(text)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"{name} from {source}: there is no host {host!r}: {error}") from error
    # Of a name that has both, IPv4: what clients find in any case.
    family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return Endpoint(name, family, address, source)
