"""A MongoDB for tests: the one that ISSUER_TEST_MONGO_URL names, else mongod on PATH, else that of a wheel.

What is started here is a replica set, of one member or of several, with `failCommand` at hand.
"""

import atexit
import json
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, Self

import pymongo
from pymongo.errors import PyMongoError

from issuer.chaos.scratch import in_wheel
from tests.servers.absent import absent
from tests.servers.binaries import version
from tests.servers.ports import LOOPBACK, free_port
from tests.servers.watchdog import launch
from tests.waiting import until

URL = "ISSUER_TEST_MONGO_URL"
NAME = "r"
#: Identifier of the log's entry of a rollback.
ROLLED_BACK = 21612

Client = pymongo.MongoClient[dict[str, Any]]

_START_TIMEOUT = 60.0
_START_ATTEMPTS = 5
#: In memory, as long as there is so much room: a member takes 60 MB.
_ROOM = 2 << 30
#: The journal is small, and a restart has little to replay: with a checkpoint a minute one took up to 38 s.
_SETTINGS = (
    "--bind_ip", LOOPBACK, "--replSet", NAME, "--nounixsocket", "--oplogSize", "64", "--syncdelay", "5",
    "--wiredTigerCacheSizeGB", "0.25", "--wiredTigerEngineConfigString", "log=(file_max=1MB,prealloc=false)",
    "--setParameter", "enableTestCommands=1", "--setParameter", "diagnosticDataCollectionEnabled=false",
    "--logpath", "log", "--logappend",
)  # fmt: skip
_AWAY = (PyMongoError, AssertionError)


def given_url() -> str | None:
    """Return the URL of a server that somebody else runs; tests that must kill theirs can't use it."""
    return os.environ.get(URL) or None


def find_mongod() -> Path | None:
    """Return a mongod that runs here."""
    if on_path := shutil.which("mongod"):
        return Path(on_path)
    found = in_wheel("fiftyone", "db/bin/mongod")
    if found and not os.access(found, os.X_OK):  # as pip has installed it
        found.chmod(found.stat().st_mode | stat.S_IXUSR)
    return found if found and version(found) else None


def needed_mongod() -> Path:
    """Return the same; without it the test is skipped, and fails where CI is set."""
    return find_mongod() or absent("mongod: on Linux with x86-64, OpenSSL 3 and libcurl4, `make ready` brings it")


class Mongod:
    """One process with a directory of its own, which a restart finds again. Ended by its process id."""

    def __init__(self, program: Path, *arguments: str, **options: Any) -> None:
        shm = Path("/dev/shm")
        roomy = shm.is_dir() and shutil.disk_usage(shm).free > _ROOM
        self.directory = Path(tempfile.mkdtemp(prefix="issuer-mongo-", dir=shm if roomy else None))
        self.port = free_port()
        #: Of each client, such as a login.
        self.options = options
        self._command = [str(program), "--dbpath", str(self.directory), *_SETTINGS, *arguments]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def client(self, **options: Any) -> Client:
        """Return a client of this member alone."""
        soon = {"serverSelectionTimeoutMS": 1000, "socketTimeoutMS": 10_000}
        return Client(LOOPBACK, self.port, directConnection=True, **soon | self.options | options)

    def log(self, *identifiers: int) -> list[dict[str, Any]]:
        """Return what the log has of these identifiers, oldest first; without any, all of it."""
        path = self.directory / "log"
        lines = path.read_text(errors="replace").splitlines() if path.exists() else []
        entries = [json.loads(line) for line in lines if line.startswith("{") and line.endswith("}")]
        return [each for each in entries if not identifiers or each["id"] in identifiers]

    def start(self) -> None:
        """Start the process, unless it runs, and return when it answers. Later starts keep the port."""
        if self.running:
            return
        attempts = _START_ATTEMPTS if self._process is None else 1
        for attempt in range(1, attempts + 1):
            with (self.directory / "output").open("ab") as output:
                self._process = launch([*self._command, "--port", str(self.port)], self.directory, output)
            if until(lambda: self.answers() or not self.running, _START_TIMEOUT, "mongod") and self.running:
                return
            if attempt < attempts:
                self.port = free_port()
        raise AssertionError(f"mongod didn't start: {self.log()[-20:]}")

    def answers(self) -> bool:
        with suppress(PyMongoError), self.client() as client:
            return bool(client.admin.command("hello")["ok"])
        return False

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Let the process stand still while the block lasts."""
        assert self._process
        self._process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        if self._process:
            self._process.kill()
            self._process.wait()


class MongoServers:
    """A replica set. Each member is given the arguments, and each client of ours the options. `url` has neither.

    `election`: milliseconds after which the members believe that the primary has gone. `password`: that of the user
    `root`; with it, each client must log in.
    """

    def __init__(
        self,
        program: Path,
        members: int = 1,
        *arguments: str,
        election: int = 1000,
        password: str = "",
        **options: Any,
    ) -> None:
        self._password = password
        secret = ("--keyFile", "key") if password else ()
        self.members = [Mongod(program, *arguments, *secret, **options) for _ in range(members)]
        self.election = election
        self._owner = os.getpid()
        atexit.register(self.end)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def url(self) -> str:
        return f"mongodb://{','.join(each.address for each in self.members)}"

    @property
    def port(self) -> int:
        return self.members[0].port

    def client(self, **options: Any) -> Client:
        return Client(self.url, **{"serverSelectionTimeoutMS": 60_000, **self.members[0].options, **options})

    def start(self) -> Self:
        """Start each member that doesn't run, and return when there is a primary, and all others follow it."""
        for each in self.members:
            key = each.directory / "key"
            if self._password and not key.exists():
                key.write_text("secret")
                key.chmod(0o600)
            each.start()
        with self.members[0].client() as client, suppress(PyMongoError):  # after a restart it is there already
            hosts = [{"_id": at, "host": each.address} for at, each in enumerate(self.members)]
            settings = {"electionTimeoutMillis": self.election, "heartbeatIntervalMillis": 500}
            client.admin.command("replSetInitiate", {"_id": NAME, "members": hosts, "settings": settings})
            if self._password:
                self._secure()
        self.whole()
        return self

    def whole(self) -> None:
        """Return when there is a primary that a majority follows, and each member is that or a secondary."""

        def settled() -> bool:
            states = [each["stateStr"] for each in self.status()["members"]]
            return states.count("PRIMARY") == 1 and states.count("SECONDARY") == len(self.members) - 1

        until(settled, _START_TIMEOUT, "the set is whole", ignoring=_AWAY)

    def _secure(self) -> None:
        """Create the first user, as who is on the same machine may."""
        with self.primary().client() as client:
            client.admin.command("createUser", "root", pwd=self._password, roles=["root"])
        for each in self.members:
            each.options |= {"username": "root", "password": self._password}

    def status(self) -> dict[str, Any]:
        """Return what the primary says of the set."""
        with self.primary().client() as client:
            return client.admin.command("replSetGetStatus")

    def primary(self) -> Mongod:
        """Return the member that calls itself the primary; AssertionError if none does within a minute."""
        return until(self._primary, _START_TIMEOUT, "there is a primary")  # type: ignore[return-value]  # never None

    def secondaries(self) -> list[Mongod]:
        primary = self.primary()
        return [each for each in self.members if each is not primary]

    def step_down(self) -> None:
        """Let the primary give way to another member."""
        with self.primary().client() as client:
            client.admin.command("replSetStepDown", 10, secondaryCatchUpPeriodSecs=5)

    def diverge(self, old: Mongod, written: Callable[[], object]) -> None:
        """Let the primary write what no other member gets. Return when another one is elected, and the old is back.

        Within `election` it must be written: then the primary steps down. Members that only stood still would find it
        in their sockets.
        """
        others = [each for each in self.members if each is not old]
        for each in others:
            each.kill()
        with old.client(w=1) as client:  # of the caller's writes none may come in time
            client["alone"]["written"].insert_one({})
        written()
        old.kill()
        for each in others:
            each.start()
        with others[0].client() as client:  # it doesn't wait for the election timeout
            until(lambda: client.admin.command("replSetStepUp"), _START_TIMEOUT, "it is elected", ignoring=_AWAY)
        old.start()

    def kill(self) -> None:
        """SIGKILL all members."""
        if os.getpid() == self._owner:
            for each in self.members:
                each.kill()

    @contextmanager
    def failing(self, *commands: str, times: int = 0, skip: int = 0, **manner: object) -> Iterator[None]:
        """Let these commands fail on the primary meanwhile, by `failCommand`, with errorCode=11600, for example."""
        mode = {"times": times} if times else {"skip": skip}
        with self.primary().client() as client:
            switch = partial(client.admin.command, "configureFailPoint", "failCommand")
            switch(mode=mode, data={"failCommands": commands, **manner})
            try:
                yield
            finally:
                switch(mode="off")

    def clean(self) -> None:
        self.start()
        with self.client() as client:
            for name in client.list_database_names():
                if name not in {"admin", "config", "local"}:
                    client.drop_database(name)

    def end(self) -> None:
        """Kill all, and remove their directories. Twice is harmless; a forked child does nothing."""
        if os.getpid() == self._owner:
            self.kill()
            for each in self.members:
                shutil.rmtree(each.directory, ignore_errors=True)
            atexit.unregister(self.end)

    def _primary(self) -> Mongod | None:
        for each in self.members:
            with suppress(PyMongoError), each.client(serverSelectionTimeoutMS=300, socketTimeoutMS=500) as client:
                if each.running and client.admin.command("hello")["isWritablePrimary"]:
                    return each
        return None
