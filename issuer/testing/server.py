"""The Redis server of all doubles of a process, the proxy before it, and the folder of their stores.

The proxy is there only while a double needs it, because each request through it takes 0.1 ms longer. To put it before
the server, the server gets another port, and the proxy takes the port of the server.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, Self

from issuer.chaos.scratch import binary
from issuer.chaos.server import RedisServer
from issuer.forks import living, register
from issuer.gateway.commands import NAMES, script
from issuer.reentry import CallLock
from issuer.testing.proxy import DoubleProxy
from issuer.testing.store import DoubledStore
from issuer_persistence.records import fresh_version

#: How many databases the server has. Each double uses one of them, so that it sees no keys of another double.
DATABASES = 1000

#: The first major version of Redis that can change its port while it runs.
MOVABLE = 7

#: A program that ends the server when this process has ended: also after SIGKILL, SIGTERM or `os._exit`, which run no
#: `atexit`. It waits for the end of its input, which this process and its forked children hold open.
_WATCH = 'read -r _; kill -9 "$0"; /bin/rm -rf "$@"'


class DoubleServer(RedisServer):
    """The server, which ends with this process. `stores`: folder for the files of the stores."""

    def __init__(self) -> None:
        super().__init__(binary())
        shared_memory = Path("/dev/shm")  # noqa: S108 - a folder in it: files in memory need no fsync
        in_memory = shared_memory.is_dir() and os.access(shared_memory, os.W_OK | os.X_OK)
        self.stores = Path(tempfile.mkdtemp(prefix="issuer-", dir=shared_memory if in_memory else None))
        self._doubles = count()
        #: The port in the URLs of all doubles: that of the server or of the proxy.
        self.public_port = 0
        self.proxy: DoubleProxy | None = None
        self._proxied: set[object] = set()
        #: Texts of the scripts that the server must have.
        self._scripts = dict.fromkeys(script(name).text for name in NAMES)
        self._watch: subprocess.Popen[bytes] | None = None
        #: Client of the server itself, whatever its port is.
        self._admin = self.client()
        #: Content and id of an empty store.
        self._empty_store: tuple[bytes, bytes] | None = None
        _servers.add(self)

    def start(self) -> Self:
        """If the server does not run, start it, and load the scripts."""
        if self.running:
            return self
        super().start()
        self._admin = self.client()
        if not self.public_port:
            self.public_port = self._public()
        self._watch = subprocess.Popen(  # noqa: S603 - ours
            ["/bin/sh", "-c", _WATCH, str(self.pid), str(self.directory), str(self.stores)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.load([*self._scripts])
        return self

    def ask(self, *commands: tuple[str | int, ...], database: int = 0) -> list[Any]:
        """Send commands to the server, not through the proxy. Return their replies. Raises the first error."""
        with self._admin.pipeline(transaction=False) as pipeline:
            for command in (("SELECT", database), *commands):
                pipeline.execute_command(*command)  # type: ignore[no-untyped-call]  # of redis-py
            return pipeline.execute()[1:]

    def load(self, scripts: Iterable[str]) -> None:
        """Load scripts, now and after each restart."""
        self._scripts.update(dict.fromkeys(scripts))
        self.ask(*(("SCRIPT", "LOAD", text) for text in scripts))

    def proxied(self, double: object) -> DoubleProxy:
        """Return the proxy. It stays before the server until `unproxied` was called for the same doubles."""
        if self.proxy is None:
            self._move(self._free_port())
            self.proxy = DoubleProxy(self.address, self.public_port)
            self.ask(("CLIENT", "KILL", "SKIPME", "yes"))  # the clients connect again, to the proxy
        self._proxied.add(double)
        return self.proxy

    def unproxied(self, double: object) -> None:
        """If no other double needs the proxy, end it."""
        self._proxied.discard(double)
        if self.proxy is not None and not self._proxied:
            self.proxy.close()
            self.proxy = None
            self._move(self.public_port)

    def _public(self) -> int:
        """Return the port for URLs. Redis 6 cannot change its port, so the proxy stays before it all the time."""
        version = self._admin.info("server")["redis_version"]
        if int(version.partition(".")[0]) >= MOVABLE:
            return self.port
        self.proxy = DoubleProxy(self.address)
        self._proxied.add(self)
        return self.proxy.port

    def _move(self, port: int) -> None:
        self.ask(("CONFIG", "SET", "port", port))
        self.port = port
        self._admin.close()
        self._admin = self.client()

    def new_database(self) -> int:
        """Return the number of an empty database. Database 0 is none: its clients do not name it."""
        before, index = divmod(next(self._doubles), DATABASES - 1)
        if before:  # not at the end of a double: most processes make fewer of them than there are databases
            self.ask(("FLUSHDB",), database=index + 1)
        return index + 1

    def end(self) -> None:
        """Kill the server, and remove the folders."""
        if os.getpid() == self.owner:
            if self.proxy is not None:
                self.proxy.close()
            self._stop_watching()
            shutil.rmtree(self.stores, ignore_errors=True)
        super().end()

    def kill(self) -> None:
        """Stop watching before the server ends: another process may get its process id."""
        if os.getpid() == self.owner:
            self._stop_watching()
        super().kill()

    def new_store(self) -> DoubledStore:
        """Return a new, empty store in a folder of its own."""
        folder = Path(tempfile.mkdtemp(dir=self.stores))
        # Copying a ready file takes less time than making the tables. Each store needs an id of its own.
        content, id = self._empty_store = self._empty_store or self._made_store()
        (folder / "store.db").write_bytes(content.replace(id, fresh_version().encode()))
        return DoubledStore(folder / "store.db")

    def _made_store(self) -> tuple[bytes, bytes]:
        made = DoubledStore.made(self.stores / "empty.db")
        with closing(made):
            return made.path.read_bytes(), made.store_id(timeout=60).encode()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.kill()
            self._watch.communicate()
            self._watch = None

    def leave(self) -> None:
        """In a forked child: the processes are not its children, so there is nothing to wait for."""
        for process in (self._process, self._watch):
            if process is not None:
                process.returncode = 0

    def _launch(self) -> subprocess.Popen[bytes]:
        process = super()._launch()
        self._empty_store = self._empty_store or self._made_store()  # while the server starts
        return process

    def _command(self) -> list[str]:
        return [*super()._command(), "--databases", str(DATABASES)]


_servers = living(DoubleServer.leave)
_lock = CallLock()
_server: DoubleServer | None = None


def own_server() -> DoubleServer:
    """Return the server of this process. The first call starts it. A forked child has a server of its own."""
    global _server  # noqa: PLW0603 - a process has one
    with _lock.thread:
        if _server is None or _server.owner != os.getpid():
            _server = DoubleServer()
        return _server.start()


def _fresh_lock() -> None:
    global _lock  # noqa: PLW0603 - in a child, a thread that exists only in the parent may hold it
    _lock = CallLock()


register(in_child=_fresh_lock)
