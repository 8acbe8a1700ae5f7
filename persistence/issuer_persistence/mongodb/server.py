"""A MongoDB server: what it says of itself, and what its errors mean."""

from __future__ import annotations

import socket
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any

from bson.datetime_ms import DatetimeMS
from pymongo.errors import ConfigurationError, InvalidName, OperationFailure, ServerSelectionTimeoutError
from pymongo.monitoring import CommandListener

from issuer_persistence.errors import Misconfigured, StoreError, Unconfirmed
from issuer_persistence.facts import StoreFacts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pymongo.collection import Collection
    from pymongo.monitoring import CommandFailedEvent, CommandStartedEvent, CommandSucceededEvent

# Unauthorized, AuthenticationFailed, IllegalOperation, Atlas's authentication error.
_REFUSED = {13, 18, 20, 8000}

# Amazon DocumentDB's "retryable writes are not supported". Azure Cosmos DB says so with BadValue, and MongoDB's own
# standalone server with IllegalOperation: in their texts alone.
_NO_RETRIES, _PERHAPS_NO_RETRIES = 301, {2, 20}

_WRITES = {"findAndModify", "insert", "update", "delete"}

#: Ends of the host names of services that another region's failover, or its writes, can take back in time.
_SERVICES = {".mongo.cosmos.azure.com": "cosmos-ru", ".mongocluster.cosmos.azure.com": "cosmos-vcore"}


# Of the thread, or of the greenlet, even in a process that gevent has patched since.
_unanswered: ContextVar[int] = ContextVar("unanswered", default=0)


class Attempts(CommandListener):
    """Counts the present call's writes that were sent, and that the server may have carried out without saying so.

    pymongo sends a write again by itself, and raises the error of the second attempt: "not authorized" doesn't say then
    that nothing has changed.
    """

    @property
    def unanswered(self) -> int:
        """Writes, since `begin`, that were not answered, or with an error that settles nothing."""
        return _unanswered.get()

    def begin(self) -> None:
        """Begin to count."""
        _unanswered.set(0)

    def started(self, event: CommandStartedEvent) -> None:
        """Count a write that is sent."""
        if event.command_name in _WRITES:
            _unanswered.set(self.unanswered + 1)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Take note of an answer."""
        if event.command_name in _WRITES:
            _unanswered.set(self.unanswered - 1)

    def failed(self, event: CommandFailedEvent) -> None:
        """Take note of a refusal; any other error leaves open whether the write was carried out."""
        failure = event.failure
        if event.command_name in _WRITES and _refuses(failure.get("code"), str(failure.get("errmsg"))):
            _unanswered.set(self.unanswered - 1)


def service(hosts: Iterable[str]) -> str | None:
    """Return which of the services that have to be set up rightly the hosts belong to; None: none that is known."""
    found = {name for host in hosts for end, name in _SERVICES.items() if host.lower().endswith(end)}
    return min(found, default=None)


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
        service=service(host for host, _ in client.nodes),
    )


def translated(error: Exception, url: str, *, in_doubt: bool) -> StoreError:
    """Return the store's error for what pymongo, bson or dnspython raised.

    `in_doubt`: something may have changed by then, so any error is Unconfirmed.
    """
    wrong = isinstance(error, ConfigurationError | InvalidName)
    # Without pymongo's own settings and its view of the topology, which fill a screen.
    text = str(error).partition(", Timeout: ")[0].partition(" (configured timeouts")[0]
    if isinstance(error, OperationFailure):
        wrong = _refuses(error.code, text)
        if _knows_no_retries(error.code, text):
            text = "this server does not support retryable writes: add retryWrites=false to the URL"
    if isinstance(error, ServerSelectionTimeoutError):
        wrong = _unknown_hosts(error)
    if wrong and in_doubt:
        return Unconfirmed(f"{url}: {text}; the request may have taken effect")
    return (Misconfigured if wrong else Unconfirmed)(f"{url}: {text}")


def _refuses(code: object, text: str) -> bool:
    """Whether the server says that it won't do such a thing, asked as often as you like; it has done nothing."""
    return code in _REFUSED or _knows_no_retries(code, text)


def _knows_no_retries(code: object, text: str) -> bool:
    said = text.lower()
    about = "retryable write" in said or "retrywrites" in said or "transaction numbers" in said
    return code == _NO_RETRIES or (code in _PERHAPS_NO_RETRIES and about)


def _unknown_hosts(error: ServerSelectionTimeoutError) -> bool:
    """Whether no host of the URL has an address. A DNS that gives no answer is another matter: that passes."""
    topology: Any = error.details
    servers = topology.server_descriptions().values() if hasattr(topology, "server_descriptions") else ()
    causes = [getattr(each.error, "__cause__", None) for each in servers]
    return bool(causes) and all(
        isinstance(each, socket.gaierror) and each.errno == socket.EAI_NONAME for each in causes
    )
