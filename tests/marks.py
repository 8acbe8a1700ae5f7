"""The marks that rules give to tests: `live`, `slow` and `matrix`.

`make check` leaves out all three, `make test` the last two; `make all` has those two alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.proofs.mutate.mutations import mutations

#: Fixtures that start a real server.
LIVE = frozenset({"start_redis", "start_tls", "pools", "mongo_url", "postgres_server", "mariadb_server", "double"})

#: Values of parameters with which a test starts a real server.
_WITH_SERVER = frozenset({"mongo", "mongodb", "postgres", "postgresql", "mariadb", "mysql", "leaf", "tinyid"})

#: Tests that take more than a second of processor time: a file, a test, or one of its parameters.
SLOW = Path(__file__).with_name("slow.txt")

#: The second of two engines, layouts or colours, and the first one. A test with both is of the matrix with the second.
SECOND = {
    "asyncio": "blocking",
    "aio": "blocking",
    "valkey": "redis",
    "valkey-9": "redis",
    "redis-6.2": "redis",
    "mariadb": "postgres",
    "mysql": "postgresql",
    "leaf": "mariadb",
    "tinyid": "leaf",
}


def listed() -> list[str]:
    """Return the lines of SLOW."""
    return SLOW.read_text(encoding="utf-8").splitlines()


def mark(items: Sequence[pytest.Item]) -> None:
    """Give each test the marks that the rules of this module give it."""
    slow, named = {*listed()}, {test for each in mutations() for test in each.tests}
    variants = {_variant(item) for item in items}
    for item in items:
        function, values = _variant(item)
        texts = {(name, value) for name, value in values if isinstance(value, str)}
        if LIVE.intersection(getattr(item, "fixturenames", ())) or _WITH_SERVER.intersection(dict(texts).values()):
            item.add_marker(pytest.mark.live)
        if names(item.nodeid) & slow:
            item.add_marker(pytest.mark.slow)
        elif not names(item.nodeid) & named and any(
            (function, values - {(name, value)} | {(name, SECOND[value])}) in variants
            for name, value in texts
            if value in SECOND
        ):
            item.add_marker(pytest.mark.matrix)


def names(test: str) -> set[str]:
    """Return the lines that name a test: its id, its function, its file."""
    return {test, test.partition("[")[0], test.partition("::")[0]}


def _variant(item: pytest.Item) -> tuple[str, frozenset[tuple[str, object]]]:
    """Return the function of a test, and its parameters: texts, and of all else the identity."""
    callspec = getattr(item, "callspec", None)
    values = {} if callspec is None else callspec.params
    told = {(name, value if isinstance(value, str) else id(value)) for name, value in values.items()}
    return item.nodeid.partition("[")[0], frozenset(told)
