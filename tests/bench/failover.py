"""A failover to a replica that lags, as asynchronous replication allows: how many numbers are issued twice.

The same fault for each: ISSUED numbers reach the replica, LOST ones do not. Then the primary is killed with SIGKILL,
the replica is promoted, and ISSUED more numbers are drawn from it.
"""

from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial

import issuer
from issuer_persistence.memory import MemoryStore
from tests.bench.figures import Bound, Figure, missing
from tests.bench.rounds import Effort
from tests.bench.servers import PREFIX, TAG, redis_server
from tests.servers.postgres import PostgresServer, find_postgres
from tests.servers.redis import RedisServer

ISSUED, LOST = 1000, 400

#: Draws so many numbers from a server.
Draw = Callable[[RedisServer, int], list[int]]


def failover(_: Effort) -> Iterator[Figure]:
    """Numbers issued twice after a failover to a replica that lags by 400 of them."""
    yield _repeats("Redis INCR", _redis(_incr))
    yield _repeats("next, strict", _redis(partial(_next, MemoryStore())), Bound(0))
    if binaries := find_postgres():
        yield _repeats("PostgreSQL nextval", _postgres(PostgresServer(binaries)))
    else:
        yield missing("PostgreSQL nextval", "no PostgreSQL server on this machine")


def _repeats(what: str, numbers: list[int], bound: Bound | None = None) -> Figure:
    return Figure(what, (float(len(numbers) - len(set(numbers))),), "twice", bound)


def _incr(server: RedisServer, n: int) -> list[int]:
    with server.client() as client:
        return [client.incr(TAG) for _ in range(n)]


def _next(store: MemoryStore, server: RedisServer, n: int) -> list[int]:
    with issuer.connect(redis=server.url, store=store, prefix=PREFIX) as ids:
        ids.create(TAG, exist_ok=True)
        return [ids.next(TAG) for _ in range(n)]


def _redis(draw: Draw) -> list[int]:
    with redis_server() as primary, redis_server() as replica:
        replica.replicaof(primary)
        numbers = draw(primary, ISSUED)
        with primary.client() as client:
            client.wait(1, 60_000)
        primary.cut_off(replica)
        numbers += draw(primary, LOST)
        primary.kill()
        replica.resume()
        with replica.client() as client:
            client.replicaof("NO", "ONE")
        return numbers + draw(replica, ISSUED)


def _postgres(primary: PostgresServer) -> list[int]:
    with primary:
        _nextval(primary, 0, "CREATE SEQUENCE numbers")
        with primary.standby() as standby:
            numbers = _nextval(primary, ISSUED)
            standby.stop()
            numbers += _nextval(primary, LOST)
            primary.stop()
            standby.promote()
            return numbers + _nextval(standby, ISSUED)


def _nextval(server: PostgresServer, n: int, first: str = "SELECT 1") -> list[int]:
    import psycopg

    with closing(psycopg.connect(server.url, autocommit=True)) as connection:
        connection.execute(first)
        return [row[0] for _ in range(n) for row in connection.execute("SELECT nextval('numbers')")]
