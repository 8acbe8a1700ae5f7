"""A store in PostgreSQL, with the driver psycopg."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from math import ceil
from typing import Any

from issuer_persistence.contract import CallDeadline
from issuer_persistence.errors import Full, Misconfigured, Unconfirmed
from issuer_persistence.facts import BEHIND, LOST, READS_ONLY, TORN, StoreSetting
from issuer_persistence.ledger import Purpose, Reservation
from issuer_persistence.records import fresh_version, now_ms
from issuer_persistence.sql.connections import SQLLink
from issuer_persistence.sql.store import PASSING, NoTables, SQLStore
from issuer_persistence.sql.tables import ENTRY_COLUMNS, PREFIX, TAG_COLUMNS, Statements, Types
from issuer_persistence.sql.transaction import Conflict, SQLTransaction, record

try:
    import psycopg
    from psycopg import capabilities
    from psycopg.conninfo import conninfo_to_dict, timeout_from_conninfo
    from psycopg.errors import Diagnostic
except ImportError as error:
    raise Misconfigured('the driver of PostgreSQL is missing: pip install ".[postgresql]" in a checkout') from error

#: Key of the lock that a process holds while it creates tables. CREATE TABLE IF NOT EXISTS fails if two do it at once.
_MAKING = 0x5E69_1550

#: Codes of errors: the transaction is to be run again.
_CONFLICTS = {"40001", "40P01", "23505"}
#: How long a request to cancel may take, in seconds.
_CANCEL_TIME = 5.0
#: Code of an error: a table does not exist.
_MISSING = "42P01"
#: Whether transactions are read-only for this role. Of a server, that may end: in recovery, or out of use.
_READS_ONLY = (
    "SELECT FROM pg_settings WHERE name = 'default_transaction_read_only' AND setting = 'on' "
    "AND source IN ('user', 'database user', 'client')"
)

#: Errors of a connection for which the password was accepted.
_REFUSED_AFTER = re.compile(
    r'(role|database) ".*" does not exist|permission denied|not permitted to log in|not currently accepting|'
    r"too many connections|remaining connection slots"
)
#: Errors of a connection that an operator must correct. libpq gives no code for a connection that failed.
_REFUSED = re.compile(
    r'(role|database) ".*" does not exist|no such (user|database)|permission denied|not permitted to log in|'
    r"not currently accepting|authentication failed|no password supplied|no pg_hba\.conf entry|certificate|private key|"
    r"SSL was required|unsupported startup parameter|(invalid response to SSL negotiation|authentication request)|"
    r"invalid (port number|integer value)"
)


class PostgreSQLStore(SQLStore):
    """A store in PostgreSQL. A reservation is one statement, between BEGIN and COMMIT."""

    def __init__(self, url: str, *, prefix: str = PREFIX) -> None:
        super().__init__(url, prefix=prefix)
        self._reserve = _reserving(self.statements)
        #: The search path of each transaction: that of the login until the schema of the tables is known.
        self._path = "DEFAULT"
        # Without this, PostgreSQL may sort all entries of a tag for each page, if it does not know how many there are.
        self.statements.walk_above = self.statements.walk_on.replace(
            '"tag" > %s', '("tag", "high") >= (%s, %s) AND ("tag", "high", "low", "id") > (%s, %s, %s, %s)'
        )
        #: Whether the last commit may not be replicated.
        self._doubtful = False
        self._reads_only = False

    types = Types(
        name='TEXT COLLATE "C"',
        text="TEXT",
        flag="BOOLEAN",
        share="DOUBLE PRECISION",
        found={"name": ("text", "C"), "text": ("text", ""), "flag": ("boolean", ""), "share": ("double precision", "")},
        schema="current_schema()",
    )

    about = "SELECT current_setting('server_version'), (extract(epoch FROM clock_timestamp()) * 1000)::bigint"

    @classmethod
    def flaw(cls, url: str) -> str:
        """See `SQLStore.flaw`. The parameters are those of libpq, such as `sslmode`."""
        try:
            timeout_from_conninfo(conninfo_to_dict(url))
        except psycopg.Error:
            return "a parameter is unknown to libpq, or its value is invalid"
        return ""

    def connect(self, left: float, user: str = "", password: str = "") -> SQLLink:
        login: dict[str, Any] = {name: each for name, each in (("user", user), ("password", password)) if each}
        connection = psycopg.connect(
            self._address,
            **login,
            autocommit=True,
            # With several hosts, each has so much time: a URL may give them less.
            connect_timeout=min(ceil(left), timeout_from_conninfo(conninfo_to_dict(self._address))),
            # Named statements would not survive a pgbouncer in transaction mode.
            prepare_threshold=None,
            client_encoding="UTF8",
        )
        with ExitStack() as on_failure:
            on_failure.callback(connection.close)
            if connection.info.parameter_status("default_transaction_read_only") != "off":
                self._reads_only = connection.execute(_READS_ONLY).fetchone() is not None
            # Before libpq 17, a request to cancel would stop all threads of the process while the server is silent.
            cancel = partial(connection.cancel_safe, timeout=_CANCEL_TIME) if capabilities.has_cancel_safe() else None
            link = SQLLink(connection, connection.fileno(), cancel)
            on_failure.pop_all()
        connection.add_notice_handler(lambda notice: _noted(notice, link.notices))
        return link

    @staticmethod
    def refuses_login(error: Exception) -> bool:
        """See `SQLStore.refuses_login`. There is no code: libpq only knows whether the server has asked for one."""
        login = error.pgconn if isinstance(error, psycopg.Error) else None
        asked = login is not None and (login.used_password or login.needs_password)
        return asked and not _REFUSED_AFTER.search(str(error))

    def begin(self, link: SQLLink, left: float, *, writes: bool) -> None:
        self._begin(link, left, writes=writes)
        if writes and self._doubtful:
            # See whether commits are replicated again. A reservation would cost numbers each time.
            link.cursor.execute("SELECT pg_logical_emit_message(true, 'issuer', '')")  # so that the commit waits
            self.commit(link)
            self._begin(link, left, writes=writes)

    def _begin(self, link: SQLLink, left: float, *, writes: bool) -> None:
        # One round trip. The settings are local to the transaction, because pgbouncer gives the session to others. A
        # role's or database's default can be `off`: a crash of the server would lose the last commits.
        # READ WRITE is never asked for: with `default_transaction_read_only`, a server is taken out of use.
        milliseconds = max(1, round(left * 1000))
        link.cursor.execute(
            f"BEGIN ISOLATION LEVEL READ COMMITTED{'' if writes else ' READ ONLY'}; "
            # Another program may have left a search path in the session, in which there are other tables.
            f"SET LOCAL search_path TO {self._path}; "
            f"SET LOCAL statement_timeout = {milliseconds}; SET LOCAL lock_timeout = {milliseconds}; "
            # If this machine loses its power, the server would keep the row locked until TCP gives up, for hours.
            f"SET LOCAL idle_in_transaction_session_timeout = {milliseconds}; "
            # A role's default can hide the warning that `commit` looks for.
            "SET LOCAL client_min_messages = warning; "
            "SELECT set_config('synchronous_commit', 'on', true) "
            "WHERE current_setting('synchronous_commit') IN ('off', 'local')"
        )

    def commit(self, link: SQLLink) -> None:
        try:
            self._commit(link)
        except BaseException:
            self._doubtful = True
            raise
        self._doubtful = False

    def _commit(self, link: SQLLink) -> None:
        link.notices.clear()
        link.cursor.execute("COMMIT")
        if link.cursor.statusmessage != "COMMIT":
            # After a statement that has failed, COMMIT rolls back, and returns success.
            raise Unconfirmed(f"the commit has ended as {link.cursor.statusmessage}")
        if link.notices:
            # A COMMIT that waits for a standby, and is cancelled, returns success with this warning.
            raise Unconfirmed(f"the commit may not be replicated: {link.notices[-1]}")

    def reserve_checked(
        self, tag: str, n: int | None, *, purpose: Purpose, at_least: int, exact: bool, timeout: float
    ) -> Reservation:
        """See `Store.reserve_checked`. If nothing can be reserved, the row is read again for the right error."""

        def reserve(left: float) -> Reservation | None:
            entry = purpose.entry(tag, 0, 0)
            values = {**asdict(entry), "n": n, "at_least": at_least, "exact": exact, "version": fresh_version()}
            with self.transaction(left) as transaction:
                transaction.cursor.execute(self._reserve, values | {"now": now_ms()})
                found = transaction.cursor.fetchone()
                if found is None:
                    return None
                *row, low, store_id = found
                after = record(row)
                return Reservation(after, low, after.max, entry.id, store_id)

        deadline = CallDeadline(timeout)
        return self._repeated(deadline.left(), reserve) or super().reserve_checked(
            tag, n, purpose=purpose, at_least=at_least, exact=exact, timeout=deadline.left()
        )

    def translated(self, error: Exception) -> Exception | None:
        if not isinstance(error, psycopg.Error):
            return None
        code, text = error.sqlstate or "", " ".join(str(error).split())
        if code in _CONFLICTS:
            return Conflict(once=text if code == "23505" else "")
        if code == _MISSING:
            return NoTables(once=text)
        if code == "53100":
            return Full(self.url)
        unsent = isinstance(error, psycopg.ProgrammingError) or _REFUSED.search(text)
        reads_only = code == "25006" and self._reads_only
        wrong = reads_only or not code.startswith(PASSING) if code else unsent
        return (Misconfigured if wrong else Unconfirmed)(f"{self.url}: {text}")

    def locate(self, transaction: SQLTransaction) -> None:
        """See `SQLStore.locate`. Each further transaction has the schema of the tables as its search path.

        If the path does not lead to tables, and another schema has some, another process uses those.
        """
        found = self._schemas(transaction)
        seen = [schema for schema, visible in found.items() if visible]
        if len(seen) == 1:
            self._path = f"{seen[0]}, pg_temp"  # temporary tables would come first otherwise
            transaction.cursor.execute(f"SET LOCAL search_path TO {self._path}")
        elif found:
            [(path,)] = transaction.rows("SHOW search_path")
            raise Misconfigured(
                f"{self.url}: the tables {', '.join(self.statements.names)} are in {' and '.join(found)}, and the "
                f"search_path {path} leads to {' and '.join(seen) or 'none of them'}: correct the search_path of the "
                "role, the database or the URL; for a separate store, add a prefix to the URL, such as prefix=shop_"
            )

    def _schemas(self, transaction: SQLTransaction) -> dict[str, bool]:
        """Return the schemas with tables of this store, each with whether the search path leads to one of them."""
        return dict(
            transaction.rows(
                "SELECT quote_ident(nspname), bool_or(pg_table_is_visible(pg_class.oid)) FROM pg_class "
                "JOIN pg_namespace ON pg_namespace.oid = relnamespace WHERE relname IN (%s, %s, %s) "
                "AND relpersistence <> 't' AND has_schema_privilege(relnamespace, 'USAGE') GROUP BY nspname ORDER BY 1",
                self.statements.names,
            )
        )

    def make_tables(self, transaction: SQLTransaction) -> None:
        transaction.cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_MAKING,))
        self.locate(transaction)  # another process may have made them meanwhile
        for statement in self.definitions():
            transaction.cursor.execute(statement)

    def unsafe_tables(self, transaction: SQLTransaction) -> list[str]:
        [(encoding,)] = transaction.rows("SHOW server_encoding")
        if encoding != "UTF8":
            return [f"the encoding of the database is {encoding}, not UTF8"]
        found = transaction.rows(
            "SELECT relname, relpersistence = 'p', EXISTS (SELECT FROM pg_index WHERE indrelid = pg_class.oid AND "
            "indisprimary) FROM pg_class WHERE oid IN (to_regclass(%s), to_regclass(%s), to_regclass(%s))",
            [f'"{name}"' for name in self.statements.names],
        )
        wrong = [f"table {name} is unlogged: a crash empties it" for name, logged, _ in found if not logged]
        return wrong + [f"table {name} has no primary key" for name, _, key in found if not key]

    def identity(self, transaction: SQLTransaction) -> str:
        # A promotion raises the timeline, which is in the first 8 digits of a log file's name.
        [(system, timeline)] = transaction.rows(
            "SELECT (SELECT system_identifier FROM pg_control_system()), CASE WHEN pg_is_in_recovery() "
            "THEN (SELECT lpad(to_hex(timeline_id), 8, '0') FROM pg_control_checkpoint()) "
            "ELSE left(pg_walfile_name(pg_current_wal_lsn()), 8) END"
        )
        return f"system {system}, timeline {int(timeline, 16)}"

    def settings(self, transaction: SQLTransaction) -> list[StoreSetting]:
        [(fsync, pages, recovery, standbys, names)] = transaction.rows(
            "SELECT current_setting('fsync'), current_setting('full_page_writes'), pg_is_in_recovery(), "
            "(SELECT count(*) FROM pg_stat_replication), current_setting('synchronous_standby_names')"
        )
        found = [
            StoreSetting("fsync", fsync, fsync == "on", LOST, "Set fsync = on in postgresql.conf."),
            StoreSetting("full_page_writes", pages, pages == "on", TORN, "Set full_page_writes = on."),
            StoreSetting("in recovery", str(recovery), not recovery, READS_ONLY, "Use the URL of the primary."),
        ]
        if standbys:
            found.append(
                StoreSetting(
                    "synchronous_standby_names", repr(names), bool(names), BEHIND,
                    "Set synchronous_standby_names to the names of the standbys that may take over.",
                )
            )  # fmt: skip
        schemas = self._schemas(transaction)
        if schemas:
            found.append(
                StoreSetting(
                    "schemas", ", ".join(schemas), len(schemas) == 1,
                    "A process with another search_path uses other tables, and reserves the same numbers.",
                    "Rename or remove the tables that are not used.",
                )
            )  # fmt: skip
        return found


def _reserving(known: Statements) -> str:
    """Return the statement of a reservation. It locks the row, raises `max` and writes the ledger entry.

    The sizes are computed as numeric: `step` x `ahead` may be above 2^63-1.
    """
    wanted = 'coalesce(%(n)s::numeric, "step"::numeric * "ahead")'
    columns = ", ".join(f'"{each}"' for each in TAG_COLUMNS)
    of_tags = ", ".join(f'"here"."{each}"' for each in TAG_COLUMNS)
    entry = ", ".join(f'"{each}"' for each in ENTRY_COLUMNS)
    values = ", ".join(
        {"tag": '"tag"', "low": '"low"', "high": '"max"'}.get(each, f"%({each})s") for each in ENTRY_COLUMNS
    )
    return f"""WITH "before" AS (
        SELECT "tag", "max", "limit", {wanted} AS "wanted" FROM {known.tags} AS "row"
        WHERE "tag" = %(tag)s AND NOT "deleted" AND NOT "halted" AND "max" >= %(at_least)s AND "max" < "limit"
        AND NOT EXISTS (SELECT FROM {known.segments} AS "entry" WHERE "entry"."tag" = %(tag)s
            AND "entry"."high" > "row"."max" AND "entry"."low" < "entry"."high")
        FOR UPDATE
    ), "size" AS (
        SELECT "tag", "max" AS "low", least("wanted", "limit" - "max")::bigint AS "size" FROM "before"
        WHERE NOT %(exact)s OR "wanted" <= "limit" - "max"
    ), "after" AS (
        UPDATE {known.tags} AS "here" SET "max" = "low" + "size", "version" = %(version)s, "timestamp" = %(now)s
        FROM "size" WHERE "here"."tag" = "size"."tag" RETURNING {of_tags}, "low"
    ), "entered" AS (
        INSERT INTO {known.segments} ({entry}) SELECT {values} FROM "after"
    ) SELECT {columns}, "low", (SELECT "value" FROM {known.meta} WHERE "name" = 'id') FROM "after"
    """  # noqa: S608 - names of tables and columns only


def _noted(notice: Diagnostic, notices: list[str]) -> None:
    if (notice.severity_nonlocalized or notice.severity) == "WARNING":
        notices.append(notice.message_primary or "")
