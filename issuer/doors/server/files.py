"""Files that a server's process may have open: one budget for both protocols, with a reserve for the process itself."""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

from issuer.errors import ConfigurationError

#: As many as a process asks the system for, if that allows them.
FILES_MOST: Final = 65_536

#: Connections of one protocol that a worker has at most, and at least.
CONNECTIONS_MOST: Final = 10_000
CONNECTIONS_LEAST: Final = 50

#: Files of the process itself beside its connections to Redis: the store's, those of the metrics, what listens.
_OWN: Final = 168


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard one: many systems leave it at 1024, for programs of old."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MOST if hard == resource.RLIM_INFINITY else min(hard, FILES_MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # a system with a limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections(protocols: int, to_redis: int) -> int:
    """Return how many connections of each protocol a worker may have. ConfigurationError if these are too few."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = FILES_MOST if soft == resource.RLIM_INFINITY else soft
    each = (files - _OWN - to_redis) // protocols
    if each < CONNECTIONS_LEAST:
        least = _OWN + to_redis + CONNECTIONS_LEAST * protocols
        raise ConfigurationError(
            f"the limit of open files is {files}, and at least {least} are needed: raise it "
            "(ulimit -n; LimitNOFILE= in a unit of systemd), or lower redis_connections"
        )
    return min(CONNECTIONS_MOST, each)
