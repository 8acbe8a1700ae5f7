"""The state of a connection over the Redis protocol: version of the protocol, names of the client, and token."""

from __future__ import annotations

from dataclasses import dataclass, field

from issuer.doors.access import Caller
from issuer.doors.resp.shared import Shared
from issuer.errors import Unauthenticated


@dataclass(slots=True)
class ClientInfo:
    """A connected client.

    Attributes:
        number: Number of its connection.
        address: Its address, as host:port.
        protocol: Version of the protocol: 2 or 3.
        name: Name that the client has set for its connection.
        library: Name and version of the client's library, as the client has set them.
    """

    shared: Shared
    number: int
    address: str
    protocol: int = 2
    name: str = ""
    library: dict[str, str] = field(default_factory=lambda: {"lib-name": "", "lib-ver": ""})
    _token: str | None = field(default=None, repr=False)

    @property
    def stranger(self) -> bool:
        """Whether the client must still authenticate."""
        return self._token is None and not self.shared.is_open

    def caller(self) -> Caller:
        """Return the caller that has the client's token.

        Raises Unauthenticated if the token is missing or not valid, for example because it has been revoked.
        """
        return self._identified(self._token)

    @property
    def owner(self) -> str:
        """Name of the client's token, or its address if it has no token. Raises Unauthenticated."""
        return self.caller().name or self.address.rpartition(":")[0]

    def authenticate(self, token: bytes) -> None:
        """Set the token of the client. If the token is invalid, raise Unauthenticated and keep the previous token."""
        text = token.decode(errors="surrogateescape")
        self._identified(text)
        self._token = text

    def _identified(self, token: str | None) -> Caller:
        try:
            if token is None and self.stranger:
                raise Unauthenticated("Authentication required.", advice="")  # noqa: TRY301 - handled like the others
            return self.shared.access.identify(token)
        except Unauthenticated as error:
            self.shared.access.failed("resp", self.address.rpartition(":")[0], f"connection {self.number}", error)
            raise

    def reset(self) -> None:
        """Reset the protocol version, the name and the token to their initial values."""
        self.protocol, self.name, self._token = 2, "", None
