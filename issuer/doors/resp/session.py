"""The state of one client's connection: which protocol it speaks, its names, and its token."""

from __future__ import annotations

from dataclasses import dataclass, field

from issuer.doors.access import Access, Caller
from issuer.errors import Unauthenticated


@dataclass(slots=True)
class ClientInfo:
    """A client as it has described itself. `number`: of its connection; `address`: where it comes from, host:port."""

    access: Access
    number: int
    address: str
    protocol: int = 2
    name: str = ""
    library: str = ""
    library_version: str = ""
    _token: str | None = field(default=None, repr=False)

    @property
    def stranger(self) -> bool:
        """Whether it has yet to authenticate."""
        return self._token is None and not self.access.is_open

    def caller(self) -> Caller:
        """Return who it is now: a token may have been revoked since the last request. Raises Unauthenticated."""
        try:
            if self.stranger:
                raise Unauthenticated("Authentication required.", advice="")  # noqa: TRY301 - handled like the others
            return self.access.identify(self._token)
        except Unauthenticated as error:
            self._failed(error)
            raise

    def authenticate(self, token: bytes) -> None:
        """Take the token for its own from now on. Raises Unauthenticated; then it keeps the one that it had."""
        text = token.decode(errors="surrogateescape")
        try:
            self.access.identify(text)
        except Unauthenticated as error:
            self._failed(error)
            raise
        self._token = text

    def _failed(self, error: Unauthenticated) -> None:
        self.access.failed("resp", self.address.rpartition(":")[0], f"connection {self.number}", error)

    def reset(self) -> None:
        """Make it as it was at first."""
        self.protocol, self.name, self._token = 2, "", None
