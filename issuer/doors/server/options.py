"""Options of a server. A check prevents that other machines can draw without a token by accident."""

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
    """An address at which one protocol is served: http or resp. `family` and `address` are as in the module `socket`.

    `source`: the variable, file or argument that sets the address. Error messages name it.
    """

    name: str
    family: socket.AddressFamily
    address: tuple[Any, ...]
    source: str

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can reach the address."""
        return ipaddress.ip_address(self.address[0].partition("%")[0]).is_loopback

    def shown(self, port: int) -> str:
        """Return the URL of the endpoint. `port`: port of the listening socket."""
        host = self.address[0]
        return f"{'http' if self.name == 'http' else 'redis'}://{f'[{host}]' if ':' in host else host}:{port}"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of a server.

    Attributes:
        given: Arguments with which each process of the server (the workers and the keeper) calls `connect`.
        verbose: Whether the log contains records of level DEBUG.
    """

    settings: Settings
    given: Mapping[str, Any]
    endpoints: tuple[Endpoint, ...]
    verbose: bool

    @property
    def has_redis(self) -> bool:
        """Whether the server uses Redis. If so, it also runs a keeper: a process that loads segments into Redis."""
        return bool(self.settings.redis_url != "none")

    @classmethod
    def of(cls, settings: Settings, given: Mapping[str, Any], *, verbose: bool) -> ServerOptions:
        """Return the options of a server with these settings.

        Raises ConfigurationError if the settings contradict each other, contain no address or an unknown host, or let
        other machines draw without a token by accident.
        """
        sources = settings.sources
        named = (("http", settings.http), ("resp", settings.resp))
        endpoints = tuple(_endpoint(name, text, sources[name]) for name, text in named if text)
        if not endpoints:
            raise ConfigurationError("http and resp are both off: give an address for at least one of them")
        if settings.tokens and settings.open:
            raise ConfigurationError(
                f"open ({sources['open']}) and tokens ({sources['tokens']}) contradict each other: remove one of them"
            )
        for each in endpoints:
            if not (settings.tokens or settings.open or each.is_loopback):
                raise ConfigurationError(
                    f"{each.name} {each.address[0]} ({each.source}) can be reached from other machines, and without "
                    "tokens any program there could draw: create a token with `issuer token` and name its file with "
                    "--tokens; or listen on 127.0.0.1; or set --open if every program that can reach this address may "
                    "draw"
                )
        return cls(settings, dict(given), endpoints, verbose)


def _endpoint(name: str, text: str, source: str) -> Endpoint:
    host, port = host_and_port(text)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"{name} from {source}: there is no host {host!r}: {error}") from error
    # A name may have IPv4 and IPv6 addresses. IPv4 is preferred, because every client supports it.
    family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return Endpoint(name, family, address, source)
