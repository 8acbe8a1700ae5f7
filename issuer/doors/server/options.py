"""Options of a server. A check prevents that other machines can draw without a token by accident."""

from __future__ import annotations

import ipaddress
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from issuer.errors import ConfigurationError
from issuer.settings import UNIX, Settings, host_and_port


@dataclass(frozen=True, slots=True)
class Endpoint:
    """An address at which one protocol is served: http or resp. `family` and `address` are as in the module `socket`.

    Attributes:
        source: The variable, file or argument that sets the address. Error messages name it.
        passed: The listening socket, if the service manager has opened it.
    """

    name: str
    family: socket.AddressFamily
    address: Any
    source: str
    passed: socket.socket | None = None

    @property
    def is_unix(self) -> bool:
        """Whether the address is the path of a Unix socket."""
        return self.family == socket.AF_UNIX

    @property
    def is_loopback(self) -> bool:
        """Whether only programs on this machine can reach the address."""
        return self.is_unix or ipaddress.ip_address(self.address[0].partition("%")[0]).is_loopback

    def shown(self, address: Any, *, tls: bool) -> str:
        """Return the URL of the endpoint. `address`: address of the listening socket."""
        scheme = "http" if self.name == "http" else "redis"
        if self.is_unix:
            return f"{scheme}+unix:{address}"
        scheme += "s" if tls else ""
        host, port = self.address[0], address[1]
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of a server.

    Attributes:
        given: Arguments with which each process of the server (the workers and the keeper) calls `connect`.
        verbose: Whether the log contains records of level DEBUG.
        console_only: Whether the server serves only its console, and keeps no tags.
    """

    settings: Settings
    given: Mapping[str, Any]
    endpoints: tuple[Endpoint, ...]
    verbose: bool
    console_only: bool = False

    @property
    def has_redis(self) -> bool:
        """Whether the server uses Redis. If so, it also runs a keeper: a process that loads segments into Redis."""
        return bool(self.settings.redis_url != "none")

    @classmethod
    def of(
        cls,
        settings: Settings,
        given: Mapping[str, Any],
        *,
        verbose: bool,
        passed: Mapping[str, socket.socket] = MappingProxyType({}),
    ) -> ServerOptions:
        """Return the options of a server with these settings. `passed`: sockets of the service manager, by name.

        Raises ConfigurationError if the settings contradict each other, contain no address or an unknown host, or let
        other machines draw without a token by accident.
        """
        sources = settings.sources
        endpoints = tuple(
            _passed(name, passed[name]) if name in passed else _endpoint(name, text, sources[name])
            for name, text in (("http", settings.http), ("resp", settings.resp))
            if text or name in passed
        )
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
            if settings.console and each.name == "http" and not (settings.tokens or each.is_loopback):
                raise ConfigurationError(
                    f"console: {each.address[0]} ({each.source}) can be reached from other machines, and without "
                    "tokens anybody there could read it: name a file of tokens with --tokens, or listen on 127.0.0.1"
                )
        if bool(settings.tls_cert) is not bool(settings.tls_key):
            raise ConfigurationError("tls_cert and tls_key belong together: configure both, or none for no TLS")
        made = cls(settings, dict(given), endpoints, verbose)
        made.tls_context()
        return made

    def tls_context(self) -> ssl.SSLContext | None:
        """Return a TLS context with the certificate, or None if there is none. Raises ConfigurationError."""
        settings = self.settings
        if not settings.tls_cert:
            return None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(settings.tls_cert, settings.tls_key, password="")  # else it would ask for one
        except (OSError, ValueError) as error:
            raise ConfigurationError(
                f"tls_cert {settings.tls_cert} and tls_key {settings.tls_key} can't be used: {error}. Both must be "
                "PEM files that this user can read, of the same key, without a password"
            ) from error
        return context


def _passed(name: str, listening: socket.socket) -> Endpoint:
    return Endpoint(name, listening.family, listening.getsockname(), "a socket of the service manager", listening)


def _endpoint(name: str, text: str, source: str) -> Endpoint:
    if text.startswith(UNIX):
        return Endpoint(name, socket.AF_UNIX, text.removeprefix(UNIX), source)
    host, port = host_and_port(text)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (OSError, UnicodeError) as error:
        raise ConfigurationError(f"{name} from {source}: there is no host {host!r}: {error}") from error
    # A name may have IPv4 and IPv6 addresses. IPv4 is preferred, because every client supports it.
    family, _, _, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    return Endpoint(name, family, address, source)
