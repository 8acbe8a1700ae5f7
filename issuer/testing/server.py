"""The Redis server of all doubles of a process, and the folder of their stores."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from itertools import cycle
from pathlib import Path
from typing import Self

from issuer.chaos.scratch import binary
from issuer.chaos.server import RedisServer
from issuer.forks import living, register
from issuer.gateway.commands import NAMES, script
from issuer.reentry import CallLock
from issuer.testing.store import DoubledStore
from issuer_persistence.records import fresh_version

#: How many databases the server has. Each double uses one of them, so that it sees no keys of another double.
DATABASES = 1000

#: A program that ends the server when this process has ended: also after SIGKILL, SIGTERM or `os._exit`, which run no
#: `atexit`. It waits for the end of its input, which this process and its forked children hold open.
_WATCH = 'read -r _; kill -9 "$0"; rm -rf "$@"'


class DoubleServer(RedisServer):
    """The server, which ends with this process. `stores`: folder for the files of the stores."""

    def __init__(self) -> None:
        super().__init__(binary())
        shared_memory = Path("/dev/shm")  # noqa: S108 - a folder in it: files in memory need no fsync
        in_memory = shared_memory.is_dir() and os.access(shared_memory, os.W_OK | os.X_OK)
        self.stores = Path(tempfile.mkdtemp(prefix="issuer-", dir=shared_memory if in_memory else None))
        self._databases = cycle(range(DATABASES))
        #: Texts of the scripts that the server must have.
        self._scripts = dict.fromkeys(script(name).text for name in NAMES)
        self._watch: subprocess.Popen[bytes] | None = None
        self._empty_store = self._made_store()
        _servers.add(self)

    def start(self) -> Self:
        """If the server does not run, start it, and load the scripts."""
        if self.running:
            return self
        super().start()
        self._watch = subprocess.Popen(  # noqa: S603 - ours
            ["/bin/sh", "-c", _WATCH, str(self.pid), str(self.directory), str(self.stores)],
            stdin=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.load([*self._scripts])
        return self

    def load(self, scripts: Iterable[str]) -> None:
        """Load scripts, now and after each restart."""
        with self.client() as client, client.pipeline(transaction=False) as pipeline:
            for text in scripts:
                pipeline.script_load(text)
                self._scripts[text] = None
            pipeline.execute()

    def new_database(self) -> int:
        """Return the number of a database that no other double uses."""
        return next(self._databases)

    def end(self) -> None:
        """Kill the server, and remove the folders."""
        if os.getpid() == self.owner:
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
        content, id = self._empty_store
        (folder / "store.db").write_bytes(content.replace(id, fresh_version().encode()))
        return DoubledStore(folder / "store.db")

    def _made_store(self) -> tuple[bytes, bytes]:
        path = self.stores / "empty.db"
        made = DoubledStore(path)
        id = made.made_id(timeout=30)
        made.close()
        return path.read_bytes(), id.encode()

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
