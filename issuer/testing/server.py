"""The Redis server of all doubles of a process, the proxy before it, and the folder of their stores.

The proxy is there only while a double needs it, because each request through it takes 0.1 ms longer. Clients connect to
a symbolic link, which leads to the Unix socket of the server or of the proxy. So no port is needed, which another
program could take.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections import deque
from contextlib import closing
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

from issuer.chaos.scratch import binary
from issuer.chaos.server import RedisServer
from issuer.errors import IssuerError
from issuer.forks import living, register
from issuer.gateway.commands import NAMES, script
from issuer.testing.proxy import DoubleProxy
from issuer.testing.store import DoubledStore
from issuer_persistence.records import fresh_version

#: How many databases the server has. Each double uses one of them, so that it sees no keys of another double.
DATABASES = 1000

#: Maximum length of the path in which the folder is made, in bytes. The path of a socket may have 103 bytes.
LONGEST_PLACE = 70

#: A program that ends the server when this process has ended: also after SIGKILL, SIGTERM or `os._exit`, which run no
#: `atexit`. It waits for the end of its input, which only this process holds open.
_WATCH = 'read -r _; kill -9 "$0"; /bin/rm -rf "$@"'


class DoubleServer(RedisServer):
    """The server, which ends with this process. `folder`: for sockets, and for the files of the stores."""

    def __init__(self) -> None:
        program = binary()
        self.folder = new_folder()
        self._socket = self.folder / "server.sock"
        #: The path in the URLs of all doubles.
        self._link = self.folder / "redis.sock"
        self._lead_to(self._socket)
        #: A settings file without settings.
        self.config = self.folder / "issuer.toml"
        self.config.touch()
        super().__init__(program)
        #: Databases that no double has used, and those of ended doubles, oldest first.
        self._unused = iter(range(1, DATABASES))  # clients of database 0 do not name it
        self.ended: deque[int] = deque()
        self.proxy: DoubleProxy | None = None
        self._proxied: set[object] = set()
        #: Texts of the scripts that the server must have: 0 for those of the issuer, else by database.
        self.scripts = {0: [script(name).text for name in NAMES]}
        self._watch: subprocess.Popen[bytes] | None = None
        #: Client of the server itself.
        self._admin = self.client()
        #: Content and id of an empty store.
        self._empty_store: tuple[bytes, bytes] | None = None
        _servers.add(self)

    @property
    def url(self) -> str:
        """URL of the server itself."""
        return f"unix://{quote(str(self._socket))}"

    def double_url(self, database: int) -> str:
        """Return the URL of a database for the clients of a double."""
        return f"unix://{quote(str(self._link))}?db={database}"

    def start(self) -> Self:
        """If the server does not run, start it, and load the scripts."""
        if self.running:
            return self
        super().start()
        self._watch = subprocess.Popen(  # noqa: S603 - ours
            ["/bin/sh", "-c", _WATCH, str(self.pid), str(self.directory), str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        self.ask(*(("SCRIPT", "LOAD", text) for texts in self.scripts.values() for text in texts))
        return self

    def ask(self, *commands: tuple[str | int, ...], database: int = 0) -> list[Any]:
        """Send commands to the server, not through the proxy. Return their replies. Raises the first error."""
        with self._admin.pipeline(transaction=False) as pipeline:
            for command in (("SELECT", database), *commands):
                pipeline.execute_command(*command)  # type: ignore[no-untyped-call]  # of redis-py
            return pipeline.execute()[1:]

    def load(self, database: int, scripts: list[str]) -> None:
        """Load scripts, now and after each restart. They replace the earlier ones of the same database."""
        self.scripts[database] = scripts
        self.ask(*(("SCRIPT", "LOAD", text) for text in scripts))

    def proxied(self, double: object) -> DoubleProxy:
        """Return the proxy. It stays before the server until `unproxied` was called for the same doubles."""
        with _lock:
            if self.proxy is None:
                self.proxy = DoubleProxy(self._socket, self.folder / "proxy.sock")
                self._lead_to(self.proxy.path)
                # The clients must connect again. The server accepts connections in turn, so a new connection ensures
                # that the server has accepted all earlier ones, too.
                self._admin.close()
                self.ask(("CLIENT", "KILL", "SKIPME", "yes"))
            self._proxied.add(double)
            return self.proxy

    def unproxied(self, double: object) -> None:
        """If no other double needs the proxy, end it."""
        with _lock:
            self._proxied.discard(double)
            if self.proxy is not None and not self._proxied:
                self._lead_to(self._socket)
                self.proxy.close()
                self.proxy = None

    def _lead_to(self, socket: Path) -> None:
        fresh = self._link.with_suffix(".new")
        fresh.symlink_to(socket)
        fresh.replace(self._link)

    def new_database(self) -> int:
        """Return the number of an empty database.

        Raises:
            IssuerError: All databases are in use.
        """
        database = next(self._unused, None)
        if database is None:
            try:
                database = self.ended.popleft()
            except IndexError:
                message = f"{DATABASES - 1} doubles are open: close those that are no longer needed"
                raise IssuerError(message) from None
            self.ask(("FLUSHDB",), database=database)  # not before: most processes never use a database again
        return database

    def end(self) -> None:
        """Kill the server, and remove the folders."""
        if os.getpid() == self.owner:
            if self.proxy is not None:
                self.proxy.close()
            self._stop_watching()
            shutil.rmtree(self.folder, ignore_errors=True)
        super().end()

    def kill(self) -> None:
        """Stop watching before the server ends: another process may get its process id."""
        if os.getpid() == self.owner:
            self._stop_watching()
        super().kill()

    def new_store(self) -> DoubledStore:
        """Return a new, empty store in a folder of its own."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        # Copying a ready file takes less time than making the tables. Each store needs an id of its own.
        content, id = self._empty_store = self._empty_store or self._made_store()
        (folder / "store.db").write_bytes(content.replace(id, fresh_version().encode()))
        return DoubledStore(folder / "store.db")

    def _made_store(self) -> tuple[bytes, bytes]:
        made = DoubledStore.made(self.folder / "empty.db")
        with closing(made):
            return made.path.read_bytes(), made.store_id(timeout=60).encode()

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.kill()
            self._watch.communicate()
            self._watch = None

    def leave(self) -> None:
        """In a forked child: the processes are not its children. The server ends with the parent."""
        for process in (self._process, self._watch):
            if process is not None:
                process.returncode = 0  # there is nothing to wait for
        if self._watch is not None and self._watch.stdin is not None:
            self._watch.stdin.close()

    def _launch(self) -> subprocess.Popen[bytes]:
        process = super()._launch()
        self._empty_store = self._empty_store or self._made_store()  # while the server starts
        return process

    def _free_port(self) -> int:
        return 0  # none

    def _command(self) -> list[str]:
        return [*super()._command(), "--unixsocket", str(self._socket), "--databases", str(DATABASES)]


def new_folder() -> Path:
    """Make a folder. It is in memory if possible, because files there need no fsync."""
    places = ("/dev/shm", tempfile.gettempdir(), "/tmp")  # noqa: S108 - a folder of its own is made there
    usable = [each for each in places if len(os.fsencode(each)) <= LONGEST_PLACE and os.access(each, os.W_OK | os.X_OK)]
    return Path(tempfile.mkdtemp(prefix="issuer-", dir=usable[0] if usable else None))


_servers = living(DoubleServer.leave)
_lock = threading.RLock()
_server: DoubleServer | None = None


def own_server() -> DoubleServer:
    """Return the server of this process. The first call starts it. A forked child has a server of its own."""
    global _server  # noqa: PLW0603 - a process has one
    with _lock:
        if _server is None or _server.owner != os.getpid():
            _server = DoubleServer()
        return _server.start()


def _fresh_lock() -> None:
    global _lock  # noqa: PLW0603 - in a child, a thread that exists only in the parent may hold it
    _lock = threading.RLock()


register(in_child=_fresh_lock)
