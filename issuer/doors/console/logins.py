"""Logins of the console: a signed cookie names the token, and forms carry a value that only their page can know."""

from __future__ import annotations

import hmac
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from issuer.doors.access import Access, Caller
from issuer.doors.tokens import digest_of
from issuer.errors import TooManyRequests, Unauthenticated

#: Name of the cookie.
COOKIE: Final = "issuer_console"
#: Seconds for which a login is valid.
VALID_FOR: Final = 12 * 3600
#: Failed logins per second, of all clients together. Tokens cannot be guessed: the limit protects the log. It does not
#: stop those who have a token.
FAILURES: Final = 5.0

_VALUE: Final = re.compile(r"([A-Za-z0-9_-]{1,64})\.(\d{1,12})\.([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Login:
    """A caller that is logged in. `form_key`: value that a form must send, so that no other page can send it."""

    caller: Caller
    form_key: str


class Logins:
    """Makes and checks the cookies of one server.

    A cookie contains the name of the token and the end of the login. It is signed with a key of the server and with the
    hash of the token. So a login ends when the token is removed from the tokens file, is replaced, or expires.
    """

    def __init__(self, access: Access, key: Callable[[], bytes], *, wall: Callable[[], float] = time.time) -> None:
        """`key`: returns the secret, which all workers share. `wall`: returns the time in seconds since 1970."""
        self._access, self._key, self._wall = access, key, wall
        self._failures = access.rates.bucket("console: failed logins", FAILURES)

    def login(self, token: str) -> str:
        """Return the value of the cookie for a token. Raises Unauthenticated, and TooManyRequests."""
        try:
            caller = self._access.identify(token)
        except Unauthenticated:
            if wait := self._failures.take():
                raise TooManyRequests("too many logins have failed at once", retry_after=wait) from None
            raise
        end = int(self._wall()) + VALID_FOR
        return f"{caller.name}.{end}.{self._signature(caller.name, end, digest_of(token))}"

    def of(self, cookies: bytes | None) -> Login | None:
        """Return the session that the header Cookie shows. None if nobody is logged in."""
        if self._access.is_open:
            return Login(self._access.identify(None), self._form_key(""))
        parts = _VALUE.fullmatch(_cookie(cookies or b""))
        if parts is None or int(parts[2]) <= self._wall():
            return None
        for digest, caller in self._access.named(parts[1]):
            if hmac.compare_digest(self._signature(parts[1], int(parts[2]), digest), parts[3]):
                return Login(caller, self._form_key(parts[0]))
        return None

    def _signature(self, name: str, end: int, digest: bytes) -> str:
        return self._mac(b"login", name.encode(), b"%d" % end, digest)

    def _form_key(self, cookie: str) -> str:
        return self._mac(b"form", cookie.encode())

    def _mac(self, *parts: bytes) -> str:
        return hmac.new(self._key(), b"\0".join(parts), sha256).hexdigest()


def _cookie(cookies: bytes) -> str:
    """Return the value of the cookie. "" if there is none.

    `http.cookies` is not suitable: it reads no cookie if another program of the host has set one in a form of its own.
    """
    pairs = (each.strip().partition("=") for each in cookies.decode("latin-1").split(";"))
    return next((value for name, _, value in pairs if name == COOKIE), "")


def set_cookie(value: str, path: str, *, secure: bool, seconds: int = VALID_FOR) -> bytes:
    """Return the header Set-Cookie. With `seconds` 0, the browser deletes the cookie.

    SameSite=Lax: the browser sends the cookie also when somebody follows a link from a chat or an alert, but never with
    a form of another site.
    """
    flags = "; Secure" if secure else ""
    return f"{COOKIE}={value}; Path={path}; Max-Age={seconds}; HttpOnly; SameSite=Lax{flags}".encode()
