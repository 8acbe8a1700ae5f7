"""What a MongoDB server says of itself, and what its errors mean."""

from __future__ import annotations

import socket
from datetime import datetime
from typing import TYPE_CHECKING, Any

from bson.datetime_ms import DatetimeMS
from pymongo.errors import ConfigurationError, InvalidName, OperationFailure, ServerSelectionTimeoutError

from persistence.errors import Misconfigured, StoreError, Unavailable
from persistence.records import StoreFacts

if TYPE_CHECKING:
    from pymongo.collection import Collection

# Unauthorized, AuthenticationFailed, IllegalOperation (retryable writes unsupported), Atlas's authentication error.
_REFUSED = {13, 18, 20, 8000}


def facts(tags: Collection[dict[str, Any]]) -> StoreFacts:
    """Return how the server and the client behind the collection are set up."""
    database = tags.database
    client = database.client
    hello = client.admin.command("hello")
    time = hello.get("localTime")
    return StoreFacts(
        kind="mongodb",
        version=client.admin.command("buildInfo").get("version"),
        time=int(DatetimeMS(time)) if isinstance(time, datetime) else None,
        lasting=True,
        write_concern=tags.write_concern.document,
        asked_concern=database.write_concern.document,
        replica_set="sharded" if hello.get("msg") == "isdbgrid" else hello.get("setName", ""),
        members=len(hello["hosts"]) if "hosts" in hello else None,
        retry_writes=client.options.retry_writes,
    )


def translated(error: Exception, url: str) -> StoreError:
    """Return the store's error for what pymongo, bson or dnspython raised."""
    wrong = isinstance(error, ConfigurationError | InvalidName)
    if isinstance(error, OperationFailure):
        wrong = error.code in _REFUSED
    if isinstance(error, ServerSelectionTimeoutError):
        wrong = _unknown_hosts(error)
    kind = Misconfigured if wrong else Unavailable
    # Without pymongo's own settings and its view of the topology, which fill a screen.
    text = str(error).partition(", Timeout: ")[0].partition(" (configured timeouts")[0]
    return kind(f"{url}: {text}")


def _unknown_hosts(error: ServerSelectionTimeoutError) -> bool:
    """Whether no host of the URL has an address. A DNS that gives no answer is another matter: that passes."""
    topology: Any = error.details
    servers = topology.server_descriptions().values() if hasattr(topology, "server_descriptions") else ()
    causes = [getattr(each.error, "__cause__", None) for each in servers]
    return bool(causes) and all(
        isinstance(each, socket.gaierror) and each.errno == socket.EAI_NONAME for each in causes
    )
