"""Where a password that expires comes from: a function, or a command whose output is kept."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pymongo.errors import InvalidOperation, ServerSelectionTimeoutError

from issuer_persistence import contract, credentials
from issuer_persistence.credentials import CommandCredentials, Credentials
from issuer_persistence.errors import Misconfigured, StoreError, Unconfirmed
from issuer_persistence.mongodb.clients import Clients, LoginRefused, renewing
from tests.refusals import refused
from tests.servers.ports import LOOPBACK
from tests.servers.postgres import PostgresServer
from tests.waiting import ended, until

#: Nobody waits so long here.
LONG = 60.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which the test sets."""
    now = [1000.0]
    monkeypatch.setattr(credentials, "monotonic", lambda: now[0])
    return now


class Printing:
    """A command that prints the content of a file, and counts its runs."""

    def __init__(self, folder: Path, content: str = "one\n") -> None:
        self.file, self._runs = folder / "password", folder / "runs"
        self.file.write_text(content)
        self._runs.write_text("")
        program = f"echo >> {self._runs}; cat {self.file}"
        self.credentials = CommandCredentials("store_password_command", ["sh", "-c", program])

    @property
    def runs(self) -> int:
        return len(self._runs.read_text())

    def get(self) -> str:
        user, password = self.credentials.get(LONG)
        assert user == ""
        return password


@pytest.fixture
def printing(tmp_path: Path) -> Printing:
    return Printing(tmp_path)


def test_a_function_returns_a_password_or_a_pair_and_nothing_else() -> None:
    assert Credentials("x", lambda: "p").get(LONG) == ("", "p")
    assert Credentials("x", lambda: ("u", "p")).get(LONG) == ("u", "p")
    for wrong in (None, 5, b"p", ("u",), ("u", b"p"), ["u", "p", "q"]):
        error = refused(Misconfigured, "x: return a password, or a pair", Credentials("x", lambda: wrong).get, LONG)  # noqa: B023
        assert "'p'" not in str(error)

    for empty in ("", ("u", "")):
        refused(Unconfirmed, "x: the function returned an empty password", Credentials("x", lambda: empty).get, LONG)  # noqa: B023
    for hidden in ("hunter2\n", ("u\0", "hunter2")):
        error = refused(Misconfigured, "x: .* cannot be printed", Credentials("x", lambda: hidden).get, LONG)  # noqa: B023
        assert "hunter2" not in str(error)

    def fails() -> str:
        raise KeyError("token")

    raised = refused(Unconfirmed, "x: the function raised KeyError", Credentials("x", fails).get, LONG)
    assert isinstance(raised.__cause__, KeyError)


def test_the_output_is_kept_for_five_minutes(printing: Printing, clock: list[float]) -> None:
    assert [printing.get() for _ in range(3)] == ["one"] * 3
    printing.file.write_text("two")
    clock[0] += credentials.KEPT - 1
    assert (printing.get(), printing.runs) == ("one", 1)
    clock[0] += 1
    assert (printing.get(), printing.runs) == ("two", 2)


def test_a_refused_password_is_asked_for_anew_by_one_of_many(printing: Printing) -> None:
    assert printing.get() == "one"
    printing.file.write_text("two")

    def connect(_: int) -> str:
        printing.credentials.refused("one")
        return printing.get()

    with ThreadPoolExecutor(32) as threads:
        assert {*threads.map(connect, range(200))} == {"two"}
    assert printing.runs == 2


def test_a_command_that_repeats_a_refused_password_runs_once_a_second(printing: Printing, clock: list[float]) -> None:
    for seconds in range(5):
        for _ in range(10):
            assert printing.get() == "one"
            printing.credentials.refused("one")
        assert printing.runs == seconds + 2
        clock[0] += credentials.AGAIN
    printing.file.write_text("two")
    assert printing.get() == "two"
    printing.file.write_text("three")
    printing.credentials.refused("two")
    assert printing.get() == "three"  # a password that is new is asked for at once


@pytest.mark.parametrize(
    ("words", "kind", "text"),
    [
        (["sh", "-c", "echo hunter2; echo hunter2 >&2; exit 3"], Unconfirmed, "'sh' has ended with exit status 3"),
        (["sh", "-c", "echo hunter2; kill -9 $$"], Unconfirmed, "exit status -9"),
        (["/no/such/program", "hunter2"], Misconfigured, "cannot be started: No such file"),
        (["true", "hunter2"], Unconfirmed, "has printed nothing"),
        (["printf", "hunter2\nhunter2"], Misconfigured, "must print the password, as one line"),
        (["printf", r"\377hunter2\0"], Misconfigured, "must print the password, as one line"),
    ],
)
def test_a_failure_is_kept_for_a_second_and_does_not_show_what_was_printed(
    words: list[str], kind: type[StoreError], text: str, clock: list[float], capfd: pytest.CaptureFixture[str]
) -> None:
    made = CommandCredentials("redis_password_command", words)
    for _ in range(3):
        error = refused(kind, f"redis_password_command: .*{text}", made.get, LONG)
        assert "hunter2" not in f"{error} {error!r} {error.__context__!r} {made!r}"
    assert capfd.readouterr() == ("", "")
    made._words = ["echo", "right"]
    refused(kind, text, made.get, LONG)
    clock[0] += credentials.AGAIN
    assert made.get(LONG) == ("", "right")


def test_a_password_may_have_blanks_and_letters_of_any_language(tmp_path: Path) -> None:
    assert Printing(tmp_path, " a b  ü\r\n").get() == " a b  ü"


def test_a_command_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(credentials, "LONGEST", 0.2)
    file = tmp_path / "pid"
    made = CommandCredentials("x", ["sh", "-c", f"echo $$ > {file}; echo hunter2; sleep 600; echo"])
    error = ended(lambda: refused(Unconfirmed, "'sh' has not ended within 0.2 s", made.get, 2 * LONG), LONG)
    assert "hunter2" not in f"{error!r} {error.__context__!r}"
    with pytest.raises(ProcessLookupError):
        os.kill(int(file.read_text() or 2**22 + 1), 0)


def test_a_deadline_ends_the_wait_but_not_the_command(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    made = CommandCredentials("x", ["cat", str(gate)])
    for _ in range(3):
        refused(Unconfirmed, "'cat' has not ended yet", made.get, 0.05)
    gate.write_text("late")
    assert made.get(LONG) == ("", "late")


def test_a_function_that_stands_still_holds_nobody_beyond_the_deadline_and_is_called_16_times_at_most() -> None:
    goes_on, asked = threading.Event(), list[str]()

    def stands_still() -> str:
        asked.append(threading.current_thread().name)
        goes_on.wait(LONG)
        return "late"

    made = Credentials("x", stands_still)
    for _ in range(credentials.LATE_MOST):
        refused(Unconfirmed, "x: the function has not returned within 0.02 s", made.get, 0.02)
    refused(Unconfirmed, "16 calls of the function have not returned yet", made.get, LONG)
    assert asked == ["issuer-credentials"] * credentials.LATE_MOST
    goes_on.set()
    until(lambda: not any(each.is_alive() for each in made._late), LONG)
    assert made.get(LONG) == ("", "late")


def test_a_function_is_called_although_no_thread_can_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", fails)
    assert Credentials("x", lambda: "p").get(LONG) == ("", "p")


@pytest.mark.parametrize("code", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EINTR])
def test_a_command_that_cannot_start_now_may_start_later(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(subprocess, "Popen", fails)
    refused(Unconfirmed, "cannot be started", CommandCredentials("x", ["true"]).get, LONG)


def test_the_output_of_a_command_that_leaves_a_child_behind_is_used(tmp_path: Path) -> None:
    """The child holds the pipe open."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    made = CommandCredentials("x", ["sh", "-c", f"echo one; cat {gate} & exit 0"])
    silent = CommandCredentials("x", ["sh", "-c", f"cat {gate} & exit 0"])
    try:
        assert ended(lambda: made.get(2 * LONG), LONG) == ("", "one")
        ended(lambda: refused(Unconfirmed, "'sh' has printed nothing", silent.get, 2 * LONG), LONG)
    finally:
        gate.write_text("")


def test_a_command_that_cannot_be_killed_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that runs as another user."""
    monkeypatch.setattr(credentials, "LONGEST", 0.05)
    monkeypatch.setattr(credentials, "_KILLED", 0.05)
    made, kill, killed = CommandCredentials("x", ["sleep", "600"]), subprocess.Popen.kill, list[Any]()

    def fails(process: Any) -> None:
        killed.append(process)
        raise PermissionError

    monkeypatch.setattr(subprocess.Popen, "kill", fails)
    refused(Unconfirmed, "'sleep' has not ended within 0.05 s", made.get, LONG)
    kill(killed[0])
    killed[0].wait()


def test_a_refused_login_is_found_out_in_any_language() -> None:
    """By a code, or by what libpq knows of the login. The texts are those of servers that speak German."""
    mysql, pymysql = pytest.importorskip("issuer_persistence.sql.mysql"), pytest.importorskip("pymysql")
    for code, refuses in ((1045, True), (1698, True), (1044, False), (1049, False)):
        assert mysql.MySQLStore.refuses_login(pymysql.OperationalError(code, "Benutzer abgewiesen")) is refuses
    assert not mysql.MySQLStore.refuses_login(pymysql.OperationalError())
    assert not mysql.MySQLStore.refuses_login(OSError(1045, "Zugriff"))


@pytest.mark.live
def test_a_refused_login_of_postgresql_is_found_out_in_any_language(postgres_server: PostgresServer) -> None:
    postgresql, psycopg = pytest.importorskip("issuer_persistence.sql.postgresql"), pytest.importorskip("psycopg")
    server, user = postgres_server, "login"
    access = server.directory / "data" / "pg_hba.conf"
    before = access.read_text()
    server.execute(f"CREATE USER {user} PASSWORD 'right'")
    try:
        access.write_text(f"host all {user} all scram-sha-256\n{before}")
        server.execute("SELECT pg_reload_conf()")
        address = server.url.rpartition("@")[2]

        def failed(login: str) -> Any:
            """Return the error of a login, or None."""
            try:
                psycopg.connect(f"postgresql://{login}@{address}").close()
            except psycopg.OperationalError as error:
                return error

        until(lambda: failed(f"{user}:wrong"), LONG, "the server has read its rules")
        refuses = postgresql.PostgreSQLStore.refuses_login
        for login in (f"{user}:wrong", user):
            error = failed(login)
            assert refuses(error)
            error.args = ("FATAL:  Passwort-Authentifizierung fehlgeschlagen",)
            assert refuses(error)
        address = f"{address.rpartition('/')[0]}/missing"
        assert not refuses(failed(f"{user}:right"))
        assert not refuses(OSError())
    finally:
        access.write_text(before)
        server.execute("SELECT pg_reload_conf()")
        server.execute(f"DROP USER {user}")


def test_a_call_with_a_new_password_has_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    now, given = [1000.0], list[float]()
    monkeypatch.setattr(contract, "monotonic", lambda: now[0])

    class Refusing:
        @renewing
        def call(self, *, timeout: float) -> str:
            given.append(timeout)
            now[0] += 3
            if len(given) == 1:
                raise LoginRefused("no")
            return "done"

    assert Refusing().call(timeout=5) == "done"
    assert given == [5, 2]


def test_no_shell_reads_the_words() -> None:
    program: Callable[..., CommandCredentials] = CommandCredentials
    words = [sys.executable, "-S", "-c", "import sys; print(*sys.argv[1:])", "$HOME;", "*"]
    assert program("x", words).get(LONG) == ("", "$HOME; *")


def test_a_client_with_an_old_password_is_closed_when_its_last_call_ends() -> None:
    made = Clients(
        None, f"mongodb://u@{LOOPBACK}:1/ids", {"serverselectiontimeoutms": 1}, Credentials("x", lambda: "p")
    )
    old = [made.enter(LONG), made.enter(LONG)]
    assert old[0] is old[1]
    assert made.refused(old[0])
    new = made.enter(LONG)
    assert new is not old[0]
    assert made.refused(old[1])  # of two calls that were refused with the same password, one makes a new client
    assert made.enter(LONG) is new
    made.leave(old[0])
    refused(ServerSelectionTimeoutError, "", old[1].command, "ping")
    made.leave(old[1])
    refused(InvalidOperation, "after close", old[1].command, "ping")
    for _ in range(2):
        made.leave(new)
    refused(ServerSelectionTimeoutError, "", new.command, "ping")
    made.close()
    refused(InvalidOperation, "after close", new.command, "ping")
