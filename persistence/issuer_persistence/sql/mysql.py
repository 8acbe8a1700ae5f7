"""A store in MySQL or MariaDB, with the driver PyMySQL."""

from __future__ import annotations

import socket
import ssl
from contextlib import ExitStack, suppress
from functools import cached_property
from typing import Any, ClassVar
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from issuer_persistence.contract import CallDeadline
from issuer_persistence.errors import Full, Misconfigured, Unconfirmed
from issuer_persistence.facts import BEHIND, LOST, READS_ONLY, TORN, StoreSetting
from issuer_persistence.ledger import Purpose, Reservation
from issuer_persistence.sql.connections import SQLLink
from issuer_persistence.sql.store import PASSING, NoTables, SQLStore
from issuer_persistence.sql.tables import PREFIX, Types
from issuer_persistence.sql.transaction import Conflict, SQLTransaction
from issuer_persistence.urls import ENCODE, parameters

try:
    import pymysql
    from pymysql.constants import CR, ER
except ImportError as error:
    raise Misconfigured('the driver of MySQL is missing: pip install ".[mysql]" in a checkout') from error


#: What each session sets. Without a strict mode, a number that is too large would become 2^63-1 without an error.
_SESSION = (
    "SET SESSION sql_mode = 'ANSI_QUOTES,STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', "
    "SESSION innodb_lock_wait_timeout = %d, SESSION wait_timeout = %d, SESSION autocommit = 0, "
    # With CHAIN as the server's default, a transaction that writes would follow on one that reads, and only read.
    "SESSION completion_type = NO_CHAIN"
)
_ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"

#: Parameters of the URL that PyMySQL gets.
_TLS = {"ssl_ca", "ssl_cert", "ssl_key", "ssl_verify_identity"}

#: Whether the server is semi-synchronous, and its status: in MariaDB, and in MySQL with its newer plugin.
_SEMI_SYNC = ("rpl_semi_sync_master_enabled", "rpl_semi_sync_source_enabled")
_ACKNOWLEDGED = {f"Rpl_semi_sync_{role}_{what}" for role in ("master", "source") for what in ("status", "no_tx")}

#: Whether the server accepts no writes. The second one is that of a reader of Amazon Aurora.
_READ_ONLY = ("read_only", "innodb_read_only")

#: How long a statement waits for a lock before the transaction is run again, in seconds.
_LOCK_WAIT = 5

#: How long the server keeps a session without a statement, in seconds: longer than `IDLE_TIME`. If this machine loses
#: its power, the server would keep a row locked for 8 hours.
_SESSION_IDLE = 90

#: Codes of errors: the transaction is to be run again. 1020: a row was changed since the transaction read it.
_CONFLICTS = {ER.DUP_ENTRY, ER.LOCK_DEADLOCK, ER.LOCK_WAIT_TIMEOUT, 1020}
#: Codes of errors: the disk is full.
_FULL = {1021, 1114}
#: Codes of errors that an operator must correct, though their SQLSTATE does not say so: host, account, password or TLS
#: not accepted, no such parameter, a letter that a column's character set lacks, a trigger, a session that only reads.
_WRONG = {1130, 1193, 1366, 1442, 1449, 1644, 1792, 1820, 1862, 3118, 3159, 4151, CR.CR_SSL_CONNECTION_ERROR}
#: Codes of errors: the password is not accepted, or there is none.
_LOGIN_REFUSED = {(ER.ACCESS_DENIED_ERROR,), (1698,)}
#: Codes of errors that end by themselves, though their SQLSTATE does not say so: the user has too many sessions.
_PASSING = {1203, 1226}


class MySQLStore(SQLStore):
    """A store in MySQL or MariaDB, in tables of InnoDB. A reservation takes four round trips."""

    types = Types(
        # Compared byte by byte: other collations take `Orders`, `orders` and `orders ` for the same name.
        name="VARBINARY(700)",
        text="LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
        flag="TINYINT",
        share="DOUBLE",
        found={
            "name": ("varbinary", ""),
            "text": ("longtext", "utf8mb4_bin"),
            "flag": ("tinyint", ""),
            "share": ("double", ""),
        },
        schema="database()",
        index_within=True,
        suffix=" ENGINE=InnoDB",
        # A comment for MySQL, which has no limit for DELETE. A server goes on with a statement whose client has gone.
        limited="/*M!100102 SET STATEMENT max_statement_time = 1 FOR */ ",
    )

    #: Parameters of the URL beside `prefix` and those of TLS.
    parameters: ClassVar[frozenset[str]] = frozenset()

    about = "SELECT version(), cast(unix_timestamp(sysdate(3)) * 1000 AS unsigned)"

    def __init__(self, url: str, *, prefix: str = PREFIX) -> None:
        super().__init__(url, prefix=prefix)
        #: Index of the host in the URL that the last connection has reached.
        self._at = 0
        # A locking read shows the newest rows. Others show the rows of the transaction's first read.
        self.statements.taken += " LOCK IN SHARE MODE"

    @classmethod
    def flaw(cls, url: str) -> str:
        """See `SQLStore.flaw`. The parameters are `ssl_ca` and the other TLS options of PyMySQL."""
        address, options = parameters(url)
        try:
            _places(address)
        except ValueError:  # its text may show a part of the password
            return f"each of its hosts must have a name, and a port of 0 to 65535; {ENCODE}"
        if unknown := options.keys() - _TLS - cls.parameters:
            known = ", ".join(sorted(_TLS | cls.parameters))
            return f"unknown parameter {min(unknown)}; known: prefix, {known}"
        return "" if urlsplit(address).path.strip("/") else "the name of the database is missing"

    @cached_property
    def _tls(self) -> dict[str, Any]:
        """Options of PyMySQL for TLS: one context for all connections. With `ssl_ca`, the certificate is checked."""
        found: dict[str, Any] = {name: value for name, value in parameters(self._address)[1].items() if name in _TLS}
        if not found:
            return {"ssl_disabled": True}
        if "ssl_ca" in found:
            found["ssl_verify_cert"] = True
            found["ssl_verify_identity"] = found.get("ssl_verify_identity") != "false"
        made: Any = pymysql.connect(defer_connect=True, **found)
        return {"ssl": made.ctx}

    @cached_property
    def _unverified(self) -> ssl.SSLContext:
        """The TLS context of all connections if the URL has no options for TLS."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        made.check_hostname, made.verify_mode = False, ssl.CERT_NONE
        return made

    def connect(self, left: float, user: str = "", password: str = "") -> SQLLink:
        """See `SQLStore.connect`. Of several hosts, those that are away or read-only are passed over.

        The host of the last connection comes first.
        """
        places, deadline, first = _places(parameters(self._address)[0]), CallDeadline(left), self._at
        hosts = len(places)  # that have not been tried
        while True:
            at = (first - hosts) % len(places)
            try:
                link = self._connected(places, at, deadline.left() / hosts, user, password)
            except Exception as error:
                hosts -= 1
                if not hosts or not isinstance(self.known(error) or error, Unconfirmed):
                    raise
            else:
                self._at = at
                return link

    def _connected(self, places: list[tuple[str, int]], at: int, left: float, user: str, password: str) -> SQLLink:
        parts, place, deadline = urlsplit(parameters(self._address)[0]), places[at], CallDeadline(left)
        # The socket is ours, so that it can be shut down at a deadline.
        with ExitStack() as on_failure:
            opened = socket.create_connection(place, timeout=left)
            on_failure.callback(opened.close)
            if _is_postgresql(opened, place, left / 4):
                raise Misconfigured(f"{self.url}: this is a PostgreSQL server: correct the port, or the URL's scheme")
            connection: Any = pymysql.connect(
                host=place[0],
                user=user or unquote(parts.username or "") or None,
                # PyMySQL would encode a text as Latin-1.
                password=password.encode() or unquote_to_bytes(parts.password or ""),
                database=unquote(parts.path.strip("/")),
                charset="utf8mb4",
                defer_connect=True,
                init_command=_SESSION % (_LOCK_WAIT, _SESSION_IDLE),
                autocommit=None,  # see `_SESSION`
                **self._tls,
            )
            if "ssl" not in self._tls:
                # TLS if the server offers it. PyMySQL reads the certificates of the system for that: 45 ms each time.
                connection.ssl, connection.ctx = True, self._unverified
            link = SQLLink(connection, opened.fileno())
            on_failure.callback(link.close)
            with self.until(link, deadline.left()):
                try:
                    connection.connect(opened)
                except RuntimeError as error:  # the login needs a package that is not installed
                    raise Misconfigured(f"{self.url}: {error}") from error
                link.cursor.execute(_ISOLATION)
                names = (*_SEMI_SYNC, *_READ_ONLY)
                link.cursor.execute("SHOW GLOBAL VARIABLES WHERE variable_name IN (%s, %s, %s, %s)", names)
                found = dict(link.cursor.fetchall())
                if len(places) > 1 and {found.get(name, "OFF") for name in _READ_ONLY} != {"OFF"}:
                    raise Unconfirmed(f"{self.url}: {place[0]}:{place[1]} is read-only")
                if "ON" in {found.get(name) for name in _SEMI_SYNC}:
                    link.acknowledged = _acknowledged(link.cursor)
            on_failure.pop_all()
        return link

    @staticmethod
    def refuses_login(error: Exception) -> bool:
        return isinstance(error, pymysql.MySQLError) and error.args[:1] in _LOGIN_REFUSED

    def begin(self, link: SQLLink, left: float, *, writes: bool) -> None:  # noqa: ARG002 - the socket has the deadline
        if writes and link.acknowledged:
            link.acknowledged = _acknowledged(link.cursor)
            if "ON" not in link.acknowledged.values():
                raise self._unreplicated()  # before numbers are lost by it
        if not writes:  # a transaction that writes begins with its first statement, and saves a round trip
            link.cursor.execute("START TRANSACTION READ ONLY")

    def commit(self, link: SQLLink) -> None:
        link.connection.commit()
        # After a timeout, or if the wait is killed, the server confirms a commit that no replica has. The status alone
        # does not show it: it is ON after a kill, and as soon as a replica reads the log again.
        if link.acknowledged and _acknowledged(link.cursor) != link.acknowledged:
            raise self._unreplicated()
        # A user with all rights can write to an old primary that is read-only. The new primary may lack the commit.
        if len(_places(parameters(self._address)[0])) > 1:
            link.cursor.execute("SELECT @@GLOBAL.read_only, @@GLOBAL.innodb_read_only")
            if {_word(each) for each in link.cursor.fetchone()} != {"OFF"}:
                raise Unconfirmed(f"{self.url}: the server became read-only, so another one may be the primary")

    def _unreplicated(self) -> Unconfirmed:
        return Unconfirmed(
            f"{self.url}: no semi-synchronous replica has acknowledged the last commits of the server: start one"
        )

    def reserve_checked(
        self, tag: str, n: int | None, *, purpose: Purpose, at_least: int, exact: bool, timeout: float
    ) -> Reservation:
        """See `Store.reserve_checked`. The row, the ledger and the id of the store are read by one statement.

        If that statement waits for the row, it can show a newer row than ledger. Then a segment that was handed back
        meanwhile seems to be above `max`, so the ledger is read again.
        """

        def reserve(left: float) -> Reservation:
            with self.transaction(left) as transaction:
                before, taken, store_id = transaction.read_for_reservation(tag, at_least)
                if taken is not None:
                    transaction.inspect(before)
                after = transaction.write(before.reserved(n, at_least=at_least, exact=exact))
                entry = purpose.entry(tag, before.max, after.max)
                transaction.enter(entry)
            return Reservation(after, entry.low, entry.high, entry.id, store_id)

        return self._repeated(timeout, reserve)

    def translated(self, error: Exception) -> Exception | None:
        if not isinstance(error, pymysql.MySQLError):
            return None
        code = error.args[0] if error.args else 0
        text = " ".join(str(each) for each in error.args[1:]) or str(error)
        if code in _CONFLICTS:
            return Conflict(once=text if code == ER.DUP_ENTRY else "")
        if code == ER.NO_SUCH_TABLE:
            return NoTables(once=text)
        if code in _FULL:
            return Full(self.url)
        state = getattr(error, "sqlstate", None) or "HY000"
        wrong = code in _WRONG or not (state.startswith(PASSING) or code in _PASSING)
        return (Misconfigured if wrong else Unconfirmed)(f"{self.url}: {text}")

    def definitions(self) -> list[str]:
        # An administrator's session may not know the quotes.
        return ["SET SESSION sql_mode = CONCAT(@@sql_mode, ',ANSI_QUOTES')", *super().definitions()]

    def make_tables(self, transaction: SQLTransaction) -> None:
        for statement in self.definitions():
            transaction.cursor.execute(statement)

    def unsafe_tables(self, transaction: SQLTransaction) -> list[str]:
        of_tables = "WHERE table_schema = database() AND table_name IN (%s, %s, %s)"
        # Two statements: with the second one as a subquery, the server would read the columns of all databases.
        found = transaction.rows(
            f"SELECT table_name, engine FROM information_schema.tables {of_tables}",  # noqa: S608 - no foreign text
            self.statements.names,
        )
        keys = transaction.rows(
            f"SELECT table_name FROM information_schema.columns {of_tables} AND column_key = 'PRI'",  # noqa: S608
            self.statements.names,
        )
        wrong = [f"table {name} has the engine {engine}, not InnoDB" for name, engine in found if engine != "InnoDB"]
        return wrong + [f"table {name} has no primary key" for name, _ in found if (name,) not in keys]

    def identity(self, transaction: SQLTransaction) -> str:
        [(server, host)] = transaction.rows("SELECT @@server_id, @@hostname")
        return f"{host}, server_id {server}"

    def settings(self, transaction: SQLTransaction) -> list[StoreSetting]:
        [(flush, doublewrite, read_only, log_bin)] = transaction.rows(
            "SELECT @@innodb_flush_log_at_trx_commit, @@innodb_doublewrite, @@read_only, @@log_bin"
        )
        found = [
            _setting("innodb_flush_log_at_trx_commit", flush, "1", LOST),
            _setting("innodb_doublewrite", _word(doublewrite), "ON", TORN),
            _setting("read_only", _word(read_only), "OFF", READS_ONLY),
        ]
        if log_bin:
            [(sync,)] = transaction.rows("SELECT @@sync_binlog")
            found.append(_setting("sync_binlog", sync, "1", LOST))
            found.append(_semi_synchronous(transaction))
        return found


def _places(address: str) -> list[tuple[str, int]]:
    """Return the host and port of each host in a URL without parameters. Raises ValueError."""
    hosts = urlsplit(address).netloc.rpartition("@")[2].split(",")
    if len(hosts) > 1 and "" in hosts:
        raise ValueError("a host has no name")
    parts = [urlsplit(f"//{each}") for each in hosts]
    return [(each.hostname or "localhost", each.port or 3306) for each in parts]


def _is_postgresql(opened: socket.socket, place: tuple[str, int], wait: float) -> bool:
    """Whether the other side is PostgreSQL: it waits for the client's first message. MySQL sends the first one."""
    opened.settimeout(wait)
    try:
        opened.recv(1, socket.MSG_PEEK)
    except TimeoutError:
        with suppress(OSError), socket.create_connection(place, wait) as other:
            other.sendall(b"\0\0\0\x08\x04\xd2\x16\x2f")  # asks PostgreSQL for TLS. It answers by one letter
            return other.recv(2) in {b"S", b"N"}
    return False


def _acknowledged(cursor: Any) -> dict[str, str]:
    """Return the state of semi-synchronous replication, and how many commits no replica has acknowledged."""
    # Not SHOW GLOBAL STATUS, which has the same values: the server would add up the counters of all sessions.
    cursor.execute("SHOW SESSION STATUS LIKE 'Rpl_semi_sync_%'")
    return {name: value for name, value in cursor.fetchall() if name in _ACKNOWLEDGED}


def _semi_synchronous(transaction: SQLTransaction) -> StoreSetting:
    known = dict(transaction.rows("SHOW GLOBAL VARIABLES LIKE 'rpl_semi_sync_%%'"))
    known |= transaction.rows("SHOW GLOBAL STATUS LIKE 'Rpl_semi_sync_%%'")
    known = {name.lower().replace("_source_", "_master_"): value for name, value in known.items()}
    clients = known.get("rpl_semi_sync_master_clients", "0")
    if known.get("rpl_semi_sync_master_enabled") != "ON":
        # The server does not show its other replicas without a privilege.
        return StoreSetting(
            "semi-synchronous replicas", "off", None, BEHIND,
            "If the server has replicas, set rpl_semi_sync_master_enabled=ON in the server, and "
            "rpl_semi_sync_slave_enabled=ON in a replica.",
        )  # fmt: skip
    status, timeout = known["rpl_semi_sync_master_status"], known["rpl_semi_sync_master_timeout"]
    return StoreSetting(
        "semi-synchronous replicas", f"{clients}, status {status}, rpl_semi_sync_master_timeout {timeout} ms",
        clients != "0" and status == "ON",
        "After the timeout, the server confirms commits that no replica has. The issuer rejects them: nothing can be "
        "reserved until a replica is back.",
        "Start a semi-synchronous replica.",
    )  # fmt: skip


def _word(value: object) -> str:
    return {"0": "OFF", "1": "ON"}.get(str(value), str(value))


def _setting(name: str, value: object, wanted: str, why: str) -> StoreSetting:
    return StoreSetting(name, str(value), str(value) == wanted, why, f"Set {name}={wanted} in the server.")
