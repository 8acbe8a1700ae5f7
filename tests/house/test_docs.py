"""Pages of the docs agree with the code: generated ones, errors, events, snowflake tags, interfaces, platforms."""

import logging
import re
import subprocess
import sys
import tomllib
from dataclasses import FrozenInstanceError, fields
from pathlib import Path

import pytest

import issuer
from issuer.advice import ADVICE, command_line, filled, python
from issuer.cli.exits import _CODES, FAILED
from issuer.core.events import LINES, Event, line_of
from issuer.errors import IssuerError
from issuer.strategies import Layout
from issuer.strategies.snowflake import stored
from issuer.strategies.snowflake.machines import LEASE, MARGIN
from issuer.strategies.snowflake.strategy import MAX_WAIT, OPTIONS, SOURCES
from issuer_persistence.sqlite.store import OLDEST
from tests.reference import REMEDY, pages

ROOT = Path(__file__).resolve().parents[2]
PAGES = pages()
PAGE, TEXT, OF_EVENTS, PLATFORMS = (
    (ROOT / "docs" / name).read_text(encoding="utf-8")
    for name in ("reference/errors.md", "guide/snowflake.md", "reference/events.md", "reference/platforms.md")
)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
ROW = re.compile(r"^\| `(\w+)` \| `(\w+)` \| (\d) \| (.+?) \| (.+?) \|$", re.MULTILINE)


def public() -> dict[str, type[IssuerError]]:
    found = {name: getattr(issuer, name) for name in issuer.__all__}
    return {name: each for name, each in found.items() if isinstance(each, type) and issubclass(each, IssuerError)}


def every(kind: type[IssuerError]) -> set[type[IssuerError]]:
    return {kind}.union(*(every(each) for each in kind.__subclasses__() if each.__module__ == "issuer.errors"))


def test_every_error_that_users_meet_is_public() -> None:
    assert set(public().values()) == every(IssuerError)


def test_the_page_has_a_row_for_each_with_its_code_what_it_carries_and_what_to_do() -> None:
    rows = ROW.findall(PAGE)
    assert sorted(name for _, name, *_ in rows) == sorted(public())
    assert len({code for code, *_ in rows}) == len(rows)
    for code, name, exits, says, do in rows:
        error = public()[name]
        assert error.code == code
        expected = next((number for kind, number in _CODES if issubclass(error, kind)), FAILED)
        assert int(exits) == expected, name
        assert says.strip()
        assert do.strip()
    assert "`UsageError` with the code `usage`" in PAGE


def test_the_page_has_what_each_error_advises_in_the_words_of_python_and_of_the_command_line() -> None:
    cells = {code: do for code, _, _, _, do in ROW.findall(PAGE)}
    for name, advice in ADVICE.items():
        for call in re.findall(r"{do:.*?}", advice):
            for words in (python, command_line):
                typed = filled(call, words, "orders").strip("`")
                assert f"`{typed}`" in cells[name.partition(".")[0]], (name, typed)


def test_every_option_stands_in_the_table_with_its_default() -> None:
    table = TEXT.partition("| option |")[2].partition("\n\n")[0]
    rows = {line.split("|")[1]: line for line in table.splitlines()[2:]}
    assert {name for cell in rows for name in re.findall(r"`(\w+)`", cell)} == set(OPTIONS)
    assert f"| {LEASE:g}; {stored.LEASE:g} with `store` |" in rows[" `lease` "]
    assert f"| {MAX_WAIT} |" in rows[" `max_wait` "]
    assert all(f"`{source}`" in rows[" `machine` "] for source in SOURCES)
    assert f"until {Layout().exhausted:%Y-%m-%d}" in rows[" `time_bits` "]
    assert f"{MARGIN:g} s" in TEXT


@pytest.mark.parametrize(("page", "kind"), [("issuer", issuer.Issuer), ("asyncio", issuer.AsyncIssuer)])
def test_the_page_of_an_interface_lists_each_public_member(page: str, kind: type) -> None:
    text = (ROOT / "docs" / "reference" / f"{page}.md").read_text(encoding="utf-8")
    listed = re.findall(r"\w+", text.partition("members: [")[2].partition("]")[0])
    assert sorted(listed) == sorted(name for name in dir(kind) if not name.startswith("_"))


EVENT = re.compile(r"^\| `(\w+)` \| (.+?) \|(.*?)\| ?(\w*) ?\|$", re.MULTILINE)
#: Not by `__subclasses__`, which also has each class as it was before it got its slots.
EVENTS: dict[str, type[Event]] = {
    name: each
    for name, each in vars(issuer.events).items()
    if isinstance(each, type) and issubclass(each, Event) and each is not Event
}


def test_the_page_has_a_row_for_each_with_its_values_and_its_level_in_the_log() -> None:
    rows = EVENT.findall(OF_EVENTS)
    assert sorted(name for name, *_ in rows) == sorted(EVENTS)
    for name, says, values, level in rows:
        line = LINES.get(EVENTS[name])
        assert says.strip()
        assert re.findall(r"`(\w+)`", values) == [each.name for each in fields(EVENTS[name])][1:], name
        assert level == ("" if line is None else logging.getLevelName(line[0]).lower()), name


def test_an_event_is_public_frozen_slotted_and_says_what_it_means() -> None:
    for name, each in EVENTS.items():
        assert not hasattr(each.__new__(each), "__dict__")
        assert not (each.__doc__ or "").startswith(f"{name}("), "dataclasses make one up"
    with pytest.raises(FrozenInstanceError):
        issuer.events.WentDirect("a").tag = "b"  # type: ignore[misc]  # what is tried


def test_what_is_logged_says_what_the_log_always_said() -> None:
    assert set(LINES) <= set(EVENTS.values())
    assert line_of(issuer.events.RedisBack("a", 1.0)) is None
    level, text, arguments = line_of(issuer.events.StoreBack("a", None)) or (0, "", ())
    assert (level, text % arguments) == (logging.WARNING, "tag 'a': segments are reserved again")
    silent = [line_of(issuer.events.StoreSilent("a", OSError("why"), scheduled)) for scheduled in (True, False)]
    assert [line is not None for line in silent] == [True, False]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_the_page_is_what_its_generator_makes_of_the_code(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == PAGES[path], f"docs/reference/{path.name} is out of date: {REMEDY}"


def ran(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60
    )


def test_the_page_names_the_pythons_that_are_tested() -> None:
    classifier = re.compile(r"Programming Language :: Python :: (3\.\d+)")
    tested = [found[1] for each in PROJECT["classifiers"] if (found := classifier.fullmatch(each))]
    assert f"| CPython {', '.join(tested)} | tested" in PLATFORMS
    assert PROJECT["requires-python"] == f">={tested[0]}"


def test_the_page_names_the_oldest_sqlite() -> None:
    assert f"| SQLite | {'.'.join(map(str, OLDEST))} or newer |" in PLATFORMS


def test_windows_has_only_clients_of_a_server() -> None:
    done = ran(
        "import os, sys; del os.register_at_fork, os.fork; sys.modules['fcntl'] = None; import issuer; issuer.connect()"
    )
    assert "ConfigurationError: a process with Redis or a store of its own needs a POSIX" in done.stderr, done.stderr
    assert "ISSUER_SERVER" in done.stderr


def test_a_python_without_its_gil_draws_a_warning_and_numbers() -> None:
    done = ran(
        "import sys; sys._is_gil_enabled = lambda: False; import issuer\n"
        "ids = issuer.connect(redis='none', store='memory://'); ids.create('orders', order='trend')\n"
        "print(ids.next('orders'), ids.next('orders'))"
    )
    assert "RuntimeWarning: issuer is not tested on a free-threaded Python" in done.stderr
    assert done.stdout == "1 2\n"


def test_a_python_with_its_gil_draws_no_warning() -> None:
    done = ran("import issuer")
    assert done.stderr == ""
