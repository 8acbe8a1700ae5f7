"""The client for which this process makes a call, for the chronicle. A server sets it in the context of a request."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple


class Actor(NamedTuple):
    """The person or program that makes a call.

    Attributes:
        who: Name of the caller's token, or user of the operating system. "" for a caller without a token.
        origin: Address of the client of a server, or host and pid of this process.
    """

    who: str
    origin: str


_acting: ContextVar[Actor | None] = ContextVar("issuer_acting", default=None)


@contextmanager
def acting(who: str, origin: str) -> Iterator[None]:
    """Context manager around calls that this process makes for a client. See `Actor`."""
    token = _acting.set(Actor(who, origin))
    try:
        yield
    finally:
        _acting.reset(token)


def actor() -> Actor:
    """Return the client for which this process makes calls now. Without a client: the user, and this process."""
    return _acting.get() or Actor(_user(), f"{socket.gethostname()} pid {os.getpid()}")


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # in a container, a user id may have no name
        return f"uid {os.getuid()}"
