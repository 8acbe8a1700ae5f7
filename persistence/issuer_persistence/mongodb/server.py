"""A MongoDB server: facts about it, and the meaning of its errors."""

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

# "Retryable writes are not supported": Amazon DocumentDB has a code for it. Azure Cosmos DB (BadValue) and a standalone
# server of MongoDB (IllegalOperation) report it only in the text.
_NO_RETRIES, _PERHAPS_NO_RETRIES = 301, {2, 20}

_WRITES = {"findAndModify", "insert", "update", "delete"}

#: Ends of the host names of services that can lose writes in a failover to another region.
_SERVICES = {".mongo.cosmos.azure.com": "cosmos-ru", ".mongocluster.cosmos.azure.com": "cosmos-vcore"}


# Per thread, or per greenlet, also in a process that gevent patches later.
_unanswered: ContextVar[int] = ContextVar("unanswered", default=0)


class Attempts(CommandListener):
    """Counts the writes of the current call that the server may have done without a reply.

    pymongo repeats a write, and raises the error of the second attempt. So after "not authorized", the first attempt
    may have changed something.
    """

    @property
    def unanswered(self) -> int:
        """How many writes since `begin` have no reply, or an error after which the write may have been done."""
        return _unanswered.get()

    def begin(self) -> None:
        """Reset the count."""
        _unanswered.set(0)

    def started(self, event: CommandStartedEvent) -> None:
        """Count a write that is sent."""
        if event.command_name in _WRITES:
            _unanswered.set(self.unanswered + 1)

    def succeeded(self, event: CommandSucceededEvent) -> None:
        """Count a reply."""
        if event.command_name in _WRITES:
            _unanswered.set(self.unanswered - 1)

    def failed(self, event: CommandFailedEvent) -> None:
        """Count a rejection. After any other error, the write may have been done."""
        failure = event.failure
        if event.command_name in _WRITES and _refuses(failure.get("code"), str(failure.get("errmsg"))):
            _unanswered.set(self.unanswered - 1)


def service(hosts: Iterable[str]) -> str | None:
    """Return the known service that runs these hosts, or None. `doctor` has checks for these services."""
    found = {name for host in hosts for end, name in _SERVICES.items() if host.lower().endswith(end)}
    return min(found, default=None)


def facts(tags: Collection[dict[str, Any]]) -> StoreFacts:
    """Return the configuration of the collection's server and client."""
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
    """Return the store's error for an error of pymongo, bson or dnspython.

    If `in_doubt` is True, the call may have changed something. Then the error is Unconfirmed.
    """
    wrong = isinstance(error, ConfigurationError | InvalidName)
    # Without pymongo's settings and topology description, which fill a screen.
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
    """Return True if the server has rejected the request, and would reject it again. It has done nothing."""
    return code in _REFUSED or _knows_no_retries(code, text)


def _knows_no_retries(code: object, text: str) -> bool:
    said = text.lower()
    about = "retryable write" in said or "retrywrites" in said or "transaction numbers" in said
    return code == _NO_RETRIES or (code in _PERHAPS_NO_RETRIES and about)


def _unknown_hosts(error: ServerSelectionTimeoutError) -> bool:
    """Return True if the DNS knows no host of the URL. False if the DNS does not answer, which is temporary."""
    topology: Any = error.details
    servers = topology.server_descriptions().values() if hasattr(topology, "server_descriptions") else ()
    causes = [getattr(each.error, "__cause__", None) for each in servers]
    return bool(causes) and all(
        isinstance(each, socket.gaierror) and each.errno == socket.EAI_NONAME for each in causes
    )
