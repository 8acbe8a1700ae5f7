"""The test double: an issuer on a real Redis server and a temporary store, with a clock and faults on order."""

from __future__ import annotations

import asyncio
import atexit
import os
import shutil
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from issuer.engine.base import OPEN_ENGINES
from issuer.engine.blocking import Engine
from issuer.errors import InvalidArgument, IssuerError
from issuer.testing.proxy import DoubleProxy, moved
from issuer.testing.server import DoubleServer, own_server
from issuer.testing.store import AWAY, LOST, DoubledStore
from issuer.wiring import aconnect, connect, without_environment

if TYPE_CHECKING:
    from issuer.api.aio import AsyncIssuer
    from issuer.api.blocking import Issuer

#: Bytes in each request that runs a script: each draw is one such request.
_SCRIPT = b"EVALSHA"

#: Changes the remaining lifetime of all keys of a database. ARGV[1]: how much shorter it becomes, in milliseconds.
_AGE = """for _, key in ipairs(redis.call('KEYS', '*')) do
  local left = redis.call('PTTL', key)
  if left >= 0 then redis.call('PEXPIRE', key, math.max(left - ARGV[1], 0)) end
end"""


class MovableClock:
    """The clock of a double's Redis. It ends periods, and the lifetime of idempotency keys."""

    def __init__(self, read: Callable[[], int], move: Callable[[int, int], None]) -> None:
        """Start with the time of the machine.

        Args:
            read: Function that returns the time of the machine, in microseconds since 1970. It asks Redis, because the
                test may have replaced the clock of this process.
            move: Function that moves the clock of Redis. Its arguments: how far the clock is ahead of the machine's
                clock after the move, and how far it is moved, in microseconds.
        """
        self._read = read
        self._move = move
        #: By how much the clock is ahead of the machine's clock, in microseconds.
        self.micros = 0

    def now(self) -> datetime:
        """Return the time of this clock, in UTC."""
        return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=self._read() + self.micros)

    def move(self, seconds: float) -> None:
        """Move the clock. It continues to run.

        Args:
            seconds: How far, in seconds. A negative number moves the clock back.
        """
        micros = round(seconds * 1e6)
        self._move(self.micros + micros, micros)
        self.micros += micros

    def set(self, moment: datetime) -> None:
        """Set the clock. It continues to run.

        Args:
            moment: The time, with its time zone.

        Raises:
            InvalidArgument: The moment has no time zone.
        """
        if moment.tzinfo is None:
            raise InvalidArgument(
                f"the moment needs a time zone, as in datetime(2030, 1, 1, tzinfo=UTC), not {moment}", value=moment
            )
        self.move((moment - self.now()).total_seconds())


class Double:
    """An issuer for tests: real Redis, real scripts, a temporary SQLite store.

    Use it as `with Double() as double:`. Each double starts without tags and without numbers. All doubles of a process
    share one Redis server, which starts with the first of them and ends with the process.

    Its issuers have no background work, so that each run of a test gives the same result: a call loads a segment when
    no number is left. Call `tick` to load segments in advance, or pass `scheduler="background"`.

    Forked children, threads and other programs use the double by its URLs. Only the process that has made the double
    can order faults, move the clock and end the double.

    Attributes:
        redis_url: URL of Redis, with a Unix socket.
        store_url: URL of the store.
        store: The store.
        clock: Clock of Redis.
    """

    def __init__(self, **settings: Any) -> None:
        """Prepare a double. `settings`: arguments of `issuer.connect`, for all issuers of this double."""
        self._settings = settings
        #: Process id of the process that has made the double.
        self._owner = 0
        self._ends = ExitStack()

    def __enter__(self) -> Self:
        self._owner = os.getpid()
        with ExitStack() as ends:
            server = self._server = own_server()
            self._database = server.new_database()
            ends.callback(server.ended.append, self._database)
            self.store = server.new_store()
            self._stores = [self.store]
            ends.callback(shutil.rmtree, self.store.path.parent, ignore_errors=True)
            ends.callback(self._leave_proxy)
            ends.callback(self._close_stores)
            ends.callback(self._close_issuers)
            atexit.register(self.close)  # before the issuers and the server end
            ends.callback(atexit.unregister, self.close)
            self._ends = ends.pop_all()
        self.redis_url = server.double_url(self._database)
        self.store_url = self.store.url
        self.clock = MovableClock(self._time, self._move)
        self._away = False
        self._snapshot: tuple[Path, int] | None = None
        self._ids: Issuer | None = None
        self._aids: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncIssuer] = weakref.WeakKeyDictionary()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all faults, close the issuers, and remove all data. A second call does nothing."""
        if os.getpid() == self._owner:
            self._ends.close()

    # ------------------------------------------------------------------ issuers

    @property
    def ids(self) -> Issuer:
        """The Issuer of this double."""
        if self._ids is None or self._ids.closed:
            self._ids = self.connect()
        return self._ids

    @property
    def aids(self) -> AsyncIssuer:
        """The AsyncIssuer of the running event loop."""
        loop = asyncio.get_running_loop()
        found = self._aids.get(loop)
        if found is None or found.closed:
            found = self._aids[loop] = self.aconnect()
        return found

    def connect(self, **settings: Any) -> Issuer:
        """Return a new Issuer on this double, as another process would have it. The double closes it at its end.

        Args:
            settings: Arguments of `issuer.connect`.
        """
        return without_environment(connect, **self._with(settings))

    def aconnect(self, **settings: Any) -> AsyncIssuer:
        """Return a new AsyncIssuer on this double. Close it, or use `async with`.

        Args:
            settings: Arguments of `issuer.aconnect`.
        """
        return without_environment(aconnect, **self._with(settings))

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables with which a program uses this double."""
        return {
            "ISSUER_REDIS_URL": self.redis_url,
            "ISSUER_STORE_URL": self.store_url,
            "ISSUER_CONFIG": str(self._server.config),
        }

    def has_tags(self) -> bool:
        """Return whether a tag was created."""
        return bool(self.store.tags(count=1, timeout=10))

    async def aclose(self) -> None:
        """Close the AsyncIssuer of the running loop."""
        found = self._aids.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.close()

    def _with(self, settings: dict[str, Any]) -> dict[str, Any]:
        ours = {"redis": self.redis_url, "config": self._server.config, "scheduler": None, "lease": 0}
        given = {**ours, **self._settings, **settings}
        if "store" not in given:
            # Not its URL: for that, Python reads the metadata of all installed packages, which takes 3 ms.
            given["store"] = DoubledStore(self.store.path)
            self._stores.append(given["store"])
        return given

    # ------------------------------------------------------------------ faults

    def redis_away(self, calls: int | None = None) -> AbstractContextManager[object]:
        """Let Redis be away. The result is a context manager: at its end, Redis is back.

        Args:
            calls: For how many requests of the issuer that run a script, such as a draw. Redis does not get these
                requests, and their connections are closed. None means until the end: all connections are refused.
        """
        if calls is None:
            self._away = True
            self._proxy().refuse()
        else:
            self._proxy().drop_requests(_SCRIPT, _counted(calls))
        return _ending(self.redis_back)

    def redis_back(self) -> None:
        """End `redis_away` and `lose_reply`."""
        self._away = False
        if (proxy := self._own_server.proxy) is not None:
            proxy.pass_through()

    def lose_reply(self, calls: int = 1) -> AbstractContextManager[object]:
        """Lose the replies to the next requests that run a script, such as a draw.

        The script runs in Redis, but its caller gets no reply, and the connection is closed. Replaces `redis_away`. The
        result is a context manager: at its end, no more replies are lost.

        Args:
            calls: How many replies.
        """
        self._proxy().drop_replies(_SCRIPT, _counted(calls))
        return _ending(self.redis_back)

    def store_away(self, calls: int | None = None) -> AbstractContextManager[object]:
        """Let the store be away. The result is a context manager: at its end, the store is back.

        Args:
            calls: For how many calls of the issuer to the store. None means until the end.
        """
        self.store.order(AWAY, None if calls is None else _counted(calls))
        return _ending(self.store_back)

    def lose_store_reply(self, calls: int = 1) -> AbstractContextManager[object]:
        """Lose the replies to the next calls that change the store.

        The store makes the change, but the caller gets an error. The result is a context manager: at its end, no more
        replies are lost.

        Args:
            calls: How many replies.
        """
        self.store.order(LOST, _counted(calls))
        return _ending(self.store_back)

    def store_back(self) -> None:
        """End `store_away` and `lose_store_reply`."""
        self.store.end_orders()

    def snapshot(self) -> None:
        """Save the data of Redis for `roll_back`."""
        self._snapshot = self._own_server.snapshot(), self.clock.micros

    def roll_back(self) -> None:
        """Restart Redis with the data of the last `snapshot`, as after a crash: all later changes are lost.

        Raises:
            IssuerError: There is no snapshot.
        """
        if self._snapshot is None:
            raise IssuerError("there is no snapshot to roll back to: call `snapshot` first")
        snapshot, micros = self._snapshot
        self._restart(lambda: self._server.restore(snapshot))
        self._age(self.clock.micros - micros)

    def lose_data(self) -> None:
        """Restart Redis without data."""
        self._restart(self._server.wipe)

    def fail_over(self) -> None:
        """Restart Redis with all its data: a new term begins, as after a failover to a replica that has all data."""
        server = self._own_server
        self._restart(lambda: server.restore(server.snapshot()))

    def _restart(self, restart: Callable[[], object]) -> None:
        proxy = self._own_server.proxy
        if proxy is not None:
            proxy.refuse()  # let nobody in until the scripts for moved clocks are loaded again
        try:
            restart()
        finally:
            if proxy is not None and not self._away:
                proxy.pass_through()

    # ------------------------------------------------------------------ clock

    def _time(self) -> int:
        [(seconds, micros)] = self._server.ask(("TIME",))
        return int(seconds) * 1_000_000 + int(micros)

    def _move(self, ahead: int, micros: int) -> None:
        texts, replaced = moved(ahead) if ahead else ([], {})
        self._own_server.load(self._database, texts)
        self._own_server.proxied(self).replaced[self._database] = replaced
        self._age(micros)

    def _age(self, micros: int) -> None:
        self._server.ask(("EVAL", _AGE, 0, round(micros / 1000)), database=self._database)

    # ------------------------------------------------------------------ end

    def _close_issuers(self) -> None:
        """Close all issuers on this double, also those of the tested code. AsyncIssuers end with their loops."""
        self.store_back()
        self.redis_back()  # the issuers return their numbers
        with ExitStack() as ends:  # each is closed, also if others fail
            for engine in list(OPEN_ENGINES):
                if isinstance(engine, Engine) and engine.config.store.url == self.store_url:
                    ends.callback(engine.close)

    def _leave_proxy(self) -> None:
        if self._server.proxy is not None:
            self._server.proxy.replaced.pop(self._database, None)
        self._server.scripts.pop(self._database, None)
        self._server.unproxied(self)

    def _close_stores(self) -> None:
        for store in self._stores:
            store.close()

    def _proxy(self) -> DoubleProxy:
        proxy = self._own_server.proxied(self)
        proxy.database = self._database
        return proxy

    @property
    def _own_server(self) -> DoubleServer:
        if os.getpid() != self._owner:
            raise IssuerError(
                "a double's Redis is controlled by the process that has made the double, not by a forked child"
            )
        return self._server


def _counted(calls: int) -> int:
    if calls < 1:
        raise InvalidArgument(f"calls must be 1 or more, not {calls}", value=calls)
    return calls


def _ending(end: Callable[[], None]) -> AbstractContextManager[object]:
    ends = ExitStack()
    ends.callback(end)
    return ends
