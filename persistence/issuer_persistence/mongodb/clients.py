"""The pymongo client of a store: one per process. A client has one password, so a new password needs a new client."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import pymongo
from pymongo import MongoClient
from pymongo.database import Database

from issuer_persistence.contract import CallDeadline
from issuer_persistence.credentials import Credentials
from issuer_persistence.errors import Misconfigured, Unconfirmed
from issuer_persistence.urls import mask

Document = dict[str, Any]

P = ParamSpec("P")
R = TypeVar("R")

#: Name of the database if the URL has none.
DATABASE = "issuer"

#: Time limit in seconds for `close`, which ends the sessions on the server. Without this limit, a server that hung
#: delayed the end of a program by 12 s. If `close` takes longer, the server ends the sessions after half an hour.
_LEAVING = 0.5


class LoginRefused(Unconfirmed):
    """The server refuses the login, and nothing was changed. The next call uses a new client and a new password."""


def renewing(method: Callable[P, R]) -> Callable[P, R]:
    """Return the method, which is called once more after LoginRefused, with the time that is left of its `timeout`."""

    @wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> R:
        deadline = CallDeadline(options["timeout"])  # type: ignore[arg-type]  # a number, as in `Store`
        with suppress(LoginRefused):
            return method(*args, **options)
        options["timeout"] = deadline.left()
        return method(*args, **options)

    return call


class Clients:
    """The client of a store in this process, and older clients until their last call has ended.

    Args:
        given: Database object of the caller, or None. Its client is never closed.
        address: URL of the store. It is used if `given` is None.
        options: Options of each client.
        credentials: Where the passwords come from. None: the URL has the password.
    """

    def __init__(
        self,
        given: Database[Document] | None,
        address: str,
        options: Mapping[str, Any],
        credentials: Credentials | None,
    ) -> None:
        self._given, self._address, self._options, self._credentials = given, address, options, credentials
        self._closed = False
        self._begin(given)

    def _begin(self, database: Database[Document] | None) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._client: MongoClient[Document] | None = None
        self._database = database
        self._password = ""
        #: How many calls use each database object, by its id.
        self._calls: Counter[int] = Counter()

    def enter(self, left: float) -> Database[Document]:
        """Return the database for a call, which calls `leave` at its end. `left`: longest wait for a password."""
        if self._process != os.getpid():
            self.forget()
        while True:
            login = self._login(left) if self._database is None else None
            with self._lock:
                if self._closed:
                    raise Misconfigured(f"{mask(self._address)}: the store was closed")
                if self._database is None and login is not None:
                    self._client = MongoClient(self._address, **self._options, **login)
                    self._database = self._client.get_default_database(default=DATABASE)
                    self._password = login.get("password", "")
                if self._database is not None:
                    self._calls[id(self._database)] += 1
                    return self._database

    def _login(self, left: float) -> dict[str, Any]:
        if self._given is not None:
            raise Misconfigured("a pymongo Database cannot be used in a forked child: create the store after the fork")
        if self._credentials is None:
            return {}
        user, password = self._credentials.get(left)
        return {"username": user, "password": password} if user else {"password": password}

    def leave(self, database: Database[Document]) -> None:
        """End a call. The last call of an older client closes the client."""
        with self._lock:
            self._calls[id(database)] -= 1
            left = self._calls[id(database)]
            if not left:
                del self._calls[id(database)]
            outdated = not left and database is not self._database
        if outdated:
            _close(database.client)

    def refused(self, database: Database[Document]) -> bool:
        """Record that the server refuses the login of a client. Return True if the next call uses another client."""
        if self._credentials is None:
            return False
        with self._lock:
            if database is self._database:
                self._credentials.refused(self._password)
                self._client = self._database = None
        return True

    def serves(self, database: Database[Document]) -> bool:
        """Whether calls use this database object."""
        return database is self._database and not self._closed

    def forget(self) -> None:
        """In a forked child: discard the parent's client, but leave its connections open.

        The parent's client is kept in a list, because its destruction would close the parent's connections.
        """
        if self._client is not None:
            _abandoned.append(self._client)
        self._begin(None)

    def close(self) -> None:
        """Close the client, but not the caller's. Later calls raise Misconfigured."""
        if self._process != os.getpid():
            self.forget()
        with self._lock:
            self._closed = True
            client, self._client = self._client, None
        if client is not None:
            _close(client)


def _close(client: MongoClient[Document]) -> None:
    with pymongo.timeout(_LEAVING):
        client.close()


_abandoned: list[MongoClient[Document]] = []
