"""The limit of open files of a process, shared by its connections, with a reserve for its own files."""

from __future__ import annotations

import resource
from contextlib import suppress
from typing import Final

from issuer.errors import ConfigurationError

#: The limit that a process requests from the system.
FILES_MOST: Final = 65_536

#: Largest and smallest number of connections per protocol in a worker.
CONNECTIONS_MOST: Final = 10_000
CONNECTIONS_LEAST: Final = 50

#: Files for the store, the metrics and the listening sockets. Connections to Redis are counted separately.
_OWN: Final = 168


def raise_limit() -> None:
    """Raise the soft limit of open files to the hard limit. Many systems set the soft limit to 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MOST if hard == resource.RLIM_INFINITY else min(hard, FILES_MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # the system has another limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def connections(protocols: int, to_redis: int) -> int:
    """Return the number of connections per protocol in a worker. Raises ConfigurationError if it is too small."""
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
