"""The state of one client's connection: which protocol it speaks, its names, and its token."""

from __future__ import annotations

from dataclasses import dataclass, field

from issuer.access import Access, Caller
from issuer.errors import Unauthenticated


@dataclass(slots=True)
class Session:
    """A client as it has described itself. `number`: of its connection; `address`: where it comes from, host:port."""

    access: Access
    number: int
    address: str
    protocol: int = 2
    name: str = ""
    library: str = ""
    library_version: str = ""
    _token: str | None = field(default=None, repr=False)

    def caller(self) -> Caller:
        """Return who it is now: a token may have been revoked since the last request. Raises Unauthenticated."""
        if self._token is None and not self.access.is_open:
            raise Unauthenticated("Authentication required.", advice="")
        return self.access.identify(self._token)

    def authenticate(self, token: bytes) -> None:
        """Take the token for its own from now on. Raises Unauthenticated; then it keeps the one that it had."""
        text = token.decode(errors="surrogateescape")
        self.access.identify(text)
        self._token = text

    def reset(self) -> None:
        """Make it as it was at first."""
        self.protocol, self.name, self._token = 2, "", None
