"""`issuer serve --console` as a real process, and what tests ask of it over HTTP."""

import os
import re
import signal
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx

import issuer
from issuer.doors.tokens import line_for, new_token
from tests import programs
from tests.cli.conftest import PATIENT
from tests.waiting import until

#: Of each token: scopes and patterns of tags.
Given = Mapping[str, tuple[list[Any], list[str]]]

_KEY = re.compile(r'name="form_key" value="([0-9a-f]*)"')
_STARTED = """
import importlib, sys
for said in {constants!r}:
    name, _, value = said.partition("=")
    module, _, constant = name.rpartition(".")
    setattr(importlib.import_module(module), constant, float(value))
from issuer.cli import main
main(prog_name="issuer")
"""
#: A machine that others keep busy ends nothing early. Tests fail to log in more often than people do.
_SLOW = (
    "issuer.doors.console.logins.FAILURES=10000",
    "issuer.doors.server.supervisor.STOPPING=300",
    "issuer.doors.server.worker.DRAINING=60",
)


class Tokens:
    """A tokens file, and the tokens in it by name."""

    def __init__(self, folder: Path, given: Given) -> None:
        self.file = folder / "tokens.toml"
        self.file.touch(mode=0o600)
        self.given = dict(given)
        self.of = {name: new_token() for name in given}
        self.write()

    def write(self) -> None:
        """Write the tokens that are in `of`."""
        text = "".join(line_for(token, name, *self.given[name]) + "\n" for name, token in self.of.items())
        new = self.file.with_suffix(".new")
        new.write_text(text)
        new.chmod(0o600)
        new.replace(self.file)


class Site:
    """A running console. `redis` and `store` are the addresses that its server uses."""

    def __init__(self, process: programs.Program, log: Path, redis: str, store: str, tokens: Tokens | None) -> None:
        self.process, self._log, self.redis, self.store, self.tokens = process, log, redis, store, tokens
        self.port = self._port()
        self.client = self.visitor()

    @property
    def log(self) -> str:
        return self._log.read_text()

    def _port(self) -> int:
        until(lambda: "serving " in self.log or self.process.poll() is not None, message="it serves")
        found = re.search(r"http://127\.0\.0\.1:(\d+)", self.log)
        assert found is not None, self.log
        return int(found[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def console(self) -> str:
        return f"{self.url}/console"

    def visitor(self, **headers: str) -> httpx.Client:
        """Return a client with cookies of its own. It follows no redirect."""
        return httpx.Client(base_url=self.url, timeout=120, trust_env=False, headers=headers)

    @contextmanager
    def logged_in(self, name: str) -> Iterator[httpx.Client]:
        """Make a client that has logged in with a token."""
        assert self.tokens is not None
        with self.visitor() as visitor:
            answer = self.login(visitor, self.tokens.of[name])
            assert answer.status_code == 303, answer.text
            yield visitor

    def login(
        self, visitor: httpx.Client, token: str, then: str = "", headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Send the form of the login."""
        return self.send(visitor, "login", {"token": token, "then": then}, headers)

    def send(
        self, visitor: httpx.Client, page: str, fields: Mapping[str, str], headers: Mapping[str, str] | None = None
    ) -> httpx.Response:
        """Send a form, as a browser does from a page of the console."""
        return visitor.post(f"/console/{page}", data=dict(fields), headers={"Origin": self.url, **(headers or {})})

    def key(self, visitor: httpx.Client) -> str:
        """Return the value that the forms of this visitor send."""
        found = _KEY.search(visitor.get("/console/act", params={"what": "create"}).text) or _KEY.search(
            visitor.get("/console/").text
        )
        assert found is not None
        return found[1]

    def act(self, visitor: httpx.Client, what: str, tag: str, **fields: str) -> httpx.Response:
        """Confirm an act, as a browser does after the page that shows what will change."""
        given = {"form_key": self.key(visitor), "what": what, "tag": tag, "confirmed": "1", "sent": "1"}
        return self.send(visitor, "act", given | fields)

    def read_tags(self, *tags: str) -> None:
        """Wait until the overview shows these tags."""
        with self.logged_in("boss") if self.tokens else self.visitor() as visitor:
            for tag in tags:
                until(lambda tag=tag: visitor.get("/console/", params={"q": tag}).text.count("/tag?tag="), message=tag)  # type: ignore[misc]  # a default

    def looked(self) -> None:
        """Wait until the collector has looked once: then the servers have agreed on the secret of the logins."""
        board = until(lambda: next(self._log.parent.glob("issuer-metrics-*/console-*.sqlite"), None), message="a board")
        assert board is not None
        with closing(sqlite3.connect(f"file:{board}?mode=ro", uri=True)) as database:
            found = "SELECT count(*) FROM facts WHERE name = 'health'"
            until(lambda: database.execute(found).fetchone()[0], message="a look", ignoring=(sqlite3.OperationalError,))

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(120)


@contextmanager
def console(
    folder: Path,
    *arguments: str,
    redis: str = "none",
    store: str = "",
    tokens: Given | None = None,
    env: Mapping[str, str] | None = None,
    constants: tuple[str, ...] = (),
    command: tuple[str, ...] = ("serve", "--console", "--http", "127.0.0.1:0"),
) -> Iterator[Site]:
    """Start a console in a folder. Without `store`, it has an SQLite file there."""
    store = store or f"sqlite:///{folder}/ids.db"
    made = None if tokens is None else Tokens(folder, tokens)
    given = {
        **{name: value for name, value in os.environ.items() if not name.startswith("ISSUER_")},
        **PATIENT,
        "HOME": str(folder), "TMPDIR": str(folder), "TZ": "UTC", "ISSUER_DRAIN_DELAY": "0",
        **(env or {}),
    }  # fmt: skip
    more = () if made is None else ("--tokens", str(made.file))
    log = folder / f"log{len(list(folder.glob('log*')))}"
    code = _STARTED.format(constants=(*_SLOW, *constants))
    line = ("-c", code, "--redis", redis, "--store", store, *command, *more, *arguments)
    with log.open("w") as stderr:
        process = programs.Program(
            *line, stdin=programs.DEVNULL, stdout=programs.DEVNULL, stderr=stderr, env=given, cwd=folder
        )
    with process:
        site = Site(process, log, redis, store, made)
        site.looked()
        yield site
        site.client.close()


def program(redis: str, store: str, **options: Any) -> issuer.Issuer:
    """Return an issuer of a program that uses the same Redis and store."""
    patient = {"timeout": 60.0, "store_timeout": 45.0, "redis_timeout": 30.0, "scheduler": None}
    return issuer.connect(redis=redis, store=store, **{**patient, **options})
