"""The same search over stores in real SQL databases."""

from __future__ import annotations

import secrets
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import pytest

from issuer_persistence.sql.connections import SQLLink
from issuer_persistence.sql.mysql import MySQLStore
from issuer_persistence.sql.postgresql import PostgreSQLStore
from issuer_persistence.sql.store import SQLStore
from tests.proofs.property.machine import IssuerMachine
from tests.proofs.property.test_machine import search

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Orders of events tried in `make test`. An order takes seconds, as each call to the store is a transaction.
ORDERS = 4

Rows = dict[str, list[tuple[Any, ...]]]
TIMEOUT = 60.0


class Restored:
    """What can be put back in time: all rows of all tables. On the search's clock, a call to a server takes no time."""

    def until(self, link: SQLLink, left: float) -> AbstractContextManager[None]:  # noqa: ARG002 - as in `SQLStore`
        return nullcontext()

    def snapshot(self: Any) -> Rows:
        with self.transaction(TIMEOUT, writes=False) as transaction:
            return {name: transaction.rows(f'SELECT * FROM "{name}"') for name in self.statements.names}  # noqa: S608

    def restore(self: Any, snapshot: Rows) -> None:
        with self.transaction(TIMEOUT) as transaction:
            for name, rows in snapshot.items():
                transaction.cursor.execute(f'DELETE FROM "{name}"')  # noqa: S608 - ours
                if rows:
                    marks = ", ".join(["%s"] * len(rows[0]))
                    transaction.cursor.executemany(f'INSERT INTO "{name}" VALUES ({marks})', rows)  # noqa: S608 - ours


class RestoredPostgreSQL(Restored, PostgreSQLStore):
    pass


class RestoredMySQL(Restored, MySQLStore):
    pass


@pytest.fixture(params=["postgres", "mariadb"])
def machine(request: pytest.FixtureRequest) -> Iterator[type[IssuerMachine]]:
    server = request.getfixturevalue(f"{request.param}_server")
    kind = RestoredPostgreSQL if request.param == "postgres" else RestoredMySQL
    opened: list[SQLStore] = []

    class SQLMachine(IssuerMachine):
        @staticmethod
        def open_store() -> Any:
            store = kind.open(f"{server.url}?prefix=t{secrets.token_hex(4)}_")
            assert isinstance(store, SQLStore)
            opened.append(store)
            return store

        def teardown(self) -> None:
            super().teardown()
            self.store.close()

    yield SQLMachine
    for store in opened:
        store.close()


@pytest.mark.live
@pytest.mark.covers("1.1", "2.13", "N.6")
@pytest.mark.parametrize("orders", [ORDERS, pytest.param(60, marks=pytest.mark.soak)])
def test_no_order_of_events_repeats_a_number(machine: type[IssuerMachine], orders: int) -> None:
    search(machine, orders)
