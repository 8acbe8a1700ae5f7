"""Guard: which hosts and origins are served, so that a page in a browser can't draw; and who a caller is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ipaddress import ip_address
from typing import Any, Final

from issuer.doors.access import Access, Caller
from issuer.doors.web.problems import Problem
from issuer.errors import ConfigurationError, Unauthenticated, brief

#: Names that every resolver, and every browser, takes for this machine.
_LOCAL: Final = ("localhost", "*.localhost")
#: Hosts whose verdict is kept: a client can send any.
_KEPT: Final = 1000

_BEARER: Final = b"bearer "


class HeaderGuard:
    """Looks at the headers of each request."""

    def __init__(self, allowed: Sequence[str], *, any_host: bool = False) -> None:
        """Take the names of this server: "*.example.com" for all below one, "*" for any. Raises ConfigurationError.

        `any_host`: serve every name, as where callers need a token, which no page of another site has.
        """
        named: Any = allowed  # of a settings file, say
        if isinstance(named, str) or not all(isinstance(each, str) and each.strip() for each in named):
            raise ConfigurationError(f"allowed_hosts is a list of names, not {brief(allowed)}")
        self._allowed = {_name_of(each.strip().lower()) for each in (*_LOCAL, *allowed)}
        if any_host:
            self._allowed.add("*")
        self._known: dict[bytes, bool] = {}

    def serves(self, host: bytes | None) -> bool:
        """Whether that is the name of this server, or an address.

        A page of another site that has its name resolved to this server (DNS rebinding) sends its own name. A page can
        only send an address if it came from there. No header, for which granian has an empty one: HTTP/1.0, which no
        browser speaks.
        """
        if not host:
            return True
        known = self._known.get(host)
        if known is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            known = self._known[host] = self._is_allowed(host.decode("latin-1").lower())
        return known

    def _is_allowed(self, host: str) -> bool:
        name = _name_of(host)
        if "*" in self._allowed or name in self._allowed or _is_address(name):
            return True
        above = name.split(".")
        return any(f"*.{'.'.join(above[at:])}" in self._allowed for at in range(1, len(above)))

    def check(self, headers: Mapping[bytes, bytes]) -> None:
        """Raise Problem for another server's name, or for a page of another site."""
        host = headers.get(b"host")
        if not self.serves(host):
            raise Problem(403, "wrong_host", "the Host header is not a name of this server; add it to `allowed_hosts`")
        origin = headers.get(b"origin")
        own = host is not None and origin is not None and origin.lower().partition(b"://")[2] == host.lower()
        if (origin is not None and not own) or headers.get(b"sec-fetch-site") in (b"cross-site", b"same-site"):
            raise Problem(403, "cross_origin", "cross-origin requests are rejected")


def _name_of(host: str) -> str:
    """Return the host without its port, an address without its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0].rstrip(".") if host.count(":") <= 1 else host


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def identified(access: Access, authorization: bytes | None) -> Caller:
    """Return the caller that sent the header. Raises Unauthenticated."""
    if authorization is None:
        return access.identify(None)
    if authorization[:7].lower() != _BEARER:
        if access.is_open:
            return access.identify(None)
        raise Unauthenticated("the Authorization header must be `Bearer TOKEN`")
    return access.identify(authorization[7:].strip().decode("latin-1"))
