"""The commands that a client sends to MongoDB."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import pymongo
from pymongo.monitoring import CommandListener

if TYPE_CHECKING:
    from pymongo.database import Database
    from pymongo.monitoring import CommandFailedEvent, CommandStartedEvent, CommandSucceededEvent


class Heard(CommandListener):
    """A client whose commands are kept, with their names."""

    def __init__(self, url: str) -> None:
        self.commands: list[tuple[str, dict[str, Any]]] = []
        self.failed_commands: list[str] = []
        self._client: pymongo.MongoClient[dict[str, Any]] = pymongo.MongoClient(url, event_listeners=[self])
        self.database: Database[dict[str, Any]] = self._client.get_default_database()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def started(self, event: CommandStartedEvent) -> None:
        self.commands.append((event.command_name, dict(event.command)))

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Nothing: the command is kept already."""

    def failed(self, event: CommandFailedEvent) -> None:
        self.failed_commands.append(event.command_name)
