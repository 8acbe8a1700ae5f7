"""fakeredis with what the fence needs: an INFO command that tells role and replication id, and a clock that moves.

It serves quick tests and demonstrations. It is no evidence: what Redis does is shown on a real one.
"""

import secrets
import time
from collections.abc import Callable
from typing import Any

import fakeredis
import redis
from fakeredis import FakeAsyncRedisConnection, FakeRedisConnection, FakeServer
from fakeredis._commands import Signature
from fakeredis._helpers import SimpleError
from fakeredis._socket import AsyncFakeSocket, FakeSocket
from redis.backoff import NoBackoff
from redis.retry import Retry

_NO_REPLID = "0" * 40


def new_replid() -> str:
    """Return 40 random hexadecimal digits, as Redis makes them."""
    return secrets.token_hex(20)


class FencedFakeServer(FakeServer):
    """A fake server whose reign a test can see and change."""

    def __init__(
        self, version: tuple[int, ...] = (7, 0), clock: Callable[[], float] | None = None, **options: Any
    ) -> None:
        super().__init__(version=version, **options)
        self.clock = clock or (lambda: time.time())  # noqa: PLW0108 - tests put another `time` there
        """Seconds since 1970, as TIME tells them but for `time_offset`; a test may put another clock in its place."""
        self.role = "master"
        self.master_replid = new_replid()
        self.master_replid2 = _NO_REPLID
        self.time_offset = 0.0
        """Seconds that TIME is ahead of that clock; negative: behind."""
        self.info_denied = False
        """Answer INFO as a server does whose user lacks +info."""

    def new_reign(self) -> str:
        """Change the replication id as a promotion does, the old id staying visible as the second one."""
        self.master_replid2, self.master_replid = self.master_replid, new_replid()
        return self.master_replid

    def wipe(self) -> str:
        """Lose all data and scripts and come back under a new id, as a restart without persistence does."""
        with self.lock:
            for database in self.dbs.values():
                database.clear()
            self.script_cache.clear()
        self.master_replid, self.master_replid2 = new_replid(), _NO_REPLID
        return self.master_replid

    def client(self, **options: Any) -> fakeredis.FakeRedis:
        """Return a client of this server, which sends everything once."""
        settings: dict[str, Any] = {"retry": Retry(NoBackoff(), 0), **options}
        return fakeredis.FakeRedis(server=self, connection_class=FencedConnection, **settings)

    def async_client(self, **options: Any) -> fakeredis.FakeAsyncRedis:
        return fakeredis.FakeAsyncRedis(server=self, connection_class=FencedAsyncConnection, **options)

    def info(self, sections: tuple[bytes, ...] = ()) -> bytes:
        """Return INFO's text: server and replication are known, other sections are empty."""
        wanted = {section.decode().lower() for section in sections} or {"default"}
        everything = wanted & {"default", "all", "everything"}
        version = ".".join(str(part) for part in (*self.version, 0, 0)[:3])
        known = {
            "server": ("redis_version:" + version, "redis_mode:standalone", "process_id:1", "tcp_port:0"),
            "replication": (
                f"role:{self.role}",
                "connected_slaves:0",
                "master_failover_state:no-failover",
                f"master_replid:{self.master_replid}",
                f"master_replid2:{self.master_replid2}",
                "master_repl_offset:0",
                "second_repl_offset:-1",
                "repl_backlog_active:0",
            ),
        }
        chosen = [name for name in known if everything or name in wanted]
        text = "\r\n".join("".join(f"{line}\r\n" for line in (f"# {name.title()}", *known[name])) for name in chosen)
        return text.encode()


class _FencedCommands:
    """Adds to a fake socket what it lacks, for plain clients and for scripts alike.

    Commands are looked up by `_name_to_func` in both cases; answering there leaves fakeredis's own table alone, so that
    other fake servers of the process stay as they are.
    """

    _server: Any  # a FencedFakeServer, which fakeredis's classes know as a FakeServer only
    _script_resp: int | None  # set while a script runs

    def _name_to_func(self, cmd_name: str) -> Any:
        if cmd_name == "info":
            return self._info, Signature("info", "_info", (), (bytes,))  # type: ignore[arg-type]  # its annotation is a tuple of one
        return super()._name_to_func(cmd_name)  # type: ignore[misc]  # a mixin: the socket class comes next

    def _info(self, *sections: bytes) -> bytes:
        if self._server.info_denied:
            # Redis 7.0's words. Within a script it is a plain error, not NOPERM: who looks for that misses it.
            if self._script_resp is not None:
                raise SimpleError("ERR The user executing the script can't run this command or subcommand")
            raise SimpleError("NOPERM this user has no permissions to run the 'info' command")
        return bytes(self._server.info(sections))

    def time(self) -> list[bytes]:
        micros = round((self._server.clock() + self._server.time_offset) * 1_000_000)
        return [b"%d" % (micros // 1_000_000), b"%d" % (micros % 1_000_000)]


class FencedSocket(_FencedCommands, FakeSocket):
    """The server's end of a connection."""


class FencedAsyncSocket(_FencedCommands, AsyncFakeSocket):
    """The same, for asyncio."""


class FencedConnection(FakeRedisConnection):
    """A connection that ends in a FencedSocket."""

    _server: Any  # never None here, though the base class says so

    def _connect(self) -> FakeSocket:
        if not self._server.connected:
            raise redis.ConnectionError("the fake server is disconnected")
        return FencedSocket(
            self._server,
            client_class=self._client_class,
            db=self.db,
            lua_modules=self._lua_modules,
            client_info=self._client_info,
        )


class FencedAsyncConnection(FakeAsyncRedisConnection):
    """The same, for asyncio."""

    _server: Any  # the same
    _sock: Any
    _reader: Any
    _writer: Any

    async def _connect(self) -> None:
        await super()._connect()
        # The base class has just made a plain socket, on which nothing has been sent yet: put ours in its place.
        self._sock.close()
        self._sock = FencedAsyncSocket(
            self._server,
            self.db,
            client_class=self._client_class,
            lua_modules=self._lua_modules,
            client_info=self._client_info,
        )
        self._reader._socket = self._writer._socket = self._sock
