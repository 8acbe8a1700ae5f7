"""Streams that a shell has closed: `>&-`, `2>&-`, `<&-`."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.cli.conftest import PROGRAM, Cli

pytestmark = pytest.mark.live

#: What a library in C does: it writes to the descriptor 2, whatever that is.
LOUD = """
import os, sys
from issuer import Issuer
take = Issuer.take
def loud(*args, **options):
    numbers = take(*args, **options)
    os.write(2, b"X" * 100_000)
    return numbers
Issuer.take = loud
from issuer.cli import main
main()
"""


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_a_command_does_its_work_with_streams_closed_and_none_of_its_talk_lands_in_the_store(
    direct: Cli, home: Path, store: str, closed: str
) -> None:
    direct("create", "orders")
    program = [sys.executable, "-c", LOUD, "--store", store, "next", "orders", "-n", "3"]
    ended = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *program], cwd=home, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout == ("" if ">&-" in closed.split() else "1\n2\n3\n")
    assert b"XXXX" not in (home / "ids.db").read_bytes()
    with closing(sqlite3.connect(home / "ids.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    assert direct("next", "orders").out == "4\n"
    if "<&-" in closed:  # then nobody can be asked
        command = [sys.executable, *PROGRAM, "--store", store, "delete", "orders"]
        asking = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *command], cwd=home, check=False)
        assert asking.returncode == 2
        assert [tag["tag"] for tag in direct("tags", "--json").json()] == ["orders"]
