"""The command line from outside: in this process where a process of its own would add nothing, else as a program."""

import json
import multiprocessing.util
import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from issuer.cli import completion, main
from issuer.core.supply import mode
from issuer.engine import blocking
from issuer_persistence.opening import open_store
from tests import programs
from tests.servers.absent import absent
from tests.servers.binaries import primary_server

FOREIGN = ("MONGODB_URI", "MONGO_URL", "REDIS_URL", "COLUMNS", "LINES", "NO_COLOR")
PROGRAM = ("-m", "issuer")


@dataclass(frozen=True)
class Ended:
    """What a command line left: its exit code, stdout and stderr."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Ended]
Program = Cli
Start = Callable[..., programs.Program]


#: Of scrambled tags.
KEYS = {"ISSUER_KEYS": "k1=0123456789abcdef,k2=fedcba9876543210"}


#: The settings of a machine that may stand still for seconds: a reply that is given up costs numbers, and what stood in
#: a caller's way is told on stderr. The first is above what the doctor asks for.
PATIENT = {"ISSUER_TIMEOUT": "100", "ISSUER_STORE_TIMEOUT": "60", "ISSUER_REDIS_TIMEOUT": "60", "ISSUER_INSIST": "100"}
#: Likewise what is no setting: how long a close, a look whose the hash is, and a Tab may take.
CONSTANTS = ((blocking, "CLOSING"), (mode, "PATIENCE_ALONE"), (completion, "PATIENCE"))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home and working directory, with no settings from anywhere, but for patience."""
    for name in [name for name in os.environ if name.startswith("ISSUER_") or name in FOREIGN]:
        monkeypatch.delenv(name)
    for name, seconds in PATIENT.items():
        monkeypatch.setenv(name, seconds)
    for module, name in CONSTANTS:
        monkeypatch.setattr(module, name, 60.0)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def cli(home: Path) -> Cli:  # noqa: ARG001 - for its environment
    """Run `issuer ...` in this process, without a terminal: `cli("next", "orders")`."""

    def run(*arguments: str, input: str | None = None, env: Mapping[str, str] | None = None) -> Ended:
        done = CliRunner().invoke(main, arguments, input=input, env=env, prog_name="issuer")
        if done.exception is not None and not isinstance(done.exception, SystemExit):
            raise done.exception
        return Ended(done.exit_code, done.stdout, done.stderr)

    return run


@pytest.fixture
def program(home: Path) -> Program:  # noqa: ARG001 - for its environment
    """Run `issuer ...` as a process: `program("next", "orders")`."""

    def run(*arguments: str, env: Mapping[str, str] | None = None) -> Ended:
        done = programs.run(*PROGRAM, *arguments, env={**os.environ, **(env or {})})
        return Ended(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def start(home: Path) -> Iterator[Start]:
    """Start `issuer ...` as a process that the test ends: `start("keeper")`; its stderr goes to `talk` in the home."""
    with ExitStack() as ends:
        talk = ends.enter_context((home / "talk").open("w"))

        def begin(*arguments: str, env: Mapping[str, str] | None = None) -> programs.Program:
            streams: dict[str, Any] = {"stdin": programs.DEVNULL, "stdout": programs.PIPE, "stderr": talk}
            process = programs.Program(*PROGRAM, *arguments, **streams, env={**os.environ, **(env or {})})
            return ends.enter_context(process)

        yield begin


def empty_store(path: Path) -> str:
    """Make an SQLite store, and return its URL."""
    url = f"sqlite:///{path}"
    with closing(open_store(url)) as made:
        made.upgrade(timeout=60)
    return url


def altered(home: Path, statement: str, *values: object) -> None:
    """Change the store by hand, past all that it would refuse."""
    with closing(sqlite3.connect(home / "ids.db")) as database, database:
        database.execute("PRAGMA ignore_check_constraints = ON")
        database.execute(statement, values)


@pytest.fixture
def store(home: Path) -> str:
    """The URL of an SQLite store that is there, and empty."""
    return empty_store(home / "ids.db")


@pytest.fixture
def direct(cli: Cli, store: str) -> Cli:
    """`cli` without Redis, on a store that is named, with keys."""
    return lambda *arguments, **options: cli("--store", store, *arguments, **{"env": KEYS, **options})


@pytest.fixture
def with_redis(direct: Cli, redis_url: str) -> Cli:
    """The same on a real Redis, which is empty."""
    return lambda *arguments, **options: direct("--redis", redis_url, *arguments, **options)


def shown(sheet: Ended) -> dict[str, str]:
    """Return the lines of a sheet by name."""
    assert sheet.code == 0, sheet.err
    return {name: value.strip() for name, _, value in (line.partition(" ") for line in sheet.out.splitlines())}


@pytest.fixture
def scratch(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:  # noqa: ARG001 - for its environment
    """The folder that temporary files go to."""
    multiprocessing.util.get_temp_dir()  # of the server that programs are forked from: made elsewhere, once
    folder = Path(tempfile.mkdtemp(prefix="e2e-"))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def path_with_redis(tmp_path: Path) -> str:
    binary = primary_server() or absent("a redis-server", "redis-server")
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / ("valkey-server" if "valkey" in binary.name else "redis-server")).symlink_to(binary)
    return str(folder)


@pytest.fixture(params=["mariadb", "postgres"])
def sources(request: pytest.FixtureRequest) -> Iterator[Callable[..., Any]]:
    """Make a database with the tables of some layouts, the first with these rows, on each server in turn."""
    from tests.cli.sources import LAYOUTS, Source

    server = request.getfixturevalue(f"{request.param}_server")
    with ExitStack() as ends:

        def begin(*layouts: str, rows: Sequence[Sequence[object]] = ()) -> Source:
            source = Source(server.url, *layouts)
            ends.callback(source.close)
            if rows:
                source.insert(*LAYOUTS[layouts[0]][0], *rows)
            return source

        yield begin
