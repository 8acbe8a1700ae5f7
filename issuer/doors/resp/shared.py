"""The state that all connections of a server share, and the state of one client."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from issuer.clock import monotonic
from issuer.core.sparing import Sparing
from issuer.doors.access import Access, Caller
from issuer.doors.budget import Budget
from issuer.doors.lookups import LookUps
from issuer.engine.aio import AsyncEngine
from issuer.errors import Unauthenticated

#: Largest number of bytes in one read. All connections share one buffer of this size.
READ_MOST: Final = 65_536


@dataclass(slots=True)
class Shared:
    """State that all connections share.

    Attributes:
        most: Largest number of clients.
        progress: Seconds within which a client must make progress.
        connections: The objects of the class Connection, which cannot be imported here.
        turns: The connections whose next commands wait for their turn.
        ticks: Number of searches for idle clients.
        served: Number of connected clients that are within the limit.
        draining: Whether a stop has begun.
        emptied: Set when the last connection is closed.
        is_open: Whether callers need no token.
        commands: How often each command was sent.
    """

    access: Access
    engine: AsyncEngine
    look_ups: LookUps
    loop: asyncio.AbstractEventLoop
    port: int
    most: int
    budget: Budget
    progress: float
    buffer: memoryview = field(default_factory=lambda: memoryview(bytearray(READ_MOST)))
    connections: set[Any] = field(default_factory=set)
    turns: OrderedDict[Any, None] = field(default_factory=OrderedDict)
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    began: float = field(default_factory=monotonic)
    ticks: int = 0
    opened: int = 0
    served: int = 0
    draining: bool = False
    sparing: Sparing = field(default_factory=Sparing)
    emptied: asyncio.Event = field(default_factory=asyncio.Event)
    is_open: bool = field(init=False)
    commands: dict[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.is_open = self.access.is_open
        self.commands = self.access.tally.commands
        self.access.tally.connections["resp"] = lambda: len(self.connections)

    def wait_for_turn(self, connection: Any) -> None:
        """Call `go_on` of the connection when those that wait already have had their turn."""
        if not self.turns:
            self.loop.call_soon(self._turn)
        self.turns[connection] = None

    def _turn(self) -> None:
        """Give one connection its turn. The loop then looks at all sockets, so that small requests need no turn."""
        connection, _ = self.turns.popitem(last=False)
        if self.turns:
            self.loop.call_soon(self._turn)
        connection.go_on()


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
