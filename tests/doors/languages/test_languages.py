"""Programs in other languages: each is run as a page of docs/guide/languages has it, against a real `issuer serve`."""

import os
import re
import shlex
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests import programs
from tests.cli.conftest import PROGRAM
from tests.doors.http.doors import tokens
from tests.doors.languages.toolchains import TOOLCHAINS
from tests.doors.server.conftest import Serve, Served, home, serve
from tests.servers.ports import free_port
from tests.servers.proxy import FaultProxy

__all__ = ["home", "serve"]

pytestmark = pytest.mark.live

FOLDER = Path(__file__).resolve().parents[3] / "docs/guide/languages"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: The first line of a program, with its name.
NAMED = re.compile(r"(?:<\?php )?(?://|#|/\*) (\S+\.\w+)(?: \*/)?\n")

#: Seconds: others may keep the machine busy.
PATIENCE = 120.0
#: Numbers per second that the token of a test may draw, so that a program is still drawing when the server restarts.
RATE = 50


@dataclass(frozen=True)
class Page:
    """A page: its programs by name, its commands with what they print, and its table of errors."""

    name: str
    programs: Mapping[str, str]
    commands: list[tuple[str, str]]
    #: By what happened, then by client: how the message of the error begins.
    errors: Mapping[str, Mapping[str, str]]

    @classmethod
    def read(cls, path: Path) -> "Page":
        text = path.read_text(encoding="utf-8")
        found, typed = {}, ""
        for language, block in BLOCK.findall(text):
            if named := NAMED.match(block):
                found[named[1]] = block
            if language == "console":
                typed += block
        parts = (part.partition("\n") for part in re.split(r"^\$ ", typed, flags=re.MULTILINE)[1:])
        return cls(path.stem, found, [(command, shown) for command, _, shown in parts], _errors(text))

    def draws(self, program: str) -> list[str]:
        """Return the command of the page that runs this program."""
        stem = program.partition(".")[0]
        (command,) = (each for each, shown in self.commands if re.search(rf"\b{re.escape(stem)}\b", each) and shown)
        return shlex.split(command)

    def builds(self) -> Iterator[list[str]]:
        """Yield the commands that print nothing: compilers."""
        yield from (shlex.split(command) for command, shown in self.commands if not shown)


def _errors(text: str) -> dict[str, dict[str, str]]:
    table = text.partition("| what happened |")[2].partition("\n\n")[0].splitlines()
    rows = [[cell.strip(" `") for cell in line.strip("|").split("|")] for line in table]
    return {row[0]: dict(zip(rows[0], row[1:], strict=False)) for row in rows[2:]}


PAGES = {path.stem: Page.read(path) for path in sorted(FOLDER.glob("*.md"))}


@dataclass(frozen=True)
class Client:
    """A program that draws: its page, its file, and its column in the page's table of errors."""

    page: Page
    program: str
    column: str


#: The programs that take a tag and a count.
CLIENTS = {
    name: Client(PAGES[page], program, column)
    for name, page, program, column in (
        ("fetch", "node", "draw-fetch.mjs", "fetch"),
        ("ioredis", "node", "draw-ioredis.mjs", "ioredis and node-redis"),
        ("node-redis", "node", "draw-node-redis.mjs", "ioredis and node-redis"),
        ("net-http", "go", "draw_http.go", "net/http"),
        ("redigo", "go", "draw_redis.go", "redigo"),
        ("java-http", "java", "Draw.java", "java.net.http"),
        ("curl", "php", "draw-curl.php", "curl"),
        ("phpredis", "php", "draw-redis.php", "phpredis"),
        ("ruby-http", "ruby", "draw_http.rb", "net/http"),
        ("ruby-redis", "ruby", "draw_redis.rb", "redis"),
        ("perl-http", "perl", "draw_http.pl", "HTTP::Tiny"),
        ("perl-redis", "perl", "draw_redis.pl", "Redis"),
        ("hiredis", "c", "draw.c", "hiredis"),
    )
}


@dataclass
class Ready:
    """A folder with the programs of a page, for a server on two ports of their own."""

    page: Page
    folder: Path
    start: Callable[..., Served]
    env: dict[str, str]
    http: int = field(default_factory=free_port)
    resp: int = field(default_factory=free_port)

    def __post_init__(self) -> None:
        self.write(self.http, self.resp)

    def write(self, http: int, resp: int) -> None:
        """Write the programs of the page, with these ports in place of the page's."""
        ports = {"8000": str(http), "6380": str(resp)}
        for name, program in self.page.programs.items():
            own = re.sub(r"\b(8000|6380)\b", lambda port: ports[port[1]], program)
            (self.folder / name).write_text(own, encoding="utf-8")

    def build(self) -> None:
        for command in self.page.builds():
            done = self.run(command)
            assert done.returncode == 0, done.stderr

    def serve(self, *arguments: str, **env: str) -> Served:
        served = self.start(
            "--resp", f"127.0.0.1:{self.resp}", *arguments, http=f"127.0.0.1:{self.http}", env={**self.env, **env}
        )
        served.told("serving ")
        return served

    def create(self, *arguments: str) -> None:
        done = programs.run(*PROGRAM, "create", *arguments, env={**os.environ, **self.env})
        assert done.returncode == 0, done.stderr

    def run(self, command: list[str], token: str = "") -> subprocess.CompletedProcess[str]:
        with self.running(command, token) as process:
            out, err = process.communicate(timeout=PATIENCE)
            return subprocess.CompletedProcess(command, process.returncode, out, err)

    @contextmanager
    def running(self, command: list[str], token: str = "") -> Iterator[subprocess.Popen[str]]:
        env = {**os.environ, **TOOLCHAINS[self.page.name].env, **({"ISSUER_TOKEN": token} if token else {})}
        with subprocess.Popen(
            command, cwd=self.folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            try:
                yield process
                process.wait(PATIENCE)
            finally:
                process.kill()


@pytest.fixture
def ready(home: Path, serve: Serve, redis_url: str) -> Iterator[Callable[[Page], Ready]]:
    started: list[Served] = []

    def start(*arguments: str, **options: Any) -> Served:
        started.append(serve(*arguments, **options))
        return started[-1]

    def make(page: Page) -> Ready:
        toolchain = TOOLCHAINS[page.name]
        toolchain.need()
        toolchain.prepare(home)
        store = f"sqlite:///{home / 'issuer.db'}"
        return Ready(page, home, start, {"ISSUER_REDIS_URL": redis_url, "ISSUER_STORE_URL": store})

    yield make
    for served in started:  # killed, its workers could still write to the Redis of the next test
        served.stop(signal.SIGINT)


def token_for(home: Path, *tags: str, rate: float | None = None) -> tuple[str, str]:
    """Return a token, and the path of a file that has it."""
    token = tokens(home, shop=(["issue"], tags, rate))[1]["shop"]
    return token, str(home / "tokens.toml")


def numbers(lines: str, word: str = "next") -> list[int]:
    """Return the numbers in the lines that begin with the word. JavaScript writes an `n` behind them."""
    found = re.findall(rf"^{word} (.*)$", lines, re.MULTILINE)
    return [int(each) for line in found for each in re.findall(r"\d+", line)]


@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_the_commands_of_a_page_print_what_it_shows(page: Page, ready: Callable[[Page], Ready]) -> None:
    here = ready(page)
    here.create("orders")
    here.serve()
    for command, shown in page.commands:
        done = here.run(shlex.split(command))
        assert (done.stdout, done.stderr, done.returncode) == (shown.rstrip("\n") and shown, "", 0), command


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_a_program_draws_the_highest_numbers_exactly(client: Client, ready: Callable[[Page], Ready]) -> None:
    here = ready(client.page)
    here.build()
    first = 2**63 - 1000
    here.create("high", "--start", str(first))
    here.serve()
    done = here.run([*client.page.draws(client.program), "high", "4"])
    assert done.returncode == 0, done.stderr
    assert numbers(done.stdout) == [first, first + 1, first + 2, first + 3]
    assert numbers(done.stdout, "take")[0] == first + 4
    assert numbers(done.stdout, "take")[-1] == first + 6


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_the_errors_of_a_program_begin_as_its_page_says(
    client: Client, ready: Callable[[Page], Ready], home: Path
) -> None:
    here, command = ready(client.page), client.page.draws(client.program)
    here.build()
    for tag in ("orders", "full", "other", "away"):
        here.create(tag, *(("--limit", "2") if tag == "full" else ()))
    token, path = token_for(home, "orders", "full", "away", "nothing")
    here.serve("--tokens", path, ISSUER_TIMEOUT="0.5", ISSUER_STORE_TIMEOUT="0.2")
    found: dict[str, str] = {}

    def told(happened: str, tag: str, sent: str = token) -> None:
        done = here.run([*command, tag, "3"], sent)
        beginning = client.page.errors[happened][client.column]
        assert done.returncode != 0, happened
        assert re.search(rf'\b{beginning}\b[ :"]', done.stderr), f"{happened}: {done.stderr}"
        found[happened] = beginning

    told("The tag does not exist", "nothing")
    told("The token is missing or wrong", "orders", "")
    told("The token is missing or wrong", "orders", "wrong")
    told("The token is not valid for this tag", "other")
    told("The tag has reached its limit", "full")
    with closing(sqlite3.connect(home / "issuer.db", PATIENCE, isolation_level=None)) as store:
        store.execute("BEGIN EXCLUSIVE")
        told("The store does not answer, in five attempts", "away")
    assert client.page.errors.keys() - found.keys() == {"The token has used up its rate, in five attempts"}
    done = here.run([*command, "away", "3"], token)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_a_program_continues_after_a_restart_of_the_server(
    client: Client, ready: Callable[[Page], Ready], home: Path
) -> None:
    here, times = ready(client.page), 3 * RATE
    here.build()
    here.create("orders")
    token, path = token_for(home, "orders", rate=RATE)
    served = here.serve("--tokens", path)
    with here.running([*client.page.draws(client.program), "orders", str(times)], token) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        begun = "".join(process.stdout.readline() for _ in range(5))
        assert served.stop(signal.SIGINT) == 0
        here.serve("--tokens", path)
        out, err = process.stdout.read(), process.stderr.read()
    drawn = numbers(begun + out)
    assert len(drawn) == times, err
    assert numbers(out, "take"), err  # the pipeline, which no program repeats, may be above the rate
    assert drawn == sorted(set(drawn))


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
def test_a_program_continues_after_a_lost_reply(client: Client, ready: Callable[[Page], Ready]) -> None:
    here, command = ready(client.page), client.page.draws(client.program)
    here.create("orders")
    here.create("bills")
    here.serve()
    with FaultProxy(("127.0.0.1", here.http)) as http, FaultProxy(("127.0.0.1", here.resp)) as resp:
        here.write(http.port, resp.port)
        here.build()
        for proxy in (http, resp):
            proxy.drop_replies(b"orders", times=1)
        done = here.run([*command, "orders", "3"])
        assert done.returncode == 0, done.stderr
        assert http.hits + resp.hits == 1
        assert numbers(done.stdout) == [2, 3, 4]  # 1 is a gap
        http.drop_replies(b"invoice-778", times=1)
        done = here.run([*command, "bills", "3"])
    assert done.returncode == 0, done.stderr
    assert numbers(done.stdout) == [1, 2, 3]
    if "key" in done.stdout:
        assert numbers(done.stdout, "key") == [7, 7]  # the retry has got the number of the lost reply
